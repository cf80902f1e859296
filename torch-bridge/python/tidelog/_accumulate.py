"""Gradient accumulation layer by layer: all micro-batches pass a block before the next one.

Micro-batches are forward passes that are suspended (`_coroutines`) where a block is called (`_chains`).
Their graphs are cut there (`_crossings`), so that the backward pass goes block by block, too, in the
thread that calls. Gradients are added up in the program's order.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.utils._pytree import tree_leaves

from tidelog._errors import OrderError
from tidelog.block import _block
from tidelog.escapes import _collectives
from tidelog.memory._record import untyped_storage
from tidelog.order import _early, _replicas, _streams
from tidelog.order._chains import CallsSeen, Chain, gradients_seen, refuse_reducers
from tidelog.order._coroutines import Surroundings, Coroutine
from tidelog.order._crossings import Graph, Seen, is_incomplete, refuse_gradients_of_others
from tidelog.order._gathered import Gathered
from tidelog.order._replicas import replicas_of
from tidelog.order._streams import Known
from tidelog.order._unordered import Draws, State

_Batch = TypeVar("_Batch")
_log = logging.getLogger("tidelog")
# The pass that runs, if one does: one at a time in a process.
_pass: weakref.ref[_Pass] | None = None


def accumulate(
    model: nn.Module,
    micro_batches: Iterable[_Batch],
    loss_of: Callable[[nn.Module, _Batch], Tensor],
    *,
    blocks: Iterable[nn.Module] | None = None,
) -> list[Tensor]:
    """Adds up the gradients of micro-batches, all of which pass a block of layers before the next one.

    The same bits as this loop, whose losses it returns, detached:

        for micro_batch in micro_batches:
            loss_of(model, micro_batch).backward()

    In the loop's order a model that does not fit in memory has its parameters fetched twice for every
    micro-batch; here twice a step. The price: what the backward pass needs of every micro-batch is
    kept at once. `loss_of` divides by the number of micro-batches, where that is wanted, and must not use
    what another micro-batch leaves behind. `blocks`: the layers in the order of their calls; default:
    the model's lists of modules. Works inside an offload block, and without one.

    With dropout the first call runs forward in the loop's order, to count what is drawn.

    With DistributedDataParallel and `fully_shard` gradients are reduced once, as by the loop whose passes but the last
    run in `no_sync()`, or with `set_requires_gradient_sync(False)`. All ranks call this with as many micro-batches.

    Raises OrderError where the bits would differ, and says why. After an error gradients are as before
    the call, where there were none; others may have a part of the sum.
    """
    draws = Draws()
    batches = list(micro_batches)
    draws.look("the micro-batches")
    if len(batches) < 2:
        losses = [loss_of(model, batch) for batch in batches]
        for loss in losses:
            loss.backward()
        return [loss.detach() for loss in losses]
    _refuse_surroundings(batches)
    refuse_reducers(model)
    global _pass
    if _pass is not None and (other := _pass()) is not None and other.is_running:
        raise OrderError("accumulate() runs already: it cannot be called from loss_of, nor in two threads at once.")
    run = _Pass(model, Chain(model, blocks), draws, Known(model, batches), len(batches))
    _pass = weakref.ref(run)
    try:
        return run.losses([functools.partial(loss_of, model, batch) for batch in batches])
    finally:
        run.close()


def _refuse_surroundings(batches: list[Any]) -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise OrderError("a CUDA graph is being captured.")
    if torch._C._are_functorch_transforms_active():
        raise OrderError("a transform of torch.func is active.")
    for number, batch in enumerate(batches, 1):
        if any(isinstance(leaf, Tensor) and leaf.grad_fn is not None for leaf in tree_leaves(batch)):
            raise OrderError(f"micro-batch {number} has a tensor with a graph: compute it in loss_of, or detach it.")


class _Pass:
    """All micro-batches of one step on their way through the model."""

    def __init__(self, model: nn.Module, chain: Chain, draws: Draws, known: Known, count: int) -> None:
        self.is_running = True
        self._chain = chain
        self._draws = draws
        self._state = State(model, chain)
        self._names = ["what comes before the first block"]  # of parts
        anchor = torch.empty(0, requires_grad=True)
        self._graphs = [Graph(f"micro-batch {number + 1}", self._names, anchor) for number in range(count)]
        self._coroutines: list[Coroutine] = []
        self._places: dict[int, int] = {}  # thread -> its micro-batch
        self._ways: list[list[str]] = [[] for _ in range(count)]  # the parts that each micro-batch has begun
        self._known = known
        self._streams = known.streams()
        self._called: list[set[int]] = [set() for _ in range(count)]  # blocks that it has called
        self._inside = [False] * count  # whether it is in a block
        self._parameters = {id(parameter): name for name, parameter in model.named_parameters()}
        self._firsts: dict[int, int] = {}  # leaf -> the first part that uses it, in the last micro-batch so far
        self._number_of_backward = -1  # the micro-batch whose backward pass runs
        self._replicas = replicas_of(model)
        self._gathered = Gathered(model, chain)
        self._had_none: dict[int, Tensor] = {}  # leaves without a gradient when this began
        self._had_some: set[int] = set()
        self._calls_seen = CallsSeen(chain.blocks.values())
        self._seen: Seen = {}  # of the last part
        self._has_begun = False  # the backward pass

    # -- forward ----------------------------------------------------------------------------------

    def losses(self, functions: list[Callable[[], Tensor]]) -> list[Tensor]:
        """Runs the micro-batches. `functions`: the forward pass of each micro-batch."""
        tide = _block.open_here()
        goes_on_in = tide.access.goes_on_in if tide is not None else lambda thread: None
        is_busy = (lambda: tide.updates.is_running) if tide is not None else lambda: False
        surroundings = Surroundings()
        self._agree()
        try:
            for replica in self._replicas:
                replica.begin(self._is_complete)
            self._gathered.begin()
            self._calls_seen.begin(self._call)
            with contextlib.closing(self._calls_seen), gradients_seen(self._gradients):
                for number, function in enumerate(functions):
                    coroutine = Coroutine(self._begun(number, function), surroundings, goes_on_in, is_busy)
                    self._coroutines.append(coroutine)
                    self._places[coroutine.ident] = number
                functions.clear()
                losses = self._forward_in_own_order() if self._known.is_unknown else self._forward()
            last = len(self._names) - 1
            self._gathered.end_backward(last, self._firsts)
            for part in reversed(range(last)):
                for number in range(len(self._graphs)):
                    self._backward(number, part)
                self._gathered.end_backward(part, self._firsts)
            self._draws.refuse_any()
            if self._streams is not None:
                self._streams.refuse_others()
            self._reduce(tide)
            return losses
        except BaseException as error:
            self._take_back(error)
            raise

    def _agree(self) -> None:
        """Takes the program's order on all ranks that gather parameters together, if one of them has to."""
        if self._gathered and self._known.has_dropout:
            self._known.is_unknown = self._gathered.of_any_rank(self._known.is_unknown)
            if self._known.is_unknown:
                self._streams = None

    def _reduce(self, tide: _block.Tide | None) -> None:
        """Reduces gradients over ranks, where that was not done with their part."""

        def bring_back(gradient: Tensor) -> None:
            if tide is not None and tide.access.is_live():
                tide.access.bring_back(untyped_storage(gradient))

        for replica in self._replicas:
            replica.reduce(bring_back)
        self._gathered.end()

    def _is_complete(self, parameter: Tensor) -> bool:
        """Returns whether what a backward pass has just added completes a parameter's gradient."""
        return self._number_of_backward == len(self._graphs) - 1 and not is_incomplete(parameter)

    def _begun(self, number: int, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            self._graphs[number].begin_part()
            return function()

        return run

    def _forward(self) -> list[Tensor]:
        """The forward pass of all micro-batches, and the last part's backward pass."""
        if self._streams is not None:
            self._draws.leave_to_streams()
        while True:
            part = len(self._names) - 1
            self._resume(0)
            if self._coroutines[0].has_ended:
                break
            for number in range(1, len(self._coroutines)):
                self._resume(number)
                self._compare(number)
            self._gathered.end_forward()
            self._draws.look(self._names[part])
            self._state.look(self._names[part])
            self._names.append(self._ways[0][-1])
        self._state.look_at_attributes()
        self._explore()
        losses = []
        for number in range(len(self._coroutines)):
            if number:
                self._resume(number)
                self._compare(number)
            self._draws.look(self._names[part])
            self._state.look(self._names[part])
            if self._streams is not None:
                self._streams.end(number)
            losses.append(self._last(number, self._result(number)))
        return losses

    def _forward_in_own_order(self) -> list[Tensor]:
        """Runs the forward passes in the program's order, one micro-batch after the other, to see what each draws of
        random numbers.
        """
        states = [_streams.states()]
        results = []
        for number, coroutine in enumerate(self._coroutines):
            while not coroutine.has_ended:
                self._resume(number)
                self._gathered.end_forward()
            if number:
                self._compare(number)
            states.append(_streams.states())
            results.append(self._result(number))
        self._names += self._ways[0]
        self._explore()
        self._known.learn(states)
        self._draws.accept()
        return [self._last(number, results[number]) for number in range(len(results))]

    def _resume(self, number: int) -> None:
        if self._streams is not None:
            self._streams.enter(number)
        self._coroutines[number].resume()
        if self._streams is not None:
            self._streams.leave(number)

    def _result(self, number: int) -> Any:
        del self._places[self._coroutines[number].ident]  # which another thread may get now
        return self._coroutines[number].take_result()

    def _last(self, number: int, loss: Tensor) -> Tensor:
        """The backward pass of the part that ends with the loss."""
        graph, part = self._graphs[number], len(self._names) - 1
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss_of returned a {type(loss).__name__}: it must return the loss, a tensor.")
        graph.explore(part, self._seen, loss)
        self._know(number, [part])
        self._has_begun = True
        self._backward(number, part, loss)
        return loss.detach()

    def _backward(self, number: int, part: int, loss: Tensor | None = None) -> None:
        leaves = self._graphs[number].parts[part].leaves
        self._number_of_backward = number
        self._graphs[number].backward(part, loss)
        self._gathered.end_micro_batch(leaves)

    def _call(
        self, block: nn.Module, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A block is called, in whatever thread."""
        number = self._places.get(threading.get_ident())
        if number is None or self._inside[number]:
            return original(block, *args, **kwargs)
        name, graph = self._chain.name(block), self._graphs[number]
        if id(block) in self._called[number]:
            raise OrderError(
                f"{name} is called more than once for a micro-batch. Name other blocks, each of which is called once."
            )
        self._called[number].add(id(block))
        args, kwargs = graph.cut(args), graph.cut(kwargs)
        self._suspend(number, name)
        self._inside[number] = True
        try:
            result = original(block, *args, **kwargs)
        finally:
            self._inside[number] = False
        if id(block) in self._chain.last:
            result = graph.cut(result)
            self._suspend(number, f"what comes after {name}")
        return result

    def _gradients(self, outputs: Iterable[Tensor | GradientEdge]) -> None:
        """Handles a computation of gradients, in whatever thread."""
        if threading.get_ident() in self._places:
            refuse_gradients_of_others(outputs)

    def _suspend(self, number: int, name: str) -> None:
        self._ways[number].append(name)
        self._coroutines[number].suspend()
        self._graphs[number].begin_part()

    def _compare(self, number: int) -> None:
        """Refuses a micro-batch that does not call the same blocks in the same order as the first."""
        ended = [self._coroutines[each].has_ended for each in (0, number)]
        ways = [[*self._ways[each], *(["the end"] if has_ended else [])] for each, has_ended in zip((0, number), ended)]
        if ways[0] != ways[1]:
            expected, found = next(pair for pair in zip_longest(*ways, fillvalue="no end") if pair[0] != pair[1])
            raise OrderError(
                f"micro-batch 1 comes to {expected} where micro-batch {number + 1} comes to {found}. All must call the "
                "same blocks in the same order: name such blocks."
            )

    # -- what the parts are made of ---------------------------------------------------------------

    def _explore(self) -> None:
        """Finds what all parts but the last are made of, before any gradient is changed."""
        never = [name for key, name in self._blocks() if key not in self._called[0]]
        if never and (self._chain.are_named or not self._called[0]):
            raise OrderError(
                f"{never[0]} is not called in the forward pass. Name blocks that are: blocks=model.layers."
            )
        last = len(self._names) - 1
        for part in range(last):
            seen: Seen = {}
            for graph in self._graphs:
                graph.explore(part, seen)
        for number in range(len(self._graphs)):
            self._know(number, range(last))

    def _blocks(self) -> list[tuple[int, str]]:
        return [(key, self._chain.name(block)) for key, block in self._chain.blocks.items()]

    def _know(self, number: int, parts: Iterable[int]) -> None:
        """Takes note of the leaves of some parts, and refuses those whose sums would come out otherwise."""
        graph = self._graphs[number]
        leaves = {key: leaf for part in parts for key, leaf in graph.parts[part].leaves.items()}
        self._parameters |= self._gathered.names()
        self._gathered.refuse_sums_of_parts(graph.users)
        for key, leaf in leaves.items():
            self._refuse_hooks(leaf)
            if key not in self._had_none and key not in self._had_some:
                if leaf.grad is None:
                    self._had_none[key] = leaf
                else:
                    self._had_some.add(key)
            first = graph.users[key][0]
            if first > self._firsts.setdefault(key, first):
                raise OrderError(
                    f"{self._leaf(key)} is used at {self._names[self._firsts[key]]}, but not by {graph.name}: its "
                    "gradients would be added up in another order."
                )
            self._firsts[key] = first
            if sum((key, part) in graph.casts for part in graph.users[key]) > 1:
                raise OrderError(
                    f"{self._leaf(key)} is used at several places, in another type than its own. Under autocast these "
                    "share one cast, and add up its gradient in that type. Untie it, or keep it in that type."
                )

    def _leaf(self, key: int) -> str:
        return self._parameters.get(key, "a tensor that is no parameter of the model")

    def _refuse_hooks(self, leaf: Tensor) -> None:
        first = (leaf._backward_hooks or {}).values()
        later: dict[int, object] = getattr(leaf, "_post_accumulate_grad_hooks", None) or {}
        are_ours = all(_early.is_ours(each) or _replicas.is_ours(each) for each in later.values())
        if not are_ours or not all(map(_collectives.is_ours, first)):
            raise OrderError(
                f"{self._leaf(id(leaf))} has a hook on its gradient, which would run in another order: after each "
                "micro-batch of a block, not of the model. Remove it, or accumulate in the program's order."
            )

    # -- the end ----------------------------------------------------------------------------------

    def _take_back(self, error: BaseException) -> None:
        """Restores the state after an error: nothing half done stays unnoticed."""
        for coroutine in self._coroutines:
            coroutine.cancel()
        if isinstance(error, OrderError) and not self._has_begun:
            self._draws.take_back()
        if not self._has_begun:
            return
        for leaf in self._had_none.values():
            leaf.grad = None
        if self._had_some:
            text = (
                f"gradients of {len(self._had_some)} tensors have a part of the sum that tidelog.accumulate did not "
                "complete: zero_grad() before the next step."
            )
            _log.warning("%s", text)
            if hasattr(error, "add_note"):
                error.add_note(text)

    def close(self) -> None:
        """Frees what is left of the micro-batches, also where something still refers to this."""
        for coroutine in self._coroutines:
            coroutine.cancel()
        self._calls_seen.close()
        for replica in self._replicas:
            replica.close()
        self._gathered.close()
        for graph in self._graphs:
            graph.close()
        self._coroutines.clear()
        self._had_none.clear()
        self._seen.clear()
        self.is_running = False
