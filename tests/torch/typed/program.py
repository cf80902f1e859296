"""A program with types that uses every public name, as users do. mypy accepts it (`make lint`), and
refuses what `wrong` does: where it does not, the comment that takes the error is itself one.

tests/torch/test_types.py sees to it that no public name is missing here.
"""

import warnings
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from transformers import Trainer

import tidelog
from tidelog import Fit, Report, Tide
from tidelog.integrations import step_figures
from tidelog.integrations.lightning import OffloadCallback as LightningCallback
from tidelog.integrations.tensorboard import write_step
from tidelog.integrations.transformers import OffloadCallback


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[torch.Tensor]) -> int:
    print(tidelog.__version__.split("."))
    with tidelog.offload(
        model,
        optimizer,
        pool=Path("/mnt/nvme/tide"),
        memory="20GiB",
        host_memory=8 << 30,
        device=torch.device("cuda"),
        mode="auto",
        policy="tidelog",
        what="all",
        updates="lazy",
        recompute="own",
        parts="whole",
        allocator="torch",
        write_budget="2TB",
        blocks=None,
        pool_size="1TiB",
        sparse=True,
        staging=None,
        data_path="uring",
        buffered=False,
        must_exist=True,
        degraded=False,
        share=0,
        resume="latest",
        report=Path("step.html"),
    ) as tide:
        begun: int = tide.resumed.state["step"] if tide.resumed is not None else 0
        print(tide.resumed.name if tide.resumed else "", begun)
        for batch in batches:
            with tide.step() as same:
                model(batch).sum().backward()
                optimizer.step()
            write_step(SummaryWriter("runs"), same, 1)
        tide.await_plan()
        tide.set_write_budget(None)
        if (budget := tide.stats()["write_budget"]) is not None:
            print(budget["written_per_day"] / budget["bytes_per_day"], budget["pause_ns"])
        tide.name(model, optimizer)
        look(tide, batches[0])
    return tide.peak_bytes


def look(tide: Tide, tensor: torch.Tensor) -> float:
    tide.evict(tensor)
    if not tide.is_resident(tensor) and tide.is_open:
        tide.restore(tensor)
    with tide.pinned(tensor):
        tide.unpin(tensor)
    tide.restore()
    stats, last = tide.stats(), tide.last_step()
    moved: int = stats["totals"]["bytes_written"] + stats["bytes_read"]["activation"] + tide.live_bytes
    plan, simulated = stats["plan"], tide.simulate_step()
    replans: int = plan["replans"] if plan is not None else 0
    expected: float = simulated["stall_seconds"] if simulated is not None else 0.0
    report: Report = tide.report(Path("step.html"))
    tide.trace(report.path + ".json")
    if tide.phase == "planned" and stats["data_path"] == "uring":
        print(open(report).read(), moved, replans, stats["machine"]["ssd"]["read"]["from"])
    return last.get("seconds", 0.0) + last["stall_seconds"] + expected


def give_way(tide: Tide) -> int:
    tide.pause()
    try:
        tide.checkpoint("step-2")
    except tidelog.PausedError:
        tide.resume(at_once=False)
    with tide.paused(at_once=True):
        print(tide.is_paused)
    return tide.stats()["pauses"]["bytes_out"]


def ask() -> float | None:
    answer: Fit = tidelog.fit("gpt2-xl", memory="24GiB", read=7e9, write=5e9, precision="bf16")
    return answer.figures["step_seconds"] if answer.fits else None


def keep(tide: Tide, model: nn.Module) -> int:
    tide.checkpoint("step-1")
    tide.checkpoint("model", {"model": model.state_dict(), "step": 1})
    with tidelog.Checkpoints("/mnt/nvme/tide", read_only=False) as checkpoints:
        gone: list[str] = checkpoints.retain(last=3, every=1000, prefix="step-")
        checkpoints.verify("model")
        checkpoints.export("model", "/tmp/model.safetensors")
        checkpoints.import_("/tmp/model.safetensors", "again")
        model.load_state_dict(tidelog.restore("/mnt/nvme/tide", "model")["model"])
        checkpoints.delete("model")
        alone: int = sum(seal["alone"] for seal in checkpoints.list())
    return alone + len(gone)


def in_other_loops(trainer: Trainer, accelerator: Accelerator, tide: Tide) -> None:
    trainer.add_callback(OffloadCallback(tide))
    accelerator.log(step_figures(tide), step=1)
    LightningCallback(tide)


def micro_batches(model: nn.Module, batches: list[torch.Tensor]) -> float:
    def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).sum() / len(batches)
        return loss

    try:
        losses = tidelog.accumulate(model, batches, loss_of, blocks=model.children())
    except tidelog.OrderError:
        return 0.0
    return sum(loss.item() for loss in losses)


def handle(model: nn.Module) -> str:
    warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
    try:
        train(model, torch.optim.SGD(model.parameters()), [])
    except (tidelog.PoolError, tidelog.DeviceError, tidelog.RankError, tidelog.BudgetError) as error:
        return str(error)
    except (tidelog.ForkedError, tidelog.PinnedError, tidelog.UnmovableError, tidelog.Error) as error:
        return str(error)
    return ""


def wrong(model: nn.Module, tide: Tide) -> None:
    tidelog.offload(model, pool="/mnt/nvme/tide", memory="20GiB", mode="sometimes")  # type: ignore[arg-type]
    tidelog.offload(model, pool="/mnt/nvme/tide", memory=20.5)  # type: ignore[arg-type]
    tidelog.offload(model, pool="/mnt/nvme/tide", memry="20GiB")  # type: ignore[call-arg]
    tidelog.offload(model, memory="20GiB")  # type: ignore[call-arg]
    tidelog.fit("gpt2-xl", precision="fp64")  # type: ignore[arg-type]
    tide.stats()["stall_seconds"]  # type: ignore[typeddict-item]
    tide.evict(model)  # type: ignore[arg-type]
    tide.budget = "20GiB"  # type: ignore[assignment]
