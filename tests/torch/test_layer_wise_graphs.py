"""tidelog.accumulate over made-up models: what passes between blocks, how often it is used, what is shared. Each
gives the bits of the loop, or is refused."""

import random

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest.micro_batches import assert_same_bits, rows

SEEDS = 200
SIZE = 8


class Layer(nn.Module):
    """Takes any number of tensors, gives one or two; parameters may be other layers', too."""

    def __init__(self, plan, shared):
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.shared = [shared[index] for index in plan.sample(range(len(shared)), plan.randint(0, len(shared)))]
        self.ways = [plan.randrange(5) for _ in range(plan.randint(1, 5))]
        self.gives_two = plan.random() < 0.4
        self.memory = None

    def forward(self, *inputs, extra=None):
        x = inputs[0]
        for place, way in enumerate(self.ways):
            other = inputs[place % len(inputs)]
            if way == 0:
                x = x + torch.tanh(self.linear(other))
            elif way == 1 and self.shared:
                x = x @ self.shared[place % len(self.shared)] + other
            elif way == 2:
                x = x * other.sigmoid()
            elif way == 3 and extra:
                x = x + extra[place % len(extra)] * other
            else:
                x = nn.functional.layer_norm(x + other, (SIZE,))
        return (x, x.exp().clamp(max=2)) if self.gives_two else x


class Model(nn.Module):
    """Layers one after the other, each of which gets some of the tensors so far, in some way."""

    def __init__(self, seed):
        super().__init__()
        plan = random.Random(seed)
        self.shared = nn.ParameterList(nn.Parameter(torch.randn(SIZE, SIZE) / 3) for _ in range(plan.randint(0, 2)))
        self.layers = nn.ModuleList(Layer(plan, list(self.shared)) for _ in range(plan.randint(2, 6)))
        self.first, self.last = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.frozen = plan.random() < 0.2
        if self.frozen:
            self.first.requires_grad_(False)
        self.calls = [
            {
                "inputs": [plan.random() for _ in range(plan.randint(1, 3))],
                "extra": [plan.random() for _ in range(plan.randint(0, 2))],
                "view": plan.random() < 0.2,
                "adds": plan.random() < 0.4,
                "recomputes": plan.random() < 0.2,
                "between": plan.random() < 0.3,
            }
            for _ in self.layers
        ]
        self.at_end = [plan.random() for _ in range(plan.randint(0, 2))]
        self.ties = plan.random() < 0.5 and len(self.shared) > 0

    def forward(self, x):
        if self.ties:
            x = x @ self.shared[0] + x
        known = [self.first(x)]
        if not self.frozen:
            known.append(self.first(x).view(-1, SIZE).t().t())

        def some(shares):
            # The last one or two most often, and sometimes one from far back.
            return [known[-1 - int(share * share * len(known))] for share in shares]

        for layer, call in zip(self.layers, self.calls):
            inputs, extra = some(call["inputs"]), some(call["extra"])
            if call["view"]:
                inputs[0] = inputs[0].t().t()
            if call["recomputes"]:
                result = checkpoint(layer, *inputs, use_reentrant=False, extra=extra)
            else:
                result = layer(*inputs, extra=extra)
            for each in result if isinstance(result, tuple) else (result,):
                known.append(each + inputs[0] if call["adds"] else each)
            if call["between"]:
                known.append(known[-1] * known[-1].tanh() + known[-1])
        total = self.last(known[-1])
        for each in some(self.at_end):
            total = total + each
        return total @ self.shared[0] if self.ties else total


def loss_of(model, batch):
    return model(batch).square().mean()


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_the_bits_of_the_loop_or_a_refusal(first):
    refused = 0
    for seed in range(first, first + 20):
        torch.manual_seed(seed)
        model = Model(seed)
        try:
            assert_same_bits(model, lambda number: rows(number, 3, SIZE), loss_of, count=3, steps=2)
        except tidelog.OrderError as error:
            refused += 1
            assert "argument" in str(error) or "another order" in str(error), error
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert refused <= 16, "hardly anything is done at all"
