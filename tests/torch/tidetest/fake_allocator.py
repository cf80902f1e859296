"""torch's caching allocator, played: segments that the driver gives, blocks in them, fragments, workspaces, and no
memory left. The tensors are in the host's memory; of each storage that is made, freed or resized it is told.

The rules are those of c10/cuda/CUDACachingAllocator.cpp: sizes are multiples of 512 bytes; up to 1 MiB a block comes
from segments of 2 MiB, below 10 MiB from segments of 20 MiB, else from one of its own; the smallest free block that is
large enough is taken, and cut; what is free and adjacent is joined. Where the driver has no more, free segments go back
to it, and after that the allocator gives up.
"""

import ctypes

import torch

from tidelog.memory._record import nbytes
from tidelog.native._built import native
from tidelog.storages._ops import storages_of
from tidetest import MIB
from tidetest.beneath import Beneath

_SMALLEST, _SMALL, _LARGE = 512, MIB, 10 * MIB
_SMALL_SEGMENT, _LARGE_SEGMENT, _ROUND = 2 * MIB, 20 * MIB, 2 * MIB
WORKSPACE = 32 * MIB  # of cuBLAS on Hopper, taken at the first matrix product and kept
_POINTER_OFFSET = 16  # as in `tidetest.ledger`
_ASKS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t)
_HEARS = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t)
_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")


class _Block:
    __slots__ = ("free", "offset", "segment", "size")

    def __init__(self, segment, offset, size):
        self.segment, self.offset, self.size, self.free = segment, offset, size, True


class _Segment:
    def __init__(self, size, small):
        self.size, self.small = size, small
        self.blocks = [_Block(self, 0, size)]  # in the order of their offsets


class Pool:
    """The allocator itself."""

    def __init__(self, capacity):
        self.capacity = capacity  # bytes that the driver has for it
        self.segments = []
        self.given = 0
        self.allocations = self.frees = self.failures = 0

    @property
    def reserved(self):
        return sum(segment.size for segment in self.segments)

    def malloc(self, size):
        size = max(-(-size // _SMALLEST) * _SMALLEST, _SMALLEST)
        small = size <= _SMALL
        block = self._find(size, small)
        if block is None:
            wanted = _SMALL_SEGMENT if small else _LARGE_SEGMENT if size < _LARGE else -(-size // _ROUND) * _ROUND
            if self.reserved + wanted > self.capacity:
                self.empty()
            if self.reserved + wanted > self.capacity:
                self.failures += 1
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / MIB:.2f} MiB.")
            self.allocations += 1
            self.segments.append(_Segment(wanted, small))
            block = self.segments[-1].blocks[0]
        rest = block.size - size
        if rest >= (_SMALLEST if small else _SMALL + 1):
            blocks = block.segment.blocks
            blocks.insert(blocks.index(block) + 1, _Block(block.segment, block.offset + size, rest))
            block.size = size
        block.free = False
        self.given += block.size
        return block

    def _find(self, size, small):
        fitting = [
            block
            for segment in self.segments
            if segment.small is small
            for block in segment.blocks
            if block.free and block.size >= size
        ]
        return min(fitting, key=lambda block: block.size, default=None)

    def free(self, block):
        block.free = True
        self.given -= block.size
        joined = []
        for each in block.segment.blocks:
            if joined and joined[-1].free and each.free:
                joined[-1].size += each.size
            else:
                joined.append(each)
        block.segment.blocks = joined

    def empty(self):
        """Empties the cache, as torch.cuda.empty_cache does."""
        kept = [segment for segment in self.segments if len(segment.blocks) > 1 or not segment.blocks[0].free]
        self.frees += len(self.segments) - len(kept)
        self.segments = kept

    def stats(self):
        """Returns the counters of torch._C._cuda_memoryStats, in part."""
        return {
            "reserved_bytes": {"all": {"current": self.reserved}},
            "allocated_bytes": {"all": {"current": self.given}},
            "num_device_alloc": self.allocations,
            "num_device_free": self.frees,
            "num_ooms": self.failures,
        }


def _address(storage):
    """Returns the address of the memory, as C++ has it: what is out is guarded."""
    return ctypes.c_uint64.from_address(storage._cdata + _POINTER_OFFSET).value


class Allocating(Beneath):
    """Mode in which storages take their memory from a pool. It is entered before a block is."""

    def __init__(self, pool, guard, monkeypatch):
        """`guard`: of the fake, which allocates."""
        super().__init__()
        self.pool, self._guard = pool, guard
        self._blocks = {}  # by the address of the storage's memory
        self._workspace = None
        self.fail_next = 0  # so many ops that make storages find no memory, whatever there is
        self._given = None  # what the memory is of that a move is about to get
        self._is_giving = False
        self._calls = _ASKS(self._ask), _HEARS(self._give), _HEARS(self._take_back)
        give = native().give
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", self._clear_workspace, raising=False)

        def giving(storage, size, message):
            self._is_giving = True
            try:
                return give(storage, size, message)
            finally:
                self._is_giving = False

        monkeypatch.setattr(native(), "give", giving)

    def __enter__(self):
        self._guard.memory_begin(*self._calls, False)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._guard.memory_end()

    def _ask(self, size):
        """Memory of the host is about to be allocated. Other than 0: there is none."""
        if size and (self._is_giving or native().is_busy()):  # for a storage that comes back
            try:
                self._given = self.pool.malloc(size)
            except torch.OutOfMemoryError:
                return 1
        return 0

    def _give(self, address, _size):
        if self._given is not None:
            self._blocks[address], self._given = self._given, None

    def _take_back(self, address, _size):
        block = self._blocks.pop(address, None)
        if block is not None:
            self.pool.free(block)

    def _clear_workspace(self):
        if self._workspace is not None:
            self.pool.free(self._workspace)
            self._workspace = None

    def handle(self, func, args, kwargs, run):
        if self._workspace is None and str(func).startswith(_PRODUCTS):
            self._workspace = self.pool.malloc(WORKSPACE)
        result = run()
        known = set(map(_address, storages_of(args, kwargs)))
        made = storages_of((result,), {})
        for storage in made:
            address, size = _address(storage), nbytes(storage)
            if size and address not in known and address not in self._blocks and storage.device.type == "cpu":
                if self.fail_next:
                    self.fail_next -= 1
                    raise torch.OutOfMemoryError("CUDA out of memory, as a test asked.")
                self._blocks[address] = self.pool.malloc(size)
        return result

    def has_memory(self, tensor):
        return _address(tensor.untyped_storage()) in self._blocks
