"""Regions under torch.utils.checkpoint that run once, where the planner finds that better: the same bits."""

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import tidelog
from tidelog import _versions
from tidelog.abi import _native
from tidelog.recompute import _recompute
from tidetest.regions import BLOCKS, BUDGET, STAGING, STEPS, Model, Program, Twice, Words, choosing, compare, gpt2

ALL, NONE, OTHERS = range(BLOCKS), (), range(0, BLOCKS, 2)
VARIANTS = pytest.mark.parametrize("reentrant", [False, True])


@VARIANTS
@pytest.mark.parametrize("once", [ALL, OTHERS])
def test_regions_run_once(pool, monkeypatch, reentrant, once):
    choosing(monkeypatch, once)
    figures, kept, notices = compare(pool, model=functools.partial(Model, use_reentrant=reentrant))
    assert figures["kept"] == kept[-1] == len(once), figures
    assert not any("left the plan" in notice for notice in notices), notices
    assert figures["again"] == BLOCKS - len(once) and not figures["refused"]
    assert kept[0] == 0  # the first steps are the program's own
    assert figures["own_seconds"] and figures["kept_seconds"]


@VARIANTS
def test_where_to_run_all_again_is_best_nothing_changes(pool, monkeypatch, reentrant):
    choosing(monkeypatch, NONE)
    figures, kept, _ = compare(pool, model=functools.partial(Model, use_reentrant=reentrant))
    assert not any(kept) and figures["why"] == "to run all again is best, by the planner"


@VARIANTS
def test_the_planner_chooses(pool, reentrant):
    figures, kept, _ = compare(pool, model=functools.partial(Model, use_reentrant=reentrant))
    assert figures["own_seconds"] and not figures["refused"], figures
    assert "to run all again is best" in figures["why"] or max(kept), figures


def test_usual_ops_go_past_python(pool, monkeypatch):
    choosing(monkeypatch, ALL)
    passed = []

    def scenario(program):
        for _ in range(STEPS):
            program.step()
            if program.tide is not None:
                passed.append(program.tide.stats()["dispatch"]["ops_past_python"])

    compare(pool, scenario)
    assert passed[-1] - passed[-2] > 200, passed  # of 260 ops


def test_own_is_the_default(pool):
    program = Program()
    with tidelog.offload(program.model, pool=pool, memory=BUDGET, staging=STAGING) as tide:
        assert tide.stats()["recompute"] is None
    assert "apply" not in vars(torch.utils.checkpoint.CheckpointFunction)


def test_an_option_that_is_none_is_refused(pool):
    with pytest.raises(tidelog.Error, match="recompute='none': expected 'own' or 'best'"):
        tidelog.offload(pool=pool, memory=BUDGET, recompute="none")


def test_slower_steps_go_back(pool, monkeypatch):
    choosing(monkeypatch, ALL)
    monkeypatch.setattr(_recompute, "_SLOWER", 0)
    figures, kept, notices = compare(pool)
    assert BLOCKS in kept and kept[-1] == 0, kept
    assert "all regions run again, as the program has it: steps took" in figures["why"]
    assert figures["why"] in notices
    assert not any("left the plan" in notice for notice in notices), notices  # they are learnt again, too


def test_steps_that_are_never_alike_go_back(pool, monkeypatch):
    choosing(monkeypatch, ALL)
    monkeypatch.setattr(_recompute, "_PATIENCE", 6)

    class Restless(Program):
        count = 0

        def backward(self):
            if self.tide is not None and self.tide.stats()["recompute"]["kept"]:
                self.count += 1
                torch.zeros(self.count)  # an op that no other step has
            super().backward()

    monkeypatch.setattr("tidetest.regions.Program", Restless)
    figures, kept, notices = compare(pool)
    assert BLOCKS in kept and kept[-1] == 0, kept
    assert "6 steps with regions that ran once followed no plan" in figures["why"] and figures["why"] in notices


def test_micro_batches_have_regions_of_their_own(pool, monkeypatch):
    choosing(monkeypatch, range(1, 2 * BLOCKS, 2))
    monkeypatch.setattr("tidetest.regions.Program", Twice)
    figures, _, _ = compare(pool)
    assert (figures["kept"], figures["again"]) == (BLOCKS, BLOCKS), figures


@VARIANTS
def test_a_tensor_that_several_regions_use_has_its_gradient_added_up_in_the_same_order(pool, monkeypatch, reentrant):
    choosing(monkeypatch, ALL)

    class Shared(Model):
        """All blocks are one, and all get the first one's input beside their own."""

        def __init__(self):
            super().__init__(use_reentrant=reentrant)
            self.blocks = torch.nn.ModuleList([self.blocks[0]] * BLOCKS)

        def forward(self, x):
            first = x = torch.tanh(self.first(x))
            for block in self.blocks:
                x = checkpoint(lambda x, first, block=block: block(x * first) + first * x, x, first, **self.options)
            return x + first

    figures, _, _ = compare(pool, model=Shared, memory=STAGING + (400 << 10))
    assert figures["kept"] == BLOCKS, figures


@VARIANTS
def test_several_results_and_other_arguments(pool, monkeypatch, reentrant):
    choosing(monkeypatch, ALL)

    class Several(Model):
        def call(self, block, x):
            result, given, number, _ = checkpoint(
                lambda x, factor, nothing: (block(x) * factor, x, 3, nothing), x, 0.5, None, **self.options
            )
            return result + given / number

    figures, _, _ = compare(pool, model=functools.partial(Several, use_reentrant=reentrant))
    assert figures["kept"] == BLOCKS, figures


