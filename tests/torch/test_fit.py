"""`tidelog fit`: what it says of a model follows from the model, and bad input is refused by name."""

import json
from types import SimpleNamespace

import pytest
import torch

from tidelog.commands import _fit, _fit_result, _measure
from tidelog.recorder import Gpu
from test_run import tidelog_command

pytest.importorskip("transformers")
CONFIG = {"model_type": "gpt2", "n_embd": 128, "n_layer": 3, "n_head": 4, "vocab_size": 500}
RATES = ["--read", "1e9", "--write", "1e9"]
SMALL = ["--sequence", "32", "--micro-batch", "2"]


def fit(*words, cwd="."):
    imports = ["transformers.models.gpt2.modeling_gpt2"]
    code, out, err = tidelog_command("fit", *words, cwd=cwd, imports=imports)
    return SimpleNamespace(returncode=code, stdout=out, stderr=err)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def figures(*words):
    done = fit(*words, "--output", "json")
    assert done.returncode in (0, 2), done.stderr
    return json.loads(done.stdout), done.returncode


def test_less_memory_takes_longer_and_too_little_is_refused(config, tmp_path):
    report = tmp_path / "step.html"
    whole, _ = figures(config, *SMALL, *RATES)
    assert whole["memory"] > whole["memory_without_tidelog"] and whole["waiting_seconds"] == 0
    assert 0 < whole["memory_least"] < whole["memory"] and whole["what_if"] == []
    half, _ = figures(config, *SMALL, *RATES, "--memory", whole["memory"] // 2, "--report", report)
    assert half["bytes_written"] > 0 and half["step_seconds"] >= half["compute_seconds"]
    assert [each["change"].endswith("memory") for each in half["what_if"]] == [True, True, False]
    assert "<html" in report.read_text()
    tiny, code = figures(config, *SMALL, *RATES, "--memory", whole["memory_least"] - 1)
    assert code == 2 and not tiny["fits"]


def test_the_pool_is_measured_and_the_screen_reads_well(config, tmp_path):
    pool = tmp_path / "pool"
    pool.mkdir()
    done = fit(config, *SMALL, "--memory", "8MiB", "--pool", pool)
    assert done.returncode == 0, done.stderr
    assert "TB a day are written" in done.stdout and "--drive says which they are" in done.stdout
    assert "(measured)" in done.stdout and "tokens a second" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("hours", "lasting"),
    [(7.25, "7.2 hours"), (67, "2.8 days"), (364 * 24, "364.0 days"), (3 * 365 * 24, "3.0 years"), (None, "not known")],
)
def test_how_long_drives_last_is_no_zero(hours, lasting):
    figures = {"bytes_written": 1, "bytes_written_per_day": 426e12, "wear": {"lifetime_hours": hours}}
    assert _fit_result._lasting(figures).startswith(lasting)


def test_host_memory_takes_what_the_ssds_would(config):
    words = [*SMALL, "--read", "1e8", "--write", "1e8", "--gpu", "h100-nvl", "--memory", "8MiB"]
    without, _ = figures(config, *words)
    assert without["bytes_to_host"] == 0 < without["bytes_written"]
    found, _ = figures(config, *words, "--host-memory", "1GiB", "--drive", "990 PRO 2TB")
    assert found["bytes_to_host"] > 0 and found["bytes_from_host"] > 0
    assert found["bytes_written"] < without["bytes_written"]
    assert found["step_seconds"] < without["step_seconds"]
    said = fit(config, *words, "--host-memory", "1GiB").stdout
    assert " to host memory, " in said and "carry 16 GB/s each way" in said
    refused = fit(config, *SMALL, *RATES, "--host-memory", "1GiB")
    assert refused.returncode == 64 and "--host-memory is for a GPU's tensors: say --gpu" in refused.stderr


