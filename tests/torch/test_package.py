"""Who may touch what in the Python package: the rules of its rooms, read from its source."""

import ast
import graphlib
from pathlib import Path

import pytest

import tidelog

PACKAGE = Path(tidelog.__file__).resolve().parent

# What Tidelog hangs on torch's storages, and what other packages call by such names.
SHARED = {"_tide", "_tide_whole", "_aliased"}
FOREIGN = {"_C", "_attn_implementation", "_cdata", "_fields_", "_indices", "_model_mapping", "_schema", "_values"}
# What counts storages and says where they are: for the ledger alone to change.
LEDGERS = {"births", "id", "live", "marked", "peak", "pins", "quiet", "size", "state", "told"}
OF_RECORDS = {"id", "pins", "size", "state", "told"}
REACH_MAX = 3


def sources():
    return {path.stem: path.read_text() for path in PACKAGE.glob("*.py")}


# -- the rules: each yields a sentence for what breaks it ---------------------------------------------


def circles(modules):
    """No module imports one that imports it, directly or not, nor inside a function."""
    imports = {name: set(_imported(tree)) & modules.keys() for name, tree in modules.items()}

    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        yield "modules import each other: " + ", ".join(error.args[1])


def _imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tidelog":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidelog."):
            yield node.module.removeprefix("tidelog.")
        elif isinstance(node, ast.Import):
            yield from (each.name.removeprefix("tidelog.") for each in node.names)


def library_calls(modules):
    """No module but _native calls the library."""
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if name != "_native" and isinstance(node, ast.Attribute) and node.attr.startswith("tide_"):
                yield f"{name}:{node.lineno} uses {node.attr}; call a method of _native.Session"


def private_names(modules):
    """No module touches a private name of another."""
    for name, tree in modules.items():
        own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        own |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _root(node) == "self"
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidelog."):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute) and _root(node) not in ("self", "cls", "torch"):
                names = [node.attr] if node.attr not in own | SHARED | FOREIGN else []
            else:
                continue
            for private in names:
                if private.startswith("_") and not private.endswith("__"):
                    yield f"{name}:{node.lineno} touches {private}, which is another's"


def reaches(modules):
    """No object reaches through three others."""
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _root(node) not in ("torch", None):
                if (depth := ast.unparse(node).count(".")) > REACH_MAX:
                    yield f"{name}:{node.lineno} reaches through {depth - 1} others: {ast.unparse(node)}"


def counts(modules):
    """What is in memory, and where storages are, is changed by the ledger alone."""
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
                continue
            owner = ast.unparse(node.value).rpartition(".")[2].lstrip("_")
            changed = LEDGERS if owner == "ledger" else OF_RECORDS if owner == "record" else ()
            if name != "_ledger" and node.attr in changed:
                yield f"{name}:{node.lineno} changes {ast.unparse(node)}; ask the ledger to"


def _root(node):
    """The name at the left end of a chain of attributes; None: a call or the like is there."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


RULES = (circles, library_calls, private_names, reaches, counts)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_to(rule):
    assert list(rule({name: ast.parse(text) for name, text in sources().items()})) == []


PLANTED = {
    "an import that closes a circle": (circles, "_record", "from tidelog import _ledger"),
    "one inside a function": (circles, "_ops", "def late():\n    from tidelog._hook import Hook"),
    "a raw call": (library_calls, "_names", "session.library.tide_session_name(1)"),
    "another module's private name": (private_names, "_names", "from tidelog._record import _lending"),
    "a private function of a module": (private_names, "_names", "_ledger._resizable(storage)"),
    "another class's private attribute": (private_names, "_names", "ledger._device.owns(storage)"),
    "a long reach": (reaches, "_names", "record.ledger.tide.access.hand_over(storage)"),
    "a count": (counts, "_performer", "self._ledger.live -= record.size"),
    "where a storage is": (counts, "_performer", "record.state = 4"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_what_breaks_a_rule_is_found(case):
    rule, module, line = PLANTED[case]
    texts = sources()
    texts[module] += f"\n{line}\n"
    assert list(rule({name: ast.parse(text) for name, text in texts.items()}))
