"""Records the sets that `make paper` plans: transformers' models by their configuration alone (nothing is downloaded),
a training step each, on meta tensors. `record.py DIRECTORY [NAME ...]` writes one trace per set and stage, and one for
each model of the held-out set (`tidelog.models` has those), which run whole on one GPU. Each is recorded a second time
with activation checkpointing, which is how ZeRO runs it.

A pipeline of two stages under 1F1B: stage 0 holds two micro-batches at once, stage 1 one. The time in which a stage
waits for the other is left out: transfers would run in it, so that what is measured without it is the harder case.
"""

import argparse
import itertools
import pathlib
import sys
import time
from collections import namedtuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "torch-bridge/python"))

from tidelog import models  # noqa: E402
from tidelog.models import AdamW  # noqa: E402
from tidelog.recorder import Gpu, Recorder  # noqa: E402

models.register_attention()

MACHINES = ROOT / "planner/machines"

LLAMA3_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
GRANITE_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 49152, "attention_bias": True, "mlp_bias": True,
    "tie_word_embeddings": True,
}  # fmt: skip
LLAMA3_70B = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip

Run = namedtuple("Run", "config sequence batch micro_batch precision stages", defaults=[2])
RUNS = {
    "llama3-8b-fp32": Run(LLAMA3_8B, 2048, 32, 4, "fp32"),
    "llama3-8b-tf32": Run(LLAMA3_8B, 2048, 32, 4, "tf32"),
    "granite-8b-fp32": Run(GRANITE_8B, 4096, 32, 4, "fp32"),
    "llama3-70b-fp32": Run(LLAMA3_70B, 2048, 8, 2, "fp32"),
}

# What the order of ops brings: whole models on one GPU, since micro-batches that pass layer by layer leave a second
# pipeline stage without work. As they run with checkpointing, which is how such orders are run.
MICRO_BATCHES = [1, 4, 16]
ORDERS = {
    f"{name}-m{count}": Run(config, sequence, count * size, size, "tf32", 1)
    for name, config, sequence, size in [
        ("llama3-8b", LLAMA3_8B, 2048, 4),
        ("granite-8b", GRANITE_8B, 4096, 4),
        ("llama3-70b", LLAMA3_70B, 2048, 2),
    ]
    for count in MICRO_BATCHES
}

# Never looked at while the policy was made: whole models on one GPU.
Whole = namedtuple("Whole", "micro_batch micro_batches sequence")
HELD_OUT = {
    "gpt2-xl": Whole(8, 4, 1024),
    "mixtral-like": Whole(4, 2, 2048),
    "t5-large": Whole(16, 2, 1024),
    "vit-huge": Whole(128, 2, 0),
}


# What GreedySnake (arXiv 2512.17570) was measured on: GPT in half precision, whole on an A100. The paper reports the
# throughput of large batches without their size: with so many samples the policies give ratios like the published.
Gpt = namedtuple("Gpt", "hidden layers heads")
GREEDYSNAKE = {"gpt-65b": Gpt(8192, 80, 64), "gpt-175b": Gpt(12288, 96, 96)}
GPT_SAMPLES = Whole(2, 8, 2048)


class Stage(nn.Module):
    """The layers of one pipeline stage; the first also embeds, the last also projects to the vocabulary."""

    def __init__(self, config, stage, stages, checkpointing):
        super().__init__()
        self.checkpointing = checkpointing
        layers = config.num_hidden_layers
        first, last = layers * stage // stages, layers * (stage + 1) // stages
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if stage == 0 else None
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, index) for index in range(first, last))
        self.rotary = LlamaRotaryEmbedding(config)
        self.norm = self.lm_head = None
        if stage == stages - 1:
            self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            if config.tie_word_embeddings and stages == 1:
                self.lm_head.weight = self.embed_tokens.weight

    def forward(self, inputs, positions):
        hidden = inputs if self.embed_tokens is None else self.embed_tokens(inputs)
        rotary = self.rotary(hidden, positions)
        for layer in self.layers:
            if self.checkpointing:
                hidden = checkpoint(layer, hidden, position_embeddings=rotary, use_reentrant=False)
            else:
                hidden = layer(hidden, position_embeddings=rotary)
        return hidden if self.lm_head is None else self.lm_head(self.norm(hidden))


