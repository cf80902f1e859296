"""Ways into torch that read a tensor: functions, methods, protocols of Python's, files. Each gets tensors that are out,
and returns what it saw. Most of them would work without this list; those that read in C++ before the dispatcher did
not.

Each is called with an `Inputs`, in a block and without one. What plain torch refuses must be refused likewise.
"""

import copy
import io
import math
import operator
import pickle

import numpy
import torch
import torch.nn.functional as F
from torch import nn

SIZE = 32


class Inputs:
    """The tensors, each with memory of its own."""

    def __init__(self):
        torch.manual_seed(3)
        self.x = torch.randn(SIZE, SIZE)  # floats
        self.y = torch.randn(SIZE, SIZE)
        self.v = torch.randn(SIZE)
        self.n = torch.randint(1, 8, (SIZE,))  # small numbers
        self.m = torch.rand(SIZE, SIZE) > 0.5  # a mask
        self.b = torch.randint(0, 256, (SIZE,), dtype=torch.uint8)
        self.c = torch.randn(SIZE, SIZE, dtype=torch.complex64)
        self.h = torch.randn(SIZE, SIZE, dtype=torch.bfloat16)
        self.d = torch.randn(SIZE, dtype=torch.float64)
        self.zero = torch.tensor(2.5)  # without dimensions
        self.one = torch.tensor(3)
        self.yes = torch.tensor(True)
        self.state = torch.Generator().manual_seed(11).get_state()
        self.indices = torch.stack([torch.arange(SIZE), torch.randint(0, SIZE, (SIZE,))])
        self.rows = torch.arange(SIZE + 1)  # of a compressed matrix with one value a row
        self.columns = torch.randint(0, SIZE, (SIZE,))

    def all(self):
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]


GROUPS = {}


def group(name, **ways):
    GROUPS.setdefault(name, {}).update(ways)


def numbered(name, *ways):
    known = GROUPS.setdefault(name, {})
    for way in ways:
        known[f"{len(known)}"] = way


def rows_of(t, count=4):
    return [t[row] for row in range(count)]


# -- constructors: of numbers, of tensors, of lists of them, nested ------------------------------------------

for maker_name, maker in {
    "tensor": lambda i: torch.tensor,
    "as_tensor": lambda i: torch.as_tensor,
    "asarray": lambda i: torch.asarray,
    "new_tensor": lambda i: i.x.new_tensor,
    "new": lambda i: i.x.new,
    "Tensor": lambda i: torch.Tensor,
}.items():
    group(
        "constructors",
        **{
            f"{maker_name} of numbers": lambda i, maker=maker: maker(i)(list(i.v[:4])),
            f"{maker_name} of a tuple": lambda i, maker=maker: maker(i)(tuple(i.d[:4])),
            f"{maker_name} of whole numbers": lambda i, maker=maker: maker(i)([i.n[0], i.n[5], i.one]),
            f"{maker_name} of truths": lambda i, maker=maker: maker(i)([i.m[0, 0], i.m[0, 1], i.yes]),
            f"{maker_name} of a mixture": lambda i, maker=maker: maker(i)([1, i.zero, 2.5, i.v[3]]),
            f"{maker_name} of nested lists": lambda i, maker=maker: maker(i)([[i.v[0], i.v[1]], [i.v[2], i.zero]]),
            f"{maker_name} of rows": lambda i, maker=maker: maker(i)([row[:1] for row in rows_of(i.x)]),
            f"{maker_name} of lists of arrays": lambda i, maker=maker: maker(i)([i.v[:2].tolist(), [1, 2]]),
            f"{maker_name} of a tensor": lambda i, maker=maker: maker(i)(i.x).clone(),
            f"{maker_name} of one number": lambda i, maker=maker: maker(i)(i.zero).clone(),
        },
    )
for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"):
    legacy = getattr(torch, f"{kind}Tensor")
    group(
        "constructors of one type",
        **{
            f"{kind} of numbers": lambda i, legacy=legacy: legacy(list(i.n[:4])),
            f"{kind} of nested lists": lambda i, legacy=legacy: legacy([[i.n[0], i.n[1]], [i.one, i.n[3]]]),
            f"{kind} of a mixture": lambda i, legacy=legacy: legacy([1, i.one, i.n[0]]),
            f"{kind} of a tensor": lambda i, legacy=legacy: legacy(i.x.type(legacy)),
        },
    )
