"""Types of the module in C++. Its headers say what each does: `ledger.h`, `records.h`, `step.h`, `streams.h`,
`memory.h` and `module.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import torch

Storage: TypeAlias = torch.UntypedStorage
Holder: TypeAlias = torch.Tensor | Storage  # of a tensor its storage is meant


class Record(Protocol):
    """Record of one storage. It is one object as long as Python has it."""

    ledger: Any  # that it stands in; None: in none
    id: int  # the session's number for it, given when it is first asked for
    state: int  # `_record.SETTLED` or one of those below it
    is_out: bool  # whether nothing of it is in memory
    size: int
    present: int  # bytes of it that are in memory while it is OUT, in part
    reported: bool  # whether the session has heard of it
    in_flight: bool  # whether a device or a copy may touch its memory
    pins: int  # aliases that we cannot see; above zero the memory stays where it is
    addresses_end: int  # scopes after which nobody uses an address that they asked for
    async_uses: int  # ops that have returned and use it still
    loans: int  # ops of other threads that are using it right now
    is_guarded: bool  # when it is out; a bucket of DDP against writes alone
    moves: bool  # not where the program has memory of its own
    is_beside: bool  # host memory in which updates run beside the device: no block's
    writes: int  # how often it may have been written, where the ledger counts that
    aliases: int  # arrays of NumPy's and slices that have its memory
    has_address: bool  # somebody may use the address of its memory
    is_alone: bool  # where torch says that it cannot be resized: no array of NumPy's that is not known has it
    is_slice: bool  # its memory is a part of another storage's
    name: str | None
    parted: Any  # its memory, of which parts move (`MemoryInParts`); None: it moves whole

    def __call__(self) -> Any: ...  # the storage; None: it has died
    def alias_begins(self) -> None: ...  # an array of NumPy's or a slice: it has the memory until the opposite
    def alias_ends(self) -> None: ...
    def borrow(self, more: int) -> None: ...  # counts a thread in (1) or out (-1)
    def describe(self) -> str: ...
    def guard_text(self) -> str: ...
    def guard(self) -> str: ...  # empty: against writes alone


class Ledger(Protocol):
    """Every storage that a block has met, and what the session has yet to learn of them."""

    limit: int  # of `live`
    live: int  # bytes of the storages that are in memory
    counted: int  # the same, with those that have died unseen
    departing: int  # bytes that have been given up and are read still
    peak: int  # the highest `live` at an op boundary
    marked: int  # storages that are not plainly resident
    quiet: bool  # ops need not be looked at
    access: Any  # `Access` of the block
    outside: str  # where storages are that are out, in words
    process: int
    expects_buckets: bool
    buckets_stay: bool
    newborn_is_guarded: bool
    newborn_moves: bool
    backward_moves: bool
    random_state_bytes: int
    asks_device: bool
    is_in_child: bool
    is_paused: bool
    maps_memory: bool
    divides_from: int  # bytes from which parts of an arena's blocks move; 0: none do
    counts_writes: bool  # whether records say how often they were written

    def connect(self, access: object, when_full: Callable[[], None]) -> None: ...

    # -- births and deaths

    def record_of(self, holder: Holder) -> Record | None: ...  # None: it is not ours to move
    def record_of_written(self, holder: Holder) -> Record | None: ...
    def number_of(self, record: Record) -> int: ...
    def number_from(self, first: int) -> None: ...
    def reuse_numbers(self) -> None: ...
    def record_at(self, number: int) -> Record | None: ...
    def name_of(self, number: int) -> str | None: ...
    def all(self) -> list[Record]: ...
    def unmovable(self) -> list[str]: ...
    def discard(self, storage: Storage) -> None: ...
    def forget(self, record: Record) -> None: ...
    def pause(self, on: bool) -> None: ...  # whoever touches what is out learns that it is so

    # -- where storages are, and which of them stay there

    def owns(self, holder: Holder) -> bool: ...
    def mark(self, record: Record, state: int) -> None: ...
    def has_present(self, record: Record, size: int) -> None: ...
    def modifies(self, record: Record) -> None: ...
    def modified(self, record: Record) -> None: ...
    def measure_again(self, holder: Holder) -> None: ...
    def has_away(self) -> bool: ...
    def movable(self, storage: Storage) -> bool: ...
    def maps(self, record: Record) -> None: ...  # a slice of a file has come
    def look_again(self) -> None: ...  # whether others still have memory that keeps storages where they are
    def pin(self, record: Record) -> None: ...
    def unpin(self, record: Record) -> None: ...
    def async_use(self, record: Record, begins: bool) -> None: ...
    def begins(self, record: Record) -> None: ...
    def ends(self, record: Record) -> None: ...

    # -- in what order ops and moves use memory

    def launches(self, needs: int) -> None: ...  # it makes at most so many bytes
    def share(self, storage: Storage) -> None: ...
    def awaited_here(self, record: Record) -> None: ...  # the current stream waits for an op that uses it elsewhere
    def order(self, record: Record) -> None: ...

    # -- memory that goes and comes

    def take(self, record: Record) -> None: ...
    def make_room(self, needs: int) -> None: ...
    def let_go(self) -> None: ...
    def let_go_at_once(self) -> None: ...

    # -- how much is in memory, and what the session hears

    def restart_peak(self) -> None: ...
    def is_at_rest(self) -> bool: ...
    def begin_quiet(self) -> None: ...  # ops need not be looked at from here on
    def end_quiet(self) -> None: ...
    def flush(self) -> None: ...


class Step(Protocol):
    """Place of the program in a step, and what ops were profiled or planned."""

    next_op: int  # outside a step below zero; inside, the index of the next op
    follows: bool  # whether the step is as planned so far
    profiles: bool  # whether a plan is wanted, and there is none yet
    has_plan: bool  # whether steps follow one
    has_profile: bool  # whether ops of a step were profiled

    def plan(self, due: bytes) -> int: ...
    def forget_plan(self) -> None: ...
    def forget_profile(self) -> None: ...
    def leave(self) -> None: ...
    def end_op(self) -> None: ...
    def touch(self, uses: dict[int, int]) -> None: ...  # storage number -> 0 or MODIFIES
    def end_touch(self) -> None: ...
    def running_uses(self) -> dict[int, int]: ...


class Event(Protocol):
    """A point in what a device does."""

    handle: int  # by which others know it

    def query(self) -> bool: ...  # whether it has happened
    def synchronize(self) -> None: ...


class Streams(Protocol):
    """Streams of a device. The host has none, and they do nothing there."""

    is_blind: bool  # ops were launched that nobody looked at: on which streams is not known
    copies: int  # fetches that have ended whose bytes may be on their way

    def __len__(self) -> int: ...  # those that ops were launched on
    def after(self) -> Event | None: ...  # behind everything that was launched; None: it is all done
    def await_copies(self) -> None: ...
    def forget_copies(self) -> None: ...
    def current(self) -> int: ...  # the number of the current stream
    def call_on(self, stream: int, function: Callable[[], object]) -> None: ...  # while that is the current one
    def await_others(self) -> None: ...  # what is launched next waits for all that was launched on other streams
    def durations(self) -> Sequence[int]: ...
    def clock_begins(self) -> None: ...  # times the step that begins now, until `clock_ends`, by the device's clock
    def clock_ends(self) -> None: ...
    def clock_spans(self) -> bytes: ...  # of the last step that was timed, as the C ABI has them; empty: of none


class Module(Protocol):
    """The module itself."""

    Inside: Callable[[], AbstractContextManager[None]]  # ops of this thread are not the block's meanwhile
    Unseen: Callable[[], AbstractContextManager[None]]  # ops of this thread come to nobody meanwhile
    BetweenOps: Callable[[], AbstractContextManager[None]]  # they are seen, also inside an op
    Seen: Callable[[], AbstractContextManager[None]]  # the same in another thread, too

    def ledger(self, device: object, streams: Streams, place: torch.device, limit: int, outside: str) -> Ledger: ...
    def step(self, ledger: Ledger) -> Step: ...
    def streams(self, device: torch.device | None) -> Streams: ...

    # -- a block and its ops

    def open(
        self,
        step: Step,
        services: tuple[Any, ...],
        updates: dict[int, Any],
        attention: memoryview,
        held: list[int],
        waiting: list[object],
    ) -> None: ...
    def close(self) -> None: ...
    def suspend(self, on: bool) -> None: ...  # from here on ops are nobody's, until the opposite
    def connect(
        self,
        session: object,
        ledger: Ledger,
        requests: object,
        parts: object,
        allocated: Callable[[int], None],
        wait_ms: Callable[[], int],
        async_uses: tuple[Any, ...],
    ) -> object: ...  # callbacks are called as long as it lives
    def launch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def observe(
        self, function: Callable[..., None] | None
    ) -> None: ...  # called with each op that is looked at in full
    def passed(self) -> int: ...  # how many ops needed nothing of Python's so far
    def performed(self) -> int: ...  # how many requests were not done in Python so far
    def meet_new_ops(self) -> None: ...

    # -- where threads are

    def is_busy(self) -> bool: ...  # in the middle of something that runs as a whole (`_whole`)
    def is_under_way(self) -> bool: ...  # the same, or an op is under way
    def is_under_way_here(self) -> bool: ...  # the same of this thread alone
    def is_inside(self) -> bool: ...  # this thread is inside an op
    def finalizers_begin(self) -> bool: ...  # in this thread; whether inside an op, which `finalizers_end` follows then
    def finalizers_end(self) -> None: ...
    def works(self, does: bool) -> None: ...  # whether this thread works for the block, whatever torch says
    def works_here(self) -> bool: ...

    # -- what is known of storages

    def storages_have(self, update: Callable[[Any], Any]) -> None: ...
    def record_in(self, holder: Holder) -> Record | None: ...  # None: no block counts it
    def record_for(self, storage: Storage) -> Record: ...  # made, in no ledger, where there is none
    def whole_of(self, storage: Storage) -> Storage | None: ...  # that it is a slice of
    def references_to_object(self, tensor: torch.Tensor) -> int: ...  # that C++ has of the tensor's object in Python
    def learn_arrays(self, array: object, tensor: torch.Tensor) -> None: ...  # that torch has made of it
    def maps_file(self, storage: Storage) -> bool: ...  # of which only this process sees changes
    def forget_alone(self) -> None: ...  # a block begins: arrays may have been made since the last one
    def may_be_own(self, holder: Holder) -> bool: ...  # not resizable, but of memory that could be nobody else's
    def is_own(self, storage: Storage) -> bool: ...  # its memory is nobody else's, and may go
    def update_on(self, holder: Holder) -> Any: ...  # that hangs on it, and has not run; None: none does

    # -- how they lose memory and get it. Each is one call of C: Python delivers Ctrl-C only between bytecodes, and a
    # -- storage that had lost its memory and was not guarded yet would be a segmentation fault.

    def take(self, storage: Storage, message: str | None) -> None: ...
    def empty(self, storage: Storage, message: str | None) -> None: ...
    def give(self, storage: Storage, size: int, message: str | None) -> int: ...  # or torch.OutOfMemoryError
    def swap(self, storage: Storage, other: Storage, message: str | None, noting: Callable[[], object]) -> None: ...
    def discard(self, storage: Storage) -> None: ...
    def guard(self, storage: Storage, message: str | None) -> None: ...
    def open_to_reads(self, storage: Storage) -> None: ...
    def without_memory(self, like: Storage, size: int) -> Storage: ...
    def use_allocator(self, allocate: int, free: int) -> bool: ...
    def open_arena(
        self, arena: int, least: int, functions: tuple[int, ...], place: torch.device, streams_of: torch.device
    ) -> None: ...  # large blocks of torch's come from an arena of the library's, by its functions' addresses
    def close_arena(self) -> None: ...
    def pause_arena(self, on: bool) -> None: ...  # nothing comes from it, where there is one, until the opposite
    def is_in_arena(self, storage: object) -> bool: ...  # whether its memory is a block of an arena's
    def free_part_of_arena(self, address: int, begin: int, length: int, event: Event | None) -> None: ...  # behind it
    def allocate_part_of_arena(self, address: int, begin: int, length: int) -> Event | None: ...  # behind which it is
    def arena_functions(self) -> tuple[int, int, int]: ...  # addresses, for torch's allocator of CUDA
    def arena_is_before(self, ended: int) -> None: ...  # the deleter of the allocator beneath
