"""Tests of stats(), the report and the notices of a run, checked against what the test knows itself."""

import json
import os
import warnings

import pytest
import torch

import tidelog
from tidetest import KIB, MIB, device
from tidetest.bits import assert_same, bits
from tidetest.world import World

MATRIX = 64 * 64 * 4


def total(figures):
    """A figure by class is a dict of classes."""
    return sum(figures.values()) if isinstance(figures, dict) else figures


def test_a_clean_tensor_is_not_written_again(pool, mode):
    world = World()
    with world.block(pool, mode, memory=64 * MIB) as tide:
        world.warm_up(mode) if mode == "reactive" else world.steps(4)
        tensor = world.loose
        world.push_out(tensor)
        assert tensor.sum().isfinite()
        before = tide.stats()
        for _ in range(5):
            world.push_out(tensor)
            assert tensor.sum().isfinite()
        after = tide.stats()
        assert total(after["bytes_written"]) == total(before["bytes_written"])
        assert after["clean_drops"] >= before["clean_drops"] + 5
        assert total(after["bytes_read"]) >= total(before["bytes_read"]) + 5 * MATRIX
        tensor.add_(1)
        world.push_out(tensor)
        written = total(tide.stats()["bytes_written"]) - total(after["bytes_written"])
        assert MATRIX <= written <= 2 * MATRIX + 8 * KIB


def test_weights_are_written_at_most_once_per_optimizer_step(pool, mode):
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with world.block(pool, mode) as tide:
            world.warm_up(mode)
            sizes = sum(parameter.numel() * 4 for parameter in world.model.parameters())
            before = tide.stats()["bytes_written"]
            world.steps(5)
            after = tide.stats()["bytes_written"]
    assert isinstance(after, dict) and len(after) >= 3, after
    weights = [key for key in after if "weight" in key.lower() or "parameter" in key.lower()]
    assert len(weights) == 1, after
    assert after[weights[0]] - before.get(weights[0], 0) <= 6 * (sizes + len(list(world.model.parameters())) * 4 * KIB)


def test_weights_that_are_only_read_are_written_once(pool, mode):
    """Inference: after the first pass everything is clean, and no pass writes again."""
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with world.block(pool, mode) as tide:
            with torch.no_grad():
                for _ in range(4):
                    with tide.step():
                        world.model(world.x)
                before = total(tide.stats()["bytes_written"])
                for _ in range(5):
                    with tide.step():
                        world.model(world.x)
                after = tide.stats()
    passing = 5 * 8 * 4 * 64 * 32 * 4  # what lives during a pass and may move: its activations
    assert total(after["bytes_written"]) - before <= passing


def test_a_tensor_without_a_further_use_is_dropped_without_a_write(pool):
    world = World()
    with world.block(pool, "reactive", memory=64 * MIB) as tide:
        world.steps(2)
        before = total(tide.stats()["bytes_written"])
        for _ in range(50):
            torch.randn(64, 64).mul_(2)
        assert total(tide.stats()["bytes_written"]) == before


def test_figures_have_their_names_and_types(pool, mode):
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with world.block(pool, mode) as tide:
            world.warm_up(mode)
            world.steps(2)
            stats, last = tide.stats(), tide.last_step()
            for key in ("evictions", "fetches", "clean_drops", "stalls", "stall_ns"):
                assert isinstance(stats[key], int) and stats[key] >= 0, key
            assert stats["evictions"] > 0 and stats["fetches"] > 0
            assert total(stats["bytes_written"]) > 0 and total(stats["bytes_read"]) > 0
            assert all(isinstance(name, str) for name in stats["unmovable"])
            assert all(isinstance(notice, str) for notice in stats["notices"])
            assert last["seconds"] > 0
            assert 0 < tide.live_bytes <= tide.peak_bytes
            assert tide.budget == 480 * KIB
            assert tide.phase == ("reactive" if mode == "reactive" else "planned")


