"""Names of tensors, for errors and figures: as the model and the optimizer call them."""

import torch

from tidelog._ledger import Ledger
from tidelog._native import Kind, Session


class Names:
    """`sources` returns a model and an optimizer, or None for what there is not."""

    def __init__(self, sources, ledger: Ledger, session: Session):
        self._sources = sources
        self._ledger = ledger
        self._session = session

    def follow(self, sources):
        """From here on names come from others."""
        self._sources = sources
        self.name_all()

    def name_all(self):
        """Names what a model and its optimizer have from the start."""
        model, _ = self._sources()
        if model is not None:
            for name, tensor in model.named_parameters():
                self._name(tensor, Kind.PARAMETER, name)
            for name, tensor in model.named_buffers():
                self._name(tensor, Kind.BUFFER, name)
        self.name_states()

    def name_states(self):
        """Gradients and optimizer state appear as training goes."""
        names = {}
        model, optimizer = self._sources()
        if model is not None:
            for name, parameter in model.named_parameters():
                names[parameter] = name
                if parameter.grad is not None:
                    self._name(parameter.grad, Kind.GRADIENT, f"grad of {name}")
        if optimizer is not None:
            for parameter, state in optimizer.state.items():
                owner = names.get(parameter, "a parameter")
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self._name(value, Kind.OPTIMIZER_STATE, f"{key} of {owner}")

    def forget(self):
        """Lets go of the model and the optimizer: what stays out lives as long as its owner."""
        self._sources = lambda: (None, None)

    def _name(self, tensor, kind, name):
        record = self._ledger.adopt(tensor)
        if record is not None and record.name != name:
            self._session.name(self._ledger.number_of(record), kind, name)
            record.name = name
