"""Tests of the conclusions of `make models`, without running its programs."""

import sys
from pathlib import Path

import pytest
import torch

FOLDER = str(Path(__file__).resolve().parents[2] / "benches" / "models")


@pytest.fixture(scope="module", autouse=True)
def harness():
    sys.path.insert(0, FOLDER)
    yield
    sys.path.remove(FOLDER)


PLAIN = {"digests": [("losses", "1"), ("parameter a", "2")], "graphs": 2, "breaks": 0, "kernels": 9}
BLOCK = {**PLAIN, "peak_bytes": 90, "evictions": 3, "notices": []}


@pytest.mark.parametrize(
    ("got", "verdict", "reason"),
    [
        (BLOCK, "same bits", None),
        ({**BLOCK, "digests": [("losses", "1"), ("parameter a", "3")]}, "other bits", "1 of 2 differ: parameter a"),
        ({**BLOCK, "digests": [("losses", "1")]}, "other bits", "0 of 1 differ: "),
        ({**BLOCK, "peak_bytes": 101}, "over budget", "101 bytes instead of 100"),
        ({**BLOCK, "kernels": 10}, "compiled otherwise", "10 kernels instead of 9"),
        ({**BLOCK, "evictions": 0}, "nothing moved", "the budget is enough"),
    ],
)
def test_every_difference_has_its_verdict(got, verdict, reason):
    import verdict as judge

    found = judge.of(PLAIN, got, 100)
    assert found["verdict"] == verdict and found.get("reason") == reason


def test_times_are_medians_of_steps_done_in_turn():
    import verdict as judge

    def block(seconds):
        return {"seconds": seconds, **dict.fromkeys(judge.FIGURES, 1)}

    pairs = [({"seconds": 1.0}, block(2.0)), ({"seconds": 2.0}, block(3.0)), ({"seconds": 9.0}, block(90.0))]
    assert judge.times(pairs)["ratio"] == 1.5


def test_there_are_sixty_programs_and_every_optimizer():
    from catalog import PROGRAMS

    assert len(PROGRAMS) >= 60
    kinds = {each.kind for each in PROGRAMS.values()}
    assert {"decoder", "encoder", "encoder-decoder", "mixture of experts", "vision", "audio", "diffusion"} < kinds
    assert {"state space, recurrent", "LoRA", "optimizer"} < kinds
    optimizers = [each for each in vars(torch.optim).values() if isinstance(each, type)]
    names = {each.__name__ for each in optimizers if issubclass(each, torch.optim.Optimizer)} - {"Optimizer"}
    assert names <= set(PROGRAMS) and len(names) >= 14
