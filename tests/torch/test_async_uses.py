"""Ops that go on after they have returned: what they use stays where it is until their Work is complete."""

import os
import subprocess
import sys

import pytest
import torch

import tidelog
from tidetest import KIB, adversary, device, native, process
from tidetest.adversary import BUDGET, COUNT, ELEMENTS

pytestmark = [
    pytest.mark.host_memory(device.RANKS),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]


@pytest.fixture
def opponent(request):
    """One in Python, with its op."""
    with adversary.as_an_op(adversary.Adversary(request.node.name)) as opponent:
        yield opponent


@pytest.mark.parametrize("number", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_raw_addresses_stay_good(pool, mode, opponent, number):
    adversary.play(opponent, pool, mode, number)


def test_an_op_waits_for_room_that_a_collective_holds(pool, mode, opponent):
    with tidelog.offload(pool=pool, memory=BUDGET, staging=256 * KIB, mode=mode) as tide:
        tensors = [torch.zeros(ELEMENTS) for _ in range(COUNT)]
        for place in range(0, 8, 2):
            torch.ops.adversary.add(tensors[place], tensors[place + 1])  # each Work is dropped
        assert sum(torch.stack(tensors[8:12]).sum(0)) == 0  # 8 tensors, where 8 of the 10 that fit are in use
        assert tide.peak_bytes <= tide.budget


def test_one_that_may_wait_for_its_peer_is_not_waited_for(pool, mode):
    """Checks a use whose other side may wait for what this rank would do next: waiting could take for ever."""
    future = torch.futures.Future()
    library = torch.library.Library("adversary", "DEF")
    library.define("send(Tensor tensors) -> __torch__.torch.classes.c10d.Work")
    create = torch._C._distributed_c10d._create_work_from_future
    library.impl("send", lambda tensor: create(future).boxed(), "CPU")
    try:
        with tidelog.offload(pool=pool, memory=BUDGET, staging=256 * KIB, mode=mode) as tide:
            tensors = [torch.zeros(ELEMENTS) for _ in range(COUNT)]
            for tensor in tensors[:8]:
                torch.ops.adversary.send(tensor)
            with pytest.raises(tidelog.BudgetError, match="in use by communication that may wait"):
                torch.stack(tensors[8:12])
            assert tensors[9].sum() == 0
            with pytest.raises(tidelog.Error, match="not complete"):
                tide.evict(tensors[0])
            future.set_result(None)
            assert torch.stack(tensors[8:12]).sum() == 0
    finally:
        library._destroy()


SANITIZED = """
import sys
from tidetest import adversary
helper, pool, mode, number, planted = sys.argv[1:]
if planted == "planted":
    from tidelog.storages._async_uses import AsyncUses
    AsyncUses.began = lambda *_: None
with adversary.as_an_op(adversary.NativeAdversary(1, helper)) as opponent:
    adversary.play(opponent, pool, mode, int(number))
print("done")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", ["", "planted"])
def test_no_freed_memory_is_touched(pool, mode, tmp_path, planted):
    """C keeps the addresses, under AddressSanitizer, which sees torch's allocations and what becomes of them. Where
    Tidelog forgets its word on purpose, that must show."""
    helper = native.build(tmp_path, "helper", adversary.HELPER, "-fsanitize=address", "-fno-omit-frame-pointer")
    # The runtime of C++ before torch's: the sanitizer looks for what throws when it is loaded.
    runtimes = [
        subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    if not all(map(os.path.isabs, runtimes)):
        pytest.skip("the compiler has no shared runtime of AddressSanitizer (libasan.so, libstdc++.so)")
    variables = process.environment(
        LD_PRELOAD=" ".join(runtimes),
        # Python leaks on purpose, and torch's libraries are not instrumented.
        ASAN_OPTIONS="detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0",
    )
    command = [sys.executable, "-c", SANITIZED, helper, pool, mode, "1000", planted]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=500)
    if planted:
        assert ended.returncode != 0 and "heap-use-after-free" in ended.stderr, ended
    else:
        assert ended.returncode == 0 and "done" in ended.stdout and "AddressSanitizer" not in ended.stderr, ended