for dtype in (torch.float32, torch.float64, torch.int64, torch.int8, torch.bool, torch.complex64, torch.bfloat16):
    group(
        "constructors of one type",
        **{
            f"tensor as {dtype}": lambda i, dtype=dtype: torch.tensor(list(i.v[:5]), dtype=dtype),
            f"as_tensor as {dtype}": lambda i, dtype=dtype: torch.as_tensor([i.one, i.n[2]], dtype=dtype),
            f"new_tensor as {dtype}": lambda i, dtype=dtype: i.x.new_tensor([i.zero, i.v[2]], dtype=dtype),
            f"complex as {dtype}": lambda i, dtype=dtype: torch.tensor([i.c[0, 0], i.c[1, 1]], dtype=dtype),
        },
    )
numbered(
    "factories",
    lambda i: torch.full((4,), i.zero),
    lambda i: torch.full((4,), i.zero.item()),
    lambda i: torch.full_like(i.x, i.zero),
    lambda i: i.x.new_full((3,), i.zero),
    lambda i: torch.arange(i.one),
    lambda i: torch.arange(0, i.one, i.zero),
    lambda i: torch.linspace(i.zero, i.one, 5),
    lambda i: torch.linspace(0, 1, int(i.one)),
    lambda i: torch.logspace(i.zero, i.one, 5),
    lambda i: torch.eye(int(i.one)),
    lambda i: torch.zeros(i.one),
    lambda i: torch.ones(i.one, i.one),
    lambda i: torch.zeros([i.one, 2]),
    lambda i: torch.zeros((i.n[0], i.n[1])),
    lambda i: torch.empty(torch.Size([i.one])).shape,
    lambda i: torch.scalar_tensor(i.zero),
    lambda i: torch.complex(i.x, i.y),
    lambda i: torch.polar(i.x, i.y),
    lambda i: torch.from_numpy(i.x.clone().numpy()),
    lambda i: torch.frombuffer(bytearray(i.b.tolist()), dtype=torch.uint8),
    lambda i: torch.tril_indices(int(i.one), 4),
    lambda i: torch.vander(i.v[:4]),
    lambda i: torch.heaviside(i.x, i.zero),
    lambda i: torch.tensor_split(i.x, i.n[:3].cumsum(0)),
    lambda i: torch.cartesian_prod(i.v[:3], i.n[:3]),
    lambda i: torch.combinations(i.v[:4]),
    lambda i: torch.block_diag(i.x[:2, :2], i.zero),
    lambda i: torch.bucketize(i.x, i.v.sort().values),
    lambda i: torch.histc(i.x, bins=int(i.one)),
    lambda i: torch.bincount(i.n),
    lambda i: torch.bernoulli(i.x.sigmoid(), generator=torch.Generator().manual_seed(int(i.one))),
    lambda i: torch.normal(i.x, i.y.abs(), generator=torch.Generator().manual_seed(2)),
    lambda i: torch.multinomial(i.v.abs(), 3, generator=torch.Generator().manual_seed(2)),
    lambda i: torch.randint(int(i.one), 9, (3,), generator=torch.Generator().manual_seed(2)),
    lambda i: torch.empty(4).fill_(i.zero),
)

# -- indexing and assignment -------------------------------------------------------------------------------


def assigned(change):
    """Returns the state after an assignment to a copy."""

    def way(i):
        target = torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE)
        change(i, target)
        return target

    return way


def assigned_out(change):
    """Returns the state after an assignment to a tensor that is out."""

    def way(i):
        change(i, i.x)
        return i.x

    return way


def put(index):
    def change(i, t):
        t[index(i)] = i.zero

    return change


