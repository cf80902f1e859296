"""Block as a user opens it: `offload` and its options."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from tidelog import _devices
from tidelog._errors import Error
from tidelog._options import Option, Size, declared, one_of, size, size_a_day, whole_number
from tidelog.abi._native import Policy, SessionOptions
from tidelog.output._figures import AllocatorName, PartsName, RecomputeName, StrPath, UpdatesName, WhatName

# The options are read and explained without torch; what a block is made of needs it.
if TYPE_CHECKING:
    import torch

    from tidelog._resume_ranks import Opening
    from tidelog.block._block import Tide
    from tidelog.block._names import Together
    from tidelog.memory import _device
    from tidelog.order._chains import CallsOfClasses, CallsSeen

ModeName = Literal["auto", "reactive"]
PolicyName = Literal["auto", "algorithm1", "tidelog"]
DataPathName = Literal["auto", "uring", "uring-cmd", "posix", "spdk", "gds", "gds-compat"]

# Bytes of staging buffers where it is not said: a part of the budget, within bounds.
STAGING_PART, STAGING_MIN, STAGING_MAX = 8, 256 << 10, 16 << 20


def budget(value: object, name: str) -> int | str:
    """A size, or "auto"."""
    return "auto" if value == "auto" else size(value, name)


def default_staging(memory: int) -> int:
    """The staging buffers of a budget, in bytes."""
    return max(STAGING_MIN, min(memory // STAGING_PART, STAGING_MAX))


def memory_for(tensors: int) -> int:
    """The smallest budget that has so much beside the staging buffers that it gets by itself."""
    part = (tensors - 1) * STAGING_PART // (STAGING_PART - 1) + 1
    return max(tensors + STAGING_MIN, min(part, tensors + STAGING_MAX))


@declared
def offload(
    model: Annotated[
        "torch.nn.Module | None",
        Option(
            "its tensors get names in errors and reports. Every tensor of the process counts "
            "against the budget and may move, named or not."
        ),
    ] = None,
    optimizer: Annotated[
        "torch.optim.Optimizer | None",
        Option("its state gets names in errors and reports."),
    ] = None,
    *,
    pool: Annotated[
        StrPath,
        Option(
            "devices separated by commas: directories (Tidelog makes its file there), files or raw "
            "block devices. Striped over all of them. No redundancy: one lost device loses the "
            "pool. \\, in text is a comma that is part of a name; a path object is one path."
        ),
    ],
    memory: Annotated[
        int | str,
        Option(
            "limit for tensors, of the GPU's memory where they are on one, else of RAM: bytes, or text such as "
            '"20GiB". Includes `staging`, unless it is a GPU\'s memory and the data path neither "gds" nor "spdk", '
            'which have as much of it on the GPU. "auto": four fifths of what is free as the block begins, in a '
            "container of what its limit leaves, and what the model has already.",
            budget,
        ),
    ],
    host_memory: Annotated[
        int | str | None,
        Option(
            "for a GPU: page-locked host memory, at most, that takes tensors before `pool` does. "
            'Bytes, or text such as "8GiB"; default: none. All of it is allocated when the block '
            "begins, and freed when it ends; where tensors stay out, when all are restored, or are "
            "gone and the next block begins. What does not fit goes to `pool`. The GPU computes "
            "checksums of what leaves, and compares them with what comes back.",
            size,
        ),
    ] = None,
    device: Annotated[
        "str | torch.device",
        Option(
            'device whose memory is limited: "cpu", "cuda", "cuda:1"; "auto": that of the model\'s parameters. Tensors '
            "elsewhere neither count nor move. Name it where a model is built inside the block."
        ),
    ] = "auto",
    mode: Annotated[
        ModeName,
        Option(
            '"auto" records a step, then plans its migrations; "reactive" runs without a plan.',
            one_of(*get_args(ModeName)),
        ),
    ] = "auto",
    policy: Annotated[
        PolicyName,
        Option(
            'planner: "tidelog", or "algorithm1" as TERAIO published it; "auto" is "tidelog".',
            one_of(*get_args(PolicyName)),
        ),
    ] = "auto",
    what: Annotated[
        WhatName,
        Option(
            'what moves: "all", or "activations" alone: what forward passes save for the backward pass. Parameters, '
            "gradients and optimizer state stay in memory then, and the budget must hold them.",
            one_of(*get_args(WhatName)),
        ),
    ] = "all",
    updates: Annotated[
        UpdatesName,
        Option(
            'time of parameter updates: "own" where the program steps its optimizer; "lazy" just before '
            "the parameter, its gradient or its state is used again, mostly in the next forward pass, so that "
            'state comes in while ops compute; "early" as soon as its gradient is complete, in the backward pass, '
            "so that gradients never leave: nothing may read them afterwards. The same bits; `stats()` says where "
            'it is not possible. "host", for a GPU with host_memory=: on the host, where the optimizer\'s state is then; '
            "gradients leave, parameters return when they are used again. The bits are those of torch's optimizer on "
            "the CPU.",
            one_of(*get_args(UpdatesName)),
        ),
    ] = "own",
    recompute: Annotated[
        RecomputeName,
        Option(
            'regions under torch.utils.checkpoint that are recomputed in the backward pass: "own" those of the '
            'program; "best" those that the planner chooses from a profile: the others run once, and their activations '
            "stay in memory or are offloaded. The same bits; `stats()` says what was chosen, and which regions have no choice.",
            one_of(*get_args(RecomputeName)),
        ),
    ] = "own",
    blocks: Annotated[
        "Iterable[torch.nn.Module] | str | None",
        Option(
            'for `recompute="best"` where the program has nothing under torch.utils.checkpoint: modules, such as '
            "model.layers, whose calls it may put there, or the names of their classes with commas between. They must "
            "give the same results when they run twice; those that are seen not to are left as they are."
        ),
    ] = None,
    parts: Annotated[
        PartsName,
        Option(
            'unit of offloading: "whole" tensors, or "best": plans may offload part of a tensor, 2 MiB or a multiple, '
            "where that makes a faster step or moves fewer bytes. The same bits. On a GPU for tensors that live from "
            "step to step; `stats()` says where all move whole.",
            one_of(*get_args(PartsName)),
        ),
    ] = "whole",
    allocator: Annotated[
        AllocatorName,
        Option(
            'where a GPU\'s memory for tensors comes from while the block runs: "torch", its caching allocator; "arena": '
            "large blocks from an arena as large as `memory`, whose free memory is mapped together where it is in "
            "pieces, and waits on the GPU for what uses it still. The same bits. Tested on a fake GPU alone; "
            '`stats()["gpu_memory"]["arena"]` says what it did.',
            one_of(*get_args(AllocatorName)),
        ),
    ] = "torch",
    write_budget: Annotated[
        int | str | None,
        Option(
            'what may be written to the SSDs a day: bytes, or text such as "2TB"; default: as much as it takes. Under '
            "torchrun the ranks of this machine have equal parts of it. Plans write less where that is faster than a "
            "pause; where no plan writes so little, a pause follows the step, which Ctrl-C ends. The same bits. "
            "`stats()` says what was written and how long was paused.",
            size_a_day,
        ),
    ] = None,
    pool_size: Annotated[
        int | str | None,
        Option(
            "size of the pool where Tidelog makes its files; default: 8 times the tensors alive, "
            "at least 1 GiB, at most half of the free space.",
            size,
        ),
    ] = None,
    staging: Annotated[
        int | str | None,
        Option(
            "buffers that the devices read and write; default: an eighth of `memory`, 256 KiB to 16 MiB.",
            size,
        ),
    ] = None,
    data_path: Annotated[
        DataPathName,
        Option(
            '"auto", "uring", "uring-cmd" or "posix"; for a GPU also "gds" (cuFile, past the host) '
            'and "gds-compat" (cuFile, which may go through the host). Which one runs, and why, is '
            "in `stats()`."
        ),
    ] = "auto",
    buffered: Annotated[bool, Option("allow a file system without O_DIRECT.")] = False,
    must_exist: Annotated[
        bool,
        Option(
            "refuse a pool that is not there. Otherwise one is made where none of its devices "
            'exists, and the logger "tidelog" says so: a file system that is not mounted leaves an '
            "empty directory."
        ),
    ] = False,
    sparse: Annotated[
        bool,
        Option(
            "leave the files of a pool that is made sparse: no space is reserved for them, and writes fail once "
            "the file system is full. Otherwise all of it is, with zeroes where the file system cannot reserve "
            "(ext3, vfat, many network file systems), which takes as long as it takes to write them."
        ),
    ] = False,
    degraded: Annotated[
        bool,
        Option(
            "go on where one device of the pool is missing, if the pool was made with two copies: name the others. "
            "What leaves memory goes to those that are there, and checkpoints with two copies are whole. "
            "`tidelog-format replace` gives the pool another device afterwards."
        ),
    ] = False,
    share: Annotated[
        int | None,
        Option(
            "share of the pool that this process owns, from 0. Default: under torchrun the rank on "
            "this machine (LOCAL_RANK), else 0. A pool that is made has one for each of these ranks.",
            whole_number,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        Option(
            "a checkpoint of `tide.checkpoint` in the pool, from which model, optimizer and torch's random "
            'state go on when the block begins; "latest": the newest, if there is one. `tide.resumed` '
            "says which it was. Ranks go on together, from a checkpoint of `tidelog.dcp`."
        ),
    ] = None,
    report: Annotated[
        StrPath | None,
        Option("path of an HTML report, written when the block ends."),
    ] = None,
) -> "Tide":
    """Runs the block with at most `memory` bytes of tensors in memory; the rest lies on `pool`.

    {options}

    Raises PoolError, BudgetError, DeviceError (all tidelog.Error). The block covers the thread that
    entered it.
    """
    from tidelog._budget_error import BudgetError
    from tidelog.block._block import Settings, Tide
    from tidelog.block._ranks import local_rank, local_world_size
    from tidelog.memory import _device

    place = _device.choose(device, model)
    memory = _budget(memory, host_memory, place, model)
    assert not isinstance(host_memory, str) and not isinstance(pool_size, str) and not isinstance(write_budget, str)
    chosen = staging
    if staging is None:
        staging = default_staging(memory)
    assert isinstance(staging, int)
    if data_path.startswith("gds"):
        _device.place_cufile_log()
    buffers = place.staging_in(staging, data_path, pool)
    if memory <= buffers:
        raise BudgetError(
            f"memory={memory.said!r} leaves nothing beside the staging buffers of {staging} bytes; "
            "give more, or pass a smaller staging=."
        )
    if resume is not None and model is None:
        raise Error(f"resume={resume!r} needs the model that is to go on: pass it, and its optimizer.")
    if allocator == "arena":
        _refuse_arena_of_host(place)
    if blocks is not None and recompute != "best":
        raise Error(f'blocks= is for recompute="best", and recompute={recompute!r}.')
    if what == "activations":
        _refuse_beside_activations(updates, parts)
    beside = _bytes_beside(place, optimizer, host_memory) if updates == "host" else 0
    if share is None:
        share = local_rank()
    devices = _devices.listed(pool)
    session = SessionOptions(
        devices=os.fsencode(devices),
        data_path=data_path.encode(),
        budget=memory + staging - buffers,
        staging=staging,
        host_memory=(host_memory or 0) - beside,
        pool_size=pool_size or 0,
        buffered=bool(buffered),
        reactive=mode == "reactive",
        policy=Policy[policy.upper()],
        gpu=place.option,
        must_exist=bool(must_exist),
        sparse=bool(sparse),
        degraded=bool(degraded),
        share=share,
        share_count=max(share + 1, local_world_size()),
    )
    opening: Opening = {"buffered": bool(buffered), "degraded": bool(degraded)}
    together = _together(devices, resume, opening) if resume is not None else None
    settings = Settings(
        budget=memory,
        staging=staging,
        buffers=buffers,
        least=memory_for if buffers and chosen is None else lambda tensors: tensors + buffers,
        mode=mode,
        device=place,
        outside="on NVMe" if host_memory is None else "on NVMe or in host memory",
        updates=updates,
        beside=beside,
        recompute=recompute,
        blocks=_calls_of(model, blocks) if blocks is not None else None,
        parts=parts,
        allocator=allocator,
        what=what,
        write_budget=write_budget,
        resume=resume,
        together=together,
        report=report,
        session=session,
    )
    return Tide(model, optimizer, settings)


def _refuse_beside_activations(updates: UpdatesName, parts: PartsName) -> None:
    """Refuses options that are of no use where optimizer state stays."""
    for name, value, why in (
        ("updates", updates != "own" and updates, "the state of optimizers stays in memory"),
        ("parts", parts != "whole" and parts, "what has parts lives on from step to step, and stays in memory"),
    ):
        if value:
            raise Error(f'{name}={value!r} is of no use with what="activations": {why}. Leave it out.')


def _refuse_arena_of_host(place: "_device.Host") -> None:
    """Refuses an arena where there is none."""
    if not place.option:
        raise Error("allocator=\"arena\" is for a GPU's memory, and the budget is of the host's. Leave it out.")


def _bytes_beside(
    place: "_device.Host", optimizer: "torch.optim.Optimizer | None", host_memory: int | str | None
) -> int:
    """Returns how much of `host_memory` updates take that run on the host: all of it where it is not known how much
    they need."""
    from tidelog._budget_error import BudgetError
    from tidelog.order import _host
    from tidelog.output._notebook import binary

    if not place.option:
        raise Error(
            "updates='host' is for tensors of a GPU: in the host's memory updates run on the host anyway. Take 'lazy'."
        )
    if host_memory is None:
        raise Error(
            "updates='host' needs host_memory=: copies of parameters, their state and gradients are there, and what is "
            "left of it takes tensors before the pool does."
        )
    assert isinstance(host_memory, Size)
    if optimizer is None:
        return host_memory
    needed = _host.needed(optimizer)
    if needed > host_memory:
        raise BudgetError(
            f"host_memory={host_memory.said!r} is too small for updates='host': copies of the parameters, their state "
            f"and gradients need {binary(needed)}, {needed} bytes. Raise it, or run with updates='lazy'."
        )
    return needed


def _budget(
    memory: int | str, host_memory: int | str | None, place: "_device.Host", model: "torch.nn.Module | None"
) -> Size:
    """The budget in bytes, for which there is memory."""
    from tidelog.block._ranks import local_world_size
    from tidelog.memory import _limits

    ranks = local_world_size()
    if isinstance(host_memory, Size):
        _limits.refuse_more_than_there_is("host_memory", host_memory, ranks)
    if memory == "auto":
        free = size(_limits.budget_of_what_is_free(place.place, model, ranks), "memory")
        free.said = "auto"
        return free
    assert isinstance(memory, Size)
    if place.place.type == "cpu":
        _limits.refuse_more_than_there_is("memory", memory, ranks)
    return memory


def _calls_of(
    model: "torch.nn.Module | None", blocks: "Iterable[torch.nn.Module] | str"
) -> "CallsSeen | CallsOfClasses":
    """Returns the way in which calls of named blocks are seen."""
    from tidelog.order._chains import CallsOfClasses, CallsSeen, Chain

    if isinstance(blocks, str):
        names = [name.strip() for name in blocks.split(",")]
        if not all(name.isidentifier() for name in names):
            raise Error(f"blocks={blocks!r}: expected names of classes with commas between, or modules.")
        return CallsOfClasses(names)
    if model is None:
        raise Error("blocks= needs the model that they are of: pass it, too.")
    return CallsSeen(Chain(model, blocks).blocks.values())


def _together(pool: str, checkpoint: str, opening: "Opening") -> "Together | None":
    """Returns the state that ranks resume together; None: there is one process."""
    from tidelog.block._ranks import go_on_together

    if not go_on_together():
        return None
    from tidelog import _resume_ranks  # with torch.distributed.checkpoint, which few need

    return lambda model, optimizer: _resume_ranks.resume(pool, checkpoint, model, optimizer, opening)
