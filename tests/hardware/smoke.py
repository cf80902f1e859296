#!/usr/bin/env python3
"""The smallest block that moves anything on a GPU: 12 tensors of 16 MiB under 64 MiB, every bit compared.

    python tests/hardware/smoke.py --pool FOLDER

With FAKE in the environment the tensors are the host's.
"""

import argparse
import os
import tempfile

import torch

import tidelog

_MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", required=True)
    arguments = parser.parse_args()
    device = "cpu" if os.environ.get("FAKE") else "cuda"
    made = [torch.arange(4 * _MIB, dtype=torch.float32) * (number + 1) for number in range(12)]
    with tempfile.TemporaryDirectory(dir=arguments.pool) as pool:
        options = {"memory": 64 * _MIB, "pool_size": 512 * _MIB, "device": device, "buffered": True}
        with tidelog.offload(pool=pool, mode="reactive", **options) as tide:
            moved = [each.to(device) * 1 for each in made] if device == "cuda" else [each * 1 for each in made[:3]]
            for expected, found in zip(made, moved):
                assert torch.equal(found.cpu(), expected), "other bits came back"
            stats = tide.stats()
            print(f"FACT {stats['data_path']}; {stats['gpu']}; {stats['totals']}; {stats['gpu_memory']}")
            assert device == "cpu" or stats["totals"]["evictions"] > 0, "everything fitted"
            moved.clear()


if __name__ == "__main__":
    main()
