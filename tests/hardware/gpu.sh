#!/usr/bin/env bash
# What can be shown on a machine with a GPU, in less than 8 minutes, from what was built elsewhere (`make gpu-build` puts it
# into target/gpu), from this checkout, and from the PyTorch of that machine: no Rust and no network are needed there.
#
#     tests/hardware/gpu.sh [FOLDER]
#
# Each row is told when it is done, and all of them again at the end. Ends with 0 where every row ran and passed, 1 where one
# failed, 2 where one could not run, 77 where there is no GPU.
#
# ONLY      a part of it: tests (Rust), torch, training, touch; all in this order if it is not given
# LOGS      a folder that keeps what each row printed, and the training rows that ran: a later call does only the others
# SECONDS_MAX  for all rows together (460)
# PYTHON    the interpreter that has PyTorch (python3)
# TIDELOG_CUFILE  cuFile's library, where it is not found
set -uo pipefail
cd "$(dirname "$0")/../.."
BUILT=${1:-target/gpu}
PYTHON=${PYTHON:-python3}
ONLY=${ONLY:-tests torch training touch}
readonly LIMIT=${SECONDS_MAX:-460} ROW_MAX=90 NO_GPU=77

for part in $ONLY; do
    case $part in tests | torch | training | touch) ;; *)
        echo "gpu.sh: ONLY=$part is no part; there are tests, torch, training, touch" >&2
        exit 64
        ;;
    esac
done
for built in gpu-tests tidelog-doctor tidelog-bench tidelog-plan libtidelog.so; do
    if [ ! -x "$BUILT/$built" ]; then
        echo "gpu.sh: $BUILT/$built is missing; make gpu-build" >&2
        exit 64
    fi
done
if ! ldconfig -p 2>/dev/null | grep 'libcuda\.so' >/dev/null && ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
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

has_module() { "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

TIDELOG_LIBRARY=$(realpath "$BUILT/libtidelog.so")
export TIDELOG_LIBRARY
# Deterministic matrix products need it.
export CUBLAS_WORKSPACE_CONFIG=:4096:8

# Said before anything runs: who lent the machine may still change it.
if tried=$(try_torch); then
    lacks=""
    echo "gpu.sh: $(tail -n 1 <<<"$tried")"
else
    lacks=$(tail -n 1 <<<"$tried")
    echo "gpu.sh: no row with PyTorch will run: $lacks"
fi

# Nothing is written but here.
scratch=$(mktemp -d /var/tmp/tidelog-gpu-XXXXXX)
memory=$(mktemp -d /dev/shm/tidelog-gpu-XXXXXX 2>/dev/null) || memory=""
trap 'rm -rf "$scratch" ${memory:+"$memory"}' EXIT
export TMPDIR=$scratch
logs=${LOGS:-$scratch/logs}
mkdir -p "$logs"
begun=$SECONDS
rows=0 ran=0 failed=0
table=""

left() { echo $((LIMIT - (SECONDS - begun))); }

# tell VERDICT TEXT: one line of the table; the verdict is ok, FAILED or "not run".
tell() {
    rows=$((rows + 1))
    case $1 in ok) ran=$((ran + 1)) ;; FAILED) ran=$((ran + 1)) failed=$((failed + 1)) ;; esac
    table+=$(printf '%-7s %s' "$1" "$2")$'\n'
    printf '%-7s %s\n' "$1" "$2"
}

# run NAME SECONDS COMMAND…: its output goes to $log, its exit code to $code; false where there is no time for it.
run() {
    local name=$1 seconds=$2 cut=""
    shift 2
    log="$logs/$(tr -c 'A-Za-z0-9\n' - <<<"$name")"
    if [ "$(left)" -le 0 ]; then
        tell "not run" "$name: the time was up"
        return 1
    fi
    if [ "$(left)" -lt "$seconds" ]; then seconds=$(left) cut=1; fi
    code=0
    local started=$SECONDS
    timeout -k 5 "$seconds" "$@" >"$log" 2>&1 || code=$?
    # What the kernel killed for its memory ends with 137 as well, but earlier.
    if [ "$code" -eq 124 ] || { [ "$code" -eq 137 ] && [ $((SECONDS - started)) -ge "$seconds" ]; }; then
        if [ -n "$cut" ]; then
            tell "not run" "$name: the time was up after $seconds s of it"
        else
            tell FAILED "$name: not done within $seconds s"
        fi
        return 1
    fi
}

# What a failed row's log says first; its end goes to the screen.
why() {
    tail -n 30 "$log" >&2
    grep -m1 -E 'panicked|FAILED on|WRONG BYTES|^ERROR|^FAILED|error' "$log" || tail -n 1 "$log"
}

# row NAME COMMAND…: a program of ours. A test that skips says SKIPPED, with the reason; what is worth telling is a FACT.
row() {
    local name=$1
    shift
    run "$name" $ROW_MAX "$@" || return
    # A test program that runs one test prints its name first, on the same line.
    sed -i -E 's/^test [A-Za-z0-9_:]+ \.\.\. (SKIPPED|FACT)/\1/' "$log"
    if [ "$code" -ne 0 ]; then
        tell FAILED "$name: $(why)"
    elif grep -q '^running 0 tests' "$log"; then
        tell FAILED "$name: there is no test of that name"
    elif grep -q '^SKIPPED' "$log"; then
        tell "not run" "$name: $(grep -m1 '^SKIPPED' "$log" | cut -d: -f2-)"
    else
        tell ok "$name$(grep -h '^FACT' "$log" | sed 's/^FACT/;/' | tr -d '\n')"
    fi
}

