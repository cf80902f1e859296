"""Tests of steps that walk through the bridge in virtual time (tidetest.walk): a recorded trace, the real session,
executor, tier and arena, and a GPU that is not there."""

import pytest

from tidetest.walk import walked


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("walk")


def test_a_walk_takes_the_same_whatever_the_machine_does(folder):
    first, again = (walked("gpt-8", 50, folder, "--mode", "reactive", steps=2)["steps"][-1] for _ in range(2))
    assert abs(first["took_ns"] - again["took_ns"]) < first["took_ns"] / 50
    # The kernels of the trace, by the factor of the H200, and no step is shorter.
    assert first["kernels_ns"] == again["kernels_ns"] and abs(first["kernels_ns"] - 218_400_000) < 1_000_000
    assert first["took_ns"] > first["kernels_ns"] and first["requests"] > 100 and first["host_bytes"] > 1 << 30


@pytest.mark.slow
def test_a_planned_step_never_waits_for_all_that_the_gpu_does(folder):
    walk = walked("gpt-8", 50, folder, steps=9)
    steps = [step for step in walk["steps"] if step["phase"] == "planned"]
    assert len(steps) >= 3
    assert sum(step["drains"] for step in steps[-2:]) == 0
    for step in steps:
        causes = step["causes_ns"]
        assert sum(causes.values()) == step["told_ns"]
        assert abs(step["told_ns"] - step["took_ns"]) < step["took_ns"] / 50
        assert causes["kernels"] >= step["kernels_ns"]
    assert min(step["took_ns"] for step in steps) < 0.33e9


@pytest.mark.slow
def test_a_plan_is_made_for_the_times_of_kernels_alone(folder):
    """Kernels wait for memory that is copied out for longer than they run, in steps that are recorded."""
    walk = walked("llama3-8b-layers", 50, folder, steps=9)
    first, last = walk["steps"][0], walk["steps"][-1]
    assert last["phase"] == "planned" and first["took_ns"] > 3 * first["kernels_ns"]
    assert last["kernels_ns"] <= walk["plan"]["compute_ns"] < 1.1 * last["kernels_ns"]
    assert last["took_ns"] < 0.45e9
