"""Every way to modify a tensor that is out starts from its bytes, and what was written is never lost again."""

import pytest
import torch

import tidelog
from tidetest.world import World
from tidetest.writes import WRITES

SUBJECTS = ("parameter", "gradient", "state", "buffer", "loose", "view", "transposed")
PER_STEP = 8


def push_out_if_it_may_move(world, tensor):
    try:
        world.push_out(tensor)
    except tidelog.PinnedError as error:
        assert str(error)  # a touch that takes an address may pin; the error says so


def renew(tensor, number):
    """Known values again: many writes in a row would end in NaN, where every difference drowns."""
    with torch.no_grad():
        tensor.copy_(torch.linspace(-1, 1 + number / 50, tensor.numel()).view(tensor.shape))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_write_to_a_tensor_that_is_out_holds(compare, subject):
    def scenario(world):
        touches = sorted(WRITES)
        for first in range(0, len(touches), PER_STEP):
            with world.boundary():
                world.first_half()
                world.activation.sum().backward()  # the graph is done with: a write to a parameter is no error
                tensor = world.subject(subject)
                for number, touch in enumerate(touches[first : first + PER_STEP]):
                    renew(tensor, number)
                    push_out_if_it_may_move(world, tensor)
                    version = tensor._version
                    with torch.no_grad():
                        world.attempt(f"{touch} of the {subject}", WRITES[touch], tensor)
                    if touch != "foreach_in_place":  # under any dispatch mode torch counts no version for these
                        world.note(f"versions that {touch} took", tensor._version - version)
                    push_out_if_it_may_move(world, tensor)  # not seen since: the write itself must have marked it
                    world.note(f"the {subject} after {touch}", tensor)
                renew(tensor, 0)
                world.optimizer.step()

    compare(scenario)


def test_a_write_to_a_tensor_with_a_clean_copy_is_not_undone(compare):
    """A tensor that was fetched and only read has a valid copy in the pool. After a write it has not."""

    def scenario(world):
        for number, touch in enumerate(sorted(WRITES)):
            tensor = torch.empty(64, 64)
            renew(tensor, number)
            world.push_out(tensor)
            world.note("read", tensor.sum())  # back in memory, and clean
            with torch.no_grad():
                world.attempt(touch, WRITES[touch], tensor)
            push_out_if_it_may_move(world, tensor)
            world.note(f"after {touch}", tensor)
            push_out_if_it_may_move(world, tensor)
            world.note(f"once more after {touch}", tensor)

    compare(scenario)


def test_writes_show_in_the_views_and_in_the_base(compare):
    def scenario(world):
        for number, touch in enumerate(sorted(WRITES)):
            base = torch.empty(64, 64)
            renew(base, number)
            before = base[4:20]
            world.push_out(base)
            between = base[2:30].t()
            with torch.no_grad():
                world.attempt(f"{touch} of the base", WRITES[touch], base)
            push_out_if_it_may_move(world, before)
            world.note(f"view made before {touch}", before)
            world.note(f"view made while out, {touch}", between)
            renew(base, number)
            push_out_if_it_may_move(world, before)
            with torch.no_grad():
                world.attempt(f"{touch} of the view", WRITES[touch], before)
            push_out_if_it_may_move(world, before)
            world.note(f"base after {touch} of its view", base)

    compare(scenario)


def test_what_an_op_leaves_unfilled_stays_until_the_next_op(pool):
    """torch.tensor has an op make memory, and fills it in C++. With a plan, what it knows nothing of leaves first."""
    world = World()
    with world.block(pool, "auto"):
        world.warm_up("auto")
        kept = []
        for number in range(2000):
            base = torch.empty(64, 64)
            world.push_out(base)
            kept.append(torch.tensor([number, 1, 2]))
            kept.append(base)
            del kept[:-12]
            assert kept[-2].tolist() == [number, 1, 2]
