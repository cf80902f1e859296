#!/usr/bin/env bash
# What takes hours. A run that comes to its end is noted in tests/slow-run, which is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
record=tests/slow-run
echo "test-slow: the last whole run: $(cat "$record" 2>/dev/null || echo none is noted)"
export OMP_NUM_THREADS=1
cargo test -q --release -p tidelog-planner --lib freedom -- --ignored
.venv/bin/python -m pytest -q -n 2 -m slow tests/torch
.venv/bin/python -m pytest -q -n 2 --recompute best tests/torch/test_touch_*.py
.venv/bin/python -m pytest -q -n 2 --device fake --updates host tests/torch/test_touch_*.py tests/torch/test_lazy_{programs,optimizers,touches}.py
.venv/bin/python -m pytest -q --device fake tests/torch/test_compile.py
scripts/fuzz.sh
scripts/sanitize.sh
git diff --quiet HEAD || { echo "test-slow: passed, and not noted: there are changes that are not committed" >&2; exit 0; }
echo "$(date -u +%F), commit $(git rev-parse --short HEAD)" | tee "$record"
