"""The bridge's part in C++: built once for each torch that is met, and kept for later processes.

It is linked with torch's own C++ interface, which differs from version to version. A wheel has it prebuilt for those
that were there when it was made. For others what torch.compile needs on a processor is needed here: a C++ compiler and
Python's headers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from typing import NamedTuple, cast

import torch

from tidelog._errors import Error
from tidelog.native._module import Module

_SOURCES = pathlib.Path(__file__).parent
# Of the library's C ABI: beside the sources in an installed package, in a checkout where cbindgen writes it.
_HEADER = next(
    (place for place in (_SOURCES / "tidelog.h", _SOURCES.parents[2] / "include" / "tidelog.h") if place.exists()),
    _SOURCES / "tidelog.h",
)
_NAME = "_tidelog_native"
# Nothing outside calls into the module but by its first function: calls inside of it need no look at who else may have
# a function of that name.
_FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden")
_PREBUILT = _SOURCES / "prebuilt"

_BUILT_FOR = re.compile(r"torch-([^-]+)-cpython-(\d)(\d+)-")
# What the system says of a folder that cannot be written, or made.
_NO_FOLDER = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT)


class Source(NamedTuple):
    """A source that is compiled to a library."""

    name: str
    includes: tuple[pathlib.Path, ...]  # beside torch's and Python's
    libraries: tuple[str, ...]


_MODULE = Source("module.cpp", (), ("-lc10", "-ltorch_cpu", "-ltorch_python"))
_FREE_THREADED = "this Python has no lock of the interpreter (a free-threaded build)"
_NO_COMPILER = "there is no C++ compiler (g++ or clang++)"

# Torch's class of allocators of GPUs differs from version to version.
_CUDA_ALLOCATOR_OF = "2.15"

_loaded: list[Module] = []


def build() -> str:
    """Builds the module where it is not there, and loads it. Returns why there is none, or nothing."""
    if _loaded:
        return ""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return _FREE_THREADED
    why_not = _built()
    if isinstance(why_not, str):
        return why_not
    _loaded.append(why_not)
    return ""


@functools.cache
def native() -> Module:
    """The module. It is built first where it is not there: half a minute, once for each torch."""
    if why_not := build():
        if why_not == _FREE_THREADED:
            raise Error(f"tidelog does not run here: {why_not}. Take the same version of Python with that lock.")
        help = "install g++ or clang++, and Python's headers (python3-dev), or set CXX to a compiler"
        if _lacks_a_folder(why_not):
            help = "set XDG_CACHE_HOME to a folder that can be written and is kept"
        raise Error(
            f"tidelog's C++ module for torch {torch.__version__} could not be built: {why_not}. It is built once for "
            f"each torch: {help}{_instead()}."
        )
    return _loaded[0]


def _lacks_a_folder(why_not: str) -> bool:
    """Returns whether nothing but a folder to keep a module in is missing."""
    return str(_folder()) in why_not and any(os.strerror(number) in why_not for number in _NO_FOLDER)


def loaded() -> Module | None:
    """The module where something has needed it so far; None: nothing has."""
    return _loaded[0] if _loaded else None


def _instead() -> str:
    """Returns the advice for a machine without a compiler."""
    found = (_BUILT_FOR.match(each.name) for each in _PREBUILT.glob("*.so"))
    there = sorted({f"torch {each[1]} on Python {each[2]}.{each[3]}" for each in found if each})
    return f"; without one, this package works with {' or '.join(there)}" if there else ""


def _built() -> Module | str:
    """The module, or why there is none."""
    why_not = ""
    if (prebuilt := _PREBUILT / prebuilt_name()).exists():
        try:
            return _module_in(prebuilt)  # whose it is, is whose the package is
        except ImportError as error:  # it needs a newer library of C++ than this process has, or is of another torch
            why_not = f"{prebuilt} cannot be loaded: {error}"
    compiler, at = _compiler(), place()
    for _ in range(2):
        if not at.exists() and (why_none := _build(compiler, at)):
            return "; ".join(filter(None, [why_not, why_none]))
        try:
            return _load(at)
        except ImportError as error:  # it needs a newer library of C++ than this process has, or was cut short
            why_not = "; ".join(filter(None, [why_not, f"{at} cannot be loaded: {error}"]))
            with contextlib.suppress(OSError):
                at.unlink()
        except OSError as error:
            return f"{at} cannot be loaded: {error}"
    return why_not


def place() -> pathlib.Path:
    """Returns the path of the module for this torch and this Python."""
    compiler, facts = _compiler(), _facts()
    at = _folder() / f"native-{facts}-{_digest(*_version(compiler))}.so"
    return at if compiler else next(_folder().glob(f"native-{facts}-*.so"), at)  # what one has left may do


def prebuilt_name() -> str:
    """Returns the name of a prebuilt module for this torch and this Python, made of all that it depends on. Builds of
    one release of torch, for CUDA and without, have one C++ interface.
    """
    release = str(torch.__version__).partition("+")[0]
    strings = "cxx11" if torch.compiled_with_cxx11_abi() else "cxx98"
    facts = _digest(str(torch.version.git_version), *_FLAGS, *_sources())
    return f"torch-{release}-{sysconfig.get_config_var('SOABI')}-{strings}-{facts}.so"


def prebuild(folder: pathlib.Path) -> pathlib.Path:
    """Compiles the module for a package that others install, into a folder."""
    compiler, at = _compiler(), folder / prebuilt_name()
    folder.mkdir(parents=True, exist_ok=True)
    why_not = _compile(compiler, at, "-DTIDELOG_PREBUILT") if compiler else _NO_COMPILER
    if why_not:
        raise Error(f"tidelog's C++ module for torch {torch.__version__} could not be built: {why_not}.")
    return at


def cuda_allocator() -> pathlib.Path | str:
    """Returns the path of the library that goes in front of torch's allocator of GPUs, built where it is not there, or why there is
    none.
    """
    if not str(torch.__version__).startswith(f"{_CUDA_ALLOCATOR_OF}."):
        return (
            f"torch's allocator of GPUs is known as torch {_CUDA_ALLOCATOR_OF} has it, and this is {torch.__version__}"
        )
    headers = _headers_of_cuda()
    if headers is None:
        return "CUDA's headers are not found (cuda_runtime_api.h): install them, or set CUDA_HOME"
    compiler = _compiler()
    at = _folder() / f"cuda-allocator-{_facts()}-{_digest(*_version(compiler), str(headers))}.so"
    source = Source("cuda_allocator.cpp", (headers,), ("-lc10", "-lc10_cuda"))
    if not at.exists() and (why_not := _build(compiler, at, source)):
        return why_not
    try:
        _require_own(at)
    except OSError as error:
        return f"{at} cannot be loaded: {error}"
    return at


def _headers_of_cuda() -> pathlib.Path | None:
    """Returns the folder of CUDA's headers: of a toolkit, or of the packages that torch depends on, of which Triton has
    all of them.
    """
    packages = pathlib.Path(torch.__file__).parent.parent
    toolkits = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    folders = [pathlib.Path(each) / "include" for each in toolkits if each]
    folders += [*packages.glob("nvidia/*/include"), packages / "triton/backends/nvidia/include"]
    needed = ("cuda_runtime_api.h", "crt/host_config.h")
    return next((folder for folder in folders if all((folder / name).exists() for name in needed)), None)


def _compiler() -> list[str]:
    return (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "").split()


def _folder() -> pathlib.Path:
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidelog")


def _facts() -> str:
    """Returns the facts on which a module depends: its sources, this torch and this Python."""
    return _digest(
        torch.__version__, str(torch.version.git_version), sys.version, platform.machine(), *_FLAGS, *_sources()
    )


@functools.cache
def _sources() -> list[str]:
    files = {_HEADER, *(path for path in _SOURCES.iterdir() if path.suffix in (".h", ".cpp"))}
    return [path.read_text(encoding="utf-8") for path in sorted(files, key=lambda path: path.name)]


def _version(compiler: list[str]) -> list[str]:
    """Returns the compiler's version. Options do not matter: they are of those who look for warnings."""
    try:
        run = subprocess.run([*compiler[:1], "--version"], capture_output=True, text=True, check=False)
    except (OSError, IndexError):
        return []
    return [*compiler[:1], run.stdout]


