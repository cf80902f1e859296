"""Power cuts of a run of two ranks at random moments: what was kept is whole, and the run goes on with its bits."""

import random
import subprocess
import sys

import pytest

import tidelog
from test_distributed_checkpoints import TRAIN, finished, found, start
from tidetest import MIB, power, process, resumable

pytestmark = pytest.mark.host_memory("its pool is a recorded file, and its ranks use gloo")

STEPS = 24
SHARES = 2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that came to its end: where it is, and what each rank printed."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "pool").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", f"{SHARES}")
        with tidelog.offload(pool=folder / "pool", pool_size=64 * MIB, memory=2 * MIB, staging=MIB, buffered=True):
            pass
    (file,) = (folder / "pool").iterdir()
    (folder / "begun").write_bytes(file.read_bytes())
    variables = process.environment(**power.recorded(folder / "pool", folder / "log"))
    script = f"import sys\n{TRAIN}"
    commands = [
        [sys.executable, "-c", script, f"{rank}", f"{SHARES}", folder, f"{STEPS}", "recorded"] for rank in (0, 1)
    ]
    ranks = [subprocess.Popen(each, env=variables, stdout=subprocess.PIPE, text=True) for each in commands]
    printed = [each.communicate(timeout=process.HANGS_SECONDS)[0] for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], printed
    yield folder, printed
    for path in (file, folder / "log", folder / "begun"):
        path.unlink()


def images_of(folder, count, seed, **options):
    """Images of moments at random: one half from when the pool was open on, the other close to a flush after the first
    checkpoint. With each come the notes up to it."""
    (file,) = (folder / "pool").iterdir()
    images, choose = power.Images(folder / "log", file, folder / "begun", **options), random.Random(seed)
    opened = max(index for index, text in images.notes() if text == "open")
    kept = min(index for index, text in images.notes() if text.startswith("kept"))
    flushes = [index for index in images.flushes() if index > kept + 1]
    close = [choose.choice(flushes) + choose.randrange(-1, 3) for _ in range(count - count // 2)]
    anywhere = [choose.randrange(opened, len(images.entries)) for _ in range(count // 2)]
    for cut in sorted([*anywhere, *close]):
        yield cut, images.cut(cut, choose), [text.split() for _, text in images.notes(cut)]


def put(image, folder):
    """A folder in which a run finds an image as its pool."""
    pool = folder / "pool"
    pool.mkdir(parents=True, exist_ok=True)
    (pool / "tidelog.device").write_bytes(image)
    return pool


def assert_kept(pool, notes):
    """Every checkpoint that had returned, and that nobody had begun to delete, is there whole."""
    kept = {int(said[1]) for said in notes if said[0] == "kept"}
    gone = {int(said[1]) for said in notes if said[0] == "deletes"}
    there = resumable.kept(pool)
    assert kept - gone <= set(there), (kept, gone, there)
    for share in range(SHARES):
        with tidelog.Checkpoints(pool, share=share, buffered=True) as checkpoints:
            for step in there:
                checkpoints.verify(f"step-{step} (part)")
    return there


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_a_run_goes_on_with_the_same_losses_after_a_power_cut(run, tmp_path, count):
    plain = tmp_path / "plain"
    plain.mkdir()
    expected = finished(start(TRAIN, SHARES, plain, STEPS, "plain"))
    recorded, printed = run
    assert [found("step", text) for text in printed] == [found("step", text) for text in expected]
    went_on = 0
    for cut, image, notes in images_of(recorded, count, seed=count):
        pool = put(image, tmp_path)
        there = assert_kept(pool, notes)
        went_on += bool(there)
        ended = finished(start(TRAIN, SHARES, tmp_path, STEPS, "block"))
        for rank, text in enumerate(ended):
            assert found("begins", text) == [f"{there[-1] if there else 0}"], cut
            losses = found("step", text)
            assert losses == found("step", expected[rank])[STEPS - len(losses) :], f"cut before entry {cut}"
            assert found("digest", text) == found("digest", expected[rank]), f"cut before entry {cut}"
    assert went_on >= count / 2


def test_a_disk_that_lies_about_flushes_is_found_out(run, tmp_path):
    """Checks the test itself: otherwise the images would show nothing."""
    lost = 0
    for _, image, notes in images_of(run[0], 8, seed=1, blind=True):
        try:
            assert_kept(put(image, tmp_path), notes)
        except (AssertionError, tidelog.Error):
            lost += 1
    assert lost > 0
