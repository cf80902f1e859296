"""Limits of a budget: a machine's, a container's or a GPU's memory."""

from __future__ import annotations

import torch
from torch import nn

from tidelog._errors import Error
from tidelog._options import Size
from tidelog.abi._host import host_memory
from tidelog.output._notebook import binary

# Of memory that is free, what a budget does not take: the program, its libraries and other processes have more than
# tensors there.
_SPARED_PARTS = 5


def refuse_more_than_there_is(option: str, asked: Size, ranks: int) -> None:
    """Raises an Error where an option asks for more of the host's memory than this machine, or this container, has.
    `ranks`: how many processes here ask for so much."""
    host = host_memory()
    most = host["machine"] if host["limit"] is None else host["limit"]
    if asked * ranks <= most:
        return
    whose = "this machine has"
    if host["limit"] is not None:
        whose = f"this process may use with others of its control group ({host['limit_file']})"
    each = f", for each of {ranks} ranks here," if ranks > 1 else ""
    raise Error(
        f"{option}={asked.said!r}{each} is more than the {binary(most)} that {whose}, and the kernel would end the "
        "program. It has more there than tensors: take less."
    )


def budget_of_what_is_free(place: torch.device, model: nn.Module | None, ranks: int) -> int:
    """The budget that memory="auto" is: of what is free now all but a part that others need, and what the model has
    already. `ranks`: how many processes share the host's memory."""
    if place.type == "cpu":
        free = host_memory()["available"] // ranks
    else:
        free = torch.cuda.mem_get_info(place)[0]
        # What torch caches is free, too.
        free += torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
    tensors = [*model.parameters(), *model.buffers()] if model is not None else []
    storages = {each.untyped_storage().data_ptr(): each.nbytes for each in tensors if each.device == place}
    return free - free // _SPARED_PARTS + sum(storages.values())
