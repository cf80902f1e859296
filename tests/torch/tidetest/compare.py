"""Runs one scenario twice, offloaded and plain, and compares everything it noted, bit for bit.

The two runs follow each other and never live at the same time: inside a block every tensor of the process
is offloaded, the plain run's too.
"""

import gc

from tidetest.bits import difference
from tidetest.world import Saved, World


def compare(scenario, pool, mode, *, seed=0, warm=True, optimizer=None, finish=True, device=None, **options):
    """`scenario(world)` is called in a warm block, and once more without a block. Returns the offloaded notes.

    In "auto" mode a warm block executes a plan. With `finish`, both runs train two steps more afterwards and
    everything they hold is compared: nothing that the scenario touched may have gone astray.
    """

    def act(world):
        scenario(world)
        if finish:
            world.steps(2)
            for name, value in world.result():
                world.note(f"at the end, {name}", value)

    off = World(seed, optimizer, device=device)
    with off.block(pool, mode, **options):
        warm_up_steps = off.warm_up(mode) if warm else 0
        act(off)
    got = off.notes
    del off
    gc.collect()
    got = [(label, note.loaded() if isinstance(note, Saved) else note) for label, note in got]

    plain = World(seed, optimizer, device=device)
    plain.steps(warm_up_steps)
    act(plain)
    expected = [(label, note.loaded() if isinstance(note, Saved) else note) for label, note in plain.notes]
    assert_same_notes(expected, got)
    return got


def assert_same_notes(expected, got):
    assert [label for label, _ in expected] == [label for label, _ in got], "the two runs noted different things"
    found = [difference(one, other, label) for (label, one), (_, other) in zip(expected, got)]
    found = [text for text in found if text]
    if found:
        raise AssertionError(f"{len(found)} of {len(got)} notes differ:\n" + "\n".join(found[:12]))
