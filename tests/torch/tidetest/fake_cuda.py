"""A GPU for the tests, and one where there is none: gds/fake, whose device memory is the host's here, so that torch's
CPU kernels compute on it, while Tidelog's copies are late, in streams, and ordered by events alone.

To torch its streams and events are those of a kind of device that it has no backend for (fake_guard.cpp), so the
bridge's C++ is the one that runs on a GPU.
"""

import contextlib
import ctypes
import os
import subprocess
from pathlib import Path

import torch

from tidelog.memory import _arena, _device
from tidelog.memory._record import data_ptr
from tidetest import native
from tidetest.fake_allocator import Pool

_GUARD = Path(__file__).with_name("fake_guard.cpp")
_SOURCES = sorted((Path(__file__).resolve().parents[3] / "gds" / "fake").glob("*.c"))
_library = _guard = None
ARENA_GRANULE = 4096  # of mapped memory: a GPU's are larger, and so are its tensors
_SLEEP_CYCLES = 50_000_000  # some 30 ms


def build(folder):
    """Builds the fake with the C compiler, and returns its path."""
    built = Path(folder) / "libcuda.so"
    # Tidelog asks the loader for libcuda.so; a library of that name that is loaded already is what it gets.
    name = "-Wl,-soname,libcuda.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-pthread", name, "-o", built, *_SOURCES], check=True)
    return built


def build_guard(folder):
    """Builds torch's guard for it, and returns its path."""
    return native.build_for_torch(folder, "fake_guard", _GUARD.read_text())


def library(folder, built=None):
    """The fake and torch's guard for it, built unless they are (`built`: their paths); a process has one of each."""
    global _library, _guard
    if _library is None:
        built, guard = built or (build(folder), build_guard(folder))
        _library = ctypes.CDLL(str(built))
        _library.fake_count.restype = ctypes.c_uint64
        os.environ["TIDELOG_CUFILE"] = str(built)
        os.environ["CUFILE_LOGFILE_PATH"] = str(built.with_name("cufile.log"))
        _guard = ctypes.CDLL(str(guard))
        _guard.guard_has_told.restype = ctypes.c_bool
        _guard.guard_current.restype = ctypes.c_void_p
        _guard.built = str(built).encode()
    return _library


def _call(name, *arguments):
    """Calls CUDA as torch does."""
    code = getattr(_library, name)(*arguments)
    if code:
        raise RuntimeError(f"CUDA error: {code}")


class Event:
    """Event with the methods of torch.cuda.Event that are used. Every op takes the same time by its clock."""

    OP_MILLISECONDS = 3.0

    def __init__(self, enable_timing=False):
        handle = ctypes.c_void_p()
        _call("cuEventCreate", ctypes.byref(handle), 0)
        self.cuda_event = handle.value

    def __del__(self):
        if not hasattr(self, "cuda_event"):
            return
        _library.cuEventDestroy_v2(ctypes.c_void_p(self.cuda_event))

    def record(self, stream):
        _call("cuEventRecord", ctypes.c_void_p(self.cuda_event), stream.handle)

    def query(self):
        code = _library.cuEventQuery(ctypes.c_void_p(self.cuda_event))
        if code not in (0, 600):
            raise RuntimeError(f"CUDA error: {code}")
        return code == 0

    def synchronize(self):
        _call("cuEventSynchronize", ctypes.c_void_p(self.cuda_event))

    def elapsed_time(self, end):
        return self.OP_MILLISECONDS


class Stream:
    """Stream with the methods of torch.cuda.Stream that are used."""

    def __init__(self, device=None):
        self.handle = ctypes.c_void_p()
        _call("cuStreamCreate", ctypes.byref(self.handle), 0)

    def wait_event(self, event):
        _call("cuStreamWaitEvent", self.handle, ctypes.c_void_p(event.cuda_event), 0)

    def record_event(self):
        event = Event()
        event.record(self)
        return event


