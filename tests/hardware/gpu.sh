#!/usr/bin/env bash
# What can be shown on a machine with a GPU, in less than 8 minutes, from what was built elsewhere (`make gpu-build` puts it
# into target/gpu), from this checkout, and from the PyTorch of that machine: no Rust and no network are needed there.
#
#     tests/hardware/gpu.sh [FOLDER]
#
# Ends with 0 where every row ran and passed, 1 where one failed, 2 where one could not run, 77 where there is no GPU.
# TIDELOG_CUFILE names cuFile's library where it is not found, PYTHON the interpreter that has PyTorch.
set -uo pipefail
cd "$(dirname "$0")/../.."
BUILT=${1:-target/gpu}
PYTHON=${PYTHON:-python3}
# All rows together; what is left of it when a row begins is that row's limit.
LIMIT=460
readonly NO_GPU=77

for built in gpu-tests tidelog-doctor libtidelog.so; do
    if [ ! -x "$BUILT/$built" ]; then
        echo "gpu.sh: $BUILT/$built is missing; make gpu-build" >&2
        exit 64
    fi
done
if ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so' && ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
    echo "gpu.sh: no GPU here (neither libcuda.so nor /dev/nvidia0): nothing ran"
    exit $NO_GPU
fi

# Fails where this machine's Python lacks something for offload blocks on its GPU; the last line says what.
try_torch() {
    PYTHONPATH="torch-bridge/python" "$PYTHON" - 2>&1 <<'PYTHON'
import importlib.util
import sys
lacking = [name for name in ("torch", "numpy", "pytest") if importlib.util.find_spec(name) is None]
if lacking:
    sys.exit(f"{sys.executable} has no {' and no '.join(lacking)}")
import torch
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} finds no GPU")
from tidelog import Error, _movers
try:
    mover = _movers.choose("auto", "resize")
except Error as error:
    sys.exit(str(error))
print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}, mover {mover.name}")
PYTHON
}

# Said before anything runs: who lent the machine may still change it.
if tried=$(try_torch); then
    lacks=""
    echo "gpu.sh: $(tail -n 1 <<<"$tried")"
else
    lacks=$(tail -n 1 <<<"$tried")
    echo "gpu.sh: no row with PyTorch will run: $lacks"
fi

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
begun=$SECONDS
rows=0 ran=0 failed=0
table=""

# row NAME COMMAND…: one line of the table. A test that skips says SKIPPED, with the reason.
row() {
    local name=$1 log="$logs/$rows" left=$((LIMIT - (SECONDS - begun))) code=0 verdict
    shift
    rows=$((rows + 1))
    if [ "$left" -le 0 ]; then
        table+="not run $name: the time was up"$'\n'
        return
    fi
    timeout "$left" "$@" >"$log" 2>&1 || code=$?
    # A test program that runs one test prints its name first, on the same line.
    sed -i -E 's/^test [A-Za-z0-9_:]+ \.\.\. (SKIPPED|FACT)/\1/' "$log"
    if [ "$code" -eq 124 ]; then
        verdict="FAILED  $name: not done within $left s" failed=$((failed + 1)) ran=$((ran + 1))
    elif [ "$code" -ne 0 ]; then
        verdict="FAILED  $name: $(grep -m1 -E 'panicked|FAILED on|WRONG BYTES|error' "$log" || tail -n 1 "$log")"
        failed=$((failed + 1)) ran=$((ran + 1))
        tail -n 30 "$log" >&2
    elif grep -q '^running 0 tests' "$log"; then
        verdict="FAILED  $name: there is no test of that name"
        failed=$((failed + 1)) ran=$((ran + 1))
    elif grep -q '^SKIPPED' "$log"; then
        verdict="not run $name: $(grep -m1 '^SKIPPED' "$log" | cut -d: -f2-)"
    else
        verdict="ok      $name$(grep -h '^FACT' "$log" | sed 's/^FACT/;/' | tr -d '\n')"
        ran=$((ran + 1))
    fi
    table+="$verdict"$'\n'
}

# Nothing is written but in a folder of its own.
scratch=$(mktemp -d /var/tmp/tidelog-gpu-XXXXXX)
trap 'rm -rf "$logs" "$scratch"' EXIT
cufile=()
if [ -n "${TIDELOG_CUFILE:-}" ]; then cufile=(--cufile "$TIDELOG_CUFILE"); fi

if ! tests=$("$BUILT/gpu-tests" --list 2>&1); then
    echo "gpu.sh: $BUILT/gpu-tests does not run here: $tests" >&2
    exit 64
fi
for test in $(sed -n 's/: test$//p' <<<"$tests"); do
    row "$test" "$BUILT/gpu-tests" --exact "$test" --nocapture --test-threads 1
done
row "tidelog-doctor proves its paths" "$BUILT/tidelog-doctor" check --scratch "$scratch" --compat "${cufile[@]}"
if command -v compute-sanitizer >/dev/null 2>&1; then
    row "compute-sanitizer on the checksum kernel" compute-sanitizer --error-exitcode 1 "$BUILT/gpu-tests" \
        --exact the_checksum_kernel_agrees_with_the_host_bit_for_bit --nocapture
else
    rows=$((rows + 1))
    table+="not run compute-sanitizer on the checksum kernel: it is not installed"$'\n'
fi

# with_torch NAME COMMAND…: a row that needs PyTorch.
with_torch() {
    if [ -n "$lacks" ]; then
        rows=$((rows + 1))
        table+="not run $1: $lacks"$'\n'
    else
        row "$@"
    fi
}
TIDELOG_LIBRARY=$(realpath "$BUILT/libtidelog.so")
export TIDELOG_LIBRARY
# Deterministic matrix products need it.
export CUBLAS_WORKSPACE_CONFIG=:4096:8
for test in training_gives_the_same_bits training_by_cufile what_fits_into_host_memory an_eviction_waits cuda_itself_has_back; do
    with_torch "torch: $test" "$PYTHON" -m pytest -q -rs -k "$test and cuda" --basetemp "$scratch/pytest" tests/torch/test_gpu.py
done
with_torch "training under half its peak" "$PYTHON" tests/hardware/train.py --fraction 0.5 --batch 8 --pool /dev/shm "$scratch"
# Said here, so that nobody takes its absence for a pass.
rows=$((rows + 1))
table+="not run touch suite on CUDA: its tests make their tensors in host memory"$'\n'

printf '%s' "$table"
echo "$ran of $rows rows ran, $failed failed, $((SECONDS - begun)) s"
if [ "$failed" -gt 0 ]; then exit 1; fi
if [ "$ran" -lt "$rows" ]; then exit 2; fi
