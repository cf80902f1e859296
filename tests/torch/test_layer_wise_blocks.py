"""tidelog.accumulate inside an offload block: the same bits, the budget, plans, and what comes in how often."""

import gc
import warnings

import pytest
import torch

import tidelog
from tidetest import KIB, MIB
from tidetest.bits import assert_same, frozen
from tidetest.micro_batches import adamw, loop, loss_of, tokens, transformer

SHAPE = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
STAGING = 256 * KIB
BUDGET = STAGING + 1000 * KIB  # a third of what lives
MICRO_BATCHES = 3
STEPS_MAX = 10


class Run:
    """A few steps of a model, with what they gave."""

    def __init__(self, layer_wise, **settings):
        self.model = transformer("llama", **{**SHAPE, **settings})
        self.optimizer = adamw(self.model)
        self.accumulate = tidelog.accumulate if layer_wise else loop
        self.losses = []
        self.steps = 0

    def step(self):
        self.optimizer.zero_grad()
        batches = [tokens(self.steps * MICRO_BATCHES + number) for number in range(MICRO_BATCHES)]
        self.losses += self.accumulate(self.model, batches, loss_of)
        self.optimizer.step()
        self.steps += 1

    def in_block(self, pool, mode, steps, **more):
        """Takes steps in a block until it follows a plan, then some more. Returns figures of the last."""
        options = {"staging": STAGING, "pool_size": 64 * MIB, "mode": mode, **more}
        with (
            warnings.catch_warnings(),
            tidelog.offload(self.model, self.optimizer, pool=pool, memory=BUDGET, **options) as tide,
        ):
            warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
            while self.steps < (STEPS_MAX if mode == "auto" else 1) and tide.phase != "planned":
                self.step()
            assert tide.phase == ("planned" if mode == "auto" else "reactive"), tide.stats()["held_back"]
            for _ in range(steps):
                self.step()
            self.step()  # in a loop without marks a step ends with the next one's first op at the latest
            assert tide.peak_bytes <= BUDGET
            stats = tide.stats()
            figures = {**tide.last_step(), "notices": stats["notices"], "updates": stats["updates"]}
        tide.restore()
        return figures

    def result(self):
        return frozen([self.losses, dict(self.model.state_dict()), self.optimizer.state_dict()["state"]])


@pytest.mark.parametrize(
    "settings", [{}, {"tie_word_embeddings": True}, {"checkpointing": True}, {"attention_dropout": 0.1}], ids=str
)
def test_the_same_bits_under_a_budget(pool, mode, settings):
    offloaded = Run(True, **settings)
    figures = offloaded.in_block(pool, mode, steps=3)
    assert figures["bytes_read"] > 0
    assert not any("left the plan" in notice for notice in figures["notices"]), figures["notices"]
    steps, got = offloaded.steps, offloaded.result()
    del offloaded
    gc.collect()
    plain = Run(False, **settings)
    for _ in range(steps):
        plain.step()
    assert_same(plain.result(), got)


def test_parameters_come_in_once_a_pass(pool):
    """Checks that parameters come in once a pass: in the program's order most come in for every micro-batch and
    direction.
    """
    read = {}
    for layer_wise in (False, True):
        run = Run(layer_wise, checkpointing=True)
        read[layer_wise] = run.in_block(pool, "auto", steps=3)["bytes_read"]
        del run
        gc.collect()
    # Plans follow rates that are measured: 0.53 to 0.84 in 17 runs.
    assert read[True] < 0.95 * read[False], read


@pytest.mark.parametrize("settings", [{}, {"tie_word_embeddings": True}, {"checkpointing": True}], ids=str)
@pytest.mark.parametrize("updates", ["lazy", "early"])
def test_updates(pool, updates, settings):
    """Late ones run in the micro-batches' threads, just before a parameter is used; early ones in the last
    micro-batch of the first block that uses the parameter."""
    offloaded = Run(True, **settings)
    figures = offloaded.in_block(pool, "auto", steps=3, updates=updates)
    steps, got, trained = offloaded.steps, offloaded.result(), len(list(offloaded.model.parameters()))
    if updates == "early":
        assert figures["updates"] == {"pending": 0, "late": 0, "early": trained * (steps - 2)}, figures["notices"]
    else:
        assert figures["updates"]["late"]
    del offloaded
    gc.collect()
    plain = Run(False, **settings)
    for _ in range(steps):
        plain.step()
    assert_same(plain.result(), got)


def test_marked_steps(pool):
    run = Run(True)
    with tidelog.offload(
        run.model, run.optimizer, pool=pool, memory=BUDGET, staging=STAGING, pool_size=64 * MIB
    ) as tide:
        while tide.phase != "planned" and run.steps < STEPS_MAX:
            with tide.step():
                run.step()
        assert tide.phase == "planned"
        with tide.step():
            run.step()
        tide.restore()


def test_a_block_belongs_to_its_thread_again(pool):
    """Checks a block after a micro-batch's thread has raised an error, and after a refusal."""
    run = Run(True)
    with tidelog.offload(
        run.model, run.optimizer, pool=pool, memory=BUDGET, staging=STAGING, pool_size=64 * MIB
    ) as tide:
        run.step()
        run.optimizer.zero_grad()

        def fails(model, batch):
            loss = loss_of(model, batch)
            raise KeyError("of the program") from None if loss is None else None

        with pytest.raises(KeyError, match="of the program"):
            tidelog.accumulate(run.model, [tokens(0), tokens(1)], fails)
        assert not tide.access.is_elsewhere()
        assert all(parameter.grad is None for parameter in run.model.parameters())

        def twice(model, batch):
            return loss_of(model, batch) + loss_of(model, batch)

        with pytest.raises(tidelog.OrderError, match="more than once"):
            tidelog.accumulate(run.model, [tokens(0), tokens(1)], twice)
        assert not tide.access.is_elsewhere()
        run.step()
        tide.restore()


def test_a_micro_batch_may_read_what_is_out(pool):
    """Checks that a micro-batch's thread counts as the block's own: tolist() and the like bring back what they need."""
    run = Run(True)
    sums = {True: [], False: []}
    with tidelog.offload(
        run.model, run.optimizer, pool=pool, memory=BUDGET, staging=STAGING, pool_size=64 * MIB
    ) as tide:
        for layer_wise in (False, True):
            run.accumulate = tidelog.accumulate if layer_wise else loop

            def loss(model, batch, layer_wise=layer_wise):
                tide.evict(model.lm_head.weight)
                sums[layer_wise].append(model.lm_head.weight.detach().tolist()[0][:3])
                return loss_of(model, batch)

            run.accumulate(run.model, [tokens(0), tokens(1)], loss)
        tide.restore()
    assert sums[True] == sums[False] and len(sums[True]) == 2


def test_two_blocks_one_after_the_other(pool):
    for _ in range(2):
        run = Run(True)
        assert run.in_block(pool, "reactive", steps=1)["bytes_read"] > 0
        assert torch.isfinite(torch.stack(run.losses)).all()
        del run
        gc.collect()
