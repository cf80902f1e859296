"""torch.compile for a GPU that is not there: inductor writes its kernels in Triton, as for a GPU, and Triton's
interpreter runs them on the host's memory, which the fake GPU's is to torch.
"""

import importlib.util
import math
import os
import warnings

import numpy
import torch

# Triton looks for it when it is imported.
ENVIRONMENT = {"TRITON_INTERPRET": "1"}

# Of the functions that a GPU's library has, those that the tests' programs use.
_FUNCTIONS = {
    "erf": numpy.vectorize(math.erf, otypes=[numpy.float64]),
    "rsqrt": lambda values: 1 / numpy.sqrt(values),
    "sqrt": numpy.sqrt,
    "tanh": numpy.tanh,
}


class _Driver:
    """Driver of Triton's of which inductor asks what it compiles for. Nothing is compiled."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cpu", 0, 1)

    def get_current_device(self):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")


def begin(patch):
    """Has torch.compile make kernels in Triton from here on, where that is installed and is to have its interpreter."""
    if not ENVIRONMENT.items() <= os.environ.items() or importlib.util.find_spec("triton") is None:
        return
    import torch._inductor.config as config
    import torch._inductor.runtime.triton_heuristics as heuristics
    import torch.utils._triton as about_triton
    from triton.language.extra import libdevice
    from triton.runtime import driver, interpreter

    driver.set_active(_Driver())
    for name, function in _FUNCTIONS.items():
        patch.setattr(libdevice, name, _interpreted(function))
    # Kernels get the addresses of what they are called with. The interpreter would copy it to the host and back.
    patch.setattr(interpreter.GridExecutor, "_init_args_hst", lambda _, args, kwargs: (args, kwargs))
    patch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)
    patch.setattr(heuristics.CachingAutotuner, "__init__", _tuned(heuristics.CachingAutotuner.__init__))
    warnings.filterwarnings("ignore", "Could not find an active CPU backend")
    patch.setattr(about_triton, "triton_hash_with_backend", lambda: "interpreted")
    config.cpu_backend = "triton"
    config.compile_threads = 1


def _tuned(original):
    """Has inductor's kernels interpreted where they would be launched, which is no launch of the program's."""
    from triton.runtime.interpreter import InterpretedFunction

    class Kernel(InterpretedFunction):
        run = InterpretedFunction.run  # also while a block is open

    def made(tuner, fn, *, configs, **options):
        fn.__class__ = Kernel
        # The first is taken. An instance of a kernel takes as long with many elements as with few.
        configs = sorted(configs, key=lambda each: -each.kwargs.get("XBLOCK", 1))
        original(tuner, fn, configs=configs, **options)

    return made


def _interpreted(function):
    """A function of numbers, for the interpreter's tensors."""
    from triton.language import tensor
    from triton.runtime.interpreter import TensorHandle

    def call(values):
        data = values.handle.data
        return tensor(TensorHandle(function(data).astype(data.dtype), values.handle.dtype), values.type)

    return call
