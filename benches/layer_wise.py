"""Micro-batches layer by layer (tidelog.accumulate) against the program's own order, at the same budget.

    python benches/layer_wise.py [--micro-batches 4] [--fraction 0.33] [--checkpointing] [--rounds 5] [--pool DIR]

Two processes train the same model in a block of `fraction` of the loop's peak, with fused AdamW, and take their steps
in turn, one at a time. Figures are medians of the steps under the plan. All losses must be the same, bit for bit. Exit
code 1: a loss differs. Without --pool the pools are in memory (/dev/shm).
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
for folder in ("torch-bridge/python", "demo"):
    sys.path.insert(0, str(ROOT / folder))

MIB = 1 << 20
ORDERS = ("own", "layer-wise")
WARM_STEPS_MAX = 12  # before there is a plan
SHAPE = {
    "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 4000, "use_cache": False,
}  # fmt: skip
SEQUENCE = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step (default 4)")
    parser.add_argument("--fraction", type=float, default=0.33, help="of the loop's peak (default 0.33)")
    parser.add_argument("--checkpointing", action="store_true", help="recompute the activations of each block")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each order under the plan (default 5)")
    parser.add_argument("--pool", default="/dev/shm", help="where the pools are made (default: memory)")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("--worker", choices=ORDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments)
    with contextlib.ExitStack() as stack:
        with worker("own", arguments) as process:
            peak = process.ask("measure")
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-layer-wise-", dir=arguments.pool))
        processes = {order: stack.enter_context(worker(order, arguments)) for order in ORDERS}
        steps = {}
        for order, process in processes.items():
            steps[order] = process.ask(
                "block", pool=f"{folder}/{order}", memory=int(peak * arguments.fraction), peak=peak
            )
        timed = {order: [] for order in ORDERS}
        for _ in range(arguments.rounds):
            for order, process in processes.items():
                timed[order].append(process.ask("step"))
    losses = {order: [step["losses"] for step in steps[order] + timed[order]] for order in ORDERS}
    same = all(one == other for one, other in zip(losses["own"], losses["layer-wise"], strict=False))
    rows = {order: summary(timed[order]) for order in ORDERS}
    own, other = rows["own"], rows["layer-wise"]
    result = {
        "peak": peak, "orders": rows, "same_bits": same, "load": os.getloadavg()[0], "threads": arguments.threads,
        "ratio": other["seconds"] / own["seconds"], "read_ratio": other["read"] / max(own["read"], 1),
    }  # fmt: skip
    if arguments.output == "json":
        print(json.dumps(result, indent=2))
    else:
        print(text_of(result, arguments))
    return 0 if same else 1


def summary(steps):
    keys = ("seconds", "cpu", "read", "written", "stalled")
    return {key: statistics.median(step[key] for step in steps) for key in keys}


def text_of(result, arguments):
    lines = [
        f"{arguments.micro_batches} micro-batches, peak {result['peak'] / MIB:.0f} MiB, {arguments.fraction:.0%} of it, "
        f"{result['threads']} threads, load {result['load']:.1f}"
    ]
    for order, row in result["orders"].items():
        lines.append(
            f"  {order:10} {row['seconds']:.3f} s a step, {row['cpu']:.3f} s of CPU, stalled {row['stalled']:.3f} s, read {row['read'] / MIB:.0f} "
            f"MiB, written {row['written'] / MIB:.0f} MiB"
        )
    lines.append(f"  layer-wise: {result['ratio']:.2f} x the time, {result['read_ratio']:.2f} x the bytes read")
    return "\n".join(lines if result["same_bits"] else [*lines, "  LOSSES DIFFER"])


def worker(order, arguments):
    """A process that takes its steps in one of the orders."""
    words = ["--worker", order, "--threads", str(arguments.threads), "--micro-batches", str(arguments.micro_batches)]
    words += ["--checkpointing"] if arguments.checkpointing else []
    return Process(__file__, *words, threads=arguments.threads)


def work(arguments):
    with contextlib.ExitStack() as stack:
        program = Worker(arguments, stack)
        for line in sys.stdin:
            command, values = json.loads(line)
            print(json.dumps(getattr(program, command)(**values)), flush=True)
    return 0


class Worker:
    """The program: a model, its optimizer, and steps in one of the orders."""

    def __init__(self, arguments, stack):
        import torch
        import transformers

        torch.set_num_threads(arguments.threads)
        torch.manual_seed(0)
        self.torch, self.stack, self.count = torch, stack, arguments.micro_batches
        self.layer_wise = arguments.worker == "layer-wise"
        self.model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SHAPE)).train()
        if arguments.checkpointing:
            self.model.gradient_checkpointing_enable()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.batches = [torch.randint(0, SHAPE["vocab_size"], (1, SEQUENCE)) for _ in range(self.count)]
        self.tide = None

    def loss_of(self, model, batch):
        return model(input_ids=batch, labels=batch).loss / self.count

    def train(self):
        import tidelog

        self.optimizer.zero_grad(set_to_none=True)
        if self.layer_wise:
            losses = tidelog.accumulate(self.model, self.batches, self.loss_of)
        else:
            losses = []
            for batch in self.batches:
                loss = self.loss_of(self.model, batch)
                loss.backward()
                losses.append(loss.detach())
        self.optimizer.step()
        return [loss.item().hex() for loss in losses]

    # -- commands -----------------------------------------------------------------------------------

    def measure(self):
        from memory import LiveStorages

        self.train()
        with LiveStorages() as live:
            self.train()
        return live.peak

    def block(self, pool, memory, peak):
        import tidelog

        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        block = tidelog.offload(self.model, self.optimizer, pool=pool, memory=memory, pool_size=3 * peak)
        self.tide = self.stack.enter_context(block)
        steps = []
        while len(steps) < WARM_STEPS_MAX and self.tide.phase != "planned":
            steps.append(self.step())
            self.tide.await_plan()
        return [*steps, self.step()]

    def step(self):
        began, cpu = time.perf_counter(), time.process_time()
        with self.tide.step():
            losses = self.train()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        last = self.tide.last_step()
        moved = {"read": last["bytes_read"], "written": last["bytes_written"], "stalled": last["stall_seconds"]}
        return {"seconds": seconds, "cpu": cpu, "losses": losses, **moved}


if __name__ == "__main__":
    sys.exit(main())
