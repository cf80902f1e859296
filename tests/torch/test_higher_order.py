"""Operators that call functions: torch.cond, while_loop, flex_attention, in programs that are not compiled."""

import warnings

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

import tidelog
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits

WIDTH = 64


def conditional(x, weight):
    return torch.cond(x.sum() > 0, lambda x, w: torch.tanh(x @ w), lambda x, w: torch.sigmoid(x @ w), (x, weight))


def attention(x, weight):
    with torch.no_grad():  # it has no backward pass on a processor
        heads = (x @ weight).reshape(1, 4, 16, 16)
        seen = flex_attention(heads, heads, heads, score_mod=lambda score, b, h, q, k: score + (q - k))
    return x @ weight + seen.reshape(x.shape)


def loop(x, weight):
    with torch.no_grad():
        count, scale = while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, torch.tanh(y @ y)), (torch.tensor(0), weight.detach() / 8)
        )
    return x @ (weight + scale * count)


def train(function, pool=None, mode="auto"):
    """The losses of a training of six such layers, and its parameters in the end."""
    torch.compiler.reset()
    torch.manual_seed(0)
    weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 8 for _ in range(6))
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    losses = []

    def step():
        optimizer.zero_grad()
        x = torch.randn(16, WIDTH)
        for weight in weights:
            x = function(x, weight)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    if pool is None:
        for _ in range(6):
            step()
        return losses, [bits(weight) for weight in weights]
    options = {"memory": 256 * KIB + 180 * KIB, "staging": 256 * KIB, "pool_size": 64 * MIB, "mode": mode}
    with warnings.catch_warnings(), tidelog.offload(weights, optimizer, pool=pool, **options) as tide:
        warnings.simplefilter("ignore")
        for _ in range(6):
            with tide.step():
                step()
            tide.await_plan()
        assert tide.stats()["evictions"] > 50
        assert tide.peak_bytes <= options["memory"]
        if mode == "auto":
            assert tide.phase == "planned"
        return losses, [bits(weight) for weight in weights]


@pytest.mark.parametrize("mode", ["reactive", "auto"])
@pytest.mark.parametrize("function", [conditional, attention, loop], ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_such_programs_have_the_bits_of_those_without_a_block(pool, function, mode):
    plain_losses, plain = train(function)
    losses, found = train(function, pool, mode)
    assert losses == plain_losses
    for at, (one, other) in enumerate(zip(plain, found, strict=True)):
        assert_same(one, other, f"weight {at}")
