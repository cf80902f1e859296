#!/usr/bin/env bash
# Tidelog with libraries that not every run of the tests pays for: training loops, kernels (scripts/integrations.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/integrations.sh
TIDELOG_INTEGRATIONS=1 target/integrations/bin/python -m pytest -q tests/torch/test_other_loops.py \
    tests/torch/test_kernel_libraries.py
