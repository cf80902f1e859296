"""A session over the C ABI of libtidelog (include/tidelog.h): its numbers, its structs, a method for each call.

No module but this, `_seals`, `_kept` and `_library` calls the library. tests/torch/test_abi.py holds what is declared
here to the header, in both directions.
"""

from __future__ import annotations

import array
import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from tidelog import _errors
from tidelog._whole import whole
from tidelog.abi._library import Signatures, Status, declare, last_error, load_library, read_json
from tidelog.output._figures import RegionChoice, Simulated, Stats, StrPath

if TYPE_CHECKING:
    from tidelog._budget_error import BudgetError


class PartsState(IntEnum):
    """tide_settle_callback: where the bytes of a storage are."""

    RESIDENT = 0
    COPIED = 1
    LEAVING = 2
    AWAY = 3


class StepMark(IntEnum):
    """tide_session_step: which end of a step it is."""

    COMPLETE = 0
    BEGIN = 1
    INTERRUPTED = 2


class Kind(IntEnum):
    """tide_session_name: what a storage is for."""

    OTHER = 0
    PARAMETER = 1
    GRADIENT = 2
    OPTIMIZER_STATE = 3
    ACTIVATION = 4
    BUFFER = 5


class Policy(IntEnum):
    """tide_session_options.policy: who plans."""

    AUTO = 0
    ALGORITHM1 = 1
    TIDELOG = 2


# These two are plain integers: they are used for each op, where an enum costs too much.
MODIFIES = 1 << 31  # in a use: the op writes the storage
PART_NUMBERS = 4096  # where plans may move parts, numbers below it are the session's own

_UNLIMITED = (1 << 63) - 1  # bytes

_u8, _u32, _u64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64
_i32, _i64, _size = ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t
_text, _pointer = ctypes.c_char_p, ctypes.c_void_p


class SessionOptions(ctypes.Structure):
    _fields_ = [
        ("size", _u64),
        ("devices", _text),
        ("data_path", _text),
        ("budget", _u64),
        ("staging", _u64),
        ("host_memory", _u64),
        ("pool_size", _u64),
        ("share", _u32),
        ("buffered", _u8),
        ("reactive", _u8),
        ("policy", _u8),
        ("gpu", _u8),
        ("must_exist", _u64),
        ("share_count", _u64),
        ("sparse", _u64),
        ("degraded", _u64),
    ]


# What `Session.attention` shows while the session is not open.
_STEP_SPAN_BYTES = 24  # of `tide_step_span`
_NOTHING_WAITS = memoryview(bytes(4)).cast("I")


class Region(ctypes.Structure):
    _fields_ = [("first_begin", _u32), ("first_end", _u32), ("again_begin", _u32), ("again_end", _u32)]


class SameWrites(ctypes.Structure):
    _fields_ = [("first", _u32), ("later", _u32)]


