"""Runs a program as it is, and writes when its optimizers had stepped:

    timed.py FILE PROGRAM [ARGUMENTS ...]

FILE gets seconds between two steps of the optimizer that stepped first, as JSON. With ranks it is the first one's.
"""

import atexit
import json
import os
import runpy
import sys
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

file, *sys.argv = sys.argv[1:]
stepped = {}


def note(optimizer, *_):
    stepped.setdefault(id(optimizer), []).append(time.perf_counter())


@atexit.register
def write():
    times = next(iter(stepped.values()), [])
    if int(os.environ.get("RANK", "0")) == 0:
        with open(file, "w", encoding="utf-8") as out:
            json.dump([later - sooner for sooner, later in zip(times, times[1:])], out)


register_optimizer_step_post_hook(note)
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
