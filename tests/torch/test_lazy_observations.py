"""Tests of observers of a parameter, its gradient or its state while their update is pending: none sees old bytes."""

import copy
import io
import pickle
import threading

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import tidelog
import tidelog.dcp
from tidetest import process
from tidetest.bits import assert_same, bits
from tidetest.updates import BUDGET, WIDTH, Program, compare


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


# name -> (what is looked at, whether all updates must have run then)
OBSERVATIONS = {
    "state_dict of the model": (lambda program: copy.deepcopy(program.model.state_dict()), True),
    "state_dict of the optimizer": (lambda program: saved(program.optimizer.state_dict()), True),
    "state_dict with the tensors": (lambda program: saved(program.model.state_dict(keep_vars=True)), True),
    "torch.save of the model": (lambda program: saved(program.model).state_dict(), True),
    "torch.save of the optimizer": (lambda program: saved(program.optimizer).state_dict(), True),
    "pickle": (lambda program: pickle.loads(pickle.dumps(program.model)).state_dict(), True),
    "deepcopy of the model": (lambda program: copy.deepcopy(program.model).state_dict(), True),
    "deepcopy of the optimizer": (lambda program: copy.deepcopy(program.optimizer).state_dict(), True),
    "safetensors": (lambda program: sorted(safetensors.torch.load(safetensors.torch.save(program.model.state_dict())).items()), True),
    "optimizer.state": (lambda program: [dict(each) for each in program.optimizer.state.values()], True),
    "repr": (lambda program: repr(list(program.model.parameters())), True),
    "tolist": (lambda program: program.weight.tolist(), False),
    "item": (lambda program: program.weight[0, 0].item(), False),
    "numpy": (lambda program: program.weight.detach().numpy().copy(), False),
    "data": (lambda program: program.weight.data.clone(), False),
    "bytes of the storage": (lambda program: bytes(program.weight.untyped_storage()[:64].tolist()), False),
    "an older view": (lambda program: program.older_view.sum(), False),
    "an older state": (lambda program: program.older_state.sum(), False),
    "the gradient": (lambda program: program.weight.grad.clone(), False),
    "a norm of gradients": (
        lambda program: torch.nn.utils.get_total_norm([each.grad for each in program.model.parameters()]),
        True,
    ),
    "gradients that are clipped after the step": (
        lambda program: torch.nn.utils.clip_grad_norm_(program.model.parameters(), 1e-3),
        True,
    ),
    "parameters_to_vector": (lambda program: nn.utils.parameters_to_vector(program.model.parameters()), True),
    "vector_to_parameters": (lambda program: halved(program.model.parameters()), True),
    "load_state_dict of the model": (lambda program: loaded(program.model), True),
    "load_state_dict of the optimizer": (lambda program: loaded(program.optimizer), True),
    "state that is given anew": (lambda program: program.optimizer.__setstate__(program.older_pickle), True),
    "a reset of the state": (lambda program: program.optimizer.state.clear(), True),
    "to another type": (lambda program: program.model.double().float() and None, True),
    "init": (lambda program: nn.init.orthogonal_(program.weight), False),
    "requires_grad_": (lambda program: program.model.requires_grad_(True) and None, None),
    "param_groups": (lambda program: [len(group["params"]) for group in program.optimizer.param_groups], None),
    "zero_grad": (lambda program: program.optimizer.zero_grad(), None),
    "zero_grad in place": (lambda program: program.optimizer.zero_grad(set_to_none=False), True),
    "functional_call": (
        lambda program: torch.func.functional_call(program.model, dict(program.model.named_parameters()), program.x),
        True,
    ),
    "torch.func.grad": (
        lambda program: torch.func.grad(
            lambda found: torch.func.functional_call(program.model, found, program.x).square().mean()
        )(dict(program.model.named_parameters())),
        True,
    ),
    "vmap": (lambda program: torch.func.vmap(lambda row: row @ program.weight)(program.x), False),
    "jacrev": (lambda program: torch.func.jacrev(lambda weight: (program.x[:1] @ weight)[0, :2])(program.weight), False),
    "a forward hook": (lambda program: hooked(program), True),
    "checkpointing": (
        lambda program: torch.utils.checkpoint.checkpoint(program.model, program.x, use_reentrant=False).sum(),
        True,
    ),
    "a TorchScript trace": (lambda program: torch.jit.trace(program.model, program.x)(program.x), True),
    "from_dlpack": (lambda program: torch.from_dlpack(program.weight.detach()).clone(), False),
    "restore": (lambda program: program.tide and program.tide.restore(program.weight), False),
    "pinned": (lambda program: program.tide and program.tide.pinned(program.weight).__enter__() and None, False),
    "a data pointer": (lambda program: program.weight.data_ptr() and None, False),
}  # fmt: skip


def halved(parameters):
    parameters = list(parameters)
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters) / 2, parameters)


def loaded(thing):
    """Loads other bytes into a thing, and restores it."""
    state = copy.deepcopy(thing.state_dict())
    thing.load_state_dict(state)
    return state


