"""Tests of the refusals of tidelog.accumulate, by name and before a gradient is changed: it would give other bits."""

import pytest
import torch
from torch import nn

import tidelog
from tidetest.micro_batches import Dropout, Loop, WIDTH, a_block, chain, gradients, refused, rows, square


# -- random numbers and other state ---------------------------------------------------------------


def test_dropout():
    refused(chain(3, Dropout()), "0 and 1 both draw random numbers.*dropout to 0")


def test_noise_that_cannot_be_counted():
    """torch keeps the second of two normal numbers, which no number of draws leads to."""

    class Noise(nn.Dropout):
        def forward(self, x):
            return x + torch.randn(3).sum()

    model = chain(3, Noise(0.5))
    tidelog.accumulate(model, [rows(0), rows(1)], square)  # the first pass, in the program's own order
    model.zero_grad()
    refused(model, "0 and 1 both draw random numbers")


def test_micro_batches_of_the_same_shapes_that_draw_differently():
    class Some(nn.Dropout):
        def forward(self, x):
            return super().forward(x[:, : int(x.sum().item() * 1e6) % 16 + 1]).sum() + x

    model = chain(3, Some(0.5))
    tidelog.accumulate(model, [rows(0), rows(1)], square)
    model.zero_grad()
    refused(model, "draws another number of random numbers", batches=[rows(number) for number in range(5, 8)])


def test_dropout_of_the_head_and_one_block():
    model = nn.Sequential(a_block(Dropout()), a_block(), nn.Sequential(nn.Linear(WIDTH, WIDTH), Dropout()))
    refused(model, "0 and 2 both draw")


def test_random_numbers_of_python_and_numpy():
    import random

    import numpy

    for draw in (random.random, numpy.random.random):
        model = Loop(lambda self, x: [x := x + layer(x) * draw() for layer in self.layers][-1])
        refused(model, "both draw random numbers")


def test_random_micro_batches_and_a_model_that_draws():
    model = nn.Sequential(a_block(Dropout()), a_block(), a_block())
    state = torch.get_rng_state()
    with pytest.raises(tidelog.OrderError, match="the micro-batches and 0 both draw"):
        tidelog.accumulate(model, (torch.randn(2, WIDTH) for _ in range(3)), square)
    assert torch.equal(state, torch.get_rng_state())


def test_a_backward_pass_that_draws():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient + torch.randn_like(gradient)

    model = Loop(lambda self, x: [x := Noisy.apply(layer(x)) for layer in self.layers][-1])
    with pytest.raises(tidelog.OrderError, match="backward pass draws random numbers"):
        tidelog.accumulate(model, [rows(0), rows(1)], square)
    assert all(gradient is None for gradient in gradients(model).values())


def test_a_buffer_that_two_blocks_change():
    norm = nn.BatchNorm1d(WIDTH)
    refused(
        nn.Sequential(*(a_block(norm) for _ in range(3))), "the buffer .* of 0.2 is changed at 0, and belongs to other"
    )

    def forward(self, x):
        for layer in self.layers:
            x = self.head(layer(x))
        return x

    model = Loop(forward)
    model.head = nn.BatchNorm1d(WIDTH)
    refused(model, "the buffer .* of head is changed at layers.0 and at layers.1")


def test_parameters_that_the_forward_pass_writes():
    def forward(self, x):
        with torch.no_grad():
            self.head.weight.mul_(0.5)
        return [x := layer(x) for layer in self.layers][-1]

    refused(Loop(forward), "writes to parameters")


class Reader(nn.Module):
    """Reads what the model keeps for its blocks."""

    def __init__(self, parent):
        super().__init__()
        self.linear, self.parent = nn.Linear(WIDTH, WIDTH), [parent]

    def forward(self, x):
        return self.linear(x) * self.parent[0].mask


class Masked(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.layers = nn.ModuleList(Reader(self) for _ in range(3))
        self.way = way
        if way == "buffer":
            self.register_buffer("mask", torch.ones(()))
        else:
            self.mask = torch.ones(()) if way == "tensor" else 1.0

    def forward(self, x):
        if self.way == "number":
            self.mask = x[0, 0].item()
        elif self.way == "written":
            self.mask = self.mask + 1
        else:
            self.mask = (x[0, 0] > 0).float()
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("way", ["buffer", "tensor", "number", "written"])
def test_what_a_model_keeps_for_its_blocks(way):
    """Each micro-batch overwrites it, before the others' blocks have read theirs."""
    refused(Masked(way), "the (buffer|attribute) mask of the model is changed.*Pass it|belongs to other blocks")


def test_a_module_of_several_blocks_that_keeps_something():
    class Counting(nn.Module):
        count = 0

        def forward(self, x):
            self.count += 1
            return x * self.count

    shared = Counting()
    refused(chain(3, shared), "the attribute count of 0.2 is changed")


# -- blocks ---------------------------------------------------------------------------------------


def test_no_blocks():
    refused(nn.Linear(WIDTH, WIDTH), "Linear has no list of blocks.*blocks=")


def test_blocks_that_are_never_called():
    refused(Loop(lambda self, x: self.head(x)), "layers.0 is not called")
    model = chain()
    refused(model, "Linear is not called", blocks=[*model, nn.Linear(WIDTH, WIDTH)])


def test_a_block_that_is_called_twice():
    refused(Loop(lambda self, x: [x := self.layers[0](x) for _ in range(3)][-1]), "layers.0 is called more than once")


def test_micro_batches_that_take_other_ways():
    def forward(self, x):
        for layer in self.layers[int(x[0, 0] > 0) :]:
            x = layer(x)
        return x

    a, b = torch.ones(2, WIDTH), -torch.ones(2, WIDTH)
    refused(Loop(forward), "micro-batch 1 comes to layers.0 where micro-batch 2 comes to layers.1", batches=[b, a])


def test_micro_batches_that_end_early():
    def forward(self, x):
        for layer in self.layers[: 3 - int(x[0, 0] > 0)]:
            x = layer(x)
        return x

    a, b = torch.ones(2, WIDTH), -torch.ones(2, WIDTH)
    refused(Loop(forward), "comes to layers.2 where micro-batch 2 comes to the end", batches=[b, a])
    refused(Loop(forward), "comes to the end where micro-batch 2 comes to layers.2", batches=[a, b])


def test_parameters_that_one_micro_batch_uses_elsewhere():
    def forward(self, x):
        y = self.head(x) if x[0, 0] > 0 else x
        for layer in self.layers:
            y = layer(y)
        return self.head(y)

    a, b = torch.ones(2, WIDTH), -torch.ones(2, WIDTH)
    refused(
        Loop(forward), "head.* is used at what comes before the first block, but not by micro-batch 2", batches=[a, b]
    )
