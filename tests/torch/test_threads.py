"""Programs with threads of their own give the same bits as without a block, also where these touch what is out."""

import asyncio
import concurrent.futures
import copy
import io
import multiprocessing.pool
import queue
import threading
import time

import pytest
import torch
import torch.multiprocessing
from torch import nn
from torch.distributed import checkpoint

import tidelog
from tidelog import _turns
from tidelog.escapes import _threads
from tidelog.memory import _record
from tidetest import MIB, device
from tidetest.bits import bits
from tidetest.world import TENSORS, World

PATIENCE_SECONDS = 120


@pytest.fixture(scope="module")
def older():
    """An executor and a pool whose threads are older than every block."""
    with concurrent.futures.ThreadPoolExecutor(2) as executor, multiprocessing.pool.ThreadPool(2) as pool:
        barrier = threading.Barrier(3)
        for _ in range(2):
            executor.submit(barrier.wait)
        barrier.wait()
        executor.pool = pool
        yield executor


def run(function, *arguments):
    """Runs a function in a thread; returns what it returned, or raises what it raised."""
    found = []

    def target():
        try:
            found.append((function(*arguments), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "the thread hangs"
    result, error = found[0]
    if error is not None:
        raise error
    return result


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    return {name: bits(value) for name, value in torch.load(io.BytesIO(file.getvalue())).items()}


def cloned(world):
    return {name: value.clone() for name, value in world.model.state_dict().items()}


@torch.no_grad()
def evaluate(model, x):
    return bits(model(x).pow(2).mean())


# -- programs -------------------------------------------------------------------------------------------

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def save_clones(world, executor, steps):
    futures = []
    for _ in range(3):
        world.steps(steps)
        futures.append(executor.submit(saved, cloned(world)))
    for number, future in enumerate(futures):
        world.note(f"saved {number}", future.result(PATIENCE_SECONDS))


@program
def executor_saves_clones(world, _):
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        save_clones(world, executor, steps=2)


@program
def older_executor_saves_clones(world, older):
    save_clones(world, older, steps=1)


@program
def older_executor_saves_what_was_pushed_out(world, older):
    state = cloned(world)
    world.push_out(*state.values())
    world.note("saved", older.submit(saved, state).result(PATIENCE_SECONDS))


@program
def pool_of_threads_maps(world, older):
    tensors = [value.detach() for value in world.model.parameters()]
    for how in (
        older.pool.map,
        lambda *call: list(older.pool.imap(*call)),
        lambda *call: older.pool.map_async(*call).get(),
    ):
        world.push_out(*tensors)
        world.note("norms", [bits(norm) for norm in how(torch.linalg.vector_norm, tensors)])
    world.push_out(*tensors)
    world.note("applied", bits(older.pool.apply(torch.cat, ([tensors[0], tensors[2]],))))
    world.note("starred", [bits(each) for each in older.pool.starmap(torch.add, zip(tensors, tensors))])


@program
def executor_maps_older(world, older):
    tensors = [value.detach() for value in world.model.parameters()]
    world.push_out(*tensors)
    world.note("sums", [bits(each) for each in older.map(torch.sum, tensors)])


@program
def evaluates_while_the_program_waits(world, _):
    for _ in range(3):
        world.step()
        world.note("evaluated", run(evaluate, world.model, world.x))


@program
def evaluates_in_the_middle_of_a_step(world, _):
    for _ in range(3):
        with world.boundary():
            world.first_half()
            world.note("evaluated", run(evaluate, world.model, world.x))
            world.second_half()


@program
def evaluates_a_copy_beside_the_training(world, _):
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        futures = []
        for _ in range(3):
            world.steps(1)
            world.optimizer.zero_grad()
            futures.append(executor.submit(evaluate, copy.deepcopy(world.model), world.x))
            world.steps(1)
        world.note("evaluated", [future.result(PATIENCE_SECONDS) for future in futures])


@program
def copies_in_a_thread(world, _):
    world.step()
    world.optimizer.zero_grad()
    twin = run(copy.deepcopy, world.model)
    world.note("copied", [bits(value) for value in twin.state_dict().values()])
    world.note("state", run(lambda: [bits(each["exp_avg"]) for each in world.optimizer.state.values()]))


def gradients(model, x):
    return [bits(each) for each in torch.autograd.grad(model(x).pow(2).mean(), list(model.parameters()))]


@program
def autograd_in_several_threads(world, _):
    world.step()
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        futures = [executor.submit(gradients, world.model, world.x * scale) for scale in (1, 2, 3)]
        world.note("gradients", [future.result(PATIENCE_SECONDS) for future in futures])


@program
def autograd_beside_the_training(world, _):
    world.optimizer.zero_grad()
    twin = copy.deepcopy(world.model)
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        futures = [executor.submit(gradients, twin, world.x.clone()) for _ in range(4)]
        world.steps(3)
        world.note("gradients", [future.result(PATIENCE_SECONDS) for future in futures])


@program
def backward_in_a_thread(world, _):
    for _ in range(3):
        with world.boundary():
            world.first_half()
            run(world.second_half)


@program
def whole_steps_in_a_thread(world, _):
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).to(world.x.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def train(x):
        for _ in range(4):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        return [bits(value) for value in model.state_dict().values()]

    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        future = executor.submit(train, world.x.clone())
        world.steps(3)
        world.note("trained", future.result(PATIENCE_SECONDS))


@program
def asyncio_to_thread(world, _):
    async def main():
        for _ in range(2):
            world.step()
            state = cloned(world)
            world.push_out(*state.values())
            one, other = await asyncio.gather(
                asyncio.to_thread(saved, state), asyncio.to_thread(evaluate, world.model, world.x)
            )
            world.note("saved", one)
            world.note("evaluated", other)

    asyncio.run(main())


@program
def average_is_kept_by_a_thread(world, _):
    """Averages in a thread, which writes tensors that are out."""
    average = [value.detach().clone() for value in world.model.parameters()]

    @torch.no_grad()
    def update():
        for mean, value in zip(average, world.model.parameters()):
            mean.mul_(0.9).add_(value, alpha=0.1)

    for _ in range(3):
        world.step()
        world.push_out(*average)
        run(update)
    world.note("average", [bits(value) for value in average])


@program
def consumer_of_a_queue(world, _):
    jobs, done = queue.Queue(), []

    def consume():
        while (tensor := jobs.get()) is not None:
            done.append((tensor.tolist()[0][:4], float(tensor.sum()), repr(tensor), tensor.numpy(force=True).tobytes()))

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    for _ in range(4):
        world.step()
        clone = world.loose.clone()
        world.push_out(clone)
        jobs.put(clone)
    jobs.put(None)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    world.note("consumed", done)


class Reader(threading.Thread):
    def __init__(self, tensor):
        super().__init__(daemon=True)
        self.tensor, self.found = tensor, None

    def run(self):
        self.found = bits(self.tensor @ self.tensor)


@program
def threads_with_a_method_of_their_own(world, _):
    for kind in ("parameter", "loose", "buffer", "state"):
        tensor = world.subject(kind).detach()
        world.push_out(tensor)
        reader = Reader(tensor)
        reader.start()
        reader.join(PATIENCE_SECONDS)
        world.note(kind, reader.found)
    found = []
    world.push_out(world.loose)
    timer = threading.Timer(0.01, lambda: found.append(bits(world.loose + 1)))
    timer.start()
    timer.join(PATIENCE_SECONDS)
    world.note("timer", found)


@program
def many_threads_at_once(world, _):
    tensors = [value.detach() for value in world.model.parameters()]
    world.push_out(*tensors)
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        for _ in range(3):
            futures = [executor.submit(lambda each: bits(each * 2), each) for each in tensors]
            world.step()
            [future.result(PATIENCE_SECONDS) for future in futures]
            world.push_out(*tensors)
            futures = [executor.submit(lambda each: bits(each * 2), each) for each in tensors]
            world.note("doubled", [future.result(PATIENCE_SECONDS) for future in futures])


@program
def logs_all_the_time(world, _):
    """Logs in a thread, whose output depends on the time, but which never stops the training, nor changes it."""
    stop, looks = threading.Event(), []

    def look():
        while not stop.is_set():
            looks.append([float(value.detach().sum()) for value in world.model.parameters()])

    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        future = executor.submit(look)
        world.steps(4)
        while not looks:
            world.steps(0)
        stop.set()
        future.result(PATIENCE_SECONDS)


# "early" refuses whoever uses parameters between a backward pass and its step.
BETWEEN = ("evaluates_in_the_middle_of_a_step", "logs_all_the_time", "many_threads_at_once", "backward_in_a_thread")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_threads_has_the_same_bits(compare, older, name):
    compare(lambda world: PROGRAMS[name](world, older))


@pytest.mark.parametrize("updates", ["lazy", "early"])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in BETWEEN])
def test_it_has_them_with_updates_at_other_times(compare, older, name, updates):
    """Checks the state that a step leaves, of which only gradients are gone."""

    def scenario(world):
        PROGRAMS[name](world, older)
        world.steps(2)
        world.note("at the end", [bits(value) for value in world.model.state_dict().values()])

    compare(scenario, updates=updates, finish=False)


