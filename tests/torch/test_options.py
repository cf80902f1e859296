"""The options of offload: users know its signature, its help teaches each, and what makes no sense
is refused."""

import inspect

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
    "mover": "auto",
    "updates": "own",
    "recompute": "own",
    "blocks": None,
    "parts": "whole",
    "pool_size": None,
    "staging": None,
    "data_path": "auto",
    "buffered": False,
    "must_exist": False,
    "sparse": False,
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
        (dict(memory="lots"), r"^memory='lots': expected .* such as \"20GiB\" or 21474836480\.$"),
        (dict(memory=0), r"^memory=0: must be above zero\.$"),
        (dict(memory=True), r"^memory=True: expected a number of bytes"),
        (dict(memory=None), r"^memory=None: expected a number of bytes"),
        (dict(staging="-1"), r"^staging='-1': expected a number of bytes"),
        (dict(host_memory="none"), r"^host_memory='none': expected a number of bytes"),
        (dict(pool_size=[]), r"^pool_size=\[\]: expected a number of bytes"),
        (dict(mode="sometimes"), r"^mode='sometimes': expected 'auto' or 'reactive'\.$"),
        (dict(policy="lru"), r"^policy='lru': expected one of 'auto', 'algorithm1', 'tidelog'\.$"),
        (dict(policy=["auto"]), r"^policy=\['auto'\]: expected one of "),
        (dict(mover="teleport"), r"^mover='teleport': expected 'auto', 'resize' or 'swap'\.$"),
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


@pytest.mark.parametrize(
    ("said", "size"),
    [
        (1048576, 1 << 20),
        ("1048576", 1 << 20),
        ("512M", 512 << 20),
        ("1.5 GiB", 3 << 29),
        ("20gb", 20 << 30),
        ("1t", 1 << 40),
    ],
)
def test_sizes_are_said_in_many_ways(said, size):
    read = _options.size(said, "memory")
    assert read == size and read.said == said


def test_what_is_said_as_the_default_is_the_default():
    """None, said for an option that has this default, is no size, and no error."""
    none = dict.fromkeys(("staging", "host_memory", "pool_size"))
    tide = tidelog.offload(pool="/nowhere", memory="1GiB", device="cpu", **none)
    assert (tide.budget, tide.staging) == (1 << 30, 16 << 20)
