"""`tidelog.fit`: before training, what a model would need and how fast it would train here."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from tidelog import _errors, models
from tidelog._offload import default_staging, memory_for
from tidelog._options import size
from tidelog.commands import _measure
from tidelog.commands._commands import SECONDS_OF_A_DAY, USAGE
from tidelog.commands._fit_result import Fit, FitFigures, Rates, binary
from tidelog.output._figures import StrPath
from tidelog.output._progress import Progress
from tidelog.recorder import Gpu
from tidelog.storages._ops import OpOverload

# What a model is that cannot be made.
_NO_MODEL = (LookupError, OSError, ImportError, RuntimeError, NotImplementedError, ValueError)
_LATENCY_NS = 100_000  # of a transfer
_HOST_LINK = 16_000_000_000  # bytes per second: half of what 16 lanes of PCI Express 4 carry
_VERIFY = 5_000_000_000  # bytes per second at which memory is compared with checksums, on one core

# A processor: no roofline, ops are measured. What the dispatcher and the hook take is in each op.
_PROCESSOR: dict[str, Any] = {
    "name": "this machine's processor",
    "memory_bytes": 0,
    "memory_bandwidth": 1.0,
    "matmul_flops": {},
    "vector_flops": 1.0,
    "efficiency": {},
    "launch_ns": 20_000,
    "peer_bandwidth": 10e9,
}


class Exit(IntEnum):
    """Exit codes of `tidelog fit`."""

    FITS = 0
    NO_MODEL = 1
    DOES_NOT_FIT = 2
    NO_POOL = 3
    NO_PLANNER = 4
    USAGE = USAGE


class Failure(_errors.Error):
    """The reason why there is no answer, and the exit code."""

    def __init__(self, code: Exit, text: object) -> None:
        super().__init__(str(text))
        self.code = code


@dataclass(frozen=True)
class Question:
    """Question on a model: the options of `fit`, read."""

    model: str
    memory: int | None = None
    host_memory: int | None = None
    pool: StrPath | None = None
    read: float | None = None
    write: float | None = None
    drive: str | None = None
    drives: int = 1
    gpu: str | None = None
    precision: models.Precision | None = None
    micro_batch: int = 4
    micro_batches: int = 1
    sequence: int = 1024
    checkpointing: bool = False
    report: StrPath | None = None
    trace: StrPath | None = None


def fit(
    model: StrPath,
    *,
    memory: int | str | None = None,
    host_memory: int | str | None = None,
    pool: StrPath | None = None,
    read: float | None = None,
    write: float | None = None,
    drive: str | None = None,
    drives: int = 1,
    gpu: str | None = None,
    precision: models.Precision | None = None,
    micro_batch: int = 4,
    micro_batches: int = 1,
    sequence: int = 1024,
    checkpointing: bool = False,
    report: StrPath | None = None,
    trace: StrPath | None = None,
) -> Fit:
    """Predicts the needs and the speed of a training step of a model, before any training.

    `model` is a name, a config.json or FILE.py:FUNCTION; `pool` is measured, or `read` and `write`
    say its bytes per second; `memory` is the budget, by default all that the model needs. The other
    options are those of the command: `tidelog fit --help` explains each. Raises tidelog.Error.
    """
    return answer(
        Question(
            os.fspath(model), None if memory is None else size(memory, "memory"),
            None if host_memory is None else size(host_memory, "host_memory"), pool, read, write, drive, drives, gpu,
            precision, micro_batch, micro_batches, sequence, checkpointing, report, trace,
        )
    )  # fmt: skip


def answer(question: Question) -> Fit:
    """Finds what is asked."""
    with tempfile.TemporaryDirectory(prefix="tidelog-fit-") as folder:
        return Fit(_figures(question, Path(folder)))


def _figures(said: Question, folder: Path) -> FitFigures:
    if said.pool is None and not (said.read and said.write):
        raise Failure(Exit.USAGE, "say --pool, whose rates are measured, or both --read and --write")
    if said.host_memory is not None and said.gpu is None:
        raise Failure(
            Exit.USAGE, "--host-memory is for a GPU's tensors: say --gpu. On a processor --memory is the host's"
        )
    text = _measured(said) if said.gpu is None else _computed(said)
    trace = Path(said.trace) if said.trace else folder / "trace.json"
    trace.write_text(text, encoding="utf-8")
    need = _need(json.loads(text))
    enough = memory_for(need.all_at_once)
    memory = said.memory or enough
    staging = default_staging(memory)
    tokens = said.micro_batch * said.micro_batches * said.sequence
    figures: FitFigures = {
        "model": need.name,
        "parameters": need.parameters,
        "tokens_per_step": tokens,
        "ops_from": said.gpu or _PROCESSOR["name"],
        "threads": None if said.gpu else torch.get_num_threads(),
        "memory": memory,
        "memory_least": memory_for(need.least),
        "memory_least_op": need.least_op,
        "memory_without_tidelog": need.all_at_once,
        "compute_seconds": need.seconds,
        "fits": memory - staging >= need.least,
    }
    if not figures["fits"]:
        return figures
    speed = _speed(said)
    rates: Rates = {"read": speed.read, "write": speed.write}
    machine = folder / "machine.json"
    machine.write_text(json.dumps(_machine(said, rates, memory, staging)), encoding="utf-8")
    whole = trace
    if memory < enough:
        trace = folder / "slower.json"
        trace.write_text(_slower(text, speed.slowdown), encoding="utf-8")
    expects = _expects(said, trace, machine)
    figures["pool"] = {**rates, "from": "measured" if said.pool else "said"}
    figures["slowdown"] = speed.slowdown
    figures["step_seconds"] = expects["time_ns"] / 1e9
    figures["tokens_per_second"] = tokens / figures["step_seconds"]
    figures["waiting_seconds"] = expects["stall_ns"] / 1e9
    figures["bytes_written"] = expects["bytes"]["ssd_written"]
    figures["bytes_read"] = expects["bytes"]["ssd_read"]
    figures["bytes_to_host"] = expects["bytes"]["host_written"]
    figures["bytes_from_host"] = expects["bytes"]["host_read"]
    figures["bytes_written_per_day"] = figures["bytes_written"] / figures["step_seconds"] * SECONDS_OF_A_DAY
    figures["notes"] = list(_notes(said, figures))
    if said.drive is not None:
        endurance = json.loads(_planner(["endurance", "--output", "json", trace, machine]))
        figures["wear"] = endurance["curve"][0]["wear"]
    if said.report is not None:
        Path(said.report).write_text(_planner(["report", trace, machine]), encoding="utf-8")
    figures["what_if"] = []
    for change, more, faster in _changes(memory, enough):
        changed: Rates = {"read": rates["read"] * faster, "write": rates["write"] * faster}
        machine.write_text(json.dumps(_machine(said, changed, more, staging)), encoding="utf-8")
        expects = _expects(said, whole if more == enough else trace, machine)
        figures["what_if"].append({"change": change, "step_seconds": expects["time_ns"] / 1e9})
    return figures


def _changes(memory: int, enough: int) -> Iterator[tuple[str, int, int]]:
    """Yields other hardware: in words, the memory then, and how much faster the SSDs are."""
    for more in sorted({min(memory * 3 // 2, enough), min(memory * 2, enough)}):
        if more > memory:
            yield f"{binary(more)} of memory", more, 1
    if memory < enough:
        yield "twice the SSDs", memory, 2


def _measured(said: Question) -> str:
    """The trace of a step, with what its ops take here."""
    sizes = (said.precision, said.micro_batch, said.micro_batches, said.sequence, said.checkpointing)
    try:
        with Progress("measuring ops", "ops") as progress:

            def measured(op: OpOverload) -> None:
                progress.add(1, str(op))

            recorder = functools.partial(_measure.MeasuredRecorder, notice=measured)
            return models.record(said.model, Gpu(**_PROCESSOR), *sizes, recorder=recorder).to_json()
    except _NO_MODEL as error:
        raise Failure(Exit.NO_MODEL, _why(said.model, error)) from error


def _why(model: str, error: Exception) -> str:
    return f"{model}: {error.strerror if isinstance(error, OSError) and error.strerror else error}"


def _computed(said: Question) -> str:
    """The trace of a step, with what its ops would take on a GPU."""
    words: list[object] = ["--checkpointing"] if said.checkpointing else []
    words += ["--precision", said.precision] if said.precision else []
    for name in ("micro_batch", "micro_batches", "sequence"):
        words += ["--" + name.replace("_", "-"), getattr(said, name)]
    return _planner(["record", said.model, "--python", sys.executable, "--gpu", said.gpu, *words], Exit.NO_MODEL)


@dataclass
class _Need:
    name: str
    parameters: int
    least: int  # bytes, of the op that needs most
    least_op: str
    all_at_once: int  # bytes, where nothing ever leaves
    seconds: float


def _need(trace: dict[str, Any]) -> _Need:
    """Returns the memory that the step of a trace needs, and the times of its ops."""
    sizes = [storage["size"] for storage in trace["storages"]]
    alive = sum(s["size"] for s in trace["storages"] if "output" not in (s["identity"] or {}))
    peak, least, least_op = alive, 0, ""
    for number, op in enumerate(trace["ops"]):
        births = [each["storage"] for each in op.get("births", [])]
        alive += sum(sizes[each] for each in births)
        peak = max(peak, alive)
        at_once = sum(sizes[each] for each in {*births, *(use["storage"] for use in op["uses"])})
        if at_once > least:
            least, least_op = at_once, f"op {number} ({op['name']})"
        alive -= sum(sizes[each["storage"]] for each in op.get("deaths", []))
    parameters = [s for s in trace["storages"] if s["kind"] == "parameter"]
    seconds = sum(op["duration_ns"] for op in trace["ops"]) / 1e9
    size_of_parameters = sum(s["size"] for s in parameters)
    return _Need(trace["name"], size_of_parameters, least, least_op, peak, seconds)


def _speed(said: Question) -> _measure.PoolSpeed:
    """Returns the speed of the pool. Where rates are said, what transfers cost the ops is not known."""
    if said.read and said.write:
        return _measure.PoolSpeed(int(said.read), int(said.write), slowdown=1.0)
    try:
        assert said.pool is not None
        return _measure.speed_of(said.pool)
    except _errors.Error as error:
        raise Failure(Exit.NO_POOL, error) from error


def _slower(text: str, slowdown: float) -> str:
    """The trace with ops that take longer beside transfers."""
    trace = json.loads(text)
    for op in trace["ops"]:
        op["duration_ns"] = round(op["duration_ns"] * slowdown)
    return json.dumps(trace)


def _machine(said: Question, rates: Rates, memory: int, staging: int) -> dict[str, Any]:
    ssd = {"read": rates["read"], "write": rates["write"], "latency_ns": _LATENCY_NS}
    machine: dict[str, Any] = {"staging": staging, "verify": _VERIFY}
    if said.host_memory is not None:
        link = {"read": _HOST_LINK, "write": _HOST_LINK, "latency_ns": _LATENCY_NS}
        machine["host"] = {**link, "memory": said.host_memory}
    if said.drive is None:
        return {"budget": memory, "ssd": ssd, **machine}
    drives = {"model": said.drive, "count": said.drives, "read": ssd["read"], "write": ssd["write"]}
    return {"memory": memory, "drives": drives, **machine}


def _notes(said: Question, figures: FitFigures) -> Iterator[str]:
    """Yields notes on what a reader would wonder about."""
    if said.host_memory is not None:
        yield (
            f"The link to host memory is taken to carry {_HOST_LINK / 1e9:.0f} GB/s each way. Tensors go there and to "
            "the SSDs at once where that is faster; offload(write_budget=) keeps them from the SSDs."
        )
    if said.gpu is not None:
        return
    moves = figures["bytes_written"] + figures["bytes_read"] > 0
    if moves and figures["waiting_seconds"] < figures["step_seconds"] / 100:
        text = "All that moves does so while ops compute, so less or more memory makes no difference to the waiting"
        if said.pool is None:
            text += ". What the transfers take of the cores is in a step measured alone: say --pool instead of rates"
        yield text + "."
    precision = said.precision or models.precision_of(said.model)
    if precision == "bf16":
        yield (
            "bf16 has masters of the parameters in fp32, which need 2 bytes a parameter more than fp32 alone. "
            + ("Its" if _has_bf16() else "This processor has no instructions for it (avx512_bf16, amx_bf16): its")
            + " ops are measured, and may take longer than in fp32."
        )


def _has_bf16() -> bool:
    """Returns whether the processor says that it multiplies in bf16."""
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return True
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})


def _expects(said: Question, trace: Path, machine: Path) -> dict[str, Any]:
    """Returns the simulation of the plan for a machine: on a GPU with what a session there takes itself."""
    words = ["--gpu-session"] if said.gpu is not None else []
    plan: dict[str, dict[str, Any]] = json.loads(_planner(["plan", "--output", "json", *words, trace, machine]))
    return plan["expects"]


def _planner(words: Sequence[object], failure: Exit = Exit.NO_PLANNER) -> str:
    """Runs tidelog-plan, and returns its output."""
    beside = Path(sys.executable).with_name("tidelog-plan")
    checkout = Path(__file__).resolve().parents[4] / "target" / "release" / "tidelog-plan"
    found = next((path for path in (beside, checkout) if path.exists()), shutil.which("tidelog-plan"))
    if found is None:
        raise Failure(Exit.NO_PLANNER, "tidelog-plan was not found beside this Python, nor on the PATH; install it")
    # What records is this very package, wherever it was imported from.
    packages = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [found, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": packages},
    )
    if done.returncode:
        raise Failure(failure, done.stderr.strip())
    return done.stdout
