"""A checkpoint of a run that does not fit in its budget is whole, and loading one works. It is never empty."""

import copy
import io
import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

import tidelog
from tidetest import KIB, MIB
from tidetest.bits import assert_same
from tidetest.world import World


def push_everything_out(world):
    """Evicts as much as can move: the checkpoint has to bring it back piece by piece."""
    if world.tide is not None:
        for tensor in world.tensors().values():
            try:
                world.tide.evict(tensor)
            except (tidelog.PinnedError, tidelog.UnmovableError):
                pass
        assert any(not world.tide.is_resident(tensor) for tensor in world.tensors().values())


def load(data):
    return torch.load(io.BytesIO(data), weights_only=False)


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("target", ["memory", "file"])
def test_torch_save_of_model_and_optimizer(compare, tmp_path, legacy, target):
    """Four times the budget goes into one file."""

    def scenario(world):
        world.steps(1)
        push_everything_out(world)
        state = {"model": world.model.state_dict(), "optimizer": world.optimizer.state_dict(), "loose": world.loose}
        options = {"_use_new_zipfile_serialization": not legacy}
        if target == "memory":
            data = saved(state, **options)
        else:
            torch.save(state, tmp_path / "checkpoint.pt", **options)
            data = (tmp_path / "checkpoint.pt").read_bytes()
        assert len(data) > 500 * KIB
        world.note_saved("checkpoint", data, load)

    compare(scenario)


def test_a_checkpoint_is_loaded_back_into_the_run(compare):

    def scenario(world):
        push_everything_out(world)
        data = saved((world.model.state_dict(), world.optimizer.state_dict()))
        world.steps(2)
        push_everything_out(world)
        model, optimizer = load(data)
        world.model.load_state_dict(model)
        world.optimizer.load_state_dict(optimizer)
        world.note("loaded", [world.model.state_dict(), world.optimizer.state_dict()])

    compare(scenario)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("place", [None, "cpu", lambda storage, location: storage, {"cuda:0": "cpu"}])
def test_what_is_loaded_inside_the_block_moves_and_stays_tied(compare, place, legacy):

    def scenario(world):
        push_everything_out(world)
        tensor = torch.arange(3000.0)
        data = saved([tensor, tensor[5:], torch.ones(9, dtype=torch.int8)], _use_new_zipfile_serialization=not legacy)
        whole, part, small = torch.load(io.BytesIO(data), map_location=place)
        assert whole.untyped_storage()._cdata == part.untyped_storage()._cdata
        if world.tide is not None:
            for tensor in (whole, small):
                if world.tide.ledger.owns(tensor.untyped_storage()):
                    world.tide.evict(tensor)  # or it says why it cannot
        part.add_(1)
        world.note("loaded", [whole, part, small])

    compare(scenario)


def test_where_loading_asks_whether_a_storage_has_memory_it_still_moves(compare):
    """Loads as `torch.load` does before torch 2.15."""
    asked = {}
    exec("def load_tensor(storage): return storage._data_ptr()", vars(torch.serialization), asked)

    def scenario(world):
        stored = world.loose._typed_storage()
        if world.tide is not None:
            world.tide.evict(world.loose)
        world.note("has memory", asked["load_tensor"](stored) != 0)
        world.note("has none", asked["load_tensor"](torch.empty(0)._typed_storage()) == 0)
        if world.tide is not None:
            assert not world.tide.is_resident(world.loose)
            world.tide.evict(world.loose)

    compare(scenario)


def test_a_checkpoint_in_the_middle_of_a_step(compare):
    def scenario(world):
        with world.boundary():
            world.first_half()
            world.note_saved("after forward", saved([world.model.state_dict(), world.optimizer.state_dict()]), load)
            world.second_half()
            world.note_saved("after the update", saved([world.model.state_dict(), world.optimizer.state_dict()]), load)

    compare(scenario)


def test_a_whole_module_is_pickled(compare):
    def scenario(world):
        push_everything_out(world)
        world.note_saved("saved", saved(world.model), lambda data: load(data).state_dict())
        push_everything_out(world)
        world.note_saved("pickled", pickle.dumps(world.model), lambda data: pickle.loads(data).state_dict())
        push_everything_out(world)
        world.note_saved("optimizer", pickle.dumps(world.optimizer), lambda data: pickle.loads(data).state_dict())

    compare(scenario)


