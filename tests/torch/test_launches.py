"""Kernels that get addresses: what they use comes in, stays while they run, and moves again."""

import importlib.util

import pytest
import torch

import tidelog
from tidetest import KIB, device, process
from tidetest.bits import bits

pytestmark = pytest.mark.host_memory(device.SHARED)

COUNT, SIDE = 24, 64  # of tensors; each is 16 KiB
BUDGET = 256 * KIB + 6 * 16 * KIB

TRITON = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import triton
import triton.language as tl

@triton.jit
def add_scaled(x, y, out, scale, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    sum = tl.load(x + at, mask=inside) + scale * tl.load(y + at, mask=inside)
    tl.store(out + at, sum, mask=inside)

def step(tensors):
    for place in range(len(tensors) - 2):
        x, y, out = tensors[place : place + 3]
        add_scaled[(4,)](x, y, out, 0.5, x.numel(), BLOCK=1024)
        tensors[place].mul_(0.75)

def tensors_of():
    torch.manual_seed(1)
    return [torch.randn(64, 64) for _ in range(24)]

pool, mode = sys.argv[1:]
plain = tensors_of()
for _ in range(6):
    step(plain)
with tidelog.offload(pool=pool, memory=256 * KIB + 10 * 16 * KIB, staging=256 * KIB, pool_size=64 * MIB, mode=mode) as tide:
    plain = [bits(each) for each in plain]
    tensors = tensors_of()
    for _ in range(6):
        with tide.step():
            step(tensors)
        tide.await_plan()
    figures = tide.stats()
    assert figures["unmovable"] == [], figures["unmovable"]
    assert figures["totals"]["evictions"] > 50, figures["totals"]
    assert tide.peak_bytes <= tide.budget
    assert tide.phase == ("planned" if mode == "auto" else "reactive")
    if mode == "auto":
        assert not figures["notices"], figures["notices"]
        tide.trace(pool.split(",")[0] + "/trace.json")
        assert "kernel add_scaled" in open(pool.split(",")[0] + "/trace.json").read()
    for place, each in enumerate(tensors):
        assert_same(plain[place], bits(each), f"tensor {place}")
        del each
print("done")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_a_kernel_of_triton_is_an_op(pool, mode):
    process.assert_done(process.run(TRITON, pool, mode))


def test_an_address_pins_until_it_is_given_back(pool):
    with tidelog.offload(pool=pool, memory=BUDGET, staging=256 * KIB, mode="reactive") as tide:
        tensors = [torch.full((SIDE, SIDE), float(number)) for number in range(COUNT)]
        with tide.pinned(*tensors[:2]):
            addresses = [each.data_ptr() for each in tensors[:2]]
            with pytest.raises(tidelog.PinnedError):
                tide.evict(tensors[0])
            for each in tensors[2:]:
                each.add_(0)
            assert [each.data_ptr() for each in tensors[:2]] == addresses
        tide.evict(tensors[0])  # the scope is over
        assert not tide.is_resident(tensors[0])
        tensors[1].data_ptr()
        with pytest.raises(tidelog.PinnedError):
            tide.evict(tensors[1])
        tide.unpin(tensors[1])
        tide.evict(tensors[1])
        for number, each in enumerate(tensors):
            assert bits(each) == bits(torch.full((SIDE, SIDE), float(number)))
