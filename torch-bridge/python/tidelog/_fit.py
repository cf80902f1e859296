"""`tidelog fit`: before training, what a model would need and how fast it would train here."""

import argparse
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import torch

from tidelog import _errors, _measure, models
from tidelog._offload import STAGING_MAX, STAGING_MIN, STAGING_PART, default_staging
from tidelog._options import size
from tidelog.recorder import Gpu

_GIB, _MIB = 1 << 30, 1 << 20
_VERIFY = 5_000_000_000  # bytes per second at which memory is compared with checksums, on one core

# A processor: no roofline, ops are measured. What the dispatcher and the hook take is in each op.
_PROCESSOR = {
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
    """How `tidelog fit` ends."""

    FITS = 0
    NO_MODEL = 1
    DOES_NOT_FIT = 2
    NO_POOL = 3
    NO_PLANNER = 4
    USAGE = 64


DESCRIPTION = """\
Says before any training what a training step of a model would need and take: the least memory, the
step's time and tokens per second, what would move, how long the drives would last, and what other
hardware would bring. The model is made without its weights. Each different op of a step is measured
on this machine, by itself (or computed for the GPU that --gpu describes), and the step is planned
for --memory and the pool.
"""

EPILOG = """\
MODEL is the name of a model (gpt2-xl, llama3-8b, ...: `python -m tidelog.models list`), the
config.json of a transformers model, or FILE.py:FUNCTION, which returns (model, inputs), inputs a
dictionary of tensors. The optimizer is AdamW with fused=True.

Exit codes:
  0   it fits
  1   there is no such model, or it cannot be recorded
  2   --memory is too small for it; what would do is said
  3   the pool could not be measured
  4   tidelog-plan is not installed beside this command, or failed
  64  the command line makes no sense

Examples:
  tidelog fit config.json --memory 8GiB --pool /mnt/nvme0/tide
  tidelog fit llama3-8b --memory 80GiB --gpu h100-nvl --read 24e9 --write 20e9 \\
      --drive "990 PRO 2TB" --drives 4 --micro-batch 1 --checkpointing
"""


def add_command(commands):
    """Adds `fit` to the commands of `tidelog`."""
    parser = commands.add_parser(
        "fit",
        help="what a model would need here, and how fast it would train",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="a name, a config.json, or FILE.py:FUNCTION")
    parser.add_argument("--memory", type=_size, help='the budget, such as "20GiB"; default: all that the model needs')
    parser.add_argument("--pool", help="devices as for `tidelog run`: their rates are measured")
    parser.add_argument("--read", type=float, help="bytes per second that the pool reads, instead of --pool")
    parser.add_argument("--write", type=float, help="bytes per second that it writes")
    parser.add_argument("--drive", metavar="MODEL", help="the drives' model, for how long they last")
    parser.add_argument("--drives", type=int, default=1, metavar="COUNT", help="how many there are (default 1)")
    parser.add_argument(
        "--gpu",
        help="compute ops for this GPU instead of measuring them here: a100, h100-nvl, h200, rtx-4090, or a file",
    )
    parser.add_argument("--precision", default="fp32", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--micro-batch", type=int, default=4, help="samples at once (default 4)")
    parser.add_argument("--micro-batches", type=int, default=1, help="of these in a step (default 1)")
    parser.add_argument("--sequence", type=int, default=1024, help="tokens in a sample (default 1024)")
    parser.add_argument("--checkpointing", action="store_true", help="save only the inputs of each layer")
    parser.add_argument("--report", metavar="FILE", help="write the picture of the step there, an HTML page")
    parser.add_argument("--trace", metavar="FILE", help="write the trace there, for tidelog-plan")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="how figures are written")
    parser.set_defaults(command=fit)


def _size(text):
    try:
        return size(text, "--memory")
    except _errors.Error as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class Failure(Exception):
    """Why there is no answer, and the exit code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def fit(said):
    """Does what the command line says; returns the exit code."""
    try:
        with tempfile.TemporaryDirectory(prefix="tidelog-fit-") as folder:
            figures = _figures(said, Path(folder))
    except Failure as failure:
        print(f"tidelog fit: {failure}", file=sys.stderr)
        return failure.code
    if said.output == "json":
        json.dump(figures, sys.stdout, indent=2)
        print()
    else:
        print("\n".join(_screen(figures)))
    return Exit.FITS if figures["fits"] else Exit.DOES_NOT_FIT


# -- what is asked ----------------------------------------------------------------------------------


def _figures(said, folder):
    if said.pool is None and not (said.read and said.write):
        raise Failure(Exit.USAGE, "say --pool, whose rates are measured, or both --read and --write")
    text = _measured(said) if said.gpu is None else _computed(said)
    trace = Path(said.trace) if said.trace else folder / "trace.json"
    trace.write_text(text, encoding="utf-8")
    need = _need(json.loads(text))
    enough = _memory_for(need.all_at_once)
    memory = said.memory or enough
    staging = default_staging(memory)
    tokens = said.micro_batch * said.micro_batches * said.sequence
    figures = {
        "model": need.name,
        "parameters": need.parameters,
        "tokens_per_step": tokens,
        "ops_from": said.gpu or _PROCESSOR["name"],
        "threads": None if said.gpu else torch.get_num_threads(),
        "memory": memory,
        "memory_least": _memory_for(need.least),
        "memory_least_op": need.least_op,
        "memory_without_tidelog": need.all_at_once,
        "compute_seconds": need.seconds,
        "fits": memory - staging >= need.least,
    }
    if not figures["fits"]:
        return figures
    speed = _speed(said)
    rates = {"read": speed.read, "write": speed.write}
    machine = folder / "machine.json"
    machine.write_text(json.dumps(_machine(said, rates, memory, staging)), encoding="utf-8")
    whole = trace
    if memory < enough:
        trace = folder / "slower.json"
        trace.write_text(_slower(text, speed.slowdown), encoding="utf-8")
    expects = _expects(trace, machine)
    figures |= {
        "pool": {**rates, "from": "measured" if said.pool else "said"},
        "slowdown": speed.slowdown,
        "step_seconds": expects["time_ns"] / 1e9,
        "tokens_per_second": tokens / (expects["time_ns"] / 1e9),
        "waiting_seconds": expects["stall_ns"] / 1e9,
        "bytes_written": expects["bytes"]["ssd_written"],
        "bytes_read": expects["bytes"]["ssd_read"],
    }
    if said.drive is not None:
        endurance = json.loads(_planner(["endurance", "--output", "json", trace, machine]))
        figures["wear"] = endurance["curve"][0]["wear"]
    if said.report is not None:
        Path(said.report).write_text(_planner(["report", trace, machine]), encoding="utf-8")
    figures["what_if"] = []
    for change, more, faster in _changes(memory, enough):
        changed = {direction: int(rates[direction] * faster) for direction in ("read", "write")}
        machine.write_text(json.dumps(_machine(said, changed, more, staging)), encoding="utf-8")
        expects = _expects(whole if more == enough else trace, machine)
        figures["what_if"].append({"change": change, "step_seconds": expects["time_ns"] / 1e9})
    return figures


def _changes(memory, enough):
    """What else could be bought: in words, the memory then, and how much faster the SSDs are."""
    for more in sorted({min(memory * 3 // 2, enough), min(memory * 2, enough)}):
        if more > memory:
            yield f"{_binary(more)} of memory", more, 1
    if memory < enough:
        yield "twice the SSDs", memory, 2


def _memory_for(tensors):
    """The smallest budget that has so much beside its staging buffers."""
    part = (tensors - 1) * STAGING_PART // (STAGING_PART - 1) + 1
    return max(tensors + STAGING_MIN, min(part, tensors + STAGING_MAX))


def _measured(said):
    """The trace of a step, with what its ops take here."""
    recorder = functools.partial(_measure.MeasuredRecorder, notice=_Progress())
    sizes = (said.precision, said.micro_batch, said.micro_batches, said.sequence, said.checkpointing)
    try:
        return models.record(said.model, Gpu(**_PROCESSOR), *sizes, recorder=recorder).to_json()
    except (LookupError, OSError, ImportError, RuntimeError, NotImplementedError, ValueError) as error:
        raise Failure(Exit.NO_MODEL, f"{said.model}: {error}") from error


def _computed(said):
    """The trace of a step, with what its ops would take on a GPU."""
    words = ["--precision", said.precision, *(["--checkpointing"] if said.checkpointing else [])]
    for name in ("micro_batch", "micro_batches", "sequence"):
        words += ["--" + name.replace("_", "-"), getattr(said, name)]
    return _planner(["record", said.model, "--python", sys.executable, "--gpu", said.gpu, *words], Exit.NO_MODEL)


class _Progress:
    """Says on a terminal what is measured."""

    def __init__(self):
        self._count = 0

    def __call__(self, op):
        self._count += 1
        if sys.stderr.isatty():
            print(f"\r\033[Kmeasuring op {self._count}: {op}", end="", file=sys.stderr, flush=True)


@dataclass
class _Need:
    name: str
    parameters: int
    least: int  # bytes, of the op that needs most
    least_op: str
    all_at_once: int  # bytes, where nothing ever leaves
    seconds: float


def _need(trace):
    """What the step of a trace needs of memory, and what its ops take."""
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


def _speed(said):
    """What the pool carries. Where rates are said, what transfers cost the ops is not known."""
    if said.read and said.write:
        return _measure.PoolSpeed(int(said.read), int(said.write), slowdown=1.0)
    try:
        return _measure.speed_of(said.pool)
    except _errors.Error as error:
        raise Failure(Exit.NO_POOL, error) from error


def _slower(text, slowdown):
    """The trace with ops that take longer beside transfers."""
    trace = json.loads(text)
    for op in trace["ops"]:
        op["duration_ns"] = round(op["duration_ns"] * slowdown)
    return json.dumps(trace)


def _machine(said, rates, memory, staging):
    ssd = {"read": rates["read"], "write": rates["write"], "latency_ns": 100_000}
    if said.drive is None:
        return {"budget": memory, "staging": staging, "verify": _VERIFY, "ssd": ssd}
    drives = {"model": said.drive, "count": said.drives, "read": ssd["read"], "write": ssd["write"]}
    return {"memory": memory, "staging": staging, "verify": _VERIFY, "drives": drives}


def _expects(trace, machine):
    """What the simulation of the plan for a machine says."""
    return json.loads(_planner(["plan", "--output", "json", trace, machine]))["expects"]


def _planner(words, failure=Exit.NO_PLANNER):
    """What tidelog-plan writes."""
    beside = Path(sys.executable).with_name("tidelog-plan")
    checkout = Path(__file__).resolve().parents[3] / "target" / "release" / "tidelog-plan"
    found = next((path for path in (beside, checkout) if path.exists()), shutil.which("tidelog-plan"))
    if found is None:
        raise Failure(Exit.NO_PLANNER, "tidelog-plan was not found beside this Python, nor on the PATH; install it")
    done = subprocess.run([found, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(failure, done.stderr.strip())
    return done.stdout


# -- what is answered -------------------------------------------------------------------------------


def _screen(figures):
    """The figures as people read them."""
    yield f"{figures['model']}: parameters {_binary(figures['parameters'])}, {figures['tokens_per_step']} tokens a step"
    threads = figures["threads"]
    yield f"ops: {figures['ops_from']}, " + ("computed" if threads is None else f"measured with {threads} threads")
    yield ""
    yield f"without Tidelog   {_binary(figures['memory_without_tidelog']):>10}   {figures['compute_seconds']:.3f} s a step"
    yield f"least memory      {_binary(figures['memory_least']):>10}   {figures['memory_least_op']} uses it at once"
    if not figures["fits"]:
        yield f"memory given      {_binary(figures['memory']):>10}   too small: give at least {figures['memory_least']} bytes"
        yield "smaller           micro-batches, sequences or --checkpointing need less"
        return
    step, waiting = figures["step_seconds"], figures["waiting_seconds"]
    slower = step / figures["compute_seconds"]
    yield f"memory given      {_binary(figures['memory']):>10}   {step:.3f} s a step, {slower:.2f} x of all in memory"
    yield f"                               {figures['tokens_per_second']:,.1f} tokens a second"
    yield f"                               {waiting:.3f} s of it waiting for the SSDs"
    pool = figures["pool"]
    rates = " and ".join(f"{direction}s {pool[direction] / 1e9:.2f} GB/s" for direction in ("read", "write"))
    yield f"pool              {rates} ({pool['from']})"
    if figures["slowdown"] > 1:
        yield f"                  ops take {figures['slowdown']:.2f} x as long beside its transfers (measured)"
    yield f"moved in a step   {_binary(figures['bytes_written'])} written, {_binary(figures['bytes_read'])} read"
    if "wear" in figures:
        hours = figures["wear"]["lifetime_hours"]
        lasting = f"{hours / 24 / 365:.1f} years of training" if hours is not None else "not known: no rating"
        yield f"drives last       {lasting}, {figures['wear']['written_per_day'] / 1e12:.1f} TB written a day"
    if figures["what_if"]:
        yield ""
        yield "What would change it"
    for each in figures["what_if"]:
        yield f"  {each['change']:<24} {each['step_seconds']:.3f} s a step"


def _binary(value):
    unit, name = (_GIB, "GiB") if value >= _GIB else (_MIB, "MiB")
    return f"{value / unit:.2f} {name}"
