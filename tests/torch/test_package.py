"""Tests of the rules of the Python package's rooms, read from its source."""

import ast
import graphlib
import re
import runpy
from pathlib import Path

import pytest

import tidelog

PACKAGE = Path(tidelog.__file__).resolve().parent
KNOWN = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "tidy" / "known.py"))
CALL_THE_LIBRARY = {Path(path).stem for path in KNOWN["ABI_MODULES"]}

# What Tidelog hangs on torch's storages, and what other packages call by such names.
SHARED = {"_tide", "_tide_update", "_tide_whole"}
FOREIGN = {"_C", "_cdata", "_fields_", "_indices", "_schema", "_values"}
FOREIGN |= {f"_{whose}_{when}_hooks" for whose in ("global_optimizer", "optimizer_step") for when in ("pre", "post")}
FOREIGN |= {"_backward_hooks", "_compiled_call_impl", "_is_view", "_sequence_nr", "_version"}
FOREIGN |= {"_attn_implementation", "_current_frames", "_exit", "_getframe", "_model_mapping", "_op_dk"}
FOREIGN |= {
    "_WorkItem",
    "_get_ddp_logging_data",
    "_get_method",
    "_method_names",
    "_foreach_supported_types",
    "_local_tensor",
    "_spec",
}
# Of torch.distributed's DDP and FSDP2, which micro-batches layer by layer reduce and gather with.
FOREIGN |= {"_autograd_hook", "_comm_ctx", "_fsdp_param_group", "_get_fsdp_state", "_is_root", "_join_config"}
FOREIGN |= {"_lazy_init", "_module_parameters", "_param_fqn", "_root_post_backward_final_callback", "_state_ctx"}
# What FSDP2 gathers.
FOREIGN |= {"_all_gather_result", "_unsharded_param"}
# What counts storages and says where they are: for the ledger alone to change.
LEDGERS = {"births", "id", "live", "marked", "peak", "pins", "quiet", "size", "state", "reported"}
OF_RECORDS = {"id", "pins", "size", "state", "reported"}
REACH_MAX = 3


def sources():
    """Every module but those of integrations, which use what users do, and those of rooms, which say what is there."""
    modules = (path for path in PACKAGE.rglob("*.py") if path.parent.name != "integrations")
    return {path.stem: path.read_text() for path in modules if path.stem != "__init__" or path.parent == PACKAGE}


# -- the rules: each yields a sentence for what breaks it -----------------------------------------


def circles(modules):
    """No module imports one that imports it, directly or not, nor inside a function."""
    imports = {name: set(_imported(tree)) & modules.keys() for name, tree in modules.items()}

    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        yield "modules import each other: " + ", ".join(error.args[1])


def _imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tidelog":
            yield node.module.rpartition(".")[2]
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name.rpartition(".")[2] for each in node.names)


def library_calls(modules):
    """No module but those that are known to calls the library."""
    for name, tree in modules.items():
        if name in CALL_THE_LIBRARY:
            continue
        for node in _attributes(tree):
            if node.attr.startswith("tide_"):
                yield f"{name}:{node.lineno} uses {node.attr}; call a method of _native.Session"


def private_names(modules):
    """No module touches a private name of another."""
    for name, tree in modules.items():
        known = SHARED | FOREIGN | _own(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidelog."):
                names = {alias.name for alias in node.names} - modules.keys()
            elif isinstance(node, ast.Attribute) and _root(node) not in ("self", "cls", "torch"):
                names = {node.attr} - known
            else:
                continue
            for private in names:
                if private.startswith("_") and not private.endswith("__"):
                    yield f"{name}:{node.lineno} touches {private}, which is another's"


def _own(tree):
    """The names of a module's functions and classes, and of its classes' attributes."""
    definitions = (ast.FunctionDef, ast.ClassDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, definitions)}
    set_by_self = (node for node in _stores(tree) if _root(node) == "self")
    return names | {node.attr for node in set_by_self}


def reaches(modules):
    """No object reaches through three others."""
    for name, tree in modules.items():
        for node in _attributes(tree):
            chain = ast.unparse(node)
            if _root(node) not in ("torch", None) and chain.count(".") > REACH_MAX:
                yield f"{name}:{node.lineno} reaches through too many others: {chain}"


def counts(modules):
    """Checks that the ledger alone changes what is in memory, and where storages are."""
    for name, tree in modules.items():
        for node in _stores(tree):
            owner = ast.unparse(node.value).rpartition(".")[2].lstrip("_")
            changed = LEDGERS if owner == "ledger" else OF_RECORDS if owner == "record" else ()
            if name != "_ledger" and node.attr in changed:
                yield f"{name}:{node.lineno} changes {ast.unparse(node)}; ask the ledger to"


def _attributes(tree):
    return (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))


def _stores(tree):
    """The attributes that are assigned to."""
    return (node for node in _attributes(tree) if isinstance(node.ctx, ast.Store))


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
    "an import that closes a circle": (circles, "_record", "from tidelog.storages import _ledger"),
    "one inside a function": (circles, "_ops", "def late():\n    from tidelog.dispatch._hook import Hook"),
    "a raw call": (library_calls, "_names", "session.library.tide_session_name(1)"),
    "a private name of another": (private_names, "_names", "from tidelog.memory._record import _lending"),
    "a private function of a module": (private_names, "_names", "_ledger._resizable(storage)"),
    "another class's private attribute": (private_names, "_names", "ledger._device.owns(storage)"),
    "a long reach": (reaches, "_names", "record.ledger.tide.access.hand_over(storage)"),
    "a count": (counts, "_requests", "self._ledger.live -= record.size"),
    "where a storage is": (counts, "_requests", "record.state = 4"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_what_breaks_a_rule_is_found(case):
    rule, module, line = PLANTED[case]
    texts = sources()
    texts[module] += f"\n{line}\n"
    assert list(rule({name: ast.parse(text) for name, text in texts.items()}))


# -- the module in C++ ----------------------------------------------------------------------------------

# A name of Python's in C++: of the list in python.h, or in a call of Python's C API.
NAMES = re.compile(r"NAME\((\w+)\)|(?:Attr|Method)\w*\([^;]*?\"(\w+)\"")


def private_names_in_cpp(text):
    return [name for found in NAMES.findall(text) for name in found if name.startswith("_")]


def test_what_is_in_cpp_reads_no_private_attribute():
    for path in [*(PACKAGE / "native").glob("*.h"), PACKAGE / "native" / "module.cpp"]:
        assert private_names_in_cpp(path.read_text()) == [], path.name
    assert private_names_in_cpp("NAME(_heap);") == ["_heap"]
    assert private_names_in_cpp('PyObject_GetAttrString(hook, "_steps")') == ["_steps"]
