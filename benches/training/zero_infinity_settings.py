"""Settings of ZeRO-Infinity that are tried: who is compared with shall be at its best."""

from size import WIDTH

MIB = 1 << 20
# The largest parameter is a matrix of an MLP; a buffer holds one.
LARGEST = 4 * WIDTH * WIDTH
# glibc keeps freed memory for itself, more than this job needs at all. Blocks that are mapped go back at once; each is
# then mapped anew, page by page, which takes time.
MAPPED = {"MALLOC_MMAP_THRESHOLD_": str(MIB)}

DEFAULTS = {
    "environment": {},
    # A parameter, two moments and a gradient, for the group that is updated, the next, and the one before.
    "optimizer_buffers": 12,
    "pipeline": True,
    "parameter_buffers": 12,
    # Elements. Groups are of whole parameters: with the smallest, a group is a matrix and vectors beside it.
    "sub_group_size": 1_000_000,
    "prefetch_bucket_size": LARGEST,
    "max_live_parameters": 3 * LARGEST,
    "reduce_bucket_size": LARGEST,
    "overlap_comm": False,
    "block_size": MIB,
    "queue_depth": 32,
    "threads": 1,
}

# What is tried, each beside DEFAULTS.
TRIED = {
    "as it comes": {},
    "half of the memory goes back": {"environment": {"MALLOC_MMAP_THRESHOLD_": str(12 * MIB)}},
    "memory goes back": {"environment": MAPPED},
    "memory goes back, no pipeline": {"pipeline": False, "optimizer_buffers": 5, "environment": MAPPED},
    "memory goes back, no prefetch": {"prefetch_bucket_size": 0, "max_live_parameters": 0, "environment": MAPPED},
    "larger groups": {"sub_group_size": 10_000_000},
    "deep queue, large blocks": {"queue_depth": 128, "block_size": 8 * MIB},
    "two I/O threads": {"threads": 2},
    "overlap_comm": {"overlap_comm": True},
    "prefetch further": {
        "prefetch_bucket_size": 4 * LARGEST,
        "max_live_parameters": 6 * LARGEST,
        "parameter_buffers": 20,
    },
}


def settings(name):
    return {**DEFAULTS, **TRIED[name]}
