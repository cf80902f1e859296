"""The backend of a process group at its worst: it keeps raw addresses, and works on them late and out of order."""

import contextlib
import ctypes
import random
import threading
import time

import torch

import tidelog
from tidetest import KIB
from tidetest.bits import assert_same, bits

COUNT, ELEMENTS = 24, 8 * 1024  # of tensors, and in each: 32 KiB
BUDGET = 256 * KIB + 10 * 32 * KIB  # staging, and room for ten of them

_address = torch._C.StorageBase.data_ptr

# Keeps the addresses of an op, and works on them turn by turn: what `Adversary` does in Python, where a sanitizer sees
# it.
HELPER = """
#include <stdlib.h>
#include <string.h>

enum { LOOKS = 8 };
struct job {
    float *written;
    const float *read;
    long count;
    int left;
    float left_there[LOOKS], *mine, *theirs;
};

struct job *launch(float *written, const float *read, long count, int left) {
    struct job *job = calloc(1, sizeof *job);
    job->written = written, job->read = read, job->count = count, job->left = left;
    return job;
}

static float *copy_of(const float *from, long count) {
    float *copy = malloc(count * sizeof *copy);
    for (long at = 0; at < count; at++) /* no memcpy: each access is to be seen */
        copy[at] = from[at];
    return copy;
}

static int end(struct job *job, int outcome) {
    free(job->mine), free(job->theirs), free(job);
    return outcome;
}

/* 0: there is more to do; 1: it is done; -1: the memory was another's, and the job is given up. */
int go_on(struct job *job) {
    if (job->mine == NULL) {
        job->mine = copy_of(job->written, job->count);
        job->theirs = copy_of(job->read, job->count);
    } else {
        int fault = memcmp(job->left_there, job->written, sizeof job->left_there) != 0;
        for (long at = 0; at < job->count; at++)
            fault |= job->theirs[at] != job->read[at];
        if (fault)
            return end(job, -1);
    }
    if (job->left-- > 0) {
        for (int at = 0; at < LOOKS; at++)
            job->written[at] = -1e9f * (job->left + 1);
        memcpy(job->left_there, job->written, sizeof job->left_there);
        return 0;
    }
    for (long at = 0; at < job->count; at++)
        job->written[at] = job->mine[at] + job->theirs[at];
    return end(job, 1);
}
"""


class Adversary:
    """Keeps raw addresses of what ops hand to it, and works on them late, out of order, from another thread, as the
    backend of a process group may: garbage first, then what is right. It compares what it finds at an address with
    what it left there: memory that was freed, moved or copied back meanwhile does not agree."""

    def __init__(self, seed):
        self.faults = []
        self._random = random.Random(seed)
        self._jobs, self._ended = [], False
        self._changed = threading.Condition()
        # Older than the block, so that nothing in it is a dispatched op.
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def launch(self, written, read):
        """`written` += `read`, some time. Returns a Work."""
        done = torch.futures.Future()
        addresses = [_address(each.untyped_storage()) for each in (written, read)]
        with self._changed:
            self._jobs.append((done, self._job(*addresses, self._random.randrange(4))))
            self._changed.notify()
        return torch._C._distributed_c10d._create_work_from_future(done)

    def end(self):
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _run(self):
        while True:
            with self._changed:
                while not self._jobs and not self._ended:
                    self._changed.wait()
                if not self._jobs:
                    return
                done, job = self._random.choice(self._jobs)  # completions come in any order
            if self._go_on(job):
                with self._changed:
                    self._jobs.remove((done, job))
                done.set_result(None)
            time.sleep(self._random.random() * 0.0005)

    def _job(self, written, read, left):
        return {"written": written, "read": read, "left": left, "seen": None}

    def _go_on(self, job):
        """A turn at a job; returns whether it is done."""
        written, read = job["written"], job["read"]
        mine, theirs = ((ctypes.c_float * ELEMENTS).from_address(address) for address in (written, read))
        if job["seen"] is None:
            job["seen"] = list(mine[:8]), list(mine), list(theirs)
        elif list(mine[:8]) != job["seen"][0] or list(theirs[:8]) != job["seen"][2][:8]:
            self.faults.append(f"memory at {written:#x} or {read:#x} was another's")
        if job["left"] > 0:
            for place in range(8):
                mine[place] = -1e9 * job["left"]
            job["left"] -= 1
            job["seen"] = list(mine[:8]), *job["seen"][1:]
            return False
        result = torch.tensor(job["seen"][1]) + torch.tensor(job["seen"][2])
        ctypes.memmove(written, result.numpy().ctypes.data, 4 * ELEMENTS)
        return True


class NativeAdversary(Adversary):
    """Adversary with C that keeps the addresses and touches the memory: `HELPER`, built."""

    def __init__(self, seed, helper):
        self._helper = ctypes.CDLL(str(helper))
        self._helper.launch.restype = ctypes.c_void_p
        self._helper.launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
        self._helper.go_on.argtypes = [ctypes.c_void_p]
        super().__init__(seed)

    def _job(self, written, read, left):
        return self._helper.launch(written, read, ELEMENTS, left)

    def _go_on(self, job):
        outcome = self._helper.go_on(job)
        if outcome < 0:
            self.faults.append("memory was another's")
        return outcome != 0


@contextlib.contextmanager
def as_an_op(opponent):
    """An op `adversary.add(written, input) -> Work`, as c10d's are."""
    library = torch.library.Library("adversary", "DEF")
    work = "__torch__.torch.classes.c10d.Work"
    library.define(f"add(Tensor tensors, Tensor input_tensor) -> {work}")
    library.impl("add", lambda written, read: opponent.launch(written, read).boxed(), "CPU")
    try:
        yield opponent
    finally:
        opponent.end()
        library._destroy()


def play(opponent, pool, mode, number):
    """Plays random ops in the smallest budget, some of them the opponent's, some whose Work is dropped: never a wrong
    byte.
    """
    choose = random.Random(f"{mode} {number}")
    launch = torch.ops.adversary.add
    unbox = torch.distributed.distributed_c10d.Work.unbox
    model = [torch.randn(ELEMENTS) for _ in range(COUNT)]
    expected = [each.numpy().copy() for each in model]
    model = None
    with tidelog.offload(pool=pool, memory=BUDGET, staging=256 * KIB, mode=mode) as tide:
        tensors = [torch.from_numpy(each).clone() for each in expected]
        in_use = {}  # number of a tensor -> the Work that uses it; two may read one

        def finish(place):
            if (pair := in_use.get(place)) is None:
                return
            work, places, is_dropped = pair
            while is_dropped and not work.is_completed():
                time.sleep(0.0002)
            work.wait()
            for each in places:
                in_use.pop(each, None)

        for _ in range(number):
            one, other = choose.sample(range(COUNT), 2)
            finish(one)
            finish(other)
            if choose.random() < 0.6 and len(in_use) < 8:
                work = unbox(launch(tensors[one], tensors[other]))
                expected[one] += expected[other]
                in_use[one] = in_use[other] = (work, (one, other), choose.random() < 0.3)
            else:
                tensors[one].mul_(0.5)
                expected[one] *= 0.5
                assert_same(bits(torch.from_numpy(expected[other])), bits(tensors[other]), f"tensor {other}")
        for place in range(COUNT):
            finish(place)
            assert_same(bits(torch.from_numpy(expected[place])), bits(tensors[place]), f"tensor {place}")
        assert tide.stats()["totals"]["evictions"] > number // 10
        assert tide.peak_bytes <= tide.budget
    assert not opponent.faults, opponent.faults[:3]
