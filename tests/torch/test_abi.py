"""Tests that the declarations of the C ABI in tidelog.abi are those of include/tidelog.h, in both directions."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

import tidelog
from tidelog.abi import _host, _library, _native, _seals
from tidelog.memory import _arena, _kept, _mapped

HEADER = Path(__file__).resolve().parents[2] / "torch-bridge" / "include" / "tidelog.h"

# Of pools without a session, which the Python package does not use, for people who look, and for callers without
# callbacks. By Python: births are told and callbacks given in C++, which includes the header.
NOT_USED = re.compile(
    r"TIDE_(URGENT|FOREVER|UNMOVABLE|VERSION_.*|(EVICT|RELEASE|ALLOCATE|SETTLE)(_PART)?)$"
    r"|tide_(pool|put|get|delete|length|verify|ticket|batch|birth)(_|$)"
    r"|tide_(bytes|memory|action|session_callbacks|step_span)$|TIDE_(TIME|CLOCK)_"
    r"|tide_session_(resume|resume_or_refuse|next_action|action_done|allocated|part_begin)$"
)

SCALARS = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "void": None,
    "size_t": ctypes.c_size_t,
    "char *": ctypes.c_char_p,
    "void *": ctypes.c_void_p,
}
MODULES = (_native, _host, _seals, _kept, _mapped, _arena)
SIGNATURES = {name: each for module in MODULES for name, each in module.SIGNATURES.items()}
STRUCTS = {
    "tide_session_options": _native.SessionOptions,
    "tide_pool_options": _seals.PoolOptions,
    "tide_tensor": _seals.Tensor,
    "tide_region": _native.Region,
    "tide_same_writes": _native.SameWrites,
}
CONSTANTS = {
    **_library.Status.__members__,
    "NO_STORAGE": _library.NO_STORAGE,
    "AS_DURABLE": _seals.AS_DURABLE,
    **{name: getattr(_native, name) for name in ("MODIFIES", "PART_NUMBERS")},
    **{f"PARTS_{name}": value for name, value in _native.PartsState.__members__.items()},
}
# Enums that the header spells in a comment: what the comment stands before.
NUMBERED = {
    "int32_t tide_session_name(": _native.Kind,
    "int32_t tide_session_step(": _native.StepMark,
    "uint8_t policy;": _native.Policy,
}


# -- what the header says -------------------------------------------------------------------------


def parsed(text):
    """The constants, the fields of structs, and the types of functions (result first), by name."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    constants = {
        name: {"UINT32_MAX": 2**32 - 1}.get(value) or int(value)
        for name, value in re.findall(r"^#define (TIDE_\w+) (\S+)$", code, re.MULTILINE)
    }
    structs = {
        name: [_type_and_name(field) for field in body.split(";") if field.strip()]
        for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", code, re.DOTALL)
    }
    functions = {}
    prototypes = re.findall(r"^([\w ]+[ *])(\w+)\(([^)]*)\);", code, re.MULTILINE)
    for result, name, arguments in prototypes:
        arguments = [] if arguments.strip() == "void" else arguments.split(",")
        functions[name] = [_plain(result), *(_type_and_name(each)[0] for each in arguments)]
    return constants, structs, functions


def _type_and_name(declaration):
    kind, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", declaration, re.DOTALL).groups()
    return _plain(kind), name


def _plain(kind):
    """A C type, with a space before its stars, without const and struct."""
    words = [word for word in kind.replace("*", " ").split() if word not in ("const", "struct")]
    stars = "*" * kind.count("*")
    return f"{words[0]} {stars}".strip()


def _numbers_before(text, line):
    """The numbers, each with the words behind it, of the comment before this line."""
    found = re.search(rf"/\*((?:(?!\*/).)*)\*/\s*{re.escape(line)}", text, re.DOTALL)
    comment = found[1].replace("*", " ") if found is not None else ""
    numbered = re.findall(r"\b(\d)\b([^\d,;.]*)", comment)
    return {int(number): words.split() for number, words in numbered}


