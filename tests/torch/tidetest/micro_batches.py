"""Programs with micro-batches, run twice: as a loop, and by tidelog.accumulate. Compared bit for bit."""

import contextlib
import copy
import threading

import pytest
import torch
from torch import nn

import tidelog
from tidetest.bits import assert_same, frozen

WIDTH, VOCABULARY = 32, 100
SMALL = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}


def transformer(kind, auto="CausalLM", checkpointing=False, dropout=0.0, **settings):
    """A small model of transformers, in training mode."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **{"vocab_size": VOCABULARY, **settings})
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, None if name != "pad_token_id" else 0)
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{auto}").from_config(config).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model


def tokens(number, count=8):
    """Returns the input of a language model: the same for each number."""
    ids = torch.randint(1, VOCABULARY, (2, count), generator=torch.Generator().manual_seed(number))
    return {"input_ids": ids, "labels": ids}


def rows(number, *shape):
    """A tensor, the same for each number."""
    return torch.randn(shape or (2, WIDTH), generator=torch.Generator().manual_seed(number))


def loss_of(model, batch):
    """Computes the loss as the loops of transformers do."""
    return model(**batch).loss / 4


def square(model, batch):
    """The loss of a model whose output is a tensor."""
    return model(batch).square().mean()


def loop(model, batches, loss):
    """Trains by the loop that accumulate() has to equal."""
    losses = []
    for batch in batches:
        value = loss(model, batch)
        value.backward()
        losses.append(value.detach())
    return losses


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def adamw(model):
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)


def assert_same_bits(model, batch_of, loss=loss_of, *, count=4, steps=2, blocks=None, make=adamw, around=None):
    """Two models that begin alike take steps: losses, gradients, buffers and parameters are the same all along.
    `blocks(model)`: the blocks to name; `around`: a context manager that is entered around each step."""
    other = copy.deepcopy(model)
    optimizers = make(model), make(other)
    for step in range(steps):
        batches = [batch_of(step * count + number) for number in range(count)]
        state = torch.get_rng_state()
        with around() if around else contextlib.nullcontext():
            expected = loop(model, batches, loss)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        with around() if around else contextlib.nullcontext():
            got = tidelog.accumulate(other, batches, loss, blocks=blocks and blocks(other))
        assert_same(frozen(expected), frozen(got), "losses")
        assert torch.equal(after, torch.get_rng_state()), "random state"
        assert_same(frozen(gradients(model)), frozen(gradients(other)), "gradients")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert_same(frozen(dict(model.state_dict())), frozen(dict(other.state_dict())), "parameters and buffers")


def a_block(*more):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), *more)


class Dropout(nn.Module):
    """Dropout module that does not look like one, so that nobody counts what it draws beforehand."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.5)


def chain(count=3, *more):
    return nn.Sequential(*(a_block(*more) for _ in range(count)))


def refused(model, text, loss=square, batches=None, blocks=None):
    """Checks a refusal, which leaves gradients and random state as they were."""
    batches = [rows(number) for number in range(3)] if batches is None else batches
    state = torch.get_rng_state()
    with pytest.raises(tidelog.OrderError, match=text):
        tidelog.accumulate(model, batches, loss, blocks=blocks)
    assert all(gradient is None for gradient in gradients(model).values())
    assert torch.equal(state, torch.get_rng_state())
    assert not any(thread.name.startswith("tidelog micro-batch") for thread in threading.enumerate())


class Loop(nn.Module):
    """The blocks, called as `forward(self, x)` says."""

    def __init__(self, forward, count=3):
        super().__init__()
        self.layers = nn.ModuleList(a_block() for _ in range(count))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.run = forward

    def forward(self, x):
        return self.run(self, x)
