"""Records the steps that `make gpu-step` simulates, on meta tensors: no GPU is needed, and nothing is downloaded.

    python planner/traces/record.py [NAME ...]

A GPT is the one of tests/hardware/train.py (the demo's, 8 layers of 2,048, 512 tokens a sequence, fp32, torch's AdamW
without foreach). "llama3-8b-layers" is four of Llama3-8B's 32 layers in bf16, whose parameters the optimizer keeps in
fp32. Times are those of the roofline in planner/machines/h200.json.

Every call of torch's dispatcher is an op: one that launches no kernel (a view) takes the GPU nothing, but the program's
thread as long as others.
"""

import argparse
import pathlib
import sys
from collections import namedtuple

import torch
from torch import nn
from torch.nn import functional

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("torch-bridge/python", "demo")]

import gpt  # noqa: E402
from tidelog import models, recorder  # noqa: E402
from tidelog.storages._ops import storages_in, storages_of  # noqa: E402

FOLDER = pathlib.Path(__file__).parent
LLAMA_LAYERS, LLAMA_SAMPLES, LLAMA_SEQUENCE = 4, 8, 2048

Gpt = namedtuple("Gpt", "sequences")
RUNS = {"gpt-8": Gpt(8), "gpt-32": Gpt(32), "llama3-8b-layers": None}


class HookRecorder(recorder.Recorder):
    """Records also calls that launch no kernel: views, and ops on the CPU's scalars (AdamW counts its steps). What
    `carried` names is made in one step and dies in the next.
    """

    def __init__(self, gpu, precision):
        super().__init__(gpu, precision)
        self._carried, self._ends = {}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "profiler":
            return func(*args, **(kwargs or {}))
        used, made = storages_of(args, kwargs or {}, []), []
        if used and all(storage.device.type == "cpu" for storage in used):
            if self._recording:
                self._begin(str(func), 0, [], [], [])
            return func(*args, **(kwargs or {}))
        before = len(self._ops)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        storages_in(result, made)
        if self._recording and len(self._ops) == before and made and made[0].device.type == "meta":
            self._begin(str(func), 0, used, [], [])
        return result

    def carry(self, named):
        """Carries tensors that were made in the step before; the recorded one makes others under the same names."""
        self._carried = {id(self._of(tensor.untyped_storage())): name for name, tensor in named}

    def carried(self, named):
        """Records the deaths of tensors that the recorded step has made: each dies in the next step when the one that
        was carried died in this one.
        """
        for name, tensor in named:
            death = {"storage": self._of(tensor.untyped_storage()).index, "previous": True}
            self._ops[self._ends[name]].deaths.append(death)

    def _died(self, address, record):
        name = self._carried.pop(id(record), None) if self._recording else None
        if name is None:
            super()._died(address, record)
            return
        del self._known[address]
        record.alive = False
        self._ends[name] = len(self._ops) - 1


def efficient_attention(query, key, value, is_causal):
    """Attention as a GPU computes it for fp32; on meta tensors torch would choose the one that stores all scores."""
    scaled = torch.ops.aten._scaled_dot_product_efficient_attention
    return scaled(query, key, value, None, query.requires_grad, 0.0, is_causal)[0]


def record_gpt(name, run, gpu):
    made = HookRecorder(gpu, "fp32")
    gpt.WIDTH, gpt.LAYERS, gpt.CONTEXT, gpt.HEADS, gpt.BATCH = 2048, 8, 512, 16, run.sequences
    functional.scaled_dot_product_attention = efficient_attention
    with made:
        with torch.device("meta"):
            model = gpt.GPT()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)

        def step():
            inputs, targets = (made.receive((run.sequences, gpt.CONTEXT), torch.int64, "load") for _ in range(2))
            with made.makes("activation"):
                loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad(set_to_none=True)
            with made.makes("gradient"):
                loss.backward()
            optimizer.step()

        step()
        made.name_globals(named(model, optimizer))
        # A step's gradients live until the next one's backward pass begins.
        made.carry(gradients(model))
        with made.iteration(f"{name}: GPT of 8 layers of 2,048, {run.sequences} x 512 tokens, fp32"):
            step()
            made.carried(gradients(model))
    return made


def named(model, optimizer):
    for name, parameter in model.named_parameters():
        yield name, "parameter", parameter
        for key in ("exp_avg", "exp_avg_sq"):
            yield f"{name}.{key}", "optimizer_state", optimizer.state[parameter][key]


def gradients(model):
    return [(name, parameter.grad) for name, parameter in model.named_parameters()]


def record_llama(name, gpu):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    models.register_attention()
    _, settings = models.KNOWN["llama3-8b"]
    config = LlamaConfig(**settings, max_position_embeddings=LLAMA_SEQUENCE)
    config._attn_implementation = "tidelog"
    made = HookRecorder(gpu, "bf16")
    with torch.device("meta"), made:
        layers = nn.ModuleList(LlamaDecoderLayer(config, index) for index in range(LLAMA_LAYERS)).to(torch.bfloat16)
        rotary = LlamaRotaryEmbedding(config)
        positions = torch.arange(LLAMA_SEQUENCE, device="meta")[None]
        optimizer = models.MixedAdamW(layers.parameters())
        shape = (LLAMA_SAMPLES, LLAMA_SEQUENCE, config.hidden_size)

        def step():
            hidden = made.receive(shape, torch.bfloat16).requires_grad_()
            rotated = rotary(hidden, positions)
            for layer in layers:
                hidden = layer(hidden, position_embeddings=rotated)
            with made.makes("gradient"):
                hidden.backward(made.receive(shape, torch.bfloat16))
            optimizer.step()

        # Parameters, masters and state: as models.Step names them.
        holder = models.Step.__new__(models.Step)
        holder.model, holder.optimizer = layers, optimizer
        made.name_globals(holder.named())
        made.name_globals([("positions", "other", positions), *named_buffers(rotary)])
        tokens = f"{LLAMA_SAMPLES} x {LLAMA_SEQUENCE:,} tokens"
        with made.iteration(f"{name}: {LLAMA_LAYERS} of Llama3-8B's layers, {tokens}, bf16"):
            step()
    return made


def named_buffers(module):
    return [(f"rotary.{name}", "other", buffer) for name, buffer in module.named_buffers()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(RUNS), help=", ".join(RUNS))
    gpu = recorder.Gpu.load(ROOT / "planner/machines/h200.json")
    for name in parser.parse_args().names:
        made = record_gpt(name, RUNS[name], gpu) if RUNS[name] else record_llama(name, gpu)
        path = FOLDER / f"{name}.json"
        path.write_text(made.to_json(), encoding="utf-8")
        kernels = sum(op.duration_ns > 0 for op in made._ops)
        seconds = sum(op.duration_ns for op in made._ops) / 1e9
        print(f"{path.name}: {len(made._ops):,} ops, {kernels:,} kernels of {seconds:.3f} s")


if __name__ == "__main__":
    main()
