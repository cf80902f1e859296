#!/usr/bin/env bash
# What can be shown on a machine with a GPU, in less than 8 minutes, from what was built elsewhere (`make gpu-build`
# puts it into target/gpu), from this checkout, and from the PyTorch of that machine: no Rust and no network are needed
# there.
#
#     tests/hardware/gpu.sh [FOLDER]
#
# Each row is told when it is done (those of one pytest together), and all of them again at the end. Ends with 0 where
# every row ran and passed, 1 where one failed, 2 where one could not run, 77 where there is no GPU. The rows that say
# most come first: what does not fit into the time is told as not run.
#
# ONLY      a part of it: tests (Rust), torch, training, touch; all in this order if it is not given
# LOGS      a folder that keeps what each row printed, and which passed: a later call of the same build does only
#           the others
# SECONDS_MAX  for all rows together (460)
# PYTHON    the interpreter that has PyTorch (python3)
# TIDELOG_CUFILE  cuFile's library, where neither the loader nor PYTHON's packages have it
set -uo pipefail
cd "$(dirname "$0")/../.."
BUILT=${1:-target/gpu}
PYTHON=${PYTHON:-python3}
ONLY=${ONLY:-tests torch training touch}
# Of the time, what training leaves to the touch suite.
readonly LIMIT=${SECONDS_MAX:-460} ROW_MAX=90 FOR_TOUCH=100 NO_GPU=77

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

# The programs have no torch in them that would lead to its packages.
cufile_of_python() {
    "$PYTHON" - <<'PYTHON'
import glob
import importlib.util
nvidia = importlib.util.find_spec("nvidia")
for folder in nvidia.submodule_search_locations if nvidia else ():
    print(*glob.glob(f"{folder}/*/lib/libcufile.so.0"), sep="\n")
PYTHON
}

has_module() { "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

TIDELOG_LIBRARY=$(realpath "$BUILT/libtidelog.so")
export TIDELOG_LIBRARY
# Deterministic matrix products need it.
export CUBLAS_WORKSPACE_CONFIG=:4096:8
if [ -z "${TIDELOG_CUFILE:-}" ] && ! ldconfig -p 2>/dev/null | grep 'libcufile\.so' >/dev/null; then
    TIDELOG_CUFILE=$(cufile_of_python 2>/dev/null | sed -n '/./{p;q}')
    if [ -n "$TIDELOG_CUFILE" ]; then export TIDELOG_CUFILE; else unset TIDELOG_CUFILE; fi
fi

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
readonly PASSED=$logs/passed RESUME=$logs/training-rows
# What passed says nothing of another build.
build=$(find "$BUILT" torch-bridge/python -type f ! -name '*.pyc' -exec sha256sum {} + | sort | sha256sum)
if [ "$(cat "$logs/build" 2>/dev/null)" != "$build" ]; then rm -f "$PASSED" "$RESUME"; fi
echo "$build" >"$logs/build"
touch "$PASSED"
begun=$SECONDS
rows=0 ran=0 failed=0
table=""

left() { echo $((LIMIT - (SECONDS - begun))); }

# put VERDICT TEXT: one line of the table; the verdict is ok, FAILED or "not run".
put() {
    rows=$((rows + 1))
    case $1 in ok) ran=$((ran + 1)) ;; FAILED) ran=$((ran + 1)) failed=$((failed + 1)) ;; esac
    table+=$(printf '%-7s %s' "$1" "$2")$'\n'
    printf '%-7s %s\n' "$1" "$2"
}

# tell VERDICT NAME REST: the same, and what passed is kept.
tell() {
    put "$1" "$2$3"
    if [ "$1" = ok ]; then printf '%s\t%s\n' "$2" "$3" >>"$PASSED"; fi
}

passed() { cut -f 1 "$PASSED" | grep -qxF -- "$1"; }

# known NAME: a row that passed in an earlier call is told again, and does not run.
known() {
    passed "$1" && put ok "$1$(awk -F '\t' -v name="$1" '$1 == name { print $2; exit }' "$PASSED") (in an earlier call)"
}