@pytest.mark.host_memory(device.SHARED)
def test_a_queue_of_processes_takes_what_is_out(compare):
    """Checks a queue, whose own thread pickles: an error there would be printed, and whoever waits at the other end
    would hang.
    """

    def scenario(world):
        box = torch.multiprocessing.get_context("fork").Queue()
        for number in range(3):
            world.step()
            tensor = world.loose.clone()
            world.push_out(tensor)
            box.put({"number": number, "tensor": tensor, "row": tensor[3]})
            received = box.get(timeout=PATIENCE_SECONDS)
            world.note("received", received)
            received["tensor"][3, 0] = 5
            world.note("one memory", tensor)
        box.close()
        box.join_thread()

    compare(scenario)


@pytest.mark.filterwarnings("ignore")  # of torch's, that there is no process group
def test_async_save_of_dcp_to_a_folder(compare, tmp_path):
    def scenario(world):
        for number in range(2):
            world.steps(2)
            folder = tmp_path / f"{number} {world.tide is None}"
            future = checkpoint.async_save({"model": world.model.state_dict()}, checkpoint_id=folder, no_dist=True)
            world.steps(2)
            future.result()
            loaded = {name: torch.empty_like(value) for name, value in world.model.state_dict().items()}
            checkpoint.load({"model": loaded}, checkpoint_id=folder, no_dist=True)
            world.note("loaded", {name: bits(value) for name, value in loaded.items()})

    compare(scenario, memory=device.budget(2 * TENSORS))  # a copy of the model stays: torch stages it in shared memory


