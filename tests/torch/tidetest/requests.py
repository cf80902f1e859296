"""What the session of a block asks for, request by request, and how things stand when each is answered."""

import contextlib
import ctypes
import functools

from tidelog.abi._library import Status
from tidelog.abi._native import Action
from tidelog.dispatch._performer import Performer
from tidelog.memory import _record
from tidetest.ledger import _pointer

_status = ctypes.CFUNCTYPE(ctypes.c_int32)  # whatever it is given
_next_action = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.POINTER(Action))
_allocated = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p
)
_action_done = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)


def leave_to_python(tide, leaves=True):
    """From here on no op and no request of an open block goes past Python."""
    tide._hook.in_cpp = tide.performer.in_cpp = not leaves
    tide._kernels.close()
    tide._open_kernels()


def of_python(monkeypatch):
    """The list of kinds of requests that Python does from here on."""
    done = []

    def noted(kind, does):
        return lambda *arguments: (done.append(kind), does(*arguments))[1]

    requests = {kind: noted(kind, does) for kind, does in Performer._REQUESTS.items()}
    monkeypatch.setattr(Performer, "_REQUESTS", requests)
    return done


@contextlib.contextmanager
def returning(tide, **returns):
    """Meanwhile these functions of the library do nothing but return what an iterator of each gives next."""
    library = tide.session._library
    kept = {name: getattr(library, f"tide_session_{name}") for name in returns}
    replace(tide, {name: _status(functools.partial(next, each)) for name, each in returns.items()})
    try:
        yield
    finally:
        replace(tide, kept)


def replace(tide, functions):
    """From here on a block calls these functions for the library's, whoever calls them."""
    for name, function in functions.items():
        setattr(tide.session._library, f"tide_session_{name}", function)
    tide._kernels.close()
    tide._open_kernels()


def when_done(tide, function):
    """Has a function called with the address that each request has asked for, once the library has it."""
    answer = tide.session._library.tide_session_action_done

    def answered(handle, sequence, address, after):
        status = answer(handle, sequence, address, after)
        if address:
            function(address)
        return status

    replace(tide, {"action_done": _action_done(answered)})


class Requests:
    """Stands between a block that is not open yet and the library, whoever calls that."""

    def __init__(self, block):
        self.answered = []  # a tuple for each
        self._tide, self._asked, self._places = block, Action(), {}
        library = block.session._library
        self._ask, self._answer = library.tide_session_next_action, library.tide_session_action_done
        self._answer_early = library.tide_session_allocated
        library.tide_session_next_action = _next_action(self._next_action)
        library.tide_session_action_done = _action_done(self._action_done)
        library.tide_session_allocated = _allocated(self._allocated)

    def _next_action(self, handle, action):
        status = self._ask(handle, action)
        if status == Status.ACTION:
            ctypes.pointer(self._asked)[0] = action.contents
        return status

    def _action_done(self, handle, sequence, address, after):
        self.answered.append(self._now(sequence, address, after))
        return self._answer(handle, sequence, address, after)

    def _allocated(self, handle, sequence, address, after, landed):
        assert after == landed
        self.answered.append((*self._now(sequence, address, after), "by event"))
        return self._answer_early(handle, sequence, address, after, landed)

    def _now(self, sequence, address, after):
        ledger, asked = self._tide.ledger, self._asked
        record = ledger.record_at(asked.storage)
        place = self._places.setdefault(asked.storage, len(self._places))
        request = asked.kind, place, asked.size, sequence == asked.sequence, bool(after)
        storage = record() if record is not None else None
        if storage is None:
            return *request, address, ledger.marked, ledger.quiet
        try:
            guard = bool(_record.data_ptr(storage)) or None
        except RuntimeError as error:
            guard = str(error)
        memory = bool(address), address in (0, _pointer(storage)), _record.nbytes(storage), bool(_pointer(storage))
        in_flight = record.in_flight
        return (
            *request,
            *memory,
            _record.resizable(storage),
            guard,
            record.state,
            in_flight,
            ledger.marked,
            ledger.quiet,
        )