def hooked(program):
    seen = []
    handles = [
        layer.register_forward_pre_hook(lambda layer, _: seen.append(layer.weight.detach().clone()))
        for layer in program.model
    ]
    program.model(program.x)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("where", ["resident", "out"])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_an_observation_sees_the_update(pool, name, where):
    look, ends = OBSERVATIONS[name]

    def scenario(program):
        program.step()
        program.older_view = program.weight.detach()[3:5]
        program.older_state = program.optimizer.state[program.weight]["exp_avg"]
        program.older_pickle = copy.deepcopy(program.optimizer.__getstate__())
        program.step()
        if where == "out":
            program.push_out(program.weight, program.older_state)
        program.expect_pending(12)
        before = program.pending()
        program.attempt(name, look, program)
        if program.tide is not None:
            assert program.pending() == (before if ends is None else 0 if ends else before - 1)
        program.step()

    compare(scenario, pool, memory=8 * BUDGET if where == "resident" else 2 * BUDGET if "vector" in name else BUDGET)


# -- other threads, forks, code past the block ------------------------------------------------------------


def in_a_thread(look, begun_before):
    found = []
    go = threading.Event()

    def run():
        go.wait()
        try:
            found.append(look())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    if begun_before:
        thread.start()
    return thread, go, found


@pytest.mark.parametrize("look", ["op", "tolist", "data_ptr", "state"])
@pytest.mark.parametrize("begun_before", [True, False])
def test_another_thread_runs_an_update_before_it_looks(pool, look, begun_before):
    """Checks another thread, whenever it began."""
    plain = Program()
    plain.steps(3)
    expected = {"op": plain.weight.sum().item(), "tolist": plain.weight.tolist()}
    del plain

    program = Program()
    looks = {
        "op": lambda: program.weight.sum().item(),
        "tolist": lambda: program.weight.tolist(),
        "data_ptr": lambda: program.weight.data_ptr(),
        "state": lambda: program.optimizer.state,
    }
    thread, go, found = in_a_thread(looks[look], begun_before)
    with program.block(pool, memory="4MiB"):
        program.steps(3)
        program.expect_pending(12)
        if not begun_before:
            thread.start()
        go.set()
        thread.join()
        assert not isinstance(found[0], Exception), found
        assert expected.get(look, found[0]) == found[0]
        assert program.pending() == (0 if look == "state" else 11)
        program.weight.sum()


def test_code_inside_a_custom_op_is_refused_what_it_was_not_given(pool):
    program = Program()

    @torch.library.custom_op("tidelazy::closed_over", mutates_args=())
    def closed_over(x: torch.Tensor) -> torch.Tensor:
        return x + program.weight.detach()

    with program.block(pool, memory="4MiB"):
        program.steps(3)
        with pytest.raises(RuntimeError, match="an update of 0.weight"):
            closed_over(program.x.new_zeros(WIDTH, WIDTH))
        program.weight.sum()
        closed_over(program.x.new_zeros(WIDTH, WIDTH))


FORK = """
from tidetest.updates import Program
plain, program = Program(), Program()
plain.steps(3)
expected = bits(plain.weight)
with program.block(sys.argv[1], memory="4MiB") as tide:
    program.steps(3)
    program.expect_pending(12)
    child = os.fork()
    if child == 0:
        os._exit(0 if not tide.updates.pending and bits(program.weight) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert program.pending() == 0
    program.steps(2)
print("done")
"""


def test_a_fork_has_what_the_step_left(pool):
    process.assert_done(process.run(FORK, pool))


# -- checkpoints --------------------------------------------------------------------------------------------


def plain_after(steps):
    plain = Program()
    plain.steps(steps)
    return plain


@pytest.mark.parametrize("given", [True, False])
def test_a_checkpoint_holds_the_updates(pool, given):
    program = Program()
    with program.block(pool) as tide:
        program.steps(1)
        # Made before the step: nothing is touched between it and the checkpoint.
        state = {"model": program.model.state_dict(), "optimizer": program.optimizer.state_dict()}
        program.steps(3)
        program.expect_pending(12)
        tide.checkpoint("pending", state if given else None)
        assert program.pending() == 0
        program.steps(2)
    found, plain = tidelog.restore(pool, "pending"), plain_after(4)
    for name, value in plain.model.state_dict().items():
        assert_same(bits(value), bits(found["model"][name]), name)
    for number, entry in plain.optimizer.state_dict()["state"].items():
        for name, value in entry.items():
            assert_same(bits(value), bits(found["optimizer"]["state"][number][name]), f"{name} of {number}")


@pytest.mark.parametrize("save", [dcp.save, dcp.async_save])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_distributed_checkpoint_holds_the_updates(pool, tmp_path, save):
    program = Program()
    with program.block(pool) as tide:
        program.steps(1)
        state = {"model": program.model.state_dict()}
        program.steps(3)
        program.expect_pending(12)
        future = save(state, storage_writer=tidelog.dcp.StorageWriter(tide, "pending"))
        program.steps(2)
        if save is dcp.async_save:
            future.result()
    plain = plain_after(4)
    found = {"model": {name: torch.zeros_like(value) for name, value in plain.model.state_dict().items()}}
    dcp.load(found, storage_reader=tidelog.dcp.StorageReader(pool, "pending"))
    for name, value in plain.model.state_dict().items():
        assert_same(bits(value), bits(found["model"][name]), name)


def test_a_run_goes_on_from_a_checkpoint(pool):
    program = Program()
    with program.block(pool) as tide:
        program.steps(3)
        tide.checkpoint("three")
        program.steps(1)
    del program, tide
    other = Program()
    with other.block(pool, resume="three"):
        other.steps(3)
        found = {name: bits(value) for name, value in other.model.named_parameters()}
    for name, value in plain_after(6).model.named_parameters():
        assert_same(bits(value), found[name], name)