@VARIANTS
def test_a_graph_that_is_kept_runs_backward_twice(pool, monkeypatch, reentrant):
    choosing(monkeypatch, ALL)

    def scenario(program):
        for _ in range(STEPS):
            program.step()
        with program.boundary():
            loss = program.model(program.x).sum()
            loss.backward(retain_graph=True)
            program.note("once", [each.grad for each in program.model.parameters()])
            loss.backward()
            program.note("twice", [each.grad for each in program.model.parameters()])
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()

    figures, _, _ = compare(pool, scenario, model=functools.partial(Model, use_reentrant=reentrant))
    assert figures["kept"] == BLOCKS, figures


def test_gradients_that_are_asked_for_are_refused_as_by_the_program(pool, monkeypatch):
    choosing(monkeypatch, ALL)

    def scenario(program):
        for _ in range(STEPS):
            program.step()
        with program.boundary():
            loss = program.model(program.x).sum()
            with pytest.raises(RuntimeError, match="use_reentrant=True"):
                torch.autograd.grad(loss, list(program.model.parameters()))

    figures, _, _ = compare(pool, scenario, model=functools.partial(Model, use_reentrant=True))
    assert figures["kept"] == BLOCKS, figures


@VARIANTS
def test_a_step_that_fails_in_a_region(pool, monkeypatch, reentrant):
    choosing(monkeypatch, ALL)

    def fail(*_):
        raise KeyError("in a region")

    def scenario(program):
        errors = []  # with the frames of what failed, in which `checkpoint` has not ended its hooks before torch 2.13
        for number in range(24):
            if number in (2, 20):
                handle = program.model.blocks[1].up.register_forward_hook(fail)
                with pytest.raises(KeyError) as caught:
                    program.step()
                errors.append(caught if _versions.version_of(torch.__version__) >= (2, 13) else None)
                handle.remove()
                del caught
            program.step()

    figures, _, _ = compare(pool, scenario, model=functools.partial(Model, use_reentrant=reentrant))
    assert figures["kept"] == BLOCKS, figures


def test_a_model_that_is_looked_at_between_steps(pool, monkeypatch):
    choosing(monkeypatch, ALL)

    def scenario(program):
        for number in range(STEPS):
            program.step()
            if number % 5 == 3:
                program.model.eval()
                with torch.no_grad():
                    program.note("evaluated", program.model(program.x))
                program.model.train()

    figures, _, _ = compare(pool, scenario)
    assert figures["kept"] == BLOCKS, figures


def test_another_model_at_its_place_runs_as_the_program_has_it(pool, monkeypatch):
    choosing(monkeypatch, ALL)

    def scenario(program):
        for number in range(24):
            if number == 20:
                program.model.blocks[1].eval()  # no dropout: another region than the one that was chosen
            program.step()

    figures, kept, _ = compare(pool, scenario)
    assert kept[19] == BLOCKS and figures["kept"] == BLOCKS - 1, kept


def test_another_option_at_its_place_runs_as_the_program_has_it(pool, monkeypatch):
    choosing(monkeypatch, ALL)

    def scenario(program):
        for number in range(24):
            if number == 20:
                program.model.options["determinism_check"] = "none"
            program.step()

    figures, kept, _ = compare(pool, scenario)
    assert kept[19] == BLOCKS and figures["kept"] == 0, kept


def test_early_updates(pool, monkeypatch):
    choosing(monkeypatch, OTHERS)
    figures, _, _ = compare(pool, updates="early")
    assert figures["kept"] == len(OTHERS), figures


def test_parts_of_a_sequential_model(pool, monkeypatch):
    choosing(monkeypatch, (0, 1))

    class Parts(Model):
        def forward(self, x):
            blocks = torch.nn.Sequential(*self.blocks)
            return checkpoint_sequential(blocks, 3, torch.tanh(self.first(x)), use_reentrant=False)

    figures, _, _ = compare(pool, model=Parts)
    assert figures["kept"] == 2, figures


@VARIANTS
def test_transformers(pool, monkeypatch, reentrant):
    choosing(monkeypatch, (0, 2))
    pytest.importorskip("transformers")

    def model():
        made = gpt2()
        made.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return made

    monkeypatch.setattr("tidetest.regions.Program", Words)
    figures, _, _ = compare(pool, model=model, memory=2 << 20)
    assert (figures["kept"], figures["again"]) == (2, 1), figures


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"why_not": "it is ill"}, "the planner failed: it is ill"),
        (
            {"once": [], "refused": [], "tried": 5, "without_room": 3},
            "no room for: 3 of 5 choices. A larger pool_size= may help",
        ),
    ],
    ids=["no planner", "no room"],
)
def test_where_there_is_no_choice_it_says_why(pool, monkeypatch, made, why):
    monkeypatch.setattr(_native.Session, "chosen_regions", lambda session: made)
    monkeypatch.setattr(_recompute, "_COMPARED", 2)
    figures, kept, _ = compare(pool, steps=12)
    assert not any(kept) and why in figures["why"] and figures["settled"], figures


def test_the_library_refuses_what_is_no_region(pool):
    program = Program()
    with tidelog.offload(program.model, pool=pool, memory=BUDGET, staging=STAGING) as tide:
        with pytest.raises(tidelog.Error, match="there is no plan yet"):
            tide.session.choose_regions([(0, 1, 2, 3)])
        assert tide.session.chosen_regions() is None
    assert isinstance(tide.session, _native.Session)
