"""A program whose tensors do not fit by less than one of them, under plans that move parts of tensors."""

import time

import torch

import tidelog
from tidelog.memory import _record
from tidetest import MIB

SIZE, COUNT = 8 * MIB, 4  # of the tensors: all but 3 MiB of them fit
STAGING, BUDGET = 1 * MIB, (SIZE * COUNT - 3 * MIB) + 1 * MIB
DEADLINE_SECONDS = 600


class Program:
    """Each step changes every tensor."""

    def __init__(self, device="cpu"):
        generator = torch.Generator().manual_seed(3)
        made = [torch.randn(SIZE // 4, generator=generator).to(device) for _ in range(COUNT)]
        self.tensors = torch.nn.ParameterList(made)
        self.device = device
        self.factors = []  # of all that was done: which tensor, and by what

    @torch.no_grad()
    def change(self, index, factor):
        self.tensors[index].mul_(factor)
        self.factors.append((index, factor))

    def step(self, is_enough=lambda: False):
        """Ends early where that says so."""
        for index in range(COUNT):
            self.change(index, 1 + (len(self.factors) * 7 % 21 - 10) * 1e-4)  # it grows and shrinks: there may be many
            if is_enough():
                return

    def sums(self):
        return [tensor.detach().double().sum().item() for tensor in self.tensors]


def plain(factors, device="cpu"):
    """Trains without Tidelog."""
    program = Program(device)
    for index, factor in factors:
        program.change(index, factor)
    return program


def expected(program):
    return plain(program.factors, program.device).sums()


def offload(program, pool, **options):
    options = {"parts": "best", "memory": BUDGET, "staging": STAGING, "pool_size": 256 * MIB, **options}
    return tidelog.offload(program.tensors, pool=pool, buffered=True, **options)


def step(tide, program):
    with tide.step():
        program.step()
    tide.await_plan()


def step_until_parts_move(tide, program):
    """Steps until the last one has followed a plan that moves parts."""
    until = time.monotonic() + DEADLINE_SECONDS
    while not tide.last_step()["fetches_of_parts"]:
        assert time.monotonic() < until, tide.stats()
        step(tide, program)


def in_memory(tensor):
    """The bytes of a tensor that are in memory, by its record."""
    record = tensor.untyped_storage()._tide
    return record.present if record.state & _record.OUT else record.size


def is_out_in_part(tensor):
    """Returns whether a part of it is out, and no other is on its way."""
    record = tensor.untyped_storage()._tide
    return record.state == _record.OUT and 0 < record.present < SIZE and not record.parted.moving


def out_in_part(tide, program):
    """A tensor of which a part is out. Parts that always moved alike would be one, so there is one after some op of
    a step; it is out still when that has ended there, unless it was on its way."""
    step_until_parts_move(tide, program)

    def found():
        tide.session.settle()
        return next(filter(is_out_in_part, program.tensors), None)

    until = time.monotonic() + DEADLINE_SECONDS
    while (tensor := found()) is None:
        assert time.monotonic() < until, tide.stats()
        with tide.step():
            program.step(lambda: found() is not None)
    return tensor