SIGNATURES: Signatures = {
    "tide_version": (_text, []),
    "tide_last_error": (_size, [_text, _size, ctypes.POINTER(_u32)]),
    "tide_session_open": (_i32, [ctypes.POINTER(SessionOptions), ctypes.POINTER(_u64)]),
    "tide_session_close": (_i32, [_u64]),
    "tide_session_attention": (_pointer, [_u64]),
    "tide_session_set_budget": (_i32, [_u64, _u64]),
    "tide_session_set_write_budget": (_i32, [_u64, _u64]),
    "tide_session_throttle": (_i32, [_u64, _u32]),
    "tide_session_sync": (_i32, [_u64, _pointer, _size, _pointer, _size]),
    "tide_session_name": (_i32, [_u64, _u32, _u32, _text]),
    "tide_session_resized": (_i32, [_u64, _u32, _u64]),
    "tide_session_modified": (_i32, [_u64, _u32]),
    "tide_session_pin": (_i32, [_u64, _u32, _i32]),
    "tide_session_async_use": (_i32, [_u64, _u32, _i32]),
    "tide_session_evict": (_i32, [_u64, _u32]),
    "tide_session_pause": (_i32, [_u64]),
    "tide_session_go_on": (_i32, [_u64, _i32]),
    "tide_session_step": (_i32, [_u64, _i32]),
    "tide_session_op_begin": (_i32, [_u64, _i64, _u64, _text, _pointer, _size, _u64]),
    "tide_session_op_end": (_i32, [_u64]),
    "tide_session_nest": (_i32, [_u64, _u32]),
    "tide_session_settle": (_i32, [_u64]),
    "tide_session_wait": (_i32, [_u64, _u32]),
    "tide_session_set_callbacks": (_i32, [_u64, _pointer]),
    "tide_session_durations": (_i32, [_u64, _pointer, _size]),
    "tide_session_step_spans": (_i32, [_u64, _pointer, _size]),
    "tide_session_leave_plan": (_i32, [_u64]),
    "tide_session_hold_plan": (_i32, [_u64, _i32]),
    "tide_session_use_parts": (_i32, [_u64]),
    "tide_session_divisible": (_i32, [_u64, _u32]),
    "tide_session_plan": (_i32, [_u64, ctypes.POINTER(_pointer), ctypes.POINTER(_u64)]),
    "tide_session_choose_regions": (_i32, [_u64, _pointer, _size]),
    "tide_session_same_writes": (_i32, [_u64, _pointer, _size]),
    "tide_session_chosen_regions": (_size, [_u64, _text, _size]),
    "tide_session_learn_again": (_i32, [_u64]),
    "tide_session_stats": (_size, [_u64, _text, _size]),
    "tide_session_simulate": (_size, [_u64, _text, _size]),
    "tide_session_report": (_i32, [_u64, _text]),
    "tide_session_trace": (_i32, [_u64, _text]),
}


# Those that call back: they return once all that the session asks for is done.
_CALLING_BACK = ("evict", "pause", "go_on", "step", "op_begin", "op_end", "settle", "wait")
CALLING_BACK = tuple(f"tide_session_{name}" for name in _CALLING_BACK)


class Reporter(Protocol):
    """Object that knows the storages of a session, and which reports of them are pending."""

    def flush(self) -> None:
        """Sends what the session has not heard of, by `calls`."""

    def name_of(self, storage: int) -> str | None:
        """Returns the name of a storage for errors; None: it has no name."""