INDICES = (
    lambda i: i.m,
    lambda i: (slice(None), 2),
    lambda i: 3,
    lambda i: (3, 4),
    lambda i: Ellipsis,
    lambda i: slice(1, 5),
    lambda i: slice(None, None, 2),
    lambda i: (None, 3),
    lambda i: i.n,
    lambda i: (i.n, i.n),
    lambda i: i.one,
    lambda i: (i.one, i.one),
    lambda i: (i.one, slice(None)),
    lambda i: (slice(None), i.one),
    lambda i: (slice(None), i.n),
    lambda i: [0, 2],
    lambda i: list(i.n[:3]),
    lambda i: [i.one, 2],
    lambda i: i.m[0],
    lambda i: (i.m[0], 1),
    lambda i: slice(i.one, i.one + 4),
    lambda i: (slice(i.n[0], i.n[0] + 2), 1),
    lambda i: i.yes,
    lambda i: numpy.array([1, 2]),
    lambda i: i.b.long() % SIZE,
)
for place, index in enumerate(INDICES):
    group(
        "indexing",
        **{
            f"read at {place}": lambda i, index=index: i.x[index(i)],
            f"put at {place}": assigned(put(index)),
            f"put at {place} of what is out": assigned_out(put(index)),
            f"put a whole number at {place}": assigned(lambda i, t, index=index: t.__setitem__(index(i), i.one)),
            f"put an element at {place}": assigned(lambda i, t, index=index: t.__setitem__(index(i), i.v[3])),
            f"put a truth at {place}": assigned(lambda i, t, index=index: t.__setitem__(index(i), i.yes)),
            f"put a double at {place}": assigned(lambda i, t, index=index: t.__setitem__(index(i), i.d[0])),
        },
    )
numbered(
    "indexing",
    assigned(lambda i, t: t.masked_fill_(i.m, i.zero)),
    assigned(lambda i, t: t.masked_scatter_(i.m, i.x)),
    assigned(lambda i, t: t.index_fill_(0, i.n, i.zero)),
    assigned(lambda i, t: t.index_put_((i.n,), i.zero)),
    assigned(lambda i, t: t.index_put_((i.n, i.n), i.v, accumulate=True)),
    assigned(lambda i, t: t.index_add_(0, i.n, i.x, alpha=2)),
    assigned(lambda i, t: t.index_copy_(0, i.n, i.x)),
    assigned(lambda i, t: t.scatter_(0, i.columns[None], i.zero.item())),
    assigned(lambda i, t: t.scatter_(0, i.columns[None], i.x)),
    assigned(lambda i, t: t.scatter_add_(0, i.columns[None], i.x)),
    assigned(lambda i, t: t.put_(i.n, i.v)),
    assigned(lambda i, t: t.fill_(i.zero)),
    assigned(lambda i, t: t.fill_diagonal_(i.zero.item())),
    assigned(lambda i, t: t.copy_(i.x)),
    assigned(lambda i, t: t[:4].copy_(i.v)),
    assigned(lambda i, t: t.lerp_(i.x, i.zero)),
    assigned(lambda i, t: t.addcmul_(i.x, i.y, value=i.zero.item())),
    lambda i: torch.where(i.m, i.x, i.zero),
    lambda i: torch.where(i.m, i.zero, 1.0),
    lambda i: torch.take(i.x, i.n),
    lambda i: torch.gather(i.x, 0, i.columns[None]),
    lambda i: torch.index_select(i.x, 0, i.n),
    lambda i: torch.masked_select(i.x, i.m),
    lambda i: i.x.narrow(0, i.one, 4),
    lambda i: torch.narrow(i.x, 0, i.one, 2),
    lambda i: i.x.select(0, i.one),
    lambda i: i.x.tensor_split(i.n[:2].sort().values),
    lambda i: i.x.repeat(i.one, 1),
    lambda i: i.x.repeat_interleave(i.n, 0),
    lambda i: i.x.roll(int(i.one), 0),
    lambda i: i.x.expand(i.one, SIZE, SIZE),
    lambda i: i.x.view(i.one - 1, -1),
    lambda i: i.x.reshape(i.one + 1, -1),
    lambda i: i.x.split(i.one),
    lambda i: i.x.chunk(i.one),
    lambda i: i.x.unfold(0, i.one, 1),
    lambda i: i.x.sum(i.one - 2),
    lambda i: i.x.topk(i.one),
    lambda i: i.x.kthvalue(int(i.one)),
    lambda i: i.x.diagonal(i.one),
    lambda i: i.x.as_strided((i.one, 2), (1, 1)),
)

