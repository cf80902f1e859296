"""`tidelog` with the fake GPU of the tests (tests/torch/tidetest/fake_cuda.py), which a block then takes for its own:

    fake_gpu.py FOLDER                  builds it there
    fake_gpu.py FOLDER ARGUMENTS ...    runs `tidelog ARGUMENTS ...` with it

The memory of a program's tensors is that GPU's: what moves is copied late, in streams, and is ordered by events alone.
The command ends as the program does, but with an error where CUDA's rules were broken.
"""

import gc
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2] / "tests" / "torch")

import pytest  # noqa: E402
import torch  # noqa: E402
from tidelog.__main__ import main  # noqa: E402
from tidetest import fake_cuda  # noqa: E402


def build(folder):
    """Builds the fake GPU, and torch's guard for it."""
    folder.mkdir()
    fake_cuda.build(folder)
    fake_cuda.build_guard(folder)


def run(folder, words):
    """Runs a command of `tidelog` on a fake GPU of this process."""
    with pytest.MonkeyPatch.context() as patch:
        built = folder / "libcuda.so", folder / "fake_guard.so"
        gpu = fake_cuda.FakeCuda(patch, folder, seed=1, laziness=1, built=built)
        gpu.hear_of_memory()
        sys.argv = ["tidelog", *words]
        try:
            return main()
        finally:
            gc.collect()
            torch.cuda.synchronize()
            gpu.guard.memory_end()
            gpu.assert_lawful()


if __name__ == "__main__":
    folder, *words = sys.argv[1:]
    sys.exit(run(Path(folder), words) if words else build(Path(folder)))
