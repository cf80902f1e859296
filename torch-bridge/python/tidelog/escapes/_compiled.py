"""torch.compile inside a block: graphs stay as they are, and every kernel that they launch is an op.

Inductor writes a Python module for each graph. Its functions call kernels, allocate buffers and call
ops, by names of that module. While a block is open these names stand for launches. Outside of it the
modules are as inductor made them, so compiled functions cost there what they always cost. Which
tensors a kernel writes is taken from the signature that inductor gave it.

Where this torch keeps these things elsewhere, the block says so, and compiled functions run eagerly.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from tidelog import _errors, _patches
from tidelog._patches import Wrapper
from tidelog.dispatch._access import Access
from tidelog.escapes._launches import launch, launching
from tidelog.memory._record import AWAY, untyped_storage
from tidelog.storages._ops import Args, Launch

_CODE = "torch._inductor.codecache"
_TRITON = "torch._inductor.runtime.triton_heuristics"
_GRAPHS = "torch._inductor.output_code"

# By which of these Dynamo asks, depends on an option of it.
_ASKS_FOR_MODES = ("any_torch_dispatch_mode_on_stack", "is_in_any_mode_without_ignore_compile_internals")
_ALLOCATES = (
    "_empty_strided_cpu",
    "_empty_strided_cpu_pinned",
    "_empty_strided_cuda",
    "_empty_strided_xpu",
    "_empty_strided_mtia",
)
_SIGNATURE = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\((\[[^\]]*\])", re.MULTILINE)

_NOT_SEEN = (
    f"torch {torch.__version__} keeps the kernels of torch.compile where Tidelog does not look for them "
    "({}): compiled functions run eagerly inside the block"
)
_NO_GRAPHS = (
    "torch.compile's CUDA graphs have the addresses of tensors in them, which move: functions that are "
    'compiled with mode="reduce-overhead" inside the block run without graphs'
)


class _Kernel(Launch):
    """A kernel of inductor. `written`: places of the arguments that it writes; None: maybe all."""

    def __init__(self, name: str, run: Callable[..., Any], written: Sequence[int] | None, count: int = 0) -> None:
        self.name = f"kernel {name}"
        self._call = run
        self._written = written
        self._count = count  # of its arguments, where `written` says which of them

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def written(self, count: int) -> Sequence[int] | None:
        return self._written if count == self._count else None


class _Allocation(Launch):
    """Launch that allocates a buffer of one type of element, past the dispatcher."""

    def __init__(self, run: Callable[..., Any], dtype: torch.dtype) -> None:
        self.name = f"{run.__name__.lstrip('_')} {dtype}"
        self._call = run
        self._item = dtype.itemsize

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def written(self, _count: int) -> Sequence[int]:
        return ()

    def expect(self, args: Args) -> int:
        sizes, strides = args[:2]
        if not math.prod(sizes):
            return 0
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return int(self._item * (1 + last))


def install(access: Access, say: Callable[[str], None]) -> None:
    """Makes what compiled functions launch ops of a block. `say` tells its user."""
    global _hooks
    import torch._dynamo.convert_frame as dynamo

    _leave_out_of_graphs()
    _hooks = hooks = _Hooks(access, say)
    _refuse_what_hides(access)
    names = [name for name in _ASKS_FOR_MODES if hasattr(dynamo, name)]
    if not names:
        hooks.missing = dynamo.__name__
    elif _CODE in sys.modules:
        hooks.find()
    if hooks.missing is not None:
        hooks.run_eagerly()
        _patches.replace(torch, "compile", lambda original: _eagerly(hooks, original))
        if _CODE in sys.modules:
            hooks.complain()
    for name in names:
        _patches.replace(dynamo, name, lambda original: _asked_for_modes(hooks, original))


def remove() -> None:
    """The block has ended."""
    if _hooks is not None:
        _hooks.end()


@functools.cache
def _leave_out_of_graphs() -> None:
    """Dynamo must not compile Tidelog's own functions, of which torch's carry some in a block."""
    from torch._dynamo import trace_rules

    add = getattr(trace_rules, "add", None)
    if add is not None:
        add("tidelog")


def _eagerly(hooks: _Hooks, original: Wrapper) -> Wrapper:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        hooks.complain()
        return original(*args, **kwargs)

    return wrapper


def _asked_for_modes(hooks: _Hooks, original: Wrapper) -> Wrapper:
    """Dynamo is about to compile a function, if no mode is in its way, or code that is not seen."""

    def wrapper() -> Any:
        hooks.find()
        if hooks.missing is None:
            return original()
        hooks.run_eagerly()
        hooks.complain()
        return True

    return wrapper


class _Hooks:
    """Hooks at inductor's kernels."""

    def __init__(self, access: Access, say: Callable[[str], None]) -> None:
        self.missing: str | None = None  # what was not found
        self._access = access
        self._say = say
        self._found = False
        self._said: set[str] = set()
        self._stance: Any = None  # of torch.compile, as long as it is another one

    def run_eagerly(self) -> None:
        """Runs compiled code eagerly from here on, whenever it was compiled."""
        if self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")

    def end(self) -> None:
        """The block has ended."""
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None

    def complain(self) -> None:
        self._say_once(_NOT_SEEN.format(f"no {self.missing} as it was in 2.15"))

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def find(self) -> None:
        """Finds inductor's modules, those that were loaded before and those that will be. Imports
        inductor, whose import takes seconds, so it is done when something is compiled."""
        if self._found or self.missing is not None:
            return
        import torch._inductor.codecache as code
        import torch._inductor.output_code as graphs

        cache: Any = getattr(code, "PyCodeCache", None)
        guards = torch._C._dynamo.guards
        for place, there in (
            (f"{_CODE}.PyCodeCache.load_by_key_path", hasattr(cache, "load_by_key_path")),
            (f"{_CODE}.PyCodeCache.modules", hasattr(cache, "modules")),
            (f"{guards.__name__}._empty_strided_cpu", hasattr(guards, "_empty_strided_cpu")),
        ):
            if not there:
                self.missing = place
                return
        if importlib.util.find_spec("triton") is not None and not self._find_triton():
            return
        self._allocators = {getattr(guards, name) for name in _ALLOCATES if hasattr(guards, name)}
        self._asserts: Any = getattr(guards, "assert_alignment", None)
        for name in ("cudagraph_post_compile", "cudagraph_partition_post_compile"):
            if hasattr(graphs, name):  # where it is not, a capture is refused
                _patches.replace(graphs, name, self._without_graphs)
        self._found = True
        _patches.replace(cache, "load_by_key_path", self._loading)
        loaded = [
            each for name, each in sys.modules.items() if name.startswith("torch._inductor.runtime.compile_tasks.")
        ]
        for module in {id(each): each for each in (*cache.modules, *loaded)}.values():
            self._meet(module)

    def _find_triton(self) -> bool:
        import torch._inductor.runtime.triton_heuristics as heuristics

        tuner = getattr(heuristics, "CachingAutotuner", None)
        if not hasattr(tuner, "run"):
            self.missing = f"{_TRITON}.CachingAutotuner.run"
            return False
        _patches.replace(tuner, "run", lambda original: launching_tuned(self._access, original))
        return True

    def _loading(self, original: Wrapper) -> Wrapper:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            module = original(*args, **kwargs)
            if self._access.is_live():
                self._meet(module)
            return module

        return wrapper

    def _meet(self, module: Any) -> None:
        """Puts launches where a module of inductor has kernels and allocators."""
        signatures: dict[str, list[str]] | None = None
        for name, value in list(vars(module).items()):
            if not isinstance(value, types.BuiltinFunctionType):
                continue
            if value in self._allocators:
                _patches.put(module, name, _allocating(self._access, value))
            elif value is self._asserts:
                _patches.put(module, name, _asserting(value))
            elif _is_kernel(value):
                if signatures is None:
                    signatures = signatures_in(module)
                _patches.put(module, name, _launching(self._access, kernel_of(name, value, signatures.get(name))))

    def _without_graphs(self, original: Wrapper) -> Wrapper:
        from torch._inductor.utils import BoxedBool

        def wrapper(example_inputs: Any, compiled_graph: Any, cudagraphs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._access.is_live():
                return original(example_inputs, compiled_graph, cudagraphs, *args, **kwargs)
            BoxedBool.disable(cudagraphs)
            if any(device != "cpu" for device in compiled_graph.device_types):
                self._say_once(_NO_GRAPHS)
            return None

        return wrapper


_hooks: _Hooks | None = None


def _is_kernel(function: types.BuiltinFunctionType) -> bool:
    """Returns whether a function is the entry of a library that inductor has compiled: the library's module is named
    for it.
    """
    library: Any = function.__self__
    return isinstance(library, types.ModuleType) and library.__name__.endswith(f".{function.__name__}")


def signatures_in(module: types.ModuleType) -> dict[str, list[str]]:
    """Kernel -> the types of its arguments in C++, from the text of a module of inductor."""
    try:
        with open(str(getattr(module, "__file__", ""))) as file:
            return {name: ast.literal_eval(types_) for name, types_ in _SIGNATURE.findall(file.read())}
    except (OSError, SyntaxError, ValueError):
        return {}  # then kernels may write all of their arguments


def kernel_of(name: str, run: Callable[..., Any], signature: Sequence[str] | None) -> Launch:
    """The launch of a kernel in C++: it writes what is not const."""
    if signature is None:
        return _Kernel(name, run, None)
    written = [place for place, type_ in enumerate(signature) if not type_.startswith("const ")]
    return _Kernel(name, run, written, len(signature))


def _launching(access: Access, kernel: Launch) -> Wrapper:
    def launching(*args: Any) -> Any:
        return launch(access, kernel, args, {})

    return launching


def _allocating(access: Access, original: Callable[..., Any]) -> Wrapper:
    allocations: dict[torch.dtype, Launch] = {}

    def allocating(*args: Any) -> Any:
        dtype = args[2]
        allocation = allocations.get(dtype)
        if allocation is None:
            allocation = allocations[dtype] = _Allocation(original, dtype)
        return launch(access, allocation, args, {})

    return allocating


def _asserting(original: Callable[..., Any]) -> Wrapper:
    """Memory is aligned wherever it is. What is out has no address to look at."""

    def asserting(tensor: Any, *args: Any) -> Any:
        record = untyped_storage(tensor)._tide
        return None if record is not None and record.state & AWAY else original(tensor, *args)

    return asserting


def launching_tuned(access: Access, original: Wrapper) -> Wrapper:
    """Inductor's kernels in Triton. What it launches to find the best configuration is no op."""
    launches = launching(access, lambda tuner: _Tuned(tuner, original))

    def wrapper(tuner: Any, *args: Any, benchmark_run: bool = False, **kwargs: Any) -> Any:
        if benchmark_run:
            return original(tuner, *args, benchmark_run=True, **kwargs)
        return launches(tuner, *args, **kwargs)

    return wrapper


class _Tuned(_Kernel):
    """A kernel in Triton: with what its first launch allocates and copies to choose a configuration."""

    def __init__(self, tuner: Any, run: Callable[..., Any]) -> None:
        mutated = set(getattr(tuner, "mutated_arg_names", ()))
        signature = (getattr(tuner, "triton_meta", None) or {}).get("signature", {})
        names = [name for name, type_ in signature.items() if type_ != "constexpr"]
        written = [place for place, name in enumerate(names) if name in mutated or not name.startswith("in_ptr")]
        name = getattr(getattr(tuner, "fn", None), "__name__", "of Triton")
        super().__init__(name, Launch(tuner, run), written, len(names))


# -- what hides its kernels -----------------------------------------------------------------------


def _refuse_what_hides(access: Access) -> None:
    """Code in C++ that launches kernels where nothing sees them, each with what to do instead."""
    aoti = getattr(torch._C, "_aoti", None)
    for owner, names, what, instead in (
        (
            aoti,
            ("unsafe_alloc_void_ptrs_from_tensors",),
            "code that inductor wrote in C++ (cpp_wrapper, AOTInductor)",
            "Compile without torch._inductor.config.cpp_wrapper",
        ),
        *(
            (
                each,
                ("run", "boxed_run"),
                "a model of AOTInductor",
                "Compile the model by torch.compile",
            )
            for name, each in vars(aoti).items()
            if name == "AOTIModelPackageLoader" or name.startswith("AOTIModelContainerRunner")
        ),
    ):
        for name in names:
            if hasattr(owner, name):
                _patches.replace(owner, name, lambda original: _refused(access, original, what, instead))


def _refused(access: Access, original: Wrapper, what: str, instead: str) -> Wrapper:
    def refuse() -> NoReturn:
        raise _errors.Error(
            f"{what} launches kernels that nothing sees: inside an offload block they would use "
            f"tensors that are on NVMe. {instead}, or run it outside the block."
        )

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return refuse() if access.is_live() else original(*args, **kwargs)

    return wrapper
