"""Tests of changes of a tensor's memory: views, set_, resize_, .data =, out=, swapping, dtypes, deaths."""

import gc
import weakref

import pytest
import torch
from torch import nn

import tidelog
from tidelog.memory import _record
from tidetest import KIB, device, halfway
from tidetest.bits import assert_same, bits
from tidetest.world import World


def test_views_made_before_while_out_and_after(compare):
    def scenario(world):
        tensor = world.loose
        before = {"row": tensor[3], "column": tensor[:, 5], "tail": tensor[60:], "transposed": tensor.t()}
        world.push_out(tensor)
        while_out = {
            "row": tensor[4],
            "block": tensor[8:16, 8:16],
            "flat": tensor.view(-1),
            "bytes": tensor.view(torch.int32),
        }
        world.note("before", before)
        world.push_out(tensor)
        world.note("while out", while_out)
        after = tensor.view(2, 32, 64).permute(2, 0, 1)
        world.push_out(tensor)
        world.note("after", after)
        with torch.no_grad():
            world.push_out(tensor)
            before["row"].add_(1)
            world.push_out(tensor)
            while_out["flat"].mul_(2)
            world.push_out(tensor)
            after[0, 0, 0] = 123
        world.push_out(tensor)
        world.note("base", tensor)
        world.note("all views", {**before, **while_out, "after": after})

    compare(scenario)


def test_a_view_keeps_memory_that_its_base_left(compare):
    def scenario(world):
        base = torch.randn(64, 64)
        view = base[10:20]
        world.push_out(base)
        del base
        gc.collect()
        world.steps(1)
        world.note("view alone", view)
        world.push_out(view)
        world.note("again", view.t())

    compare(scenario)


def test_views_under_grad(compare):
    """Views of parameters, of activations and of gradients, used by autograd while the base is out."""

    def scenario(world):
        weight = world.model[2].linear.weight
        half = weight[:32]
        world.push_out(weight)
        with world.boundary():
            loss = (half @ world.x.t()).pow(2).mean() + (weight.t() @ weight)[3:5].sum()
            world.push_out(weight)
            loss.backward()
        world.note("gradient", weight.grad)
        rows = weight.grad[5:9]
        world.push_out(weight.grad)
        rows.zero_()
        world.note("gradient edited", weight.grad)

    compare(scenario)


def test_data_assignment(compare):
    def scenario(world):
        parameter = world.model[1].linear.weight
        world.push_out(parameter)
        old = parameter.data
        parameter.data = torch.full_like(parameter, 0.01)
        world.note("new", parameter)
        world.note("old", old)
        world.push_out(parameter)
        parameter.data = old * 0.5
        world.steps(1)
        world.push_out(parameter, old)
        parameter.data = old  # while both are out
        world.note("swapped back", parameter)
        world.push_out(parameter)
        parameter.data = parameter.data.t().contiguous().t()

    compare(scenario)


def test_gradient_assignment(compare):
    def scenario(world):
        parameter = world.model[1].linear.weight
        world.push_out(parameter.grad)
        parameter.grad = parameter.grad * 2
        world.push_out(parameter.grad)
        world.note("doubled", parameter.grad)
        parameter.grad = torch.ones_like(parameter)
        world.push_out(parameter.grad)
        world.optimizer.step()
        parameter.grad = None
        world.note("after", parameter)
        world.optimizer.zero_grad(set_to_none=True)
        world.steps(1)

    compare(scenario)


def test_set_and_shared_storages(compare):
    def scenario(world):
        source, target = torch.randn(64, 64), torch.randn(32, 64)
        world.push_out(source, target)
        target.set_(source)
        world.note("set to a tensor", target)
        world.push_out(source)
        target.set_(source.untyped_storage(), 64, (8, 64), (64, 1))
        world.note("set to a storage", target)
        world.push_out(source)
        third = torch.empty(0).set_(source)
        third[0, 0] = 42
        world.push_out(third)
        world.note("one memory", [source, target, third])
        target.set_()
        world.note("set to nothing", target)
        world.push_out(source)
        fourth = torch.tensor([], dtype=torch.float32).set_(source.storage(), 0, (4, 4), (4, 1))
        world.note("typed storage", fourth)
        world.note("released", source)

    compare(scenario)


def test_resize(compare):
    def scenario(world):
        tensor = torch.arange(4096.0)
        world.push_out(tensor)
        tensor.resize_(64, 32)  # smaller: the bytes stay
        world.note("smaller", tensor)
        world.push_out(tensor)
        tensor.resize_(128, 64)  # larger: the first bytes stay
        world.note("larger", tensor.view(-1)[:4096])
        tensor.view(-1)[4096:] = 3
        world.push_out(tensor)
        world.note("filled", tensor)
        world.push_out(tensor)
        tensor.resize_as_(torch.empty(3, 3))
        world.note("tiny", tensor)
        world.push_out(tensor)
        tensor.untyped_storage().resize_(64 * KIB)
        world.note("storage grown", [tensor, tensor.untyped_storage().nbytes()])
        tensor.untyped_storage().resize_(36)
        world.push_out(tensor)
        world.note("storage shrunk", [tensor, tensor.untyped_storage().nbytes()])
        world.push_out(tensor)
        tensor.untyped_storage().resize_(0)
        world.note("emptied by the program itself", tensor.untyped_storage().nbytes())
        tensor.untyped_storage().resize_(36)
        tensor.fill_(1)
        world.note("brought back by the program itself", tensor)

    compare(scenario)