# pytest_row NAME SECONDS ARGUMENTS…: ran where one test passed; those that were skipped are counted.
pytest_row() {
    local name=$1 seconds=$2 counts
    shift 2
    if [ -n "$lacks" ]; then
        tell "not run" "$name: $lacks"
        return
    fi
    run "$name" "$seconds" "$PYTHON" -m pytest -q -rsfE --tb=short --basetemp "$scratch/pytest" "$@" || return
    # In a process that loaded all of torch other lines may follow the last of pytest's.
    counts=$(grep -E '^[0-9]+ .*(passed|failed|skipped|error|deselected).* in [0-9.]+' "$log" | tail -n 1)
    if [ "$code" -ne 0 ]; then
        tell FAILED "$name: ${counts:-pytest ended with $code}: $(why)"
    elif ! grep -q passed <<<"$counts"; then
        tell "not run" "$name: $(grep -m1 '^SKIPPED' "$log" || echo "$counts")"
    else
        tell ok "$name; $counts"
    fi
}

rust_rows() {
    local tests test tool sanitizer
    if ! tests=$("$BUILT/gpu-tests" --list 2>&1); then
        tell FAILED "the CUDA and cuFile tests: gpu-tests does not run here: $tests"
        return
    fi
    for test in $(sed -n 's/: test$//p' <<<"$tests"); do
        row "$test" "$BUILT/gpu-tests" --exact "$test" --nocapture --test-threads 1
    done
    local cufile=()
    if [ -n "${TIDELOG_CUFILE:-}" ]; then cufile=(--cufile "$TIDELOG_CUFILE"); fi
    row "tidelog-doctor proves its paths" "$BUILT/tidelog-doctor" check --scratch "$scratch" --compat "${cufile[@]}"
    sanitizer=$(PATH="$PATH:/usr/local/cuda/bin" command -v compute-sanitizer)
    for tool in memcheck racecheck; do
        if [ -z "$sanitizer" ]; then
            tell "not run" "compute-sanitizer ($tool) on the checksum kernel: it is not installed"
        else
            row "compute-sanitizer ($tool) on the checksum kernel" "$sanitizer" --tool "$tool" --error-exitcode 1 \
                "$BUILT/gpu-tests" --exact checksum::the_checksum_kernel_agrees_with_the_host_bit_for_bit --nocapture
        fi
    done
}

torch_rows() {
    local test
    for test in training_gives_the_same_bits training_by_cufile what_fits_into_host_memory an_eviction_waits cuda_itself_has_back; do
        pytest_row "torch: $test" $ROW_MAX -k "$test and cuda" tests/torch/test_gpu.py
    done
}

# The comparison makes rows of its own, and keeps to the time itself.
training_rows() {
    local pools=(${memory:+"memory=$memory"} "disk=$scratch") line
    if [ -n "$lacks" ]; then
        tell "not run" "training: $lacks"
        return
    fi
    # The touch suite is to have its turn, too.
    local seconds=$(($(left) - 100))
    if [ "$ONLY" = training ]; then seconds=$(($(left) - 10)); fi
    local ended=""
    run training "$(left)" "$PYTHON" tests/hardware/train.py --pool "${pools[@]}" --within "$seconds" --tools "$BUILT" \
        --resume "$logs/training-rows" || ended=1
    [ -f "$log" ] || return
    while read -r line; do
        case $line in
        FACT*) tell ok "training: ${line#FACT }" ;;
        FAILED*) tell FAILED "training: ${line#FAILED }" ;;
        LEFT*) tell "not run" "training: ${line#LEFT }" ;;
        esac
    done <"$log"
    if [ -z "$ended" ] && ! grep -q -E '^(FACT|FAILED|LEFT)' "$log"; then tell FAILED "training: $(why)"; fi
}

touch_rows() {
    local file workers=()
    if has_module xdist; then workers=(-n 8); fi
    for file in tests/torch/test_touch_*.py tests/torch/test_programs.py; do
        if [ -z "$lacks" ] && ! has_module safetensors; then
            tell "not run" "touch suite on CUDA, $(basename "$file" .py): $PYTHON has no safetensors"
        else
            pytest_row "touch suite on CUDA, $(basename "$file" .py)" $((2 * ROW_MAX)) --device cuda -m "not slow" "${workers[@]}" "$file"
        fi
    done
}

for part in $ONLY; do
    case $part in tests) rust_rows ;; torch) torch_rows ;; training) training_rows ;; touch) touch_rows ;; esac
done

printf '\n%s' "$table"
echo "$ran of $rows rows ran, $failed failed, $((SECONDS - begun)) s"
if [ "$failed" -gt 0 ]; then exit 1; fi
if [ "$ran" -lt "$rows" ]; then exit 2; fi
