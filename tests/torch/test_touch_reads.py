"""Every way to read a tensor that is out shows the bytes it has, twice, and leaves them as they were."""

import pytest
import torch

import tidelog
from tidetest.reads import READS, READS_THAT_PIN
from tidetest.world import SUBJECTS, World

# Those that pin come last: afterwards the tensor stays.
IN_ORDER = sorted(READS, key=lambda touch: (touch in READS_THAT_PIN, touch))
PER_STEP = 8
BETWEEN_STEPS = {
    "tolist": lambda tensor: tensor.tolist(),
    "byte of the storage": lambda tensor: tensor.untyped_storage()[7],
}


def push_out_if_it_may_move(world, tensor):
    try:
        world.push_out(tensor)
    except tidelog.PinnedError as error:
        assert str(error)  # a touch that asks for an address may pin; the error says so


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_read_of_a_tensor_that_is_out_sees_its_bytes(compare, subject):
    """All reads of one subject, a few in the middle of each step."""

    def scenario(world):
        for first in range(0, len(IN_ORDER), PER_STEP):
            with world.boundary():
                world.first_half()
                tensor = world.subject(subject)
                for touch in IN_ORDER[first : first + PER_STEP]:
                    for time in ("first", "second"):
                        push_out_if_it_may_move(world, tensor)
                        with torch.no_grad():
                            world.attempt(f"{time} {touch}", READS[touch], tensor)
                    world.note(f"the {subject} after {touch}", tensor)
                world.second_half()

    compare(scenario)


def test_a_read_while_the_tensor_is_moving_sees_its_bytes(compare):
    """Reads tensors wherever the plan or the policy has the tensor at that moment."""

    def scenario(world):
        for number, touch in enumerate(IN_ORDER):
            subject = SUBJECTS[number % 6]
            with torch.no_grad():
                if number % 2:
                    world.first_half()
                world.attempt(f"{touch} of the {subject}", READS[touch], world.subject(subject))
            if number % 3 == 0:
                world.step()

    compare(scenario)


def test_reads_between_steps_find_what_they_brought_back(compare):
    """Reads tensors that the coming step does not use: each is the best victim for it once its read is over."""

    def scenario(world):
        for number in range(4):
            for name in ("parameter", "state", "gradient"):
                tensor = world.subject(name)
                with torch.no_grad():
                    for again in range(6):
                        for touch in BETWEEN_STEPS:
                            world.note(f"{touch} of the {name}, {number} {again}", BETWEEN_STEPS[touch](tensor))
                        world.loose @ world.loose
            world.step()

    compare(scenario)


def test_only_touches_that_hand_out_an_address_pin(pool):
    """A checkpoint, a print or an item() must not cost the ability to move the tensor for the rest of the run."""
    world = World()
    with world.block(pool, mode="reactive"):
        world.step()
        pinned = []
        for touch in sorted(set(READS) - READS_THAT_PIN):
            tensor = torch.randn(64, 64)
            world.push_out(tensor)
            with torch.no_grad():
                try:
                    READS[touch](tensor)
                except RuntimeError as error:
                    assert "tidelog" not in str(error), f"{touch}: {error}"
            try:
                world.push_out(tensor)
            except tidelog.PinnedError:
                pinned.append(touch)
        assert pinned == []