def test_what_a_thread_alone_has_met_stays_while_it_uses_that(pool):
    """The block's thread meets a tensor, and has it leave, while an op of the thread that made it is under way."""
    world, begun = World(), threading.Event()

    @torch.library.custom_op("tidetest::uses_slowly", mutates_args=())
    def uses_slowly(x: torch.Tensor) -> torch.Tensor:
        begun.set()
        time.sleep(0.3)
        return x.clone()  # inside an op nobody brings it back

    made, found = [], []

    def target():
        made.append(torch.full((64, 64), 3.0, device=world.x.device))
        found.append(uses_slowly(made[0]))

    with world.block(pool, "reactive") as tide:
        world.steps(1)
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        assert begun.wait(PATIENCE_SECONDS)
        tide.evict(made[0])
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the thread hangs"
        assert torch.equal(found[0], torch.full_like(found[0], 3.0))


def test_an_op_that_waits_for_a_thread_is_no_deadlock(pool, monkeypatch):
    """The body of a custom op waits for a thread that needs what is out. That thread gets an error."""
    monkeypatch.setattr(_turns, "_STANDS_STILL_SECONDS", 0.5)
    world = World()
    found = []

    @torch.library.custom_op("tidetest::waits_for_a_thread", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        try:
            run(lambda: world.loose.sum())
        except RuntimeError as error:
            found.append(str(error))
        return x.clone()

    with world.block(pool, "reactive"):
        world.steps(2)
        world.push_out(world.loose)
        waits(world.x)
        assert len(found) == 1 and "waited in vain" in found[0], found
        run(lambda: world.loose.sum())
        world.steps(1)


def test_an_error_of_a_turn_ends_it(pool):
    """Checks a request of a thread that does not fit: the error is the thread's alone."""
    world = World()
    many = [torch.randn(64, 64, device=world.x.device) for _ in range(40)]
    with world.block(pool, "reactive"):
        world.steps(1)
        world.push_out(*many)
        with pytest.raises(tidelog.BudgetError):
            run(torch.cat, many)
        assert not _turns.waiting
        assert run(lambda: bits(many[0] * 1)) == bits(many[0])
        world.steps(1)


def test_a_thread_may_use_again_what_it_has_borrowed(pool, monkeypatch):
    """The block's thread has marked it as gone, and waits for the loan before it takes the memory."""
    tensor, found = torch.arange(1024.0), []
    with tidelog.offload(pool=pool, memory=8 * MIB, staging=MIB, pool_size=64 * MIB, mode="reactive") as tide:
        storage = tensor.untyped_storage()
        record = tide.ledger.record_of(storage)

        def use():
            with _threads.borrow(tide.access, [storage]):
                state = record.state
                tide.ledger.mark(record, _record.OUT)
                try:
                    found.append(tensor.tolist())
                finally:
                    tide.ledger.mark(record, state)

        thread = threading.Thread(target=use, daemon=True)
        monkeypatch.setattr(_turns._block, "is_busy", lambda: True)
        with _turns.awaiting_loans():
            thread.start()
            thread.join(PATIENCE_SECONDS)
        monkeypatch.undo()
        assert not thread.is_alive()
    assert found == [torch.arange(1024.0).tolist()]
