"""Files of compiled programs in a block: models that are saved and loaded, traces, reports."""

import contextlib
import io
import json
import subprocess
from pathlib import Path

import pytest
import torch

import test_compile
from test_compile import LAYERS, SHARE, Layer, Program, compare, peak, started_afresh
from tidetest import device

pytestmark = [
    pytest.mark.host_memory("inductor's kernels in C++ are of the host"),
    pytest.mark.usefixtures("compiled_once"),
]

PLANNER = Path(__file__).resolve().parents[2] / "target" / "release" / "tidelog-plan"


class Saving(Program):
    """Half-way it is saved, and what was loaded goes on in its place. `whole`: the compiled module is pickled, else
    its state."""

    whole = False

    def run(self, boundary):
        for number, size in enumerate(self.batches):
            if number == 2:
                self.save_and_load()
            with boundary():
                self.step(size)

    def save_and_load(self):
        file = io.BytesIO()
        saved = self.forward if self.whole else self.forward.state_dict()
        torch.save({"model": saved, "optimizer": self.optimizer.state_dict()}, file)
        file.seek(0)
        del saved
        started_afresh()
        loaded = torch.load(file, weights_only=not self.whole)
        if self.whole:
            self.forward = loaded["model"]
            self.model = self.forward._orig_mod
        else:
            self.model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
            self.forward = torch.compile(self.model)
            self.forward.load_state_dict(loaded["model"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.optimizer.load_state_dict(loaded["optimizer"])


class SavingWhole(Saving):
    whole = True


@pytest.mark.parametrize("kind", [pytest.param(Saving, marks=pytest.mark.slow), SavingWhole])
def test_a_compiled_model_is_saved_and_loaded_inside_the_block(pool, kind):
    started_afresh()
    program = kind()
    program.run(contextlib.nullcontext)
    expected = program.result()
    # Loading makes the new model beside the old one.
    tensors = int(2 * SHARE * peak("trains", pool))
    del program
    started_afresh()
    program = kind()
    with test_compile.block(program, pool, tensors) as tide:
        program.run(tide.step)
        got = program.result()
        assert tide.stats()["evictions"] > 0 and tide.peak_bytes <= tide.budget
    compare(expected, got)


@pytest.mark.slow
def test_traces_reports_and_explanations_name_kernels(pool, tmp_path):
    if not PLANNER.exists():
        pytest.skip("the tools are not built")
    started_afresh()
    program = Program()
    with test_compile.block(program, pool, int(SHARE * peak("trains", pool)), mode="auto") as tide:
        program.run(tide.step)
        assert tide.phase == "planned"
        tide.trace(tmp_path / "trace.json")
        tide.report(tmp_path / "report.html")
        budget = tide.budget - device.STAGING
    trace = json.loads((tmp_path / "trace.json").read_text())
    ops = [each["name"] for each in trace["ops"]]
    kernels = [number for number, name in enumerate(ops) if name.startswith("kernel cpp_fused")]
    assert len(kernels) > LAYERS
    machine = {"budget": budget, "staging": 0, "verify": 10**12}
    machine["ssd"] = {"read": 10**9, "write": 10**9, "latency_ns": 80000}
    (tmp_path / "machine.json").write_text(json.dumps(machine))

    def planner(*words):
        done = subprocess.run([PLANNER, *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = planner("explain", "trace.json", "machine.json", "--op", str(kernels[-1]))
    assert ops[kernels[-1]] in text, text
    assert "kernel cpp_fused" in planner("export", "trace.json", "machine.json")
    for page in (planner("report", "trace.json", "machine.json"), (tmp_path / "report.html").read_text()):
        assert "<svg" in page
    assert "of ideal" in planner("simulate", "trace.json", "machine.json")
