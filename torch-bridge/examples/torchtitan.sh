#!/usr/bin/env bash
# torchtitan, unedited, with 60 GiB of each GPU and SSDs for the rest. Its words after "-m torchtitan.train" are
# torchtitan's own. It needs GPUs; `make test-integrations` checks that torchtitan takes these words, and trains by its
# trainer on processors (benches/stacks/programs/torchtitan_llama3.py).
#
#   pip install torchtitan
#   POOL=/mnt/nvme0/tide,/mnt/nvme1/tide torch-bridge/examples/torchtitan.sh
set -euo pipefail

# CUDA graphs have tensors' addresses in them, and tensors move.
torchtitan=(--module llama3 --config llama3_8b --training.disable_cuda_graphs --training.steps 20)

exec torchrun --standalone --nproc-per-node "${GPUS:-8}" \
    -m tidelog run --device cuda --memory 60GiB --pool "$POOL" --report step.html \
    -m torchtitan.train "${torchtitan[@]}" "$@"
