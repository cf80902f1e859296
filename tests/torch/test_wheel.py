"""The wheel, installed where nothing of this checkout is: package, library and tools work."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from tidelog.native import _built

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "docs"), str(ROOT / "scripts")]

import helptexts  # noqa: E402
import links  # noqa: E402
import prebuilt  # noqa: E402

pytestmark = pytest.mark.timeout(1800)  # building the wheel compiles the workspace once more, beside other tests

TOOLS = ("tidelog-bench", "tidelog-doctor", "tidelog-format", "tidelog-plan")
SIZE_MAX = 15 << 20

# Its environment has torch, for which the bridge's part in C++ is in the wheel.
TORCH = sys.prefix
THREE_LINES = """
import torch, tidelog
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])
optimizer = torch.optim.AdamW(model.parameters())
with tidelog.offload(model, optimizer, pool={pool!r}, memory="2000KiB", staging="256KiB") as tide:
    for _ in range(3):
        with tide.step():
            optimizer.zero_grad()
            model(torch.ones(64, 128)).sum().backward()
            optimizer.step()
    print(tidelog.__version__, tidelog.__file__, tide.stats()["totals"]["evictions"] > 0)
"""


def said(*words, **more):
    # With cargo's variables nothing is built anew.
    kept = ("PATH", "HOME", "LANG", "CARGO_")
    environment = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, env=environment, check=False, **more)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built once, also where several processes run tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheel"
    folder.mkdir(exist_ok=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            said("env", f"TIDELOG_TORCH={TORCH}", *pip, "--wheel-dir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with the wheel alone; torch comes from the one that the tests run in."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    said(*pip, "--no-deps", "--no-index", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def test_the_wheel_is_small_and_fits_every_python(wheel):
    assert wheel.stat().st_size <= SIZE_MAX
    assert "-py3-none-" in wheel.name
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"tidelog/libtidelog.so", "tidelog/py.typed"} <= names
    scripts = {Path(name).name for name in names if ".data/scripts/" in name}
    assert scripts == set(TOOLS)


def test_the_wheel_has_the_packages_modules_alone(wheel):
    package = ROOT / "torch-bridge" / "python"
    there = {str(path.relative_to(package)) for path in (package / "tidelog").rglob("*.py")}
    names = zipfile.ZipFile(wheel).namelist()
    assert {name for name in names if name.startswith("tidelog/") and name.endswith(".py")} == there


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The sdist of a checkout that nobody may write to, unpacked."""
    folder = tmp_path_factory.mktemp("source")
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    said("env", f"CARGO_TARGET_DIR={folder / 'target'}", sys.executable, "-c", build, folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def test_the_source_has_all_that_cargo_reads(source):
    """All files of git in the folders of the workspace's crates, and a lock that fits."""
    words = ["cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]
    packages = json.loads(said(*words, cwd=source))["packages"]
    crates = [str(Path(each["manifest_path"]).parent.relative_to(source)) for each in packages]
    listed = set(said("git", "ls-files", "--", *crates, cwd=ROOT).splitlines())
    listed = {
        name for name in listed if not name.startswith("tests/") or name.startswith(("tests/src/", "tests/tests/"))
    }
    assert listed and [name for name in sorted(listed) if not (source / name).exists()] == []


def test_links_of_the_readme_lead_somewhere_in_the_source(source):
    """Checks relative links: without an address of the project's there is nothing else that they could be."""
    found = {link.partition("#")[0] for _, link in links.Page((source / "README.md").read_text()).links}
    inside = {each for each in found if each and ":" not in each}
    assert len(inside) > 20 and [each for each in sorted(inside) if not (source / each).exists()] == []


@pytest.mark.slow
def test_the_source_builds_without_being_written_to(source, tmp_path):
    """A folder of cargo's elsewhere, no network."""
    for path in (source, *source.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    before = sorted(source.rglob("*"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        tmp_path,
    ]
    offline = ["env", f"CARGO_TARGET_DIR={tmp_path / 'target'}", "CARGO_NET_OFFLINE=true"]
    said(*offline, *pip, source, cwd=tmp_path)
    assert list(tmp_path.glob("*.whl")) and sorted(source.rglob("*")) == before


def test_completions_are_where_shells_look(installed):
    share = installed.parent / "share"
    for name in (*TOOLS, "tidelog"):
        for file in (
            share / "bash-completion" / "completions" / name,
            share / "zsh" / "site-functions" / f"_{name}",
            share / "fish" / "vendor_completions.d" / f"{name}.fish",
        ):
            assert name in file.read_text(), file


def test_the_three_lines_run(installed, wheel, tmp_path):
    version, where, moved = said(
        installed / "python", "-c", THREE_LINES.format(pool=str(tmp_path)), cwd=tmp_path
    ).split()
    assert moved == "True" and where.startswith(str(installed.parent))
    assert f"tidelog-{version}-" in wheel.name


def test_a_machine_without_a_compiler_trains(installed, tmp_path):
    """Trains with prebuilt modules: nothing is compiled or kept."""
    alone = ["env", "-i", "PATH=/nowhere", f"HOME={tmp_path}", installed / "python", "-c"]
    three_lines = THREE_LINES.format(pool=str(tmp_path))
    assert said(*alone, three_lines + '    print(tide.stats()["dispatch"])', cwd=tmp_path).split()[2] == "True"
    assert not (tmp_path / ".cache" / "tidelog").exists()
    (module,) = installed.parent.glob("lib/python*/site-packages/tidelog/native/prebuilt/*.so")
    assert module.name == _built.prebuilt_name()
    hidden = module.rename(module.with_suffix(".not"))
    try:
        with pytest.raises(AssertionError, match="install g.. or clang.., and Python's headers"):
            said(*alone, three_lines, cwd=tmp_path)
    finally:
        hidden.rename(module)


def test_what_is_prebuilt_asks_no_more_of_the_machine_than_the_wheel_does(installed):
    """Checks that prebuilt modules need no more than glibc 2.28 and its libstdc++, as `make wheel` checks."""
    (module,) = installed.parent.glob("lib/python*/site-packages/tidelog/native/prebuilt/*.so")
    libraries = Path(torch.__file__).parent / "lib"
    assert prebuilt.too_new(module, libraries, "2.28") == []
    assert any("GLIBC_2.14" in each for each in prebuilt.too_new(module, libraries, "2.13"))


def test_a_program_runs_unedited(installed, tmp_path):
    (tmp_path / "pool").mkdir()
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(3).sum().item())\n")
    words = ["run", "--memory", "64MiB", "--pool", tmp_path / "pool", tmp_path / "train.py"]
    assert said(installed / "tidelog", *words, cwd=tmp_path) == "3.0\n"


@pytest.mark.parametrize("tool", [*TOOLS, "tidelog"])
def test_each_tool_says_the_version_of_the_wheel(installed, wheel, tool):
    assert said(installed / tool, "--version").split()[-1] == wheel.name.split("-")[1]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Installs by `make install`, with a library folder as some distributions have it."""
    folder = tmp_path_factory.mktemp("usr")
    install(folder)
    return folder


def install(folder, *words):
    said("env", f"PREFIX={folder}", f"LIBDIR={folder}/lib64", ROOT / "scripts" / "install.sh", *words)


def test_an_installed_library_is_found_by_pkg_config(prefix, tmp_path):
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not installed")
    search = f"PKG_CONFIG_PATH={prefix}/lib64/pkgconfig"
    flags = said("env", search, "pkg-config", "--cflags", "--libs", "tidelog").split()
    source, program = ROOT / "torch-bridge" / "examples" / "tensors.c", tmp_path / "tensors"
    said("cc", "-std=c90", source, *flags, "-o", program)
    (tmp_path / "ssd").mkdir()
    answer = said("env", f"LD_LIBRARY_PATH={prefix}/lib64", program, tmp_path / "ssd")
    assert '["weights"]' in answer


def test_tools_are_installed_with_completions(prefix):
    assert {path.name for path in (prefix / "bin").iterdir()} == set(TOOLS)
    for tool in (*TOOLS, "tidelog"):
        assert (prefix / "share" / "bash-completion" / "completions" / tool).stat().st_size > 0


@pytest.mark.parametrize("tool", helptexts.TOOLS)
def test_a_man_page_has_all_that_help_says(prefix, tool):
    page = prefix / "share" / "man" / "man1" / f"{tool}.1"
    source = re.sub(r"\\f[BR]|\\&", "", page.read_text()).replace("\\-", "-").replace("\\e", "\\")
    for help in helptexts.helps(tool, columns=10_000):
        assert words_of(help.text) - {"usage", "codes", "positional"} <= words_of(source), help.words
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"):
        assert f".SH {heading}\n" in source
    if shutil.which("groff"):
        command = ["groff", "-ww", "-man", "-Tutf8", "-z", page]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_what_was_installed_is_removed_again(prefix):
    """The last test of it. Files of others stay."""
    assert "libdir=${prefix}/lib64\n" in (prefix / "lib64/pkgconfig/tidelog.pc").read_text()
    (prefix / "bin/other").touch()
    install(prefix, "uninstall")
    assert [path for path in prefix.rglob("*") if not path.is_dir()] == [prefix / "bin/other"]
    with pytest.raises(AssertionError, match="nothing is installed in"):
        install(prefix, "uninstall")


def words_of(text):
    return set(re.findall(r"[\w.-]+", text.lower()))
