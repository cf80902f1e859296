"""Kernels in C++ for ops that change nothing: which ops go past the dispatch mode, and what Python still sees."""

import gc
import threading
import time
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tidelog
from tidelog.escapes import _compiled
from tidelog.native._built import native
from tidetest import MIB, halfway


SIZE = 1 << 20


@pytest.fixture(params=["all fits", "each op is looked at"])
def tide(pool, request):
    memory = (64 if request.param == "all fits" else 16) * MIB
    with tidelog.offload(pool=pool, memory=memory, staging=MIB, pool_size=128 * MIB, mode="reactive") as tide:
        [unmet() for _ in range(40)]  # the first of an op goes through Python; these reach the smaller budget
        while tide.ledger.live:  # one may be on its way out still
            tide.session.wait(10)
        yield tide


def unmet():
    """A tensor that Python has not looked at."""
    return torch.ones(SIZE // 4) + 1


def train(steps, *, learnt_again_after=None, **options):
    """The losses of a small training, and of each step the part of its ops that went past Python."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, parts = [], []

    def step():
        loss = model(torch.randn(64, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    if not options:
        for _ in range(steps):
            step()
        return losses, parts
    with tidelog.offload(model, optimizer, **options) as tide:
        for number in range(steps):
            if number == learnt_again_after:
                tide.steps.learn_again()
            with tide.step():
                before = tide.stats()["dispatch"]["ops_past_python"]
                step()
                parts.append(tide.stats()["dispatch"]["ops_past_python"] - before)
            tide.await_plan()
        assert not any("left the plan" in notice for notice in tide.stats()["notices"]), tide.stats()["notices"]
    return losses, parts


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("memory", [1 << 30, 8 * MIB], ids=["above the peak", "under a plan"])
def test_most_ops_go_past_python_and_the_bits_are_the_same(pool, memory):
    plain, _ = train(10)
    losses, passed = train(10, pool=pool, memory=memory, staging=MIB, pool_size=256 * MIB)
    assert losses == plain
    # 12 layers forward and backward, and 12 parameters of AdamW.
    assert min(passed[-2:]) > 150, passed


def test_steps_that_are_learnt_again_follow_another_plan(pool):
    plain, _ = train(16)
    options = {"pool": pool, "memory": 8 * MIB, "staging": MIB, "pool_size": 256 * MIB}
    losses, passed = train(16, learnt_again_after=8, **options)
    assert losses == plain
    assert min(passed[1:]) > 150, passed


aten = torch.ops.aten
# One call for each kind of argument that `native/operators.h` knows. The results differ in size by some of them.
CALLS = {
    "two tensors": lambda x: x * x,
    "a tensor and a number": lambda x: x * 3,
    "a number that scales": lambda x: torch.add(x, x, alpha=2),
    "two such numbers": lambda x: torch.addmm(x, x, x, beta=0.5, alpha=2),
    "a power": lambda x: x.pow(2),
    "a shape": lambda x: x.view(2, -1),
    "the shape that it has": lambda x: x.view(x.shape),
    "a shape and a flag": lambda x: x[:1].expand(8, 8),
    "a shape, strides and an offset": lambda x: x.as_strided((2, 3), (3, 1), 4),
    "a type": lambda x: x.to(torch.float64),
    "a memory format": lambda x: x.clone(memory_format=torch.contiguous_format),
    "dimensions": lambda x: x.permute(1, 0),
    "dimensions, a flag and a type": lambda x: x.sum((0,), keepdim=True, dtype=torch.float64),
    "a dimension and a place": lambda x: x[3],
    "a part": lambda x: x[2:5],
    "a shape and options": lambda x: aten.new_empty_strided(x, (4, 4), (4, 1), dtype=torch.int8).zero_(),
    "three tensors": lambda x: torch.where(x > x, x, x),
    "what it writes": lambda x: x.detach().clone().add_(x).mul_(x).lerp_(x, 0.5),
}


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_an_op_goes_past_python_once_the_size_of_its_result_was_seen(tide, call, needs_gradient):
    """Checks an op, also one that is looked at in full, however its kernel is called."""
    given = torch.arange(64.0).view(8, 8).requires_grad_(needs_gradient)
    results = [call(given) for _ in range(3)]  # it gets a kernel, then the bytes of its result are seen
    with Counting() as seen:
        call(given)
    before = tide.stats()["dispatch"]["ops_past_python"]
    results.append(call(given))
    assert tide.stats()["dispatch"]["ops_past_python"] == before + seen.ops
    assert all(torch.equal(each, results[0]) for each in results)


PRODUCTS = {
    "mm": (torch.mm, 1, (8, 8)),
    "addmm": (torch.addmm, 2, (8, 8)),
    "bmm": (torch.bmm, 1, (2, 8, 8)),
    "baddbmm": (torch.baddbmm, 2, (2, 8, 8)),
}


@pytest.mark.parametrize(("product", "others", "shape"), PRODUCTS.values(), ids=PRODUCTS.keys())
def test_a_product_goes_past_python_where_its_buffer_is_not_resized(tide, product, others, shape):
    given = [torch.arange(float(torch.Size(shape).numel())).view(shape)] * (1 + others)
    expected = product(*given)
    for _ in range(2):  # first it gets a kernel, then the bytes that it makes are seen
        product(*given, out=torch.empty(shape))
    for first, passes in ((shape, True), ((3, *shape), False), ((0,), False)):
        live = tide.live_bytes
        buffer = torch.empty(first)
        before = tide.stats()["dispatch"]["ops_past_python"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of a buffer that it resizes
            product(*given, out=buffer)
        assert tide.stats()["dispatch"]["ops_past_python"] - before == passes
        assert torch.equal(buffer, expected)
        assert tide.live_bytes - live == buffer.untyped_storage().nbytes() >= expected.nbytes
        del buffer


def test_the_size_of_a_result_is_remembered_by_the_numbers_it_was_made_with(pool):
    with tidelog.offload(pool=pool, memory=16 * MIB, staging=MIB, pool_size=128 * MIB, mode="reactive") as tide:
        kept = [unmet() for _ in range(24)]
        given = torch.ones(4)
        for rows in (1, 6) * 4:
            made = aten.new_empty_strided(given, (rows, SIZE // 4), (SIZE // 4, 1))
            assert tide.live_bytes > 15 * MIB  # as many tensors left as it needs
            del made
            assert all(each[0] == 2 for each in kept)  # fills the budget again
        kept.clear()


def test_what_looks_on_sees_each_op(tide):
    seen = []
    native().observe(lambda func, *_: seen.append(func))
    unmet()
    assert len(seen) == (0 if tide.ledger.quiet else 2)


def test_a_storage_that_python_has_not_met_counts_until_it_dies(tide):
    live = tide.live_bytes
    tensor = unmet()
    assert tide.live_bytes == live + SIZE
    view = tensor.view(2, -1)
    del tensor
    assert tide.live_bytes == live + SIZE
    del view
    assert tide.live_bytes == live


def test_it_may_die_in_another_thread(tide):
    live = tide.live_bytes
    tensors = [unmet() for _ in range(8)]
    threads = [threading.Thread(target=tensors.pop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tide.live_bytes == live


# What meets a storage, and what must be so afterwards.
def evicted(tide, tensor):
    tide.evict(tensor)
    assert not tide.is_resident(tensor)


def seen_by_numpy(tide, tensor):
    array = tensor.numpy()
    with pytest.raises(tidelog.PinnedError):
        tide.evict(tensor)
    assert array[0] == 2


def addressed(tide, tensor):
    assert tensor.data_ptr()
    with pytest.raises(tidelog.PinnedError):
        tide.evict(tensor)


def resized(tide, tensor):
    live = tide.live_bytes
    tensor.untyped_storage().resize_(2 * SIZE)
    tensor.mul_(1)
    assert tide.live_bytes == live + SIZE


def shared(tide, tensor):
    tensor.share_memory_()
    with pytest.raises(tidelog.UnmovableError):
        tide.evict(tensor)


def used_in_a_thread(_tide, tensor):
    thread = threading.Thread(target=lambda: tensor.mul_(1))
    thread.start()
    thread.join()


def given_to_a_list(_tide, tensor):
    assert torch.cat([tensor, tensor]).sum() == SIZE


@pytest.mark.parametrize(
    "meet", [evicted, seen_by_numpy, addressed, resized, shared, used_in_a_thread, given_to_a_list]
)
def test_what_meets_it_finds_it_as_any_other(tide, meet):
    tensor = unmet()
    meet(tide, tensor)
    assert tensor.sum() == SIZE // 2
    live = tide.live_bytes
    size = tensor.untyped_storage().nbytes()
    del tensor
    assert tide.live_bytes == live - size


def test_errors_call_it_by_the_op_that_made_it(tide):
    tensor = unmet()
    assert tensor.data_ptr()
    with pytest.raises(tidelog.PinnedError, match="an output of aten.add.Tensor"):
        tide.evict(tensor)


def test_it_leaves_and_comes_back_when_the_budget_asks_for_it(pool):
    with tidelog.offload(pool=pool, memory=16 * MIB, staging=MIB, pool_size=128 * MIB, mode="reactive") as tide:
        tensors = [unmet() + number for number in range(40)]
        assert tide.peak_bytes <= 16 * MIB
        assert tide.stats()["totals"]["evictions"] > 20
        assert tide.stats()["dispatch"]["ops_past_python"] > 60
        for number, tensor in enumerate(tensors):
            assert tensor[0].item() == 2 + number
            tensor.add_(1)  # what is in the log is of before
        for number, tensor in enumerate(tensors):
            assert tensor[-1].item() == 3 + number
        assert tide.peak_bytes <= 16 * MIB


def test_numbers_of_those_that_died_serve_again(pool):
    with tidelog.offload(pool=pool, memory=16 * MIB, staging=MIB, pool_size=128 * MIB, mode="reactive") as tide:
        kept, numbers = [unmet() for _ in range(20)], set()
        for _ in range(20):
            with tide.step():
                for _ in range(50):
                    made = kept[0] + unmet()
                    numbers.add(tide.ledger.number_of(made.untyped_storage()._tide))
        assert 50 <= len(numbers) < 300


def test_after_the_block_it_is_a_tensor_like_any(pool):
    for _ in range(2):
        with tidelog.offload(pool=pool, memory=64 * MIB, staging=MIB, pool_size=128 * MIB) as tide:
            unmet()
            tensor = unmet()
            base = tide.live_bytes
        assert tensor.sum() == SIZE // 2
        assert base >= SIZE
    with tidelog.offload(pool=pool, memory=64 * MIB, staging=MIB, pool_size=128 * MIB) as tide:
        tide.evict(tensor)
        assert tensor.sum() == SIZE // 2


@pytest.mark.parametrize("made", [torch.ones, lambda size: torch.frombuffer(bytearray(4 * size), dtype=torch.float32)])
def test_the_next_block_begins_with_numbers_of_its_own(pool, made):
    """Checks numbers also where the previous block is gone, which had told its session of the storage."""
    tensors = [made(SIZE // 4) for _ in range(4)]
    for _ in range(3):
        with tidelog.offload(pool=pool, memory=64 * MIB, staging=MIB, pool_size=128 * MIB, mode="reactive") as tide:
            moved = [each for each in tensors if tide.access.moves(each) and each.untyped_storage().resizable()]
            for each in moved:
                tide.evict(each)
            assert [each.sum().item() for each in moved] == [SIZE // 4] * len(moved)
            assert len({each.untyped_storage()._tide.id for each in tensors}) == 4
            tensors.reverse()
        del tide
        gc.collect()


def test_storages_of_others_memory_count_until_they_die(pool):
    """Checks memory that no allocator of torch's has made: it is looked for, a few at a time."""
    with tidelog.offload(pool=pool, memory=256 * MIB, staging=MIB, pool_size=128 * MIB) as tide:
        live = tide.live_bytes
        tensors = [torch.frombuffer(bytearray(4096), dtype=torch.float32) for _ in range(2000)]
        for each in tensors:
            tide.access.moves(each)
        assert tide.live_bytes == live + 2000 * 4096
        del tensors[::2]
        for _ in range(20):
            tide.live_bytes
        assert tide.live_bytes == live + 1000 * 4096
        del tensors, each
        for _ in range(20):
            tide.live_bytes
        assert tide.live_bytes == live


def test_a_mode_of_the_users_sees_each_op(tide):
    tensor = unmet()
    with Counting() as counting:
        tensor.mul(2)
        tensor.mul(2)
    assert counting.ops == 2


def test_an_op_that_fails_raises_what_it_raises_without_a_block(tide):
    left, right = torch.ones(3, 4), torch.ones(3, 4)
    for _ in range(2):  # first it gets a kernel, then the bytes of its result are seen
        torch.mm(left, right.t())
    before = tide.stats()["dispatch"]["ops_past_python"]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(left, right)
    assert torch.mm(left, right.t())[0, 0] == 4
    assert tide.stats()["dispatch"]["ops_past_python"] > before


def test_what_an_op_uses_stays_while_it_brings_something_back(pool):
    """An op whose kernel is in Python, and looks at a tensor that is out, or launches a kernel with it: there is no
    room for both.
    """
    tensors, is_out = {}, []
    kernel = _compiled._Kernel("nothing", lambda _: None, written=[], count=1)

    def trace(matrix):
        if looks:
            with pytest.raises(tidelog.BudgetError):
                tensors["other"].numpy()
            with pytest.raises(tidelog.BudgetError):
                tide._hook.launch(kernel, (tensors["other"],), {})
            is_out.append(matrix.untyped_storage()._tide.is_out)
        return torch.ones(())

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("trace", trace, "CPU")
        with tidelog.offload(pool=pool, memory=13 * MIB, staging=MIB, pool_size=128 * MIB, mode="reactive") as tide:
            tensors.update({name: torch.ones(1024, 2048) for name in ("used", "other")})
            for _ in range(3):  # it is known, and the bytes that it makes
                tide._hook.launch(kernel, (tensors["other"],), {})
            for looks in (False, False, False, True):
                tide.evict(tensors["other"])
                before = tide.stats()["dispatch"]["ops_past_python"]
                torch.trace(tensors["used"])
            assert tide.stats()["dispatch"]["ops_past_python"] > before
            assert is_out == [False]
            assert tensors["other"].sum() == tensors["other"].numel()
            tensors.clear()


def test_a_sparse_result_has_its_parts_counted(tide):
    dense = torch.ones(512, 512)
    for _ in range(2):
        live = tide.live_bytes
        sparse = dense.to_sparse()
        tide.evict(sparse.values())
        assert torch.equal(sparse.to_dense(), dense)
        del sparse
    assert tide.live_bytes <= live + MIB


@pytest.mark.parametrize("tide", ["each op is looked at"], indirect=True)
def test_what_asks_whether_memory_is_locked_finds_none_where_it_leaves_at_its_beginning(tide):
    tensor = torch.ones(MIB // 4)
    record = tensor.untyped_storage()._tide
    halfway.begin_eviction(tide, tensor)
    time.sleep(0.2)  # it is written, which the next op finds
    assert not tensor.is_pinned()
    assert record.is_out
    assert tensor.sum() == MIB // 4
