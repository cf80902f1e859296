"""The figures that Tidelog gives as dictionaries: their keys, types and units.

Sizes are bytes; `_ns` is nanoseconds; None stands for what is not known here.
"""

from __future__ import annotations

import os
from typing import Literal, TypeAlias, TypedDict

StrPath: TypeAlias = str | os.PathLike[str]
Phase: TypeAlias = Literal["profiling", "planned", "reactive"]
# What options of `offload` may be.
RecomputeName: TypeAlias = Literal["own", "best"]
AllocatorName: TypeAlias = Literal["torch", "arena"]
PartsName: TypeAlias = Literal["whole", "best"]
WhatName: TypeAlias = Literal["all", "activations"]
UpdatesName: TypeAlias = Literal["own", "lazy", "early", "host"]
Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]


class Totals(TypedDict):
    """Counters since a block began, or over one step."""

    bytes_written: int  # to the pool
    bytes_read: int
    bytes_to_host: int  # to page-locked host memory, of a GPU's tensors
    bytes_from_host: int
    evictions: int
    fetches: int
    clean_drops: int  # evictions that wrote nothing: the copy in the pool was proven to be the same
    stalls: int
    stall_ns: int  # ops waited so long
    evictions_of_parts: int  # of the evictions and fetches, those of parts of tensors
    fetches_of_parts: int
    bytes_of_parts: int  # that these moved
    handling_ns: int  # what Python took to free, to allocate, to hand transfers over


class SecondsOfAStep(TypedDict, total=False):
    """Seconds of the last step."""

    seconds: float  # absent before the first step


class StepFigures(Totals, SecondsOfAStep):
    """Figures of `Tide.last_step`."""

    stall_seconds: float


class Simulated(TypedDict, total=False):
    """Simulated step in the library's words: `why_not` alone, or all the others."""

    why_not: str
    time_ns: int
    stall_ns: int
    stalls: int
    bytes_written: int
    bytes_read: int


class SimulatedStep(TypedDict):
    """Simulated step of `Tide.simulate_step`."""

    time_ns: int
    stall_ns: int
    stalls: int
    bytes_written: int
    bytes_read: int
    seconds: float
    stall_seconds: float


# The key is a keyword of Python.
Rate = TypedDict("Rate", {"bytes_per_second": int, "from": Literal["measured", "links", "assumed"]})


class Rates(TypedDict):
    """Rates of both directions of a link."""

    read: Rate
    write: Rate


class MachineFigures(TypedDict):
    """Rates that a plan made now takes for transfers."""

    ssd: Rates
    host: Rates | None
    links: list[str]


class PartsFigures(TypedDict):
    """Tensors that are in parts now."""

    storages: int
    parts: int


class PlanFigures(TypedDict):
    """The plan that steps follow."""

    policy: str
    ops: int
    storages: int
    storages_in_parts: int  # of which parts move
    parts_of_storages: int
    migrations: int
    cleanings: int  # of these, copies of tensors that stay, to leave later without a write
    compute_ns: int
    simulated_ns: int | None
    read_bytes_per_second: int
    write_bytes_per_second: int
    host_read_bytes_per_second: int | None  # from host memory to a GPU, where there is any for copies
    host_write_bytes_per_second: int | None
    handling_ns: int
    replans: int  # plans made anew, since rates or ops had changed
    improvements: int  # better plans for the same, found by the search that goes on


class WriteBudgetFigures(TypedDict):
    """The write budget of this process, since it holds."""

    bytes_per_day: int  # that may be written
    bytes_written: int  # to the devices: with padding, metadata, checkpoints and what reclamation copies
    written_per_day: int  # at the pace so far
    pauses: int  # steps that a pause has followed
    pause_ns: int  # all pauses together


class HostMemory(TypedDict):
    """Page-locked memory that takes a GPU's tensors before the pool does."""

    capacity: int
    used: int
    peak: int
    bytes_out: int
    bytes_back: int


