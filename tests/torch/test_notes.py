"""Tests of notes of a storage, which change nothing for those that read its memory meanwhile, without Python's lock: a
worker of gloo's is at work already when the block first hears of what a collective uses.
"""

import pytest

from tidetest import process
from tidetest.native import build

pytestmark = pytest.mark.host_memory("what gloo reads is the host's")

# A thread reads an address all the time, and counts how often there is none.
SOURCE = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

static void *volatile *_Atomic place, *volatile *_Atomic seen;
static long missing;

static void *look(void *unused) {
    for (;;) {
        void *volatile *now = place;
        seen = now;
        for (int turn = 0; now && turn < 100; ++turn) missing += *now == NULL;
    }
    return unused;
}

void begin(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, look, NULL);
}

// Looks at another place from here on; returns how often nothing stood at those before.
long watch(void *volatile *next) {
    place = next;
    while (seen != next) continue;
    return missing;
}
"""

SCRIPT = """
import ctypes
import torch.distributed as dist

library = ctypes.PyDLL(sys.argv[1])
library.watch.argtypes, library.watch.restype = [ctypes.c_void_p], ctypes.c_long
library.begin()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meeting", rank=0, world_size=1)

def place_of_address(storage):
    for place in range(storage._cdata, storage._cdata + 256, 8):
        if ctypes.c_void_p.from_address(place).value == storage.data_ptr():
            return place
    raise AssertionError("a storage has no address of its memory")

offset = place_of_address((example := torch.ones(1).untyped_storage())) - example._cdata
with tidelog.offload(pool=sys.argv[2], pool_size=64 * MIB, memory=1024 * MIB, staging=256 * KIB) as tide:
    unseen = noted = 0
    while noted < 500 and unseen < 30000:
        size = torch.LongTensor([1])  # made where no block sees it, as torch.distributed makes sizes of objects
        storage = size.untyped_storage()
        unseen += storage._tide is None
        library.watch(storage._cdata + offset)
        dist.all_gather([torch.zeros(1, dtype=torch.long)], size)
        noted += storage._tide is not None  # where gloo was not done at once
        missing = library.watch(None)
    assert noted > 0, unseen
    assert missing == 0, f"{missing} looks found no memory"
print("done")
"""


def test_a_storage_has_its_memory_while_the_block_notes_it(tmp_path):
    process.assert_done(process.run(SCRIPT, build(tmp_path, "look", SOURCE), tmp_path))
