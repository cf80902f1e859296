"""Names of tensors, for errors and figures: as the model and the optimizer call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from tidelog.abi._native import Kind, Session
from tidelog.checkpoints import _resume
from tidelog.native._module import Ledger
from tidelog.storages._ledger import adopt

Sources: TypeAlias = Callable[[], tuple[nn.Module | None, torch.optim.Optimizer | None]]
# How ranks go on from a checkpoint together.
Together: TypeAlias = Callable[[nn.Module, torch.optim.Optimizer | None], _resume.Resumed | None]


class Names:
    """`sources` returns a model and an optimizer, or None for what there is not."""

    def __init__(self, sources: Sources, ledger: Ledger, session: Session) -> None:
        self._sources = sources
        self._ledger = ledger
        self._session = session

    def follow(self, sources: Sources) -> None:
        """Takes names from other sources."""
        self._sources = sources
        self.name_all()

    def name_all(self) -> None:
        """Names what a model and its optimizer have from the start."""
        model, _ = self._sources()
        if model is not None:
            for name, tensor in model.named_parameters():
                self._name(tensor, Kind.PARAMETER, name)
            for name, buffer in model.named_buffers():
                self._name(buffer, Kind.BUFFER, name)
        self.name_states()

    def name_states(self) -> None:
        """Gradients and optimizer state appear as training goes."""
        names: dict[Tensor, str] = {}
        model, optimizer = self._sources()
        if model is not None:
            for name, parameter in model.named_parameters():
                names[parameter] = name
                if parameter.grad is not None:
                    self._name(parameter.grad, Kind.GRADIENT, f"grad of {name}")
        if optimizer is not None:
            # A look: no update runs for it. What stands for several optimizers makes their state up.
            states = vars(optimizer).get("state")
            for key_of, state in (optimizer.state if states is None else states).items():
                owner = names.get(key_of, "a parameter")
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self._name(value, Kind.OPTIMIZER_STATE, f"{key} of {owner}")

    def state(self) -> dict[str, object]:
        """Returns the state of a run: the state_dicts, and torch's random state."""
        model, optimizer = self._sources()
        state: dict[str, object] = {"rng": _resume.random_state()}
        if model is not None:
            # Detaching would be an op on each.
            state["model"] = model.state_dict(keep_vars=True)
        if optimizer is not None:
            state["optimizer"] = optimizer.state_dict()
        return state

    def resume(self, checkpoint: str) -> _resume.Resumed | None:
        """The model, its optimizer and torch's random state go on from a checkpoint."""
        model, optimizer = self._sources()
        assert model is not None
        resumed = _resume.resume(self._session, checkpoint, model, optimizer)
        self.name_all()
        return resumed

    def resume_together(self, resume: Together) -> _resume.Resumed | None:
        """Resumes with all ranks, before their blocks."""
        model, optimizer = self._sources()
        assert model is not None
        return resume(model, optimizer)

    def forget(self) -> None:
        """Lets go of the model and the optimizer: what stays out lives as long as its owner."""
        self._sources = lambda: (None, None)

    def _name(self, tensor: Tensor, kind: Kind, name: str) -> None:
        record = adopt(self._ledger, tensor)
        if record is not None and record.name != name:
            self._session.name(self._ledger.number_of(record), kind, name)
            record.name = name
