"""Programs as users of other libraries write them, unedited, below the memory that they need: the bits, the time.

    python benches/stacks/stacks.py [NAME ...] [--pool DIR]

Each program runs plain, then under `tidelog run` with memory for all of it, which shows its peak, then with parts of
that. What it prints has to be the same: losses of each step, and a digest of all parameters and of the optimizer's
state at the end. The steps at its end follow a plan, and its memory keeps to the budget. Results are in
target/stacks.json, from where `scripts/docs/figures.py --collect stacks` takes them into the table of
docs/integrations.md. Ends with 1 where a program that runs without Tidelog differs, fails, or exceeds its budget.
"""

import argparse
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FAKE_GPU = HERE / "fake_gpu.py"
FIGURES = ROOT / "target" / "stacks.json"
SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the peak: the first in which a program can run
TIMED_STEPS = 6  # the last ones: by then all follow a plan
LIMIT_S = 300
REFUSED = "BudgetError"


class Stack(NamedTuple):
    """A program, and the libraries that it is for."""

    title: str
    program: str
    packages: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...] = ((),)  # arguments of each call of the program
    ranks: str = ""  # "torchrun" or "accelerate", which start two
    unplanned: str = ""  # why its steps are seldom alike, so that there may be no plan
    has_fake_gpu: bool = False  # of whose memory the budget is then, in place of the host's


STACKS = {
    "from_pretrained": Stack("`from_pretrained` and a loop", "from_pretrained", ("transformers",)),
    "trainer": Stack(
        "Trainer: accumulation, bf16, checkpointing, `load_best_model_at_end`", "trainer", ("transformers",)
    ),
    "trainer-resume": Stack(
        "Trainer: `resume_from_checkpoint`", "trainer_resume", ("transformers",), (("4",), ("20",))
    ),
    "sft": Stack("`SFTTrainer`, checkpointing", "sft", ("trl",)),
    "dpo": Stack("`DPOTrainer`, a reference model", "dpo", ("trl",)),
    "lora": Stack("LoRA", "peft_lora", ("peft",), (("lora",),)),
    "dora": Stack("DoRA", "peft_lora", ("peft",), (("dora",),)),
    "qlora": Stack("QLoRA, nf4", "qlora", ("bitsandbytes", "peft")),
    "torchao-states": Stack("`AdamW8bit`", "torchao_states", ("torchao",)),
    "torchao-float8": Stack("float8 training", "torchao_float8", ("torchao",)),
    "accelerate": Stack(
        "`accelerate launch`, two ranks, accumulation", "accelerated", ("accelerate",), ranks="accelerate"
    ),
    "lightning": Stack("a GAN with two optimizers", "lightning_two", ("lightning",)),
    "timm": Stack("ViT, LAMB, mixup, averaged weights", "timm_vit", ("timm",)),
    "diffusers": Stack("UNet, averaged weights", "diffusers_unet", ("diffusers",)),
    "schedule-free": Stack("`AdamWScheduleFree`", "schedule_free", ("schedulefree",)),
    "zero": Stack("`ZeroRedundancyOptimizer`, two ranks", "zero", ("torch",), ranks="torchrun"),
    "hook-fp16": Stack("DDP, hook `fp16_compress`, two ranks", "comm_hook", ("torch",), (("fp16",),), "torchrun"),
    "hook-powersgd": Stack(
        "DDP, hook of PowerSGD, two ranks",
        "comm_hook",
        ("torch",),
        (("powersgd",),),
        "torchrun",
        unplanned="its callbacks run as soon as ranks have heard of each other, so that steps differ",
    ),
    "torchtitan": Stack(
        "Llama 3 by its recipe with SDPA, FSDP2, two ranks", "torchtitan_llama3", ("torchtitan",), ranks="torchrun"
    ),
    "torchtitan-pipeline": Stack(
        "Llama 3 by its recipe with SDPA, a pipeline of two ranks",
        "torchtitan_llama3",
        ("torchtitan",),
        (("--parallelism.pipeline_parallel_degree", "2"),),
        "torchrun",
    ),
    "torchtitan-fake-gpu": Stack(
        "Llama 3 by its recipe with SDPA, FSDP2, two ranks, the memory of fake GPUs",
        "torchtitan_llama3",
        ("torchtitan",),
        ranks="torchrun",
        has_fake_gpu=True,
    ),
}


def main():
    arguments = parse_arguments()
    unknown = [name for name in arguments.names if name not in STACKS]
    if unknown:
        sys.exit(f"stacks: no stack {unknown[0]!r}; there are {', '.join(STACKS)}")
    rows = {}
    with tempfile.TemporaryDirectory(prefix="tidelog-stacks-") as folder:
        runs = Runs(Path(folder), arguments.pool)
        for name in arguments.names or STACKS:
            rows[name] = {
                "stack": name,
                "title": STACKS[name].title,
                **versions(STACKS[name].packages),
                **runs.row(STACKS[name]),
            }
            tell(rows[name])
            write(rows)
    bad = [
        row["stack"] for row in rows.values() if row["verdict"] in ("other bits", "over budget", "failed", "no plan")
    ]
    print(f"stacks: {len(rows) - len(bad)} of {len(rows)} as they should be" + "".join(f"; {each}" for each in bad))
    return 1 if bad else 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="some of the stacks (default: all)")
    parser.add_argument("--pool", help="folder in which pools are made (default: a temporary one)")
    return parser.parse_args()


def versions(packages):
    found = []
    for each in packages:
        try:
            found.append(f"{each} {importlib.metadata.version(each).partition('+')[0]}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{each}, not installed")
    return {"libraries": ", ".join(found)}