# -- numbers given as tensors -----------------------------------------------------------------------------

numbered(
    "numbers",
    lambda i: i.x + i.zero,
    lambda i: i.x.add(i.y, alpha=i.zero),
    lambda i: torch.sub(i.x, i.y, alpha=i.zero.item()),
    lambda i: i.x * i.one,
    lambda i: i.x ** i.zero.int(),
    lambda i: i.x.clamp(-i.zero, i.zero),
    lambda i: i.x.clamp(min=i.zero.item()),
    lambda i: torch.pow(2.0, i.x),
    lambda i: torch.addmm(i.x, i.x, i.y, beta=i.zero),
    lambda i: torch.addcdiv(i.x, i.y, i.y + 9, value=i.zero),
    lambda i: torch.lerp(i.x, i.y, i.zero),
    lambda i: torch.lerp(i.x, i.y, 0.5),
    lambda i: torch.quantile(i.x, i.zero / 5),
    lambda i: torch.renorm(i.x, 2, 0, i.zero),
    lambda i: torch.norm(i.x, p=float(i.one)),
    lambda i: torch.allclose(i.x, i.x, atol=float(i.zero)),
    lambda i: torch.equal(i.x, i.y),
    lambda i: torch.isclose(i.x, i.y, i.zero),
    lambda i: torch.cumsum(i.x, i.one - 2),
    lambda i: F.dropout(i.x, float(i.zero) / 5, training=False),
    lambda i: F.leaky_relu(i.x, i.zero),
    lambda i: F.threshold(i.x, i.zero.item(), 0),
    lambda i: F.pad(i.x, [i.one, 1]),
    lambda i: F.interpolate(i.x[None, None], scale_factor=float(i.zero)),
    lambda i: F.interpolate(i.x[None, None], size=[int(i.one), 4]),
    lambda i: F.one_hot(i.n),
    lambda i: F.cross_entropy(i.x, i.columns),
    lambda i: F.cross_entropy(i.x, i.columns, weight=i.v.abs()),
    lambda i: F.embedding(i.n, i.x),
    lambda i: F.embedding_bag(i.n, i.x, torch.tensor([0, 4])),
    lambda i: F.layer_norm(i.x, [SIZE], i.v, i.v),
    lambda i: F.batch_norm(i.x, i.v.clone(), i.v.abs(), training=False),
    lambda i: F.gumbel_softmax(i.x, tau=float(i.zero)).shape,
    lambda i: F.nll_loss(i.x.log_softmax(1), i.columns),
    lambda i: F.ctc_loss(
        i.x[:, None].log_softmax(2), i.n[None, :4], torch.tensor([SIZE]), torch.tensor([4]), zero_infinity=True
    ),
    lambda i: F.ctc_loss(i.x[:, None].log_softmax(2), i.n[None, :4], i.one[None] + 20, i.one[None]),
    lambda i: F.scaled_dot_product_attention(i.x[None], i.y[None], i.x[None], attn_mask=i.m),
    lambda i: F.conv2d(i.x[None, None], i.y[None, None, :3, :3]),
    lambda i: F.linear(i.x, i.y, i.v),
    lambda i: nn.utils.rnn.pack_padded_sequence(i.x, i.n.sort(descending=True).values, batch_first=True).data,
    lambda i: nn.utils.rnn.pad_sequence(rows_of(i.x)),
    lambda i: nn.utils.rnn.pack_sequence(rows_of(i.x)).data,
    lambda i: nn.utils.parameters_to_vector([i.x, i.v]),
    lambda i: nn.utils.clip_grad_norm_([nn.Parameter(i.x)], float(i.zero)),
    lambda i: torch.nn.init.constant_(torch.empty(3), i.zero),
    lambda i: torch.nn.init.uniform_(torch.empty(3), float(i.zero), float(i.one)).shape,
    lambda i: torch.optim.SGD([nn.Parameter(i.x)], lr=i.zero).param_groups[0]["lr"],
    lambda i: torch.stft(i.v, int(i.one) + 5, window=i.v[:8], return_complex=True),
    lambda i: torch.fft.fft(i.x, int(i.one)),
    lambda i: torch.linalg.det(i.x),
    lambda i: torch.linalg.matrix_power(i.x, int(i.one)),
    lambda i: torch.linalg.matrix_rank(i.x, tol=i.zero),
    lambda i: torch.linalg.pinv(i.x, rtol=i.zero),
    lambda i: torch.einsum("ij,jk->ik", i.x, i.y),
    lambda i: torch.cat([i.x, i.y]),
    lambda i: torch.stack(list(i.v[:4])),
    lambda i: torch.hstack(rows_of(i.x)),
    lambda i: torch._foreach_add([i.x, i.y], i.zero),
    lambda i: torch._foreach_mul([i.x, i.y], [1.0, 2.0]),
    lambda i: torch._foreach_norm([i.x, i.y]),
    lambda i: torch._foreach_addcmul([i.x], [i.y], [i.y], i.v[:1]),
    lambda i: torch.meshgrid(i.v, i.v, indexing="ij"),
    lambda i: torch.searchsorted(i.v.sort().values, i.zero),
    lambda i: torch.isin(i.n, i.one),
    lambda i: torch.unique(i.n, return_counts=True),
    lambda i: torch.nonzero(i.m, as_tuple=True),
    lambda i: torch.count_nonzero(i.m),
    lambda i: torch.can_cast(i.x.dtype, torch.int),
    lambda i: torch.result_type(i.x, i.zero),
    lambda i: torch.is_nonzero(i.zero),
    lambda i: torch.is_tensor(i.x),
    lambda i: torch.numel(i.x),
    lambda i: torch.promote_types(i.x.dtype, i.h.dtype),
)

