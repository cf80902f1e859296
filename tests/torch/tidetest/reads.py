"""Ways to read a tensor: most of them never pass the dispatcher. Each takes a tensor and returns what it saw.

They are called without gradients. Where plain torch refuses a touch, the offloaded run must refuse it the same way.
"""

import copy
import io
import pickle

import safetensors.torch
import torch

READS = {}
READS_THAT_PIN = {"storage_identity", "storage_conversion"}  # they ask for addresses, and an address may be kept


def read(function):
    READS[function.__name__] = function
    return function


def round_trip(value, **options):
    """torch.save and torch.load through memory."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    size = buffer.tell()
    buffer.seek(0)
    return torch.load(buffer, weights_only=False), size


# -- reads: serialization -----------------------------------------------------------------------------


@read
def torch_save(t):
    return round_trip(t)[0]


@read
def torch_save_legacy_format(t):
    return round_trip(t, _use_new_zipfile_serialization=False)[0]


@read
def torch_save_is_not_empty(t):
    return round_trip(t)[1] > t.numel() * t.element_size()


@read
def torch_save_of_a_dict_keeps_aliases(t):
    loaded, _ = round_trip({"tensor": t, "again": t, "row": t[0], "list": [t, 3]})
    loaded["tensor"][0, 0] = 77
    return loaded


@read
def torch_save_of_its_storage(t):
    return list(round_trip(t.untyped_storage())[0][:64])


@read
def torch_load_into_mapped_memory(t):
    buffer = io.BytesIO()
    torch.save(t, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), map_location="cpu", weights_only=True)


@read
def pickle_protocol_2(t):
    return pickle.loads(pickle.dumps(t, protocol=2))


@read
def pickle_protocol_5(t):
    return pickle.loads(pickle.dumps([t, {"t": t}], protocol=5))


@read
def pickle_of_its_storage(t):
    return pickle.loads(pickle.dumps(t.storage()))[:64].tolist()


@read
def deepcopy(t):
    return copy.deepcopy(t.detach())


@read
def deepcopy_of_a_structure(t):
    twin = copy.deepcopy({"a": t.detach(), "b": [t.detach()]})
    return twin, twin["a"].shape


@read
def deepcopy_of_its_storage(t):
    return list(copy.deepcopy(t.untyped_storage())[:64])


@read
def shallow_copy(t):
    return copy.copy(t.detach())


@read
def safetensors_save(t):
    return sorted(
        safetensors.torch.load(
            safetensors.torch.save({"t": t.contiguous().clone(), "u": t.detach().contiguous()})
        ).items()
    )


@read
def reduce_ex(t):
    rebuild, arguments = t.detach().__reduce_ex__(2)[:2]
    return rebuild(*arguments)


# -- reads: Python values -----------------------------------------------------------------------------


@read
def tolist(t):
    return t.tolist()


@read
def tolist_of_a_row(t):
    return t[1].tolist()


@read
def text_by_repr(t):
    return repr(t)


@read
def text_by_str(t):
    return str(t)


@read
def text_by_format(t):
    return f"{t[0, 0]:.6f} {t[0, 1]!s} {t[:2, :2]}"


@read
def printing(t):
    out = io.StringIO()
    print(t, {"t": t}, file=out)
    return out.getvalue()


@read
def item(t):
    return t[2, 3].item(), t.sum().item(), t.view(-1)[5].item() if t.is_contiguous() else None


@read
def number_conversions(t):
    one = t[3, 3] * 100
    return float(one), int(one), bool(one), complex(one), round(one.item(), 3)


@read
def index_conversion(t):
    return list(range(10))[(t[0, 0] > 0).long()]


@read
def truth(t):
    return bool((t > -100).all()), (t[0] == t[0]).all().item()


@read
def truth_of_many_is_refused(t):
    return bool(t)


@read
def iteration(t):
    return [row.sum().item() for row in t]


@read
def unpacking(t):
    first, second, *_ = t
    return first, second


@read
def length_and_metadata(t):
    return len(t), t.shape, t.stride(), t.dtype, t.storage_offset(), t.nbytes, t.is_contiguous(), t.element_size()


@read
def membership(t):
    return t[1, 1] in t, 1e30 in t


@read
def reversed_rows(t):
    return [row[0].item() for row in reversed(t)]


@read
def builtin_max_and_sorted(t):
    return max(t[0]).item(), [value.item() for value in sorted(t[1][:8])]


@read
def direction_of_dict(t):
    return {"loose": t}.items() == {"loose": t}.items()


# -- reads: through torch -----------------------------------------------------------------------------


@read
def reductions(t):
    return t.sum(), t.mean(0), t.norm(), t.max(), t.argmax(1), t.std()


@read
def slices(t):
    return t[1:3], t[:, 2], t[..., -1], t[::2, 1::3], t[None, 4]


@read
def fancy_indexing(t):
    index = torch.tensor([3, 1, 3])
    return t[index], t[index, index], t[t > 0.1], t[:, index]


@read
def made_views(t):
    return (
        t.t(),
        t.detach(),
        t.T[2:5],
        t.unsqueeze(0).expand(2, -1, -1),
        t.unfold(0, 2, 2),
        t.diagonal(),
        t.movedim(0, 1),
    )


@read
def split_and_chunked(t):
    return t.split(5), t.chunk(3, 1), t.unbind(0)[3], torch.tensor_split(t, 4)


@read
def viewed_as_another_type(t):
    return t.contiguous().view(torch.int32), t.detach().view(torch.int32) if t.is_contiguous() else None


@read
def as_strided(t):
    return t.as_strided((3, 3), (t.stride(0), t.stride(1)), t.storage_offset())


@read
def conversions(t):
    return t.double(), t.to(torch.bfloat16), t.bool(), t.to("cpu"), t.cpu(), t.type(torch.float64), t.half()


@read
def copies_in_other_tensors(t):
    return torch.tensor(t.tolist()), t.new_tensor([1.0]), t.clone(), torch.empty_like(t).copy_(t), torch.zeros_like(t)


@read
def comparisons(t):
    return torch.equal(t, t.clone()), torch.allclose(t, t + 1e-9), (t == t).all(), t.is_set_to(t)


@read
def assertions(t):
    torch.testing.assert_close(t, t.clone())
    return True


@read
def combinations(t):
    return torch.cat([t, t]), torch.stack([t[0], t[1]]), torch.where(t > 0, t, -t), torch.einsum("ij,ik->jk", t, t)


@read
def unique_sorted_nonzero(t):
    return t.nonzero(), torch.unique(t.round()), t.sort(dim=1), t.topk(3)


@read
def sparse_conversion(t):
    return (t * (t > 0.5)).to_sparse(), (t * (t > 0.5)).to_sparse().to_dense()


@read
def in_another_function(t):
    return torch.func.vmap(torch.sum)(t.detach()), torch.func.grad(lambda x: (x * x).sum())(t.detach())


# -- reads: its storage -------------------------------------------------------------------------------


@read
def storage_size(t):
    storage = t.untyped_storage()
    return storage.nbytes(), storage.size(), len(storage), len(t.storage()), storage.device, storage.resizable()


@read
def storage_elements(t):
    storage = t.untyped_storage()
    return storage[0], storage[17], storage[-1], t.storage()[3], list(storage[4:8])


@read
def storage_tolist(t):
    small = t[0].clone()
    return t.storage()[:64].tolist(), small.untyped_storage().tolist()


@read
def storage_iteration(t):
    return [byte for byte, _ in zip(t.untyped_storage(), range(64))]


@read
def storage_clone(t):
    return list(t.untyped_storage().clone()[:64]), t.untyped_storage().cpu()[9]


@read
def storage_conversion(t):
    return t.storage().double()[:16].tolist()


@read
def storage_copied_out(t):
    target = torch.UntypedStorage(t.untyped_storage().nbytes())
    target.copy_(t.untyped_storage())
    return list(target[:256])


@read
def new_tensor_on_its_storage(t):
    return torch.empty(0).set_(t.untyped_storage(), t.storage_offset(), t.size(), t.stride()).clone()


@read
def storage_text(t):
    return repr(t[:1, :8].clone().untyped_storage()), type(t.untyped_storage()).__name__


@read
def sharing_and_pinning(t):
    return t.is_shared(), t.untyped_storage().is_shared(), t.storage().is_shared(), t.is_pinned(), t.is_inference()


@read
def storage_identity(t):
    return t.untyped_storage() is t.view_as(t).untyped_storage(), t.data_ptr() == t.detach().data_ptr()