# run NAME SECONDS COMMAND…: its output goes to $log, its exit code to $code; false where it did not end, as $verdict
# and $reason say.
run() {
    local seconds=$2 cut="" started=$SECONDS
    log="$logs/$(tr -c 'A-Za-z0-9\n' - <<<"$1")"
    shift 2
    # Another call's is no word on this one.
    rm -f "$log"
    verdict="not run" reason="the time was up"
    if [ "$(left)" -le 0 ]; then return 1; fi
    if [ "$(left)" -le "$seconds" ]; then seconds=$(left) cut=1; fi
    code=0
    timeout -k 5 "$seconds" "$@" >"$log" 2>&1 || code=$?
    # What the kernel killed for its memory ends with 137 as well, but earlier.
    if [ "$code" -eq 124 ] || { [ "$code" -eq 137 ] && [ $((SECONDS - started)) -ge "$seconds" ]; }; then
        reason="the time was up after $seconds s of it"
        if [ -z "$cut" ]; then verdict=FAILED reason="not done within $seconds s"; fi
        return 1
    fi
}

# What a failed row's log says first; its end goes to the screen.
why() {
    tail -n 30 "$log" >&2
    grep -m1 -E 'panicked|FAILED on|WRONG BYTES|^ERROR|^FAILED|error' "$log" || tail -n 1 "$log"
}

# row NAME COMMAND…: a program of ours. A test that skips says SKIPPED, with the reason; what is worth telling is a
# FACT.
row() {
    local name=$1
    shift
    if known "$name"; then return; fi
    if ! run "$name" $ROW_MAX "$@"; then
        tell "$verdict" "$name" ": $reason"
        return
    fi
    # A test program that runs one test prints its name first, on the same line.
    sed -i -E 's/^test [A-Za-z0-9_:]+ \.\.\. (SKIPPED|FACT)/\1/' "$log"
    if grep -q '^=========.*Device not supported' "$log"; then
        # compute-sanitizer under a sandbox, which does not hand it the GPU's debugger.
        tell "not run" "$name" ": the tool says: Device not supported"
    elif [ "$code" -ne 0 ]; then
        tell FAILED "$name" ": $(why)"
    elif grep -q '^running 0 tests' "$log"; then
        tell FAILED "$name" ": there is no test of that name"
    elif grep -q '^SKIPPED' "$log"; then
        tell "not run" "$name" ": $(grep -m1 '^SKIPPED' "$log" | cut -d: -f2-)"
    else
        tell ok "$name" "$(grep -h '^FACT' "$log" | sed 's/^FACT/;/' | tr -d '\n')"
    fi
}

# pytest_rows PREFIX SECONDS WHERE NAMES ARGUMENTS…: one pytest, and a row for each of NAMES, a test or a file that is
# WHERE says with the name in place of its @. What passed in an earlier call does not run again.
pytest_rows() {
    local prefix=$1 seconds=$2 where=$3 names=$4 told=$scratch/told by=file todo=() paths=() ended=1 name word text
    shift 4
    case $where in *::*) by=test ;; esac
    for name in $names; do
        if known "$prefix: $name"; then continue; fi
        todo+=("$name") paths+=("${where/@/$name}")
    done
    if [ ${#todo[@]} -eq 0 ]; then return; fi
    if [ "$(left)" -lt "$seconds" ]; then seconds=$(left); fi
    rm -f "$told"
    # What is under way when the time is up has 15 s to end.
    if [ -n "$lacks" ]; then
        verdict="not run" reason=$lacks
    elif PYTHONPATH=tests/hardware${PYTHONPATH:+:$PYTHONPATH} run "$prefix" "$seconds" "$PYTHON" -m pytest -q -rsfE --tb=short --basetemp "$scratch/pytest" \
        -p rows --rows-by "$by" --rows-to "$told" --rows-until $(($(date +%s) + seconds - 15)) \
        "$@" "${paths[@]}"; then
        ended=""
    fi
    for name in "${todo[@]}"; do
        word="" text=""
        if [ -f "$told" ]; then IFS=$'\t' read -r word _ text < <(awk -F '\t' -v name="$name" '$2 == name { print; exit }' "$told"); fi
        case $word in
        FACT) tell ok "$prefix: $name" "; $text" ;;
        FAILED) tell FAILED "$prefix: $name" ": $text" ;;
        LEFT) tell "not run" "$prefix: $name" ": $text" ;;
        *) if [ -n "$ended" ]; then
            tell "$verdict" "$prefix: $name" ": $reason"
        else
            tell FAILED "$prefix: $name" ": pytest ended with $code and no word on it: $(tail -n 1 "$log")"
        fi ;;
        esac
    done
    if [ -z "$ended" ] && [ "$code" -ne 0 ]; then tail -n 30 "$log" >&2; fi
}