class Gpu(_device.Gpu):
    """The class that is tested, for tensors that torch knows to be in host memory."""

    def __init__(self):
        super().__init__(torch.device("cuda", 0), "fpga")
        self.place = torch.device("cpu")

    @property
    def early(self):
        """Fetches that ended before their bytes were there."""
        return _guard.guard_early()

    dlpack_type = 1  # the host's
    host_like = _device.Host.host_like  # no pages are locked

    def _require_arena(self):
        """The arena goes in front of the host's allocator."""
        _library.fake_granule(ctypes.c_uint64(ARENA_GRANULE))

    def why_unmovable(self, storage):
        return None if self.is_divisible(storage) else _device.Host.why_unmovable(self, storage)


_write_file, _set_from_file = torch._C.StorageBase._write_file, torch._C.StorageBase._set_from_file


def _alias_of(storage):
    """Makes another storage in the same memory, of which nobody sees that it is this one."""
    address = torch._C.StorageBase.data_ptr(storage)
    return torch.frombuffer((ctypes.c_char * storage.nbytes()).from_address(address), dtype=torch.uint8)


def _write_by_an_op(storage, *arguments):
    """Writes a GPU's storage to a file as torch does."""
    if not storage.nbytes():
        return _write_file(storage, *arguments)
    copy = torch.frombuffer(bytearray(storage.nbytes()), dtype=torch.uint8)
    copy.copy_(_alias_of(storage))
    return _write_file(copy.untyped_storage(), *arguments)


def _read_by_an_op(storage, *arguments):
    if not storage.nbytes():
        return _set_from_file(storage, *arguments)
    read = torch.frombuffer(bytearray(storage.nbytes()), dtype=torch.uint8)
    _set_from_file(read.untyped_storage(), *arguments)
    _alias_of(storage).copy_(read)
    return storage


