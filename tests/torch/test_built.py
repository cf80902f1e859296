"""The bridge's module in C++: how it is built, kept, and refused."""

import json
import shutil
import sys
import sysconfig

import pytest
import torch

from tidelog.native import _built
from tidetest import process

pytestmark = pytest.mark.host_memory("the module is the same for each device")

SCRIPT = """
import os
os.environ |= json.loads(sys.argv[2])
if "PREBUILT" in os.environ:
    import pathlib
    from tidelog.native import _built
    _built._PREBUILT = pathlib.Path(os.environ["PREBUILT"])
try:
    with tidelog.offload(pool=sys.argv[1], memory="64MiB", staging="1MiB", pool_size="128MiB") as tide:
        for _ in range(3):
            (torch.ones(1000) + 1).sum().item()
        print(json.dumps(tide.stats()["dispatch"]))
except tidelog.Error as error:
    print(json.dumps(str(error)))
"""


def dispatch_of(tmp_path, **variables):
    """Returns the dispatch of stats() in a process with these environment variables, or why there was no block."""
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **variables}
    ended = process.run(SCRIPT, tmp_path / "pool", json.dumps(variables))
    assert ended.code == 0, ended
    return json.loads(ended.out.splitlines()[-1])


def kept(tmp_path):
    """A cache that has the module of this process."""
    place = tmp_path / "cache/tidelog" / _built.place().name
    place.parent.mkdir(parents=True)
    shutil.copy(_built.place(), place)
    return place


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"CXX": "false"}, "false ended with 1"),
        ({"CXX": "no-such-compiler"}, "no-such-compiler"),
        ({"PATH": "/nowhere"}, "there is no C++ compiler"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "".join(value.values()),
)
def test_where_it_cannot_be_built_one_sentence_says_what_to_install(tmp_path, variables, why):
    said = dispatch_of(tmp_path, **variables)
    assert why in said and "install g++ or clang++" in said


def test_where_it_cannot_be_kept_one_sentence_says_what_to_set(tmp_path):
    said = dispatch_of(tmp_path, XDG_CACHE_HOME="/proc")
    assert "/proc/tidelog" in said and "set XDG_CACHE_HOME to a folder" in said and "g++" not in said, said


FREE_THREADED = """
import sysconfig
said = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else said(name)
"""


def test_a_free_threaded_python_is_refused_by_name(tmp_path):
    ended = process.run(FREE_THREADED + SCRIPT, tmp_path / "pool", "{}")
    assert ended.code == 0, ended
    said = json.loads(ended.out.splitlines()[-1])
    assert "free-threaded" in said and "g++" not in said, said


# In a mount namespace of its own, as a container is one: a cache that cannot be written, of whoever owns it.
READ_ONLY = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18
cache = json.loads(sys.argv[2])["XDG_CACHE_HOME"].encode()
if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
    print(json.dumps("skipped"))
    sys.exit()
assert libc.mount(cache, cache, None, MS_BIND, None) == 0
assert libc.mount(None, cache, None, MS_REMOUNT | MS_BIND | MS_RDONLY, None) == 0
"""


@pytest.mark.parametrize("is_there", [True, False], ids=["with the module", "without it"])
def test_a_cache_that_cannot_be_written_is_read(tmp_path, is_there):
    if is_there:
        kept(tmp_path)
    (tmp_path / "cache").mkdir(exist_ok=True)
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ended = process.run(READ_ONLY + SCRIPT, tmp_path / "pool", json.dumps(variables))
    assert ended.code == 0, ended
    said = json.loads(ended.out.splitlines()[-1])
    if said == "skipped":
        pytest.skip("no mount namespace can be made here")
    if is_there:
        assert said["ops_past_python"] > 0
    else:
        assert "Read-only file system" in said and "set XDG_CACHE_HOME to a folder" in said, said


def test_without_a_compiler_what_one_has_left_is_loaded(tmp_path):
    kept(tmp_path)
    assert dispatch_of(tmp_path, PATH="/nowhere")["ops_past_python"] > 0


def test_what_others_may_write_is_not_loaded(tmp_path):
    place = kept(tmp_path)
    place.chmod(0o777)
    assert "others may write it" in dispatch_of(tmp_path)
    place.chmod(0o755)
    said = dispatch_of(tmp_path)
    assert said["ops_past_python"] > 0


def test_one_that_cannot_be_loaded_is_built_again(tmp_path, monkeypatch):
    """Checks a build by a compiler that gives the module of this process: a real one takes half a minute, and has made
    that.
    """
    module, compiler = _built.place(), tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && cp {module} "$2"; shift; done\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    place = tmp_path / "cache/tidelog" / _built.place().name
    place.parent.mkdir(parents=True)
    place.write_bytes(b"")
    assert dispatch_of(tmp_path, CXX=str(compiler))["ops_past_python"] > 0
    assert place.read_bytes() == module.read_bytes()


def test_one_that_cannot_be_loaded_and_not_be_built_is_named(tmp_path):
    kept(tmp_path).write_bytes(b"")
    assert "cannot be loaded" in dispatch_of(tmp_path, PATH="/nowhere")
    assert "no C++ compiler" in dispatch_of(tmp_path, PATH="/nowhere")


@pytest.fixture
def prebuilt(tmp_path):
    """The module, as a package has it. No process of the test may compile or keep one."""
    place = tmp_path / "prebuilt" / _built.prebuilt_name()
    place.parent.mkdir()
    shutil.copy(_built.place(), place)
    return place


def without_a_compiler(tmp_path, prebuilt):
    said = dispatch_of(tmp_path, PATH="/nowhere", PREBUILT=str(prebuilt.parent))
    assert not (tmp_path / "cache").exists()
    return said


def test_a_prebuilt_one_needs_no_compiler(tmp_path, prebuilt):
    assert without_a_compiler(tmp_path, prebuilt)["ops_past_python"] > 0
    prebuilt.chmod(0o777)  # whoever may write the package may write all of it
    assert without_a_compiler(tmp_path, prebuilt)["ops_past_python"] > 0


@pytest.mark.parametrize("content", [b"", b"\x7fELF"])
def test_a_prebuilt_one_that_cannot_be_loaded_is_compiled(tmp_path, prebuilt, content):
    prebuilt.write_bytes(content)
    said = without_a_compiler(tmp_path, prebuilt)
    assert f"{prebuilt} cannot be loaded" in said and "there is no C++ compiler" in said
    place = kept(tmp_path)  # what was compiled before
    assert dispatch_of(tmp_path, PREBUILT=str(prebuilt.parent))["ops_past_python"] > 0
    assert place.exists() and prebuilt.read_bytes() == content


@pytest.mark.parametrize(("part", "other"), [(1, "2.9.1"), (-1, "0123456789abcdef.so")], ids=["torch", "sources"])
def test_one_that_was_built_for_others_is_not_taken(tmp_path, prebuilt, part, other):
    parts = prebuilt.name.split("-")
    parts[part] = other
    prebuilt.rename(prebuilt.with_name("-".join(parts)))
    said = without_a_compiler(tmp_path, prebuilt)
    assert "there is no C++ compiler" in said and "cannot be loaded" not in said
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert said.endswith(f"without one, this package works with torch {parts[1]} on Python {python}."), said


def test_the_name_says_what_it_was_built_with():
    assert torch.__version__.split("+")[0] in _built.prebuilt_name()
    assert sysconfig.get_config_var("SOABI") in _built.prebuilt_name()