# -- what differs ---------------------------------------------------------------------------------


def _is(kind, c_type):
    """Returns whether a type of ctypes is this one of C. An untyped pointer is any pointer."""
    if c_type in SCALARS:
        return kind is SCALARS[c_type]
    if not c_type.endswith("*"):
        return kind is STRUCTS.get(c_type)
    if kind is ctypes.c_void_p:
        return True
    target = getattr(kind, "_type_", None)  # a letter for what is no pointer
    return isinstance(target, type) and _is(target, c_type[:-1].strip())


def _missing(ours, theirs):
    for name in theirs.keys() - ours.keys():
        if not NOT_USED.match(name):
            yield f"{name} is in the header alone"
    for name in ours.keys() - theirs.keys():
        yield f"{name} is not in the header"


def differences(text):
    """A sentence for each thing in which the header and the module differ."""
    constants, structs, functions = parsed(text)
    ours = {f"TIDE_{name}": value for name, value in CONSTANTS.items()}
    found = [
        *_missing(ours, constants),
        *_missing(STRUCTS, structs),
        *_missing(SIGNATURES, functions),
    ]
    for name in ours.keys() & constants.keys():
        if ours[name] != constants[name]:
            found.append(f"{name} is {constants[name]}, not {int(ours[name])}")
    for name in STRUCTS.keys() & structs.keys():
        fields = dict(STRUCTS[name]._fields_)
        theirs = {field: c_type for c_type, field in structs[name]}
        if list(fields) != list(theirs):
            found.append(f"{name} has the fields {list(theirs)}")
        elif wrong := [each for each in fields if not _is(fields[each], theirs[each])]:
            found.append(f"{name} has other types: {wrong}")
    for name in SIGNATURES.keys() & functions.keys():
        result, arguments = SIGNATURES[name]
        kinds = [result, *arguments]
        if len(kinds) != len(functions[name]) or not all(map(_is, kinds, functions[name])):
            found.append(f"{name} has other types: {functions[name]}")
    for line, enum in NUMBERED.items():
        numbers = _numbers_before(text, line)
        if numbers.keys() != set(enum):
            found.append(f"{enum.__name__} has the numbers {sorted(numbers)}")
        elif enum is _native.Kind:
            names = ["_".join(numbers[each]).upper() for each in enum]
            if names != [each.name for each in enum]:
                found.append(f"{enum.__name__} has the names {names}")
    return found


def test_the_module_is_what_the_header_says():
    assert differences(HEADER.read_text()) == []


# What is found, and what is replaced by what (@@: by itself).
PLANTED = {
    "a constant with another value": ("TIDE_WAITING is 3", "TIDE_WAITING 2", "TIDE_WAITING 3"),
    "another constant": ("TIDE_IDLE", "TIDE_ACTION 1", "TIDE_ACTION 1\n#define TIDE_IDLE 4"),
    "a constant that is gone": ("TIDE_BUSY", "#define TIDE_BUSY -15", ""),
    "a field of another name": ("tide_tensor has the fields", " high;", " upper;"),
    "fields in another order": (
        "tide_region has the fields", " first_begin;", " @;", " first_end;", " first_begin;", " @;", " first_end;"
    ),
    "a field of another type": ("['share']", "uint32_t share;", "uint64_t share;"),
    "another field": ("tide_region has the fields", " again_end;", " again_end; uint64_t kind;"),
    "another struct": ("tide_mark", "typedef struct tide_region", "typedef struct tide_mark {}\n@@"),
    "another function": ("tide_rest", "int32_t tide_session_evict", "void tide_rest(void);\n@@"),
    "a function that is gone": ("op_end", "int32_t tide_session_op_end(uint64_t session);", ""),
    "another argument": ("tide_session_settle", "settle(uint64_t session", "@@, int32_t hard"),
    "an argument of another type": ("tide_session_step", "int32_t mark", "int64_t mark"),
    "a pointer to something else": (
        "session_open", "struct tide_session_options *", "struct tide_birth *"
    ),
    "a result of another type": (
        "tide_session_close", "int32_t tide_session_close", "int64_t tide_session_close"
    ),
    "another kind": ("Kind has the numbers", "5 buffer", "5 buffer, 6 cache"),
    "kinds in another order": (
        "Kind has the names", "1 parameter, 2 gradient", "1 gradient, 2 parameter"
    ),
    "another mark of a step": ("StepMark", "2 ends one that", "3 ends one that"),
    "a policy that is gone": ("Policy", "2 Tidelog's own; ", ""),
}  # fmt: skip


