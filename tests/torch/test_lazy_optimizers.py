"""Every class of torch.optim: its updates run late or early with the same bits, or in place, and it is said why."""

import inspect
import pathlib
import re

import pytest
import torch
from torch import nn

from tidelog.order import _element_wise
from tidetest.updates import BUDGET, LAZY_ALONE, WIDTH, compare

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "lazy-updates.md"

# Whatever this torch has.
CLASSES = {
    name: each
    for name, each in vars(torch.optim).items()
    if inspect.isclass(each) and issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer
}
LAZY = sorted(name for name in CLASSES if name in _element_wise.ELEMENT_WISE)

# What else may be said for each, where its class knows the word.
VARIANTS = {
    "plain": {},
    "decay": {"weight_decay": 0.02},
    "maximize": {"maximize": True, "weight_decay": 0.01},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "amsgrad": {"amsgrad": True},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "centered": {"centered": True, "momentum": 0.5},
    "decoupled": {"decoupled_weight_decay": True, "weight_decay": 0.1},
}


def knows(kind, extra):
    return extra.keys() <= inspect.signature(kind).parameters.keys()


CASES = [(name, variant) for name in LAZY for variant, extra in VARIANTS.items() if knows(CLASSES[name], extra)]


@pytest.mark.parametrize("name, variant", CASES)
def test_it_gives_the_same_bits(pool, name, variant):
    def make(parameters):
        return CLASSES[name](parameters, lr=0.01, **VARIANTS[variant])

    def scenario(program):
        program.steps(3)
        program.expect_pending(12)  # weights and biases: all
        program.steps(4)

    notices = compare(scenario, pool, optimizer=make)
    assert not [each for each in notices if "where they are called" in each]


@pytest.mark.parametrize("name, variant", CASES)
def test_it_gives_the_same_bits_early(pool, name, variant):
    def make(parameters):
        return CLASSES[name](parameters, lr=0.01, **VARIANTS[variant])

    def scenario(program):
        program.steps(2)
        for _ in range(4):
            program.optimizer.zero_grad()
            program.backward()
            program.expect_pending(12)
            program.optimizer.step()

    notices = compare(scenario, pool, optimizer=make, updates="early")
    assert not [each for each in notices if "where they are called" in each]


@LAZY_ALONE
@pytest.mark.parametrize("updates", ["lazy", "early"])
@pytest.mark.parametrize("name", sorted(CLASSES.keys() - set(LAZY)))
def test_any_other_runs_in_place_and_says_why(pool, name, updates):
    """Checks all other optimizers, also those of a torch that is not known here."""
    kind = CLASSES[name]
    if name == "Muon":
        make, model = kind, lambda: nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    else:
        make, model = kind, None

    def scenario(program):
        for _ in range(3):
            program.optimizer.zero_grad()
            if name == "SparseAdam":
                for each in program.model.parameters():
                    each.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, *each.shape[1:]), each.shape)
                program.optimizer.step()
            elif name == "LBFGS":
                program.optimizer.step(lambda: closure(program))
            else:
                program.step()
            assert not program.pending()

    def closure(program):
        program.optimizer.zero_grad()
        loss = program.model(program.x).square().mean()
        loss.backward()
        return loss

    notices = compare(
        scenario, pool, optimizer=make, model=model, expect_moved=False, memory=4 * BUDGET, updates=updates
    )
    (notice,) = [each for each in notices if name in each]
    assert _element_wise.OTHERS.get(name, "only classes of torch.optim") in notice


def test_the_documentation_has_every_class():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", DOCS.read_text(), re.MULTILINE))
    assert rows == {name: "lazy" if name in LAZY else f"in place: {_element_wise.OTHERS[name]}" for name in CLASSES}
