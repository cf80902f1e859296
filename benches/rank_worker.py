"""A process of benches/updates.py that is a rank of a distributed program: overhead_worker.py's, sharded by FSDP2 or
wrapped by DDP, with a batch of its own."""

import sys
import warnings

import torch
import torch.distributed as dist
from overhead_worker import Worker, serve
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tidelog
from tidelog.order._chains import Chain

PLENTY = 4 << 30


class RankWorker(Worker):
    """A rank, with what surrounds its steps."""

    def __init__(self, name: str, program: str, pool: str) -> None:
        super().__init__(name, rank=dist.get_rank(), wrap=sharded if program == "fsdp2" else DistributedDataParallel)
        self._pool = pool  # for who measures

    def measure(self) -> dict[str, object]:
        """Returns the needs of the plain rank, as a block counts them that has nothing to do: FSDP2 resizes what no
        mode sees."""
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        options = {"pool": self._pool, "pool_size": 64 << 20, "mode": "reactive"}
        with tidelog.offload(self.model, self.optimizer, memory=PLENTY, **options) as tide:
            for _ in range(3):
                with tide.step():
                    self.train()
        # Staging counts in what a block has, whether it is used or not.
        return {"peak": tide.peak_bytes - tide.staging, "threads": torch.get_num_threads()}


def sharded(model: nn.Module) -> nn.Module:
    for layer in Chain(model, None).blocks.values():
        fully_shard(layer)
    return fully_shard(model)


def main() -> None:
    name, threads, program, rank, size, meeting = sys.argv[1:]
    torch.set_num_threads(int(threads))
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(size))
    serve(RankWorker(name, program, f"{meeting}'s pool {rank}"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
