"""Reference pages of the site, from what the code says of itself: docstrings, `--help`, the C header.

They are made when the site is built, so there is no copy of them that could be out of date.
"""

import dataclasses
import inspect
import re
import sys
import textwrap

from helptexts import PACKAGE, ROOT, TOOLS, helps

HEADER = "torch-bridge/include/tidelog.h"


def pages():
    """Markdown by path."""
    made = {f"reference/{tool}.md": tool_page(tool) for tool in TOOLS}
    made["reference/python.md"] = python_page()
    made["reference/c.md"] = header_page((ROOT / HEADER).read_text())
    return made


def tool_page(tool):
    """The help of a tool and of its commands, as they are printed."""
    parts = [f"# {tool}"]
    for help in helps(tool):
        if len(help.words) > 1:
            parts.append(f"## {' '.join(help.words)}")
        parts.append(_code("text", help.text))
    return "\n\n".join(parts) + "\n"


# -- Python ---------------------------------------------------------------------------------------


def python_page():
    """Returns the page of the names that `import tidelog` gives."""
    sys.path.insert(0, str(PACKAGE))
    import tidelog

    things = {name: getattr(tidelog, name) for name in tidelog.__all__}
    errors = {name: kind for name, kind in things.items() if isinstance(kind, type) and issubclass(kind, BaseException)}
    parts = ["# Python package", "`import tidelog` gives what is on this page.", *_offload(things.pop("offload"))]
    for name, thing in things.items():
        if name in errors:
            continue
        parts += _class(name, thing) if isinstance(thing, type) else [_function(f"## {name}", name, thing)]
    parts.append("## Errors")
    parts += [_error(name, kind) for name, kind in errors.items()]
    return "\n\n".join(parts) + "\n"


def _offload(offload):
    about = inspect.getdoc(inspect.unwrap(offload))
    before, after = about.split("{options}")
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, option in offload.options.items():
        default = offload.defaults[name]
        shown = "must be given" if default is inspect.Parameter.empty else f"`{default!r}`"
        rows.append(f"| `{name}` | {shown} | {option.help.replace('|', chr(92) + '|')} |")
    return ["## offload", before.strip(), "\n".join(rows), after.strip()]


def _class(name, kind):
    yield f"## {name}"
    yield _prose(kind)
    if dataclasses.is_dataclass(kind):
        yield _code("python", "\n".join(f"{each.name}: {_type(each.type)}" for each in dataclasses.fields(kind)))
    for member, value in vars(kind).items():
        if member.startswith("_") or not inspect.getdoc(value):
            continue
        if isinstance(value, property):
            yield f"### {name}.{member}\n\n{_prose(value)}"
        elif callable(value):
            yield _function(f"### {name}.{member}", member, value)


def _function(heading, name, function):
    signature = inspect.signature(inspect.unwrap(function))
    given = [_parameter(each) for each in signature.parameters.values() if each.name != "self"]
    given = ", ".join(given) if len(given) < 5 else "\n    " + ",\n    ".join(given) + ",\n"
    returned = "" if signature.return_annotation is signature.empty else f" -> {_type(signature.return_annotation)}"
    return f"{heading}\n\n{_code('python', f'{name}({given}){returned}')}\n\n{_prose(function)}"


def _parameter(each):
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    kind = "" if each.annotation is each.empty else f": {_type(each.annotation)}"
    return f"{stars}{each.name}{kind}" + ("" if each.default is each.empty else f" = {each.default!r}")


def _type(annotation):
    """Annotations are texts where a module says so, else types."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _error(name, kind):
    base = kind.__mro__[1].__name__
    return f"### {name}\n\nA kind of `{base}`. {_prose(kind)}"


def _prose(thing):
    return inspect.getdoc(thing) or ""


# -- the C header ---------------------------------------------------------------------------------

_FUNCTION = re.compile(r"^[a-z][\w *]*\b(tide_\w+)\(", re.M)
_TYPE = re.compile(r"(?<=\(\*)\w+(?=\)\()|\w+(?=;$)")  # of a callback, or of a structure


def header_page(header):
    """Each function, type and value of the header, with what is written above it."""
    values, kinds, functions = [], [], []
    for about, code in _items(header):
        about = textwrap.dedent(re.sub(r"^ *\*", "", about, flags=re.M)).strip()
        about = re.sub(r"^#+ (.*)\n+", r"**\1.** ", about, flags=re.M)  # a heading of its own would end the item's
        if code.startswith("#define"):
            _, name, *value = code.split(maxsplit=2)
            values.append(f"| `{name}` | `{value[0] if value else ''}` | {' '.join(about.split())} |")
        elif named := _FUNCTION.search(code):
            functions.append((named[1], about, code))
        else:
            kinds.append((_TYPE.search(code)[0], about, code))
    missing = set(_FUNCTION.findall(header)) - {name for name, *_ in functions}
    if missing:
        raise SystemExit(f"{HEADER}: no comment was found above {', '.join(sorted(missing))}")
    about = textwrap.dedent(re.sub(r"^ ?\*", "", header.split("*/")[0].removeprefix("/*"), flags=re.M)).strip()
    parts = ["# C header", f"From `{HEADER}`. [The guide](../docs/c-abi.md) says how to use it.", about]
    parts += ["## Values", "\n".join(["| name | value | meaning |", "|---|---|---|", *values])]
    for title, things in (("Types", kinds), ("Functions", functions)):
        parts.append(f"## {title}")
        parts += [f"### {name}\n\n{about}\n\n{_code('c', code)}" for name, about, code in things]
    return "\n\n".join(parts) + "\n"


def _items(header):
    """Pairs of a comment at the left margin and the declaration under it."""
    lines, about = header.splitlines(), None
    number = 0
    while number < len(lines):
        line = lines[number]
        if line.startswith("/**"):
            end = next(at for at in range(number, len(lines)) if lines[at].rstrip().endswith("*/"))
            about = "\n".join(lines[number + 1 : end])
            number = end
        elif about is not None:
            last = "" if line.startswith("#define") else "};" if line.rstrip().endswith("{") else ";"
            end = next(at for at in range(number, len(lines)) if _ends(lines[at], last))
            yield about, "\n".join(lines[number : end + 1])
            about, number = None, end
        number += 1


def _ends(line, last):
    return line.startswith("}") if last == "};" else line.rstrip().endswith(last)


def _code(language, text):
    return f"```{language}\n{text.strip(chr(10))}\n```"
