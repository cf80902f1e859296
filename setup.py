"""Build of the package in addition to pyproject.toml: the library and the tools are built by cargo, and the tools print
their completions for shells, which are installed where bash, zsh and fish look.

The wheel fits every Python 3: nothing in it is linked with an interpreter, so neither maturin nor
setuptools-rust, which build modules for one, would save much of this. TIDELOG_GLIBC=2.28 builds
for that glibc and newer (needs cargo-zigbuild) and names the wheel manylinux_2_28; otherwise the
wheel is for machines with the glibc of this one. TIDELOG_FEATURES=spdk builds a feature in.
TIDELOG_TORCH names virtual environments with torch, separated by spaces: the bridge's part in C++
is prebuilt for each. All that is built goes where cargo puts it (CARGO_TARGET_DIR), so that the
source may be read-only.
"""

import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

try:
    from setuptools.command.build_scripts import build_scripts
except ImportError:  # setuptools has it from distutils
    from distutils.command.build_scripts import build_scripts

from distutils.command.install_data import install_data  # setuptools brings it

ROOT = Path(__file__).resolve().parent
LIBRARY = "libtidelog.so"
TOOLS = ("tidelog-bench", "tidelog-doctor", "tidelog-format", "tidelog-plan")
PACKAGES = ("tidelog-torch", *TOOLS)
GLIBC = os.environ.get("TIDELOG_GLIBC")
FEATURES = os.environ.get("TIDELOG_FEATURES")
TORCHES = os.environ.get("TIDELOG_TORCH", "").split()


def version():
    """Returns the version of the workspace, where all of Tidelog has it from."""
    return re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def said(command):
    """Returns the output of a command of cargo's; ends where it cannot."""
    try:
        return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    except FileNotFoundError:
        sys.exit("tidelog: cargo was not found; install Rust 1.89 or newer from https://rustup.rs")
    except subprocess.CalledProcessError as error:
        sys.exit(f"tidelog: {' '.join(command)} ended with {error.returncode}; its output is above")


@functools.cache
def target():
    """The folder that cargo builds in."""
    metadata = ["cargo", "metadata", "--locked", "--no-deps", "--format-version=1"]
    return Path(json.loads(said(metadata))["target_directory"])


@functools.cache
def built():
    """Builds everything once and returns the folder it is in."""
    # All members, as `make build` does: with fewer, dependencies have other features and most of
    # them are built twice.
    chosen = [word for name in PACKAGES for word in ("-p", name)] if GLIBC or FEATURES else ["--workspace"]
    words, folder = ["build"], target()
    if GLIBC:
        machine = f"{platform.machine()}-unknown-linux-gnu"
        words, folder = ["zigbuild", "--target", f"{machine}.{GLIBC}"], folder / machine
    features = [f"--features={FEATURES}"] if FEATURES else []
    said(["cargo", *words, "--release", "--locked", *chosen, *features])
    return folder / "release"


def install_stripped(source, place):
    """Installs a file without names and lines of functions, which are most of a file: what is exported keeps its name."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # Under a name of its own first: two builds at once do not read each other's half.
    stripped = place.with_name(f"{place.name}.{os.getpid()}")
    shutil.copy2(source, stripped)
    subprocess.run(["strip", "--strip-unneeded", stripped], check=True)
    stripped.replace(place)


class BuildPackage(build_py):
    """The package, with the library in it."""

    def run(self):
        super().run()
        folder = built()
        if not self.editable_mode:  # a checkout finds the library where cargo puts it
            self.drop_what_is_gone()
            install_stripped(folder / LIBRARY, Path(self.build_lib, "tidelog", LIBRARY))
            # What the bridge's part in C++ is compiled with, once torch is there.
            package = Path(self.build_lib, "tidelog").resolve()
            shutil.copy2(ROOT / "torch-bridge/include/tidelog.h", package / "native")
            if TORCHES:
                subprocess.run([sys.executable, ROOT / "scripts/prebuilt.py", package, *TORCHES], cwd=ROOT, check=True)

    def drop_what_is_gone(self):
        """A folder that was built in before keeps files that have another name or place since."""
        kept = set(map(Path, self.get_outputs(include_bytecode=False)))
        for path in Path(self.build_lib, "tidelog").rglob("*"):
            if path.is_file() and path not in kept and not path.name.startswith((LIBRARY, "tidelog.h")):
                path.unlink(missing_ok=True)


class BuildTools(build_scripts):
    """The tools, as scripts."""

    def run(self):
        folder = built()
        for tool in TOOLS:
            install_stripped(folder / tool, Path(self.build_dir, tool))

    def get_source_files(self):
        return []


# Shell -> the folder that it looks in, and a file's name there.
SHELLS = {
    "bash": ("share/bash-completion/completions", "{}"),
    "zsh": ("share/zsh/site-functions", "_{}"),
    "fish": ("share/fish/vendor_completions.d", "{}.fish"),
}


class InstallCompletions(install_data):
    """The completions of the tools, which print them, and of the command `tidelog`, which carries
    them."""

    def run(self):
        folder = built()
        for shell, (place, pattern) in SHELLS.items():
            folder_of_shell = Path(self.install_dir, place)
            folder_of_shell.mkdir(parents=True, exist_ok=True)
            carried = ROOT / "torch-bridge/python/tidelog/commands/completions" / pattern.format("tidelog")
            self._write(folder_of_shell / carried.name, carried.read_text())
            for tool in TOOLS:
                words = ["--completions", shell] if tool == "tidelog-bench" else ["completions", shell]
                said = subprocess.run([folder / tool, *words], check=True, capture_output=True, text=True)
                self._write(folder_of_shell / pattern.format(tool), said.stdout)

    def _write(self, path, text):
        path.write_text(text)
        self.outfiles.append(str(path))


class Wheel(bdist_wheel):
    """Wheel for every Python 3 on this kind of machine."""

    def get_tag(self):
        machine = platform.machine()
        kind = f"manylinux_{GLIBC.replace('.', '_')}" if GLIBC else "linux"
        return "py3", "none", f"{kind}_{machine}"


class Native(Distribution):
    """Native code is in it, for setuptools."""

    def has_ext_modules(self):
        return True

    def has_data_files(self):
        return True


BUILD = target() / "python"
BUILD.mkdir(parents=True, exist_ok=True)

setup(
    version=version(),
    options={"build": {"build_base": str(BUILD)}, "egg_info": {"egg_base": str(BUILD)}},
    distclass=Native,
    scripts=list(TOOLS),
    cmdclass={
        "build_py": BuildPackage,
        "build_scripts": BuildTools,
        "install_data": InstallCompletions,
        "bdist_wheel": Wheel,
    },
)
