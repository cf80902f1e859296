"""DDP and FSDP2 over compiled models, on two ranks: bit for bit what they are without a block, in 40 % of the peak."""

import os

import pytest

from tidetest import compiled_ranks, device, process

pytestmark = [
    pytest.mark.host_memory(device.RANKS),
    pytest.mark.slow,  # each rank compiles
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("kernels_of_inductor"),
    pytest.mark.skipif(not compiled_ranks.dist.is_available(), reason="this torch has no torch.distributed"),
]

SCRIPT = """
from tidetest import compiled_ranks
compiled_ranks.main(*sys.argv[1:])
"""


def variants():
    for program in compiled_ranks.PROGRAMS:
        for mode in ("auto", "reactive"):
            yield mode, program.__name__


@pytest.mark.parametrize(("mode", "name"), variants())
def test_compiled_models_have_the_same_bits(tmp_path, mode, name):
    kernels = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    started = [process.start(SCRIPT, rank, 2, tmp_path, mode, name, kernels) for rank in range(2)]
    process.assert_all_done(started)
