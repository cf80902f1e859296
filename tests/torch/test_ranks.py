"""Distributed programs on one pool: bit for bit what they are without a block, in 40 % of each rank's peak."""

import os
import random
import re
import signal
import time

import pytest

from conftest import MODES
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
    process.assert_all_done(started)


def variants():
    """Every way that there is; those that are not slow see each program once."""
    for size, parts in PARTS.items():
        for mode in MODES:
            usual = (mode == "auto") == (size == 2)
            for part in range(parts):
                yield pytest.param(size, mode, part, marks=[] if usual else pytest.mark.slow)


PARTS = {2: 4, 4: 2}  # of the programs of so many ranks, so that pytest's workers have work of the same length


@pytest.mark.parametrize(("size", "mode", "part"), variants())
def test_programs_have_the_same_bits(tmp_path, size, mode, part):
    run(size, tmp_path, mode, part, PARTS[size])


UPDATES = """
from tidetest import rank_updates
rank_updates.main(*sys.argv[1:])
"""


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("part", range(2))
def test_programs_with_updates_at_other_times_have_the_same_bits(tmp_path, mode, part, size):
    started = [process.start(UPDATES, rank, size, tmp_path, mode, part, 2) for rank in range(size)]
    process.assert_all_done(started)


ACCUMULATE = """
from tidetest import rank_accumulate
rank_accumulate.main(*sys.argv[1:])
"""


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("which", ["usual", pytest.param("more", marks=pytest.mark.slow)])
def test_micro_batches_that_pass_layer_by_layer_have_the_same_bits(tmp_path, which, size):
    started = [process.start(ACCUMULATE, rank, size, tmp_path, which) for rank in range(size)]
    process.assert_all_done(started)


RECOMPUTE = """
from tidetest import rank_recompute
rank_recompute.main(*sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("which", "size"),
    [
        ("ddp", 2),
        ("fsdp", 2),
        pytest.param("more", 2, marks=pytest.mark.slow),
        *(pytest.param(which, 4, marks=pytest.mark.slow) for which in ("ddp", "fsdp")),
    ],
)
def test_ranks_that_choose_other_regions_have_the_same_bits(tmp_path, which, size):
    started = [process.start(RECOMPUTE, rank, size, tmp_path, which) for rank in range(size)]
    process.assert_all_done(started)


CHANGE_LATE = """
from tidetest import rank_recompute
rank_recompute.change_late(*sys.argv[1:])
"""


def test_a_rank_that_changes_its_part_between_the_passes_is_an_error_on_all(tmp_path):
    started = [process.start(CHANGE_LATE, rank, 2, tmp_path) for rank in range(2)]
    process.assert_all_done(started)


HOOK = """
from tidetest import ranks
ranks.main_of_hook(*sys.argv[1:])
"""


@pytest.mark.parametrize(
    "name", ["allreduce", "fp16_compress", "bf16_compress", "wrapped_in_bf16", "powerSGD", "builtin_fp16"]
)
def test_communication_hooks_have_the_same_bits(tmp_path, mode, name):
    started = [process.start(HOOK, rank, 2, tmp_path, mode, name) for rank in range(2)]
    process.assert_all_done(started)


REDUCER = """
from tidetest import ranks
ranks.push_out_what_a_reducer_has(*sys.argv[1:])
"""


def test_integers_of_which_a_reducer_keeps_the_address_stay_where_they_are(tmp_path):
    process.assert_done(process.run(REDUCER, tmp_path))


FOR_EVER = """
from tidetest import ranks
ranks.train_for_ever(*sys.argv[1:])
"""


def assert_ended_by(ended, *words):
    process.assert_orderly(ended)
    assert ended.code == 1, ended
    last = ended.err.strip().splitlines()[-40:]
    assert any("RankError" in line and all(word in line for word in words) for line in last), ended.err


def test_an_error_of_one_rank_ends_all_by_that_error(tmp_path):
    started = [process.start(FOR_EVER, rank, 3, tmp_path, 1) for rank in range(3)]
    ended = process.finish_all(started)
    assert ended[1].code == 1 and "BudgetError: aten.zeros" in ended[1].err
    for rank in (0, 2):
        assert_ended_by(ended[rank], "rank 1 of 3 failed", "BudgetError: aten.zeros", "smallest budget that would do")


LIVE_ON = """
from tidetest import ranks
ranks.fail_and_live_on(*sys.argv[1:])
"""


def test_a_rank_that_fails_and_lives_on_ends_the_others_too(tmp_path):
    started = [process.start(LIVE_ON, rank, 2, tmp_path) for rank in range(2)]
    started[1].await_line("goes on")
    ended = started[0].finish()
    assert_ended_by(ended, "rank 1 of 2 failed", "BudgetError: aten.zeros")
    os.kill(started[1].pid, signal.SIGKILL)
    assert started[1].finish().code == -signal.SIGKILL, "it did not live on"


WHEN_PLANNED = """
from tidetest import ranks
ranks.print_when_planned(*sys.argv[1:])
"""


def test_all_ranks_begin_to_follow_their_plans_in_the_same_step(tmp_path):
    started = [process.start(WHEN_PLANNED, rank, 2, tmp_path) for rank in range(2)]
    ended = process.finish_all(started)
    for each in ended:
        process.assert_orderly(each)
    first = [re.search(r"^planned from (\d+)$", each.out, re.MULTILINE)[1] for each in ended]
    assert first[0] == first[1], ended


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 5))])
def test_a_rank_that_is_killed_ends_the_others_by_its_name(tmp_path, part):
    """Kills a rank, which harms nobody's share: all of them open again, and what was committed there before is intact.
    100 random points in all, from the moment on in which the ranks know each other.
    """
    choose, pool = random.Random(part), tmp_path / "pool"
    pool.mkdir()
    process.assert_done(process.run(KEEP, pool, 3))
    for attempt in range(25 if part else 3):
        size = 2 + attempt % 2
        folder = tmp_path / str(attempt)
        folder.mkdir()
        (folder / "pool").symlink_to(pool)
        started = [process.start(FOR_EVER, rank, size, folder) for rank in range(size)]
        for each in started:
            each.await_line("known")
        time.sleep(2.5 * choose.random())
        victim = choose.randrange(size)
        os.kill(started[victim].pid, signal.SIGKILL)
        ended = process.finish_all(started)  # long before torch's own time-out, which is half an hour
        assert ended[victim].code == -signal.SIGKILL
        for rank in set(range(size)) - {victim}:
            assert_ended_by(ended[rank], f"rank {victim} of {size}", str(started[victim].pid), "has ended")
    process.assert_done(process.run(FIND, pool, 3))


KEEP = """
from tidetest import durable
durable.keep(*sys.argv[1:])
print("done")
"""

FIND = """
from tidetest import durable
durable.find(*sys.argv[1:])
print("done")
"""
