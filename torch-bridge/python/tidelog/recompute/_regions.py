"""Regions: calls of `torch.utils.checkpoint` in a step. What a region makes in the forward pass is let go, and the
region runs again in the backward pass; or, where that is better, it runs once, and what it makes stays or moves.

What `checkpoint` itself calls is replaced, so it is no matter who has imported `checkpoint`, or called it through
another library. Which ops each of a region's runs has is noted while steps are profiled.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeAlias

import torch
import torch.utils.checkpoint as checkpoints
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tidelog import _errors, _patches
from tidelog.dispatch._access import Access
from tidelog.dispatch._steps import Steps
from tidelog.order._unordered import states_of_others
from tidelog.recompute._gathers import Gathers, Group
from tidelog.storages._ops import Args, Kwargs, Op, holders_of, info_of

# What a region is: its code, and the modules that are found in it, each with whether it trains.
Key: TypeAlias = tuple[object, tuple[tuple["weakref.ref[nn.Module]", bool], ...]]

# The generator function that `checkpoint` calls where use_reentrant=False: in torch 2.15, and before.
_GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


# Ops that wait for other ranks. As a region has none, ranks need not choose alike.
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")

# Options of `checkpoint` that change how a region runs.
_USUAL = {"determinism_check": "default", "debug": False, "early_stop": True, "respect_saved_tensors_hooks": None}


class Region:
    """One call in a step."""

    def __init__(self, key: Key, why: str | None) -> None:
        self.key = key
        self.why = why  # it has to run again, if so
        self.runs: list[tuple[int, int]] = []  # of each: its first op, and behind its last
        self.saved: set[torch.device] = set()  # GPUs whose state of random numbers the second run has again
        self.gathered: dict[Group, int] = {}  # what FSDP2 has gathered that it reads, and the content that it read
        self.is_otherwise = False  # whether it runs otherwise than the program has it

    def refuse(self, why: str) -> None:
        """Refuses the region, which has to run again. The first reason counts."""
        self.why = self.why or why

    def ops(self) -> tuple[int, int, int, int]:
        """Returns the ops of both of its runs."""
        first, again = self.runs
        return *first, *again


class Regions:
    """The regions of a block's steps, in the order in which each step calls them."""

    def __init__(self, steps: Steps, access: Access) -> None:
        self.looks = False  # whether runs are noted
        self.once: dict[int, Key] = {}  # regions that run once, by their places in the step
        self.gathers = Gathers(steps, access, self._gathered)
        self._reads: dict[int, tuple[Group, ...]] = {}  # what FSDP2 gathers that is read by those that run otherwise
        self.of_step: list[Region] = []
        self.kept = 0  # of them, so many have run once
        self.are_named = False  # whether they are the calls of named blocks (`_blocks`), and no others
        self.was_elsewhere = False  # whether one was called in another thread than the block's own
        self._steps = steps
        self._access = access
        self.inside: Region | None = None  # which runs now

    def begin(self) -> None:
        """Begins to watch calls."""
        _patches.put(checkpoints.CheckpointFunction, "apply", self._apply(checkpoints.CheckpointFunction.apply))
        name = next(name for name in _GENERATORS if hasattr(checkpoints, name))
        _patches.replace(checkpoints, name, self._generator)

    def begin_step(self) -> None:
        """A step begins."""
        self.of_step, self.kept, self.inside = [], 0, None
        self.gathers.looks = self.looks
        self.gathers.begin_step()

    def watch(self, reads: dict[int, tuple[Group, ...]]) -> None:
        """Watches what FSDP2 gathers: what is read by regions that run otherwise, by their places in the step."""
        self._reads = reads
        self.gathers.watched = frozenset(group for groups in reads.values() for group in groups)

    def _gathered(self, group: Group) -> None:
        for region in self.of_step:
            if region.gathered.get(group, group.content) == group.content:
                continue
            if region.is_otherwise:
                raise _errors.OrderError(
                    f"FSDP2 has gathered other bytes than in the forward pass: those of {group.name}, or of a parameter "
                    "beside it. A rank has changed its part of them between the passes. In the first steps none did, so "
                    "that a region that reads them ran otherwise than the program has it: recompute='best' is for "
                    "programs that change parameters after the backward pass."
                )
            region.refuse("FSDP2 gathers other bytes for its second run: a rank has changed its part of a parameter")

    # -- calls -----------------------------------------------------------------------------------

    def _apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """use_reentrant=True."""

        def apply(function: Callable[..., Any], preserves: bool, *args: Any) -> Any:
            region = self._checkpointed(function, args, preserves, {})
            if region is None:
                return original(function, preserves, *args)
            noted = self.noted(region, function)
            if self.is_kept(region):
                return _Once.apply(noted, *args)
            return original(noted, preserves, *args)

        return apply

    def _generator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """use_reentrant=False: what `checkpoint` does before and after it calls the function itself."""
        signature = inspect.signature(original)

        def begun(*args: Any, **kwargs: Any) -> Any:
            said = signature.bind(*args, **kwargs)
            said.apply_defaults()
            options = said.arguments
            region = self._checkpointed(options["fn"], options["args"], options["preserve_rng_state"], options)
            if region is None:
                return original(*args, **kwargs)
            if self.is_kept(region):
                return self._once(region)
            options["fn"] = self.noted(region, options["fn"])
            return self._twice(region, original(*said.args, **said.kwargs))

        return begun

    def _twice(self, region: Region, own: Generator[None, None, None]) -> Iterator[None]:
        next(own)
        try:
            with self.runs(region):
                yield
        except BaseException as error:
            own.throw(error)
            raise
        next(own, None)

    def _once(self, region: Region) -> Iterator[None]:
        with self.runs(region):
            yield

    def _checkpointed(
        self, function: Callable[..., Any], args: Args, preserves: bool, options: dict[str, Any]
    ) -> Region | None:
        """A call of `checkpoint`, if it is a region that is to be looked at."""
        if not self.are_named:
            return self.called(function, args, preserves, options) if self.looks or self.once else None
        if self.inside is not None:
            self.inside.refuse("it calls torch.utils.checkpoint itself")
        return None

    def called(
        self, function: Callable[..., Any], args: Args, preserves: bool, options: dict[str, Any]
    ) -> Region | None:
        """A region of a step, if it is to be looked at."""
        if self._steps.place.next_op < 0 or not torch.is_grad_enabled():
            return None
        if not self._access.is_live() or self._access.is_elsewhere():
            return None
        if self._access.is_instead():
            self.was_elsewhere = True
            return None
        if self.inside is not None:
            self.inside.refuse("another region is in it")
            return None
        region = Region(_key(function, args), _why_not(preserves, options))
        region.saved = {each.device for each in tree_leaves(args) if isinstance(each, Tensor)}
        if not self.looks:
            region.gathered = {group: group.content for group in self._reads.get(len(self.of_step), ())}
        self.of_step.append(region)
        return region

    def is_kept(self, region: Region) -> bool:
        place = len(self.of_step) - 1
        is_kept = region.why is None and self.once.get(place) == region.key
        self.kept += is_kept
        region.is_otherwise = is_kept
        return is_kept

    def again(self, region: Region, function: Callable[..., Any], args: Args) -> Any:
        """Calls a function that runs again in the backward pass."""
        region.is_otherwise = True
        return checkpoints.checkpoint(self.noted(region, function), *args, use_reentrant=False)

    # -- runs ------------------------------------------------------------------------------------

    def noted(self, region: Region, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.runs(region):
                return function(*args, **kwargs)

        return run

    @contextlib.contextmanager
    def runs(self, region: Region) -> Iterator[None]:
        outer, self.inside = self.inside, region
        begins, step = self._steps.place.next_op, self.of_step
        drawn = states_of_others() if self.looks else None
        try:
            yield
        finally:
            self.inside = outer
            if self.looks:
                region.runs.append((begins, self._steps.place.next_op))
                if step is not self.of_step or region not in step:
                    region.refuse("it runs again in another step")
                if states_of_others() != drawn:
                    region.refuse("it draws random numbers of Python's or NumPy's, which no second run has again")

    def saw(self, func: Op, args: Args, kwargs: Kwargs, result: Any) -> None:
        """An op has run, while runs are noted."""
        self.gathers.saw(func, args, kwargs)
        region = self.inside
        if region is None:
            return
        for group in self.gathers.of(holders_of(args, kwargs)):
            region.gathered.setdefault(group, group.content)
        if not isinstance(func, torch._ops.OpOverload):
            region.refuse("it runs compiled kernels")
        elif func.namespace in _COLLECTIVES:
            region.refuse("it has a collective, which all ranks would have to run as often")
        elif info_of(func).draws:
            if any(isinstance(each, torch.Generator) for each in (*args, *kwargs.values())):
                region.refuse("it draws random numbers of a generator that no second run finds as it was")
            for each in tree_leaves(result):
                if isinstance(each, Tensor) and each.device.type != "cpu" and each.device not in region.saved:
                    region.refuse(
                        f"it draws random numbers of {each.device}, where no argument of it is: torch.utils.checkpoint "
                        "does not save that state"
                    )


def _key(function: object, args: Args) -> Key:
    found: list[object] = [*args]
    while isinstance(function, functools.partial):
        found += [*function.args, *function.keywords.values()]
        function = function.func
    found += [function, getattr(function, "__self__", None)]
    function = getattr(function, "__func__", function)
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty one
            found.append(cell.cell_contents)
    modules = (part for each in found if isinstance(each, nn.Module) for part in each.modules())
    code = getattr(function, "__code__", type(function))
    return code, tuple((weakref.ref(module), module.training) for module in modules)


def _why_not(preserves: bool, options: dict[str, Any]) -> str | None:
    """Returns the reason why a region has to run again, as far as it is known when it is called."""
    if not preserves:
        return "preserve_rng_state=False: a second run may draw other random numbers"
    if options.get("context_fn", checkpoints.noop_context_fn) is not checkpoints.noop_context_fn:
        return "it has a context_fn, as selective checkpointing does"
    for option, usual in _USUAL.items():
        if options.get(option, usual) != usual:
            return f"{option}={options[option]!r}"
    for name in ("_checkpoint_debug_enabled", "_enable_checkpoint_early_stop"):
        if getattr(checkpoints, name, None) is not None:
            return f"torch.utils.checkpoint.set{name.removesuffix('_enabled').replace('_enable', '')} is in force"
    if torch._C._is_any_autocast_enabled():
        return "it runs under autocast"
    if torch._C._len_torch_dispatch_stack() or _has_function_mode():
        return "another dispatch mode or function mode is active"
    if torch._C._are_functorch_transforms_active():
        return "a transform of torch.func is active"
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        return "hooks look at the tensors that autograd saves"
    return None


def _has_function_mode() -> bool:
    """Returns whether there is another mode for functions than the default device, which the second run finds, too."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    places = range(torch._C._len_torch_function_stack())
    return any(torch._C._get_function_stack_at(place) is not default for place in places)


class _Once(torch.autograd.Function):
    """Function of autograd that computes the same as `CheckpointFunction`, with the second run's graph made by the
    first one. Its backward pass is the same, so that gradients are added up in the same order.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
        checkpoints.check_backward_validity(args)
        inputs = checkpoints.detach_variable(args)
        with torch.enable_grad():
            outputs = function(*inputs)
        ctx.inputs, ctx.outputs = inputs, outputs
        given = {id(one): arg for one, arg in zip(inputs, args)}
        if isinstance(outputs, tuple):
            return tuple(_detached(each, given) for each in outputs)
        return _detached(outputs, given)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError(
                "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` "
                "parameter to .backward()."
            )
        if ctx.outputs is None:
            raise RuntimeError("Trying to backward through the graph a second time: specify retain_graph=True.")
        inputs, outputs = ctx.inputs, ctx.outputs
        stays = torch._C._autograd._get_current_graph_task_keep_graph()
        if not stays:
            ctx.inputs = ctx.outputs = None
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients)
            if isinstance(output, Tensor) and output.requires_grad
        ]
        if not pairs:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        torch.autograd.backward(
            [output for output, _ in pairs], [gradient for _, gradient in pairs], retain_graph=stays
        )
        found = []
        for each in inputs:
            found.append(each.grad if isinstance(each, Tensor) else None)
            if isinstance(each, Tensor):
                each.grad = None
        return None, *found


def _detached(output: Any, given: dict[int, Any]) -> Any:
    if not isinstance(output, Tensor):
        return output
    return given[id(output)] if id(output) in given else output.detach()