class GpuMemory(TypedDict):
    """GPU memory that torch's allocator holds, and for whom."""

    reserved: int  # all of it; the libraries of CUDA have more, past torch
    kept: int  # free, for later
    tensors: int  # the block's tensors, which the budget bounds
    not_ours: int  # workspaces, temporaries of ops, and what C++ alone holds
    trims: int  # how often the block had what is free go back to the driver
    device_allocations: int  # calls of the driver, since the process began
    device_frees: int
    out_of_memory: int
    arena: ArenaFigures | None  # with allocator="arena", beside all of the above


class ArenaFigures(TypedDict, total=False):
    """GPU memory that comes from an arena of ours, in bytes; counts are since the block began."""

    capacity: int  # that it may have
    reserved: int  # that it has of the driver's
    allocated: int  # of that, what tensors have, in whole granules
    requested: int  # and without that rounding
    allocations: int
    declined: int  # allocations that torch's own allocator served, as the arena had no room
    made: int  # that came from the driver
    remapped: int  # that was free in pieces, and was mapped at another address to be in one
    stream_waits: int  # for what used memory before
    host_waits: int  # for the same, as memory was about to be mapped elsewhere
    error: str | None  # of the driver, after which torch's own allocator served all


class HostHeap(TypedDict):
    """Host memory that the process holds, tensors and all else."""

    anonymous: int  # resident, and no file's
    anonymous_max: int  # freed memory leaves where it is more: before the block, the budget, the allowance
    allowance: int
    kept: int  # freed memory of tensors, for the next ones; 0 where torch's allocator stays as it is
    trims: int  # how often the C library had to give all that is free back


class PauseFigures(TypedDict):
    """Pauses of the block. None of it counts to a step."""

    count: int  # pauses that have begun
    is_paused: bool
    bytes_out: int  # memory that was given up for them
    bytes_back: int  # that was there again when they ended
    leaving_ns: int  # how long it took until all was out
    paused_ns: int  # how long it was
    returning_ns: int  # how long it took until what was to come back was there


class _OnHost(TypedDict, total=False):
    host_bytes: int  # of host memory that parameters, their gradients and state have, with updates="host"


class UpdateFigures(_OnHost):
    """Updates of parameters that run at other times than their optimizer's step."""

    pending: int  # which have not run, though the optimizer has stepped, or have, though it has not
    late: int  # that have run after the step
    early: int  # that have run before it


class RegionChoice(TypedDict, total=False):
    """Choice of regions in the library's words: `why_not` alone, or all the others but perhaps the times."""

    why_not: str
    once: list[int]  # regions that are better run once, by their places
    refused: list[tuple[int, str]]  # those that cannot be, each with why
    tried: int  # choices that were looked at
    without_room: int  # of them, those that the pool has no room for
    best: list[int]  # what runs once in the best choice, however little it brings
    own_ns: int | None  # a step with all regions run twice, as the planner expects it
    none_ns: int | None  # and with none of them
    best_ns: int  # and with the best choice


class RecomputeFigures(TypedDict):
    """Figures of regions under torch.utils.checkpoint, or of named blocks, in a step as the last one."""

    kept: int  # that run once
    again: int  # that run again in the backward pass
    settled: bool  # whether that stays so
    why: str  # what led to that, or what is waited for
    refused: list[str]  # regions that have to run as the program has them, each with why
    own_seconds: float | None  # a step as the program has it: the median of those that were compared
    kept_seconds: float | None  # and one with other regions that run once


class StayingFigures(TypedDict):
    """A tensor that cannot move."""

    name: str
    bytes: int
    why: str


class Space(TypedDict):
    """The space of the share."""

    capacity: int
    live: int
    sealed: int  # of it, by checkpoints alone
    dead: int
    free: int
    index: int


class Latency(TypedDict):
    """Latency of operations of one kind on a device."""

    usual_ns: int  # over the last thousand or so
    recent_ns: int  # over the last few


class Latencies(TypedDict):
    """Latencies of each kind; None before the first."""

    read: Latency | None
    write: Latency | None
    flush: Latency | None


class DeviceFigures(TypedDict):
    """Figures of one device: the bytes to it and from it, padding included."""

    path: str
    reads: int
    writes: int
    flushes: int
    bytes_read: int
    bytes_written: int
    errors: int
    checksum_retries: int  # reads whose checksum did not match the first time
    checksum_failures: int  # nor the second
    in_flight: int
    latency: Latencies
    slow: str | None  # how far it is off its own history, if it is


