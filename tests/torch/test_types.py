"""Tests that the types are true: the typed program uses every public name, and the dictionaries that Tidelog gives have
the keys that their types say. mypy itself is a part of `make lint`.
"""

import ast
import inspect
import typing
from pathlib import Path

import pytest
import torch

import tidelog
from tidelog import _offload
from tidelog.abi import _native
from tidelog.output import _figures

PROGRAM = Path(__file__).with_name("typed") / "program.py"
PACKAGE = Path(tidelog.__file__).parent


def test_the_typed_program_uses_every_public_name():
    tree = ast.parse(PROGRAM.read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    public = set(tidelog.__all__) | {"__version__"}
    public |= {name for name, _ in inspect.getmembers(tidelog.Tide) if not name.startswith("_")}
    for path in (PACKAGE / "integrations").glob("*.py"):
        stated = next(node for node in ast.parse(path.read_text()).body if ast.unparse(node).startswith("__all__"))
        public |= set(ast.literal_eval(stated.value))
    assert public - used == set()


def test_every_option_of_offload_is_in_the_typed_program():
    (call,) = [
        node.items[0].context_expr for node in ast.walk(ast.parse(PROGRAM.read_text()))
        if isinstance(node, ast.With) and "offload" in ast.unparse(node.items[0])
    ]  # fmt: skip
    assert {word.arg for word in call.keywords} == set(tidelog.offload.options) - {"model", "optimizer"}


def test_names_of_policies_are_those_of_the_library():
    assert typing.get_args(_offload.PolicyName) == tuple(policy.name.lower() for policy in _native.Policy)


def keys(kind, value, at="stats"):
    """Describes the errors of a dictionary, by its TypedDict."""
    for choice in typing.get_args(kind) if type(None) in typing.get_args(kind) else ():
        kind = choice if choice is not type(None) and value is not None else kind
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, vars(_figures))
        if set(value) - set(hints) or kind.__required_keys__ - set(value):
            yield f"{at} has {sorted(value)}, not {sorted(hints)}"
        for name, each in hints.items():
            if name in value:
                yield from keys(each, value[name], f"{at}[{name!r}]")
    elif typing.get_origin(kind) is list and value:
        for each in value:
            yield from keys(typing.get_args(kind)[0], each, f"{at}[]")
    elif typing.get_origin(kind) is typing.Literal:
        if value not in typing.get_args(kind):
            yield f"{at} is {value!r}"
    elif isinstance(kind, type) and not isinstance(value, (int, float) if kind is float else kind):
        yield f"{at} is {value!r}, not {kind}"


@pytest.fixture(scope="module")
def loop():
    layers = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])
    return layers, torch.optim.AdamW(layers.parameters())


def test_figures_have_the_keys_of_their_types(pool, loop):
    model, optimizer = loop
    options = {"memory": "2MiB", "staging": "256KiB", "pool_size": "64MiB", "write_budget": "900PB"}
    with tidelog.offload(model, optimizer, pool=pool, **options) as tide:
        assert list(keys(_figures.StepFigures, tide.last_step())) == []
        assert tide.simulate_step() is None  # no plan was followed yet
        for _ in range(6):
            with tide.step():
                model(torch.ones(16, 128)).sum().backward()
                optimizer.step()
        stats = tide.stats()
        assert stats["plan"] is not None and stats["devices"] and stats["lanes"]
        assert list(keys(_figures.Stats, stats)) == []
        assert list(keys(_figures.StepFigures, tide.last_step())) == [] and "seconds" in tide.last_step()
        assert list(keys(_figures.SimulatedStep, tide.simulate_step())) == []
        tide.restore()


def test_a_wrong_key_is_found():
    wrong = {"bytes_per_second": "fast", "from": "guessed", "more": 1}
    assert len(list(keys(_figures.Rate, wrong))) == 3
