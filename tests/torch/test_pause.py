"""Pauses: all that a block moves is out, its memory is others', whoever touches it is told, and the program goes on
with the same bits.
"""

import contextlib
import copy
import gc
import io
import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

import tidelog
from tidelog.memory._heap import anonymous_bytes
from tidelog.memory._record import LEAVING
from tidetest import MIB, process
from tidetest.bits import assert_same, frozen
from tidetest.fake_allocator import Allocating
from tidetest.fake_cuda import FakeCuda
from tidetest.pausing import LAYERS, POINTS, STAGING, TENSORS, WIDTH, AtRandom, Training, offload, plain

pytestmark = pytest.mark.host_memory("it brings a GPU of its own")

PAUSES, STEPS = 100, 60
# Of what was there before: what Python keeps of a step, and what the heap has in pieces.
TOLERATED = 1.01


def names_the_pause(name=""):
    return pytest.raises((tidelog.PausedError, RuntimeError), match=f"{name}.*paused: call resume")


@contextlib.contextmanager
def paused(pool, **options):
    """A block in which some steps have run, paused."""
    training = Training()
    with offload(training, pool, **options) as tide:
        for _ in range(2):
            training.step()
        with tide.paused():
            yield tide, training


# -- the same bits, and memory that is others' ------------------------------------------------------


def test_a_hundred_pauses_at_random_points_of_steps(pool, mode):
    """The process holds what it held before the block, on the host."""
    expected = plain(STEPS)
    gc.collect()
    before, seen = anonymous_bytes(), []

    def look(tide):
        assert tide.live_bytes == STAGING, tide.stats()["unmovable"]
        seen.append(anonymous_bytes())

    pauses = AtRandom(PAUSES, STEPS, look)
    training = Training(pauses)
    with offload(training, pool, mode=mode) as pauses.tide:
        for _ in range(STEPS):
            with pauses.tide.step():
                training.step()
        stats = pauses.tide.stats()
        assert pauses.tide.phase == ("planned" if mode == "auto" else "reactive")
        assert not any("left the plan" in notice for notice in stats["notices"]), stats["notices"]
        pauses.tide.restore()
        found = training.result()
    assert_same(expected, found, "what was trained")
    assert stats["pauses"]["count"] == PAUSES and pauses.points == set(POINTS)
    assert max(seen) <= before * TOLERATED, f"{max(seen)} bytes in a pause, {before} before the block"


@pytest.fixture
def card(monkeypatch, tmp_path_factory):
    """The fake, whose tensors take their memory from a pool as torch's allocator has one."""
    made = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed=3, laziness=1)
    made.allocating = Allocating(made.pool, made.guard, monkeypatch)
    with made.allocating:
        yield made
        gc.collect()
        made.assert_lawful()


@pytest.mark.parametrize("options", [{}, {"host_memory": MIB}, {"host_memory": 64 * MIB, "updates": "lazy"}])
def test_a_hundred_pauses_with_the_memory_of_a_gpu(card, pool, options):
    expected = plain(STEPS)
    gc.collect()
    card.allocating._clear_workspace()
    card.pool.empty()
    before, seen = card.pool.reserved, []
    pauses = AtRandom(PAUSES, STEPS, lambda _: seen.append(card.pool.reserved))
    with offload(training := Training(pauses), pool, device="cpu", memory=TENSORS, **options) as pauses.tide:
        for _ in range(STEPS):
            training.step()
        stats = pauses.tide.stats()
        pauses.tide.restore()
        found = training.result()
    assert_same(expected, found, "what was trained")
    assert len(seen) == PAUSES and max(seen) <= before * TOLERATED, (max(seen), before)
    assert stats["host_memory"] is None or stats["totals"]["bytes_to_host"] > 0