class LaneFigures(TypedDict):
    """One append stream of the log."""

    durability: Literal["scratch", "durable"]
    lifetime: Literal["transient", "step", "persistent"]
    placement_handle: int | None
    bytes_written: int


class Fdp(TypedDict):
    """Counters of a device with Flexible Data Placement."""

    host_bytes_written: int
    media_bytes_written: int
    media_bytes_erased: int


class Wear(TypedDict, total=False):
    """Wear of a device over its life: `why_not` alone where it does not say."""

    why_not: str
    bytes_written: int
    percent_used: int | None
    percent_spare: int | None
    media_errors: int | None
    power_on_hours: int | None
    days_left: int | None  # of its rated life, at the pace of all its life; None where it is too early to say
    critical: bool | None  # True if the device asks for attention
    fdp: Fdp | None


class BadBytes(TypedDict):
    """Bytes of a tensor that are lost."""

    device: str
    offset: int  # in the device
    length: int
    tensor_offset: int
    error: str


class DamagedTensor(TypedDict):
    """A tensor that has lost bytes."""

    name: str | None
    length: int
    bad: list[BadBytes]


class Scrubbed(TypedDict):
    """Results of scrubs of a pool since it was opened."""

    tensors: int
    bytes: int
    damaged: list[DamagedTensor]


class Rebuild(TypedDict):
    """Progress of a device that takes the place of a lost one while the pool is open."""

    place: int  # in the pool
    bytes_done: int
    bytes_total: int
    whole: bool  # all is there, and it is read from the next opening on
    error: str | None  # why it does not go on


class Dispatch(TypedDict):
    """Dispatch of ops to a block, and of its session's requests."""

    ops_past_python: int  # that needed nothing of Python's
    requests_past_python: int  # to give memory and to take it, that were done in C++


class StepTime(TypedDict):
    """Time of a step by its causes, which docs/plan.md has."""

    step: int  # its number
    clock: str  # that computes: "gpu", or "thread" where tensors are the host's
    time_ns: int
    causes_ns: dict[str, int]  # of that clock: the sum is `time_ns`
    thread_waited_ns: int  # that the program's thread waited for transfers, whether a GPU computed or not


class Stats(TypedDict):
    """Figures of `Tide.stats`. What the pool says is None where it does not answer."""

    data_path: str | None
    why_not: list[str] | None  # why each better data path does not run
    staging_backing: str | None
    unregistered: str | None  # why staging buffers are not registered with the kernel, where the path registers them
    gpu: str | None
    pool: Space | None
    devices: list[DeviceFigures] | None
    lanes: list[LaneFigures] | None
    endurance: list[Wear] | None
    scrubbed: Scrubbed | None
    rebuild: Rebuild | None  # where a device is made again
    host_memory: HostMemory | None
    gpu_memory: GpuMemory | None  # where the budget is of a GPU's memory
    host_heap: HostHeap | None  # where it is of the host's
    made: str | None  # the pool that was made for this block
    dispatch: Dispatch
    totals: Totals
    last_step: Totals
    step_time: StepTime | None  # of the last complete step; with a GPU of the last that was timed
    bytes_written: dict[str, int]  # by what tensors are for
    bytes_read: dict[str, int]
    evictions: int
    fetches: int
    clean_drops: int
    cleanings: int  # copies that a plan had made of tensors that stayed
    stalls: int
    stall_ns: int
    pauses: PauseFigures
    resident_bytes: int
    machine: MachineFigures
    updates: UpdateFigures | None  # with updates="lazy", "early" or "host"
    recompute: RecomputeFigures | None  # with recompute="best"
    parts: PartsFigures | None  # with parts="best", where it can be
    planning: bool  # whether a plan is being made
    improving: bool  # whether a better plan is looked for, and likely to be found
    held_back: list[str]  # the last steps that were recorded and gave no plan yet, each with why
    plan: PlanFigures | None
    write_budget: WriteBudgetFigures | None  # with write_budget=
    notices: list[str]  # for people
    unmovable: list[str]  # tensors whose memory is not torch's own