class FakeCuda:
    """The fake in the place of torch.cuda, with the current stream and what was asked of the caching allocator."""

    device = "cpu"  # where torch has the tensors
    name = "GPU 0 (Fake GPU) at 0000:3b:00.0"
    gds = "gds"
    Stream = Stream

    def __init__(self, monkeypatch, folder, seed, laziness, built=None):
        self.library = library(folder, built)
        self.library.fake_reset(ctypes.c_uint64(seed), ctypes.c_uint(laziness))
        self.library.fake_unify(True)
        self.guard = _guard
        self.guard.guard_begin(_guard.built)
        self.stream = Stream()
        self.pool, self.emptied = Pool(capacity=1 << 40), 0
        self.segments = []  # of the caching allocator, for what lies in pools
        for name, value in {
            "Event": Event,
            "Stream": Stream,
            "current_stream": lambda device=None: self.stream,
            "synchronize": lambda device=None: _call("cuCtxSynchronize"),
            "memory_stats_as_nested_dict": lambda device=None: self.pool.stats(),
            "empty_cache": self._empty_cache,
            "get_allocator_backend": lambda: "native",
            "memory_snapshot": lambda include_traces: self.segments,
            "is_current_stream_capturing": lambda: False,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.UntypedStorage, "_write_file", _write_by_an_op)
        monkeypatch.setattr(torch.UntypedStorage, "_set_from_file", _read_by_an_op)
        for name in ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool", "_cuda_releasePool"):
            monkeypatch.setattr(torch.cuda.memory, name, lambda device, pool: None)
        monkeypatch.setattr(_device, "choose", lambda device, model: Gpu())
        allocate, use, free, *parts = _arena.functions()
        self.guard.guard_arena(ctypes.c_void_p(allocate), ctypes.c_void_p(free))
        seen = ctypes.cast(self.guard.guard_arena_allocate, ctypes.c_void_p).value
        monkeypatch.setattr(_arena, "functions", lambda: (seen, use, free, *parts))

    @property
    def stream(self):
        """Returns the stream on which ops are launched."""
        return self._stream

    @stream.setter
    def stream(self, stream):
        self._stream = stream
        self.guard.guard_stream(stream.handle)
        self.library.fake_memory_is_of(stream.handle)

    def hear_of_memory(self):
        """Reports memory from here on, until `guard.memory_end`: memory that is allocated is filled, and where it is
        freed, whatever uses it in a stream has its turn.
        """
        self.guard.memory_begin(None, None, ctypes.cast(self.library.fake_let_go, ctypes.c_void_p), True)

    def deafen(self, stream):
        """Makes a stream ignore events."""
        self.guard.guard_deafen(stream.handle)

    def has_told(self, tensor, stream):
        """Returns whether torch's allocator knows that a stream uses the tensor's memory."""
        address = data_ptr(tensor.untyped_storage())
        return self.guard.guard_has_told(ctypes.c_void_p(address), stream.handle)

    def poke(self, address, value):
        """A kernel past the dispatcher writes a byte, and is done."""
        ctypes.memset(address, value, 1)

    def launch(self, nanoseconds):
        """A kernel that uses nothing, and takes so long by the fake's clock."""
        self.library.fake_kernel(self.stream.handle, ctypes.c_uint64(nanoseconds), 0, None, 0, None)

    def _empty_cache(self):
        self.emptied += 1
        self.pool.empty()

    @contextlib.contextmanager
    def on(self, stream):
        """Ops are launched on another stream."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def write_late(self, stream, tensor, source):
        """A kernel writes the tensor some time after it was launched."""
        with self.on(stream):
            tensor.add_(0)  # an op, by which the stream is noticed
        self.copy_late(stream, tensor, source)

    def copy_late(self, stream, tensor, source):
        """Copies late on a stream that was noticed."""
        destination, source = (data_ptr(each.untyped_storage()) for each in (tensor, source))
        words = ctypes.c_uint64(destination), ctypes.c_uint64(source), ctypes.c_size_t(tensor.nbytes)
        assert _library.cuMemcpyDtoDAsync_v2(*words, stream.handle) == 0

    def host_bytes(self):
        """Returns the number of bytes copied between the GPU and the host since the fake was started."""
        return self.library.fake_count(b"host_bytes")

    def made_and_unmapped(self):
        """Calls of the driver that made memory for mapping, and that unmapped some, since the process began."""
        return tuple(self.library.fake_count(name) for name in (b"creations", b"unmappings"))

    def mapped_bytes(self):
        """The memory that was made to be mapped, and is mapped still."""
        return self.library.fake_count(b"mapped_bytes")

    def flip_a_bit(self):
        """The next copy between the GPU and the host brings another bit."""
        self.library.fake_plan(b"flip", 0, 1, 1)

    def page_locked_bytes(self):
        """The host memory that was allocated through CUDA and not freed."""
        return self.library.fake_count(b"host_memory")

    def assert_lawful(self):
        first = ctypes.create_string_buffer(256)
        count = self.library.fake_violations(first, ctypes.c_size_t(256))
        assert count == 0, f"{count} violations, the first: {first.value.decode()}"


def lock_pages(monkeypatch):
    """CUDA is initialised. Returns a set: the addresses of host memory that it has page-locked."""
    locked = set()

    def is_pinned(tensor, device=None):
        return torch._C.StorageBase.data_ptr(tensor.untyped_storage()) in locked

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_pinned", is_pinned)
    return locked


class RealCuda:
    """Interface of the fake, implemented by a GPU."""

    device = "cuda"
    name = "GPU 0 ("
    gds = "gds-compat"  # whatever cuFile does here, it is not this library that goes through the host
    Stream = torch.cuda.Stream

    @property
    def stream(self):
        return torch.cuda.current_stream()

    on = staticmethod(torch.cuda.stream)

    def host_bytes(self):
        return 0  # nobody counts them here

    def poke(self, address, value):
        assert ctypes.CDLL("libcuda.so.1").cuMemsetD8_v2(ctypes.c_uint64(address), value, ctypes.c_size_t(1)) == 0

    def write_late(self, stream, tensor, source):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(_SLEEP_CYCLES)
            tensor.copy_(source)

    def assert_lawful(self):
        torch.cuda.synchronize()
