"""Tests of what="activations": what forward passes save moves, and parameters, gradients and optimizer state stay."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest import KIB, MIB
from tidetest.bits import assert_same, frozen

WIDTH, LAYERS, ROWS = 128, 6, 512
STAGING = 256 * KIB
STAYS = 4 * LAYERS * WIDTH * (WIDTH + 1) * 4  # parameters, gradients, two states
# A step saves some 4 MiB for its backward pass.
OPTIONS = {"what": "activations", "memory": STAYS + 2 * MIB + STAGING, "staging": STAGING, "pool_size": 64 * MIB}
STEPS = 8


class Training:
    def __init__(self, runs_again=False):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1)) for _ in range(LAYERS)]
        self.model, self.runs_again = nn.Sequential(*layers), runs_again
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.losses = []

    def step(self):
        x = torch.randn(ROWS, WIDTH)
        for layer in self.model:
            x = checkpoint(layer, x, use_reentrant=False) if self.runs_again else layer(x)
        self.optimizer.zero_grad(set_to_none=False)
        x.square().mean().backward()
        self.optimizer.step()
        self.losses.append(x.detach().sum().item())

    def stays(self):
        """Returns the tensors that there are between two steps."""
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        parameters = [*self.model.parameters()]
        return [*parameters, *(each.grad for each in parameters), *states]

    def result(self):
        return frozen([self.losses, *self.stays()])


def plain(steps=STEPS, **options):
    training = Training(**options)
    for _ in range(steps):
        training.step()
    return training.result()


def only_saved(tide):
    """Returns whether nothing has left that a step changes. What is saved before a step was marked has no name for what
    it is.
    """
    written = tide.stats()["bytes_written"]
    return written["activation"] and not any(written[kind] for kind in ("parameter", "gradient", "optimizer state"))


@pytest.mark.parametrize("made_inside", [False, True])
def test_what_is_saved_moves_and_all_else_stays(pool, mode, made_inside):
    training = None if made_inside else Training()
    given = () if made_inside else (training.model, training.optimizer)
    with tidelog.offload(*given, pool=pool, mode=mode, **OPTIONS) as tide:
        training = training or Training()
        for _ in range(STEPS):
            training.step()
            assert all(map(tide.is_resident, training.stays()))
        stats = tide.stats()
        assert tide.peak_bytes <= tide.budget and stats["totals"]["evictions"] > LAYERS
        assert only_saved(tide), stats["bytes_written"]
        assert tide.phase == ("planned" if mode == "auto" else "reactive")
    assert_same(plain(), training.result(), "what was trained")


def test_regions_that_run_again_and_those_that_run_once(pool):
    expected = plain(runs_again=True)
    for recompute in ("own", "best"):
        training = Training(runs_again=True)
        with tidelog.offload(training.model, training.optimizer, pool=pool, recompute=recompute, **OPTIONS) as tide:
            for _ in range(STEPS):
                training.step()
            assert all(map(tide.is_resident, training.stays()))
        assert_same(expected, training.result(), recompute)


def test_it_goes_on_after_an_error_in_a_step_and_after_a_pause(pool):
    training = Training()
    with tidelog.offload(training.model, training.optimizer, pool=pool, **OPTIONS) as tide:
        for number in range(STEPS):
            if number == 3:
                training.optimizer.register_step_pre_hook(raises := Raises())
                with pytest.raises(ValueError, match="once"), tide.step():
                    training.step()
                assert raises.done
            with tide.step():
                training.step()
            if number == 5:
                evictions = tide.stats()["totals"]["evictions"]
                with tide.paused():
                    assert all(map(tide.is_resident, training.stays()))
        assert tide.stats()["totals"]["evictions"] > evictions + LAYERS and only_saved(tide)


class Raises:
    done = False

    def __call__(self, *_):
        if not self.done:
            self.done = True
            raise ValueError("once")


def test_a_budget_that_does_not_hold_what_stays_is_refused_by_its_name(pool):
    training = Training()
    options = {**OPTIONS, "memory": STAYS // 2 + STAGING}
    with (
        pytest.raises(tidelog.BudgetError, match='what="activations" leaves it'),
        tidelog.offload(training.model, training.optimizer, pool=pool, **options),
    ):
        training.step()


@pytest.mark.parametrize("options", [{"updates": "lazy"}, {"updates": "early"}, {"parts": "best"}])
def test_what_is_of_no_use_beside_it_is_refused(pool, options):
    with pytest.raises(tidelog.Error, match='is of no use with what="activations"'):
        tidelog.offload(pool=pool, memory="1GiB", what="activations", **options)
    with pytest.raises(tidelog.Error, match="what='gradients'"):
        tidelog.offload(pool=pool, memory="1GiB", what="gradients")
