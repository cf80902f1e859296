"""Regions that have to run as the program has them, each with its reason, though all are chosen to run once."""

import contextlib
import functools
import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, set_checkpoint_early_stop

import tidelog
from tidelog.recompute._regions import Region, Regions
from tidetest.regions import (
    BLOCKS,
    STEPS,
    WIDTH,
    Block,
    Drawing,
    Model,
    Nested,
    Normed,
    Program,
    Rolling,
    choosing,
    compare,
)

VARIANTS = pytest.mark.parametrize("reentrant", [False, True])


def refused(pool, monkeypatch, why, model=Model, *, count=BLOCKS, steps=14, **options):
    """None of the first `count` regions runs once, for that reason."""
    choosing(monkeypatch, range(BLOCKS))
    figures, kept, notices = compare(pool, model=model, steps=steps, **options)
    assert len(figures["refused"]) == count and all(why in each for each in figures["refused"]), figures
    assert max(kept) == figures["kept"] == BLOCKS - count, kept
    assert any("run again whatever the planner says" in notice for notice in notices), notices


class Counting(Block):
    """Changes a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(WIDTH))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) + self.calls


class Writing(Block):
    """Block that changes its input past autograd, which would refuse it."""

    def forward(self, x):
        x.data.mul_(0.5)
        return super().forward(x)


@VARIANTS
@pytest.mark.parametrize("block", [Normed, Counting])
def test_a_block_that_changes_a_buffer_each_time(pool, monkeypatch, block, reentrant):
    refused(pool, monkeypatch, "each of its runs changes", functools.partial(Model, block, use_reentrant=reentrant))


def test_one_such_block_among_others(pool, monkeypatch):
    made = iter([Counting, Block, Block, Block] * 2)
    model = functools.partial(Model, lambda: next(made)())
    refused(pool, monkeypatch, "each of its runs changes", model, count=1, steps=STEPS)


@VARIANTS
def test_a_generator_of_its_own(pool, monkeypatch, reentrant):
    model = functools.partial(Model, Drawing, use_reentrant=reentrant)
    refused(pool, monkeypatch, "a generator that no second run finds as it was", model)


def test_the_generator_of_python(pool, monkeypatch):
    random.seed(5)
    choosing(monkeypatch, range(BLOCKS))

    def scenario(program):
        random.seed(5)
        for _ in range(14):
            program.step()

    figures, kept, _ = compare(pool, scenario, model=functools.partial(Model, Rolling))
    assert not any(kept) and all("Python's or NumPy's" in each for each in figures["refused"]), figures


def test_a_region_that_does_not_preserve_the_generators_state(pool, monkeypatch):
    refused(pool, monkeypatch, "preserve_rng_state=False", functools.partial(Model, preserve_rng_state=False))


def test_selective_checkpointing(pool, monkeypatch):
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.tanh.default])
    refused(pool, monkeypatch, "context_fn", functools.partial(Model, context_fn=contexts))


@pytest.mark.parametrize("option", [{"determinism_check": "none"}, {"early_stop": False}])
def test_other_options(pool, monkeypatch, option):
    refused(pool, monkeypatch, next(iter(option)), functools.partial(Model, **option))


class Surrounded(Model):
    """Blocks are called inside something."""

    def __init__(self, what, **options):
        super().__init__(**options)
        self.what = what

    def call(self, block, x):
        with self.what():
            return super().call(block, x)


class AnyMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (lambda: set_checkpoint_early_stop(False), "set_checkpoint_early_stop"),
        (lambda: torch.autocast("cpu", torch.bfloat16), "autocast"),
        (lambda: torch.device("cpu"), "another dispatch mode or function mode"),
        (AnyMode, "another dispatch mode or function mode"),
        (lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x), "hooks look at"),
    ],
    ids=["early stop", "autocast", "a device", "a mode", "hooks"],
)
def test_what_surrounds_a_region(pool, monkeypatch, what, why):
    refused(pool, monkeypatch, why, functools.partial(Surrounded, what))


@VARIANTS
def test_regions_in_regions(pool, monkeypatch, reentrant):
    refused(pool, monkeypatch, "another region is in it", functools.partial(Model, Nested, use_reentrant=reentrant))


def test_a_block_that_changes_its_input(pool, monkeypatch):
    class Changed(Model):
        def call(self, block, x):
            return super().call(block, x * 1)

    refused(pool, monkeypatch, "changes", functools.partial(Changed, Writing))


def test_results_that_are_changed_after_their_region(pool, monkeypatch):
    class After(Model):
        """Autograd would find that tanh's result is not what it was, if the region ran once."""

        def call(self, block, x):
            return checkpoint(lambda x: torch.tanh(block(x)), x, **self.options).mul_(2)

    refused(pool, monkeypatch, "is changed, or still in use", After)


