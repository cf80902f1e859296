"""A process that a bench lets run in turn with others: each line that it is sent is a command, each line back the
answer, as JSON."""

import json
import os
import subprocess
import sys


class Process:
    """A program in Python that waits for commands. `threads`: torch's."""

    def __init__(self, program, *words, threads, more_environment=()):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TRANSFORMERS_VERBOSITY": "error"}
        environment |= dict(more_environment)
        self.process = subprocess.Popen(
            [sys.executable, str(program), *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command, **arguments):
        self.send(command, arguments)
        return self.answer()

    def send(self, command, arguments):
        print(json.dumps([command, arguments]), file=self.process.stdin, flush=True)
        self._last = command

    def answer(self):
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the process ended with exit code {self.process.wait()} at {self._last}")
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