class Session:
    """A session of the library, with a method for each call. What is pending is sent first, so that
    the session has heard of every storage before it is asked about one."""

    def __init__(self, reporter: Reporter) -> None:
        self.attention = _NOTHING_WAITS  # [0] is not 0 while completions wait
        self.forked = False  # true in a child of a fork: its handles are dead
        # What has no room is told in words that the block has.
        self.tell_refusal: Callable[[BudgetError], BudgetError] = lambda error: error
        self._reporter = reporter
        self.devices, self.share = b"", 0  # of the pool, once it is open
        self._handle = 0
        self._library = load_library(CALLING_BACK)
        declare(self._library, SIGNATURES, self._last_error)

    # -- its life ---------------------------------------------------------------------------------

    def open(self, options: SessionOptions) -> None:
        """Begins the session: opens the pool, and makes one where none is."""
        handle = _u64()
        options.size = ctypes.sizeof(options)
        self._library.tide_session_open(ctypes.byref(options), ctypes.byref(handle))
        self._handle = handle.value
        self.devices, self.share = options.devices, options.share
        open_sessions.add(self)
        address = self._library.tide_session_attention(self._handle)
        if address is None:
            raise self._last_error(Status.STALE_HANDLE)
        self.attention = memoryview(_u32.from_address(address)).cast("B").cast("I")

    def close(self) -> None:
        """Ends the session once nothing is in flight. The second time, and in a child of a fork,
        nothing happens."""
        handle, self._handle = self._handle, 0
        open_sessions.discard(self)
        if handle and not self.forked:
            self.attention = _NOTHING_WAITS
            self._library.tide_session_close(handle)

    def is_open(self) -> bool:
        """Returns whether the session was opened by this process, and was not closed."""
        return self._handle != 0 and not self.forked

    @property
    def handle(self) -> int:
        """The library's number for it; 0 while it is not open."""
        return self._handle

    # -- what it hears of storages ----------------------------------------------------------------

    def calls(self) -> tuple[int, ...]:
        """The handle, and addresses of functions for who is written in C."""
        library: Any = self._library
        functions = (
            *(library.tide_session_sync, library.tide_session_resized, library.tide_session_modified),
            *(library.tide_session_pin, library.tide_session_async_use),
            *(library.tide_session_op_begin, library.tide_session_op_end),
            *(library.tide_session_nest, library.tide_session_set_callbacks, library.tide_session_divisible),
        )
        return self._handle, *(ctypes.cast(function, _pointer).value or 0 for function in functions)

    def refuse(self, status: int) -> NoReturn:
        """Raises the error of a status below zero that one of those has returned."""
        raise self._last_error(status)

    @whole
    def flush(self) -> None:
        """Sends now what is pending."""
        self._flushed()

    def name(self, storage: int, kind: Kind, name: str) -> None:
        """Sets the name and the purpose of a storage."""
        self._library.tide_session_name(self._flushed(), storage, kind, name.encode())

    # -- what it is asked for: it calls back meanwhile ----------------------------------------------

    def step(self, mark: StepMark) -> None:
        """A step begins or ends."""
        self._library.tide_session_step(self._flushed(), mark)

    def op_begin(self, index: int, fingerprint: int, name: bytes, uses: Mapping[int, int], needs: int) -> None:
        """An op is about to run. `index`: in its step, below zero outside of one; `uses`: storage
        number -> 0 or MODIFIES; `needs`: bytes of its outputs."""
        packed = array.array("I", [storage | use for storage, use in uses.items()])
        address, count = packed.buffer_info()
        self._library.tide_session_op_begin(self._flushed(), index, fingerprint, name, address, count, needs)

    def evict(self, storage: int) -> None:
        """A storage is to be moved out now."""
        self._library.tide_session_evict(self._flushed(), storage)

    def pause(self) -> None:
        """Has all that can leave memory; nothing comes back before `go_on`."""
        self._library.tide_session_pause(self._flushed())

    def go_on(self, at_once: bool) -> None:
        """Ends a pause; `at_once`: with what left by it, as far as that fits."""
        self._library.tide_session_go_on(self._flushed(), at_once)

    def settle(self) -> None:
        """Takes in what completed, and evicts until the budget holds."""
        self._library.tide_session_settle(self._flushed())

    def wait(self, timeout_ms: int) -> None:
        """Waits for a completion, at most so long."""
        self._library.tide_session_wait(self._flushed(), timeout_ms)

    def set_budget(self, budget: int) -> None:
        """Changes the budget from the next op boundary on."""
        self._library.tide_session_set_budget(self._flushed(), budget)

    def lift_budget(self) -> None:
        """Lifts the budget: everything may be in memory at once."""
        self.set_budget(_UNLIMITED)

    # -- the write budget ---------------------------------------------------------------------------

    def set_write_budget(self, bytes_per_day: int) -> None:
        """Sets how many bytes a day may go to the devices from here on; 0: as many as it takes."""
        self._library.tide_session_set_write_budget(self._flushed(), bytes_per_day)

    @whole
    def throttle(self, timeout_ms: int) -> bool:
        """Pauses between two steps as long as the write budget asks for, at most `timeout_ms`. Returns whether that
        was not long enough."""
        return self._library.tide_session_throttle(self._flushed(), timeout_ms) == Status.WAITING

    # -- plans ------------------------------------------------------------------------------------

    def use_parts(self) -> None:
        """Lets plans move parts of storages. Before any is born."""
        self._library.tide_session_use_parts(self._handle)

    def divisible(self, storage: int) -> None:
        """The memory of this storage can be given back in parts."""
        self._library.tide_session_divisible(self._flushed(), storage)

    def durations(self, nanoseconds: Sequence[int]) -> None:
        """Reports the time of each op of the step that is about to end."""
        packed = array.array("Q", nanoseconds)
        self._library.tide_session_durations(self._flushed(), *packed.buffer_info())

    def step_spans(self, spans: bytes) -> None:
        """Reports what was seen of the last complete step, as spans of the C ABI one behind the other."""
        self._library.tide_session_step_spans(self._flushed(), spans, len(spans) // _STEP_SPAN_BYTES)

    def leave_plan(self) -> None:
        """Leaves the plan for the rest of the step."""
        self._library.tide_session_leave_plan(self._flushed())

    def hold_plan(self, on: bool) -> bool:
        """Holds the first plan, with `on`, or releases it: held, it is not followed until this is called without.
        Returns whether it is ready.
        """
        return bool(self._library.tide_session_hold_plan(self._flushed(), on))

    def plan(self) -> bytes:
        """The plan's triggers: one byte for each op, not 0 where a migration begins. Empty while
        there is no plan."""
        due, count = _pointer(), _u64()
        self._library.tide_session_plan(self._flushed(), ctypes.byref(due), ctypes.byref(count))
        return ctypes.string_at(due, count.value) if count.value else b""

    def looks_at_regions(self) -> None:
        """Says that regions will be chosen: a storage is the same one in all of a step, also where it is emptied between
        two runs of a region, and filled again.
        """
        self._library.tide_session_same_writes(self._flushed(), None, 0)

    def choose_regions(
        self, regions: Sequence[tuple[int, int, int, int]], same: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Starts the choice of the regions of the planned step that are better run once. Of each: its ops of the first
        run, from and before, and those of the second one. `same`: pairs of ops that write the same bytes.
        """
        if same:
            pairs = (SameWrites * len(same))(*(SameWrites(*pair) for pair in same))
            self._library.tide_session_same_writes(self._flushed(), ctypes.addressof(pairs), len(same))
        packed = (Region * len(regions))(*(Region(*region) for region in regions))
        self._library.tide_session_choose_regions(self._flushed(), ctypes.addressof(packed), len(regions))

    def chosen_regions(self) -> RegionChoice | None:
        """The choice that was asked for; None: it is not made yet."""
        return cast("RegionChoice | None", self._json(self._library.tide_session_chosen_regions))

    def learn_again(self) -> None:
        """Restarts learning between two steps: those to come are recorded and planned for as the first ones were."""
        self._library.tide_session_learn_again(self._flushed())

    # -- what users ask ---------------------------------------------------------------------------

    def stats(self) -> Stats:
        """Figures of the session so far."""
        return cast(Stats, self._json(self._library.tide_session_stats))

    def simulate(self) -> Simulated | None:
        """Returns the plan's simulation of a step; None: the last step followed no plan."""
        return cast("Simulated | None", self._json(self._library.tide_session_simulate))

    @whole
    def write_report(self, path: StrPath) -> None:
        """Writes the HTML report."""
        self._library.tide_session_report(self._flushed(), os.fsencode(path))

    @whole
    def write_trace(self, path: StrPath) -> None:
        """Writes the trace of the step that the plan is for."""
        self._library.tide_session_trace(self._flushed(), os.fsencode(path))

    # -- how calls are made and checked -----------------------------------------------------------

    def _flushed(self) -> int:
        """The handle, once what is pending was sent."""
        if self.is_open():
            self._reporter.flush()
        return self._handle

    def _last_error(self, status: int) -> _errors.Error:
        """The exception for a status below zero."""
        error = last_error(self._library, status, self._reporter.name_of)
        return self.tell_refusal(cast("BudgetError", error)) if status == Status.BUDGET_EXCEEDED else error

    @whole
    def _json(self, function: Callable[..., int]) -> Any:
        """Returns the JSON of a function on the session."""
        handle = self._flushed()
        return read_json(
            lambda buffer, length: function(handle, buffer, length),
            lambda: self._last_error(Status.FORKED if self.forked else Status.STALE_HANDLE),
        )


# The sessions that are open: of a pool that one has open there is no second opening.
open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
