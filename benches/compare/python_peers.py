"""Peers that are Python libraries: a process for each case, `worker.py`, in an environment of their own."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from peers import NoPeer, Peer, Sample, run, size_in_bytes

WORKER = pathlib.Path(__file__).with_name("worker.py")
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
THREADS = (1, 2, 4)


class Environment:
    """A virtual environment that has torch and the peers; made when it is first needed."""

    def __init__(self, folder, project):
        self.folder, self.python = folder, folder / "bin" / "python"
        # Where torch already is, so that it is not downloaded twice.
        self.project = project
        # What was found out: a version, or why there is none.
        self.known = {}

    def version(self, module):
        """Makes the environment if need be, and loads a module in it.

        Raises `NoPeer` with the reason if that does not work.
        """
        if module not in self.known:
            try:
                self.known[module] = self.load(module)
            except NoPeer as error:
                self.known[module] = error
        if isinstance(self.known[module], NoPeer):
            raise self.known[module]
        return self.known[module]

    def load(self, module):
        stamp = self.folder / "installed"
        if not stamp.exists() or stamp.read_text() != REQUIREMENTS.read_text():
            print(f"compare: installing peers into {self.folder}", file=sys.stderr)
            self.make(stamp)
        print(f"compare: loading {module}; native parts are compiled the first time, which takes minutes", file=sys.stderr)
        ran = subprocess.run(**self.command("check", module), capture_output=True, check=False)
        if ran.returncode != 0:
            raise NoPeer(f"{module}: {reason(ran.stdout + ran.stderr)}")
        return ran.stdout.strip()

    def command(self, *words):
        """A worker's command line, and its variables: what is compiled stays with the environment."""
        variables = {**os.environ, "TORCH_EXTENSIONS_DIR": str(self.folder / "extensions")}
        return {"args": [str(self.python), str(WORKER), *words], "env": variables, "text": True}

    def make(self, stamp):
        theirs = next((self.project / "lib").glob("python*/site-packages/torch"), None)
        if theirs is None:
            raise NoPeer(f"there is no torch in {self.project}: run `make setup`")
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            run([str(self.project / "bin" / "python"), "-m", "venv", str(self.folder)])
            (packages,) = (self.folder / "lib").glob("python*/site-packages")
            (packages / "project.pth").write_text(f"{theirs.parent}\n")
            pip = [str(self.python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            run([*pip, "-r", str(REQUIREMENTS)])
        except RuntimeError as error:
            raise NoPeer(f"the environment of the Python peers cannot be made: {reason(str(error))}") from None
        stamp.write_text(REQUIREMENTS.read_text())


def reason(text):
    """The line of a traceback, or of a compiler's output, that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "error" in line.lower() or "not found" in line.lower()]
    return (told or lines or ["it ended without a word"])[-1][:300]


class PythonPeer(Peer):
    """A load of `worker.py`."""

    # What it is called there, and the module that it needs.
    way = module = None

    def __init__(self, environment):
        self.environment, self.worker, self.said = environment, None, None

    def check(self):
        self.name = f"{self.environment.version(self.module)}{self.how}"

    def prepare(self, load, devices, seconds):
        self.said = tempfile.TemporaryFile("w+")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.said}
        self.worker = subprocess.Popen(**self.environment.command("serve", self.way), **pipes)

    def finish(self):
        if self.worker:
            self.worker.stdin.close()
            self.worker.wait()

    def run(self, load, devices, seconds, **more):
        words = {
            "rw": load.rw,
            "files": [str(file) for file in devices.files()],
            "bytes": size_in_bytes(load.size),
            "tensor": size_in_bytes(load.bs),
            "seconds": seconds,
            **more,
        }
        print(json.dumps(words), file=self.worker.stdin, flush=True)
        answer = self.worker.stdout.readline()
        if not answer:
            self.said.seek(0)
            raise RuntimeError(f"{self.name} ended in the middle of a run: {reason(self.said.read())}")
        return Sample(**json.loads(answer))


class DeepSpeed(PythonPeer):
    """DeepSpeed's aio handles, one for each device; the best of 1, 2 and 4 threads for each.

    They take files, not devices, so each device carries a file system with one file.
    """

    name = "DeepSpeed aio"
    way = module = "deepspeed"
    how = " aio_handle, block_size 1m, queue_depth 128"

    def __init__(self, environment):
        super().__init__(environment)
        self.threads = THREADS[0]

    def prepare(self, load, devices, seconds):
        super().prepare(load, devices, seconds)
        speeds = {
            threads: super(DeepSpeed, self).run(load, devices, seconds, threads=threads).bytes_per_second
            for threads in THREADS
        }
        self.threads = max(speeds, key=speeds.get)

    def run(self, load, devices, seconds):
        return super().run(load, devices, seconds, threads=self.threads)


class SavedFile(PythonPeer):
    """safetensors, or torch.save, to a file that is then fsynced; loading reads it from the device again."""

    how = " + fsync"

    def __init__(self, environment, way):
        super().__init__(environment)
        self.way, self.name = way, f"{way} + fsync"
        self.module = "safetensors" if way == "safetensors" else "torch"
