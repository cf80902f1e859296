"""Each way into torch that reads a tensor sees the bytes of one that is out."""

import contextlib
import warnings

import pytest
import torch

import tidelog
from tidetest import device
from tidetest.bits import frozen, outcome
from tidetest.entry_points import COUNT, GROUPS, Inputs
from tidetest.world import World

pytestmark = [pytest.mark.host_memory("what it makes is on the host"), pytest.mark.filterwarnings("ignore")]

WAYS_OUTSIDE = 235  # so many were tried by somebody else before


def test_the_list_only_grows():
    assert COUNT >= 500 > WAYS_OUTSIDE


def seen(way, prepare=lambda inputs: None):
    """Returns the output of an entry point. Random numbers are the same each time."""
    inputs = Inputs()
    prepare(inputs)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        return frozen(outcome(way, inputs))


@pytest.mark.parametrize("name", GROUPS)
def test_an_entry_point_sees_the_bytes(pool, mode, name):
    expected = {label: seen(way) for label, way in GROUPS[name].items()}
    world = World()
    wrong = []
    with world.block(pool, mode, memory=device.budget(1 << 22)) as tide:
        world.steps(2)

        def push_out(inputs):
            for tensor in inputs.all():
                with contextlib.suppress(tidelog.PinnedError, tidelog.UnmovableError):
                    tide.evict(tensor)

        for label, way in GROUPS[name].items():
            found = seen(way, push_out)
            if found != expected[label]:
                wrong.append(f"{label}: {str(found)[:300]} in place of {str(expected[label])[:100]}")
        world.steps(1)
    assert not wrong, f"{len(wrong)} of {len(GROUPS[name])} ways:\n" + "\n".join(wrong)
