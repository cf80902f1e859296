"""Plans that write tensors out while links are idle: these stay, and leave later without a write. What the program then
writes into one, in whatever way, is not lost: the bits are the plain program's.
"""

import concurrent.futures
import contextlib
import random

import pytest
import torch
from torch import nn

import tidelog
from tidetest import MIB
from tidetest.bits import bits
from tidetest.device import STAGING
from tidetest.fake_cuda import FakeCuda
from tidetest.lagging import Lagging

LAYERS, ROWS, WIDTH = 8, 4096, 64
SIZE = 4 * ROWS * WIDTH
BUDGET = 9 * SIZE + SIZE // 2  # of 16 at the peak
CLEANED, STEPS_MAX = 4, 60  # steps with such writes, and all until there have been as many


class Program:
    """A step that begins with layers that save as much as the weights are, in no time, and ends with updates of the
    weights, which are long, leave the link idle, and read all weights all the time.
    """

    def __init__(self, writes, seed=0):
        torch.manual_seed(seed)
        weights = (nn.Parameter(torch.randn(ROWS, WIDTH), requires_grad=False) for _ in range(LAYERS))
        self.weights = nn.ParameterList(weights)
        self.factor = torch.randn(4 * WIDTH, 4 * WIDTH)
        self.writes, self.random = writes, random.Random(seed)
        self.sums, self.tide = [], None

    def slow(self, tensors):
        """Reads tensors again and again, and takes long: none of them leaves and comes back meanwhile."""
        product = self.factor
        for _ in range(6):
            product = torch.tanh(self.factor @ product)
            norms = torch._foreach_norm(tensors)
        return product.sum() + norms[0]

    @torch.no_grad()
    def step(self, differs=False):
        saved = [torch.full((ROWS, WIDTH), float(number)) for number in range(LAYERS)]
        total = torch.zeros(())
        while saved:
            total = total + self.slow([saved.pop()[0]])
        for place in range(LAYERS):
            self.weights[place].add_(total * 1e-9)
            total = total + self.slow([each[0] for each in self.weights])
            if differs and self.random.random() < 1 / 4:
                self.random.choice(self.writes)(self, self.random.randrange(LAYERS))
        total = total + torch.stack(torch._foreach_norm(list(self.weights))).sum()
        self.sums.append(bits(total))

    def result(self):
        return self.sums, [bits(each) for each in self.weights]


older = concurrent.futures.ThreadPoolExecutor(1)
older.submit(int).result()


def in_a_thread(program, place):
    older.submit(program.weights[place].add_, 1).result()


def into_storage(program, place):
    program.weights[place].untyped_storage().copy_(torch.full((ROWS, WIDTH), 3.0).untyped_storage())


def moved_out(program, place):
    if program.tide is not None:
        program.tide.evict(program.weights[place])
    program.weights[place].add_(1)


def of_numpy(program, place):
    program.weights[place].numpy()[5] = 3.0


def replaced(program, place):
    program.weights[place] = nn.Parameter(torch.full((ROWS, WIDTH), 5.0), requires_grad=False)


def set_data(program, place):
    program.weights[place].data = program.weights[place].data * 2


WRITES = {
    "in place": lambda program, place: program.weights[place].add_(1),
    "a view": lambda program, place: program.weights[place][3:9].mul_(2),
    "out=": lambda program, place: torch.mul(program.weights[place], 1.5, out=program.weights[place]),
    "a list": lambda program, place: torch._foreach_add_([program.weights[place]], 1),
    "copy_": lambda program, place: program.weights[place].copy_(program.weights[0]),
    "a thread": in_a_thread,
    "a storage": into_storage,
    "moved out": moved_out,
    "replaced": replaced,
    "data": set_data,
}
ON_HOSTS = {"numpy": of_numpy}


@pytest.fixture(params=["host", "gpu"])
def place(request, monkeypatch, tmp_path_factory):
    """The options of a block in whose memory the program is."""
    if request.param == "host":
        yield {"memory": BUDGET + STAGING}
        return
    with contextlib.ExitStack() as modes:
        gpu = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), 3, 20)
        modes.enter_context(Lagging(gpu, monkeypatch))
        yield {"memory": BUDGET, "device": gpu.device}
        torch.cuda.synchronize()
    gpu.assert_lawful()


def compare(pool, options, writes):
    program, differ, cleaned = Program(writes), [], 0
    with tidelog.offload(program.weights, pool=pool, pool_size=256 * MIB, staging=STAGING, **options) as tide:
        program.tide = tide
        while cleaned < CLEANED:
            if len(differ) == STEPS_MAX:  # how fast disk and processor are decides whether such a plan is the best
                pytest.skip(f"{cleaned} of {STEPS_MAX} steps wrote what stays: {tide.stats()['plan']}")
            before = tide.stats()["cleanings"]
            # Each second step then writes into some weights what no step before did.
            differ.append(cleaned > 0 and not differ[-1])
            with tide.step():
                program.step(differ[-1])
            cleaned += tide.stats()["cleanings"] > before
        assert tide.stats()["totals"]["clean_drops"], "nothing left without a write"
        assert tide.peak_bytes <= tide.budget
        program.tide = None
    tide.restore()
    plain = Program(writes)
    for each in differ:
        plain.step(each)
    assert program.result() == plain.result()


def test_what_is_written_into_what_a_plan_has_written_out_is_kept(pool, place):
    writes = {**WRITES, **({} if "device" in place else ON_HOSTS)}
    compare(pool, place, [*writes.values()])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRITES, *ON_HOSTS])
def test_each_write_into_what_a_plan_has_written_out_is_kept(pool, place, name):
    if name in ON_HOSTS and "device" in place:
        pytest.skip("numpy has no address in a GPU's memory")
    compare(pool, place, [{**WRITES, **ON_HOSTS}[name]])