def test_out_variants_that_resize(compare):
    def scenario(world):
        out = torch.empty(0)
        torch.add(world.loose, 1, out=out)
        world.note("grown", out)
        world.push_out(out, world.loose)
        torch.mm(world.loose, world.loose, out=out)
        world.note("same size", out)
        world.push_out(out)
        torch.cat([world.loose, world.loose], out=out.resize_(0))
        world.note("larger", out)
        world.push_out(out)
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.long)
        torch.topk(out, 3, out=(values, indices))
        world.note("two outputs", [values, indices])

    compare(scenario)


def test_requires_grad_detach_and_in_place_metadata(compare):
    def scenario(world):
        tensor = world.loose
        world.push_out(tensor)
        tensor.requires_grad_(True)
        world.push_out(tensor)
        (tensor * tensor).sum().backward()
        world.push_out(tensor, tensor.grad)
        world.note("gradient", tensor.grad)
        tensor.requires_grad_(False)
        tensor.grad = None
        world.push_out(tensor)
        tensor.t_().transpose_(0, 1).unsqueeze_(0).squeeze_(0).swapaxes_(0, 1).t_()
        world.note("turned", tensor)
        world.push_out(tensor)
        detached = tensor.detach()
        detached.add_(1)
        world.push_out(tensor)
        world.note("through detach", tensor)
        linear = world.model[0].linear
        world.push_out(linear.weight)
        linear.weight.requires_grad_(False)
        world.steps(1)
        linear.weight.requires_grad_(True)

    compare(scenario)


def test_swap_tensors(compare):
    def scenario(world):
        one, other = torch.randn(64, 64), torch.randn(32, 32)
        world.push_out(one, other)
        torch.utils.swap_tensors(one, other)
        world.note("swapped", [one, other])
        world.push_out(one)
        one.mul_(2)
        world.push_out(one, other)
        world.note("written", [one, other])

    compare(scenario)


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.uint8, torch.int16,
    torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_every_dtype_moves(pool, dtype):
    world = World()
    source = torch.randn(64, 64, dtype=torch.complex128) * 10
    tensor = source.to(dtype) if dtype.is_complex else source.real.to(dtype)
    strange = {
        "odd": tensor.reshape(-1)[:37].clone(),
        "scalar": tensor[0, 0].clone(),
        "whole": tensor,
        "empty": tensor[:0].clone(),
    }
    expected = {name: bits(value) for name, value in strange.items()}
    with world.block(pool, "reactive"):
        world.steps(1)
        for name, value in strange.items():
            if value.numel():
                world.push_out(value)
            assert_same(expected[name], bits(value), name)
        world.steps(1)
        for name, value in strange.items():
            assert_same(expected[name], bits(value), name)


@pytest.mark.parametrize("size", [1, 3, 511, 512, 4095, 4096, 4097, 65535, 65536, 65537, 131071])
def test_every_size_moves(pool, size):
    """Direct I/O moves whole sectors; a tensor's last byte must come back, and the byte after it stay alone."""
    world = World()
    tensor = torch.randint(0, 256, (size,), dtype=torch.uint8)
    expected = bits(tensor)
    with world.block(pool, "reactive", memory=2048 * KIB):
        for _ in range(3):
            world.push_out(tensor)
            assert_same(expected, bits(tensor), f"{size} bytes")
            tensor.copy_(tensor.flip(0)).copy_(tensor.flip(0))


def test_unusual_tensors(compare):
    """Zero-sized, expanded, conjugated, negated, sparse, quantized, nested and meta tensors in one run."""

    def scenario(world):
        base = torch.randn(64, 64, dtype=torch.complex64)
        world.push_out(base)
        world.note("conjugated", torch.view_as_real(base.conj().resolve_conj()))
        world.push_out(base)
        world.note("imaginary part", base.conj().imag)
        row = torch.randn(64, 1)
        world.push_out(row)
        world.note("expanded", row.expand(64, 64).contiguous())
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 5], [1, 2]]), torch.tensor([3.0, 4.0]), (64, 64))
        world.note("sparse", (sparse @ world.loose, sparse.coalesce().to_dense()))
        world.note("compressed", world.loose.relu().to_sparse_csr().to_dense())
        world.note("meta", torch.empty(8, 8, device="meta").shape)
        world.note("nothing", torch.empty(0, 4).sum())
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)])
        world.note("nested", [part + 1 for part in nested.unbind()])
        quantized = torch.quantize_per_tensor(world.loose, 0.1, 0, torch.qint8)
        world.note("quantized", quantized.dequantize())
        world.steps(1)
        world.note("quantized later", quantized.int_repr())

    compare(scenario)


