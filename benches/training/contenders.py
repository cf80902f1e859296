"""Contenders: one entry each. What an entry needs and is not there is skipped, with the reason."""

from dataclasses import dataclass, field

MIB = 1 << 20
# What Tidelog's process holds beside its budget: the plan, Python's objects of a step, pages that the heap keeps.
OUTSIDE_BYTES = 96 * MIB


@dataclass(frozen=True)
class Contender:
    name: str
    words: str
    # A function of `trainer.py`.
    way: str
    # Whether it has an SSD to use.
    has_pool: bool = True
    # Of ZeRO-Infinity: which of the settings that were tried.
    tuned: str | None = None
    # Of Tidelog: the part of the reference's memory that it gets, and further options of `tidelog.offload`.
    memory_part: float | None = None
    options: dict = field(default_factory=dict)
    micro_batches_min: int = 1

    @property
    def is_ours(self):
        return self.memory_part is not None


# Whom Tidelog is compared with, and whose memory it gets at most.
REFERENCE = "zero-infinity-lean"
CEILING = "plain"

CONTENDERS = [
    Contender(CEILING, "plain torch, all in memory", "plain", has_pool=False),
    Contender("save-on-cpu", "torch.autograd.graph.save_on_cpu", "save_on_cpu", has_pool=False),
    Contender("fsdp2", "FSDP2, CPUOffloadPolicy", "fsdp2", has_pool=False),
    Contender("zero-infinity", "ZeRO-Infinity, its fastest settings", "zero_infinity", tuned="fastest"),
    Contender(REFERENCE, "ZeRO-Infinity, in little memory", "zero_infinity", tuned="lean"),
    Contender("tidelog", "Tidelog", "block", memory_part=1),
    Contender("tidelog-lazy", "Tidelog, lazy optimizer", "block", memory_part=1, options={"updates": "lazy"}),
    Contender("tidelog-early", "Tidelog, early updates", "block", memory_part=1, options={"updates": "early"}),
    Contender("tidelog-layers", "Tidelog, layer-wise", "block_by_layers", memory_part=1, micro_batches_min=2),
    Contender(
        "tidelog-layers-lazy", "Tidelog, layer-wise, lazy optimizer", "block_by_layers",
        memory_part=1, options={"updates": "lazy"}, micro_batches_min=2,
    ),
    Contender("tidelog-half", "Tidelog in half of that memory", "block", memory_part=0.5),
]  # fmt: skip


def budget(contender, reference_bytes):
    """`memory=` of a block whose process shall take as much as the reference, or a part of it."""
    return int(reference_bytes * contender.memory_part) - OUTSIDE_BYTES