def test_deepcopy_of_module_and_optimizer(compare):
    def scenario(world):
        push_everything_out(world)
        twin = copy.deepcopy(world.model)
        world.note("module", twin.state_dict())
        world.note("gradients", [parameter.grad for parameter in twin.parameters()])
        push_everything_out(world)
        world.note("optimizer", copy.deepcopy(world.optimizer).state_dict())
        push_everything_out(world)
        world.note("state_dict", copy.deepcopy(world.model.state_dict()))
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()  # the copy is a copy
        world.steps(1)
        world.note("original", world.model.state_dict())
        world.note("zeroed", twin.state_dict())

    compare(scenario)


def test_a_copied_model_trains_like_the_original(compare):
    def scenario(world):
        push_everything_out(world)
        model, optimizer = copy.deepcopy((world.model, world.optimizer))
        for _ in range(3):
            with world.boundary():
                optimizer.zero_grad()
                loss = ((model(world.x) - world.y) ** 2).mean()
                loss.backward()
                optimizer.step()
            world.note("loss", loss)
        world.note("trained", model.state_dict())

    compare(scenario)


def load_safetensors(data):
    return dict(sorted(safetensors.torch.load(data).items()))


def test_safetensors_writes(compare, tmp_path):
    def scenario(world):
        file = tmp_path / "model.safetensors"
        push_everything_out(world)
        safetensors.torch.save_file(world.model.state_dict(), file, metadata={"format": "pt"})
        world.note_saved("file", file.read_bytes(), load_safetensors)
        push_everything_out(world)
        world.note_saved("bytes", safetensors.torch.save(world.model.state_dict()), load_safetensors)
        push_everything_out(world)
        safetensors.torch.save_model(world.model, str(file))
        world.note_saved("model file", file.read_bytes(), load_safetensors)
        world.note_saved("loose", safetensors.torch.save({"loose": world.loose}), load_safetensors)

    compare(scenario)


def test_safetensors_reads(compare, tmp_path):
    def scenario(world):
        file = tmp_path / "model.safetensors"
        safetensors.torch.save_file(world.model.state_dict(), file)
        world.steps(1)
        push_everything_out(world)
        world.note("file", dict(sorted(safetensors.torch.load_file(file).items())))
        with safetensors.safe_open(file, framework="pt") as handle:
            world.note("lazily", {name: handle.get_tensor(name) for name in sorted(handle.keys())})
            world.note("a slice", handle.get_slice("3.linear.weight")[2:5, :7])
        push_everything_out(world)
        safetensors.torch.load_model(world.model, str(file))

    compare(scenario, memory=3 * MIB)


def one_tensor(file):
    with safetensors.safe_open(file, framework="pt") as handle:
        return handle.get_tensor("large")


def one_slice(file):
    with safetensors.safe_open(file, framework="pt") as handle:
        return handle.get_slice("large")[2:900, :7]


@pytest.mark.host_memory("a file that is mapped does not count against a GPU's budget")
@pytest.mark.parametrize("read", [safetensors.torch.load_file, one_tensor, one_slice])
def test_safetensors_larger_than_the_budget_is_read_and_an_op_on_it_is_refused(pool, tmp_path, mode, read):
    """A file does not count before a step begins, or an op that is looked at uses it."""
    file = tmp_path / "model.safetensors"
    tensors = {"large": torch.arange(1 << 20, dtype=torch.float32).reshape(1024, 1024), "small": torch.ones(8)}
    safetensors.torch.save_file(tensors, file)
    del tensors
    with tidelog.offload(pool=pool, memory=2 * MIB, staging=MIB, mode=mode, pool_size=64 * MIB) as tide:
        found = read(file)
        large = found["large"] if isinstance(found, dict) else found
        with tide.step():
            pass
        assert tide.live_bytes <= 2 * MIB and not tide.is_resident(large)
        with pytest.raises(tidelog.BudgetError, match="budget"):
            large.sum()
        assert torch.ones(8).sum() == 8, "the block goes on"
        del found, large
    assert read(file) is not None


def test_state_dict_consumers(compare):
    """Uses a state_dict in usual ways: hash it, add it up, average it, move it, walk it."""

    def scenario(world):
        world.steps(1)
        push_everything_out(world)
        state = world.model.state_dict()
        world.note("norms", {name: value.norm().item() for name, value in state.items()})
        push_everything_out(world)
        world.note("copies", {name: value.clone() for name, value in state.items()})
        world.note("halves", {name: value.to(torch.bfloat16) for name, value in state.items()})
        world.note("sizes", sum(value.numel() * value.element_size() for value in state.values()))
        push_everything_out(world)
        world.note(
            "state", [value for entry in world.optimizer.state_dict()["state"].values() for value in entry.values()]
        )
        world.note("averaged", {name: (value + value.roll(1, 0)) / 2 for name, value in state.items()})

    compare(scenario)


