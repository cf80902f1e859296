"""Kernels in C++ for single operators: each does what the mode in Python would do."""

import re
import warnings
from pathlib import Path

import pytest
import torch

import tidelog
from tidelog.native import _built
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits


SIDE = 64
BYTES = SIDE * SIDE * 4
BUDGET = 256 * KIB + 20 * BYTES

# A call of each, of a matrix, another one, a third of batches, and a vector.
aten = torch.ops.aten
CALLS = {
    "_to_copy": lambda x, y, b, v: aten._to_copy(x, dtype=torch.float64),
    "_unsafe_view": lambda x, y, b, v: aten._unsafe_view(x, [SIDE * SIDE]),
    "add_Tensor": lambda x, y, b, v: aten.add(x, y, alpha=2),
    "add__Tensor": lambda x, y, b, v: aten.add_(x, y, alpha=2),
    "addcdiv_": lambda x, y, b, v: aten.addcdiv_(x, y, y, value=0.5),
    "addcmul_": lambda x, y, b, v: aten.addcmul_(x, y, y, value=0.5),
    "addmm": lambda x, y, b, v: aten.addmm(v, x, y),
    "alias": lambda x, y, b, v: aten.alias(x),
    "as_strided": lambda x, y, b, v: aten.as_strided(x, [4, 4], [1, 2], 3),
    "bmm": lambda x, y, b, v: aten.bmm(b, b),
    "clone": lambda x, y, b, v: aten.clone(x, memory_format=torch.contiguous_format),
    "copy_": lambda x, y, b, v: aten.copy_(x, y),
    "detach": lambda x, y, b, v: aten.detach(x),
    "div_Scalar": lambda x, y, b, v: aten.div.Scalar(x, 3),
    "div_Tensor": lambda x, y, b, v: aten.div(x, y),
    "eq_Tensor": lambda x, y, b, v: aten.eq(x, y),
    "exp": lambda x, y, b, v: aten.exp(x),
    "expand": lambda x, y, b, v: aten.expand(v, [SIDE, SIDE]),
    "gt_Tensor": lambda x, y, b, v: aten.gt(x, y),
    "lerp__Scalar": lambda x, y, b, v: aten.lerp_(x, y, 0.25),
    "lt_Tensor": lambda x, y, b, v: aten.lt(x, y),
    "masked_fill_Scalar": lambda x, y, b, v: aten.masked_fill(x, y > 0, 2.5),
    "maximum": lambda x, y, b, v: aten.maximum(x, y),
    "mm": lambda x, y, b, v: aten.mm(x, y),
    "mul_Scalar": lambda x, y, b, v: aten.mul.Scalar(x, 3),
    "mul_Tensor": lambda x, y, b, v: aten.mul(x, y),
    "mul__Tensor": lambda x, y, b, v: aten.mul_(x, y),
    "neg": lambda x, y, b, v: aten.neg(x),
    "new_empty_strided": lambda x, y, b, v: aten.new_empty_strided(x, [4, 4], [4, 1]).zero_(),
    "permute": lambda x, y, b, v: aten.permute(b, [2, 0, 1]),
    "pow_Tensor_Scalar": lambda x, y, b, v: aten.pow(x, 2),
    "rsqrt": lambda x, y, b, v: aten.rsqrt(y),
    "select_backward": lambda x, y, b, v: aten.select_backward(v, [3, SIDE], 0, 1),
    "select_int": lambda x, y, b, v: aten.select(x, 0, 5),
    "slice_Tensor": lambda x, y, b, v: aten.slice(x, 0, 2, 9),
    "slice_backward": lambda x, y, b, v: aten.slice_backward(x, [2 * SIDE, SIDE], 0, 0, SIDE, 1),
    "sqrt": lambda x, y, b, v: aten.sqrt(y),
    "squeeze_dim": lambda x, y, b, v: aten.squeeze(b[:1], 0),
    "sub_Tensor": lambda x, y, b, v: aten.sub(x, y),
    "sum_dim_IntList": lambda x, y, b, v: aten.sum(x, [1], dtype=torch.float64),
    "t": lambda x, y, b, v: aten.t(x),
    "transpose_int": lambda x, y, b, v: aten.transpose(b, 0, 2),
    "unsqueeze": lambda x, y, b, v: aten.unsqueeze(x, 1),
    "view": lambda x, y, b, v: aten.view(x, [-1]),
    "where_self": lambda x, y, b, v: aten.where(y > 0, x, y),
    "zeros_like": lambda x, y, b, v: aten.zeros_like(x),
}
# Of operators that have kernels with a stack.
OTHERS = {
    "cat": lambda x, y, b, v: aten.cat([x, y]),
    "cumsum": lambda x, y, b, v: aten.cumsum(x, 0),
    "sum": lambda x, y, b, v: aten.sum(x),
    "max": lambda x, y, b, v: aten.max(x, 1)[0],
}
TWO = ("new_empty_strided", "squeeze_dim", "where_self", "masked_fill_Scalar")  # ops


