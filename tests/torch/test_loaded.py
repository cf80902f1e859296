"""Weights that were loaded from a file move like all others, where nothing else has their memory: each is a slice of a
file that is mapped, or has memory that torch calls not resizable.
"""

import contextlib
import ctypes
import gc
import warnings
import weakref

import numpy
import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

import tidelog
from tidelog.memory._heap import anonymous_bytes
from tidelog.native._built import native
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits

pytestmark = pytest.mark.host_memory("what is loaded into a GPU's memory is copied there")

SIDE, LAYERS = 128, 16  # a layer has 64.5 KiB
STAGING = 256 * KIB
MEMORY = STAGING + 512 * KIB  # half of the weights
SIZE = SIDE * SIDE * 4


def made(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(LAYERS)))


@pytest.fixture
def files(tmp_path):
    """Writes one set of weights in each kind of file."""
    state = made().state_dict()
    torch.save(state, tmp_path / "weights.pt")
    safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
    return tmp_path


def by_handle(files):
    with safetensors.safe_open(files / "weights.safetensors", framework="pt") as handle:
        return {name: handle.get_tensor(name) for name in handle.keys()}


def by_slices(files):
    with safetensors.safe_open(files / "weights.safetensors", framework="pt") as handle:
        return {name: handle.get_slice(name)[...] for name in handle.keys()}


LOADERS = {
    "load_file": lambda files: safetensors.torch.load_file(files / "weights.safetensors"),
    "safe_open": by_handle,
    "get_slice": by_slices,
    "torch.load": lambda files: torch.load(files / "weights.pt"),
    "torch.load, mapped": lambda files: torch.load(files / "weights.pt", mmap=True),
}


def loaded(files, name):
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(LAYERS)))
    model.load_state_dict(LOADERS[name](files), assign=True)
    return model


