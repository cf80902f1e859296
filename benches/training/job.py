"""Job of every contender: the demo's GPT, larger, with few tokens a step, so that bytes count beside kernels."""

import pathlib
import sys

import torch
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "demo"))
import gpt
from size import BATCH, LAYERS, WIDTH

LEARNING_RATE, WEIGHT_DECAY = 3e-4, 0.01
SEED = 27

gpt.WIDTH, gpt.LAYERS, gpt.HEADS, gpt.BATCH = WIDTH, LAYERS, WIDTH // 64, BATCH


def model():
    """Makes the model, with the same weights for all contenders."""
    torch.manual_seed(SEED)
    return gpt.GPT()


def optimizer(parameters):
    """AdamW as one fused kernel, torch's fastest on a CPU."""
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)


def steps(count, micro_batches):
    """The batches of each step."""
    data = list(gpt.batches(gpt.corpus(), count * micro_batches, SEED))
    return [data[first : first + micro_batches] for first in range(0, len(data), micro_batches)]


def loss_of(model, micro_batch):
    """The loss of one micro-batch."""
    inputs, targets = micro_batch
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train_step(model, optimizer, micro_batches):
    """The loop body as everybody writes it; returns the loss of the step."""
    total = 0.0
    for micro_batch in micro_batches:
        loss = loss_of(model, micro_batch) / len(micro_batches)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total
