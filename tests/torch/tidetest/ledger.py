"""Counts the bytes that tensors really hold, without asking Tidelog and without its bookkeeping.

A storage's bytes count while its data pointer is not null. The pointer is read from the C++ object itself,
because a storage that is out refuses to tell it, and because its `nbytes` stays as it was.
"""

import ctypes
import functools
import gc
import weakref

import torch
from torch.utils._pytree import tree_leaves
from torch.utils._python_dispatch import TorchDispatchMode

from tidetest import device

_untyped_storage = torch._C.TensorBase.untyped_storage
_nbytes = torch._C.StorageBase.nbytes
_POINTER_OFFSET = 16  # c10::StorageImpl: vtable, reference counts, data_ptr_


def _pointer(storage):
    return ctypes.c_uint64.from_address(storage._cdata + _POINTER_OFFSET).value


def held_bytes(storage):
    """Bytes of memory behind a storage now."""
    return _nbytes(storage) if _pointer(storage) else 0


def pointer_layout_is_known():
    """Returns whether this torch lays its storages out as `held_bytes` expects."""
    storage = torch.arange(3).untyped_storage()
    return _pointer(storage) == torch._C.StorageBase.data_ptr(storage) and not _pointer(torch.UntypedStorage(0))


def tensors_in(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storages_of(tensors):
    """The distinct storages of tensors; layouts without a storage of their own give their parts'."""
    found = {}
    for tensor in tensors:
        parts = (tensor,)
        if tensor.layout == torch.sparse_coo:
            parts = (torch.Tensor._values(tensor), torch.Tensor._indices(tensor))
        for part in parts:
            try:
                storage = _untyped_storage(part)
            except (NotImplementedError, RuntimeError):
                continue
            if storage.device.type == device.kind():
                found[storage._cdata] = storage
    return found


class Ledger(TorchDispatchMode):
    """Sums live storages before and after every op it sees.

    Entered inside an offload block it sees whole ops, with what Tidelog does around them: the op boundaries.
    Entered around the block it sees the kernels alone: what was there when one ended, its outputs included.
    """

    def __init__(self, before=True):
        super().__init__()
        self._before = before  # whether to measure before ops too: a plain run only shrinks between two ops
        self._storages = {}
        self._held = {}  # bytes of each at the last look
        self.peak_bytes = 0
        self.peak_op = "entry"
        self.largest_op_bytes = 0  # the storages of the largest op, a foreach op counting as its largest piece
        self.largest_op = None
        self.ops = 0
        self.adopt_everything()

    def adopt_everything(self):
        """Takes on every tensor that Python can see, with its gradient."""
        gc.collect()
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
        self._adopt(storages_of(tensors))
        self._measure(self.live_bytes(), "entry")

    def live_bytes(self):
        """Bytes of all storages that are alive and in memory."""
        self._look({key: reference() for key, reference in list(self._storages.items())})
        return sum(list(self._held.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = storages_of(tensors_in((args, kwargs)))
        self._adopt(inputs)
        if self._before:
            self._measure(self.live_bytes(), "before", func)
        result = func(*args, **kwargs)
        outputs = storages_of(tensors_in(result))
        self._adopt(outputs)
        self._measure(self._live_after({**inputs, **outputs}), "after", func)
        self._weigh(func, args, kwargs, {**inputs, **outputs})
        self.ops += 1
        return result

    def _live_after(self, used):
        """The bytes after an op that used these. Around Tidelog any storage may have left or come back; in a plain
        run the op can have changed no other. To look at all of them after each op would take most of the time.
        """
        if self._before:
            return self.live_bytes()
        self._look(used)
        return sum(list(self._held.values()))

    def _look(self, storages):
        for identity, storage in storages.items():
            if storage is not None:
                self._held[identity] = held_bytes(storage)

    def _adopt(self, storages):
        for identity, storage in storages.items():
            known = self._storages.get(identity)
            if known is None or known() is None:
                self._storages[identity] = weakref.ref(storage, functools.partial(self._forget, identity))

    def _forget(self, identity, reference):
        if self._storages.get(identity) is reference:
            del self._storages[identity]
            self._held.pop(identity, None)

    def _measure(self, live, where, func=None):
        if live > self.peak_bytes:
            self.peak_bytes, self.peak_op = live, f"{where} {func} (op {self.ops})" if func else where

    def _weigh(self, func, args, kwargs, storages):
        size = sum(_nbytes(storage) for storage in storages.values())
        name = str(func)
        if "_foreach_" in name or "_fused_" in name:
            lists = [
                value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple)) and tensors_in(value)
            ]
            size = 2 * sum(
                max(tensor.numel() * tensor.element_size() for tensor in tensors_in(value)) for value in lists
            )
        if size > self.largest_op_bytes:
            self.largest_op_bytes, self.largest_op = size, name
