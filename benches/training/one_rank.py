"""torch.distributed with one rank, which is all that these libraries need to begin."""

import contextlib
import os
import socket

import torch


@contextlib.contextmanager
def variables():
    """Sets the variables that a launcher sets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    yield


@contextlib.contextmanager
def group():
    """A group with gloo."""
    with variables():
        torch.distributed.init_process_group("gloo")
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()
