"""Cuts of the graph of a micro-batch in parts, and its backward pass, a part at a time.

A tensor that passes from one part to another gets a node of its own (`_Cut`) in place of its graph:
what uses it afterwards ends there. Once a later part's backward pass has run, the node has its
gradient, with which the backward pass of the part that made the tensor begins. Sums come out as in
one backward pass, because autograd's engine adds what arrives at a tensor in the order in which it
runs the tensor's users, the last one first: what later parts have added up is given to it first.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn import Parameter

from tidelog._errors import OrderError
from tidelog.order import _gathered

_PLAIN = (Tensor, Parameter)
_REENTRANT = "Checkpointing with use_reentrant=True hides its graph: pass use_reentrant=False."


class _Cut(torch.autograd.Function):
    """Ends the graph at a tensor. `anchor` makes the result require a gradient."""

    @staticmethod
    def forward(context: Any, anchor: Tensor, tensor: Tensor) -> Tensor:
        context.mark_dirty(tensor)
        context.set_materialize_grads(False)
        return tensor

    @staticmethod
    def backward(context: Any, gradient: Tensor | None) -> tuple[None, None]:
        crossing: Crossing | None = getattr(context, "crossing", None)
        if crossing is None:
            raise OrderError("a tensor is used whose graph tidelog.accumulate has cut off, after it has ended.")
        if gradient is not None:
            crossing.gradient = gradient
        return None, None


@dataclass(eq=False)
class Crossing:
    """A tensor that passes from one part to others."""

    origin: GradientEdge | None  # where its gradient goes on
    end: GradientEdge  # the cut, where it is added up
    owner: Graph
    gradient: Tensor | None = None


# Leaves, by id, whose gradients are being made in part: other parts add to them.
_incomplete: set[int] = set()


def is_incomplete(leaf: Tensor) -> bool:
    """Returns whether what a backward pass adds to a leaf's gradient now is a part that is added up elsewhere."""
    return id(leaf) in _incomplete


# Nodes by id, and whose they are.
Seen: TypeAlias = "dict[int, tuple[Node, Graph]]"


@dataclass(eq=False)
class Part:
    """The nodes of one micro-batch between two boundaries."""

    made: list[Crossing] = field(default_factory=list)  # tensors that it made and later parts use
    used: list[Crossing] = field(default_factory=list)  # tensors that it uses and earlier parts made
    leaves: dict[int, Tensor] = field(default_factory=dict)  # by id: parameters, and what else gets a .grad


def refuse_gradients_of_others(outputs: Iterable[Tensor | GradientEdge]) -> None:
    """Refuses a backward pass of the program's own that would come to a cut and end there."""
    todo = [each.node if isinstance(each, GradientEdge) else each.grad_fn for each in outputs]
    seen: dict[int, Node] = {}
    while todo:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        if hasattr(node, "crossing"):
            raise OrderError("loss_of computes gradients through blocks itself: it must only return the loss.")
        seen[id(node)] = node
        todo += [following for following, _ in node.next_functions]


def _hooks_of(tensor: Tensor) -> list[object]:
    return list((tensor._backward_hooks or {}).values())


