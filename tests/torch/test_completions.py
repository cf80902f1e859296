"""The completions that the package carries are those of its options, and a shell takes them."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

import tidelog
from tidelog.commands._completions import SCRIPTS
from test_run import tidelog_command

CARRIED = Path(tidelog.__file__).parent / "commands" / "completions"
GENERATOR = Path(__file__).resolve().parents[2] / "scripts" / "completions.py"


def test_the_scripts_are_made_from_the_options():
    pytest.importorskip("shtab")
    spec = importlib.util.spec_from_file_location("completions", GENERATOR)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    for name, text in generator.scripts().items():
        assert (CARRIED / name).read_text() == text.rstrip("\n") + "\n", "run scripts/completions.py"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tidelog ", {"run", "fit", "completions"}),
        ("tidelog r", {"run"}),
        ("tidelog run --mo", {"--mode"}),
        ("tidelog run --data-path gds", {"gds", "gds-compat"}),
        ("tidelog fit --precision ", {"fp32", "tf32", "bf16"}),
        ("tidelog fit config.js", {"config.json"}),
        ("tidelog run --pool po", {"pool"}),
        ("tidelog completions ", {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(tmp_path, line, expected):
    (tmp_path / "config.json").touch()
    (tmp_path / "pool").mkdir()
    words = [*line.split(), *([""] if line.endswith(" ") else [])]
    quoted = " ".join(f"'{word}'" for word in words)
    program = f"source {CARRIED / 'tidelog'}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_tidelog"
    program += '; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == expected, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", CARRIED / SCRIPTS[shell]], check=True)


def test_the_command_prints_them():
    code, out, err = tidelog_command("completions", "zsh")
    assert (code, out) == (0, (CARRIED / "_tidelog").read_text()), err
    code, out, err = tidelog_command("completions", "csh")
    assert (code, out) == (64, "") and "csh" in err