@pytest.fixture(autouse=True)
def built():
    assert _built.build() == ""


def made():
    torch.manual_seed(3)
    return [torch.randn(SIDE, SIDE), torch.rand(SIDE, SIDE) + 0.5, torch.randn(2, SIDE, SIDE), torch.randn(SIDE)]


def run(call):
    """The bits of an operator's result, and of what it may have written."""
    tensors = made()
    return [bits(each) for each in (call(*tensors), *tensors)]


def test_each_operator_of_the_list_is_called_here():
    text = (Path(_built._SOURCES) / "operators.h").read_text(encoding="utf-8")
    assert set(re.findall(r"OP\((\w+)\)", text.replace("OP(op)", ""))) == set(CALLS)


@pytest.mark.parametrize("memory", [64 * MIB, BUDGET], ids=["all fits", "each op is looked at"])
def test_bits_and_bytes_are_those_of_the_mode(pool, memory):
    calls = {**CALLS, **OTHERS}
    plain = {name: run(call) for name, call in calls.items()}
    options = {"memory": memory, "staging": 256 * KIB, "pool_size": 64 * MIB, "mode": "reactive"}
    with tidelog.offload(pool=pool, **options) as tide:
        if memory == BUDGET:
            tide.evict(torch.ones(SIDE))
        for name, call in calls.items():
            run(call)  # the first of each goes through Python
            tensors = made()
            passed, live = tide.stats()["dispatch"]["ops_past_python"], tide.live_bytes
            result = call(*tensors)
            passed = tide.stats()["dispatch"]["ops_past_python"] - passed
            assert passed == (2 if name in TWO else 1), (name, passed)  # what an operator calls below is no op
            is_new = all(result.untyped_storage()._cdata != each.untyped_storage()._cdata for each in tensors)
            assert tide.live_bytes - live == (result.untyped_storage().nbytes() if is_new else 0), name
            del tensors, result
            for before, after in zip(plain[name], run(call), strict=True):
                assert_same(before, after, name)


def test_all_of_them_in_a_plan(pool):
    def step():
        tensors = made()
        for _ in range(12):  # more than fits
            kept.append(tensors[0] * 2)
        return [bits(call(*[each.clone() for each in tensors])) for call in CALLS.values()]

    kept = []
    plain = step()
    options = {"memory": BUDGET, "staging": 256 * KIB, "pool_size": 64 * MIB}
    with warnings.catch_warnings(), tidelog.offload(pool=pool, **options) as tide:
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        for _ in range(6):
            del kept[:]
            with tide.step():
                passed = tide.stats()["dispatch"]["ops_past_python"]
                for name, before, after in zip(CALLS, plain, step(), strict=True):
                    assert_same(before, after, name)
                passed = tide.stats()["dispatch"]["ops_past_python"] - passed
            tide.await_plan()
        assert tide.phase == "planned", tide.stats()["held_back"]
        assert tide.stats()["notices"] == []
        assert passed > 4 * len(CALLS), passed
        assert tide.peak_bytes <= tide.budget
        del kept[:]