# -- protocols of Python's --------------------------------------------------------------------------------

numbered(
    "protocols",
    lambda i: float(i.zero),
    lambda i: int(i.one),
    lambda i: bool(i.yes),
    lambda i: complex(i.c[0, 0]),
    lambda i: operator.index(i.one),
    lambda i: range(i.one),
    lambda i: list(range(5))[i.one],
    lambda i: [1, 2, 3] * i.one,
    lambda i: "a" * i.one,
    lambda i: round(i.zero),
    lambda i: math.sqrt(i.zero),
    lambda i: math.floor(i.zero),
    lambda i: math.ceil(i.zero),
    lambda i: math.trunc(i.zero),
    lambda i: divmod(i.zero, 2),
    lambda i: abs(i.x),
    lambda i: -i.x,
    lambda i: ~i.m,
    lambda i: i.n << 1,
    lambda i: 2**i.zero,
    lambda i: 1 / i.zero,
    lambda i: 7 // i.zero,
    lambda i: 7 % i.zero,
    lambda i: i.zero in [1.0, i.zero],
    lambda i: i.v[0] in i.v,
    lambda i: i.x == i.y,
    lambda i: sorted(i.v[:4]),
    lambda i: max(i.v[:4]),
    lambda i: sum(i.v[:4]),
    lambda i: sum(rows_of(i.x)),
    lambda i: all(i.m[0]),
    lambda i: any(i.m[0]),
    lambda i: [float(each) for each in i.v],
    lambda i: dict(zip("ab", i.v)),
    lambda i: [*i.n[:3]],
    lambda i: f"{i.zero:.3f} {i.one:d} {i.zero}",
    lambda i: "%s %.2f %d" % (i.v[:2], i.zero, i.one),
    lambda i: str(i.x),
    lambda i: repr(i.c),
    lambda i: repr(i.h),
    lambda i: str(i.m),
    lambda i: repr(nn.Parameter(i.x)),
    lambda i: i.x.tolist(),
    lambda i: i.c.tolist(),
    lambda i: i.h.tolist(),
    lambda i: i.zero.tolist(),
    lambda i: i.zero.item(),
    lambda i: i.v[3].item(),
    lambda i: copy.copy(i.x),
    lambda i: copy.deepcopy(i.x),
    lambda i: copy.deepcopy([i.x, {"y": i.y}]),
    lambda i: copy.deepcopy(nn.Parameter(i.x)),
    lambda i: pickle.loads(pickle.dumps(i.x)),
    lambda i: pickle.loads(pickle.dumps({"x": i.x, "row": i.x[2]})),
    lambda i: pickle.loads(pickle.dumps(nn.Parameter(i.x))),
    lambda i: i.x.__array__().tolist(),
    lambda i: numpy.asarray(i.y).tolist(),
    lambda i: numpy.array([i.zero, i.v[0]]).tolist(),
    lambda i: numpy.array(list(i.n[:3])).tolist(),
    lambda i: numpy.float32(i.zero),
    lambda i: numpy.sum(i.y),
    lambda i: numpy.add(i.y, 1).tolist(),
    lambda i: numpy.ones(3) * i.zero,
    lambda i: numpy.testing.assert_allclose(i.x, i.x),
    lambda i: memoryview(i.b.numpy()).tobytes(),
    lambda i: bytes(i.b.tolist()),
    lambda i: bytearray(i.b),
    lambda i: torch.testing.assert_close(i.x, i.x.clone()),
    lambda i: torch.from_dlpack(i.y).clone(),
    lambda i: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(i.v)).clone(),
    lambda i: numpy.from_dlpack(i.v).tolist(),
    lambda i: bytes(i.v.untyped_storage()),
    lambda i: i.v.untyped_storage().tolist(),
    lambda i: list(i.v.storage()),
    lambda i: i.v.storage().tolist(),
    lambda i: i.x.data.clone(),
    lambda i: i.x.real,
    lambda i: i.c.imag,
    lambda i: i.c.conj().resolve_conj(),
    lambda i: torch.view_as_real(i.c),
    lambda i: i.x.view(torch.int32),
    lambda i: i.x.__dlpack_device__(),
    lambda i: i.x.is_pinned(),
    lambda i: i.x.is_shared(),
    lambda i: i.x.clone().share_memory_(),
    lambda i: (i.x.is_set_to(i.x), i.x.is_contiguous(), i.x.is_same_size(i.y)),
    lambda i: hash(i.x) == hash(i.x),
    lambda i: torch.typename(i.x),
    lambda i: i.x.type(),
    lambda i: i.x.map_(i.y, lambda one, other: one + other),
    lambda i: i.x.clone().apply_(lambda value: value + 1),
    lambda i: i.x.clone().map2_(i.y, i.x, lambda one, two, three: one + two + three),
)

