"""Runs contenders: a process each, on devices that are made when they are first needed."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import conclusions
import contenders
import zero_infinity_settings as zero
from devices import KINDS, NoDevices
from peers import Failed
from python_peers import reason

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GIB = 1 << 30
DEVICE_BYTES, POOL_BYTES = 3 * GIB, 5 * GIB // 2
LIMIT_S = 600  # for a process; the first of DeepSpeed's compiles
TRIAL_STEPS, TRIAL_WARM_STEPS = 6, 2
# Everybody's: what else may use threads, and no libraries that ask a network.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Lacking(Exception):
    """Error of a contender that cannot run here, with the reason."""


class Runner(contextlib.ExitStack):
    """Resources that all runs of one call share: the devices, and which of ZeRO-Infinity's settings take part."""

    def __init__(self, arguments, environment, store):
        super().__init__()
        self.arguments, self.environment, self.store, self.folders = arguments, environment, store, {}

    def run(self, contender, micro_batches, kind, number):
        """One run of a contender."""
        settings = self.settings(contender, micro_batches, kind)
        told = self.process(contender.way, settings, micro_batches, kind, self.arguments.steps)
        return {
            "contender": contender.name,
            "micro_batches": micro_batches,
            "pool": kind,
            "round": number,
            "settings": {name: value for name, value in settings.items() if name != "tried"},
            **told,
        }

    def settings(self, contender, micro_batches, kind):
        if contender.tuned:
            name = self.tuned(micro_batches, kind)[contender.tuned]["name"]
            return {"setting": name, "tried": zero.settings(name)}
        if contender.is_ours:
            memory = contenders.budget(contender, self.tuned(micro_batches, kind)["lean"]["peak_bytes"])
            return {"memory": memory, "pool_size": POOL_BYTES, "options": contender.options}
        return {}

    def tuned(self, micro_batches, kind):
        """The settings that take part, once each was tried."""
        for name in zero.TRIED:
            if not self.store.is_tried(name, micro_batches, kind):
                settings = {"tried": zero.settings(name)}
                told = self.process("zero_infinity", settings, micro_batches, kind, TRIAL_STEPS)
                self.store.add_trial(name, micro_batches, kind, told, told["steps"][TRIAL_WARM_STEPS:])
        return conclusions.choose(self.store.tried(micro_batches, kind))

    def process(self, way, settings, micro_batches, kind, steps):
        """Runs one process, and returns its report."""
        options = {"way": way, "steps": steps, "micro_batches": micro_batches, "threads": self.arguments.threads}
        variables = {"OMP_NUM_THREADS": str(self.arguments.threads), **ENVIRONMENT}
        if kind:
            options["folder"] = str(self.folder(kind))
        if way == "zero_infinity":
            self.environment.version("deepspeed")
            variables |= settings["tried"]["environment"]
        command = self.environment.command(json.dumps({**options, **settings}), program=HERE / "trainer.py")
        if way != "zero_infinity":
            command["args"][0] = str(ROOT / ".venv" / "bin" / "python")
        command["env"] |= variables | {"PYTHONPATH": str(ROOT / "torch-bridge" / "python")}
        try:
            ran = subprocess.run(**command, capture_output=True, check=False, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{way} did not end within {LIMIT_S} s") from None
        finally:
            if kind:
                empty(self.folder(kind))
        return self.told(ran, steps)

    @staticmethod
    def told(ran, steps):
        """The lines of a process, as one."""
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        done = [line for line in lines if "seconds" in line]
        if len(done) < steps:
            raise Failed(f"ended after {len(done)} of {steps} steps: {reason(ran.stderr)}")
        told = {"load": os.getloadavg()[0], "steps": done}
        for line in lines:
            told |= {name: value for name, value in line.items() if "seconds" not in line}
        return told

    def folder(self, kind):
        """A file system on devices of a kind, for one process at a time."""
        if kind not in self.folders:
            disk = self.enter_context(tempfile.TemporaryDirectory(prefix="training-", dir=self.arguments.files))
            try:
                devices = self.enter_context(KINDS[kind](disk, 1, DEVICE_BYTES))
                (file,) = devices.files()
            except NoDevices as why:
                raise Lacking(str(why)) from None
            self.folders[kind] = pathlib.Path(file).parent
        return self.folders[kind]


def empty(folder):
    """Empties a folder of files that a process left."""
    for entry in folder.iterdir():
        if entry.name == "lost+found":
            continue
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
