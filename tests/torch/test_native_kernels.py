"""Kernels in C and C++ that get addresses: by custom ops, extensions of the dispatcher, and ctypes."""

import contextlib
import ctypes

import pytest
import torch

import tidelog
from tidelog.block import _block
from tidetest import KIB, MIB, device, native
from tidetest.bits import assert_same, bits

pytestmark = pytest.mark.host_memory(device.NO_ADDRESS)

COUNT, SIDE, STEPS = 24, 64, 8  # of tensors; each is 16 KiB
BUDGET = 256 * KIB + 10 * 16 * KIB

KERNEL = """
void add_scaled(float *out, const float *x, const float *y, float scale, long count) {
    for (long at = 0; at < count; at++)
        out[at] = x[at] + scale * y[at];
}
"""

EXTENSION = """
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/library.h>
#include <ATen/ops/empty_like.h>

static void compute(const at::Tensor &x, const at::Tensor &y, double scale, at::Tensor &out) {
    const float *left = x.const_data_ptr<float>(), *right = y.const_data_ptr<float>();
    float *to = out.mutable_data_ptr<float>(), factor = (float)scale;
    for (int64_t at = 0; at < x.numel(); at++)
        to[at] = left[at] + factor * right[at];
}

static at::Tensor add_scaled(const at::Tensor &x, const at::Tensor &y, double scale) {
    at::Tensor out = at::empty_like(x);
    compute(x, y, scale, out);
    return out;
}

static void add_scaled_(at::Tensor &x, const at::Tensor &y, double scale) { compute(x, y, scale, x); }

TORCH_LIBRARY(tidetest_cpp, library) {
    library.def("add_scaled(Tensor x, Tensor y, float scale) -> Tensor");
    library.def("add_scaled_(Tensor(a!) x, Tensor y, float scale) -> ()");
}

TORCH_LIBRARY_IMPL(tidetest_cpp, CPU, library) {
    library.impl("add_scaled", add_scaled);
    library.impl("add_scaled_", add_scaled_);
}
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """`kernel(out, x, y, scale)`: calls C with the addresses of tensors."""
    library = ctypes.CDLL(str(native.build(tmp_path_factory.mktemp("kernel"), "kernel", KERNEL)))
    pointer = ctypes.c_void_p
    library.add_scaled.argtypes = [pointer, pointer, pointer, ctypes.c_float, ctypes.c_long]
    return lambda out, x, y, scale: library.add_scaled(out.data_ptr(), x.data_ptr(), y.data_ptr(), scale, out.numel())


@pytest.fixture(scope="module")
def custom_ops(kernel):
    """Ops of torch.library whose bodies are Python that calls C: one makes its result, one writes its argument."""

    @torch.library.custom_op("tidetest::add_scaled", mutates_args=())
    def add_scaled(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel(out, x, y, scale)
        return out

    @torch.library.custom_op("tidetest::add_scaled_", mutates_args={"x"})
    def add_scaled_(x: torch.Tensor, y: torch.Tensor, scale: float) -> None:
        kernel(x, x, y, scale)

    return add_scaled, add_scaled_


@pytest.fixture(scope="module")
def extension_ops(tmp_path_factory):
    """Builds the ops as an extension in C++."""
    folder = tmp_path_factory.mktemp("extension")
    torch.ops.load_library(str(native.build_for_torch(folder, "extension", EXTENSION)))
    return torch.ops.tidetest_cpp.add_scaled, torch.ops.tidetest_cpp.add_scaled_


def made():
    torch.manual_seed(1)
    return [torch.randn(SIDE, SIDE) for _ in range(COUNT)]


def step(tensors, add_scaled, add_scaled_):
    for place in range(COUNT - 2):
        x, y = tensors[place : place + 2]
        tensors[place + 2] = add_scaled(x, y, 0.25).mul_(0.5)
        add_scaled_(y, x, -0.125)


def check(pool, mode, ops):
    """Steps of these ops in a block have the bits of steps without one; all tensors moved, and none stays pinned."""
    plain = made()
    for _ in range(STEPS):
        step(plain, *ops)
    plain = [bits(each) for each in plain]
    options = dict(memory=BUDGET, staging=256 * KIB, pool_size=64 * MIB)
    with tidelog.offload(pool=pool, mode=mode, **options) as tide:
        few = made()[:6]  # all of them are in memory: ops are not looked at yet
        ops[1](few[0], ops[0](few[1], few[2], 0.5), 0.5)
        del few
        tensors = made()
        for _ in range(STEPS):
            with tide.step():
                step(tensors, *ops)
        assert tide.phase == ("planned" if mode == "auto" else "reactive"), tide.stats()["held_back"]
        figures = tide.stats()
        assert figures["unmovable"] == [] and figures["notices"] == [], figures
        assert figures["totals"]["evictions"] > 50, figures["totals"]
        assert tide.peak_bytes <= tide.budget
        for place, each in enumerate(tensors):
            assert_same(plain[place], bits(each), f"tensor {place}")
        for place, each in enumerate(tensors):
            tide.evict(each)
            assert not tide.is_resident(each), f"tensor {place} stays"
        del tensors, each


def test_the_body_of_a_custom_op_may_ask_for_addresses(pool, mode, custom_ops):
    check(pool, mode, custom_ops)


@pytest.mark.slow  # a minute to compile
def test_an_extension_in_cpp_is_an_op_like_any_other(pool, mode, extension_ops):
    check(pool, mode, extension_ops)


def test_a_kernel_by_ctypes_has_its_tensors_for_a_scope(pool, mode, kernel):
    """Checks addresses outside of an op, where nothing says for how long an address is used: a scope does."""

    def add_scaled(x, y, scale):
        out = torch.empty_like(x)
        with scope(out, x, y):
            kernel(out, x, y, scale)
        return out

    def add_scaled_(x, y, scale):
        with scope(x, y):
            kernel(x, x, y, scale)

    def scope(*tensors):
        tide = _block._active
        return tide.pinned(*tensors) if tide is not None else contextlib.nullcontext()

    check(pool, mode, (add_scaled, add_scaled_))


def test_without_a_scope_an_address_of_ctypes_pins_until_it_is_given_back(pool, kernel):
    with tidelog.offload(pool=pool, memory=BUDGET, staging=256 * KIB, mode="reactive") as tide:
        out, x, y = made()[:3]
        kernel(out, x, y, 0.5)
        for each in (out, x, y):
            with pytest.raises(tidelog.PinnedError):
                tide.evict(each)
        tide.unpin(out, x, y)
        for each in (out, x, y):
            tide.evict(each)
        assert_same(bits(x + 0.5 * y), bits(out), "the kernel's result")
        del out, x, y, each