class Step:
    """One training step of a stage."""

    def __init__(self, run, config, stage, recorder, checkpointing):
        self.run, self.stage, self.recorder = run, stage, recorder
        self.hidden = (run.micro_batch, run.sequence, config.hidden_size)
        self.model = Stage(config, stage, run.stages, checkpointing)
        self.optimizer = AdamW(self.model.parameters())
        self.positions = torch.arange(run.sequence, device="meta")[None]

    def named(self):
        parameters = dict(self.model.named_parameters())
        for name, parameter in parameters.items():
            yield name, "parameter", parameter
        for name, (first, second, count) in zip(parameters, self.optimizer.state):
            yield f"{name}.exp_avg", "optimizer_state", first
            yield f"{name}.exp_avg_sq", "optimizer_state", second
            yield f"{name}.step", "optimizer_state", count
        for name, buffer in self.model.named_buffers():
            yield name, "other", buffer
        yield "positions", "other", self.positions

    def __call__(self):
        count = self.run.batch // self.run.micro_batch
        ahead = self.run.stages - 1 - self.stage
        # What a stage sends on is kept until the step ends, as torch's pipeline schedules do.
        self.sent, waiting = [], []
        for index in range(count + ahead):
            if index < count:
                waiting.append(self.forward())
            if index >= ahead:
                self.backward(*waiting.pop(0))
        self.optimizer.step()
        self.sent.clear()

    def forward(self):
        tokens = (self.run.micro_batch, self.run.sequence)
        if self.stage == 0:
            inputs = self.recorder.receive(tokens, torch.int64, "load")
        else:
            inputs = self.recorder.receive(self.hidden).requires_grad_()
        output = self.model(inputs, self.positions)
        if self.stage < self.run.stages - 1:
            self.recorder.send(output)
            self.sent.append(output.detach())
        else:
            labels = self.recorder.receive(tokens, torch.int64, "load")
            output = nn.functional.cross_entropy(output.flatten(0, 1).float(), labels.flatten())
        return inputs, output

    def backward(self, inputs, output):
        with self.recorder.makes("gradient"):
            output.backward(self.recorder.receive(self.hidden) if self.stage < self.run.stages - 1 else None)
            if inputs.grad is not None:
                self.recorder.send(inputs.grad)


class AdamOnHost(models.MixedAdamW):
    """Parameters and gradients in half precision; state in single precision, of which an update is one op: it runs on
    the CPU, whose time is not the recorder's to tell."""

    def __init__(self, parameters, recorder):
        super().__init__(parameters)
        self.recorder = recorder

    def step(self):
        for half, master, (first, second, _) in zip(self.half, self.parameters, self.state):
            touched = [half, half.grad, master, first, second]
            size = sum(tensor.numel() * tensor.itemsize for tensor in touched)
            self.recorder.transfer(touched, "adam", size, writes=True)
            half.grad = None


def record_gpt(name, size):
    recorder = Recorder(Gpu.load(MACHINES / "a100.json"), "bf16")
    micro_batch, micro_batches, sequence = GPT_SAMPLES
    settings = {"n_embd": size.hidden, "n_layer": size.layers, "n_head": size.heads, "n_positions": sequence}
    with torch.device("meta"), recorder:
        model = models.from_config("gpt2", settings, "tidelog").to(torch.bfloat16).train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        step = models.Step(recorder, model, models.inputs_of(model, micro_batch, sequence), micro_batches)
        step.optimizer = AdamOnHost(model.parameters(), recorder)
        recorder.name_globals(step.named())
        with recorder.iteration(f"{name}, checkpointing"):
            step()
    return recorder


def record_whole(name, gpu, checkpointing):
    run = HELD_OUT[name]
    return models.record(
        name,
        gpu,
        micro_batch=run.micro_batch,
        micro_batches=run.micro_batches,
        sequence=run.sequence,
        checkpointing=checkpointing,
    )


def record(name, run, stage, gpu, checkpointing):
    config = LlamaConfig(**run.config, max_position_embeddings=run.sequence)
    config._attn_implementation = "tidelog"
    recorder = Recorder(gpu, run.precision)
    with torch.device("meta"), recorder:
        step = Step(run, config, stage, recorder, checkpointing)
        recorder.name_globals(step.named())
        part = f", stage {stage} of {run.stages}" if run.stages > 1 else ""
        with recorder.iteration(name + part + ", checkpointing" * checkpointing):
            step()
    return recorder


def main():
    names = [*RUNS, *HELD_OUT, *ORDERS, *GREEDYSNAKE]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=names, help=", ".join(names))
    parser.add_argument("--gpu", default="h100-nvl", help="a file of planner/machines, without .json")
    parser.add_argument("--stages", default="01", help="which stages: 0, 1 or 01")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    arguments = parser.parse_args()
    gpu = Gpu.load(MACHINES / f"{arguments.gpu}.json")
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        stages = map(int, arguments.stages) if name in RUNS else [None]
        kinds = (True,) if name in ORDERS or name in GREEDYSNAKE else (False, True)
        for stage, checkpointing in itertools.product(stages, kinds):
            file = name if stage is None else f"{name}-stage{stage}"
            path = arguments.directory / (file + "-checkpointed" * checkpointing + ".json")
            if path.exists() and not arguments.again:
                continue
            began = time.monotonic()
            if name in HELD_OUT:
                recorder = record_whole(name, gpu, checkpointing)
            elif name in GREEDYSNAKE:
                recorder = record_gpt(name, GREEDYSNAKE[name])
            else:
                recorder = record(name, {**RUNS, **ORDERS}[name], stage or 0, gpu, checkpointing)
            path.write_text(recorder.to_json(), encoding="utf-8")
            print(f"{path}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