class Tagged(torch.Tensor):
    """A subclass by __torch_function__, as libraries have them."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensor_subclasses(compare):
    def scenario(world):
        tagged = torch.randn(64, 64).as_subclass(Tagged)
        world.push_out(tagged)
        world.note("type", type(tagged + 1).__name__)
        world.push_out(tagged)
        world.note("values", (tagged * 2).as_subclass(torch.Tensor))
        buffer = nn.Buffer(torch.randn(64, 64))
        world.push_out(buffer)
        buffer.mul_(2)
        world.push_out(buffer)
        world.note("buffer", buffer)
        parameters = nn.ParameterList([torch.randn(32, 32), torch.randn(32, 32)])
        world.push_out(parameters[1])
        world.note("list", [parameter.detach() for parameter in parameters])

    compare(scenario)


def test_a_tensor_that_dies_while_out_leaves_nothing_behind(pool, mode):
    world = World()
    with world.block(pool, mode) as tide:
        world.warm_up(mode)
        live = tide.live_bytes
        for _ in range(200):
            tensor = torch.randn(64, 64)
            world.push_out(tensor)
            reference = weakref.ref(tensor)
            del tensor
            assert reference() is None  # nobody but the program keeps tensors alive
        world.steps(1)
        gc.collect()
        torch.zeros(1).add_(1)
        assert tide.live_bytes <= max(live, tide.budget)


def test_storage_identity_and_hash_survive(pool, mode):
    """Programs keep tensors in dicts and sets, and compare storages by identity."""
    world = World()
    with world.block(pool, mode):
        world.warm_up(mode)
        parameter = world.model[0].linear.weight
        table = {parameter: "weight", world.loose: "loose"}
        storage = parameter.untyped_storage()
        before = (id(storage), hash(parameter), parameter._version, parameter.untyped_storage()._cdata)
        for _ in range(3):
            world.push_out(parameter)
            assert table[parameter] == "weight"
            assert parameter.sum().isfinite()
        assert before == (
            id(parameter.untyped_storage()),
            hash(parameter),
            parameter._version,
            parameter.untyped_storage()._cdata,
        )


def test_evict_and_restore_by_hand(pool, mode):
    world = World()
    expected = bits(world.loose)
    with world.block(pool, mode) as tide:
        world.warm_up(mode)
        assert isinstance(tide, tidelog.Tide)
        world.push_out(world.loose)
        tide.evict(world.loose)  # already out: nothing to do
        assert not tide.is_resident(world.loose)
        live = tide.live_bytes
        tide.restore(world.loose)
        assert tide.is_resident(world.loose)
        # Where steps are planned, what the eviction made room for may have been on its way.
        assert tide.live_bytes <= (live + 16 * KIB + 4 * KIB if mode == "reactive" else tide.budget)
        tide.restore(world.loose)
        assert_same(expected, bits(world.loose))


def test_what_is_moved_out_by_hand_stays_out_until_the_next_op(pool):
    """Evicts what is in memory and what is out, which the plan would bring back for the ops that come."""
    world = World()
    with world.block(pool, "auto") as tide:
        world.warm_up("auto")
        for _ in range(3):
            world.step()
            tensors = sorted((each.detach() for each in world.model.parameters()), key=tide.is_resident)
            assert tide.is_resident(tensors[-1])
            world.push_out(*tensors)
            assert all(each.untyped_storage()._tide.is_out for each in tensors)


REPLACES_MEMORY = {
    "resize_": lambda storage: storage.resize_(2 * storage.nbytes()),
    "resize_ to nothing": lambda storage: storage.resize_(0),
    "share_memory_": lambda storage: storage.share_memory_(),
    "_share_filename_cpu_": lambda storage: storage._share_filename_cpu_(),
}


@pytest.mark.parametrize(
    "call", device.params(REPLACES_MEMORY, {"share_memory_", "_share_filename_cpu_"}, device.SHARED)
)
def test_memory_is_not_replaced_while_it_is_copied_out(pool, monkeypatch, call):
    """Storage methods are no ops: the copy that reads the old memory must have ended before they free it."""
    seen = []
    for name in ("resize_", "share_memory_", "_share_filename_cpu_"):
        original = getattr(torch.UntypedStorage, name)

        def spy(storage, *args, original=original, **kwargs):
            seen.append(storage._tide is not None and storage._tide.state == _record.LEAVING)
            return original(storage, *args, **kwargs)

        monkeypatch.setattr(torch.UntypedStorage, name, spy)
    world = World()
    with world.block(pool, "reactive"):
        world.steps(2)
        before = bits(world.loose)
        size = world.loose.untyped_storage().nbytes()
        halfway.begin_eviction(world.tide, world.loose)
        REPLACES_MEMORY[call](world.loose.untyped_storage())
        assert seen and not any(seen)
        if "nothing" in call:
            world.loose.untyped_storage().resize_(size)
        else:
            assert_same(before, bits(world.loose))
        world.steps(1)