def test_inputs_that_are_changed_after_their_region(pool, monkeypatch):
    class Before(Model):
        def call(self, block, x):
            factor = torch.ones(WIDTH)
            result = checkpoint(lambda x: block(x * factor), x, **self.options)
            factor.data.add_(1)  # the second run reads it
            return result

    refused(pool, monkeypatch, "would read other bytes of", Before)


def test_kernels_that_are_compiled(pool, monkeypatch, compiled_once):
    class Compiled(Model):
        def __init__(self):
            super().__init__(functools.partial(Block, 0))
            for block in self.blocks:
                block.compile()

    refused(pool, monkeypatch, "compiled kernels", Compiled)


def test_a_region_that_never_runs_again(pool, monkeypatch):
    class Unused(Model):
        def call(self, block, x):
            super().call(block, x)
            return block(x)

    refused(pool, monkeypatch, "it does not run again", Unused)


def test_a_region_that_runs_again_and_again(pool, monkeypatch):
    class Kept(Program):
        def backward(self):
            loss = self.model(self.x).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
            self.note("loss", loss)

    monkeypatch.setattr("tidetest.regions.Program", Kept)
    refused(pool, monkeypatch, "it runs more than twice")


def test_a_region_that_runs_again_in_the_next_step(pool, monkeypatch):
    class Late(Program):
        loss = None

        def backward(self):
            before, self.loss = self.loss, self.model(self.x).square().mean()
            if before is not None:
                before.backward()
            self.note("loss", self.loss)

    monkeypatch.setattr("tidetest.regions.Program", Late)
    refused(pool, monkeypatch, "it runs again in another step")


def test_modes_without_a_choice(pool):
    for options, why in [({"mode": "reactive"}, "nothing is planned"), ({"updates": "lazy"}, 'updates="lazy"')]:
        figures, kept, _ = compare(pool, steps=4, **options)
        assert not any(kept) and why in figures["why"]


def test_a_program_without_regions(pool):
    class Plain(Model):
        def call(self, block, x):
            return block(x)

    figures, _, _ = compare(pool, model=Plain, steps=16)
    assert "no step has called torch.utils.checkpoint" in figures["why"]


def test_layer_by_layer(pool):
    class Layers(Program):
        def backward(self):
            losses = tidelog.accumulate(
                self.model,
                self.x.chunk(2),
                lambda model, x: model(x).square().mean(),
                blocks=self.model.blocks,
            )
            self.note("losses", losses)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidetest.regions.Program", Layers)
        figures, kept, _ = compare(pool, model=functools.partial(Model, functools.partial(Block, 0)), steps=16)
    assert not any(kept) and "tidelog.accumulate" in figures["why"], figures


class Reducing(Model):
    """Model with a collective in each region."""

    def call(self, block, x):
        def reduced(x):
            result = block(x)
            torch.distributed.all_reduce(result.detach().clone())
            return result

        return checkpoint(reduced, x, **self.options)


def test_a_collective_that_a_second_run_has_again(pool, tmp_path):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(torch.distributed.destroy_process_group)
        figures, _, _ = compare(pool, model=Reducing)
    assert all("it has a collective" in why for why in figures["refused"]) and len(figures["refused"]) == BLOCKS


def test_random_numbers_of_a_gpu_that_checkpoint_does_not_save():
    """Checks random states, of which checkpoint saves those of the GPUs that arguments are on."""
    with FakeTensorMode():
        drawn = torch.rand(2, device="cuda:0")
    regions = Regions(None, None)
    for saved, why in ((set(), "draws random numbers of cuda:0, where no argument"), ({drawn.device}, None)):
        regions.inside = region = Region((None, ()), None)
        region.saved = saved
        regions.saw(torch.ops.aten.rand.default, ([2],), {"device": "cuda:0"}, drawn)
        assert region.why is None if why is None else why in region.why
