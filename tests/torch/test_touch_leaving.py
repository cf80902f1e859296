"""Leaving a block with tensors out, opening another, nesting, and pools that others hold."""

import contextlib
import copy
import io
import os
import pickle
import signal
import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves

import tidelog
from tidelog.native._built import native
from tidetest import KIB, MIB, device, halfway, process
from tidetest.bits import assert_same, bits
from tidetest.world import POOL_SIZE, World

TOUCHES = {
    "sum": lambda t: bits(t.sum()),
    "clone": lambda t: bits(t.clone()),
    "slice": lambda t: bits(t[1:3] + 0),
    "view": lambda t: bits(t.view(-1)[5:9] * 1),
    "transposed": lambda t: bits(t.t().contiguous()),
    "tolist": lambda t: t.tolist(),
    "item": lambda t: t.reshape(-1)[0].item(),
    "repr": lambda t: repr(t),
    "numpy": lambda t: t.detach().cpu().numpy().tobytes(),
    "torch.save": lambda t: bits(_saved(t)),
    "pickle": lambda t: bits(pickle.loads(pickle.dumps(t))),
    "deepcopy": lambda t: bits(copy.deepcopy(t.detach())),
    "storage": lambda t: list(t.untyped_storage()[:16]),
    "data_ptr": lambda t: t.data_ptr() != 0,
    "dlpack": lambda t: bits(torch.from_dlpack(t.detach())),
    "matmul": lambda t: bits(t @ torch.ones(t.shape[-1])),
    "write": lambda t: bits(t.detach().mul_(1)),
}


def _saved(tensor):
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def touch_all(tensor):
    """Every touch, on the tensor itself: its result, or the error."""
    found = {}
    for name, touch in TOUCHES.items():
        try:
            with torch.no_grad():
                found[name] = touch(tensor)
        except RuntimeError as error:
            # Torch's repr of a tensor has a guard in its frame, by which functorch is off while the frame lives.
            found[name] = error.with_traceback(None)
    return found


@contextlib.contextmanager
def left_quietly():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        yield


def test_what_fits_comes_back_and_the_rest_is_named(pool, mode):
    """Checks that each tensor is right after the block, or every touch raises an error with its name; the warning tells
    which.
    """
    world = World()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with world.block(pool, mode):
            count = world.warm_up(mode)
    text = "".join(str(entry.message) for entry in caught if issubclass(entry.category, tidelog.LeftBehindWarning))

    # Touching comes first: a plain World beside it would change nothing, but nothing should be allocated before.
    found = {name: touch_all(tensor) for name, tensor in world.tensors().items() if tensor.dim() == 2}
    plain = World()
    plain.steps(count)
    tensors = plain.tensors()
    refused = set()
    for name, touches in found.items():
        with torch.no_grad():
            expected = {key: touch(tensors[name]) for key, touch in TOUCHES.items()}
        for key, value in touches.items():
            if isinstance(value, Exception):
                refused.add(name)
                assert "tidelog" in str(value) and name in str(value), f"{key} of {name}: {value}"
            else:
                assert value == expected[key], f"{key} of {name} gave other bytes"
    assert refused, "the run was meant not to fit"
    assert text, "tensors were left behind and no warning said so"
    assert any(name in text for name in refused), text


def test_a_checkpoint_after_the_block_is_whole_or_refused(pool, mode, tmp_path):
    world = World()
    with left_quietly(), world.block(pool, mode):
        count = world.warm_up(mode)
    plain = World()
    plain.steps(count)
    for part, expected in (("model", plain.model.state_dict()), ("optimizer", plain.optimizer.state_dict())):
        buffer = io.BytesIO()
        try:
            torch.save(getattr(world, part).state_dict(), buffer)
        except RuntimeError as error:
            assert "tidelog" in str(error), error
            continue
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        for (name, one), (_, other) in zip(leaves(expected), leaves(loaded), strict=True):
            assert_same(bits(one), bits(other), name)


def leaves(state):
    return [(str(place), leaf) for place, leaf in enumerate(tree_leaves(state)) if isinstance(leaf, torch.Tensor)]


