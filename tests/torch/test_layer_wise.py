"""tidelog.accumulate: the bits of a loop over micro-batches, over many models."""

import pytest
import torch
from torch import nn

import tidelog
from tidetest.micro_batches import (
    SMALL,
    WIDTH,
    assert_same_bits,
    rows,
    square,
    tokens,
    transformer,
)

T5 = {
    "d_model": WIDTH,
    "d_ff": 64,
    "d_kv": 8,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}
MODELS = {
    "gpt2": {"n_embd": WIDTH, "n_layer": 3, "n_head": 4},
    "llama": SMALL,
    "qwen3": {**SMALL, "head_dim": 8, "num_key_value_heads": 2},
    "mixtral": {**SMALL, "num_local_experts": 4, "num_key_value_heads": 2},
    "gemma3_text": {**SMALL, "head_dim": 8, "num_key_value_heads": 2},
    "phi3": {**SMALL, "pad_token_id": 0},
    "mamba": {"hidden_size": WIDTH, "num_hidden_layers": 3, "state_size": 8},
}


# -- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", MODELS)
def test_language_models(kind, tied):
    assert_same_bits(transformer(kind, tie_word_embeddings=tied, **MODELS[kind]), tokens)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_any_number_of_micro_batches(count):
    assert_same_bits(transformer("llama", tie_word_embeddings=True, **SMALL), tokens, count=count)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_encoders_with_decoders(kind):
    """Checks encoders whose output goes to every block of the decoder; a T5's first blocks make the biases of all."""
    bart = {"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    bart |= {
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "decoder_start_token_id": 0,
        "dropout_rate": 0.0,
    }
    bart |= {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    model = transformer(kind, "Seq2SeqLM", **(T5 if kind == "t5" else bart))
    assert_same_bits(model, tokens)


def test_a_bert():
    def batch(number):
        return {**tokens(number), "labels": torch.tensor([0, 1])}

    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    assert_same_bits(transformer("bert", "SequenceClassification", **SMALL, **off), batch)


def test_a_vision_transformer():
    def batch(number):
        return {"pixel_values": rows(number, 2, 3, 8, 8), "labels": torch.tensor([0, 1])}

    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformer("vit", "ImageClassification", **SMALL, **off, image_size=8, patch_size=4)
    assert_same_bits(model, batch)


def test_torchs_own_encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0)
    assert_same_bits(
        nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), lambda number: rows(number, 5, 2, WIDTH), square
    )


def block():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def test_a_sequence_of_blocks():
    assert_same_bits(nn.Sequential(*(block() for _ in range(4))), rows, square)


def test_a_sequence_in_a_sequence():
    """The longest list is what counts, not the outermost."""
    model = nn.Sequential(block(), nn.Sequential(*(block() for _ in range(8))), nn.Linear(WIDTH, 3))
    assert len(tidelog.order._chains.Chain(model, None).blocks) == 10
    assert_same_bits(model, rows, square)


class Residual(nn.Module):
    """The sum with what a block gets is outside of the block, and all sums are used at the end."""

    def __init__(self, uses_all=False):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.uses_all = uses_all

    def forward(self, x):
        x = self.first(x)
        every = [x]
        for each in self.blocks:
            x = x + each(x) * x
            every.append(x)
        return self.last(torch.stack(every[:-1]).sum(0) + x if self.uses_all else x)


@pytest.mark.parametrize("uses_all", [False, True])
def test_sums_outside_of_blocks(uses_all):
    assert_same_bits(Residual(uses_all), rows, square)


class Views(nn.Module):
    """Model whose blocks pass a view, and one view to every block."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.blocks = nn.ModuleList(nn.Bilinear(WIDTH, WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        x, memory = self.first(x).chunk(2, dim=-1)
        for each in self.blocks:
            x = each(x, memory).t().t()
        return x


def test_views():
    assert_same_bits(Views(), rows, square)


class Nested(nn.Module):
    """Blocks with tuples, lists and dictionaries."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, state, *, sums):
            x, extra = state["x"], state["pair"][0]
            y = torch.tanh(self.linear(x)) + extra
            sums.append(y.mean())
            return {"x": y, "pair": (y * extra, [extra])}

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(self.Block() for _ in range(3))
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        state, sums = {"x": self.first(x), "pair": (self.first(x * 2), [])}, []
        for each in self.layers:
            state = each(state, sums=sums)
        return state["x"] * state["pair"][0] + sum(sums[:1])


def test_what_passes_in_lists_and_dictionaries():
    """The list of sums stays the caller's, and what is in it is cut where it is handed on."""
    assert_same_bits(Nested(), rows, square)


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)) for _ in range(3))

    def forward(self, x):
        for each in self.layers:
            x = each(x)
        return x


def test_buffers_that_each_micro_batch_changes():
    assert_same_bits(Norms(), rows, square)


class Tied(nn.Module):
    """A parameter of every block and of the head, used several times in each."""

    class Block(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight, self.linear = weight, nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return torch.tanh(self.linear(x) @ self.weight @ self.weight) + x @ self.weight

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.layers = nn.ModuleList(self.Block(self.weight) for _ in range(4))

    def forward(self, x):
        x = x @ self.weight + x.tanh() @ self.weight
        for each in self.layers:
            x = each(x)
        return x @ self.weight @ self.weight


def test_a_parameter_of_every_block():
    assert_same_bits(Tied(), rows, square)


def test_experts_that_a_micro_batch_does_not_use():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x):
            return x + self.experts[int(x.sum().item() > 0)](x)

    model = nn.Sequential(*(Experts() for _ in range(3)))
    assert_same_bits(model, rows, square)
    assert model[0].experts[2].weight.grad is None


class Forces(nn.Module):
    """A block that uses a gradient of its own, as models of energies do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        place = x.detach().clone().requires_grad_()
        (force,) = torch.autograd.grad(torch.tanh(self.linear(place)).sum(), place, create_graph=True)
        return x + force * x


def test_blocks_that_compute_gradients():
    assert_same_bits(nn.Sequential(*(Forces() for _ in range(3))), rows, square)