class Graph:
    """The graph of one micro-batch, in parts. `name`: the micro-batch, in words."""

    def __init__(self, name: str, names: list[str], anchor: Tensor) -> None:
        """`names`: of parts, as far as they are known."""
        self.name = name
        self.parts: list[Part] = []
        self.users: dict[int, list[int]] = {}  # leaf -> the parts that use it, the first of them first
        self.casts: set[tuple[int, int]] = set()  # leaf, part: it uses it in another type
        self._names = names
        self._anchor = anchor
        self._begins: list[int] = []  # the number of each part's first node
        self._replaced: dict[tuple[int, int], Tensor] = {}  # edge -> what stands for a view since its cut
        self._crossings: list[Crossing] = []
        self._partial: dict[int, Tensor] = {}  # leaf -> its gradient, of the parts that have run

    # -- forward ----------------------------------------------------------------------------------

    def begin_part(self) -> None:
        """Called in the micro-batch's thread, whose nodes have numbers in order."""
        self._begins.append(torch._C._autograd._get_sequence_nr())
        self.parts.append(Part())

    def cut(self, value: Any) -> Any:
        """`value` with the graphs of its tensors cut off. Lists and dictionaries stay the same ones."""
        if isinstance(value, Tensor):
            return self._cut_tensor(value)
        if isinstance(value, tuple):
            items = [self.cut(item) for item in value]
            if all(new is old for new, old in zip(items, value)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        pairs: Iterator[tuple[Any, Any]]
        if isinstance(value, list):
            pairs = iter(enumerate(value))
        elif isinstance(value, dict):
            pairs = iter(list(value.items()))
        else:
            return value
        for key, item in pairs:
            if (new := self.cut(item)) is not item:
                value[key] = new
        return value

    def _cut_tensor(self, tensor: Tensor) -> Tensor:
        node = tensor.grad_fn
        if node is None or hasattr(node, "crossing"):
            return tensor
        if type(tensor) not in _PLAIN:
            raise OrderError(f"a {type(tensor).__name__} passes between blocks; only plain tensors can so far.")
        if not torch.is_grad_enabled():
            raise OrderError(f"a block is called without gradients, with a tensor that needs one. {_REENTRANT}")
        if tensor.retains_grad or not all(map(_gathered.is_ours, _hooks_of(tensor))):
            raise OrderError("a tensor that passes between blocks has a hook, or retain_grad(): remove it.")
        origin = get_gradient_edge(tensor)
        made = self._part_of(origin.node)
        if made < 0:
            raise OrderError(
                f"{self.name} uses a tensor with a graph from before: compute it in loss_of, or detach it."
            )
        key = (id(origin.node), origin.output_nr)
        if key in self._replaced:
            return self._replaced[key]
        if tensor._is_view():  # which cannot be cut off in place
            new = self._replaced[key] = tensor.detach()
        else:
            new = tensor.detach_()  # whoever holds it has it cut
            if new._backward_hooks is not None:
                new._backward_hooks = None  # those that there are belong to the node from before
        with _unsafe_preserve_version_counter(new):
            _Cut.apply(self._anchor, new)
        crossing = Crossing(origin, get_gradient_edge(new), self)
        setattr(crossing.end.node, "crossing", crossing)
        self._crossings.append(crossing)
        self.parts[made].made.append(crossing)
        return new

    # -- what each part is made of ----------------------------------------------------------------

    def explore(self, number: int, seen: Seen, loss: Tensor | None = None) -> None:
        """Finds what a part is made of, and refuses nodes that are not its own. `seen`: nodes of this
        part, of every micro-batch so far. The last part has the loss."""
        part = self.parts[number]
        roots = [each.origin.node for each in part.made if each.origin]
        if loss is not None and loss.grad_fn is not None:
            roots.append(loss.grad_fn)
        todo: list[Node] = []
        for root in roots:
            self._reach(root, None, number, seen, todo)
        while todo:
            node = todo.pop()
            for following, _ in node.next_functions:
                if following is not None:
                    self._reach(following, node, number, seen, todo)

    def _reach(self, node: Node, user: Node | None, number: int, seen: Seen, todo: list[Node]) -> None:
        part, where = self.parts[number], self._names[number]
        crossing: Crossing | None = getattr(node, "crossing", None)
        if crossing is not None:
            if crossing.owner is not self:
                raise OrderError(f"{self.name} uses a tensor of {crossing.owner.name}, at {where}.")
            if crossing not in part.used:
                part.used.append(crossing)
        elif type(node).__name__ == "AccumulateGrad":
            leaf: Tensor = node.variable  # type: ignore[attr-defined]
            if id(leaf) not in part.leaves:
                part.leaves[id(leaf)] = leaf
                self.users.setdefault(id(leaf), []).append(number)
            if user is not None and user.name().startswith("ToCopy"):
                self.casts.add((id(leaf), number))
        elif id(node) in seen:
            if seen[id(node)][1] is not self:
                raise OrderError(
                    f"{self.name} and {seen[id(node)][1].name} share what {node.name()} belongs to, at {where}: it was "
                    "computed once for both. Compute it for each."
                )
        else:
            self._take(node, number)
            seen[id(node)] = node, self
            todo.append(node)

    def _take(self, node: Node, number: int) -> None:
        made = self._part_of(node)
        if made != number:
            when = f"was made at {self._names[made]}" if made >= 0 else "was made before"
            raise OrderError(
                f"{self.name}: what is computed at {self._names[number]} uses a tensor that {when} (by {node.name()}) "
                "and that no block got as an argument. Pass it to the block that uses it, or name other blocks."
            )
        if node.name() == "CheckpointFunctionBackward":
            raise OrderError(_REENTRANT)

    def _part_of(self, node: Node) -> int:
        return bisect.bisect_right(self._begins, node._sequence_nr()) - 1

    # -- backward ---------------------------------------------------------------------------------

    def backward(self, number: int, loss: Tensor | None = None) -> None:
        """The backward pass of a part, after that of all later ones."""
        part, self.parts[number] = self.parts[number], Part()
        roots: list[Any] = []
        gradients: list[Tensor | None] = []
        if loss is not None:
            roots.append(loss)
            gradients.append(None)
        for each in part.made:
            if each.gradient is not None:
                roots.append(each.origin)
                gradients.append(each.gradient)
            each.origin = each.gradient = None
        incomplete: list[tuple[Tensor, Tensor | None]] = []  # leaves that earlier parts use, and their .grad
        for key, leaf in part.leaves.items():
            if key in self._partial:
                roots.append(get_gradient_edge(leaf))
                gradients.append(self._partial.pop(key))
            if self.users[key][0] < number:
                incomplete.append((leaf, leaf.grad))
        if not roots:
            return
        for each in part.used:
            if each.gradient is not None:
                roots.append(each.end)
                gradients.append(each.gradient)
        try:
            for leaf, _ in incomplete:
                leaf.grad = None
                _incomplete.add(id(leaf))
            torch.autograd.backward(roots, gradients)
            for leaf, _ in incomplete:
                if leaf.grad is not None:
                    self._partial[id(leaf)] = leaf.grad
        finally:
            _incomplete.clear()
            for leaf, before_this in incomplete:
                leaf.grad = before_this

    def close(self) -> None:
        """Closes the cut: nothing refers to the graph any more, nor the graph to anything."""
        for each in self._crossings:
            if hasattr(each.end.node, "crossing"):
                delattr(each.end.node, "crossing")
            each.origin = each.gradient = None
        self.parts.clear()
        self._crossings.clear()
        self._replaced.clear()
        self._partial.clear()
