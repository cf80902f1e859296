"""Device of the tests' tensors, and whose memory Tidelog moves then (`pytest --device`): the host, a GPU, or a GPU that
is not there (tidetest.fake_cuda), whose tensors torch takes for the host's.

On a GPU half of each step is launched on a stream of its own, and ordered by events as a program must.
"""

import contextlib
import gc
import os

import pytest
import torch

from tidelog.native._built import native
from tidetest import KIB, interpreted
from tidetest.fake_cuda import FakeCuda, RealCuda

NAMES = ("cpu", "fake", "cuda")
STAGING = 256 * KIB
HOST_MEMORY = 512 * KIB  # less than what the touch suite's world has out

# Why some tests need the host's memory.
NO_ADDRESS = "a GPU's memory has no address that numpy or a pointer of Python's could use"
SHARED = "a GPU's memory is shared by a handle, and stays where it is"
FORK = "a process that has used CUDA cannot go on using it in a forked child"
RANKS = "ranks on GPUs need NCCL and a GPU each"

host_memory = None  # of a GPU, in front of the pool (`pytest --host-memory`)
allocator = "torch"  # "arena": of a GPU's memory (`pytest --allocator`)
updates = "own"  # when parameters are updated (`pytest --updates`)
recompute = "own"  # "best": layers are under torch.utils.checkpoint, and run once (`pytest --recompute`)
name = "cpu"  # set once, before the tests are imported; what they rest on is imported before
_gpu = _beside = None


def lacking():
    """Returns the reason why tensors cannot be made there; None: they can."""
    return "torch finds no CUDA GPU" if name == "cuda" and not torch.cuda.is_available() else None


def is_host():
    return name == "cpu"


def kind():
    """Returns torch's name of the tensors' device."""
    return "cuda" if name == "cuda" else "cpu"


def budget(tensors):
    """The memory that an offload block is given for `tensors` bytes of tensors: staging buffers are the host's."""
    return tensors + (STAGING if is_host() else 0)


def is_beside(tensor):
    """Returns whether a tensor is state on the host (`--updates host`), which never moves."""
    return updates == "host" and native().record_for(tensor.untyped_storage()).is_beside


def params(names, on_host, reason):
    """Parameters of a test, in order, those in `on_host` for the host's memory alone."""
    marks = {each: pytest.mark.host_memory(reason) if each in on_host else () for each in names}
    return [pytest.param(each, marks=marks[each]) for each in sorted(names)]


def begin(folder):
    """Tensors are made there from now on; in `folder` the fake is built. Returns what ends it."""
    global _gpu, _beside
    patch = pytest.MonkeyPatch()
    if name == "fake":
        _gpu = FakeCuda(patch, folder, seed=1, laziness=1)
        _gpu.hear_of_memory()
        interpreted.begin(patch)
        torch.set_default_device("cpu")  # a mode for functions, as on a GPU
    elif name == "cuda":
        _gpu = RealCuda()
        torch.set_default_device("cuda")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products need it
        torch.use_deterministic_algorithms(True, warn_only=True)
        for kernels in ("flash", "mem_efficient", "cudnn"):  # whose sums come in any order, unless warnings are errors
            getattr(torch.backends.cuda, f"enable_{kernels}_sdp")(False)

    _beside = _gpu.Stream() if _gpu else None

    def end():
        gc.collect()
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
        patch.undo()
        if name == "fake":
            _gpu.guard.memory_end()
        if _gpu is not None:
            _gpu.assert_lawful()

    return end


@contextlib.contextmanager
def on_another_stream():
    """Ops are launched on a stream beside the usual one, behind what was launched before and before what is launched
    after.
    """
    if _gpu is None:
        yield
        return
    here = _gpu.stream
    _beside.wait_event(here.record_event())
    try:
        with _gpu.on(_beside):
            yield
    finally:
        here.wait_event(_beside.record_event())
