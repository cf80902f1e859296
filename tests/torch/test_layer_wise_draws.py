"""tidelog.accumulate with dropout: each micro-batch draws the numbers that it draws in the loop."""

import copy

import pytest
import torch
from torch import nn

import tidelog
from tidetest.micro_batches import (
    SMALL,
    WIDTH,
    assert_same_bits,
    gradients,
    loop,
    rows,
    square,
    tokens,
    transformer,
)

GPT2 = {"n_embd": WIDTH, "n_layer": 3, "n_head": 4}
T5 = {"d_model": WIDTH, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_gpt2(tied, checkpointing):
    model = transformer("gpt2", dropout=0.1, checkpointing=checkpointing, tie_word_embeddings=tied, **GPT2)
    assert_same_bits(model, tokens, steps=4)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_t5(implementation):
    model = transformer("t5", "Seq2SeqLM", dropout=0.1, **T5)
    model.set_attn_implementation(implementation)
    assert_same_bits(model, tokens, steps=3)


def test_a_bert():
    def batch(number):
        return {**tokens(number), "labels": torch.tensor([0, 1])}

    assert_same_bits(transformer("bert", "SequenceClassification", dropout=0.1, **SMALL), batch, steps=3)


def test_torchs_own_encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.2)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    assert_same_bits(model, lambda number: rows(number, 5, 2, WIDTH), square, steps=3)


def chain():
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Tanh(), nn.AlphaDropout(0.2)) for _ in range(4))
    )


@pytest.mark.parametrize("count", [2, 3, 8])
def test_any_number_of_micro_batches(count):
    assert_same_bits(chain(), rows, square, count=count, steps=3)


def test_micro_batches_of_several_shapes():
    """Checks shapes: a new one runs in the program's own order once."""
    assert_same_bits(chain(), lambda number: rows(number, 2 + number % 5, WIDTH), square, count=3, steps=8)


def test_autocast():
    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return square(model, batch)

    assert_same_bits(chain(), rows, loss, steps=3)


def test_dropout_that_is_switched_on_and_off():
    model = chain()
    other = copy.deepcopy(model)
    for step, (training, p) in enumerate(
        [(True, 0.5)] * 2 + [(False, 0.5)] * 2 + [(True, 0.5), (True, 0.0), (True, 0.0)]
    ):
        batches = [rows(3 * step + number) for number in range(3)]
        for each in (model, other):
            each.train(training)
            each[1][1].p = p
            torch.manual_seed(step)
            (loop if each is model else tidelog.accumulate)(each, batches, square)
        for (name, one), two in zip(gradients(model).items(), gradients(other).values()):
            assert torch.equal(one, two), (step, name)


class MadeUpGenerator:
    """Generator of a GPU that is not there, whose numbers are a function of a seed and a place."""

    def __init__(self):
        self.seed, self.place = 1, 0

    def initial_seed(self):
        return self.seed

    def manual_seed(self, seed):
        self.seed, self.place = seed, 0

    def get_offset(self):
        return self.place

    def set_offset(self, place):
        assert place % 4 == 0
        self.place = place

    def draw(self, shape):
        numbers = torch.rand(shape, generator=torch.Generator().manual_seed(1000 * self.seed + self.place))
        self.place += 4 * -(-numbers.numel() // 16)
        return numbers


class DropoutOnGpu(nn.Module):
    def __init__(self, generator):
        super().__init__()
        self.p, self._generator = 0.5, generator

    def forward(self, x):
        return x * (self._generator.draw(x.shape) > self.p)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside the host's"])
def test_dropout_on_a_gpu(monkeypatch, beside):
    """Checks places in the sequence of a GPU's numbers: each micro-batch begins where the loop has it begin."""
    generator = MadeUpGenerator()
    for name, value in {"is_initialized": lambda: True, "current_stream": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,), raising=False)
    more = [nn.Dropout(0.5)] if beside else []
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), DropoutOnGpu(generator), *more) for _ in range(3)))
    other = copy.deepcopy(model)
    for each in other:
        each[1]._generator = generator
    for step in range(5):
        batches = [rows(3 * step + number, 2 + (step + number) % 3, WIDTH) for number in range(3)]
        after = []
        for each, train in ((model, loop), (other, tidelog.accumulate)):
            generator.manual_seed(step)
            torch.manual_seed(step)
            train(each, batches, square)
            after.append((generator.place, torch.get_rng_state().tolist()))
        assert after[0] == after[1] and after[0][0] > 0, step
        for (name, one), two in zip(gradients(model).items(), gradients(other).values()):
            assert torch.equal(one, two), (step, name)