def tell(row):
    said = row.get("reason", "")
    if "budget_bytes" in row:
        said = (
            f"{row['budget_bytes'] >> 20} of {row['peak_bytes'] >> 20} MiB, {row['seconds']:.3f} s a step, plain "
            f"{row['plain_seconds']:.3f} s; {said}"
        )
    print(f"{row['stack']:16} {row['verdict']:12} {said}", flush=True)


def write(rows):
    """Writes all results so far: a run may be cut off."""
    before = {each["stack"]: each for each in json.loads(FIGURES.read_text())} if FIGURES.exists() else {}
    found = {**before, **rows}
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps([found[each] for each in STACKS if each in found], indent=2) + "\n")


class Failed(Exception):
    """A process failed, and what it said."""


class Runs:
    """Runs of programs, each in a process and a folder of its own."""

    def __init__(self, folder, pool):
        self._folder, self._pool, self._number = folder, pool, 0
        self._base, self._fake = folder / "base", folder / "fake"
        self._call([sys.executable, HERE / "programs" / "base.py", self._base])

    def row(self, stack):
        """A row of the table."""
        try:
            plain = self._run(stack)
        except Failed as failure:
            return {"verdict": "not run", "reason": f"without Tidelog: {failure}"}
        try:
            if stack.has_fake_gpu and not self._fake.exists():
                self._call([sys.executable, FAKE_GPU, self._fake])
            peak = max(each["peak_bytes"] for each in self._run(stack, memory=8 << 30)["figures"])
            return {"peak_bytes": peak, **self._below(stack, peak, plain)}
        except Failed as failure:
            return {"verdict": "failed", "reason": str(failure)}

    def _below(self, stack, peak, plain):
        refused = ""
        for share in SHARES:
            memory = int(share * peak)
            try:
                got = self._run(stack, memory)
            except Failed as failure:
                refused = str(failure)
                if REFUSED in refused:
                    continue
                raise
            verdict, reason = judged(plain, got, memory, stack.unplanned)
            found = {"budget_bytes": memory, "share": share, "verdict": verdict, "reason": reason}
            return {**found, "seconds": got["seconds"], "plain_seconds": plain["seconds"], "load": os.getloadavg()[0]}
        return {"verdict": "refused", "reason": refused}

    def _run(self, stack, memory=None):
        """Returns the lines that the calls of a program print, its seconds a step, and the figures of each rank in a
        block.
        """
        self._number += 1
        out = self._folder / f"out-{self._number}"
        lines, figures = [], []
        with tempfile.TemporaryDirectory(prefix="tidelog-stacks-", dir=self._pool) as pool:
            for number, words in enumerate(stack.calls):
                times, stats = out.with_suffix(f".{number}.times"), out.with_suffix(f".{number}.json")
                command = command_of(
                    stack, ["--memory", str(memory), "--pool", pool, "--stats", stats] if memory else [], self._fake
                )
                program = HERE / "programs" / f"{stack.program}.py"
                said = self._call([*command, HERE / "timed.py", times, program, self._base, out, *words])
                lines.append(sorted(line for line in said.splitlines() if line[:1].isdigit()))
                figures += [json.loads(each.read_text()) for each in out.parent.glob(f"{stats.stem}*.json")]
        if memory and not all(bool(each["gpu"]) == stack.has_fake_gpu for each in figures):
            raise Failed("the budget was of other memory")
        seconds = statistics.median(json.loads(times.read_text())[-TIMED_STEPS:])
        return {"lines": lines, "figures": figures, "seconds": seconds}

    def _call(self, command):
        try:
            done = subprocess.run(
                [str(word) for word in command], env=environment(), capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {LIMIT_S} s") from None
        if done.returncode:
            raise Failed(last_error(done.stderr))
        return done.stdout


def command_of(stack, words, fake):
    """Returns the words that start a program: with those of `tidelog run`, where there are any. `fake`: the folder with
    the fake GPU.
    """
    tidelog = [FAKE_GPU, fake] if stack.has_fake_gpu else ["-m", "tidelog"]
    module = [*tidelog, "run", "--staging", "1MiB", "--pool-size", "1GiB", *words] if words else []
    start = {
        "": [],
        "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"],
        "accelerate": [
            *("-m", "accelerate.commands.accelerate_cli", "launch", "--cpu", "--num_processes", "2"),
            *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
        ],
    }[stack.ranks]
    return [sys.executable, *start, *module]


def environment():
    paths = [str(ROOT / "torch-bridge" / "python"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }


def last_error(text):
    """The line of a program's standard error that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Of ranks, the one that started them says nothing of its own.
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in lines if "elastic" not in line]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    refused = [line for line in lines if REFUSED in line]
    return (refused or errors or lines or ["it said nothing"])[-1][:600]


def judged(plain, got, memory, unplanned=""):
    """Returns a verdict on a run, and why. `unplanned`: why there may be no plan."""
    if plain["lines"] != got["lines"]:
        ours, theirs = ([line for call in each["lines"] for line in call] for each in (got, plain))
        pairs = [f"{one!r} is {other!r}" for one, other in zip(theirs, ours) if one != other]
        return "other bits", pairs[0] if pairs else f"{len(ours)} lines instead of {len(theirs)}"
    peak = max(each["peak_bytes"] for each in got["figures"])
    if peak > memory:
        return "over budget", f"{peak} bytes were in memory, of {memory}"
    if not all(each["totals"]["bytes_read"] for each in got["figures"]):
        return "failed", "nothing moved"
    last = got["figures"][-1]
    if last["phase"] != "planned":
        if unplanned:
            return "same bits", f"without a plan: {unplanned}"
        return "no plan", (last["held_back"] or ["no reason"])[-1]
    return "same bits", ""


if __name__ == "__main__":
    sys.exit(main())
