"""Distributed programs on one pool: bit for bit what they are without a block, in 40 % of each rank's peak."""

import itertools

import pytest

from conftest import MODES, MOVERS
from tidetest import device, process, ranks

pytestmark = [
    pytest.mark.host_memory(device.RANKS),
    pytest.mark.skipif(not ranks.dist.is_available(), reason="this torch has no torch.distributed"),
]

SCRIPT = """
from tidetest import ranks
ranks.main(*sys.argv[1:])
"""


def run(size, folder, *arguments):
    """Runs a program on `size` ranks. All end, whichever fails."""
    started = [process.start(SCRIPT, rank, size, folder, *arguments) for rank in range(size)]
    for ended in [each.finish(timeout_s=300) for each in started]:
        process.assert_done(ended)


def variants():
    """Every way that there is; those that are not slow see each program with both movers and both modes once."""
    for size in ranks.PROGRAMS:
        for mover, mode in itertools.product(MOVERS, MODES):
            usual = (mover == "swap") == (size == 2) and (mode == "auto") == (size == 2)
            yield pytest.param(size, mover, mode, marks=[] if usual else pytest.mark.slow)


@pytest.mark.parametrize(("size", "mover", "mode"), variants())
def test_programs_have_the_same_bits(tmp_path, size, mover, mode):
    run(size, tmp_path, mover, mode)
