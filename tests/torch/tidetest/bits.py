"""Comparing bit for bit: any result a test can return becomes plain bytes, and differences are told briefly."""

import numpy
import torch


def bits(tensor):
    """A tensor's dtype, shape and bytes, as values that no later write can change."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, not {type(tensor).__name__}")
    if tensor.layout == torch.sparse_coo:
        return ("sparse", tuple(tensor.shape), bits(tensor._indices()), bits(tensor._values()))
    with torch.no_grad():
        # The clone is a storage of its own, so that numpy's alias is of the clone and not of the tensor.
        flat = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
        data = flat.view(torch.uint8).cpu().numpy().tobytes() if flat.numel() else b""
    return ("tensor", str(tensor.dtype), tuple(tensor.shape), data)


def frozen(value):
    """Freezes dicts, lists, arrays, strings and numbers, at any depth."""
    if isinstance(value, torch.Tensor):
        return bits(value)
    if isinstance(value, numpy.ndarray):
        return ("array", str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, dict):
        return ("dict", tuple((frozen(key), frozen(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, tuple(frozen(item) for item in value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ("bytes", bytes(value))
    return (type(value).__name__, repr(value))  # repr tells every float from every other, and NaN equals NaN


def outcome(function, *arguments):
    """Returns the frozen result of a call; where it raises, the kind of error (plain torch refuses some touches too)."""
    try:
        return frozen(function(*arguments))
    except Exception as error:
        # Torch's own text may tell addresses; ours must never stand where plain torch gives a result.
        return (
            "raised",
            type(error).__name__,
            str(error)[:300] if "tidelog" in f"{error} {type(error)}".lower() else "",
        )


def difference(expected, got, path="result"):
    """Returns the first place where two frozen values differ, in one line; None where they are the same."""
    if expected == got:
        return None
    if type(expected) is tuple and type(got) is tuple and len(expected) == len(got):
        for place, (one, other) in enumerate(zip(expected, got)):
            found = difference(one, other, f"{path}[{one!r:.40}]" if isinstance(one, str) else f"{path}.{place}")
            if found:
                return found
    if isinstance(expected, bytes) and isinstance(got, bytes) and len(expected) == len(got):
        wrong = [i for i, (one, other) in enumerate(zip(expected, got)) if one != other]
        zeros = " and all of them are zero" if not any(got) else ""
        return f"{path}: {len(wrong)} of {len(got)} bytes differ, the first at {wrong[0]}{zeros}"
    return f"{path}: expected {expected!r:.200}, got {got!r:.200}"


def assert_same(expected, got, what="result"):
    """Fails in one line; comparing megabytes with a bare `assert ==` would take pytest minutes to explain."""
    found = difference(expected, got, what)
    if found:
        raise AssertionError(found)
