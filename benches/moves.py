"""Measures the requests of a session: to evict and release a storage, to allocate it and settle it.

    python benches/moves.py [--rounds 200] [--device fake] [--output json]

Nothing is copied: a stub stands in the library's place and calls back. With `--device fake` the memory is a GPU's: the
tests' fake CUDA, whose streams and events are real calls of a library in C.
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
from tidetest import native

STORAGES, BYTES = 64, 64 << 10
PAIRS = ("evict_and_release", "allocate_and_settle")

STUB = """
#include <tidelog.h>
static tide_session_callbacks callbacks;
static tide_bytes bytes;
int32_t set_callbacks(uint64_t session, const tide_session_callbacks *given) {
    callbacks = *given;
    return TIDE_READY;
}
static tide_bytes *of(uint32_t storage, uint64_t length) {
    bytes.storage = storage;
    bytes.length = length;
    return &bytes;
}
int evict_and_release(uint32_t first, uint32_t count, uint64_t length) {
    int done = 0;
    for (uint32_t storage = first; storage < first + count; storage++) {
        tide_memory memory = {0};
        done += callbacks.evict(callbacks.context, of(storage, length), &memory) == 0 && memory.address != 0;
        done += callbacks.release(callbacks.context, of(storage, length)) == 0;
    }
    return done;
}
int allocate_and_settle(uint32_t first, uint32_t count, uint64_t length) {
    int done = 0;
    for (uint32_t storage = first; storage < first + count; storage++) {
        tide_memory memory = {0};
        done += callbacks.allocate(callbacks.context, of(storage, length), &memory) == 0 && memory.address != 0;
        done += callbacks.settle(callbacks.context, of(storage, length), TIDE_PARTS_RESIDENT) == 0;
    }
    return done;
}
"""


def stub_in(folder):
    include = f"-I{ROOT / 'torch-bridge' / 'include'}"
    library = ctypes.PyDLL(str(native.build(folder, "stub", STUB, include)))  # callbacks need Python's lock
    for pair in PAIRS:
        getattr(library, pair).argtypes = [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64]
    return library


def seconds_of(ask, first):
    """Returns the seconds of each request, while all storages are asked for in turn."""
    started = time.perf_counter()
    done = ask(first, STORAGES, BYTES)
    elapsed = time.perf_counter() - started
    assert done == 2 * STORAGES
    return elapsed / done


def measured(folder, rounds, await_device):
    seconds = {pair: [] for pair in PAIRS}
    options = {"memory": "1GiB", "pool_size": "64MiB", "staging": "1MiB", "mode": "reactive"}
    with tidelog.offload(pool=folder, **options) as tide:
        tensors = [torch.zeros(BYTES // 4) for _ in range(STORAGES)]
        first, *others = [tide.ledger.number_of(tide.ledger.record_of(each.untyped_storage())) for each in tensors]
        assert others == [*range(first + 1, first + STORAGES)]
        tide.ledger.flush()
        stub = stub_in(folder)
        library = tide.session._library
        kept, library.tide_session_set_callbacks = library.tide_session_set_callbacks, stub.set_callbacks
        tide.performer.connect()
        for _ in range(rounds):
            await_device()  # else its streams would get longer and longer
            for pair in PAIRS:
                seconds[pair].append(seconds_of(getattr(stub, pair), first))
        library.tide_session_set_callbacks = kept
        tide.performer.connect()
    return {f"{pair}_us": statistics.median(each) * 1e6 for pair, each in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="rounds (default 200)")
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
            print(f"{pair.replace('_', ' ')}: {figures[f'{pair}_us']:.2f} us a request")


if __name__ == "__main__":
    main()