def test_the_trace_of_the_planned_step_is_written(pool, tmp_path):
    world, path = World(), tmp_path / "trace.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        with world.block(pool, "auto") as tide:
            with pytest.raises(tidelog.Error, match="no trace yet"):
                tide.trace(path)
            world.warm_up("auto")
            tide.trace(path)
            trace, plan = json.loads(path.read_text()), tide.stats()["plan"]
    assert trace["format"] == "tidelog-trace"
    assert len(trace["ops"]) == plan["ops"] and len(trace["storages"]) == plan["storages"]
    assert sum(op["duration_ns"] for op in trace["ops"]) == plan["compute_ns"]
    assert {"parameter", "gradient", "optimizer_state"} <= {storage["kind"] for storage in trace["storages"]}


def test_the_report_is_one_page_without_references(pool, mode, tmp_path):
    world = World()
    asked, at_the_end = tmp_path / "asked.html", tmp_path / "end.html"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with world.block(pool, mode, report=str(at_the_end)) as tide:
            world.warm_up(mode)
            world.steps(1)
            tide.report(str(asked))
            assert asked.read_text()
            world.steps(1)
    for file in (asked, at_the_end):
        text = file.read_text()
        assert "<html" in text and "<svg" in text, file
        assert (
            "http://" not in text.replace("http://www.w3.org", "") and "src=" not in text and "@import" not in text
        ), file
        assert "parameter" in text.lower() and "gradient" in text.lower()  # bytes by class


def test_a_changed_program_is_said_once(pool):
    """Changes the program by another batch size, an evaluation, a skipped update: right, reactive, and one notice each,
    not one per step.
    """
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with world.block(pool, "auto") as tide:
            count = world.warm_up("auto")
            known = len(tide.stats()["notices"])
            world.x, world.y = world.x[:16].clone(), world.y[:16].clone()
            world.steps(6)
            notices = tide.stats()["notices"]
            assert len(notices) > known, "a step that differs from the plan was not mentioned"
            assert len(notices) == len(set(notices)), notices
            assert len(notices) <= known + 6
            got = world.result()
    plain = World()
    plain.steps(count)
    plain.x, plain.y = plain.x[:16].clone(), plain.y[:16].clone()
    plain.steps(6)
    for (name, one), (_, other) in zip(plain.result(), got, strict=True):
        assert_same(one, other, name)


def test_an_op_that_was_not_planned_is_named(pool):
    world = World()
    with world.block(pool, "auto") as tide:
        world.warm_up("auto")
        for _ in range(2):
            with world.boundary():
                world.x.cos()
                world.first_half()
                world.second_half()
        (notice,) = [notice for notice in tide.stats()["notices"] if "left the plan" in notice]
        assert "aten.cos" in notice and "the op waited" in notice, notice


def evaluated(world):
    with torch.no_grad():
        world.model(world.x[:8]).sum().item()


def looked_at(world):
    assert sum(parameter.norm() for parameter in world.model.parameters()).isfinite()


def raised(world):
    with pytest.raises(ZeroDivisionError), world.boundary():
        world.x.cos()
        raise ZeroDivisionError


@pytest.mark.parametrize("after", [evaluated, looked_at])
def test_what_comes_after_the_last_step_of_a_loop_is_no_step_that_left_the_plan(pool, after):
    """A loop that does not mark its steps: what follows the last one is in a step that never ends."""
    world = World()
    with world.block(pool, mode="auto") as tide:
        for _ in range(9):
            world.first_half()
            world.second_half()
        assert tide.phase == "planned"
        world.x.cos()
        after(world)
    assert not [notice for notice in tide.stats()["notices"] if "left the plan" in notice and "aten" in notice]


def test_a_step_that_an_error_ended_is_none_either(pool):
    world = World()
    with world.block(pool, mode="auto") as tide:
        world.warm_up("auto")
        raised(world)
        world.steps(1)
        assert not [notice for notice in tide.stats()["notices"] if "left the plan" in notice]


@pytest.mark.parametrize("spare", [0, 1])
def test_torch_threads_that_leave_no_core_are_told_of(pool, spare):
    threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    if not device.is_host() or cores <= spare:
        pytest.skip("a GPU computes" if not device.is_host() else "there is one core")
    world = World()
    torch.set_num_threads(cores - spare)
    try:
        with world.block(pool, "auto") as tide:
            world.warm_up("auto")
            told = [notice for notice in tide.stats()["notices"] if f"on {cores} cores" in notice]
    finally:
        torch.set_num_threads(threads)
    assert len(told) == 1 - spare, told


