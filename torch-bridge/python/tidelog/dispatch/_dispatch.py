"""Kernels in C++ for ops that change nothing (the folder dispatch): built once for each torch that is met, and
kept for later processes. Until they are there, and where they cannot be built, the hook does all in Python,
with the same result.

They are linked with torch's own C++ interface, which differs from version to version, so a wheel cannot
carry them. What torch.compile needs on a processor is needed here: a C++ compiler and Python's headers.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tidelog._turns import waiting
from tidelog._whole import held
from tidelog.dispatch import _backward
from tidelog.dispatch._backward import Engine
from tidelog.memory._record import Storage
from tidelog.storages._ops import IN_CPP, Args, Launch, Op, OpInfo, OpOverload, info_of
from tidelog.storages._unmet import Unmet

if TYPE_CHECKING:
    from tidelog.abi._native import Session
    from tidelog.dispatch._performer import Performer
    from tidelog.output._figures import Dispatch
    from tidelog.storages._ledger import Ledger
_SOURCES = pathlib.Path(__file__).with_name("cpp")
_NAME = "_dispatch_kernels"
# Nothing outside calls into the module but by its first function: calls inside of it need no look at who else may have
# a function of that name.
_FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden")
# Ops that a distributed program's hook makes other ops of.
_FUNCTIONAL = ("_c10d_functional", "_dtensor")
# What torch.compile has products written to buffers by. None is resized that has the product's shape.
_PRODUCTS = ("aten.mm.out", "aten.addmm.out", "aten.bmm.out", "aten.baddbmm.out")
_ARGUMENTS_MAX = 64  # as cpp/kernel.h has a bit for each
_File: TypeAlias = tuple[int, int]  # its inode, and when it was written
# What torch.compile looks at entered frames with now; None where it does not look.
get_compiler: Callable[[], object] | None = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)


class Followed(Protocol):
    """A plan, as it is followed."""

    funcs: list[Op | None]
    due: bytes


class Module(Unmet, Engine, Protocol):
    """What the module has for Python."""

    def adopt(
        self,
        func: OpOverload,
        text: str,
        name: str,
        overload: str,
        written: int,
        seed: int,
        looks: int,
        is_product: bool,
    ) -> bool:
        """Registers a kernel for an op; returns whether it has one now."""

    def adopt_launch(self, func: Launch, name: str, written: int, seed: int, makes: bool, arguments: int) -> None:
        """Knows what is launched from here on."""

    def launch(self, func: Launch, args: Args, otherwise: Callable[[Launch, Args], Any]) -> Any:
        """Launches it as an op, or has a function do so."""

    def open(
        self,
        hook: TorchDispatchMode,
        ledger: Ledger,
        compiler: Callable[[], object],
        attention: memoryview,
        hides_mode: bool,
        held: list[int],
        waiting: list[object],
    ) -> None:
        """A block begins. What else it has is found by attributes of the hook."""

    def close(self) -> None:
        """It ends."""

    def follow(self, plan: Followed | None) -> None:
        """The block follows this plan in steps that follow one. None: its steps are profiled."""

    def perform(self) -> bool:
        """Does what the session asks for; returns whether that was all."""

    def running_uses(self) -> dict[int, int]:
        """What the op uses that runs and was looked at in full there: number -> 0 or MODIFIES."""

    def why_sums_unknown(self) -> str:
        """Why autograd's sums cannot be told from others, if so."""

    def is_busy(self) -> bool:
        """Whether it is in the middle of something that runs as a whole (`_whole`)."""

    def is_under_way(self) -> bool:
        """The same, or an op is under way past Python."""

    def watch_scalars(self, bring_back: Callable[[Storage], None]) -> None:
        """Has a function called with storages that are guarded before C++ reads a number of them."""

    def passed(self) -> int:
        """How many ops did not go through Python so far."""

    RecordOf: Callable[[], object]  # what `storage._tide` is where nobody has set it