rust_rows() {
    local tests test tool sanitizer
    if ! tests=$("$BUILT/gpu-tests" --list 2>&1); then
        tell FAILED "the CUDA and cuFile tests" ": gpu-tests does not run here: $tests"
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
            tell "not run" "compute-sanitizer ($tool) on the checksum kernel" ": it is not installed"
        else
            row "compute-sanitizer ($tool) on the checksum kernel" "$sanitizer" --tool "$tool" --error-exitcode 1 \
                "$BUILT/gpu-tests" --exact checksum::the_checksum_kernel_agrees_with_the_host_bit_for_bit --nocapture
        fi
    done
}

TORCH_TESTS="
    test_training_gives_the_same_bits
    test_cuda_itself_has_back_what_left
    test_a_model_that_the_gpu_never_holds_whole
    test_training_gives_the_same_bits_where_host_memory_takes_a_part
    test_training_gives_the_same_bits_in_expandable_segments
    test_training_by_cufile_gives_the_same_bits_and_none_passes_through_the_host
    test_what_fits_into_host_memory_reaches_no_ssd_and_leaves_clean_without_a_copy
    test_an_eviction_waits_for_every_stream"

torch_rows() { pytest_rows torch $((2 * ROW_MAX)) tests/torch/test_gpu.py::@ "$TORCH_TESTS" -k "not fake"; }

# The comparison makes rows of its own, and keeps to the time itself.
training_rows() {
    local pools=(${memory:+"memory=$memory"} "disk=$scratch") reserve=10 line
    if [ -n "$lacks" ]; then
        put "not run" "training: $lacks"
        return
    fi
    if [[ $ONLY == *touch* ]] && touch_is_left; then reserve=$FOR_TOUCH; fi
    local ended=""
    run training "$(left)" "$PYTHON" tests/hardware/train.py --pool "${pools[@]}" --within $(($(left) - reserve)) --tools "$BUILT" \
        --resume "$RESUME" || ended=1
    if [ -f "$log" ]; then
        while read -r line; do
            case $line in
            FACT*) put ok "training: ${line#FACT }" ;;
            FAILED*) put FAILED "training: ${line#FAILED }" ;;
            LEFT*) put "not run" "training: ${line#LEFT }" ;;
            esac
        done <"$log"
    fi
    if [ -n "$ended" ]; then
        put "$verdict" "training: $reason"
        return
    fi
    # 0: all rows ran; 1: one FAILED; 3: some are LEFT. Anything else, or 1 without a word, is a crash, whatever came
    # before.
    case $code in
    0 | 3) if grep -q -E '^(FACT|FAILED|LEFT)' "$log"; then return; fi ;;
    1) if grep -q '^FAILED' "$log"; then return; fi ;;
    esac
    tail -n 30 "$log" >&2
    put FAILED "training: train.py ended with $code: $(tail -n 1 "$log")"
}

TOUCH="touch suite on CUDA"
touch_files() {
    local file
    for file in tests/torch/test_touch_*.py tests/torch/test_programs.py; do basename "$file" .py; done
}

touch_is_left() {
    local file
    for file in $(touch_files); do
        if ! passed "$TOUCH: $file"; then return 0; fi
    done
    return 1
}

touch_rows() {
    local workers=() lacks=$lacks
    if [ -z "$lacks" ] && ! has_module safetensors; then lacks="$PYTHON has no safetensors"; fi
    if has_module xdist; then workers=(-n 8); fi
    pytest_rows "$TOUCH" "$LIMIT" tests/torch/@.py "$(touch_files)" --device cuda -m "not slow" "${workers[@]}"
}

for part in $ONLY; do
    case $part in tests) rust_rows ;; torch) torch_rows ;; training) training_rows ;; touch) touch_rows ;; esac
done

printf '\n%s' "$table"
echo "$ran of $rows rows ran, $failed failed, $((SECONDS - begun)) s"
if [ "$failed" -gt 0 ]; then exit 1; fi
if [ "$ran" -lt "$rows" ]; then exit 2; fi
