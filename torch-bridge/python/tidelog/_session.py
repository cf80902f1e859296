"""The offload block: storages, the residency machine's requests, and what the user asks of a block."""

import array
import atexit
import contextlib
import ctypes
import gc
import json
import os
import re
import threading
import time
import warnings

import torch

from tidelog import _device, _errors, _escape, _heap, _movers, _native, _record, _threads
from tidelog._hook import MODIFIES, Hook
from tidelog._plan import Plan

_resizable = torch._C.StorageBase.resizable
_nbytes = torch._C.StorageBase.nbytes
_untyped_storage = torch._C.TensorBase.untyped_storage

# Births that the machine has not heard of, at most: most storages die before anybody needs to know.
_BIRTHS_UNTOLD_MAX = 4096

# Asking a storage for its device costs as much as all the rest of taking it on; below this size it cannot matter where
# tensors are either here or on meta.
_DEVICE_CHECK_BYTES_MIN = 64 << 10

_EVICTION_ATTEMPTS = 8
_LOAN_POLL_SECONDS = 0.0002
_UNLIMITED = (1 << 63) - 1

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

# The session whose block is open (at most one in a process), and those that ended with tensors out.
_active = None
_left_behind = []


def parse_bytes(value, what):
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


# Their numbers in the C ABI.
_POLICIES = {"auto": 0, "algorithm1": 1, "tidelog": 2}


