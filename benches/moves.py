"""What it costs to do what a session asks for: to evict and release a storage, to allocate it and settle it.

    python benches/moves.py [--rounds 200] [--device fake] [--output json]

Requests are done by turns past Python and in Python, round by round, in one process. Nothing is copied: a stub stands
in the library's place, hands out the requests and hears that they are done. With `--device fake` the memory is a GPU's:
the tests' fake CUDA, whose streams and events are real calls of a library in C.
"""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "torch-bridge" / "python"), str(ROOT / "tests" / "torch"), str(ROOT / "benches")]

import torch

import tidelog
from hook import on
from tidelog.abi._native import Request
from tidetest import native
from tidetest.requests import replace

STORAGES, BYTES = 64, 64 << 10
PAIRS = {
    "evict_and_release": (Request.EVICT, Request.RELEASE),
    "allocate_and_settle": (Request.ALLOCATE, Request.SETTLE),
}

STUB = """
#include <tidelog.h>
static tide_action asked[1024];
static int count, next;
void stub_ask(int kind, int storage, unsigned long long size) {
    asked[count] = (tide_action){ .sequence = count, .size = size, .kind = kind, .storage = storage };
    count++;
}
void stub_begin(void) { count = next = 0; }
int stub_left(void) { return count - next; }
int next_action(uint64_t session, tide_action *action) {
    if (next == count) return TIDE_READY;
    *action = asked[next];
    return TIDE_ACTION;
}
int action_done(uint64_t session, uint64_t sequence, uint64_t address, void *after) { next++; return TIDE_READY; }
int allocated(uint64_t session, uint64_t sequence, uint64_t address, void *after, void *landed) {
    next++;
    return TIDE_READY;
}
"""


def stub_in(folder):
    include = f"-I{ROOT / 'torch-bridge' / 'include'}"
    library = ctypes.CDLL(str(native.build(folder, "stub", STUB, include)))
    library.next_action.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    library.action_done.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
    library.allocated.argtypes = [*library.action_done.argtypes, ctypes.c_void_p]
    library.stub_ask.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint64]
    return library


def seconds_of(tide, stub, numbers, kinds):
    """Of each request, while all storages are asked for these in turn."""
    stub.stub_begin()
    for number in numbers:
        for kind in kinds:
            stub.stub_ask(kind, number, BYTES if kind in (Request.EVICT, Request.ALLOCATE) else 0)
    started = time.perf_counter()
    tide.performer.perform()
    elapsed = time.perf_counter() - started
    assert stub.stub_left() == 0
    return elapsed / (len(numbers) * len(kinds))


def measured(folder, rounds, await_device):
    seconds = {(pair, way): [] for pair in PAIRS for way in ("past_python", "in_python")}
    options = {"memory": "1GiB", "pool_size": "64MiB", "staging": "1MiB", "mode": "reactive"}
    with tidelog.offload(pool=folder, **options) as tide:
        tensors = [torch.zeros(BYTES // 4) for _ in range(STORAGES)]
        records = [tide.ledger.record_of(tensor.untyped_storage()) for tensor in tensors]
        numbers = [record.id for record in records]
        tide.ledger.flush()
        stub = stub_in(folder)
        library = tide.session._library
        names = ("next_action", "action_done", "allocated")
        kept = {name: getattr(library, f"tide_session_{name}") for name in names}
        replace(tide, {name: getattr(stub, name) for name in names})
        past_python = tide.performer.perform_usual
        for _ in range(rounds):
            for way, usual in (("past_python", past_python), ("in_python", bool)):
                tide.performer.perform_usual = usual
                await_device()  # else its streams would get longer and longer
                for pair, kinds in PAIRS.items():
                    seconds[pair, way].append(seconds_of(tide, stub, numbers, kinds))
        replace(tide, kept)
    return {f"{pair}_us_{way}": statistics.median(each) * 1e6 for (pair, way), each in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="interleaved rounds (default 200)")
    parser.add_argument("--device", choices=["cpu", "fake"], default="cpu", help="whose memory it is")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder, on(arguments.device, folder):
        figures = measured(folder, arguments.rounds, torch.cuda.synchronize if arguments.device == "fake" else bool)
    if arguments.output == "json":
        print(json.dumps(figures))
    else:
        for pair in PAIRS:
            past, inside = (figures[f"{pair}_us_{way}"] for way in ("past_python", "in_python"))
            print(f"{pair.replace('_', ' ')}: {past:.2f} us a request past Python, {inside:.2f} us in Python")


if __name__ == "__main__":
    main()
