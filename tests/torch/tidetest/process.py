"""Runs a script in a process of its own, for what could take the whole test run down.

Importing torch takes seconds, so one process imports it and forks a child per script. A child starts before
any offload block exists, and ends by the interpreter's own way out: what it shows is what a program shows. To collect
all that was imported takes a second then, and is left to scripts whose end is what they show.
"""

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import tidelog
from tidetest import device

_HERE = Path(__file__).resolve().parent.parent
# What takes longer hangs, however many others use the machine: no test is about how fast something is.
HANGS_SECONDS = 600

# Falls through only in a child, to whose main program the script becomes.
_NURSERY = """\
import gc, importlib, json, os, signal, sys, threading, time, warnings
import numpy, torch, torch._dynamo
torch.set_num_threads(1)
torch.optim.AdamW([torch.zeros(1)])
import tidelog
from tidetest import KIB, MIB, device
device.name = sys.argv[1]
from tidetest.bits import assert_same, bits, frozen, outcome
from tidetest.world import World

def _serve():
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            deadline = time.monotonic() + request["timeout_s"]
            pid = 0
            while not pid and time.monotonic() < deadline:
                pid, status = os.waitpid(request["wait"], os.WNOHANG)
                time.sleep(0 if pid else 0.005)
            print(os.waitstatus_to_exitcode(status) if pid else "hangs", flush=True)
            continue
        for module in request["imports"]:
            importlib.import_module(module)
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            if request["whole_end"]:
                gc.unfreeze()
            # Whoever started the tests may ignore them, as nohup and shells do for what runs in the background.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, path in ((1, request["out"]), (2, request["err"])):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = ["script", *request["arguments"]]
            device.begin(request["folder"])
            return request["script"]
        print(pid, flush=True)
    os._exit(0)

exec(compile(_serve(), "script", "exec"))
"""
_nursery = None
# Triton's bindings tell of what was imported and not collected.
_LEAKED = re.compile(r"nanobind: leaked .*?refleaks\.html\n?", re.DOTALL)


@dataclass
class Ended:
    """End of a process. `code` is negative for a signal, as in subprocess."""

    code: int
    out: str
    err: str


def environment(**more):
    """The variables of a process that imports the package, and what the tests share, as this one does."""
    paths = [str(_HERE), str(Path(tidelog.__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **more}


def _ask(**request):
    global _nursery
    if _nursery is None or _nursery.poll() is not None:
        command = [sys.executable, "-c", _NURSERY, device.name]
        pipe = subprocess.PIPE
        variables = environment(PYTHONFAULTHANDLER="1")
        _nursery = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables, start_new_session=True)
        atexit.register(_nursery.stdin.close)
    _nursery.stdin.write(json.dumps(request) + "\n")
    _nursery.stdin.flush()
    return json.loads(_nursery.stdout.readline().replace("hangs", '"hangs"'))


class Running:
    """A started script."""

    def __init__(self, script, arguments, imports, whole_end):
        self.folder = tempfile.TemporaryDirectory()
        self.out, self.err = Path(self.folder.name, "out"), Path(self.folder.name, "err")
        text = textwrap.dedent(script)
        self.pid = _ask(
            script=text,
            arguments=[*map(str, arguments)],
            imports=imports,
            whole_end=whole_end,
            folder=self.folder.name,
            out=str(self.out),
            err=str(self.err),
        )

    def await_line(self, line, timeout_s=HANGS_SECONDS):
        """Waits until the script has printed a line."""
        deadline = time.monotonic() + timeout_s
        while line not in (self.out.read_text() if self.out.exists() else "").splitlines():
            if time.monotonic() > deadline or (self.err.exists() and "Error" in self.err.read_text()):
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"no line {line!r}: {self.finish()}")
            time.sleep(0.01)

    def finish(self, timeout_s=HANGS_SECONDS):
        """Waits for the end; a process that hangs is killed and fails the test."""
        code = _ask(wait=self.pid, timeout_s=timeout_s)
        hangs = code == "hangs"
        if hangs:
            os.kill(self.pid, signal.SIGABRT)  # the fault handler tells where it hangs
            code = _ask(wait=self.pid, timeout_s=timeout_s)
        out, err = (path.read_text() if path.exists() else "" for path in (self.out, self.err))
        ended = Ended(code, out, _LEAKED.sub("", err))
        self.folder.cleanup()
        assert not hangs, f"the process hung for {timeout_s} s\n--- stdout\n{ended.out}\n--- stderr\n{ended.err}"
        return ended


def finish_all(started, timeout_s=HANGS_SECONDS):
    """Waits for the ends of scripts that wait for each other. All end; where one hangs, the error tells of each."""
    ended, hung = [], []
    for each in started:
        try:
            ended.append(each.finish(1 if hung else timeout_s))
        except AssertionError as error:
            hung.append(str(error))
    assert not hung, "\n".join(hung + [str(each) for each in ended])
    return ended


def assert_all_done(started):
    """Waits for the ends of scripts that wait for each other, and asserts that each has done all that it should."""
    for ended in finish_all(started):
        assert_done(ended)


def start(script, *arguments, imports=(), whole_end=False):
    """Starts a script that finds torch, tidelog, World and the bit helpers imported, and its arguments in sys.argv.
    `imports`: modules that take long to import, which many such scripts use. `whole_end`: the interpreter's end also
    collects what was imported before, for a second.
    """
    return Running(script, arguments, imports, whole_end)


def run(script, *arguments, timeout_s=HANGS_SECONDS, **more):
    return start(script, *arguments, **more).finish(timeout_s)


def assert_orderly(ended):
    """No crash, no panic and no abort, whatever the exit code is."""
    text = f"exit code {ended.code}\n--- stdout\n{ended.out}\n--- stderr\n{ended.err}"
    assert ended.code >= 0, f"killed by a signal: {text}"
    for word in ("Segmentation", "Fatal Python error", "panicked", "core dumped", "double free"):
        assert word not in ended.err, text


def assert_done(ended, marker="done"):
    """The script ran to its end, with exit code 0, and said so."""
    assert_orderly(ended)
    assert ended.code == 0 and marker in ended.out.split(), (
        f"exit code {ended.code}\n--- stdout\n{ended.out}\n--- stderr\n{ended.err}"
    )
