"""A small training run whose tensors do not fit in its budget, the stage of the touch tests.

The same World without an offload block is the plain run that everything is compared with.
"""

import contextlib

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest import KIB, MIB, device as made_on
from tidetest.bits import bits, frozen, outcome

WIDTH = 64
LAYERS = 8
TENSORS = 224 * KIB  # a quarter of what lives (16 KiB a matrix, 5 kinds, 8 layers, activations)
BUDGET = made_on.STAGING + TENSORS  # where staging buffers are in the same memory
POOL_SIZE = 64 * MIB
WARM_UP_STEPS_MAX = 10
CHOICE_STEPS_MAX = 40  # until regions run once
SUBJECTS = ("parameter", "gradient", "state", "buffer", "loose", "view", "transposed", "activation")


class Saved:
    """A file's bytes and how to load them. Loaded after the block, where a whole checkpoint fits in memory:
    torch.load makes memory that cannot move."""

    def __init__(self, data, load):
        self.data, self.load = data, load

    def loaded(self):
        return frozen(self.load(self.data))  # not its length: the older format holds addresses as text


class Block(nn.Module):
    """A layer with a parameter, a bias and a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", 1 + torch.rand(WIDTH, WIDTH) / 64)

    def forward(self, x):
        # Of what is made in inference mode checkpoint can save nothing.
        if made_on.recompute == "best" and not torch.is_inference_mode_enabled():
            return checkpoint(self.layer, x, use_reentrant=False)
        return self.layer(x)

    def layer(self, x):
        return torch.tanh(self.linear(x) @ self.scale)


class World:
    """A model, its optimizer and its data; `block()` opens the offload block, `step()` trains once."""

    def __init__(self, seed=0, optimizer=None, layers=LAYERS, device=None):
        torch.manual_seed(seed)
        with torch.device(device or made_on.kind()):
            self.model = nn.Sequential(*(Block() for _ in range(layers)))
            self.x = torch.randn(32, WIDTH)
            self.y = torch.randn(32, WIDTH)
            self.loose = torch.randn(WIDTH, WIDTH)
        make = optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=False))
        self.optimizer = make(self.model.parameters())
        self.views = {"view": self.loose[8:40], "transposed": self.loose.t()}
        self.activation = None
        self.losses = []
        self.tide = None  # stays None in the plain run
        self.notes = []

    # -- running ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def block(self, pool, mode="auto", memory=None, **options):
        """An offload block over this world. A keyword overrides what is usual in the tests."""
        memory = made_on.budget(TENSORS) if memory is None else memory
        options = {"pool_size": POOL_SIZE, "staging": made_on.STAGING, "updates": made_on.updates, **options}
        options.setdefault("recompute", made_on.recompute)
        if options.get("parts", "whole") == "whole":
            options.setdefault("allocator", made_on.allocator)
        options.setdefault("host_memory", made_on.host_memory)
        # Where it is not known, all of host_memory= is for updates on the host, also for those of a copy.
        known = (
            self.optimizer if options["updates"] != "host" or made_on.host_memory > 2 * made_on.HOST_MEMORY else None
        )
        with tidelog.offload(self.model, known, pool=pool, memory=memory, mode=mode, **options) as self.tide:
            yield self.tide

    def boundary(self):
        """`tide.step()` inside a block, nothing in the plain run."""
        return self.tide.step() if self.tide is not None else contextlib.nullcontext()

    def first_half(self):
        """Forward: the half of a step after which most touches happen."""
        self.optimizer.zero_grad(set_to_none=False)
        self.activation = self.model(self.x)
        return self.activation

    def second_half(self):
        """Loss, backward and update."""
        with made_on.on_another_stream():
            loss = ((self.activation - self.y) ** 2).mean()
            loss.backward()
            self.optimizer.step()
        self.losses.append(bits(loss))

    def step(self):
        with self.boundary():
            self.first_half()
            self.second_half()

    def steps(self, count):
        for _ in range(count):
            self.step()

    def warm_up(self, mode):
        """Steps until an "auto" block executes a plan. Returns their number, for the plain run to repeat."""
        looks = mode != "reactive" and made_on.recompute == "best"
        for count in range(1, (CHOICE_STEPS_MAX if looks else WARM_UP_STEPS_MAX) + 1):
            self.step()
            chooses = looks and not self.fits()
            is_chosen = not chooses or self.tide.stats()["recompute"]["settled"]
            if count >= 2 and (mode == "reactive" or self.tide.phase == "planned") and is_chosen:
                assert not chooses or self.tide.stats()["recompute"]["kept"], self.tide.stats()["recompute"]
                return count
        raise AssertionError(f"no plan after {count} equal steps; the phase is {self.tide.phase!r}")

    def fits(self):
        """Returns whether no step has reached the budget: then nothing is planned."""
        return any("the budget was not reached yet" in why for why in self.tide.stats()["held_back"][-1:])

    # -- what is touched --------------------------------------------------------------------------

    def subject(self, name):
        """The tensor to touch. A view's base moves; that is what makes the touch hard."""
        linear = self.model[3].linear
        if name == "state":
            return self.optimizer.state[linear.weight]["exp_avg"]
        if name in self.views:
            return self.views[name]
        subjects = {"parameter": linear.weight, "gradient": linear.weight.grad, "buffer": self.model[3].scale}
        return {**subjects, "loose": self.loose, "activation": self.activation}[name]

    def push_out(self, *tensors):
        """Moves tensors out and makes sure that they are. Nothing to do in the plain run."""
        if self.tide is not None:
            tensors = [each for each in tensors if not made_on.is_beside(each)]
            for tensor in tensors:
                self.tide.evict(tensor)
            for tensor in tensors:
                assert not self.tide.is_resident(tensor)

    def note(self, label, value):
        """Keeps a value as it is now, for the comparison of the two runs."""
        self.notes.append((label, frozen(value)))

    def note_saved(self, label, data, load):
        """Keeps what was saved, to be loaded and compared when the block is over."""
        self.notes.append((label, Saved(bytes(data), load)))

    def attempt(self, label, function, *arguments):
        """Keeps what a call returns, or the kind of error that it raises."""
        self.notes.append((label, outcome(function, *arguments)))

    def result(self):
        """Returns all state in which a wrong byte would show."""
        found = {f"parameter {name}": bits(value) for name, value in self.model.named_parameters()}
        found |= {f"buffer {name}": bits(value) for name, value in self.model.named_buffers()}
        for index, parameter in enumerate(self.model.parameters()):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{key} {index}"] = bits(value)
            if parameter.grad is not None:
                found[f"gradient {index}"] = bits(parameter.grad)
        found["loose"] = bits(self.loose)
        found["losses"] = tuple(self.losses)
        return tuple(found.items())

    def tensors(self):
        """Every parameter, buffer, gradient and optimizer state, by name."""
        found = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for name, parameter in self.model.named_parameters():
            found |= {f"{key} of {name}": value for key, value in self.optimizer.state.get(parameter, {}).items()}
            if parameter.grad is not None:
                found[f"grad of {name}"] = parameter.grad
        return found