# -- files and states ----------------------------------------------------------------------------------------


def through_a_file(save, load):
    file = io.BytesIO()
    save(file)
    file.seek(0)
    return load(file)


class Layer(nn.Module):
    def __init__(self, weight, mask):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return x @ self.weight * self.mask


def scripted(i):
    return torch.jit.script(Layer(i.x, i.m))


def traced(i):
    return torch.jit.trace(Layer(i.x, i.m), (i.y,), check_trace=False)


def state_after(i, set_state, draw):
    before = torch.get_rng_state()
    try:
        set_state(i)
        return draw()
    finally:
        torch.set_rng_state(before)


def generator(i):
    made = torch.Generator()
    made.set_state(i.state)
    return made


def forked(i):
    with torch.random.fork_rng():
        torch.random.set_rng_state(i.state)
        return torch.rand(3)


numbered(
    "files and states",
    lambda i: through_a_file(lambda f: torch.save(i.x, f), torch.load),
    lambda i: through_a_file(lambda f: torch.save([i.x, i.x.t(), i.zero], f), torch.load),
    lambda i: through_a_file(lambda f: torch.save(i.x, f, _use_new_zipfile_serialization=False), torch.load),
    lambda i: through_a_file(
        lambda f: torch.save(i.v.untyped_storage(), f), lambda f: bytes(torch.load(f, weights_only=False))
    ),
    lambda i: through_a_file(lambda f: torch.save(Layer(i.x, i.m).state_dict(), f), torch.load),
    lambda i: through_a_file(lambda f: torch.save(i.x.to_sparse(), f), torch.load).to_dense(),
    lambda i: through_a_file(lambda f: torch.save(i.c, f), torch.load),
    lambda i: through_a_file(lambda f: torch.save({"state": i.state}, f), torch.load),
    lambda i: through_a_file(lambda f: torch.jit.save(scripted(i), f), torch.jit.load)(torch.eye(SIZE)),
    lambda i: through_a_file(lambda f: torch.jit.save(traced(i), f), torch.jit.load)(torch.eye(SIZE)),
    lambda i: torch.jit.load(io.BytesIO(scripted(i).save_to_buffer()))(torch.eye(SIZE)),
    lambda i: scripted(i)(i.y),
    lambda i: torch.jit.freeze(scripted(i).eval())(i.y),
    lambda i: through_a_file(lambda f: torch.jit.save(torch.jit.freeze(scripted(i).eval()), f), torch.jit.load)(i.y),
    lambda i: torch.jit.optimize_for_inference(scripted(i).eval())(i.y),
    lambda i: copy.deepcopy(scripted(i))(i.y),
    lambda i: pickle.loads(pickle.dumps(Layer(i.x, i.m)))(i.y),
    lambda i: state_after(i, lambda i: torch.set_rng_state(i.state), lambda: torch.rand(3)),
    lambda i: state_after(i, lambda i: torch.random.set_rng_state(i.state), lambda: torch.randn(3)),
    lambda i: state_after(i, lambda i: torch.default_generator.set_state(i.state), lambda: torch.randperm(9)),
    lambda i: torch.rand(3, generator=generator(i)),
    lambda i: generator(i).get_state(),
    lambda i: generator(i).clone_state().get_state(),
    lambda i: generator(i).graphsafe_get_state().get_state(),
    lambda i: pickle.loads(pickle.dumps(generator(i))).get_state(),
    forked,
    lambda i: torch.utils.data.RandomSampler(range(9), generator=generator(i)).__iter__().__next__(),
    lambda i: [len(part) for part in torch.utils.data.random_split(range(9), [4, 5], generator=generator(i))],
    lambda i: torch.utils.data.default_collate(list(i.v[:4])),
    lambda i: torch.utils.data.default_collate([(i.x[row], i.n[row]) for row in range(4)]),
    lambda i: torch.utils.data.default_collate([{"a": float(i.v[row])} for row in range(4)]),
    lambda i: list(torch.utils.data.WeightedRandomSampler(i.v.abs(), 4, generator=torch.Generator().manual_seed(1))),
    lambda i: list(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(i.x, i.n), 8)),
    lambda i: list(torch.utils.data.SubsetRandomSampler(list(i.n[:4]), generator=torch.Generator().manual_seed(1))),
    lambda i: nn.Linear(SIZE, SIZE).load_state_dict({"weight": i.x, "bias": i.v}),
    lambda i: nn.Embedding.from_pretrained(i.x)(i.n),
    lambda i: torch.fx.symbolic_trace(Layer(i.x, i.m))(i.y),
    lambda i: torch.func.functional_call(nn.Linear(SIZE, SIZE), {"weight": i.x, "bias": i.v}, (i.y,)),
    lambda i: torch.nn.utils.parametrize.type_before_parametrizations(Layer(i.x, i.m)).__name__,
    lambda i: torch.autograd.gradcheck(lambda x: x.sin(), i.d[:3].requires_grad_()),
    lambda i: torch.autograd.functional.jacobian(lambda v: v * i.v[:3], i.v[:3]),
    lambda i: torch.utils.checkpoint.checkpoint(lambda x: x.sin(), i.x, use_reentrant=False),
    lambda i: torch.distributions.Normal(i.x, i.y.abs()).log_prob(i.x),
    lambda i: torch.distributions.Categorical(logits=i.x).entropy(),
    lambda i: torch.distributions.MultivariateNormal(i.v[:3], torch.eye(3)).log_prob(i.v[:3]),
    lambda i: torch.distributions.Uniform(i.zero, i.zero + 1).mean,
)

