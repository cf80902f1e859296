"""Digest of all that a program has trained, to compare bit by bit."""

import hashlib
import os
import sys

import torch


def tell(*trained):
    """Prints one line for modules and optimizers: a digest of each state, in the order that it is given in."""
    digest = hashlib.sha256()
    for each in trained:
        for part in parts(each.state_dict()):
            digest.update(part)
    tell_line("digest", digest.hexdigest())


def tell_line(*words):
    """Prints a line in one write, with the rank: ranks share a pipe."""
    sys.stdout.write(" ".join(map(str, (os.environ.get("RANK", "0"), *words))) + "\n")
    sys.stdout.flush()


def parts(state):
    """Yields bytes of all tensors and numbers of a state."""
    if isinstance(state, dict):
        for key in state:
            yield str(key).encode()
            yield from parts(state[key])
    elif isinstance(state, list | tuple):
        for each in state:
            yield from parts(each)
    elif isinstance(state, torch.Tensor):
        yield from plain_bytes(state.detach())
    else:
        yield repr(state).encode()


def plain_bytes(tensor):
    """Yields the bytes of a tensor, or of those that a subclass is made of."""
    if hasattr(tensor, "__tensor_flatten__"):
        inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        for each in inner:
            if isinstance(each, torch.Tensor):  # and not the mesh of a DTensor
                yield from plain_bytes(each)
    else:
        yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
