"""Declaration of a function's options, once, in its signature, with help, and how they are read.

@declared
def offload(*, memory: Annotated[int | str, Option("the budget: ...", size)]):
    \"\"\"Runs the block.

    {options}
    \"\"\"
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, get_args, get_origin

from tidelog._errors import Error

_P = ParamSpec("_P")
_R = TypeVar("_R", covariant=True)

_SIZE = re.compile(r" *([0-9]+)(?:\.([0-9]{1,18}))? *(?:([kmgtp])(ib?|b|)|b|) *", re.IGNORECASE | re.ASCII)

_A_DAY = re.compile(r"( */ *d(ay)?| +(a|per) +day) *$", re.IGNORECASE)
A_DAY_MIN = 10**9  # bytes: who writes "2" means terabytes

_WIDTH, _COLUMN = 100, 18  # of the help, and where its texts begin


@dataclass(frozen=True)
class Option:
    """The help of an option, and how what is said for it is checked and read."""

    help: str
    read: Callable[[Any, str], Any] | None = None  # (what was said, the option's name) -> value


class Declared(Protocol[_P, _R]):
    """A function whose options are declared."""

    options: dict[str, Option]
    defaults: dict[str, Any]
    choices: dict[str, tuple[str, ...]]  # where there are only so many

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Calls the function with options as they are said."""


def declared(function: Callable[_P, _R]) -> Declared[_P, _R]:
    """Reads what is said for the options of `function`, and puts their help where its documentation
    says {options}. Defaults are values already. What it returns has them as `options`, `defaults`
    and `choices`, for a command line."""
    signature = inspect.signature(function)
    parameters = signature.parameters
    options: dict[str, Option] = {name: each.annotation.__metadata__[0] for name, each in parameters.items()}

    @functools.wraps(function)
    def reading(*arguments: _P.args, **said: _P.kwargs) -> _R:
        values: Any = {name: _read(options, parameters, name, value) for name, value in said.items()}
        return function(*arguments, **values)

    wrapper = cast(Any, reading)
    # Users see names and defaults; the annotations are in the text.
    plain = [each.replace(annotation=each.empty) for each in parameters.values()]
    wrapper.__signature__ = signature.replace(parameters=plain)
    wrapper.__doc__ = _documented(function.__doc__ or "", options)
    wrapper.options = options
    wrapper.defaults = {name: each.default for name, each in parameters.items()}
    wrapper.choices = {name: _choices(each.annotation) for name, each in parameters.items()}
    return cast(Declared[_P, _R], wrapper)


def _choices(annotation: Any) -> tuple[str, ...]:
    """Returns the texts that a Literal allows; empty for any other type."""
    kind = get_args(annotation)[0]
    return get_args(kind) if get_origin(kind) is Literal else ()


def _read(
    options: Mapping[str, Option], parameters: Mapping[str, inspect.Parameter], name: str, value: object
) -> object:
    """An option that is not known is refused by the function itself."""
    option = options.get(name)
    if option is None or option.read is None or value is parameters[name].default:
        return value
    return option.read(value, name)


def _documented(text: str, options: Mapping[str, Option]) -> str:
    helps = []
    for name, option in options.items():
        helps.append(
            textwrap.fill(
                option.help,
                width=_WIDTH,
                initial_indent=name.ljust(_COLUMN),
                subsequent_indent=" " * _COLUMN,
                break_on_hyphens=False,
            )
        )
    return inspect.cleandoc(text).replace("{options}", "\n".join(helps))


# -- how values are read --------------------------------------------------------------------------


class Size(int):
    """Bytes, and how they were said, for errors."""

    said: object


def size(value: object, name: str) -> Size:
    """An int, or text such as "20GiB", "24GB", "512M", "1048576". K and KiB are 1024 bytes, KB is 1000.
    Tidelog's other tools take the same and say the same."""
    if isinstance(value, Size):
        return value
    number = _number_of(value, str(value))
    if number is None:
        raise Error(f"{name}={value!r}: expected a size such as 20GiB, 24GB (10^9 bytes each) or 21474836480.")
    if number <= 0:
        raise Error(f"{name}={value!r}: must be above zero.")
    if number >= 1 << 64:
        raise Error(f"{name}={value!r}: more than any device has.")
    return _sized(number, value)


def _number_of(value: object, text: str) -> int | None:
    """Returns an int as it is, and the bytes that the text of anything else says; None where it says none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else _bytes(text)


def _sized(number: int, said: object) -> Size:
    """Returns bytes with what was said for them."""
    result = Size(number)
    result.said = said
    return result


def _bytes(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    whole, fraction, prefix, rest = match.groups(default="")
    base = 1000 if rest.lower() == "b" else 1024
    factor: int = base ** ("kmgtp".index(prefix.lower()) + 1) if prefix else 1
    scale: int = 10 ** len(fraction)
    return int(whole) * factor + int(fraction or 0) * factor // scale


def size_a_day(value: object, name: str) -> Size:
    """Bytes a day: an int, or text such as "2TB", "500GB/day" or "2 TB a day"."""
    number = _number_of(value, _A_DAY.sub("", str(value)))
    if number is None:
        raise Error(f"{name}={value!r}: expected bytes a day such as 2TB, 500GB/day or 2000000000000.")
    if number < A_DAY_MIN:
        raise Error(f"{name}={value!r}: less than 1GB a day, which no training keeps to; for 2 TB say '2TB'.")
    if number >= 1 << 64:
        raise Error(f"{name}={value!r}: more than any device takes.")
    return _sized(number, value)


def whole_number(value: Any, name: str) -> int:
    """A number from 0, or its text."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0 or isinstance(value, bool):
        raise Error(f"{name}={value!r}: expected a whole number from 0.")
    return number


def one_of(*choices: str) -> Callable[[object, str], object]:
    """Returns a reader that allows these texts."""
    listed = [repr(choice) for choice in choices]
    expected = " or ".join(listed) if len(listed) == 2 else f"one of {', '.join(listed)}"

    def read(value: object, name: str) -> object:
        if value not in choices:
            raise Error(f"{name}={value!r}: expected {expected}.")
        return value

    return read
