#!/usr/bin/env bash
# Tidelog with libraries that not every run of the tests pays for: training loops, kernels (scripts/integrations.sh).
# Programs as their users write them give the table of docs/integrations.md.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/integrations.sh
TIDELOG_INTEGRATIONS=1 target/integrations/bin/python -m pytest -q tests/torch/test_other_loops.py \
    tests/torch/test_kernel_libraries.py
code=0
target/integrations/bin/python benches/stacks/stacks.py || code=$?
python3 scripts/docs/figures.py --collect stacks # also what failed
exit $code