def test_parts_of_a_gpus_memory_go_as_well(monkeypatch, tmp_path_factory, pool):
    from tidetest import parting

    gpu = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed=5, laziness=3)
    program = parting.Program()
    with parting.offload(program, pool, device="cpu", memory=parting.BUDGET - parting.STAGING) as tide:
        parting.step_until_parts_move(tide, program)
        assert gpu.mapped_bytes() > 0
        for _ in range(5):
            with tide.paused():
                assert gpu.mapped_bytes() == 0
            parting.step(tide, program)
        tide.restore()
        assert program.sums() == parting.expected(program)
    del program
    gc.collect()
    gpu.assert_lawful()


def test_parts_of_the_hosts_memory_go_as_well(pool):
    from tidetest import parting

    program = parting.Program()
    with parting.offload(program, pool) as tide:
        parting.step_until_parts_move(tide, program)
        for _ in range(5):
            full = anonymous_bytes()
            with tide.paused():
                assert anonymous_bytes() < full - parting.BUDGET * 3 // 4
            parting.step(tide, program)
        tide.restore()
        assert program.sums() == parting.expected(program)


@pytest.mark.parametrize(("at_once", "least"), [(True, TENSORS // 2), (False, 0)])
def test_what_was_in_memory_is_back_at_once_or_when_it_is_needed(pool, at_once, least):
    training = Training()
    with offload(training, pool, mode="reactive") as tide:
        for _ in range(2):
            training.step()
        before = tide.live_bytes - STAGING
        # What was leaving anyway may be out, or dead, before the pause begins.
        leaving = sum(each.size for each in tide.ledger.all() if each.state & LEAVING)
        assert before > least
        with tide.paused(at_once=at_once):
            assert tide.live_bytes == STAGING and repr(tide) == "<tidelog.Tide paused, with a budget of 2.2 MiB>"
        back = tide.live_bytes - STAGING
        assert before - leaving <= back <= before if at_once else back == 0
        pauses = tide.stats()["pauses"]
        assert before - leaving <= pauses["bytes_out"] <= before
        assert pauses["bytes_back"] == back and not pauses["is_paused"]


def test_all_that_fits_is_out_in_a_pause_and_back_after_it(pool):
    """A pause comes before the budget was ever reached: nobody looked at ops until then."""
    expected, training = plain(4), Training()
    with offload(training, pool, memory=64 * MIB) as tide:
        for _ in range(2):
            training.step()
        with tide.paused():
            assert tide.live_bytes == STAGING
        assert tide.live_bytes > MIB
        for _ in range(2):
            training.step()
    assert_same(expected, training.result(), "what was trained")


# -- who touches what is out --------------------------------------------------------------------------


def touches():
    yield "an op", lambda training: training.model[0][0].weight + 1
    yield "a model", lambda training: training.model(torch.ones(1, WIDTH))
    yield "numpy", lambda training: training.model[0][0].weight.detach().numpy()
    yield "an address", lambda training: training.model[0][0].weight.data_ptr()
    yield "tolist", lambda training: training.model[0][0].weight.tolist()
    yield "torch.save", lambda training: torch.save(training.model.state_dict(), io.BytesIO())
    yield "deepcopy", lambda training: copy.deepcopy(training.model)
    yield "resize_", lambda training: training.model[0][0].weight.untyped_storage().resize_(0)
    yield "a graph", lambda training: training.losses[-1].backward()


@pytest.mark.parametrize("name", [name for name, _ in touches()])
def test_a_touch_is_an_error_that_names_the_tensor_and_says_what_to_do(pool, name):
    touch = dict(touches())[name]
    training = Training()
    with offload(training, pool) as tide:
        for _ in range(2):
            training.step()
        training.losses.append(training.model(torch.ones(4, WIDTH)).sum())
        expected = frozen(list(training.model.parameters()))
        tide.pause()
        with names_the_pause("" if name == "a graph" else r"tensor \d\.0\.\w+ is on NVMe"):
            touch(training)
        tide.resume()
        assert_same(expected, frozen(list(training.model.parameters())), "the model")
        training.losses.pop().backward()


def test_another_thread_meets_the_same_error(pool):
    with paused(pool) as (_, training):
        found = []

        def read():
            for touch in (training.model[0][0].weight.sum, training.model[0][0].weight.tolist):
                try:
                    touch()
                except RuntimeError as error:
                    found.append(str(error))

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        assert len(found) == 2 and all("0.0.weight" in each and "call resume()" in each for each in found)


def test_after_the_pause_a_guard_says_what_it_said_before(pool):
    training = Training()
    with offload(training, pool, mode="reactive") as tide:
        training.step()
        weight = training.model[0][0].weight
        with tide.paused(at_once=False):
            pass
        with pytest.raises(tidelog.Error, match="did not go through the offload block"):
            from tidelog.memory import _record

            _record.refuse(weight.untyped_storage()._tide)
        assert weight.sum().isfinite()


def test_what_is_asked_of_the_block_meanwhile_is_refused(pool):
    with paused(pool) as (tide, training):
        weight = training.model[0][0].weight
        calls = [tide.pause, tide.restore, lambda: tide.restore(weight), lambda: tide.evict(weight)]
        calls += [lambda: tide.checkpoint("a"), lambda: tide.pinned(weight).__enter__(), tide.await_plan]
        for call in [*calls, lambda: tide.step().__enter__()]:
            with pytest.raises(tidelog.PausedError, match="paused: call resume"):
                call()
        with pytest.raises(tidelog.Error, match="open already"):
            tidelog.offload(pool=pool, memory="1MiB").__enter__()
        assert not tide.is_resident(weight) and tide.stats()["pauses"]["is_paused"]
    with pytest.raises(tidelog.Error, match="not open"):
        tide.resume()


def test_resume_without_a_pause_is_refused(pool):
    with offload(Training(), pool) as tide, pytest.raises(tidelog.Error, match="not paused"):
        tide.resume()


# -- what others do meanwhile -------------------------------------------------------------------------


def test_others_have_the_memory_and_what_they_leave_counts_afterwards(pool):
    """Inference in the same process: ops are torch's own, at their own speed, and train if they like."""
    expected, training = plain(6), Training()
    with offload(training, pool) as tide:
        for _ in range(3):
            training.step()
        with tide.paused():
            state = torch.get_rng_state()
            other = nn.Linear(512, 512)  # with its gradient, and a copy, more than the budget
            optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
            other(torch.ones(1, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            weights = [other.weight.detach().clone() for _ in range(4)]
            sums = [each.sum().item() for each in (other.weight, *weights)]
            torch.set_rng_state(state)
            assert tide.live_bytes == STAGING
        assert tide.live_bytes <= tide.budget
        for _ in range(3):
            training.step()
        assert [each.sum().item() for each in (other.weight, *weights)] == sums
        del other, optimizer, weights
        tide.restore()
        assert_same(expected, training.result(), "what was trained")


def test_what_does_not_fit_and_stays_is_named_when_the_pause_ends(pool):
    training = Training()
    with offload(training, pool) as tide:
        training.step()
        tide.pause()
        array = torch.zeros(8 * MIB).numpy()
        stays = torch.from_numpy(array)
        with pytest.raises(tidelog.BudgetError, match="not movable"):
            tide.resume()
        assert not tide.is_paused
        del stays, array
        training.step()


def test_graphs_of_cuda_that_were_captured_in_a_pause_keep_their_addresses(card, pool, monkeypatch):
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda graph: None, raising=False)
    training = Training()
    with offload(training, pool, device="cpu", memory=TENSORS) as tide:
        training.step()
        graph = object()
        with pytest.raises(tidelog.Error, match="in a pause of it"):
            torch.cuda.CUDAGraph.capture_begin(graph)
        with tide.paused():
            moves = torch.ones(1000)
        with tide.paused():
            torch.cuda.CUDAGraph.capture_begin(graph)
            stays = torch.ones(1000)
        tide.evict(moves)
        with pytest.raises(tidelog.UnmovableError):
            tide.evict(stays)


# -- what is under way --------------------------------------------------------------------------------


def test_another_thread_is_refused(pool):
    training = Training()
    with offload(training, pool) as tide:
        found = []

        def call(function):
            try:
                function()
            except tidelog.Error as error:
                found.append(str(error))

        for function in (tide.pause, tide.resume):
            if function == tide.resume:
                tide.pause()
            thread = threading.Thread(target=call, args=[function])
            thread.start()
            thread.join()
        assert len(found) == 2 and all("in another thread" in each for each in found)
        tide.resume()


def test_the_middle_of_an_op_is_refused(pool):
    tides = []
    with torch.library._scoped_library("pausing", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")

        def twice(x):
            tides[0].pause()
            return x * 2

        library.impl("twice", twice, "CPU")
        with offload(Training(), pool) as tide:
            tides.append(tide)
            with pytest.raises(tidelog.Error, match="in the middle of an op"):
                torch.ops.pausing.twice(torch.ones(10))
            assert not tide.is_paused and torch.ones(10).sum() == 10


def test_what_is_pinned_is_named_and_nothing_leaves(pool):
    training = Training()
    with offload(training, pool) as tide:
        training.step()
        weight, live = training.model[0][0].weight, tide.live_bytes
        with tide.pinned(weight), pytest.raises(tidelog.PinnedError, match=r"0\.0\.weight .* is pinned"):
            tide.pause()
        assert tide.live_bytes >= live and not tide.is_paused
        array = weight.detach().numpy()
        with pytest.raises(tidelog.PinnedError, match=r"0\.0\.weight .* is pinned"):
            tide.pause()
        assert array[0, 0] == weight[0, 0].item()
        del array
        with tide.paused():
            assert tide.live_bytes == STAGING
        bias = training.model[0][0].bias
        bias.data_ptr()
        with pytest.raises(tidelog.PinnedError, match=r"0\.0\.\w+"):
            tide.pause()
        tide.unpin(bias)
        with tide.paused():
            pass
        training.step()


def test_a_collective_that_is_pending_is_named(pool):
    future = torch.futures.Future()
    with torch.library._scoped_library("pausing", "DEF") as library:
        library.define("send(Tensor tensors) -> __torch__.torch.classes.c10d.Work")
        create = torch._C._distributed_c10d._create_work_from_future
        library.impl("send", lambda tensor: create(future).boxed(), "CPU")
        training = Training()
        with offload(training, pool) as tide:
            training.step()
            torch.ops.pausing.send(training.model[0][0].weight.detach())
            with pytest.raises(tidelog.Error, match=r"0\.0\.weight .* in use by an operation that is not complete"):
                tide.pause()
            future.set_result(None)
            with tide.paused():
                pass
            training.step()


def test_a_save_beside_the_training_is_waited_for(pool):
    with offload(Training(), pool) as tide:
        tide.saves.is_under_way = lambda: True
        with pytest.raises(tidelog.Error, match="wait for its future"):
            tide.pause()


def test_micro_batches_layer_by_layer_are_refused(pool):
    with offload(Training(), pool) as tide:
        raised = []

        def loss_of(model, batch):
            loss = model(batch).square().mean()
            with contextlib.suppress(tidelog.Error):
                tide.pause()
            raised.append(tide.is_paused)
            return loss

        model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))
        tidelog.accumulate(model, [torch.randn(8, WIDTH) for _ in range(3)], loss_of, blocks=model)
        assert raised and not any(raised)


def test_updates_that_run_late_have_run_and_early_ones_are_refused_in_their_backward_pass(pool):
    expected = plain(8)
    training = Training()
    with offload(training, pool, updates="lazy") as tide:
        for number in range(8):
            training.step()
            if number > 3:
                assert tide.stats()["updates"]["pending"] > 0
                with tide.paused():
                    assert tide.stats()["updates"]["pending"] == 0
        tide.restore()
        assert_same(expected, training.result(), "what was trained late")

    refused = []

    def pause(point):
        if point in ("gradient", "step") and tide.stats()["updates"]["early"]:
            try:
                tide.pause()
            except tidelog.Error as error:
                refused.append((point, str(error)))
            else:
                tide.resume()

    training = Training(pause)
    with offload(training, pool, updates="early") as tide:
        for _ in range(8):
            training.step()
        tide.restore()
        assert_same(expected, training.result(), "what was trained early")
    assert {point for point, _ in refused} == {"gradient"} and "backward pass that updates parameters" in refused[0][1]


def test_regions_that_run_again_go_on_after_a_pause_within_them(pool):
    from torch.utils.checkpoint import checkpoint

    def run(pause):
        torch.manual_seed(1)
        layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3)
        losses = []

        def inner(layer, x):
            x = torch.dropout(torch.tanh(layer(x)), 0.1, True)
            pause()
            return x * 2

        def train(steps):
            for _ in range(steps):
                x = torch.randn(64, WIDTH)
                for layer in layers:
                    x = checkpoint(inner, layer, x, use_reentrant=False)
                x.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(frozen(x))

        return layers, optimizer, train, losses

    *_, train, expected = run(lambda: None)
    train(12)
    calls = []

    def pause():
        calls.append(None)
        if len(calls) % 17 == 0:
            with tide.paused(at_once=len(calls) % 2 == 0):
                pass

    layers, optimizer, train, losses = run(pause)
    with tidelog.offload(
        layers, optimizer, pool=pool, memory=2 * MIB, staging=STAGING, pool_size=64 * MIB, recompute="best"
    ) as tide:
        train(12)
    assert_same(expected, losses, "what was computed")


# -- what goes wrong ----------------------------------------------------------------------------------


def test_a_step_that_ends_in_a_pause_is_none_and_the_next_is_one(pool):
    training = Training()
    with offload(training, pool) as tide:
        for _ in range(4):
            with tide.step():
                training.step()
        seconds = tide.last_step()["seconds"]
        with tide.step():
            training.step()
            tide.pause()
            time.sleep(1.0)
        assert tide.last_step()["seconds"] == seconds
        tide.resume()
        with tide.step():
            training.step()
        assert tide.phase == "planned"


def test_a_pause_is_no_part_of_the_step_in_which_it_was(pool):
    training = Training()
    with offload(training, pool) as tide:
        for _ in range(4):
            with tide.step():
                training.step()
        written = tide.last_step()["bytes_written"]

        def pause(point):
            if point == "forward":
                with tide.paused():
                    time.sleep(2.0)

        training.pause = pause
        with tide.step():
            training.step()
        last = tide.last_step()
        assert last["seconds"] < 2.0 and last["stall_seconds"] < 1.0
        assert last["bytes_written"] < written + TENSORS
        pauses = tide.stats()["pauses"]
        assert pauses["paused_ns"] > 1.9e9 and pauses["leaving_ns"] < 1.9e9


def test_the_report_has_pauses(pool, tmp_path):
    with paused(pool) as (tide, _):
        pass
    training = Training()
    with offload(training, pool) as tide:
        training.step()
        with tide.paused():
            pass
        tide.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "left memory for them in" in text


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
def test_an_error_in_a_pause_ends_it_and_the_block(pool, raised):
    expected, training = plain(3), Training()
    with pytest.raises(raised), offload(training, pool, memory=64 * MIB) as tide:
        for _ in range(3):
            training.step()
        tide.pause()
        raise raised
    assert not tide.is_open and not tide.is_paused
    assert_same(expected, training.result(), "what was trained")


def test_what_does_not_fit_when_a_block_is_left_in_a_pause_is_named(pool):
    training = Training()
    with pytest.warns(tidelog.LeftBehindWarning, match="do not fit the budget"):
        with offload(training, pool) as tide:
            for _ in range(3):
                training.step()
            tide.pause()
    tide.restore()
    assert_same(plain(3), training.result(), "what was trained")


def test_a_pause_that_is_interrupted_leaves_the_block_as_it_was(pool, monkeypatch):
    expected, training = plain(4), Training()
    with offload(training, pool) as tide:
        for _ in range(2):
            training.step()
        take, calls = tide.session.settle, []

        def interrupted():
            calls.append(None)
            if len(calls) == 1:
                raise KeyboardInterrupt
            take()

        monkeypatch.setattr(tide.session, "settle", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tide.pause()
        assert not tide.is_paused and tide.stats()["pauses"]["is_paused"] is False
        training.step()
        with tide.paused():
            pass
        training.step()
        tide.restore()
        assert_same(expected, training.result(), "what was trained")


def test_a_pool_that_is_full_ends_the_pause_and_not_the_block(tmp_path):
    (tmp_path / "small").mkdir()
    training = Training()
    with offload(training, str(tmp_path / "small"), memory=64 * MIB, pool_size=16 * MIB) as tide:
        more = [torch.full((MIB,), float(number)) for number in range(12)]
        with pytest.raises(tidelog.Error, match=r"full|room|space"):
            tide.pause()
        assert not tide.is_paused
        assert [each[0].item() for each in more] == [*range(12)]
        del more
        training.step()
        with tide.paused():
            pass
        training.step()
    assert_same(plain(2), training.result(), "what was trained")


KILLED = """
from tidetest.pausing import Training, offload
training = Training()
with offload(training, sys.argv[1]) as tide:
    for _ in range(3):
        training.step()
    tide.checkpoint("kept")
    tide.pause()
    print("paused", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_ended_in_a_pause_leaves_its_checkpoint(pool, number):
    started = process.start(KILLED, pool)
    started.await_line("paused")
    os.kill(started.pid, number)
    ended = started.finish()
    assert ended.code == -number, ended
    training = Training()
    with offload(training, pool, resume="kept") as tide:
        training.step()
        tide.restore()
        state = training.model.state_dict()
        training.losses = []
        found = frozen(dict(state))
    again = Training()
    for _ in range(4):
        again.step()
    assert_same(frozen(dict(again.model.state_dict())), found, "the model")


def test_a_child_of_fork_in_a_pause_has_its_own_error(pool):
    script = """
    import os
    from tidetest.pausing import Training, offload
    training = Training()
    with offload(training, sys.argv[1]) as tide:
        training.step()
        tide.pause()
        if os.fork() == 0:
            try:
                training.model[0][0].weight.sum()
            except tidelog.ForkedError:
                os._exit(0)
            os._exit(7)
        code = os.waitstatus_to_exitcode(os.wait()[1])
        tide.resume()
        training.step()
    assert code == 0, code
    print("done")
    """
    process.assert_done(process.run(script, pool))


GIVES_WAY = """
import signal
from tidetest.pausing import Training, offload, plain
training = Training()
with offload(training, sys.argv[1]) as tide:
    waits = []

    def give_way(number, frame):
        if not tide.is_paused:
            waits.append(True)
            with tide.paused():
                print("gives way", flush=True)
                while waits:
                    time.sleep(0.1)
            print("goes on", flush=True)

    signal.signal(signal.SIGUSR1, give_way)
    signal.signal(signal.SIGUSR2, lambda number, frame: waits.clear())
    print("trains", flush=True)
    number = 0
    while tide.stats()["pauses"]["count"] < 3:
        training.step()
        number += 1
    tide.restore()
    assert_same(plain(number), training.result(), "what was trained")
print("done")
"""


def await_count(started, line, count):
    deadline = time.monotonic() + 60
    while started.out.read_text().splitlines().count(line) < count:
        assert time.monotonic() < deadline, started.err.read_text()
        time.sleep(0.01)


def test_a_handler_of_a_signal_gives_way_as_the_page_has_it(pool):
    started = process.start(GIVES_WAY, pool)
    started.await_line("trains")
    for count in range(1, 4):
        os.kill(started.pid, signal.SIGUSR1)
        await_count(started, "gives way", count)
        os.kill(started.pid, signal.SIGUSR1)
        os.kill(started.pid, signal.SIGUSR2)
        await_count(started, "goes on", count)
    process.assert_done(started.finish())