def _digest(*facts: str) -> str:
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _load(place: pathlib.Path) -> Module:
    _require_own(place)
    return _module_in(place)


def _require_own(place: pathlib.Path) -> None:
    """Raises an OSError if others may have written a library."""
    found = place.stat()
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
        raise OSError("others may write it")


def _module_in(place: pathlib.Path) -> Module:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(place))
    spec = importlib.util.spec_from_loader(_NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return cast(Module, module)


def _build(compiler: list[str], place: pathlib.Path, source: Source = _MODULE) -> str:
    """Compiles the module. Returns why that failed, or nothing."""
    if not compiler:
        return _NO_COMPILER
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(place.parent / "lock", "w", encoding="utf-8") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # of several processes that begin together one builds
            if place.exists():
                return ""
            for left in place.parent.glob(f"{place.stem}.*.new"):  # of one that was killed
                left.unlink()
            return _compile(compiler, place, source=source)
    except OSError as error:
        return str(error)


def _compile(compiler: list[str], place: pathlib.Path, *options: str, source: Source = _MODULE) -> str:
    home, made = pathlib.Path(torch.__file__).parent, place.with_suffix(f".{os.getpid()}.new")
    includes = [
        *(home / "include", home / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]),
        *source.includes,
    ]
    command = [
        *compiler,
        *(*_FLAGS, *options, str(_SOURCES / source.name), "-o", str(made)),
        *("-I", str(_HEADER.parent)),
        # Their warnings are not ours.
        *(word for each in includes for word in ("-isystem", str(each))),
        f"-L{home / 'lib'}",
        *source.libraries,
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
