"""Libraries of kernels: Liger-Kernel's by Triton's interpreter, optimizers of bitsandbytes on the CPU.

`make test-integrations` installs them and runs this file; a library that is missing is a failure there,
and skipped elsewhere.
"""

import importlib.util
import os
import subprocess
import sys

import pytest

from tidetest import device, process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.host_memory(device.SHARED)]

IMPORTS = """
import contextlib
import gc
import sys
import torch
import tidelog
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits
"""

# Trains by `loss_of(model)` and `optimizer_of(model)`, plain and in a block, and compares every bit.
BOTH = """
pool, mode, *words = sys.argv[1:]
STEPS, BUDGET = 8, int(words.pop(0))

def train(tide=None):
    torch.manual_seed(1)
    model = model_of()
    optimizer = optimizer_of(model, *words)
    losses = []
    for number in range(STEPS):
        with tide.step() if tide is not None else contextlib.nullcontext():
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if tide is not None:
            tide.await_plan()
    states = [{key: bits(value) for key, value in optimizer.state[each].items() if isinstance(value, torch.Tensor)}
              for each in model.parameters()]
    return losses, [bits(each) for each in model.parameters()], states

plain = train()
gc.collect()
with tidelog.offload(pool=pool, memory=BUDGET, staging=256 * KIB, pool_size=64 * MIB, mode=mode) as tide:
    got = train(tide)
    figures = tide.stats()
    gc.collect()
    assert tide.phase == ("planned" if mode == "auto" else "reactive"), figures["held_back"]
    assert figures["totals"]["evictions"] > 20, figures["totals"]
    assert tide.peak_bytes <= tide.budget
    pinned = [record.describe() for record in tide.ledger.all() if record.pins]
    assert pinned == [], pinned
assert_same(plain, got, "the trained model")
print("done")
"""

LIGER = """
import liger_kernel.transformers as liger
from liger_kernel.ops.softmax import LigerSoftmaxFunction

ROWS, HEADS, WIDTH, WORDS = 4, 2, 64, 256

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).view(1, ROWS, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        angles = torch.outer(torch.arange(ROWS), torch.arange(WIDTH // HEADS) / WIDTH)[None]
        q, k = liger.liger_rotary_pos_emb(q.contiguous(), k.contiguous(), angles.cos(), angles.sin())
        weights = LigerSoftmaxFunction.apply(q @ k.transpose(-1, -2))
        return x + self.out((weights @ v).transpose(1, 2).reshape(ROWS, WIDTH))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)

model_of = Model

def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)

def loss_of(model):
    x = model.words(torch.arange(ROWS))
    for layer in model.layers:
        x = layer(x)
    return liger.LigerFusedLinearCrossEntropyLoss()(model.head.weight, x, torch.arange(ROWS) * 7)
"""

BITSANDBYTES = """
import bitsandbytes.optim

def model_of():
    return torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(8)])

def optimizer_of(model, name):
    return getattr(bitsandbytes.optim, name)(model.parameters(), lr=1e-3)

def loss_of(model):
    return model(torch.ones(8, 128)).square().mean()
"""


def needs(name):
    if "TIDELOG_INTEGRATIONS" not in os.environ and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: make test-integrations does that")


def run(script, *words, **variables):
    """Runs a script in a process of its own: Triton looks for its interpreter when it is imported, as torch does early."""
    command = [sys.executable, "-c", IMPORTS + script + BOTH, *map(str, words)]
    ended = subprocess.run(command, env=process.environment(**variables), capture_output=True, text=True, timeout=380)
    assert ended.returncode == 0 and "done" in ended.stdout.split(), ended.stdout + ended.stderr


def test_liger_kernels_by_the_interpreter(pool, mode):
    needs("liger_kernel")
    run(LIGER, pool, mode, 900 << 10, TRITON_INTERPRET="1")


@pytest.mark.parametrize("name", ["AdamW", "AdamW8bit", "Lion8bit"])
def test_optimizers_of_bitsandbytes_on_the_cpu(pool, mode, name):
    """Checks optimizers whose bodies hand addresses to C by ctypes."""
    needs("bitsandbytes")
    run(BITSANDBYTES, pool, mode, 900 << 10, name)