def test_what_a_reader_would_wonder_about_is_said(config, monkeypatch):
    fast = ["--read", "1e12", "--write", "1e12", "--memory", "8MiB", "--precision", "bf16"]
    notes = " ".join(figures(config, *SMALL, *fast)[0]["notes"])
    assert "makes no difference to the waiting" in notes and "say --pool instead of rates" in notes
    assert "masters of the parameters in fp32" in notes
    whole, _ = figures(config, *SMALL, *RATES)
    assert whole["notes"] == [], "nothing moves"
    monkeypatch.setattr(_fit.Path, "read_text", lambda *_args, **_words: "flags : fpu avx2")
    assert not _fit._has_bf16()
    monkeypatch.setattr(_fit.Path, "read_text", lambda *_args, **_words: "flags : fpu amx_bf16 avx2")
    assert _fit._has_bf16()


def test_named_hardware_is_computed_and_its_drives_wear(config):
    drives = ["--drive", "990 PRO 2TB", "--drives", 2]
    done, _ = figures(config, *SMALL, *RATES, "--gpu", "h100-nvl", *drives, "--memory", "8MiB")
    assert done["ops_from"] == "h100-nvl" and done["threads"] is None
    assert done["wear"]["lifetime_hours"] > 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing-known", *RATES], 1, "no known model"),
        (["absent.json", *RATES], 1, "absent.json"),
        (["config.json"], 64, "--pool"),
        (["config.json", "--pool", "no/such/folder"], 3, "no/such/folder"),
        (["config.json", *RATES, "--memory", "plenty"], 64, "'plenty': expected a size"),
        (["config.json", *RATES, "--gpu", "absent.json"], 1, "absent.json"),
    ],
)
def test_what_makes_no_sense_is_refused(config, words, code, said):
    done = fit(*words, *SMALL, cwd=config.parent)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_errors_are_json_where_figures_are(config):
    done = fit("nothing-known", *RATES, "--output", "json", cwd=config.parent)
    said = json.loads(done.stdout)
    assert (done.returncode, said["exit"], done.stderr) == (1, 1, "") and "no known model" in said["error"]


def test_an_op_is_measured_once_for_each_shape():
    measured = []
    gpu = Gpu("a processor", 0, 1.0, {}, 1.0, {}, 1, 1e9)
    recorder = _measure.MeasuredRecorder(gpu, notice=measured.append)
    with torch.device("meta"), recorder, recorder.iteration("two shapes"):
        small, large = torch.ones(8, 8), torch.ones(512, 512)
        for _ in range(3):
            small @ small
            large @ large
    assert sum("mm" in str(op) for op in measured) == 2
    taken = {op["name"]: set() for op in json.loads(recorder.to_json())["ops"]}
    for op in json.loads(recorder.to_json())["ops"]:
        taken[op["name"]].add(op["duration_ns"])
    assert len(taken["aten.mm.default"]) == 2 and max(taken["aten.mm.default"]) > 20 * min(taken["aten.mm.default"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", 'no configuration of a model: "model_type" is missing'),
        (json.dumps({"n_embd": 8}), '"model_type" is missing'),
        (json.dumps({"model_type": "gpt9"}), "has no models of the type 'gpt9'"),
        ("{", "Expecting property name"),
        (None, "No such file or directory"),
    ],
)
def test_a_configuration_that_is_none_is_refused_in_one_line(tmp_path, text, why):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    done = fit(path, *RATES)
    assert done.returncode == 1 and why in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and len(done.stderr) < 300, done.stderr


def test_a_gpu_that_nobody_knows_is_refused_with_those_that_are(config):
    done = fit(config, *SMALL, *RATES, "--gpu", "h9000")
    assert done.returncode == 1 and "h9000" in done.stderr and "h100-nvl" in done.stderr, done.stderr


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_configuration_names_the_precision(tmp_path, key):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, key: "bfloat16"}))
    said, _ = figures(path, *SMALL, *RATES)
    single, _ = figures(path, *SMALL, *RATES, "--precision", "fp32")
    assert "bf16" in said["model"] and "fp32" in single["model"]
    assert said["parameters"] * 2 == single["parameters"]


def test_a_kind_with_several_models_for_its_task_has_the_usual_one():
    """Checks a configuration that names no class, of a kind for which transformers has two that classify."""
    from tidelog import models

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.device("meta"):
        model = models.from_config("deit", {**sizes, "num_labels": 3}, "sdpa")
    assert type(model).__name__ == "DeiTForImageClassification"
