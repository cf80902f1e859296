"""tidelog.accumulate when something goes wrong: errors, Ctrl-C, threads that would stay."""

import copy
import gc
import threading

import pytest
import torch
from torch import nn

import tidelog
from tidetest import process
from tidetest.micro_batches import WIDTH, gradients, loop, rows, square


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("planted")


class Failing(nn.Module):
    """Fails in the forward or the backward pass of one micro-batch, at one block."""

    def __init__(self, forward=True, at=1):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.is_forward, self.at = forward, at
        self.fails = False

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if self.fails and number == self.at and x.shape[0] == 3:
                if self.is_forward:
                    raise ValueError("planted")
                x = Backward.apply(x)
        return x


BATCHES = [rows(0, 2, WIDTH), rows(1, 3, WIDTH), rows(2, 2, WIDTH)]


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tidelog micro-batch")]


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
def test_errors_of_the_program(forward, at):
    """Checks that errors come out as they are. Gradients that were none are none, and the next call is as if nothing
    had been.
    """
    model = Failing(forward, at)
    model.fails = True
    with pytest.raises(ValueError, match="planted"):
        tidelog.accumulate(model, BATCHES, square)
    assert all(gradient is None for gradient in gradients(model).values()) and not threads()
    model.fails = False
    other = copy.deepcopy(model)
    tidelog.accumulate(model, BATCHES, square)
    loop(other, BATCHES, square)
    assert all(torch.equal(*pair) for pair in zip(gradients(model).values(), gradients(other).values()))


def test_an_error_names_gradients_that_have_a_part_of_the_sum(caplog):
    model = Failing(False, 1)
    loop(model, BATCHES, square)
    model.fails = True
    with pytest.raises(ValueError, match="planted") as caught:
        tidelog.accumulate(model, BATCHES, square)
    text = "gradients of 6 tensors have a part of the sum"
    assert text in caplog.text and any(text in note for note in getattr(caught.value, "__notes__", [text]))


def test_an_error_in_the_loss_of_the_second_micro_batch():
    """The first one's head has its gradient by then."""
    model = Failing()

    def loss(model, batch):
        value = square(model, batch)
        if batch.shape[0] == 3:
            raise ValueError("planted")
        return value

    with pytest.raises(ValueError, match="planted"):
        tidelog.accumulate(model, BATCHES, loss)
    assert all(gradient is None for gradient in gradients(model).values()) and not threads()


def test_a_program_that_catches_everything():
    """A micro-batch that is not to go on may have a handler for anything."""
    model = Failing()

    def loss(model, batch):
        if batch.shape[0] == 2:
            try:
                return square(model, batch)
            except BaseException:
                model(batch)  # is abandoned again
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        tidelog.accumulate(model, BATCHES, loss)
    assert not threads()


def test_what_an_error_held_is_freed():
    import weakref

    model, seen = Failing(), []

    def loss(model, batch):
        x = model(batch)
        seen.append(weakref.ref(x))
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        tidelog.accumulate(model, BATCHES, loss)
    gc.collect()
    assert [ref() for ref in seen] == [None]


INTERRUPTED = """
import _thread, threading
where, seen = sys.argv[1], []

class Strike(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        os.kill(os.getpid(), signal.SIGINT)
        return gradient

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if armed and where == "forward" and layer is self.layers[1]:
                os.kill(os.getpid(), signal.SIGINT)
                while True:
                    time.sleep(0.001)
            if armed and where == "backward" and layer is self.layers[1]:
                x = Strike.apply(x)
        return x

armed, model = True, Slow()
run = lambda: tidelog.accumulate(model, [torch.ones(2, 8)] * 3, lambda model, x: model(x).sum())
for _ in range(3):
    try:
        run()
    except KeyboardInterrupt:
        seen.append(1)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert threading.active_count() == 1, threading.enumerate()
armed = False
run()
assert len(seen) == 3 and model.layers[0].weight.grad is not None
print("done")
"""


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_ctrl_c(where):
    process.assert_done(process.run(INTERRUPTED, where))


STORM = """
import gc, random
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(4)))
batches = [torch.randn(2, 32) for _ in range(4)]
loss = lambda model, x: model(x).square().mean()
for batch in batches:
    loss(model, batch).backward()
expected = [parameter.grad for parameter in model.parameters()]
left = hits = done = 0

def handler(*_):
    global left, hits
    if left:
        left, hits = left - 1, hits + 1
        raise KeyboardInterrupt

def strike():
    chance = random.Random(0)  # the model's own draws are watched
    while not stop.is_set():
        time.sleep(chance.random() * 0.01)
        os.kill(os.getpid(), signal.SIGINT)

def compare():
    assert all(torch.equal(*pair) for pair in zip(expected, (p.grad for p in model.parameters())))

signal.signal(signal.SIGINT, handler)
stop = threading.Event()
striker = threading.Thread(target=strike, daemon=True)
striker.start()
began = time.monotonic()
while time.monotonic() - began < 5:
    model.zero_grad()
    try:
        try:
            left = done % 3  # the second one comes while the first one's error is on its way
            tidelog.accumulate(model, batches, loss)
            left = 0
            compare()
            done += 1
        except KeyboardInterrupt:
            time.sleep(0.01)
        left = 0
    except KeyboardInterrupt:
        pass
stop.set()
striker.join()
model.zero_grad()
tidelog.accumulate(model, batches, loss)
compare()
gc.collect()  # what an interrupt at the worst moment has left
time.sleep(0.2)
assert threading.active_count() == 1, threading.enumerate()
assert "__call__" not in vars(torch.nn.Sequential)
assert hits > 20 and done > 0, (hits, done)
print("done")
"""


def test_a_storm_of_ctrl_c():
    process.assert_done(process.run(STORM))


EXITS = """
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
def loss(model, x):
    value = model(x).sum()
    if sys.argv[1] == "exit":
        sys.exit(3)
    os._exit(3)
tidelog.accumulate(model, [torch.ones(2, 8)] * 3, loss)
"""


@pytest.mark.parametrize("way", ["exit", "at once"])
def test_a_program_that_ends_in_a_micro_batch(way):
    ended = process.run(EXITS, way, whole_end=True)
    process.assert_orderly(ended)
    assert ended.code == 3


FORKS = """
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
batches = [torch.ones(2, 8)] * 3
def loss(model, x):
    if not codes:
        pid = os.fork()
        if pid == 0:  # a child in the middle of a pass, as workers of a DataLoader are
            try:
                tidelog.accumulate(model, batches, loss)
            except tidelog.OrderError:  # it has no other threads
                os._exit(int(torch.ones(3).sum()) - 3)
            os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return model(x).sum()
codes = []
tidelog.accumulate(model, batches, loss)
assert codes == [0], codes
print("done")
"""


def test_a_fork_in_a_micro_batch():
    process.assert_done(process.run(FORKS))


def test_memory_does_not_grow():
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    gc.collect()
    counts = []
    for round_ in range(3):
        for _ in range(50):
            tidelog.accumulate(model, BATCHES, square)
        gc.collect()
        counts.append(len(gc.get_objects()))
    assert counts[2] <= counts[1] + 50, counts