class Kernels:
    """The kernels, as one block uses them."""

    def __init__(self, never: str) -> None:
        """`never`: why the block has none; empty where it may have them."""
        self._module: Module | None = None
        self._never = never
        self._why_not = never or "they are being built"
        self._passed = self._before = 0  # ops, and those of the process when they were counted last
        self._followed: tuple[Followed, bytes] | None = None  # and what was due in it
        self._why_mode: str | None = None  # autograd finds the mode where tensors move; empty where it does not

    def open(self, hook: TorchDispatchMode, ledger: Ledger, performer: Performer, session: Session) -> None:
        """From here on ops go past the hook that it would only pass on, and usual requests past the performer."""
        module = _built.get() if not self._never else None
        if module is not None and self._module is None and get_compiler is not None:
            setattr(Storage, "_tide", module.RecordOf())
            module.open(hook, ledger, get_compiler, session.attention, self._hides_mode(module), held, waiting)
            _backward.install(module)
            ledger.meets_later(module)
            performer.perform_usual = module.perform
            self._module, self._ledger, self._performer = module, ledger, performer
            self._why_not, self._before = "", module.passed()

    def close(self) -> None:
        """From here on none does."""
        if self._module is not None:
            self.figures()
            self._performer.performs_all()
            self._ledger.meets_all()
            self._module.close()
            self._module = None

    def _hides_mode(self, module: Module) -> bool:
        """Whether autograd finds no mode where tensors move."""
        if self._why_mode is None:
            self._why_mode = module.why_sums_unknown()
        return not self._why_mode

    def running_uses(self) -> dict[int, int]:
        """What the op uses that runs and was looked at in full past the hook: number -> 0 or MODIFIES."""
        return self._module.running_uses() if self._module is not None else {}

    def await_built(self) -> None:
        """Waits until they are there, or cannot be had."""
        if not self._never:
            _built.wait()

    def figures(self) -> Dispatch:
        """How many ops of the block did not go through Python; why none does, where none can."""
        if self._module is not None:
            self._passed += self._module.passed() - self._before
            self._before = self._module.passed()
        return {
            "ops_past_python": self._passed,
            "why_not": self._why_not and (_built.why_not or self._why_not),
            "why_sums_out_of_place": self._why_mode or "",
        }

    def launch(self, func: Launch, args: Args, otherwise: Callable[[Launch, Args], Any]) -> Any:
        """Launches a kernel, without Python or by what does it otherwise."""
        return self._module.launch(func, args, otherwise) if self._module is not None else otherwise(func, args)

    def is_busy(self) -> bool:
        """Whether they are in the middle of something."""
        return self._module is not None and self._module.is_busy()

    def is_under_way(self) -> bool:
        """The same, or an op is under way past Python."""
        return self._module is not None and self._module.is_under_way()

    def adopt(self, func: Op) -> None:
        """Has an op go past the hook where that changes nothing."""
        if self._module is not None and func not in _adopted:
            _adopted.add(func)
            info = info_of(func)
            if isinstance(func, Launch):
                self._adopt_launch(self._module, func)
                return
            schema = getattr(func, "_schema", None)
            # What has no schema is no op of the dispatcher's.
            if schema is not None and isinstance(info, OpInfo) and _may_pass(info):
                written = sum(1 << position for position, _ in info.written)
                self._module.adopt(
                    cast(OpOverload, func),
                    *(info.name, schema.name, schema.overload_name, written, info.seed, _looks(info)),
                    info.name in _PRODUCTS,
                )

    def _adopt_launch(self, module: Module, func: Launch) -> None:
        passing = func.passing()
        if passing is not None and passing.arguments <= _ARGUMENTS_MAX:
            written = sum(1 << position for position in passing.written)
            info = info_of(func)
            module.adopt_launch(func, info.name, written, info.seed, passing.makes, passing.arguments)

    def follow(self, plan: Followed) -> None:
        """Steps follow this plan from here on."""
        if self._why_not:  # autograd has found the mode in the steps that the plan is for: its ops are others then
            self._why_mode = "the plan is older than the kernels in C++"
        if self._module is not None and self._followed != (plan, plan.due):
            self._followed = plan, plan.due
            for func in plan.funcs:
                if func is not None:
                    self.adopt(func)
            self._module.follow(plan)

    def forget_plan(self) -> None:
        """Steps are profiled until `follow` is called again."""
        self._followed = None
        if self._module is not None:
            self._module.follow(None)


_adopted: set[Op] = set()


def _may_pass(info: OpInfo) -> bool:
    is_usual = not info.special or info.name in _PRODUCTS
    return is_usual and info.name.startswith(IN_CPP) and not info.name.startswith(_FUNCTIONAL)


def _looks(info: OpInfo) -> int:
    """What an op asks of a tensor, where that is not its bytes: `Looks` in cpp/kernel.h."""
    if info.asks_pinned:
        return 3
    return (2 if info.name == "aten.view.default" else 1) if info.looks else 0


# -- building them --------------------------------------------------------------------------------


