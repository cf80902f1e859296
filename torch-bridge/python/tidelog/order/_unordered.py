"""State of a model besides tensors that pass through it, and where the order of micro-batches shows: random numbers,
and what modules keep from one call to the next.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tidelog._errors import OrderError
from tidelog.order import _streams
from tidelog.order._chains import Chain


class Draws:
    """Draws of random numbers. In the program's order one micro-batch draws all of its own before the next one does, so
    in another order only one part may draw.
    """

    def __init__(self) -> None:
        self._drew: list[str] = []
        self._has_streams = False
        self._first = self._state = _states()

    def leave_to_streams(self) -> None:
        """Gives each micro-batch a state of torch's generator to itself."""
        self._has_streams = True
        self.accept()

    def accept(self) -> None:
        """Accepts draws up to here as those of the program's order."""
        self._state = self._seen()

    def _seen(self) -> tuple[Any, ...]:
        return (None, *states_of_others()) if self._has_streams else _states()

    def look(self, part: str) -> None:
        """`part`: what has run since, for all micro-batches or one of them."""
        state = self._seen()
        if state != self._state:
            self._state = state
            if self._drew != [part]:
                self._drew.append(part)
        if len(self._drew) > 1:
            raise OrderError(
                f"{self._drew[0]} and {self._drew[1]} both draw random numbers. In the program's order a micro-batch "
                "draws all of its own before the next one; layer by layer each would get other numbers. Set the "
                "model's dropout to 0, or let no other thread draw from torch's, Python's or NumPy's global generator."
            )

    def refuse_any(self) -> None:
        """Raises an error if anything since has drawn."""
        if self._seen() != self._state:
            raise OrderError("the backward pass draws random numbers, which would be others in another order.")

    def take_back(self) -> None:
        """Puts every generator's state back as it was at the start."""
        _put_back(self._first)


def _states() -> tuple[Any, ...]:
    return (_streams.states(), *states_of_others())


def states_of_others() -> tuple[Any, ...]:
    """Returns the states of the global generators that are not torch's: Python's and NumPy's."""
    numpys: dict[str, Any] = sys.modules["numpy"].random.get_state(legacy=False) if "numpy" in sys.modules else {}
    place = numpys.get("state", {})
    return random.getstate(), (place["pos"], int(place["key"][0])) if "pos" in place else None


def _put_back(states: tuple[Any, ...]) -> None:
    torchs, pythons, _ = states
    _streams.put_states(torchs)
    random.setstate(pythons)


class State:
    """State that modules keep from one call to the next: buffers, and tensors and numbers among their attributes.
    Within a part micro-batches come in the program's order; so what one part alone changes and reads is right. Modules
    of several parts may change nothing.
    """

    def __init__(self, model: nn.Module, chain: Chain) -> None:
        self._chain = chain
        self._modules = {id(module): module for module in model.modules() if module._buffers}
        several = chain.modules_of_several_parts(model)
        self._of_several = {key: each for key, each in several.items() if not isinstance(each, DistributedDataParallel)}
        self._buffers = self._versions()
        self._attributes = self._values()
        self._changed: dict[tuple[int, str], str] = {}  # buffer -> the part that changes it
        self._parameters = list(model.parameters())
        self._parameter_versions = [parameter._version for parameter in self._parameters]

    def look(self, part: str) -> None:
        """`part`: what has run since, for all micro-batches or one of them."""
        known, self._buffers = self._buffers, self._versions()
        if known == self._buffers:
            return
        for key, version in self._buffers.items():
            if known.get(key) == version:
                continue
            first = self._changed.setdefault(key, part)
            name = f"the buffer {key[1]} of {self._chain.name(self._modules[key[0]])}"
            if first != part:
                raise OrderError(f"{name} is changed at {first} and at {part}. {_OTHER_VALUE}")
            if key[0] in self._of_several:
                raise OrderError(f"{name} is changed at {part}, and belongs to other blocks, too. {_OTHER_VALUE}")

    def look_at_attributes(self) -> None:
        """Checks attributes once all parts but the last have run, and before any gradient has changed."""
        for key, value in self._values().items():
            if self._attributes.get(key, ()) != value:
                module = self._chain.name(self._of_several[key[0]])
                raise OrderError(
                    f"the attribute {key[1]} of {module} is changed in the forward pass, and belongs to several blocks. "
                    f"{_OTHER_VALUE} Pass it as an argument."
                )
        if [parameter._version for parameter in self._parameters] != self._parameter_versions:
            raise OrderError(f"the forward pass writes to parameters. {_OTHER_VALUE}")

    def _versions(self) -> dict[tuple[int, str], tuple[int, int]]:
        return {
            (key, name): (id(buffer), buffer._version)
            for key, module in self._modules.items()
            for name, buffer in module._buffers.items()
            if buffer is not None
        }

    def _values(self) -> dict[tuple[int, str], tuple[Any, ...]]:
        return {
            (key, name): (id(value), value._version) if isinstance(value, Tensor) else (value,)
            for key, module in self._of_several.items()
            for name, value in vars(module).items()
            if isinstance(value, (Tensor, int, float))
        }


_OTHER_VALUE = "In another order of micro-batches its value would be another where it is read."
