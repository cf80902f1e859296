"""A training run that pauses, and what is in memory then."""

import random

import torch
from torch import nn

import tidelog
from tidetest import KIB, MIB
from tidetest.bits import frozen

WIDTH, LAYERS, ROWS = 192, 6, 64
STAGING = 256 * KIB
TENSORS = 2 * MIB  # of some 5 MiB that a step has at once
POINTS = ("before", "forward", "layer", "backward", "gradient", "step", "zeroed")


class Training:
    """`pause`: called at each point of a step, with its name."""

    def __init__(self, pause=lambda point: None):
        torch.manual_seed(3)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1)) for _ in range(LAYERS)]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.pause, self.losses = pause, []
        self.model[LAYERS // 2].register_forward_hook(lambda *_: self.pause("layer"))
        self.model[LAYERS // 2].register_full_backward_hook(lambda *_: self.pause("backward"))
        self.model[1][0].weight.register_hook(lambda _: self.pause("gradient"))

    def step(self):
        self.pause("before")
        x = torch.randn(ROWS, WIDTH)
        loss = self.model(x).square().mean()
        self.pause("forward")
        loss.backward()
        self.optimizer.step()
        self.pause("step")
        self.optimizer.zero_grad()
        self.pause("zeroed")
        self.losses.append(loss.item())

    def result(self):
        return frozen([self.losses, *self.model.parameters(), self.optimizer.state_dict()])


def plain(steps):
    """Trains without a block."""
    training = Training()
    for _ in range(steps):
        training.step()
    return training.result()


class AtRandom:
    """Pauses at random points of steps, `count` times, with `look` at what there is meanwhile."""

    def __init__(self, count, steps, look=lambda tide: None):
        self._random = random.Random(7)
        self.left = count
        self._calls_left = steps * len(POINTS)
        self._look = look
        self.tide = None
        self.points = set()

    def __call__(self, point):
        if self.tide is None:
            return
        # Each of the calls that are left is as likely.
        if self._random.random() * self._calls_left < self.left:
            self.left -= 1
            self.points.add(point)
            self.tide.pause()
            self._look(self.tide)
            self.tide.resume(at_once=self._random.random() < 0.5)
        self._calls_left -= 1


def offload(training, pool, **options):
    options = {"memory": TENSORS + STAGING, "staging": STAGING, "pool_size": 64 * MIB, **options}
    return tidelog.offload(training.model, training.optimizer, pool=pool, **options)
