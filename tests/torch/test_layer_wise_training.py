"""tidelog.accumulate: the bits of a loop over micro-batches, in the ways in which models are trained."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest.micro_batches import (
    SMALL,
    WIDTH,
    assert_same_bits,
    gradients,
    loop,
    loss_of,
    rows,
    square,
    tokens,
    transformer,
)

GPT2 = {"n_embd": WIDTH, "n_layer": 3, "n_head": 4}


def block():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_activation_checkpointing_of_transformers(tied):
    assert_same_bits(transformer("llama", checkpointing=True, tie_word_embeddings=tied, **SMALL), tokens)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(4))
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.first(x)
        for each in self.layers:
            x = checkpoint(each, x.t().t() if each is self.layers[1] else x, use_reentrant=False)
        return x


def test_activation_checkpointing_around_blocks():
    assert_same_bits(Checkpointed(), rows, square)


@pytest.mark.parametrize("inside", [True, False], ids=["in the loss", "around the step"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_autocast(inside, tied, checkpointing):
    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, batch)

    model = transformer("gpt2", checkpointing=checkpointing, tie_word_embeddings=tied, **GPT2)
    around = None if inside else (lambda: torch.autocast("cpu", torch.bfloat16))
    assert_same_bits(model, tokens, loss if inside else loss_of, around=around)


def test_half_precision():
    assert_same_bits(transformer("llama", **SMALL).to(torch.bfloat16), tokens)


def test_frozen_parameters():
    model = transformer("llama", tie_word_embeddings=True, **SMALL)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name or "layers.2.mlp" in name)
    assert_same_bits(model, tokens)


class LowRank(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        self.down, self.up = nn.Linear(linear.in_features, 4, bias=False), nn.Linear(4, linear.out_features, bias=False)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_low_rank_adapters(checkpointing):
    model = transformer("llama", checkpointing=checkpointing, **SMALL).requires_grad_(False)
    model.enable_input_require_grads()  # the hidden state that comes to the first block is a leaf then
    for layer in model.model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
    assert_same_bits(model, tokens)


def test_gradients_of_steps_before():
    """Sums go on where there are gradients."""
    model = transformer("llama", **SMALL)
    other = copy.deepcopy(model)
    for begin in (0, 4):
        batches = [tokens(begin + number) for number in range(4)]
        loop(model, batches, loss_of)
        tidelog.accumulate(other, batches, loss_of)
    for (name, one), two in zip(gradients(model).items(), gradients(other).values()):
        assert torch.equal(one, two), name


def test_saved_tensors_hooks_and_default_devices_reach_micro_batches():
    packed = []

    def around():
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: packed.append(1) or tensor, lambda tensor: tensor
        )

    assert_same_bits(nn.Sequential(*(block() for _ in range(3))), rows, square, around=around)
    assert len(packed) > 0

    seen = []

    def loss(model, batch):
        seen.append((torch.zeros(()).device.type, torch.get_num_threads(), torch.is_grad_enabled()))
        return square(model, batch)

    with torch.device("cpu"):
        tidelog.accumulate(nn.Sequential(block(), block()), [rows(0), rows(1)], loss)
    assert seen == [("cpu", torch.get_num_threads(), True)] * 2


def test_blocks_that_are_compiled(compiled_once):
    def compiled():
        model = nn.Sequential(*(block() for _ in range(3)))
        for each in model:
            each.compile(backend="aot_eager")
        return model

    model, other = compiled(), compiled()
    other.load_state_dict(model.state_dict())
    batches = [rows(number) for number in range(3)]
    loop(model, batches, square)
    tidelog.accumulate(other, batches, square)
    for (name, one), two in zip(gradients(model).items(), gradients(other).values()):
        assert torch.equal(one, two), name


def test_named_blocks():
    """Blocks of one's own choice; what is not named belongs to the part around it."""
    model = nn.Sequential(*(block() for _ in range(6)))
    assert_same_bits(model, rows, square, blocks=lambda each: each[1::2])


def test_random_numbers_of_one_part():
    """Checks a model of which one part alone draws: each micro-batch draws its own in the program's order."""
    model = nn.Sequential(nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)), block(), block())
    other = copy.deepcopy(model)
    batches = [rows(number) for number in range(4)]
    torch.manual_seed(3)
    loop(model, batches, square)
    torch.manual_seed(3)
    tidelog.accumulate(other, batches, square)
    for (name, one), two in zip(gradients(model).items(), gradients(other).values()):
        assert torch.equal(one, two), name


def test_one_pass_after_the_other():
    """Checks that a pass leaves nothing behind: neither threads, nor tensors, nor what it replaced."""
    model = nn.Sequential(*(block() for _ in range(3)))
    before = threading.active_count()
    gc.collect()
    gc.disable()
    try:
        kept = []

        def loss(model, batch):
            x = model(batch)
            kept.append(weakref.ref(x))
            return x.square().mean()

        for _ in range(3):
            tidelog.accumulate(model, [rows(0), rows(1)], loss)
        assert [ref() for ref in kept] == [None] * 6
    finally:
        gc.enable()
    assert threading.active_count() == before
    assert "__call__" not in vars(nn.Sequential)


def test_a_loss_that_is_scaled():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)

    def loss(model, batch):
        return scaler.scale(square(model, batch))

    assert_same_bits(nn.Sequential(*(block() for _ in range(3))), rows, loss)
