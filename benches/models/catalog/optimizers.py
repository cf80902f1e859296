"""Every optimizer class of torch.optim, on one model. The compiled programs compile the optimizer's step, too."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from catalog import Training, program

WIDTH, LAYERS, ROWS, WORDS = 384, 8, 256, 4096


class Net(nn.Module):
    """Matrices and vectors."""

    def __init__(self, input: nn.Module) -> None:
        super().__init__()
        self.input = input
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: Any) -> Any:
        x = self.input(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def numbers() -> Any:
    random = torch.Generator().manual_seed(7)
    while True:
        yield torch.randn(ROWS, WIDTH, generator=random)


def words() -> Any:
    random = torch.Generator().manual_seed(7)
    while True:
        yield torch.randint(WORDS, (ROWS,), generator=random)


def loss(model: Any, batch: Any) -> Any:
    return model(batch).square().mean()


def on_numbers(kind: type[torch.optim.Optimizer], **options: Any) -> Training:
    model = Net(nn.Linear(WIDTH, WIDTH))
    return Training(model, kind(model.parameters(), **options), numbers(), loss, compiles_update=True)


class Muons(torch.optim.Muon):
    """Muon is for matrices: the vectors of the model stay as they are."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__([each for each in parameters if each.ndim == 2], **options)


def on_words() -> Training:
    """SparseAdam is for gradients that are sparse."""
    model = Net(nn.Embedding(WORDS, WIDTH, sparse=True))
    model.layers.requires_grad_(False)
    optimizer = torch.optim.SparseAdam(model.input.parameters(), lr=1e-3)
    return Training(model, optimizer, words(), loss)


def by_closures() -> Training:
    """LBFGS computes the loss several times in a step."""
    model = Net(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=3)
    return Training(model, optimizer, numbers(), loss, by_closures=True)


def classes() -> list[str]:
    """Returns the names of all optimizers of torch.optim."""
    found = (getattr(torch.optim, name) for name in dir(torch.optim))
    return sorted(
        {
            each.__name__
            for each in found
            if inspect.isclass(each) and issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer
        }
    )


def add(name: str) -> None:
    if name == "SparseAdam":
        make = on_words
    elif name == "LBFGS":
        make = by_closures
    else:
        kind = Muons if name == "Muon" else getattr(torch.optim, name)

        def make() -> Training:
            return on_numbers(kind, lr=1e-3)

    program(name, "optimizer", make)


for each in classes():
    add(each)
program("AdamW, foreach", "optimizer", lambda: on_numbers(torch.optim.AdamW, lr=1e-3, foreach=True))
program("AdamW, fused", "optimizer", lambda: on_numbers(torch.optim.AdamW, lr=1e-3, fused=True))
program("SGD, momentum, foreach", "optimizer", lambda: on_numbers(torch.optim.SGD, lr=1e-3, momentum=0.9, foreach=True))