# -- other layouts ----------------------------------------------------------------------------------------


def csr(i):
    return torch.sparse_csr_tensor(i.rows, i.columns, i.v, (SIZE, SIZE))


numbered(
    "layouts",
    lambda i: torch.sparse_coo_tensor(i.indices, i.v, (SIZE, SIZE)).to_dense(),
    lambda i: torch.sparse_coo_tensor(i.indices, i.v).to_dense(),
    lambda i: torch.sparse_coo_tensor(i.indices, i.v, (SIZE, SIZE), check_invariants=True).to_dense(),
    lambda i: torch.sparse_coo_tensor(i.indices, list(i.v), (SIZE, SIZE)).to_dense(),
    lambda i: torch.sparse_coo_tensor([list(i.n[:3]), list(i.n[3:6])], [1.0, 2.0, 3.0]).to_dense(),
    lambda i: torch.sparse_coo_tensor(i.indices.tolist(), i.v, (SIZE, SIZE)).to_dense(),
    lambda i: torch.sparse.FloatTensor(i.indices, i.v, (SIZE, SIZE)).to_dense(),
    lambda i: csr(i).to_dense(),
    lambda i: torch.sparse_csr_tensor(i.rows, i.columns, i.v, (SIZE, SIZE), check_invariants=True).to_dense(),
    lambda i: torch.sparse_csr_tensor(list(i.rows), list(i.columns), list(i.v), (SIZE, SIZE)).to_dense(),
    lambda i: torch.sparse_csc_tensor(i.rows, i.columns, i.v, (SIZE, SIZE)).to_dense(),
    lambda i: torch.sparse_csc_tensor(i.rows, i.columns, i.v, (SIZE, SIZE), check_invariants=True).to_dense(),
    lambda i: torch.sparse_bsr_tensor(i.rows[:5], i.columns[:4] % 4, i.x[:4, :4].reshape(4, 2, 2)).to_dense(),
    lambda i: torch.sparse_compressed_tensor(
        i.rows, i.columns, i.v, (SIZE, SIZE), layout=torch.sparse_csr, check_invariants=True
    ).to_dense(),
    lambda i: torch.sparse.check_sparse_tensor_invariants.is_enabled(),
    lambda i: i.x.to_sparse().coalesce().values(),
    lambda i: i.x.to_sparse_csr().values(),
    lambda i: i.x.to_sparse_bsr((2, 2)).values(),
    lambda i: i.x.sparse_mask(i.x.to_sparse()).to_dense(),
    lambda i: torch.sparse.mm(csr(i), i.x),
    lambda i: csr(i) @ i.x,
    lambda i: torch.sparse.sum(i.x.to_sparse(), 0).to_dense(),
    lambda i: str(torch.sparse_coo_tensor(i.indices, i.v, (SIZE, SIZE))),
    lambda i: repr(csr(i)),
    lambda i: copy.deepcopy(torch.sparse_coo_tensor(i.indices, i.v, (SIZE, SIZE))).to_dense(),
    lambda i: pickle.loads(pickle.dumps(csr(i))).to_dense(),
    lambda i: torch.nested.nested_tensor(rows_of(i.x)).to_padded_tensor(0.0),
    lambda i: torch.nested.nested_tensor([list(i.v[:2]), list(i.v[:3])]).to_padded_tensor(0.0),
    lambda i: torch.nested.as_nested_tensor(rows_of(i.x)).unbind(),
    lambda i: torch.nested.nested_tensor(rows_of(i.x), layout=torch.jagged).values(),
    lambda i: torch.nested.nested_tensor_from_jagged(i.x, i.rows[:9:2] * 4).unbind()[0],
    lambda i: torch.quantize_per_tensor(i.x, 0.1, 0, torch.qint8).int_repr(),
    lambda i: torch.quantize_per_tensor(i.x, i.zero, i.one, torch.qint8).int_repr(),
    lambda i: torch.quantize_per_channel(i.x, i.v.abs() + 0.1, i.n, 0, torch.qint8).int_repr(),
    lambda i: torch.fake_quantize_per_tensor_affine(i.x, i.zero, i.one.int(), 0, 255),
    lambda i: torch.masked.masked_tensor(i.x, i.m).get_data(),
    lambda i: torch.nn.utils.rnn.unpad_sequence(i.x, i.n % 4 + 1, batch_first=True)[0],
    lambda i: i.x.to_mkldnn().to_dense(),
    lambda i: torch.compile(lambda x: x.sin(), backend="eager")(i.x),
    lambda i: torch.func.vmap(torch.dot)(i.x, i.y),
    lambda i: torch.func.grad(lambda x: (x * i.y).sum())(i.x),
    lambda i: torch.cond(i.yes, lambda x: x.sin(), lambda x: x.cos(), (i.x,)),
)
COUNT = sum(map(len, GROUPS.values()))
