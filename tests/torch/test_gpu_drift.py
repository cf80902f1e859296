"""A GPU's link to host memory that is slower than its plan was made for: the session plans again. The fake's clock says
how long copies take, however busy the machine is.
"""

import pytest
import torch

import tidelog
from tidetest import KIB, MIB
from tidetest.bits import assert_same, frozen
from tidetest.fake_cuda import FakeCuda

pytestmark = pytest.mark.host_memory("it brings a GPU of its own")

TENSORS, NUMBERS = 12, 256 * KIB  # of 1 MiB each
STEPS_MAX = 150
FIXED_NS, FAST, SLOW = 5000, 4000, 1600  # of a copy; bytes a microsecond


@pytest.fixture
def gpu(monkeypatch, tmp_path_factory):
    made = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed=1, laziness=0)
    yield made
    torch.cuda.synchronize()
    made.library.fake_clock(False, 5000, 50000)
    made.assert_lawful()


@pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning")
def test_a_link_to_host_memory_that_became_slower_is_planned_for(gpu, pool):
    gpu.library.fake_clock(True, FIXED_NS, FAST)
    gpu.hear_of_memory()
    tensors = [torch.full((NUMBERS,), float(number), device=gpu.device) for number in range(TENSORS)]
    steps = 0
    options = {"memory": 6 * MIB, "host_memory": 64 * MIB, "staging": 256 * KIB, "device": gpu.device}
    with tidelog.offload(pool=pool, pool_size=64 * MIB, **options) as tide:

        def until(done):
            nonlocal steps
            for _ in range(STEPS_MAX):
                with tide.step():
                    for each in tensors:
                        each.mul_(1.001)
                steps += 1
                tide.await_plan()
                if (plan := tide.stats()["plan"]) is not None and done(plan):
                    return plan
            raise AssertionError(f"{plan}, {tide.stats()['notices']}")

        first = until(lambda plan: True)
        before = rates(first)
        assert all(0.9 * FAST < rate <= FAST for rate in before), before
        gpu.library.fake_clock(True, FIXED_NS, SLOW)
        later = until(lambda plan: max(rates(plan)) < 0.6 * FAST)
        assert all(0.9 * SLOW < rate <= SLOW for rate in rates(later)), later
        assert later["replans"] >= 1
        assert any("planned again" in notice for notice in tide.stats()["notices"])
    tide.restore()
    gpu.guard.memory_end()
    for number, each in enumerate(tensors):
        expected = torch.full((NUMBERS,), float(number))
        for _ in range(steps):
            expected.mul_(1.001)
        assert_same(frozen(expected), frozen(each), f"tensor {number}")


def rates(plan):
    """The plan's rates from host memory, and to it, in bytes a microsecond."""
    return [plan[f"host_{which}_bytes_per_second"] / 1e6 for which in ("read", "write")]