def train(model, step=contextlib.nullcontext):
    """Half of it is frozen."""
    for layer in model[: LAYERS // 2]:
        layer.requires_grad_(False)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    torch.manual_seed(7)
    x, seen = torch.randn(4, SIDE), []
    for _ in range(5):
        with step():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        seen.append(bits(loss))
    return seen + [bits(each) for each in model.parameters()]


def offloaded(pool, mode, **options):
    return tidelog.offload(pool=pool, memory=MEMORY, staging=STAGING, mode=mode, pool_size=64 * MIB, **options)


@contextlib.contextmanager
def left_behind():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        yield


@pytest.mark.parametrize("when", ["before", "inside"])
@pytest.mark.parametrize("name", LOADERS)
def test_loaded_weights_move_below_a_budget_that_is_less_than_them(pool, mode, files, name, when):
    plain = train(loaded(files, name))
    model = loaded(files, name) if when == "before" else None
    with left_behind(), offloaded(pool, mode) as tide:
        if model is None:
            model = loaded(files, name)
        got = train(model, tide.step)
        assert tide.stats()["unmovable"] == []
        assert tide.peak_bytes <= MEMORY
        assert tide.stats()["totals"]["evictions"] > LAYERS
    assert plain == got


def test_from_pretrained_before_a_block_and_inside(pool, mode, tmp_path):
    """transformers reads in threads of its own, and makes parameters of what it has read."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=64, n_layer=6, n_head=2, vocab_size=300, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(3)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    rows = torch.randint(0, 300, (3, 2, 32))

    def run(model, step=contextlib.nullcontext):
        model.transformer.wte.weight.requires_grad_(False)
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-2)
        torch.manual_seed(5)
        seen = []
        for row in rows:
            with step():
                optimizer.zero_grad()
                loss = model(input_ids=row, labels=row).loss
                loss.backward()
                optimizer.step()
            seen.append(bits(loss))
        return seen + [bits(each) for each in model.parameters()]

    def load():
        return transformers.GPT2LMHeadModel.from_pretrained(tmp_path).train()

    plain = run(load())
    weights = sum(each.nbytes for each in load().parameters())
    memory = STAGING + weights // 2 + 512 * KIB
    for inside in (False, True):
        model = None if inside else load()
        with left_behind(), tidelog.offload(pool=pool, memory=memory, staging=STAGING, mode=mode) as tide:
            model = load() if inside else model
            got = run(model, tide.step)
            assert tide.stats()["unmovable"] == [] and tide.peak_bytes <= memory
            assert tide.stats()["totals"]["evictions"] > 28
        assert plain == got
        del model
        gc.collect()


@pytest.mark.parametrize("parts", [5, 3])  # halves of the weights' bytes: more and less than they and their gradients
def test_weights_count_before_the_first_step_writes_them(pool, files, parts):
    """Checks a loop that marks no steps: until its optimizer has stepped none is known to have begun, and where all
    fits no op is looked at. A fused optimizer writes all weights in one."""
    weights = sum(each.nbytes for each in loaded(files, "load_file").parameters())
    with left_behind(), tidelog.offload(pool=pool, memory=STAGING + parts * weights // 2, staging=STAGING) as tide:
        model, seen = loaded(files, "load_file"), []
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
        optimizer.register_step_pre_hook(lambda *_: seen.append((tide.live_bytes - STAGING, tide.ledger.quiet)))
        model(torch.ones(4, SIDE)).sum().backward()
        assert tide.live_bytes - STAGING < 1.2 * weights and tide.ledger.quiet
        for _ in range(2):
            optimizer.step()
        assert seen[0][0] > 1.4 * weights and seen[0][1] == (parts == 5)
        assert tide.live_bytes <= tide.budget and (tide.stats()["totals"]["evictions"] > 0) == (parts == 3)


def test_what_was_written_of_a_file_goes_back_to_the_kernel(pool, files):
    """The pages of a private mapping that were written are memory of the process until the mapping ends."""
    tensors = LOADERS["load_file"](files)
    with left_behind(), tidelog.offload(pool=pool, memory=8 * MIB, staging=STAGING) as tide:
        for each in tensors.values():
            each.add_(1)
        kept = tensors.popitem()[1]
        before = anonymous_bytes()
        for each in tensors.values():
            tide.evict(each)
        assert before - anonymous_bytes() > 0.8 * (LAYERS - 1) * SIZE
        assert native().whole_of(kept.untyped_storage()) is not None, "the mapping is there still"
    del kept


# -- what stays -----------------------------------------------------------------------------------


def assert_stays(tide, tensor):
    with pytest.raises((tidelog.UnmovableError, tidelog.PinnedError)):
        tide.evict(tensor)
    assert tide.is_resident(tensor)


def test_slices_of_a_file_that_other_processes_see_stay(pool, files):
    file = files / "raw"
    file.write_bytes(bytes(2 * SIZE))
    whole = torch.UntypedStorage.from_file(str(file), True, 2 * SIZE)
    held = [torch.empty(0).set_(whole[:SIZE])]
    del whole
    with offloaded(pool, "reactive") as tide:
        held.append(torch.empty(0).set_(torch.UntypedStorage.from_file(str(file), True, 2 * SIZE)[SIZE:]))
        for each in held:
            each.add_(1)
            assert_stays(tide, each)
    assert file.read_bytes()[:4] == file.read_bytes()[SIZE : SIZE + 4] == numpy.float32(1).tobytes()


ALIASES = {
    "of the parameter": lambda tensor: tensor.detach().numpy(),
    "of a row": lambda tensor: tensor.detach()[1].numpy(),
    "a view of the array": lambda tensor: tensor.detach().numpy()[2:, ::2],
    "a memoryview": lambda tensor: memoryview(tensor.detach().numpy()),
    "asarray": lambda tensor: numpy.asarray(tensor.detach()),
    "another tensor of the array": lambda tensor: torch.from_numpy(tensor.detach().numpy()),
}


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("name", ["load_file", "torch.load", "torch.load, mapped"])
def test_a_weight_that_numpy_has_from_before_the_block_stays_while_the_array_lives(pool, files, name, alias):
    state = LOADERS[name](files)
    array = ALIASES[alias](state["3.weight"])
    others = [each for key, each in state.items() if key != "3.weight"]
    with left_behind(), offloaded(pool, "reactive") as tide:
        for each in others:
            each.add_(1)
        assert tide.stats()["totals"]["evictions"] > 0
        assert_stays(tide, state["3.weight"])
        before = bytes(memoryview(numpy.asarray(array)).tobytes())
        state["3.weight"].mul_(2)
        assert bytes(memoryview(numpy.asarray(array)).tobytes()) != before, "they are the same memory"
        del array
    state["3.weight"].untyped_storage()
    with left_behind(), offloaded(pool, "reactive") as tide:
        tide.evict(state["3.weight"])
        assert not tide.is_resident(state["3.weight"])


def test_references_that_the_collector_knows_are_no_aliases(pool, files):
    """Lists, closures, instances, generators; an array of objects and an iterator in C are none."""
    state = LOADERS["load_file"](files)

    class Holder:
        pass

    def generating(tensor):
        yield
        yield tensor

    holder, generator = Holder(), generating(state["5.weight"])
    next(generator)
    holder.weight = state["1.weight"]
    kept = [
        [state["0.weight"]],
        holder,
        {1: (state["2.weight"],)},
        (lambda tensor: lambda: tensor)(state["3.weight"]),
        weakref.ref(state["4.weight"]),
        generator,
    ]
    unknown = numpy.empty(1, object)
    unknown[0] = state["6.weight"]
    with left_behind(), offloaded(pool, "reactive") as tide:
        for number in range(6):
            tide.evict(state[f"{number}.weight"])
        assert_stays(tide, state["6.weight"])
    del kept, unknown


@pytest.mark.parametrize("when", ["before", "inside"])
def test_weights_of_a_file_that_is_open_stay_until_it_is_closed(pool, files, when):
    """A program that has the file may read a tensor again, and sees then what was written to it."""
    handle = safetensors.safe_open(files / "weights.safetensors", framework="pt")
    tensors = [handle.get_tensor("0.weight")] if when == "before" else []
    with left_behind(), offloaded(pool, "reactive") as tide:
        tensors += [handle.get_tensor(f"{number}.weight") for number in range(len(tensors), LAYERS)]
        assert tide.live_bytes <= STAGING + SIZE, "the file's own pages do not count"
        with tide.step():
            tensors[0].add_(1)
        assert_stays(tide, tensors[0])
        assert_same(bits(tensors[0]), bits(handle.get_tensor("0.weight")), "what is read again")
        del handle
        gc.collect()
        with tide.step():
            expected = bits(tensors[0])
        tide.evict(tensors[0])
        assert not tide.is_resident(tensors[0])
        for each in tensors:
            each.add_(0)
        assert tide.peak_bytes <= MEMORY and tide.stats()["unmovable"] == []
        assert_same(expected, bits(tensors[0]), "the weight")


def test_slices_that_overlap_stay(pool, files):
    file = files / "raw"
    file.write_bytes(bytes(3 * SIZE))
    whole = torch.UntypedStorage.from_file(str(file), False, 3 * SIZE)
    held = [torch.empty(0).set_(whole[: 2 * SIZE]), torch.empty(0).set_(whole[SIZE : 3 * SIZE])]
    apart = [torch.empty(0).set_(whole[: SIZE // 2])]
    del whole
    with left_behind(), offloaded(pool, "reactive") as tide:
        for each in (*held, *apart):
            assert_stays(tide, each)
        held[0].fill_(3)
        assert (held[1][: SIZE // 4] == 3).all() and (apart[0] == 3).all()
        held.pop(), apart.pop()
        del each
        with tide.step():
            pass
        tide.evict(held[0])
        assert (held[0] == 3).all()


def test_what_has_a_slice_from_before_the_block_stays(pool):
    """A slice reads the memory of its whole, which was torch's to give away."""
    whole = torch.arange(SIZE / 4)
    part = torch.empty(0).set_(whole.untyped_storage()[SIZE // 2 :])
    with left_behind(), offloaded(pool, "reactive") as tide:
        for tensor in (whole, part):
            assert_stays(tide, tensor)
        others = [torch.zeros(SIDE, SIDE) for _ in range(2 * LAYERS)]
        whole.mul_(2)
        assert_same(bits(torch.arange(SIZE / 4)[SIZE // 8 :] * 2), bits(part), "the slice")
        del part, tensor
        tide.evict(whole)
        del others


def test_it_stays_not_resizable(pool, files):
    """Methods answer as torch's do: what says so in the plain program says so in a block."""
    state = LOADERS["load_file"](files)
    with left_behind(), offloaded(pool, "reactive") as tide:
        tide.evict(state["0.weight"])
        assert not state["0.weight"].untyped_storage().resizable()
        with pytest.raises(RuntimeError, match="not resizable"):
            state["0.weight"].resize_(2 * SIDE, 2 * SIDE)


# -- arrays of NumPy's ----------------------------------------------------------------------------

ARRAYS = {
    "numpy": lambda tensor: tensor.numpy(),
    "cpu, numpy": lambda tensor: tensor.cpu().numpy(),
    "detach, numpy": lambda tensor: tensor.detach().numpy(),
    "asarray": lambda tensor: numpy.asarray(tensor),
    "forced": lambda tensor: tensor.numpy(force=True),
    "a view": lambda tensor: tensor.numpy()[3:5],
    "a view of a view": lambda tensor: tensor.numpy()[3:].T[1:],
    "a memoryview": lambda tensor: memoryview(tensor.numpy()),
    "a tensor of it": lambda tensor: torch.from_numpy(tensor.numpy()),
    "its flat iterator": lambda tensor: tensor.numpy().flat,
    "frombuffer": lambda tensor: numpy.frombuffer(tensor.numpy(), dtype=numpy.float32),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_holds_its_tensor_while_it_lives_and_no_longer(pool, mode, name):
    with left_behind(), offloaded(pool, mode) as tide:
        tensor = torch.randn(SIDE, SIDE)
        for _ in range(2):
            expected = bits(tensor)
            array = ARRAYS[name](tensor)
            assert_stays(tide, tensor)
            others = [torch.zeros(SIDE, SIDE) for _ in range(2 * LAYERS)]
            assert tide.is_resident(tensor)
            del array, others
            gc.collect()
            tide.evict(tensor)
            assert not tide.is_resident(tensor)
            assert_same(expected, bits(tensor), "the tensor")


def ones():
    return numpy.ones((SIDE, SIDE), numpy.float32)


def a_view_of(array):
    return array[1:].T


@pytest.mark.parametrize("when", ["before", "inside"])
@pytest.mark.parametrize(
    "made", [ones, lambda: a_view_of(ones()), lambda: ones().reshape(-1)[2:]], ids=["whole", "a view", "a view of one"]
)
def test_an_array_that_only_its_tensor_has_moves(pool, mode, made, when):
    tensors = [torch.from_numpy(made()) for _ in range(LAYERS)] if when == "before" else []
    with left_behind(), offloaded(pool, mode) as tide:
        for number in range(2):
            with tide.step():
                while len(tensors) < LAYERS:
                    tensors.append(torch.from_numpy(made()))
                for each in tensors:
                    each.add_(1)
            assert tide.stats()["unmovable"] == []
        assert tide.stats()["totals"]["evictions"] > LAYERS and tide.peak_bytes <= MEMORY
        for each in tensors:
            assert (each == 3).all() and not each.untyped_storage().resizable()


# What has an array besides the tensor that torch has made of it.
HOLDERS = {
    "a name": lambda array: array,
    "a view": lambda array: array[3:5],
    "what it is a view of": lambda array: array.base,
    "another tensor": torch.from_numpy,
    "a memoryview": memoryview,
    "a pointer of ctypes": lambda array: array.ctypes.data_as(ctypes.c_void_p),
    "a weak reference": weakref.ref,
}


@pytest.mark.parametrize("when", ["before", "inside"])
@pytest.mark.parametrize("name", HOLDERS)
def test_an_array_that_something_else_has_stays_as_long(pool, name, when):
    def make():
        array = a_view_of(ones())
        return torch.from_numpy(array), HOLDERS[name](array)

    pair = make() if when == "before" else None
    with left_behind(), offloaded(pool, "reactive") as tide:
        tensor, holder = pair or make()
        del pair
        tensor.add_(1)
        assert_stays(tide, tensor)
        others = [torch.zeros(SIDE, SIDE) for _ in range(2 * LAYERS)]
        assert tide.is_resident(tensor) and (tensor == 2).all()
        del holder, others
        with tide.step():
            pass
        tide.evict(tensor)
        assert not tide.is_resident(tensor) and (tensor == 2).all()


class Subclass(numpy.ndarray):
    """An array of which nobody knows what else it has."""


def test_memory_that_is_not_an_arrays_own_stays(pool, tmp_path):
    numpy.save(tmp_path / "array.npy", ones())
    made = {
        "a mapped file": lambda: numpy.load(tmp_path / "array.npy", mmap_mode="c"),
        "a buffer": lambda: numpy.frombuffer(bytearray(SIZE), numpy.float32),
        "a subclass": lambda: ones().view(Subclass),
    }
    before = {name: torch.from_numpy(make()) for name, make in made.items()}
    with left_behind(), offloaded(pool, "reactive") as tide:
        for tensors in (before, {name: torch.from_numpy(make()) for name, make in made.items()}):
            for each in tensors.values():
                each.add_(1)
                assert_stays(tide, each)


def test_each_of_several_arrays_holds_its_tensor(pool):
    with left_behind(), offloaded(pool, "reactive") as tide:
        tensor = torch.zeros(SIDE, SIDE)
        arrays = [tensor.numpy(), tensor[1:].numpy(), numpy.asarray(tensor)]
        while arrays:
            assert_stays(tide, tensor)
            arrays[0][...] = len(arrays)
            arrays.pop(0)
        assert (tensor[1:] == 1).all()
        tide.evict(tensor)


def test_an_address_outlives_the_arrays_and_is_given_back_by_itself(pool):
    with left_behind(), offloaded(pool, "reactive") as tide:
        tensor = torch.zeros(SIDE, SIDE)
        array = tensor.numpy()
        assert tensor.data_ptr()
        tide.unpin(tensor)
        assert_stays(tide, tensor)
        del array
        tide.evict(tensor)
        assert tensor.data_ptr()
        assert_stays(tide, tensor)
        tide.unpin(tensor)
        tide.evict(tensor)


def test_what_no_collector_finds_any_more_stays_in_the_next_block(pool, files):
    """gc.freeze() hides tensors, and with them what NumPy may have seen since the block before."""
    state = LOADERS["torch.load"](files)
    with left_behind(), offloaded(pool, "reactive") as tide:
        tide.evict(state["0.weight"])
        tide.restore()
    array = state["0.weight"].numpy()
    gc.freeze()
    try:
        with left_behind(), offloaded(pool, "reactive") as tide:
            state["0.weight"].add_(1)
            assert_stays(tide, state["0.weight"])
            assert_same(array.tobytes(), bits(state["0.weight"])[3], "the array")
    finally:
        gc.unfreeze()


def test_where_all_fits_what_is_loaded_counts_from_the_next_step_on(pool, files):
    """Ops are not looked at there, so nobody sees that they use a file."""
    with left_behind(), offloaded(pool, "auto") as tide:
        tensors = LOADERS["load_file"](files)
        for each in tensors.values():
            each.add_(1)
        with tide.step():
            assert tide.live_bytes <= MEMORY and tide.stats()["totals"]["evictions"] > 0
        for name, each in made().state_dict().items():
            assert_same(bits(each + 1), bits(tensors[name]), name)
