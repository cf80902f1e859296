"""A process that a bench lets run in turn with others: each line that it is sent is a command, each line back the
answer, as JSON."""

import json
import os
import subprocess
import sys


class Process:
    """A program in Python that waits for commands. `threads`: torch's."""

    def __init__(self, program, *words, threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TRANSFORMERS_VERBOSITY": "error"}
        self.process = subprocess.Popen(
            [sys.executable, str(program), *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command, **arguments):
        print(json.dumps([command, arguments]), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the process ended with exit code {self.process.wait()} at {command}")
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
