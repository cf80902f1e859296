"""Peers that are Python libraries: one process, `worker.py`, in an environment of their own."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from peers import Failed, NoPeer, Peer, Sample, run, size_in_bytes

WORKER = pathlib.Path(__file__).with_name("worker.py")
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
THREADS = (1, 2, 4)


class Environment:
    """A virtual environment that has torch and the peers, and one process in it that runs their loads, case after case:
    loading torch and DeepSpeed takes longer than many runs. Both are made when they are first needed."""

    def __init__(self, folder, project):
        self.folder, self.python = folder, folder / "bin" / "python"
        # Where torch already is, so that it is not downloaded twice.
        self.project = project
        # What was found out: a version, or why there is none.
        self.known = {}
        self.worker, self.said = None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.worker:
            self.end_worker()

    def end_worker(self):
        """Returns what it printed besides its results."""
        # Its input ends, and so does it.
        self.worker.communicate()
        self.worker = None
        with self.said as said:
            said.seek(0)
            return said.read()

    def ask(self, words):
        """A run of the worker's."""
        if self.worker is None:
            self.said = tempfile.TemporaryFile("w+")
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.said}
            self.worker = subprocess.Popen(**self.command("serve"), **pipes)
        try:
            print(json.dumps(words), file=self.worker.stdin, flush=True)
            answer = self.worker.stdout.readline()
        except BrokenPipeError:
            answer = ""
        except BaseException:
            # In the middle of a run it holds files, and so the devices, that go now.
            self.worker.kill()
            self.end_worker()
            raise
        if not answer:
            # The next run gets a new one.
            raise Failed(f"{words['way']} ended in the middle of a run: {reason(self.end_worker())}")
        return json.loads(answer)

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
        # One that was ended while it compiled left its lock, for which torch would wait for ever; nobody else is here.
        for lock in self.folder.glob("extensions/*/lock"):
            lock.unlink()
        print(
            f"compare: loading {module}; native parts are compiled the first time, which takes minutes", file=sys.stderr
        )
        ran = subprocess.run(**self.command("check", module), capture_output=True, check=False)
        if ran.returncode != 0:
            raise NoPeer(f"{module}: {reason(ran.stdout + ran.stderr)}")
        return ran.stdout.strip()

    def command(self, *words, program=WORKER):
        """A worker's command line, and its variables: what is compiled stays with the environment."""
        variables = {**os.environ, "TORCH_EXTENSIONS_DIR": str(self.folder / "extensions")}
        return {"args": [str(self.python), str(program), *words], "env": variables, "text": True}

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
        except Failed as error:
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
        self.environment = environment

    def check(self):
        self.name = f"{self.environment.version(self.module)}{self.how}"

    def run(self, load, devices, seconds, **more):
        words = {
            "way": self.way,
            "rw": load.rw,
            "files": [str(file) for file in devices.files()],
            "bytes": size_in_bytes(load.size),
            "tensor": size_in_bytes(load.bs),
            "seconds": seconds,
            **more,
        }
        return Sample(**self.environment.ask(words))


class DeepSpeed(PythonPeer):
    """DeepSpeed's aio handles, one for each device; the best of 1, 2 and 4 threads for each.

    They take files, not devices, so each device carries a file system with one file.
    """

    name = "DeepSpeed aio"
    way = module = "deepspeed"
    how = " aio_handle, block_size 1m, queue_depth 128"

    def __init__(self, environment):
        super().__init__(environment)
        self.threads, self.best = THREADS[0], {}

    def prepare(self, load, devices, seconds):
        # What was best for one of our levels is for the other.
        case = (load, devices.kind, len(devices.names))
        if case not in self.best:

            def speed(threads):
                return super(DeepSpeed, self).run(load, devices, seconds, threads=threads).bytes_per_second

            self.best[case] = max(THREADS, key=speed)
        self.threads = self.best[case]

    def run(self, load, devices, seconds):
        return super().run(load, devices, seconds, threads=self.threads)


class SavedFile(PythonPeer):
    """safetensors, or torch.save, to a file that is then fsynced; loading reads it from the device again."""

    how = " + fsync"

    def __init__(self, environment, way):
        super().__init__(environment)
        self.way, self.name = way, f"{way} + fsync"
        self.module = "safetensors" if way == "safetensors" else "torch"