@pytest.mark.parametrize("assign", [False, True], ids=["copy", "assign"])
def test_model_load_state_dict(compare, assign):
    def scenario(world):
        saved = io.BytesIO()
        torch.save(world.model.state_dict(), saved)
        world.steps(2)
        push_everything_out(world)
        saved.seek(0)
        world.attempt("result", lambda: str(world.model.load_state_dict(torch.load(saved), assign=assign)))
        world.note("loaded", world.model.state_dict())
        if assign:  # the optimizer holds the old parameters still; give it the new ones
            world.optimizer = torch.optim.SGD(world.model.parameters(), lr=0.1)
        world.steps(1)

    compare(scenario, memory=3 * MIB)


def test_optimizer_load_state_dict(compare):
    def scenario(world):
        model, optimizer = copy.deepcopy((world.model.state_dict(), world.optimizer.state_dict()))
        world.steps(2)
        push_everything_out(world)
        world.model.load_state_dict(model)
        world.optimizer.load_state_dict(optimizer)
        world.note("loaded", world.optimizer.state_dict())
        push_everything_out(world)
        world.steps(2)

    compare(scenario)


def test_load_state_dict_reports_mismatches_as_torch_does(compare):
    def scenario(world):
        push_everything_out(world)
        state = dict(world.model.state_dict())
        state["unexpected"] = torch.zeros(1)
        state.pop("3.linear.weight")
        world.attempt("strict", world.model.load_state_dict, state)
        world.note("lenient", str(world.model.load_state_dict(state, strict=False)))

    compare(scenario)


def test_a_checkpoint_continues_in_a_new_block(pool, tmp_path, mode):
    """Train, save, start over from the file in another block: the same bits as training through."""
    through = World()
    through.steps(6)
    expected = through.result()
    del through

    first = World()
    with first.block(pool, mode):
        first.steps(3)
        torch.save((first.model.state_dict(), first.optimizer.state_dict(), first.losses), tmp_path / "run.pt")
        world_data = first.loose.clone()
        data = world_data.cpu().numpy().tobytes()
    del first, world_data

    second = World(seed=0)
    model, optimizer, losses = torch.load(tmp_path / "run.pt", weights_only=False)
    second.losses = losses
    with second.block(pool, mode, memory=4 * MIB):
        second.model.load_state_dict(model)
        second.optimizer.load_state_dict(optimizer)
        del model, optimizer
        second.steps(3)
        got = second.result()
    assert data == dict(expected)["loose"][3]
    for (name, one), (_, other) in zip(expected, got, strict=True):
        if not name.startswith("gradient"):
            assert_same(one, other, name)


def test_module_conversions(compare):
    """model.double(), .bfloat16() and .to() replace every parameter's memory."""

    def scenario(world):
        push_everything_out(world)
        world.optimizer = torch.optim.SGD(world.model.parameters(), lr=0.1)  # Adam's state would keep its type
        world.model.double()
        world.x, world.y = world.x.double(), world.y.double()
        world.note("double", world.model.state_dict())
        world.steps(1)
        push_everything_out(world)
        world.model.float()
        world.x, world.y = world.x.float(), world.y.float()
        world.steps(1)
        push_everything_out(world)
        world.model.to(torch.bfloat16)
        world.note("bfloat16", world.model.state_dict())
        world.model.to(torch.float32)
        world.model.requires_grad_(False).requires_grad_(True)

    compare(scenario)


def test_parameters_as_one_vector(compare):
    def scenario(world):
        small = list(world.model[2].parameters())
        world.push_out(*small)
        vector = nn.utils.parameters_to_vector(small)
        world.push_out(*small)
        nn.utils.vector_to_parameters(vector * 0.5, small)
        world.note("halved", [parameter.detach() for parameter in small])

    compare(scenario)


def test_loading_over_tensors_that_are_out_with_mmap(compare, tmp_path):
    def scenario(world):
        file = tmp_path / "model.pt"
        torch.save(world.model.state_dict(), file)
        world.steps(1)
        push_everything_out(world)
        world.model.load_state_dict(torch.load(file, mmap=True))
        world.note("loaded", world.model.state_dict())

    compare(scenario, memory=3 * MIB)
