"""Ways to modify a tensor in place, and to make memory that lives on outside of torch's sight.

WRITES modify the tensor that they are given; ALIASES return an array or a tensor on the same memory. Both are
called without gradients. Where plain torch refuses a touch, the offloaded run must refuse it the same way.
"""

import ctypes

import numpy
import torch
from torch.utils import dlpack

WRITES = {}
ALIASES = {}


def write(function):
    WRITES[function.__name__] = function
    return function


def alias(function):
    ALIASES[function.__name__] = function
    return function


# -- writes -------------------------------------------------------------------------------------------


@write
def arithmetic_in_place(t):
    t.mul_(2).add_(0.5).neg_()


@write
def through_data(t):
    t.data.mul_(3)
    t.data[0] = 5


@write
def slice_assignment(t):
    t[1:3] = 7
    t[:, 2] = torch.arange(t.shape[0], dtype=t.dtype)
    t[-1, -1] = 9


@write
def fancy_assignment(t):
    t[torch.tensor([0, 2])] = 3.5
    t[t > 1] = 0.25


@write
def index_put(t):
    index = (torch.tensor([0, 1, 0]), torch.tensor([2, 2, 2]))
    t.index_put_(index, torch.tensor([1.0, 2.0, 4.0]), accumulate=True)
    t.index_fill_(0, torch.tensor([5]), 8)


@write
def masked_writes(t):
    t.masked_fill_(t < 0, 0.125)
    t.masked_scatter_(t > 0.5, torch.arange(t.numel(), dtype=t.dtype))


@write
def scatter_and_index_add(t):
    t.scatter_(1, torch.zeros(t.shape[0], 1, dtype=torch.long), 6.0)
    t.index_add_(0, torch.tensor([1, 1]), torch.ones(2, t.shape[1]))


@write
def filled(t):
    t.fill_(2)
    t[2].zero_()


@write
def random_fill(t):
    t.normal_(generator=torch.Generator(t.device).manual_seed(5))


@write
def copied_into(t):
    t.copy_(torch.linspace(0, 1, t.numel()).view(t.shape))


@write
def out_argument(t):
    torch.add(t.clone(), 1, out=t)


@write
def out_argument_is_a_view(t):
    torch.mul(t[0].clone(), 3, out=t[0])


@write
def through_a_view(t):
    t.view_as(t)[3].sub_(4)
    t.t()[2].add_(1)


@write
def through_detach(t):
    t.detach()[4:6].fill_(11)


@write
def through_flattened(t):
    t.diagonal().fill_(13)
    t.flatten()[3] = 1  # a copy where t is not contiguous, a view otherwise


@write
def initialised(t):
    torch.nn.init.uniform_(t, -1, 1, generator=torch.Generator(t.device).manual_seed(3))


@write
def foreach_in_place(t):
    torch._foreach_add_([t, t[0].clone()], 2.0)


@write
def augmented_assignment(t):
    t += 1
    t *= 2
    t[0] -= 3


@write
def lerp_and_addcmul(t):
    t.lerp_(torch.ones_like(t), 0.25).addcmul_(torch.ones_like(t), torch.ones_like(t), value=2)


@write
def sorted_into(t):
    torch.sort(t.clone(), dim=0, out=(t, torch.empty(t.shape, dtype=torch.long)))


@write
def apply_python_function(t):
    t.apply_(lambda value: value * 2 + 1)


@write
def map_python_function(t):
    t.map_(torch.ones_like(t), lambda mine, other: mine - other)


@write
def storage_elements_set(t):
    storage = t.untyped_storage()
    for index in range(4):
        storage[index] = 63
    t.storage()[5] = 4.25


@write
def storage_filled(t):
    t.untyped_storage().fill_(0)


@write
def storage_copied_into(t):
    source = torch.arange(t.untyped_storage().nbytes() // 4, dtype=torch.float32)
    t.untyped_storage().copy_(source.untyped_storage())


@write
def storage_written_by_typed_copy(t):
    source = torch.arange(t.storage().size(), dtype=torch.float32)
    t.storage().copy_(source.storage())


# -- aliases: memory that outlives the touch --------------------------------------------------------------


@alias
def numpy_array(t):
    return t.detach().numpy()


@alias
def numpy_forced(t):
    return t.numpy(force=True)


@alias
def numpy_of_a_row(t):
    return t.detach()[1].numpy()


@alias
def numpy_asarray(t):
    return numpy.asarray(t.detach())


@alias
def numpy_array_protocol(t):
    return numpy.asarray(t.detach().__array__())


@alias
def numpy_from_dlpack(t):
    return numpy.from_dlpack(t.detach())


@alias
def torch_from_dlpack(t):
    return torch.from_dlpack(t.detach())


@alias
def torch_from_a_dlpack_capsule(t):
    return dlpack.from_dlpack(dlpack.to_dlpack(t.detach()))


@alias
def torch_from_dlpack_method(t):
    return torch.from_dlpack(t.detach().__dlpack__())


@alias
def torch_from_its_numpy(t):
    return torch.from_numpy(t.detach().numpy())


@alias
def ctypes_pointer(t):
    address = t.data_ptr()
    extent = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride())) + 1
    flat = numpy.ctypeslib.as_array((ctypes.c_float * extent).from_address(address))
    return numpy.lib.stride_tricks.as_strided(flat, t.shape, [stride * 4 for stride in t.stride()])


@alias
def ctypes_storage_pointer(t):
    address = t.untyped_storage().data_ptr() + t.storage_offset() * t.element_size()
    extent = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride())) + 1
    flat = numpy.ctypeslib.as_array((ctypes.c_float * extent).from_address(address))
    return numpy.lib.stride_tricks.as_strided(flat, t.shape, [stride * 4 for stride in t.stride()])