def test_restore_after_the_block_brings_everything_back(pool, mode):
    world = World()
    with left_quietly(), world.block(pool, mode) as tide:
        count = world.warm_up(mode)
    tide.restore()
    got = world.result()
    plain = World()
    plain.steps(count)
    for (name, one), (_, other) in zip(plain.result(), got, strict=True):
        assert_same(one, other, name)
    world.tide = None
    world.steps(2)  # plain training goes on
    plain.steps(2)
    for (name, one), (_, other) in zip(plain.result(), world.result(), strict=True):
        assert_same(one, other, name)


def test_restore_after_a_block_that_ended_with_nothing_out_does_nothing(pool, mode):
    world = World()
    with world.block(pool, mode, memory=64 * MIB) as tide:
        world.steps(1)
    tide.restore()
    tide.restore(world.loose)
    assert bits(world.loose) == bits(World().loose)


def test_leaving_while_bytes_come_in(pool, mode):
    """Leaves the block while a device writes memory: it arrives, and that memory is not exchanged under it."""
    world = World()
    expected = bits(world.loose)
    with left_quietly(), world.block(pool, mode):
        world.warm_up(mode)
        world.tide.updates.run_all()  # at the block's end they would push it out again
        world.push_out(world.loose)
        halfway.begin_fetch(world.tide, world.loose)
        address = torch._C.StorageBase.data_ptr  # the unwrapped one neither waits nor pins
        native().open_to_reads(world.loose.untyped_storage())
        before = address(world.loose.untyped_storage())
    assert not any(halfway.is_moving(tensor) for tensor in [world.loose, *world.tensors().values()])
    assert address(world.loose.untyped_storage()) == before
    assert bits(world.loose) == expected


def test_leaving_while_bytes_go_out(pool, mode):
    """Leaves the block while memory is being written out: it stays, as after the block nobody would see that it is
    written, and old bytes would come back.
    """
    for _ in range(halfway.ATTEMPTS):
        world = World()
        with left_quietly(), world.block(pool, mode):
            world.warm_up(mode)
            other = world.subject("parameter")
            halfway.begin_eviction(world.tide, world.loose)
        if world.tide.is_resident(world.loose):
            break  # otherwise the write was over before the block was, and the tensor is one of those that stay out
        world.tide.restore()
    else:
        if device.updates == "host":
            pytest.skip("the updates that return first give the write time")
        pytest.fail(f"in {halfway.ATTEMPTS} attempts the write was over before the block was")
    assert not any(halfway.is_moving(tensor) for tensor in [world.loose, *world.tensors().values()])
    world.loose.add_(1)
    expected = bits(world.loose)
    world.tide.restore(other)
    world.tide.restore()
    assert bits(world.loose) == expected


@pytest.mark.parametrize("second", ["same pool", "another pool"])
def test_two_blocks_one_after_the_other(pool, mode, tmp_path, second):
    """The second block takes over what the first one left on NVMe."""
    world = World()
    counts = []
    with left_quietly():
        with world.block(pool, mode):
            counts.append(world.warm_up(mode))
        pools = pool
        if second == "another pool":
            for name in ("third", "fourth"):
                (tmp_path / name).mkdir()
            pools = f"{tmp_path / 'third'},{tmp_path / 'fourth'}"
        with world.block(pools, mode):
            counts.append(world.warm_up(mode))
            world.push_out(world.loose)
            got = world.result()
    plain = World()
    plain.steps(sum(counts))
    for (name, one), (_, other) in zip(plain.result(), got, strict=True):
        assert_same(one, other, name)


def test_many_blocks_in_a_row_leak_nothing(pool):
    world = World(layers=4)
    with left_quietly():
        for _ in range(8):
            with world.block(pool, "reactive", memory=device.budget(128 * KIB)):
                world.steps(1)
        with world.block(pool, "reactive"):
            got = world.result()
    plain = World(layers=4)
    plain.steps(8)
    for (name, one), (_, other) in zip(plain.result(), got, strict=True):
        assert_same(one, other, name)


