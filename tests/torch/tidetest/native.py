"""C and C++ that a test needs, built when it runs."""

import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

COMPILE_SECONDS = 300


def build(folder, name, source, *words, compiler="cc"):
    """Builds a shared library of this source; returns its path. Skips the test where the compiler is not there, or
    lacks what `words` ask for.
    """
    text = Path(folder, f"{name}.{'c' if compiler == 'cc' else 'cpp'}")
    text.write_text(source)
    built = text.with_suffix(".so")
    command = [compiler, "-O1", "-g", "-shared", "-fPIC", "-pthread", str(text), "-o", str(built), *words]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    except FileNotFoundError:
        pytest.skip(f"there is no compiler {compiler!r}")
    except subprocess.CalledProcessError as error:
        if "-fsanitize" in " ".join(words) and ("asan" in error.stderr or "sanitize" in error.stderr):
            pytest.skip(f"{compiler} cannot build with {' '.join(words)}: {error.stderr.splitlines()[-1]}")
        raise AssertionError(error.stderr) from None
    return built


def build_for_torch(folder, name, source):
    """Builds an extension in C++, with what torch has for programs."""
    words = [f"-I{folder}" for folder in (*cpp_extension.include_paths(), sysconfig.get_paths()["include"])]
    words += [f"-L{folder}" for folder in cpp_extension.library_paths()] + ["-ltorch_cpu", "-lc10", "-std=c++20"]
    words += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    return build(folder, name, source, *words, compiler="c++")
