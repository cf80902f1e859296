"""Processes that end with tensors out: by their own exit code, without a crash, and the pool opens again."""

import os
import signal

import pytest

from tidetest import process
from tidetest.bits import assert_same
from tidetest.world import World

PREPARE = """
pool, mode = sys.argv[1:3]
world = World()
block = world.block(pool, mode)
tide = block.__enter__()
world.steps(4)
for tensor in (world.loose, world.subject("parameter"), world.subject("state")):
    world.push_out(tensor)
print("ready", flush=True)
"""

# How a process may end, and the exit code that plain Python gives it.
ENDINGS = {
    "falling off the end": ("print('last line')", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise ValueError('on purpose')", 1),
    "an exception inside a step": ("with tide.step():\n    world.first_half()\n    raise ValueError('on purpose')", 1),
    "os._exit": ("os._exit(5)", 5),
    "sys.exit inside a step": ("with tide.step():\n    world.first_half()\n    sys.exit(4)", 4),
    "sys.exit in a hook": (
        "world.model[2].register_forward_hook(lambda *_: sys.exit(6))\nwith tide.step():\n    world.first_half()",
        6,
    ),
    "everything deleted first": ("del world, tensor, tide, block\nimport gc\ngc.collect()", 0),
    "evictions just begun": ("for _ in range(3):\n    world.step()\nsys.exit(7)", 7),
    "touches in atexit": ("import atexit\natexit.register(lambda: print(len(repr(world.model.state_dict()))))", 0),
    "tensors in globals of a dying module": (
        "import types\nm = types.ModuleType('m')\nm.t = world.loose\nsys.modules['m'] = m",
        0,
    ),
    "reference cycles": ("world.me = world\nworld.x.keeps = world\ntide.keeps = tide", 0),
    "the block left properly": (
        "warnings.simplefilter('ignore')\nblock.__exit__(None, None, None)\nprint(world.tide is tide)",
        0,
    ),
}
MODES = ("reactive", "auto")


@pytest.mark.parametrize("ending", sorted(ENDINGS))
def test_a_process_ends_as_it_would_in_plain_python(pool, ending):
    script, code = ENDINGS[ending]
    mode = MODES[sorted(ENDINGS).index(ending) % 2]
    ended = process.run(PREPARE + script, pool, mode, whole_end=True)
    process.assert_orderly(ended)
    assert "ready" in ended.out and ended.code == code, ended
    if "exception" in ending:
        assert "ValueError: on purpose" in ended.err
    check_pool_opens(pool)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP], ids=lambda number: signal.Signals(number).name
)
def test_a_killed_process_leaves_a_pool_that_opens(pool, number):
    running = process.start(PREPARE + "world.steps(1_000_000)", pool, "auto")
    running.await_line("ready")
    os.kill(running.pid, number)
    assert running.finish().code == -number
    check_pool_opens(pool)


def check_pool_opens(pool):
    """The next run on the same pool is right from its first step."""
    world = World()
    with world.block(pool, "reactive", memory=1 << 26):
        world.steps(2)
        world.push_out(*world.tensors().values())
        got = world.result()
    plain = World()
    plain.steps(2)
    for (name, one), (_, other) in zip(plain.result(), got, strict=True):
        assert_same(one, other, name)
