"""The options of offload: users know its signature, its help teaches each, and what makes no sense
is refused."""

import inspect
from pathlib import Path

import pytest

import tidelog
from tidelog import _options

# The public signature: a change here is one that users see.
REQUIRED = ("pool", "memory")
DEFAULTS = {
    "model": None,
    "optimizer": None,
    "host_memory": None,
    "device": "auto",
    "mode": "auto",
    "policy": "auto",
    "what": "all",
    "updates": "own",
    "recompute": "own",
    "blocks": None,
    "parts": "whole",
    "allocator": "torch",
    "write_budget": None,
    "pool_size": None,
    "staging": None,
    "data_path": "auto",
    "buffered": False,
    "must_exist": False,
    "sparse": False,
    "degraded": False,
    "share": None,
    "resume": None,
    "report": None,
}
ORDER = ["model", "optimizer", "pool", "memory", *list(DEFAULTS)[2:]]


def test_the_signature_is_what_users_know():
    parameters = inspect.signature(tidelog.offload).parameters
    assert list(parameters) == ORDER
    for name, parameter in parameters.items():
        assert parameter.default == DEFAULTS.get(name, parameter.empty), name
        by_place = parameter.kind == parameter.POSITIONAL_OR_KEYWORD
        assert by_place == (name in ("model", "optimizer")), name


def test_the_help_teaches_each_option_in_their_order():
    lines = inspect.getdoc(tidelog.offload).splitlines()
    explained = [line.split()[0] for line in lines if line[:1].isalpha() and line[16:18] == "  "]
    assert explained == ORDER
    assert max(map(len, lines)) <= 100
    assert "8 times the tensors alive" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (dict(memory="lots"), r"^memory='lots': expected a size such as 20GiB, .* or 21474836480\.$"),
        (dict(memory=0), r"^memory=0: must be above zero\.$"),
        (dict(memory=True), r"^memory=True: expected a size"),
        (dict(memory=None), r"^memory=None: expected a size"),
        (dict(staging="-1"), r"^staging='-1': expected a size"),
        (dict(host_memory="none"), r"^host_memory='none': expected a size"),
        (dict(pool_size=[]), r"^pool_size=\[\]: expected a size"),
        (dict(write_budget="2TB/s"), r"^write_budget='2TB/s': expected bytes a day such as 2TB, 500GB/day or "),
        (dict(write_budget=2), r"^write_budget=2: less than 1GB a day, .*; for 2 TB say '2TB'\.$"),
        (dict(write_budget=0), r"^write_budget=0: less than 1GB a day"),
        (dict(write_budget=True), r"^write_budget=True: expected bytes a day"),
        (dict(write_budget="-2TB"), r"^write_budget='-2TB': expected bytes a day"),
        (dict(write_budget=2.5), r"^write_budget=2\.5: less than 1GB a day"),
        (dict(write_budget="99999999PB"), r"^write_budget='99999999PB': more than any device takes\.$"),
        (dict(mode="sometimes"), r"^mode='sometimes': expected 'auto' or 'reactive'\.$"),
        (dict(policy="lru"), r"^policy='lru': expected one of 'auto', 'algorithm1', 'tidelog'\.$"),
        (dict(policy=["auto"]), r"^policy=\['auto'\]: expected one of "),
        (dict(memory="64KiB"), r"^memory='64KiB' leaves nothing beside .* of 262144 bytes; give "),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(said, message):
    with pytest.raises(tidelog.Error, match=message):
        tidelog.offload(**{"pool": "/nowhere", "memory": "1GiB", "device": "cpu", **said})


def test_options_that_are_missing_or_unknown_are_type_errors():
    with pytest.raises(TypeError, match=r"offload\(\) missing .* 'pool' and 'memory'"):
        tidelog.offload()
    with pytest.raises(TypeError, match=r"offload\(\) got an unexpected keyword argument 'memroy'"):
        tidelog.offload(pool="/nowhere", memroy="1GiB")


def test_sizes_are_read_as_the_table_of_the_other_tools_says():
    table = Path(__file__).parents[2] / "tools" / "command-line" / "src" / "sizes.tsv"
    lines = [line for line in table.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert len(lines) > 50
    for said, expected in (line.split("\t") for line in lines):
        if expected.isdigit():
            read = _options.size(said, "memory")
            assert (read, read.said) == (int(expected), said)
        else:
            with pytest.raises(tidelog.Error) as refused:
                _options.size(said, "memory")
            assert str(refused.value) == f"memory={said!r}: {expected}."


def test_sizes_may_be_numbers():
    assert _options.size(1048576, "memory") == 1 << 20
    assert _options.size(2.5e9, "memory") == 2_500_000_000
    with pytest.raises(tidelog.Error, match="more than any device has"):
        _options.size(1 << 64, "memory")


def test_what_is_said_as_the_default_is_the_default():
    """None, said for an option that has this default, is no size, and no error."""
    none = dict.fromkeys(("staging", "host_memory", "pool_size"))
    tide = tidelog.offload(pool="/nowhere", memory="1GiB", device="cpu", **none)
    assert (tide.budget, tide.staging) == (1 << 30, 16 << 20)
