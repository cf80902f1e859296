"""Storms: seeded random programs of touches, updates, deaths and evictions, each compared with its plain run."""

import random

import pytest
import torch

import tidelog
from tidetest import KIB
from tidetest.bits import assert_same
from tidetest.reads import READS
from tidetest.world import BUDGET, World
from tidetest.writes import ALIASES, WRITES

SEEDS = range(6)
OWNING_ALIASES = sorted(name for name in ALIASES if "ctypes" not in name)  # a raw address keeps nothing alive
QUIET_READS = sorted(set(READS) - {"storage_tolist", "tolist", "printing", "storage_iteration"})


def storm(seed, acts=60):
    """A scenario: the same draws in both runs, none of which depends on what is resident."""

    def scenario(world):
        chance = random.Random(seed)
        held = {"loose": world.loose}
        arrays = []

        def any_tensor():
            pool = {**world.tensors(), **held}
            return pool[chance.choice(sorted(pool))]

        for number in range(acts):
            act = chance.random()
            with torch.no_grad():
                if act < 0.18:
                    tensor = any_tensor()
                    if world.tide is not None:
                        try:
                            world.tide.evict(tensor)
                        except (tidelog.PinnedError, tidelog.UnmovableError):
                            pass
                elif act < 0.36:
                    name = chance.choice(QUIET_READS)
                    world.attempt(f"{number} {name}", READS[name], any_tensor())
                elif act < 0.50:
                    name = chance.choice(sorted(WRITES))
                    world.attempt(f"{number} {name}", WRITES[name], held[chance.choice(sorted(held))])
                elif act < 0.58:
                    held[f"held {number}"] = torch.randn(chance.choice([64, 128]), 64)
                elif act < 0.64:
                    name = chance.choice(sorted(held))
                    held[f"view {number}"] = held[name][:64] if held[name].dim() == 2 else held[name]
                elif act < 0.70 and len(held) > 2:
                    del held[chance.choice([name for name in sorted(held) if name != "loose"])]
                elif act < 0.73 and len(arrays) < 3:
                    name = chance.choice(OWNING_ALIASES)
                    arrays.append(ALIASES[name](held[chance.choice(sorted(held))]))
                    world.note(f"{number} {name}", arrays[-1])
                elif act < 0.76 and arrays:
                    arrays[chance.randrange(len(arrays))][0] = number
                elif act < 0.80:
                    world.note(f"{number} model", world.model.state_dict())
            if act >= 0.80:
                if act < 0.84:
                    with world.boundary():
                        world.first_half()
                elif act < 0.87:
                    world.x, world.y = world.x.roll(1, 0)[:31], world.y.roll(1, 0)[:31]
                    world.x, world.y = world.x.repeat(2, 1)[:32].clone(), world.y.repeat(2, 1)[:32].clone()
                else:
                    world.step()
            if number % 16 == 15:
                world.note(f"{number} held", {name: held[name] for name in sorted(held)})
                world.note(f"{number} arrays", list(arrays))
        world.note("held", {name: held[name] for name in sorted(held)})
        world.note("arrays", list(arrays))

    return scenario


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_of_touches_changes_no_bit(compare, seed):
    compare(storm(seed), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_longer_storms(compare, seed):
    # Three aliases may pin 96 KiB; beside them a read of the longest result (64 KiB) and its copy must fit.
    compare(storm(seed, acts=200), seed=seed, memory=BUDGET + 64 * KIB)


def test_storms_in_a_world_that_was_never_warm(compare):
    compare(storm(77), seed=77, warm=False)


def test_worlds_that_die_inside_the_block(pool, mode):
    """Several models come and go in one block; what one left must not reach another."""
    plain = []
    for seed in range(4):
        world = World(seed, layers=4)
        world.steps(2)
        plain.append(world.result())
        del world
    first = World(0, layers=4)
    with first.block(pool, mode) as tide:
        for seed in range(4):
            world = World(seed, layers=4)
            world.tide = tide
            world.steps(2)
            for (name, one), (_, other) in zip(plain[seed], world.result(), strict=True):
                assert_same(one, other, f"world {seed}: {name}")
            world.push_out(*world.tensors().values())
            del world
