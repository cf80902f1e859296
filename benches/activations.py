"""Steps in which only what is saved for the backward pass moves: offload(what="activations") beside torch's and TRL's
hooks for saved tensors.

    python benches/activations.py [--fraction 0.25] [--rounds 7] [--pool DIR]

Each trains the same Llama in a process of its own, with fused AdamW, and they take their steps in turn, one at a time.
Tidelog has room for what stays and for `fraction` of what a step saves. On the host's memory the hooks of torch copy
what they save to that same memory, and TRL's leave it where it is: their times count here, and their memory on a GPU.
All losses must be the same, bit for bit. Exit code 1: a loss differs. Without --pool the pool is in memory (/dev/shm).
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import warnings

from worker_process import Process

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "torch-bridge/python"))
sys.path.insert(0, str(ROOT / "benches/training"))

MIB = 1 << 20
WAYS = ("plain", "save_on_cpu", "TRL", "Tidelog")
WARM_STEPS_MAX = 12  # before there is a plan
STAGING = 4 * MIB
SHAPE = {
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 2000, "use_cache": False,
}  # fmt: skip
SEQUENCE = 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fraction", type=float, default=0.25, help="of what a step saves (default 0.25)")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each under the plan (default 7)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    parser.add_argument("--pool", default="/dev/shm", help="where the pool is made (default: memory)")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-activations-", dir=arguments.pool))
        with worker("Tidelog", arguments) as process:
            sizes = process.ask("measure", pool=folder)
        memory = sizes["stays"] + int(arguments.fraction * (sizes["peak"] - sizes["stays"])) + STAGING
        processes = {way: stack.enter_context(worker(way, arguments)) for way in WAYS}
        began = {way: process.ask("begin", pool=folder, memory=memory) for way, process in processes.items()}
        missing = {way: told["why_not"] for way, told in began.items() if "why_not" in told}
        steps = {way: told["steps"] for way, told in began.items() if "steps" in told}
        timed = {way: [] for way in steps}
        for _ in range(arguments.rounds):
            for way in timed:
                timed[way].append(processes[way].ask("step"))
    losses = {way: [step["loss"] for step in steps[way] + timed[way]] for way in timed}
    same = all(one == other for found in losses.values() for one, other in zip(losses["plain"], found, strict=False))
    result = {
        **sizes, "memory": memory, "same_bits": same, "load": os.getloadavg()[0], "missing": missing,
        "ways": {way: summary(found) for way, found in timed.items()},
    }  # fmt: skip
    print(json.dumps(result, indent=2) if arguments.output == "json" else text_of(result))
    return 0 if same else 1


def summary(steps):
    return {key: statistics.median(step[key] for step in steps) for key in ("seconds", "memory", "written")}


def text_of(result):
    plain = result["ways"]["plain"]["seconds"]
    lines = [
        f"{result['stays'] / MIB:.0f} MiB stay, a step saves {(result['peak'] - result['stays']) / MIB:.0f} MiB; load "
        f"{result['load']:.1f}"
    ]
    for way, row in result["ways"].items():
        lines.append(
            f"  {way:12} {row['seconds']:.3f} s a step, {row['seconds'] / plain:.2f} x plain, {row['memory'] / MIB:5.0f} MiB "
            f"of memory, {row['written'] / MIB:.0f} MiB written a step"
        )
    lines += [f"  {way:12} not measured: {why}" for way, why in result["missing"].items()]
    return "\n".join(lines if result["same_bits"] else [*lines, "  LOSSES DIFFER"])


def worker(way, arguments):
    return Process(__file__, "--worker", way, "--threads", str(arguments.threads), threads=arguments.threads)


def work(arguments):
    with contextlib.ExitStack() as stack:
        program = Worker(arguments, stack)
        for line in sys.stdin:
            command, values = json.loads(line)
            print(json.dumps(getattr(program, command)(**values)), flush=True)
    return 0


class Worker:
    """The program: a model, its optimizer, and what becomes of the tensors that it saves."""

    def __init__(self, arguments, stack):
        import memory_used
        import torch
        import transformers

        torch.set_num_threads(arguments.threads)
        self.torch, self.stack, self.way, self.used = torch, stack, arguments.worker, memory_used
        torch.optim.AdamW([torch.zeros(1)])
        self.base = memory_used.anonymous()
        torch.manual_seed(1)
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tide, self.count = None, 0

    def measure(self, pool):
        """The peak of a block with room for all, and what stays from step to step."""
        with self.block(f"{pool}/measured", 4 << 30) as self.tide:
            self.step(), self.step()
            parameters = sum(each.numel() * each.element_size() for each in self.model.parameters())
            return {"peak": self.tide.peak_bytes - STAGING, "stays": 4 * parameters}

    def begin(self, pool, memory):
        """Steps until they are warm."""
        if self.way == "save_on_cpu":
            self.stack.enter_context(self.torch.autograd.graph.save_on_cpu())
        elif self.way == "TRL":
            try:
                from trl.models.activation_offloading import OffloadActivations

                self.stack.enter_context(OffloadActivations(use_pin_memory=False, use_streams=False))
            except (ImportError, RuntimeError) as error:
                return {"why_not": str(error)}
        elif self.way == "Tidelog":
            self.tide = self.stack.enter_context(self.block(f"{pool}/pool", memory))
        steps = [self.step() for _ in range(3)]
        while self.tide is not None and self.tide.phase != "planned" and len(steps) < WARM_STEPS_MAX:
            self.tide.await_plan()
            steps.append(self.step())
        return {"steps": steps}

    def block(self, folder, memory):
        import tidelog

        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        os.makedirs(folder, exist_ok=True)
        return tidelog.offload(
            self.model, self.optimizer, pool=folder, memory=memory, staging=STAGING, what="activations",
            pool_size=1 << 30, buffered=True,
        )  # fmt: skip

    def step(self):
        tokens = self.torch.randint(2000, (1, SEQUENCE), generator=self.torch.Generator().manual_seed(self.count))
        self.count += 1
        self.used.begin_peak()
        began = time.perf_counter()
        with self.tide.step() if self.tide is not None else contextlib.nullcontext():
            loss = self.model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        seconds, memory = time.perf_counter() - began, self.used.peak() - self.base
        written = self.tide.last_step()["bytes_written"] if self.tide is not None else 0
        return {"loss": float(loss).hex(), "seconds": seconds, "memory": memory, "written": written}


if __name__ == "__main__":
    sys.exit(main())
