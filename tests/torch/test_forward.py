"""Forward passes run as without a block, in which autograd finds no dispatch mode; the block sees all ops."""

import threading
import warnings
from collections import Counter

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

import tidelog
from tidelog.dispatch import _hook
from tidelog.native import _built
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits


WIDTH, STEPS = 64, 7
STAGING = 256 * KIB
FITS, MOVES = 64 * MIB, STAGING + 200 * KIB  # budgets


@pytest.fixture(autouse=True)
def built():
    assert _built.build() == ""


@pytest.fixture
def asked(monkeypatch):
    """Counts the questions to Python about each op."""
    counts = Counter()

    def counting(original):
        return lambda func, *given: (counts.update([str(func)]), original(func, *given))[1]

    for name in ("_facts", "expected"):
        monkeypatch.setattr(_hook, name, counting(getattr(_hook, name)))
    return counts


def is_hidden():
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)


def train(pool=None, memory=None, around=None):
    """The bits of a training, of whose results autograd saves many. `around`: makes what surrounds each forward pass."""
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(8)]

    def step():
        x = torch.linspace(-1, 1, WIDTH * WIDTH).view(WIDTH, WIDTH)
        with around() if around else torch.enable_grad():
            for weight in weights:
                x = (torch.sigmoid(x @ weight) + 0.1).sqrt().exp()
        x.square().mean().backward()
        with torch.no_grad():
            for weight in weights:
                weight -= 0.1 * weight.grad
                weight.grad = None

    if pool is None:
        for _ in range(STEPS):
            step()
        return [bits(each) for each in weights]
    options = {"memory": memory, "staging": STAGING, "pool_size": 64 * MIB}
    with warnings.catch_warnings(), tidelog.offload(pool=pool, **options) as tide:
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        for _ in range(STEPS):
            with tide.step():
                step()
            tide.await_plan()
        assert (tide.stats()["evictions"] > 0) == (memory == MOVES)
        assert (tide.phase, tide.stats()["notices"]) == ("planned", [])
        return [bits(each) for each in weights]


def check(pool, memory, **options):
    for at, (one, other) in enumerate(zip(train(**options), train(pool, memory, **options), strict=True)):
        assert_same(one, other, f"weight {at}")


@pytest.mark.parametrize("memory", [FITS, MOVES], ids=["all fits", "tensors move"])
def test_results_are_saved_without_python(pool, memory, asked):
    check(pool, memory)
    assert 0 < asked["aten.detach.default"] < 6, asked


@pytest.mark.parametrize("memory", [FITS, MOVES], ids=["all fits", "tensors move"])
def test_what_packs_saved_tensors_finds_the_mode(pool, memory):
    found = []

    def pack(tensor):
        found.append(is_hidden())
        return tensor * 2

    check(pool, memory, around=lambda: saved_tensors_hooks(pack, lambda packed: packed / 2))
    assert set(found) == {False}


def test_a_mode_in_what_packs_sees_ops(pool):
    ops = []

    class Listing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ops.append(str(func))
            return func(*args, **(kwargs or {}))

    def pack(tensor):
        with Listing():
            return tensor.detach().mul(1)

    check(pool, FITS, around=lambda: saved_tensors_hooks(pack, lambda packed: packed))
    assert ops.count("aten.mul.Tensor") > 2 * STEPS * 8


def test_a_mode_of_the_users_sees_what_it_sees_without_a_block(pool):
    class Listing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ops.append(str(func))
            return func(*args, **(kwargs or {}))

    ops, lists = [], []

    def around():
        ops.clear()
        return Listing()

    train(around=around)
    lists.append(list(ops))
    train(pool, FITS, around=around)
    lists.append(list(ops))
    assert lists[0].count("aten.detach.default") > 10
    assert lists[0] == lists[1]


@pytest.fixture(params=["all fits", "each op is looked at"])
def tide(pool, request):
    with tidelog.offload(pool=pool, memory=64 * MIB, staging=STAGING, pool_size=64 * MIB, mode="reactive") as tide:
        if request.param != "all fits":
            tide.evict(torch.ones(WIDTH))
        for _ in range(2):  # the first of each goes through Python
            x = torch.ones(WIDTH, WIDTH, requires_grad=True)
            (x.exp() @ x).cumsum(0).sum().backward()
        yield tide


def test_an_op_that_fails_leaves_the_keys_as_they_were(tide):
    x = torch.ones(WIDTH, WIDTH, requires_grad=True)
    for fail in (lambda: x @ torch.ones(3, 3), lambda: x.cumsum(7)):
        with pytest.raises((RuntimeError, IndexError)):
            fail()
        assert not is_hidden()
    before = tide.stats()["dispatch"]["ops_past_python"]
    x.exp()
    assert tide.stats()["dispatch"]["ops_past_python"] == before + 1


def test_forward_derivatives_are_seen(tide):
    """Autograd's kernel of an op computes them, by further ops."""
    x, tangent = torch.linspace(-1, 1, WIDTH), torch.ones(WIDTH)
    for _ in range(2):
        with torch.autograd.forward_ad.dual_level():
            before = tide.stats()["dispatch"]["ops_past_python"]
            dual = torch.autograd.forward_ad.make_dual(x, tangent).exp()
            passed = tide.stats()["dispatch"]["ops_past_python"] - before
            assert torch.equal(torch.autograd.forward_ad.unpack_dual(dual).tangent, x.exp())
    assert passed >= 2  # the op, and what multiplies the tangent


def test_a_subclass_finds_its_own_dispatch(tide):
    class Named(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=True)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*[arg.inner if isinstance(arg, cls) else arg for arg in args], **(kwargs or {}))

    names = []
    assert torch.equal(Named(torch.zeros(WIDTH)).exp(), torch.ones(WIDTH))
    assert "aten.exp.default" in names


def test_a_thread_without_the_mode_has_its_ops_to_itself(tide):
    before = tide.stats()["dispatch"]["ops_past_python"]
    thread = threading.Thread(target=lambda: torch.ones(8, requires_grad=True).exp().sum().backward())
    thread.start()
    thread.join()
    assert tide.stats()["dispatch"]["ops_past_python"] == before
