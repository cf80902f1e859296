"""What a user says of a block: `offload`, its options, and what is said where one makes no sense."""

import ctypes
import os
import re

from tidelog import _device, _errors, _movers, _native
from tidelog._block import Tide

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

# Their numbers in the C ABI.
_POLICIES = {"auto": 0, "algorithm1": 1, "tidelog": 2}


def offload(
    model=None,
    optimizer=None,
    *,
    pool,
    memory,
    host_memory=None,
    device="auto",
    mode="auto",
    policy="auto",
    mover="auto",
    pool_size=None,
    staging=None,
    data_path="auto",
    buffered=False,
    must_exist=False,
    report=None,
):
    """Runs the block with at most `memory` bytes of tensors in memory; the rest lies on `pool`.

    model, optimizer  whose tensors get names in errors and reports. Every tensor of the process
                      counts against the budget and may move, named or not.
    pool              devices separated by commas: directories (Tidelog makes its file there), files or raw
                      block devices. Striped over all of them. No redundancy: one lost device loses the pool.
    memory            the budget: bytes, or text such as "20GiB". Includes `staging`, unless it is a GPU's memory and the
                      data path neither "gds" nor "spdk", which have as much of it on the GPU.
    host_memory       for a GPU: page-locked host memory, at most, that takes tensors before `pool` does. Bytes, or text such
                      as "8GiB"; default: none. All of it is allocated when the block begins, and freed when it ends; where
                      tensors stay out, when all are restored, or are gone and the next block begins. What does not fit
                      goes to `pool`. The GPU takes checksums of what leaves, and compares them with what comes back.
    device            whose memory the budget is of: "cpu", "cuda", "cuda:1"; "auto": where the model's parameters are.
                      Tensors elsewhere neither count nor move. Name it where a model is built inside the block.
    mode              "auto" learns a step, then plans its migrations; "reactive" only reacts.
    policy            who plans: "algorithm1" as published, "tidelog" the planner's own; "auto" takes the latter.
    mover             "auto", "resize" or "swap": how a storage loses its memory.
    pool_size         size of the pool where Tidelog makes its files; default: 8 times the tensors alive,
                      at least 1 GiB, at most half of the free space.
    staging           buffers that the devices read and write; default: an eighth of `memory`, 256 KiB to 16 MiB.
    data_path         "auto", "uring", "uring-cmd" or "posix"; for a GPU also "gds" (cuFile, past the host) and "gds-compat"
                      (cuFile, which may go through the host). Which one runs, and why, is in `stats()`.
    buffered          allow a file system without O_DIRECT.
    must_exist        refuse a pool that is not there. Otherwise one is made where none of its devices exists, and the
                      logger "tidelog" says so: a file system that is not mounted leaves an empty directory.
    report            path of an HTML report, written when the block ends.

    Raises PoolError, BudgetError, DeviceError (all tidelog.Error). The block covers the thread that entered it.
    """
    options = Options(
        model,
        pool=pool,
        memory=memory,
        host_memory=host_memory,
        device=device,
        mode=mode,
        policy=policy,
        mover=mover,
        pool_size=pool_size,
        staging=staging,
        data_path=data_path,
        buffered=buffered,
        must_exist=must_exist,
        report=report,
    )
    return Tide(model, optimizer, options)


class Options:
    """What was asked for, checked, in the numbers that a block works with."""

    def __init__(
        self,
        model,
        *,
        pool,
        memory,
        host_memory,
        device,
        mode,
        policy,
        mover,
        pool_size,
        staging,
        data_path,
        buffered,
        must_exist,
        report,
    ):
        self.budget = _bytes_of(memory, "memory")
        self.staging = (
            _bytes_of(staging, "staging")
            if staging is not None
            else max(256 << 10, min(self.budget // 8, 16 << 20))
        )
        if mode not in ("auto", "reactive"):
            raise _errors.Error(f"mode={mode!r}: expected 'auto' or 'reactive'.")
        if policy not in _POLICIES:
            raise _errors.Error(f"policy={policy!r}: expected one of {', '.join(map(repr, _POLICIES))}.")
        self.mode = mode
        self.device = _device.choose(device, model)
        self.mover = _movers.choose(mover, self.device.default_mover)
        # Staging that is in the same memory as tensors.
        self.buffers = self.device.staging_in(self.staging, data_path, pool)
        self.outside = "on NVMe" if host_memory is None else "on NVMe or in host memory"
        self.report = report
        self.native = _native.SessionOptions(
            size=ctypes.sizeof(_native.SessionOptions),
            devices=os.fsencode(pool),
            data_path=data_path.encode(),
            budget=self.budget + self.staging - self.buffers,
            staging=self.staging,
            host_memory=_bytes_of(host_memory, "host_memory") if host_memory is not None else 0,
            pool_size=_bytes_of(pool_size, "pool_size") if pool_size is not None else 0,
            share=0,
            buffered=bool(buffered),
            reactive=mode == "reactive",
            policy=_POLICIES[policy],
            gpu=self.device.option,
            must_exist=bool(must_exist),
        )
        if self.budget <= self.buffers:
            raise _errors.BudgetError(
                f"memory={memory!r} leaves nothing beside the staging buffers of {self.staging} bytes; "
                "give more, or pass a smaller staging=."
            )
        self.limit = self.budget - self.buffers  # of storages in memory


def _bytes_of(value, what):
    """An int, or text such as "20GiB", "512M", "1048576"."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", str(value).lower())
        if not match:
            raise _errors.Error(f'{what}={value!r}: expected a number of bytes such as "20GiB" or 21474836480.')
        size = int(float(match[1]) * _UNITS[match[2]])
    if size <= 0:
        raise _errors.Error(f"{what}={value!r}: must be above zero.")
    return size