def test_a_block_over_everything_that_fits_leaves_nothing_behind(pool, mode):
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tidelog.LeftBehindWarning)
        with world.block(pool, mode, memory=64 * MIB) as tide:
            count = world.warm_up(mode)
            world.push_out(*world.tensors().values())
            assert tide.budget == 64 * MIB
    got = world.result()
    plain = World()
    plain.steps(count)
    for (name, one), (_, other) in zip(plain.result(), got, strict=True):
        assert_same(one, other, name)


def test_nested_blocks_are_refused_and_the_outer_one_goes_on(pool, tmp_path):
    world = World()
    other = tmp_path / "other"
    other.mkdir()
    with world.block(pool, "reactive"):
        world.steps(1)
        for place in (pool, str(other)):
            with pytest.raises(tidelog.Error):
                with tidelog.offload(world.model, pool=place, memory=MIB, pool_size=POOL_SIZE):
                    raise AssertionError("a nested block opened")
        world.push_out(world.loose)
        world.steps(2)
        got = world.result()
    plain = World()
    plain.steps(3)
    for (name, one), (_, other_bits) in zip(plain.result(), got, strict=True):
        assert_same(one, other_bits, name)


def test_methods_of_a_closed_block_say_so(pool):
    world = World()
    with left_quietly(), world.block(pool, mode="reactive") as tide:
        world.steps(1)
    with pytest.raises(tidelog.Error):
        tide.evict(torch.zeros(64, 64))
    with pytest.raises(tidelog.Error):
        with tide.step():
            pass


HOLDER = """
world = World()
with world.block(sys.argv[1], mode="reactive"):
    world.steps(2)
    print("open", flush=True)
    time.sleep(120)
"""


def test_a_pool_that_another_process_holds_is_refused_by_name_and_free_after_its_death(pool):
    holder = process.start(HOLDER, pool)
    try:
        holder.await_line("open")
        world = World()
        with pytest.raises(tidelog.PoolError) as refusal:
            with world.block(pool):
                raise AssertionError("opened a pool that another process holds")
        assert str(holder.pid) in str(refusal.value)
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.finish()
    world = World()
    with left_quietly(), world.block(pool, mode="reactive"):
        world.steps(2)
        got = world.result()
    plain = World()
    plain.steps(2)
    for (name, one), (_, other) in zip(plain.result(), got, strict=True):
        assert_same(one, other, name)


WRONG = {
    "no such directory": dict(pool="/no/such/place"),
    "an unknown mode": dict(mode="sometimes"),
    "a budget that is no size": dict(memory="lots"),
    "a negative budget": dict(memory=-1),
    "a budget below its staging": dict(memory=64 * KIB),
    "an unknown data path": dict(data_path="telepathy"),
}


NO_STAGING = "a GPU's budget has no staging buffers in it"


@pytest.mark.parametrize("case", device.params(WRONG, {"a budget below its staging"}, NO_STAGING))
def test_wrong_arguments_are_refused_and_a_right_block_opens_afterwards(pool, case):
    arguments = {"pool": pool, "memory": MIB, "mode": "reactive", "pool_size": POOL_SIZE, **WRONG[case]}
    with pytest.raises((tidelog.Error, ValueError, TypeError)) as refusal:
        with tidelog.offload(**arguments):
            raise AssertionError("opened")
    assert str(refusal.value)
    with tidelog.offload(pool=pool, memory=MIB, mode="reactive", pool_size=POOL_SIZE):
        assert torch.ones(3).sum() == 3


def test_a_pool_that_does_not_close_is_an_error_and_the_next_block_opens(pool, monkeypatch):
    options = dict(pool=pool, memory=MIB, mode="reactive", pool_size=POOL_SIZE)
    tide = tidelog.offload(**options)
    close = tide.session.close

    def closes_badly():
        close()
        raise tidelog.PoolError("a device failed the last flush")

    monkeypatch.setattr(tide.session, "close", closes_badly)
    with pytest.raises(tidelog.PoolError, match="the last flush"):
        with tide:
            assert torch.ones(3).sum() == 3
    with tidelog.offload(**options):
        assert torch.ones(3).sum() == 3
