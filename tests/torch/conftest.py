"""Fixtures: a pool of two directories, both modes, and one thread so that sums are repeatable.

`--device cuda` makes every tensor on a GPU, `--device fake` on one that is not there (tidetest.device).
"""

import functools
import gc
import importlib.util
import os
import sys
import zlib
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch starts its threads

_HERE = Path(__file__).resolve().parent
if importlib.util.find_spec("tidelog") is None:
    sys.path.insert(0, str(_HERE.parent.parent / "torch-bridge" / "python"))

import pytest  # noqa: E402
import torch  # noqa: E402

import tidelog  # noqa: E402
from tidelog.native import _built  # noqa: E402
import tidetest.compare  # noqa: E402
from tidetest import device, interpreted, plans, regions, world  # noqa: E402

torch.set_num_threads(1)


def pytest_collection_finish():
    what_is_there_lives_for_good()


@pytest.fixture(autouse=True, scope="module")
def late_imports_live_for_good():
    yield
    what_is_there_lives_for_good()


def what_is_there_lives_for_good():
    """Imports and the tests themselves. A collection for each test is cheap without them."""
    gc.collect()
    gc.freeze()


MODES = ("reactive", "auto")


def pytest_addoption(parser):
    parser.addoption("--device", choices=device.NAMES, default="cpu", help="what the touch suite's tensors are made on")
    parser.addoption("--host-memory", action="store_true", help="a GPU's tensors leave to host memory as well")
    parser.addoption(
        "--updates", choices=("own", "lazy", "host"), default="own", help="when its parameters are updated"
    )
    parser.addoption(
        "--allocator", choices=("torch", "arena"), default="torch", help="where a GPU's memory for tensors comes from"
    )
    parser.addoption("--recompute", choices=("own", "best"), default="own", help="best: with regions that run once")


def pytest_configure(config):
    device.name, device.updates = config.getoption("--device"), config.getoption("--updates")
    if device.name == "fake":
        os.environ |= interpreted.ENVIRONMENT
    torch.optim.AdamW([torch.zeros(1)])  # imports much at first use
    device.allocator = config.getoption("--allocator")
    device.recompute = config.getoption("--recompute")
    device.host_memory = device.HOST_MEMORY if config.getoption("--host-memory") else None
    if device.updates == "host":
        device.host_memory = 2 * device.HOST_MEMORY + (device.host_memory or 0)
    if not hasattr(config, "workerinput"):  # once, before any worker begins
        assert _built.build() == "", _built.build()


@pytest.hookimpl(tryfirst=True)  # before pytest looks which are slow
def pytest_collection_modifyitems(items):
    """Skips tests that cannot run on this device, each with its reason."""
    lacking = device.lacking()
    for item in items:
        if not is_usual(item):
            item.add_marker(pytest.mark.slow)
        on_host = item.get_closest_marker("host_memory")
        if lacking is not None:
            item.add_marker(pytest.mark.skip(reason=lacking))
        elif on_host is not None and not device.is_host():
            item.add_marker(pytest.mark.skip(reason=on_host.args[0]))


def is_usual(item):
    """Tells whether a mode of a test is its usual one. Which one differs from test to test, so that each is seen by
    half of the tests. The other is slow.
    """
    params = item.callspec.params if hasattr(item, "callspec") else {}
    mode = params.get("mode")
    chooses = any("mode" in mark.args[0] for mark in item.iter_markers("parametrize"))
    if mode is None or chooses:
        return True
    name = [item.originalname, *(part for part in item.callspec.id.split("-") if part != mode)]
    return mode == MODES[zlib.crc32("-".join(name).encode()) % 2]


@pytest.fixture(autouse=True)
def made_on(clean_slate, tmp_path_factory):
    """Prepares the device of tensors. The host's need nothing."""
    if device.is_host():
        yield
        return
    end = device.begin(tmp_path_factory.getbasetemp())
    yield
    end()


@pytest.fixture(autouse=True)
def clean_slate():
    """Every tensor of the process counts against a budget: none may be left over from another test."""
    torch.manual_seed(0)
    yield
    sys.last_type = sys.last_value = sys.last_traceback = None  # a failed test's frames would keep its tensors
    gc.collect()


@pytest.fixture(autouse=True)
def plans_are_awaited(monkeypatch):
    """Steps go on while a plan is made. Here each waits for it, so that which step follows the plan is no matter of
    luck.
    """
    monkeypatch.setattr(tidelog.Tide, "_end_step", plans.awaited(tidelog.Tide._end_step))


@pytest.fixture(autouse=True)
def regions_run_once(monkeypatch):
    """Runs all regions once with `--recompute best`, whatever the planner says."""
    if device.recompute == "best":
        regions.choosing(monkeypatch, range(world.LAYERS))


@pytest.fixture
def pool(tmp_path):
    """Two directories, in each of which Tidelog makes a file."""
    directories = [tmp_path / "ebb", tmp_path / "flow"]
    for directory in directories:
        directory.mkdir()
    yield ",".join(map(str, directories))
    for directory in directories:
        for file in directory.iterdir():
            file.unlink()  # pytest keeps the directories of several runs; pools are large


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture
def compare(pool, mode):
    """`compare(scenario)`: the scenario in a warm block gives the same bits as without one. See tidetest.compare."""
    return functools.partial(tidetest.compare.compare, pool=pool, mode=mode)


@pytest.fixture(scope="session")
def kernels_of_inductor(tmp_path_factory):
    """Kernels are compiled once for all tests, also of several workers of pytest. They are compiled in this process:
    inductor's workers would outlive it.
    """
    import torch._inductor.config

    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "inductor"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
        patch.setattr(torch._inductor.config, "compile_threads", 1)
        yield


@pytest.fixture
def compiled_once(kernels_of_inductor):
    """A test that compiles, and leaves nothing compiled behind."""
    yield
    torch._dynamo.reset()