@pytest.mark.parametrize(
    "change", ["batch size", "skipped update", "evaluation", "frozen layer", "longer model", "two in one"]
)
def test_a_planned_run_whose_steps_change_stays_right(compare, change):
    def scenario(world):
        for number in range(4):
            with world.boundary():
                if change == "batch size" and number % 2:
                    world.x, world.y = world.x[: 24 - number].clone(), world.y[: 24 - number].clone()
                if change == "frozen layer":
                    world.model[number].requires_grad_(False)
                if change == "longer model" and number == 1:
                    world.model.append(torch.nn.Linear(64, 64))
                world.first_half()
                if change == "evaluation":
                    with torch.no_grad():
                        world.note("evaluation", world.model(world.x))
                if change == "skipped update" and number % 2:
                    ((world.activation - world.y) ** 2).mean().backward()
                    continue
                world.second_half()
                if change == "two in one" and number == 2:
                    world.first_half()
                    world.second_half()
        world.note("parameters", [bits(parameter) for parameter in world.model.parameters()])

    compare(scenario)


def test_a_plan_s_machine_is_assumed_on_files_until_it_is_measured(pool):
    """A file on a file system has no link that the kernel could tell of."""
    with tidelog.offload(pool=pool, memory=8 * MIB, staging=MIB, mode="reactive", pool_size=128 * MIB) as tide:
        assert tide.stats()["machine"] == {
            "ssd": dict.fromkeys(("read", "write"), {"bytes_per_second": 1_000_000_000, "from": "assumed"}),
            "host": None,
            "links": [],
        }
        tensors = [torch.ones(MIB) for _ in range(8)]  # of 4 MiB: most of them had to leave
        rates = tide.stats()["machine"]["ssd"]
        assert rates["write"]["from"] == "measured" and rates["read"]["from"] == "assumed"
        del tensors


@pytest.mark.parametrize("sparse", [False, True])
def test_a_pool_that_is_made_has_its_space_unless_it_shall_be_sparse(tmp_path, sparse):
    with tidelog.offload(pool=tmp_path, memory=4 * MIB, staging=MIB, pool_size=64 * MIB, sparse=sparse):
        pass
    stored = (tmp_path / "tidelog.device").stat().st_blocks * 512
    assert (stored < 32 * MIB) == sparse, stored


def test_a_pool_that_was_made_is_told_and_one_that_must_exist_is_not_made(tmp_path, caplog):
    """An SSD that is not mounted leaves an empty directory, in which a pool was made in silence."""
    options = dict(pool=str(tmp_path), memory=8 * MIB, staging=MIB, mode="reactive", pool_size=64 * MIB)
    with pytest.raises(tidelog.PoolError, match="mount its file system"):
        with tidelog.offload(**options, must_exist=True):
            pass
    assert list(tmp_path.iterdir()) == [] and caplog.records == []
    with tidelog.offload(**options) as tide:
        assert str(tmp_path) in tide.stats()["made"]
    told = [record.getMessage() for record in caplog.records if record.name == "tidelog"]
    assert len(told) == 1 and str(tmp_path) in told[0] and "must_exist" in told[0]
    with tidelog.offload(**options, must_exist=True) as tide:
        assert tide.stats()["made"] is None
    assert len(caplog.records) == len(told)


def test_slices_of_storages_that_were_pinned_in_the_quiet_count_once(pool):
    """Checks storages that were pinned in the quiet, when a storage has no number yet: the addresses of all that were
    pinned stood in one place.
    """
    with tidelog.offload(pool=pool, memory=64 * MIB, staging=MIB, mode="reactive", pool_size=64 * MIB) as tide:
        tensors = [torch.ones(MIB) for _ in range(2)]
        slices = [tensor.untyped_storage()[: 64 * KIB] for tensor in tensors]
        other = torch.ones(MIB)
        tide.evict(other)  # the quiet is over
        before = tide.live_bytes
        views = [torch.empty(0, dtype=torch.uint8).set_(part) for part in slices]
        assert tide.live_bytes == before and len(views) == 2
        with pytest.raises(tidelog.PinnedError):
            tide.evict(tensors[0])