class Tide:
    """An open offload block. Made by `offload`."""

    def __init__(
        self,
        model,
        optimizer,
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
        report,
    ):
        self.budget = parse_bytes(memory, "memory")
        self.staging = (
            parse_bytes(staging, "staging")
            if staging is not None
            else max(256 << 10, min(self.budget // 8, 16 << 20))
        )
        if mode not in ("auto", "reactive"):
            raise _errors.Error(f"mode={mode!r}: expected 'auto' or 'reactive'.")
        if policy not in _POLICIES:
            raise _errors.Error(f"policy={policy!r}: expected one of {', '.join(map(repr, _POLICIES))}.")
        self.mode = mode
        self.device = _device.choose(device, model)
        self._device_check_min = 0 if torch.cuda.is_initialized() else _DEVICE_CHECK_BYTES_MIN
        self._mover = _movers.choose(mover, self.device.default_mover)
        self._library = _native.load()
        self._buffers = self.device.staging_in(self.staging, data_path)
        self._model, self._optimizer = model, optimizer
        self._outside = "on NVMe" if host_memory is None else "on NVMe or in host memory"
        self._report_path = report
        self._options = _native.SessionOptions(
            size=ctypes.sizeof(_native.SessionOptions),
            devices=os.fsencode(pool),
            data_path=data_path.encode(),
            budget=self.budget + self.staging - self._buffers,
            staging=self.staging,
            host_memory=parse_bytes(host_memory, "host_memory") if host_memory is not None else 0,
            pool_size=parse_bytes(pool_size, "pool_size") if pool_size is not None else 0,
            share=0,
            buffered=bool(buffered),
            reactive=mode == "reactive",
            policy=_POLICIES[policy],
            gpu=self.device.option,
        )
        self._handle = 0
        self._records = {}
        self._in_flight = {}  # storage id -> storage (and event): alive while a device or a copy may touch it
        self._births, self._deaths, self._pin_requests = [], [], []
        # Numbers of dead storages serve again, but not within a step: a profile tells storages apart by them.
        self._births_max = _BIRTHS_UNTOLD_MAX
        self._on_death = self._storage_died  # bound once
        self._record_type = type("Record", (_record.Record,), {"tide": self})
        self._next_id, self._free_ids, self._retired_ids = 0, [], []
        self.live = 0
        self._peak = 0
        self._last_step = {}
        self._thread = threading.get_ident()
        self._pid = os.getpid()
        self.forked = False  # true in a child of a fork: its handles are dead
        if self.budget <= self._buffers:
            raise _errors.BudgetError(
                f"memory={memory!r} leaves nothing beside the staging buffers of {self.staging} bytes; "
                "give more, or pass a smaller staging=."
            )
        self.limit = self.budget - self._buffers  # of live storages
        self.chunk_limit = max(self.limit // 4, 1)  # foreach ops are done in pieces of this
        self._aliased = {}  # storage id -> its addresses, of pinned storages: others may lie in the same memory
        self.heap = None
        self.notice = self._notice_stream if self.device.option else self.device.notice
        self._stop_watching = lambda: None
        self._at_work = contextlib.ExitStack()
        self._marked = 0  # storages that are not plainly resident
        self._funcs, self._needs = [], []  # of the ops of a step that is being profiled
        self._plan = None
        self._rested = False  # whether the last step needed no migration at all
        self._pressed = False  # whether the budget was ever reached: from then on ops are looked at
        self._notices = []
        self._action = _native.Action()
        self._hook = Hook(self)
        self._open = False

    # -- the block ------------------------------------------------------------------------------

    def __enter__(self):
        global _active
        if _active is not None:
            raise _errors.Error(
                "an offload block is open already in this process; leave it before entering another "
                "(one block can hold several models: pass a torch.nn.ModuleList)."
            )
        handle = ctypes.c_uint64()
        self._check(self._library.tide_session_open(ctypes.byref(self._options), ctypes.byref(handle)))
        self._handle = handle.value
        address = self._library.tide_session_attention(self._handle)
        self.attention = memoryview((ctypes.c_uint32 * 1).from_address(address)).cast("B").cast("I")
        _active = self
        try:
            _escape.install(self)
            self._stop_watching = _threads.watch(self)
            self._at_work.enter_context(self.device.at_work())
            self._open = True
            before = _heap.anonymous_bytes()
            self._adopt_what_lives()
            self.heap = self.device.keeper(before - sum(record.size for record in self._records.values()), self.budget)
            self._drive(self._library.tide_session_settle(self._sync()))
            if self._marked:
                self.heap.take_over()
            self._peak = self.live
            self._hook.quiet = self._is_quiet()
            self._hook.__enter__()
        except BaseException:
            self._end_block()
            raise
        return self

    def __exit__(self, kind, error, trace):
        self._hook.__exit__(kind, error, trace)
        if self.forked:
            return False  # the block is the parent's; whatever ends the child goes on
        try:
            if kind is None and self._report_path is not None:
                self.report(self._report_path)
        finally:
            self._end_block()
        return False

    def _end_block(self):
        global _active
        self._find_the_dead()
        try:
            self._stop_migrations()
            self._restore_what_fits()
        finally:
            self._open = False
            self._model = self._optimizer = None  # what is left behind lives as long as its owner does
            self._stop_watching()
            self._at_work.close()
            _escape.remove()
            _active = None
            if self.has_left_behind():
                _left_behind.append(self)
                left = [record for record in self._records.values() if record.state & _record.AWAY]
                for record in left:
                    if record.state & _record.OUT:  # what is coming has memory, and a device may be writing it
                        self._mover.leave(record(), record.size, self.guard_text(record))
                self._warn_of(left)
            else:
                self._close()

    def _stop_migrations(self):
        """From here on nobody says which tensors are used and written, so nothing may leave or be prefetched."""
        self._check(self._library.tide_session_leave_plan(self._handle))
        self.lift_budget()
        with contextlib.suppress(_errors.Error):  # a write that failed: its tensor is still here
            self._drive(self._library.tide_session_settle(self._sync()))
        for record in list(self._records.values()):
            storage = record()
            if storage is not None and record.state & _record.LEAVING:
                with contextlib.suppress(_errors.Error):
                    self.bring_back(storage, written=storage)

    def _restore_what_fits(self):
        # What is coming has its memory already, so it comes first.
        for record in sorted(self._records.values(), key=lambda record: (-record.state, record.id)):
            storage = record()
            if storage is None or not record.state & _record.AWAY:
                continue
            if record.state & _record.COMING or self.live + record.size <= self.limit:
                with contextlib.suppress(_errors.Error):  # damaged on the device: it is named with those that stay
                    self.bring_back(storage)

    def _warn_of(self, left):
        names = [record.describe() for record in left]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        warnings.warn(
            f"{len(names)} tensors ({sum(record.size for record in left)} bytes) stay {self._outside} because they do not fit "
            f"the budget of {self.budget} bytes: {shown}. They are safe until this process ends; touching one raises "
            "an error. Enter another offload block to use them, or call restore() on this one to bring them back.",
            _errors.LeftBehindWarning,
            stacklevel=4,
        )

    def _close(self):
        handle, self._handle = self._handle, 0
        if handle and not self.forked:
            self.attention = None
            self._library.tide_session_close(handle)
        self._in_flight.clear()
        if self in _left_behind:
            _left_behind.remove(self)

    @contextlib.contextmanager
    def step(self):
        """Marks one training step. Results do not depend on it; plans do."""
        self._require_open()
        started = time.perf_counter()
        self._begin_step()
        completed = False
        try:
            yield self
            completed = True
        finally:
            self._hook.next_op, self._hook.plan = -1, None
            if self._open and not self.forked:
                self._end_step(completed, started)

    def _begin_step(self):
        hook = self._hook
        self._find_the_dead()
        hook.quiet = self._is_quiet()
        self._drive(self._library.tide_session_step(self._sync(), 1))
        self._free_ids += self._retired_ids
        self._retired_ids.clear()
        self._take_plan()
        if not hook.quiet:
            hook.next_op = 0
            hook.plan = self._plan

    def _take_plan(self):
        """A plan may have become ready: the first for steps like the last one, or another for the same ops."""
        if self._plan is not None:
            self._plan.read(self._library, self._handle)
        elif self.mode == "auto" and self._funcs:
            plan = Plan(self._library, self._handle, self._funcs, self._needs)
            self._plan = plan if plan.ops else None
        self._funcs, self._needs = [], []

    def _end_step(self, completed, started):
        if not self._hook.quiet:
            self._name_states()
        self._rested = self._hook.quiet
        self._hook.quiet = False
        durations = array.array("Q", self.device.durations() if completed and self._is_profiling() else ())
        if durations:
            self._check(self._library.tide_session_durations(self._handle, *durations.buffer_info()))
        status = self._library.tide_session_step(self._sync(), 0 if completed else 2)
        if not completed:
            return  # an exception is on its way: what else is wrong surfaces at the next touch
        self._drive(status)
        self._hook.quiet = self._is_quiet()
        self._last_step = {"seconds": time.perf_counter() - started}

    def _is_quiet(self):
        """Nothing is out, on its way, or copied; and the last step left room."""
        quiet = self._marked == 0 and self.live <= self.limit and not self._pressed
        self.device.blind |= quiet
        return quiet

    # -- what users ask ---------------------------------------------------------------------------

    def evict(self, tensor):
        """Moves a tensor's memory out now and waits until it is out. No plan brings it back before the next op."""
        self._require_open()
        storage = _untyped_storage(tensor)
        record = self.record_of(storage)
        if record is not None and record.state & _record.OUT:
            return
        if record is None or not self._movable(storage):
            raise _errors.UnmovableError(f"{record.describe() if record else 'the tensor'} cannot move: its memory is not torch's own.")
        if record.pins:
            raise _errors.PinnedError(
                f"{record.describe()} cannot move: numpy, DLPack or a raw pointer holds an alias of its memory."
            )
        self._hook.end_touch()
        for _ in range(_EVICTION_ATTEMPTS):  # what is on its way in must arrive before it can leave
            self._drive(self._library.tide_session_settle(self._sync()))
            self._drive(self._library.tide_session_evict(self._handle, record.id))
            if record.state & _record.OUT:
                return
        raise _errors.Error(f"{record.describe()} could not be moved out; stats()['notices'] says why.")

    def is_resident(self, tensor):
        """Whether the tensor's bytes are in memory now."""
        record = _untyped_storage(tensor)._tide
        return record is None or not record.state & _record.AWAY

    def restore(self, *tensors):
        """Brings tensors back; without arguments, everything that is out, whatever the budget says."""
        if tensors:
            for tensor in tensors:
                self.bring_back(_untyped_storage(tensor))
            return
        self.lift_budget()
        for record in list(self._records.values()):
            storage = record()
            if storage is not None and record.state & _record.AWAY:
                self.bring_back(storage)
        if not self._open:
            self._close()

    @property
    def is_open(self):
        """Whether the block is running."""
        return self._open

    @property
    def live_bytes(self):
        """Bytes of storages in memory, staging included where that is in the same memory."""
        return self.live + self._buffers

    @property
    def peak_bytes(self):
        """The highest `live_bytes` at an op boundary so far."""
        return self._peak + self._buffers

    @property
    def phase(self):
        """"profiling", "planned" or "reactive"."""
        if self.mode == "reactive":
            return "reactive"
        return "planned" if self._plan is not None or self._rested else "profiling"

    def stats(self):
        """Figures of the block so far, as a dict."""
        self._sync()
        stats = json.loads(_native.text_of(lambda buffer, size: self._library.tide_session_stats(self._handle, buffer, size)))
        stats["unmovable"] = [
            record.describe()
            for record in list(self._records.values())
            if (storage := record()) is not None and not self._movable(storage)
        ]
        return stats

    def last_step(self):
        """Figures of the last complete step: seconds, bytes_written, bytes_read, evictions, fetches, stalls, stall_seconds."""
        figures = self.stats()["last_step"]
        return {**self._last_step, **figures, "stall_seconds": figures["stall_ns"] / 1e9}

    def simulate_step(self):
        """What the plan's simulation makes of a step at the pace of the last one, in the words of `last_step`. None where
        the last step followed no plan to its end."""
        text = _native.text_of(lambda buffer, size: self._library.tide_session_simulate(self._handle, buffer, size))
        figures = json.loads(text)
        if figures is None:
            return None
        if "why_not" in figures:
            raise _errors.Error(f"the plan cannot be simulated: {figures['why_not']}")
        return {**figures, "seconds": figures["time_ns"] / 1e9, "stall_seconds": figures["stall_ns"] / 1e9}

    def report(self, path):
        """Writes the HTML report."""
        self._check(self._library.tide_session_report(self._sync(), os.fsencode(path)))

    def trace(self, path):
        """Writes the trace of the planned step, for `tidelog-plan`: ops, their times, the storages that they use."""
        self._check(self._library.tide_session_trace(self._sync(), os.fsencode(path)))

    # -- storages ---------------------------------------------------------------------------------

    def record_of(self, storage, birth=None):
        """The storage's record; a storage that was never met is taken on. None: not ours to move."""
        record = storage._tide
        if record is not None and record.tide is self:
            return record
        if record is not None:
            record.tide.hand_over(storage, record)
        if not self.device.owns(storage):
            return None
        size = 0 if self._is_alias(storage) else _nbytes(storage)
        if size == 0:
            return None  # nothing to move; looked at again when an op has given it bytes
        record = storage._tide = self._record_type(storage, self._storage_died)
        record.size = size
        record.birth = birth
        self._number(record)
        self._births.append(record)
        self.live += size
        if storage._aliased:
            self.pin(record)
        return record

    def _is_alias(self, storage):
        """Whether the storage only shows memory that another one owns, and that counts there."""
        if not self._aliased or _resizable(storage):
            return False
        address = _movers.data_pointer(storage)
        return any(begin <= address < end for begin, end in self._aliased.values())

    def hand_over(self, storage, record):
        """Another block takes a storage over from this one, which has ended."""
        self.bring_back(storage, written=storage)
        if self._records.pop(record.id, None) is not None and self._handle and not self.forked:
            self._deaths.append(record.id)
            self._sync()

    def has_left_behind(self):
        return any(record.state & _record.AWAY for record in self._records.values())

    def lift_budget(self):
        self._check(self._library.tide_session_set_budget(self._handle, _UNLIMITED))

    def take_on(self, storage, func):
        """Registers an op's new storage while all is quiet, and ends the quiet where the budget is reached."""
        size = _nbytes(storage)
        if size >= self._device_check_min and not self.device.owns(storage):
            return  # another device's, or a meta tensor: it has a size, and no memory
        record = storage._tide = self._record_type(storage, self._on_death)
        record.size = size
        record.birth = func
        births = self._births
        births.append(record)
        self.live = live = self.live + size
        if live > self._peak:
            if live > self.limit:
                self._end_quiet()
            self._peak = self.live
        elif len(births) > self._births_max:
            self._births = [record for record in births if record() is not None]
            self._births_max = 2 * len(self._births) + _BIRTHS_UNTOLD_MAX

    def _end_quiet(self):
        self._pressed = True
        self.heap.take_over()
        self._hook.quiet = False
        self._hook.next_op, self._hook.plan = -1, None
        self.end_op()

    def _number(self, record):
        if self._free_ids:
            record.id = self._free_ids.pop()
        else:
            record.id = self._next_id
            self._next_id += 1
        self._records[record.id] = record

    def _storage_died(self, record):
        if record.id is None:
            self.live -= record.size
        elif self._records.pop(record.id, None) is not None:
            if record.state:
                self._marked -= 1
            self._aliased.pop(record.id, None)
            if not record.state & _record.OUT:
                self.live -= record.size
            if record.told:
                self._deaths.append(record.id)
            else:
                self._retired_ids.append(record.id)

    def _find_the_dead(self):
        """An interrupt may fall into the callback that reports a death, and Python then drops both."""
        for record in [record for record in self._records.values() if record() is None]:
            self._storage_died(record)

    def _movable(self, storage):
        record = storage._tide
        if record is not None and record.state & _record.AWAY:
            return True  # it moved; and torch aborts the process where a guarded storage is asked whether it is shared
        return self.device.movable(storage)

    def _adopt_what_lives(self):
        """Every tensor of this process counts against the budget from the start, ours or not."""
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):
                for tensor in (thing, thing.grad if thing.is_leaf else None):
                    self._adopt(tensor)
                    if self.live > self.limit:
                        self._drive(self._library.tide_session_settle(self._sync()))
        for earlier in list(_left_behind):
            if not earlier.has_left_behind():
                earlier._close()
        if self._model is not None:
            for name, tensor in self._model.named_parameters():
                self._name(tensor, 1, name)
            for name, tensor in self._model.named_buffers():
                self._name(tensor, 5, name)
        self._name_states()

    def _adopt(self, tensor):
        if tensor is not None:
            try:
                storage = _untyped_storage(tensor)
            except (NotImplementedError, RuntimeError):
                return None  # sparse and opaque layouts have no storage of their own
            return self.record_of(storage)
        return None

    def _name(self, tensor, kind, name):
        record = self._adopt(tensor)
        if record is not None and record.name != name:
            record.name = name
            self._sync()
            self._library.tide_session_name(self._handle, record.id, kind, name.encode())

    def _name_states(self):
        """Gradients and optimizer state appear as training goes: name them for errors and figures."""
        names = {}
        if self._model is not None:
            for name, parameter in self._model.named_parameters():
                names[parameter] = name
                if parameter.grad is not None:
                    self._name(parameter.grad, 2, f"grad of {name}")
        if self._optimizer is not None:
            for parameter, state in self._optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self._name(value, 3, f"{key} of {names.get(parameter, 'a parameter')}")

    # -- talking to the residency machine -----------------------------------------------------------

    def _sync(self):
        """Tells births, deaths and pins that it has not heard of yet. Returns the handle, for chaining.

        Ctrl-C may land anywhere: what was sent but not yet crossed off is sent again, which is harmless.
        """
        if self._births or self._deaths:
            births = array.array("Q")
            for record in self._births:
                if record.told or record() is not None:
                    if record.id is None:
                        self._number(record)
                    record.told = True  # before it is sent: from here on its death is reported
                    index, slot = record.birth[:2] if isinstance(record.birth, tuple) else (-1, 0)
                    storage = record()
                    stays = storage is None or not self._movable(storage)
                    births.extend((record.id | stays << 32, record.size, ((index & 0xFFFFFFFF) << 16) | slot))
            deaths = array.array("I", self._deaths)
            address, length = births.buffer_info()
            dead_address, dead = deaths.buffer_info()
            self._check(self._library.tide_session_sync(self._handle, address, length // 3, dead_address, dead))
            self._births.clear()
            self._retired_ids += deaths
            del self._deaths[:dead]
        while self._pin_requests:
            identity, on = self._pin_requests[0]
            if not on:
                del self._pin_requests[0]  # told twice, it would take another's pin away
            if identity in self._records:
                self._check(self._library.tide_session_pin(self._handle, identity, on))
            if on:
                del self._pin_requests[0]
        return self._handle

    def _drive(self, status):
        """Performs what the machine asks for and waits where it waits, until it is ready."""
        while status != _native.READY:
            if status == _native.ACTION:
                self._perform()
                status = self._library.tide_session_resume(self._sync())
            elif status == _native.WAITING:
                # Short, so that Ctrl-C is heard; the lock of the interpreter is released meanwhile.
                status = self._library.tide_session_wait(self._sync(), 50)
            else:
                raise self._error(status)

    def _perform(self):
        """What only Python can do: free and allocate storages' memory. An action that an interrupt
        cut short is handed out again until it is reported done."""
        action = self._action
        while self._library.tide_session_next_action(self._handle, ctypes.byref(action)) == _native.ACTION:
            record = self._records.get(action.storage)
            storage = record() if record is not None else None
            address = after = 0
            if storage is not None:
                address = self._ACTIONS[action.kind](self, record, storage, action.size)
            if address and (event := self.device.after()) is not None:
                self._in_flight[record.id] = storage, event
                after = event.cuda_event
            self._library.tide_session_action_done(self._handle, action.sequence, address, after)

    def _begin_eviction(self, record, storage, size):
        before = record.state
        # The mark first, then the look: another thread borrows what it uses, or pins it, before it looks for the mark.
        self._mark(record, _record.LEAVING)
        self._await_loans(record)
        if not record.pins and not self._movable(storage):
            self.pin(record)
        if record.pins or _nbytes(storage) != size:
            self._mark(record, before)
            self.measure_again(storage)  # another thread may have resized it
            return 0
        self._in_flight[record.id] = storage
        return _movers.data_pointer(storage)

    def _await_loans(self, record):
        while record.loans:
            time.sleep(_LOAN_POLL_SECONDS)

    # Ctrl-C may end any of these at a call (Python looks for signals there, and at loops), and then the request comes
    # again: what counts and what tells that it was counted change with no call in between.

    def _release(self, record, storage, _size):
        if record.id in self._in_flight:
            self._mark(record, _record.OUT)
            self._await_loans(record)
            self.device.share(storage)
            self._mover.take(storage, self.guard_text(record))
            self.live -= record.size
            del self._in_flight[record.id]
        return 0

    def _allocate(self, record, storage, size):
        address = self._mover.give(storage, size, self.guard_text(record))
        if record.state & _record.OUT:
            self.live += record.size
            record.state = _record.COMING
        self._in_flight[record.id] = storage
        if self.heap is not None:
            self.heap.allocated(size)
        return address

    def _settle(self, record, storage, clean):
        if record.state & _record.AWAY:
            _movers.open_to_reads(storage)
            self.device.share(storage)
        self._mark(record, _record.CLEAN if clean else _record.SETTLED)
        self._in_flight.pop(record.id, None)
        return 0

    _ACTIONS = {
        _native.EVICT: _begin_eviction,
        _native.RELEASE: _release,
        _native.ALLOCATE: _allocate,
        _native.SETTLE: _settle,
    }

    def _mark(self, record, state):
        self._marked += (state != _record.SETTLED) - (record.state != _record.SETTLED)
        record.state = state
        if state:
            self._hook.quiet = False

    def modifies(self, record):
        """The storage is about to differ from its copy in the log."""
        if record.state == _record.CLEAN:
            self._mark(record, _record.SETTLED)

    def guard_text(self, record):
        return (
            f"tidelog: tensor {record.describe()} is {self._outside}, and this access did not go through the offload block "
            "(another thread, a raw kernel, or after the block). Touch it by a torch op inside the block first, "
            "or call restore() on the block's object."
        )

    def pin(self, record):
        """Keeps a storage where it is for its life: an alias exists that Tidelog cannot see."""
        record.pins += 1
        if (storage := record()) is not None:
            address = _movers.data_pointer(storage)
            self._aliased[record.id] = (address, address + record.size)
        self._pin_requests.append((record.id, 1))

    def unpin(self, record):
        """Takes one `pin` back."""
        record.pins -= 1
        if not record.pins:
            self._aliased.pop(record.id, None)
        self._pin_requests.append((record.id, 0))

    def hold(self, storage):
        """Keeps a storage's memory where it is until what this answers is gone. None: it does not move anyway."""
        record = storage._tide if self.is_elsewhere() else self.record_of(storage)
        return record.hold() if record is not None else None

    def begin_op(self, index, fingerprint, name, uses, count, needs):
        """Blocks until the op's storages are resident and its outputs have room."""
        self._drive(
            self._library.tide_session_op_begin(self._sync(), index, fingerprint, name, uses, count, needs)
        )
        self.notice()
        if index >= 0 and self._is_profiling():
            self.device.op_begins(index)

    def _is_profiling(self):
        return self._plan is None and self.mode == "auto"

    def _notice_stream(self):
        """An op is about to be launched, on whatever stream."""
        known = len(self.device.streams)
        self.device.notice()
        if len(self.device.streams) > max(known, 1):
            for record in list(self._records.values()):  # what moved before was another stream's alone
                if (storage := record()) is not None and not record.state & _record.AWAY:
                    self.device.share(storage)

    def end_op(self):
        """Reports that the op has run and waits until the budget holds with its outputs."""
        self._drive(self._library.tide_session_op_end(self._sync()))
        self.note_peak()

    def note_peak(self):
        """All that is alive at this moment counts for `peak_bytes`."""
        self._peak = max(self._peak, self.live)

    def op_ran(self, index, func, born):
        """An op that was looked at in full has run."""
        if index >= 0 and self._is_profiling():
            del self._funcs[index:], self._needs[index:]
            self._funcs.append(func)
            self._needs.append(born)
            self.device.op_ran()
        self.end_op()
        self.heap.allocated(born)

    def leave_plan(self, index, func):
        """The program does something else than the step that was planned: the rest of the step is reactive."""
        expected = self._hook.plan.funcs[index] if index < self._hook.plan.ops else "the end of the step"
        self._hook.plan = None
        self._check(self._library.tide_session_leave_plan(self._handle))
        if not any("left the plan" in notice for notice in self._notices):
            self._notices.append(
                f"a step left the plan at op {index}: {func} ran where {expected} was planned; "
                "that step went on reactively (said once)"
            )

    def measure_again(self, storage):
        """Something may have resized this storage."""
        record = self.record_of(storage)
        if record is not None and _nbytes(storage) != record.size:
            self._resized(record, _nbytes(storage))

    def _resized(self, record, size):
        self.live += size - record.size
        record.size = size
        self._check(self._library.tide_session_resized(self._sync(), record.id, size))

    def storage_modified(self, storage):
        """A storage was written by a call that is no op."""
        record = storage._tide
        if self.forked or self.is_elsewhere():
            return  # a clean copy is compared with memory before it is trusted, so nothing is lost
        if record is not None and record.state & _record.AWAY:
            return  # it left after the write, which the call's own ops made
        if record is not None and record.tide is self:
            self.modifies(record)
            self._check(self._library.tide_session_modified(self._sync(), record.id))
        self.measure_again(storage)

    def moves(self, tensor):
        """Whether the tensor's memory may leave while the block is open."""
        record = self._adopt(tensor)
        return record is not None and not record.pins

    def is_elsewhere(self):
        """Whether this is another thread than the block's own."""
        return threading.get_ident() != self._thread

    def refuse(self, record):
        raise _errors.Error(self.guard_text(record))

    def bring_back(self, *storages, written=None):
        """Makes storages resident, together, for an access that does not go through the dispatcher. `written`: the
        one that it writes or gives other memory; what copies it out is called off first."""
        records = [storage._tide for storage in storages if storage._tide is not None]
        changed = written._tide if written is not None else None
        due = [
            record
            for record in records
            if record.state & _record.AWAY or (record is changed and record.state & _record.LEAVING)
        ]
        if not due:
            return
        if self.forked:
            self._refuse_in_child(due)
            return
        if self.is_elsewhere():
            self.refuse(due[0])
        for foreign in {record.tide for record in due if record.tide is not self}:
            foreign.bring_back(*(each() for each in records if each.tide is foreign), written=written)
        self._hook.touch(
            {record.id: MODIFIES if record is changed else 0 for record in records if record.tide is self}
        )

    def _refuse_in_child(self, records):
        """Nothing copies this process's memory; but what was out at the fork has none here."""
        for record in records:
            if record.state & _record.AWAY:
                raise _errors.ForkedError(
                    f"{record.describe()} is {self._outside} and belongs to the parent process ({self._pid}); "
                    "touch it before the fork, or restore it there."
                )

    def _error(self, code):
        kind, text, about = _native.last_error(self._library, code)
        record = self._records.get(about)
        return kind(f"{record.describe()}: {text}" if record is not None else text)

    def _check(self, code):
        if code < 0:
            raise self._error(code)
        return code

    def _require_open(self):
        if not self._open:
            raise _errors.Error("this offload block is not open: use `with tidelog.offload(...) as tide:`.")
        if self.forked:
            raise _errors.ForkedError("this offload block belongs to the parent process.")


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
    report=None,
):
    """Runs the block with at most `memory` bytes of tensors in memory; the rest lies on `pool`.

    model, optimizer  whose tensors get names in errors and reports. Every tensor of the process
                      counts against the budget and may move, named or not.
    pool              devices separated by commas: directories (Tidelog makes its file there), files or raw
                      block devices. Striped over all of them. No redundancy: one lost device loses the pool.
    memory            the budget: bytes, or text such as "20GiB". Includes `staging`, unless it is a GPU's memory and the
                      data path not "gds".
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
    report            path of an HTML report, written when the block ends.

    Raises PoolError, BudgetError, DeviceError (all tidelog.Error). The block covers the thread that entered it.
    """
    return Tide(
        model,
        optimizer,
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
        report=report,
    )


@atexit.register
def _drain_at_exit():
    """No device may write into memory that the interpreter is about to free."""
    for tide in [_active, *_left_behind]:
        if tide is not None:
            tide._close()


def _mark_forked():
    for tide in [_active, *_left_behind]:
        if tide is not None:
            tide.forked = True


os.register_at_fork(after_in_child=_mark_forked)