class _Built:
    """The module, once it is built."""

    def __init__(self) -> None:
        self.why_not = ""  # there is none
        self._module: Module | None = None
        self._building: threading.Thread | None = None
        self._unloadable = ""  # why what was in its place could not be loaded

    def get(self) -> Module | None:
        """The module, if it can be had now. Otherwise it is being built from here on."""
        if self._module is None and not self.why_not and self._building is None:
            self._begin()
        elif self._building is not None and not self._building.is_alive():
            self._building = None
            self._load()
        return self._module

    def wait(self) -> str:
        """Waits until it is built; returns why it is not, or nothing."""
        self.get()
        while self._building is not None:
            self._building.join()
            self.get()
        return self.why_not

    def _begin(self) -> None:
        if os.environ.get("TIDELOG_DISPATCH", "") == "python":
            self.why_not = "TIDELOG_DISPATCH=python"
        elif sysconfig.get_config_var("Py_GIL_DISABLED"):
            self.why_not = "this Python has no lock of the interpreter"
        elif get_compiler is None:
            self.why_not = f"torch {torch.__version__} does not say whether torch.compile looks at frames"
        elif _place().exists():
            self._load()
        else:
            self._build(None)

    def _build(self, instead_of: _File | None) -> None:
        def build() -> None:
            why = _build(_place(), instead_of)
            self.why_not = f"{self._unloadable}; it was to be built again: {why}" if why and self._unloadable else why

        self._building = threading.Thread(target=build, name="tidelog-build", daemon=True)
        self._building.start()

    def _load(self) -> None:
        """What cannot be loaded is built again, once: it may be from a compiler whose library is not here."""
        if self.why_not:
            return
        found = None
        try:
            found = _file(_place())
            self._module = _load(_place())
        except (ImportError, OSError) as error:
            why = f"{_place()} cannot be loaded: {error}"
            if found is None or isinstance(error, PermissionError) or self._unloadable:
                self.why_not = why
            else:
                self._unloadable = why
                self._build(found)


_built = _Built()


def watches_scalars(bring_back: Callable[[Storage], None], on_gpu: bool) -> bool:
    """Has a function called with storages of which a number is about to be read that may be out. `False`: there are no
    kernels for it here."""
    module = _built.get() if not on_gpu else None
    if module is not None:
        module.watch_scalars(bring_back)
    return module is not None


def build() -> str:
    """Builds the kernels and waits for that. Returns why there are none, or nothing."""
    return _built.wait()


@functools.cache
def _place() -> pathlib.Path:
    """Where the module for this torch, this Python and this compiler is, or comes."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(home, "tidelog")
    sources = [path.read_text(encoding="utf-8") for path in sorted(_SOURCES.iterdir()) if path.is_file()]
    facts = (torch.__version__, torch.version.git_version, sys.version, platform.machine(), *_FLAGS, *sources)
    stem, compiler = f"dispatch-{_digest(*facts)}", _compiler()
    if not compiler:  # whatever has built one here before
        built = sorted(folder.glob(f"{stem}-*.so"), key=_built_at)
        if built:
            return built[-1]
    return folder / f"{stem}-{_digest(*compiler, _version_of(compiler))}.so"


def _digest(*facts: object) -> str:
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:16]


def _built_at(place: pathlib.Path) -> int:
    found = _file(place)
    return found[1] if found is not None else 0


def _compiler() -> list[str]:
    """The command that compiles C++, by its whole path; empty where there is none."""
    command = (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "").split()
    return [shutil.which(command[0]) or command[0], *command[1:]] if command else []


def _version_of(compiler: list[str]) -> str:
    """What a compiler says of itself. Two versions link with libraries that may not both be there."""
    if not compiler:
        return ""
    try:
        run = subprocess.run(
            [*compiler, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:  # the build says so
        return str(error)
    return run.stdout


def _file(place: pathlib.Path) -> _File | None:
    """Which file is in a place now; None: there is none."""
    try:
        found = place.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _load(place: pathlib.Path) -> Module:
    found = place.stat()
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
        raise PermissionError("others may write it")
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(place))
    spec = importlib.util.spec_from_loader(_NAME, loader)
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return cast(Module, module)


def _build(place: pathlib.Path, instead_of: _File | None) -> str:
    """Compiles the module, unless another process has. `instead_of`: the file that cannot be loaded. Returns why that
    failed, or nothing."""
    compiler = _compiler()
    if not compiler:
        return "there is no C++ compiler (g++ or clang++)"
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(place.parent / "lock", "w", encoding="utf-8") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # of several processes that begin together one builds
            found = _file(place)
            if found is not None and found == instead_of:
                place.unlink()
            elif found is not None:
                return ""
            for left in place.parent.glob(f"{place.stem}.*.new"):  # of one that was killed
                left.unlink()
            return _compile(compiler, place)
    except OSError as error:
        return str(error)


def _compile(compiler: list[str], place: pathlib.Path) -> str:
    home, made = pathlib.Path(torch.__file__).parent, place.with_suffix(f".{os.getpid()}.new")
    includes = [home / "include", home / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    command = [
        *compiler,
        *(*_FLAGS, str(_SOURCES / "module.cpp"), "-o", str(made)),
        # Their warnings are not ours.
        *(word for each in includes for word in ("-isystem", str(each))),
        f"-L{home / 'lib'}",
        *("-lc10", "-ltorch_cpu", "-ltorch_python"),
    ]
    # It ends also if this process ends before: the next one has it then.
    moving = ["sh", "-c", 'umask 022 && "$@" && mv "$made" "$place"', "sh", *command]
    run = subprocess.run(
        moving,
        env={**os.environ, "made": str(made), "place": str(place)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if run.returncode == 0:
        return ""
    lines = [line for line in run.stderr.splitlines() if "error" in line] or run.stderr.splitlines()[-1:]
    return f"{compiler[0]} ended with {run.returncode}: {''.join(lines[:1])}"