def _unwrapped(text):
    """Each paragraph of a comment in one line, so that it does not matter where it was wrapped."""
    lines = []
    for line in text.splitlines():
        goes_on = line.lstrip().startswith("* ") and lines and lines[-1].lstrip().startswith("* ")
        if goes_on:
            lines[-1] += line.strip().removeprefix("*")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", PLANTED)
def test_what_differs_is_found(case):
    expected, *edits = PLANTED[case]
    text = _unwrapped(HEADER.read_text())
    for old, new in zip(edits[::2], edits[1::2]):
        assert old in text, f"the header has changed: {case!r} is planted nowhere"
        text = text.replace(old, new.replace("@@", old))
    assert any(expected in sentence for sentence in differences(text)), differences(text)


def test_structs_are_as_large_as_the_compiler_makes_them():
    lines = [f'#include "{HEADER}"']
    for name, struct in STRUCTS.items():
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, "{name}");')
        for field, _ in struct._fields_:
            at = getattr(struct, field)
            size = f"sizeof((({name} *)0)->{field})"
            check = f"offsetof({name}, {field}) == {at.offset} && {size} == {at.size}"
            lines.append(f'_Static_assert({check}, "{name}.{field}");')
    compiled = subprocess.run(
        ["cc", "-std=c11", "-fsyntax-only", "-x", "c", "-"],
        input="\n".join(lines),
        text=True,
        capture_output=True,
    )
    assert compiled.returncode == 0, compiled.stderr


# -- no status is dropped -------------------------------------------------------------------------


class NothingPending:
    """A session that has heard of everything."""

    def flush(self):
        raise AssertionError("it is not open")

    def name_of(self, storage):
        return None


ARGUMENTS = {
    "choose_regions": ([(0, 1, 2, 3)], [(0, 1)]),
    "chosen_regions": (),
    "divisible": (1,),
    "durations": ([1],),
    "evict": (1,),
    "go_on": (True,),
    "hold_plan": (False,),
    "learn_again": (),
    "leave_plan": (),
    "lift_budget": (),
    "looks_at_regions": (),
    "name": (1, _native.Kind.BUFFER, "a name"),
    "op_begin": (-1, 0, b"an op", {1: 0}, 0),
    "pause": (),
    "throttle": (0,),
    "plan": (),
    "set_budget": (1 << 20,),
    "set_write_budget": (1 << 40,),
    "settle": (),
    "simulate": (),
    "stats": (),
    "step": (_native.StepMark.BEGIN,),
    "step_spans": (bytes(24),),
    "use_parts": (),
    "wait": (0,),
    "write_report": ("/nowhere/report.html",),
    "write_trace": ("/nowhere/trace.json",),
}


def test_every_call_is_checked():
    """A session that was never opened: whatever is asked of it is an error, which no call hides."""
    session = _native.Session(NothingPending())
    session.flush()
    session.close()
    calls = {name for name in vars(_native.Session) if name[0] != "_"}
    assert calls - {"open", "close", "flush", "is_open", "handle", "calls", "refuse"} == ARGUMENTS.keys()
    for name, arguments in ARGUMENTS.items():
        with pytest.raises(tidelog.Error, match="no session has the handle 0"):
            getattr(session, name)(*arguments)
            raise AssertionError(f"{name} dropped its status")


def test_every_function_that_is_declared_is_called():
    source = "".join(Path(module.__file__).read_text() for module in (*MODULES, _library))
    unused = [name for name in SIGNATURES if f"library.{name}" not in source]
    assert unused == []
