#!/usr/bin/env bash
# What can be shown on a machine with a GPU in half an hour, from what was built elsewhere (`make gpu-build` puts it
# into target/gpu), from this checkout, and from the PyTorch of that machine: no Rust and no network are needed there.
# It runs in calls of less than ten minutes, one after the other: each goes on where the last one ended.
#
#     LOGS=FOLDER RETRY=0 tests/hardware/gpu.sh [BUILT]
#
# Each row has a process and a limit of its own (those of the touch suite share one), is told when it is done, and all
# again at the end. Ends with 0 where every row ran and passed, 1 where one failed, 2 where one could not run, 77 where
# there is no GPU. The rows that say most come first: what does not fit into the time is told as not run. What may hang
# comes with short limits (cuFile alone) or last.
#
# ONLY      a part of it: facts, smoke, cufile, torch, training, tests (Rust), touch, late; all in this order if it is
#           not given
# LOGS      a folder that keeps what each row printed, and which passed: a later call of the same build does only
#           the others. All of it is in LOGS.tar.gz at the end
# RETRY     0: what failed in an earlier call is told again and does not run (1)
# SECONDS_MAX  for all rows together (560)
# PYTHON    the interpreter that has PyTorch (python3)
# TIDELOG_CUFILE  cuFile's library, where neither the loader nor PYTHON's packages have it
# FAKE      a folder: a dry run without a GPU, on gds/fake, which is built there (it needs a C compiler)
set -uo pipefail
cd "$(dirname "$0")/../.."
BUILT=${1:-target/gpu}
PYTHON=${PYTHON:-python3}
readonly PARTS="facts smoke cufile torch training tests touch late"
ONLY=${ONLY:-$PARTS}
# Of the time, what training leaves to the touch suite.
readonly LIMIT=${SECONDS_MAX:-560} ROW_MAX=90 SMOKE_MAX=30 CUFILE_MAX=20 FOR_TOUCH=100 NO_GPU=77
row_max=$ROW_MAX

for part in $ONLY; do
    case " $PARTS " in *" $part "*) ;; *)
        echo "gpu.sh: ONLY=$part is no part; there are ${PARTS// /, }" >&2
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
if [ -n "${FAKE:-}" ]; then
    mkdir -p "$FAKE" && FAKE=$(realpath "$FAKE") || exit 64
    cc -O1 -shared -fPIC -pthread -Wl,-soname,libcuda.so -o "$FAKE/libcuda.so" gds/fake/*.c || exit 64
    export LD_LIBRARY_PATH=$FAKE${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export TIDELOG_CUFILE=$FAKE/libcuda.so TIDELOG_GDRAPI=$FAKE/libcuda.so
elif ! ldconfig -p 2>/dev/null | grep 'libcuda\.so' >/dev/null && ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
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
import os
import torch
if not torch.cuda.is_available() and not os.environ.get("FAKE"):
    sys.exit(f"torch {torch.__version__} finds no GPU")
from tidelog import Error
from tidelog.native._built import native
try:
    native()
except Error as error:
    sys.exit(str(error))
name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU (a dry run)"
print(f"torch {torch.__version__} on {name}")
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
export PYTHON TIDELOG_LIBRARY FAKE=${FAKE:-}
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
readonly PASSED=$logs/passed BROKEN=$logs/failed RESUME=$logs/training-rows
# cuFile writes its own words into the current folder, unless told otherwise.
export CUFILE_LOGFILE_PATH=${CUFILE_LOGFILE_PATH:-$logs/cufile.log}
# What passed says nothing of another build.
build=$(find "$BUILT" torch-bridge/python -type f ! -name '*.pyc' -exec sha256sum {} + | sort | sha256sum)
if [ "$(cat "$logs/build" 2>/dev/null)" != "$build" ]; then rm -f "$PASSED" "$BROKEN" "$RESUME"; fi
echo "$build" >"$logs/build"
touch "$PASSED" "$BROKEN"
told_now=$scratch/told-now
touch "$told_now"
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

# tell VERDICT NAME REST: the same, and how it ended is kept.
tell() {
    put "$1" "$2$3"
    echo "$2" >>"$told_now"
    case $1 in ok) printf '%s\t%s\n' "$2" "$3" >>"$PASSED" ;; FAILED) printf '%s\t%s\n' "$2" "$3" >>"$BROKEN" ;; esac
}

is_in() { cut -f 1 "$1" | grep -qxF -- "$2"; }

passed() { is_in "$PASSED" "$1"; }

# rest_of FILE NAME: what was told of a row in an earlier call.
rest_of() { awk -F '\t' -v name="$2" '$1 == name { print $2; exit }' "$1"; }

# known NAME: a row of this call is not run twice; one that passed in an earlier call is told again, and does not run.
known() {
    if is_in "$told_now" "$1"; then return 0; fi
    if passed "$1"; then
        put ok "$1$(rest_of "$PASSED" "$1") (in an earlier call)"
    elif [ "${RETRY:-1}" = 0 ] && is_in "$BROKEN" "$1"; then
        put FAILED "$1$(rest_of "$BROKEN" "$1") (in an earlier call)"
    else
        return 1
    fi
    echo "$1" >>"$told_now"
}

# run NAME SECONDS COMMAND…: its output goes to $log, its exit code to $code; false where it did not end, as $verdict
# and $reason say.
run() {
    local seconds=$2 cut="" started=$SECONDS
    log="$logs/$(tr -c 'A-Za-z0-9\n' - <<<"$1")"
    shift 2
    # Another call's is no word on this one; what a failure printed is kept all the same.
    if grep -qsE '^(FAILED|ERROR)|panicked|^E  ' "$log"; then mv "$log" "$log-$(date +%s)"; else rm -f "$log"; fi
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
    if ! run "$name" "$row_max" "$@"; then
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
    local label=$prefix
    if [ "$by" = test ]; then label="$prefix $names"; fi
    # What is under way when the time is up has 15 s to end.
    if [ -n "$lacks" ]; then
        verdict="not run" reason=$lacks
    elif PYTHONPATH=tests/hardware${PYTHONPATH:+:$PYTHONPATH} run "$label" "$seconds" "$PYTHON" -m pytest -q -rsfE --tb=short --basetemp "$scratch/pytest" \
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

# rust_tests PATTERN: the rows of the Rust tests whose names match, each a process.
rust_tests() {
    local tests test
    if ! tests=$("$BUILT/gpu-tests" --list 2>&1); then
        tell FAILED "the CUDA and cuFile tests" ": gpu-tests does not run here: $tests"
        return
    fi
    for test in $(sed -n 's/: test$//p' <<<"$tests" | grep -E "$1"); do
        row "$test" "$BUILT/gpu-tests" --exact "$test" --nocapture --test-threads 1
    done
}

# What this machine is: one row, whatever is missing.
facts() {
    echo "FACT $(uname -r), $(nproc) CPUs, $(free -g | awk '/^Mem/ { print $2 }') GiB"
    # A pool in memory needs more than the half that containers give.
    mount -o remount,size=90% /dev/shm 2>/dev/null || true
    local folder udev
    # cuFile asks udev for the file system of a device, and a container has no udev.
    udev=/run/udev/data/b$(mountpoint -d / 2>/dev/null)
    if [ "$udev" != /run/udev/data/b ] && [ ! -e "$udev" ] && mkdir -p /run/udev/data 2>/dev/null; then
        printf 'I:1\nE:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=%s\n' "$(findmnt -n -o FSTYPE /)" >"$udev" && echo "FACT $udev was missing, and is made"
    fi
    for folder in /var/tmp /dev/shm; do
        echo "FACT $folder: $(df -hT "$folder" 2>/dev/null | awk 'NR == 2 { print $2 ", " $5 " free" }')"
    done
    ldconfig -p 2>/dev/null | grep -E 'libcuda\.so|libcufile\.so|libgdrapi|liburing' || true
    ls -l /dev/nvidia* /dev/infiniband 2>/dev/null || true
    nvidia-smi 2>&1 | head -n 20 || true
    grep -H . /proc/sys/kernel/io_uring_disabled /proc/driver/nvidia/version /proc/driver/nvidia-fs/version 2>/dev/null || true
    lsmod 2>/dev/null | grep -E 'nvidia|gdrdrv' || true
    ulimit -l | sed 's/^/FACT page-locked memory: /'
    "$PYTHON" - <<'PYTHON' || true
import importlib.util, sys
print(f"FACT Python {sys.version.split()[0]}, without", *(
    name for name in ("torch", "numpy", "pytest", "xdist", "safetensors", "triton", "deepspeed")
    if importlib.util.find_spec(name) is None
))
PYTHON
}

facts_rows() { row "this machine" bash -c "$(declare -f facts); facts"; }

smoke_rows() {
    row_max=$SMOKE_MAX
    rust_tests '^checksum::the_checksum_kernel_agrees|^log::tensors_go_through_the_log_by_uring$'
    if [ -n "$lacks" ]; then
        tell "not run" "smoke: a block" ": $lacks"
    else
        row "smoke: a block" env PYTHONPATH=torch-bridge/python:tests/torch "$PYTHON" tests/hardware/smoke.py --pool "$scratch"
    fi
    row_max=$ROW_MAX
}

# Each alone: a library that does not return ends one row.
cufile_rows() {
    row_max=$CUFILE_MAX
    rust_tests '^cufile::|by_cufile'
    row_max=$ROW_MAX
}

# It compares rates with a link.
RATES="copies::copies_to_chunks_on_the_gpu_are_faster_than_its_link"

rust_rows() {
    if [ -n "$FAKE" ]; then tell "not run" "$RATES" ": a fake has no link whose rate it could reach"; fi
    rust_tests .
    local cufile=()
    if [ -n "${TIDELOG_CUFILE:-}" ]; then cufile=(--cufile "$TIDELOG_CUFILE"); fi
    row "tidelog-doctor proves its paths" "$BUILT/tidelog-doctor" check --scratch "$scratch" --compat "${cufile[@]}"
}

TORCH_TESTS="
    test_training_gives_the_same_bits
    test_an_eviction_waits_for_every_stream
    test_cuda_itself_has_back_what_left
    test_a_model_that_the_gpu_never_holds_whole
    test_training_gives_the_same_bits_where_host_memory_takes_a_part
    test_what_fits_into_host_memory_reaches_no_ssd_and_leaves_clean_without_a_copy
    test_what_a_kernel_that_nobody_saw_writes_while_a_tensor_leaves_is_kept
    test_training_gives_the_same_bits_in_expandable_segments
    test_parts_of_tensors_move_with_the_same_bits"
CUFILE_TESTS="
    test_training_by_cufile_gives_the_same_bits_and_none_passes_through_the_host
    test_what_a_kernel_that_nobody_saw_writes_while_a_tensor_leaves_is_kept"

# torch_rows PREFIX NAMES WHICH: what may hang in cuFile comes apart from the rest.
torch_rows() {
    local name which="(not fake) and ($3)"
    if [ -n "$FAKE" ]; then which="(fake or expandable or cuda_itself) and ($3)"; fi
    for name in $2; do pytest_rows "$1" $ROW_MAX tests/torch/test_gpu.py::@ "$name" -k "$which"; done
}

# How long the GPU idles for a fetch: with the fake, by its clock.
# torch_row NAME PROGRAM ARGUMENTS...: a program of Python's that measures, as a row.
torch_row() {
    local name=$1
    shift
    if [ -n "$lacks" ]; then
        tell "not run" "$name" ": $lacks"
    else
        row "$name" env PYTHONPATH=torch-bridge/python:tests/torch "$PYTHON" "$@" --pool "$scratch"
    fi
}

measured_rows() {
    local few=()
    if [ -n "$FAKE" ]; then few=(--rounds 1 --steps 4); fi
    torch_row "torch: idle time of a fetch" tests/hardware/fetches.py
    torch_row "torch: the arena beside torch's allocator" tests/hardware/allocators.py "${few[@]}"
}

sanitizer_rows() {
    local tool sanitizer
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

# The comparison makes rows of its own, and keeps to the time itself.
training_rows() {
    local pools=(${memory:+"memory=$memory"} "disk=$scratch") reserve=10 line
    if [ -n "$lacks" ]; then
        put "not run" "training: $lacks"
        return
    fi
    if [[ $ONLY == *touch* ]] && touch_is_left; then reserve=$FOR_TOUCH; fi
    local ended=""
    local size=(--layers 8 --batch 8 --fraction 0.5 0.33 --segments native expandable)
    if [ -n "$FAKE" ]; then size=(--device cpu --tiny --fraction 0.5); fi
    run training "$(left)" "$PYTHON" tests/hardware/train.py "${size[@]}" --pool "${pools[@]}" --within $(($(left) - reserve)) --tools "$BUILT" \
        --traces "$logs/traces" --resume "$RESUME" || ended=1
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
    for file in tests/torch/test_touch_*.py tests/torch/test_{programs,compile}.py; do basename "$file" .py; done
}

touch_is_left() {
    local file
    for file in $(touch_files); do
        if ! passed "$TOUCH: $file"; then return 0; fi
    done
    return 1
}

touch_rows() {
    local workers=() lacks=$lacks device=cuda
    if [ -n "$FAKE" ]; then device=fake; fi
    if [ -z "$lacks" ] && ! has_module safetensors; then lacks="$PYTHON has no safetensors"; fi
    if has_module xdist; then workers=(-n 8); fi
    pytest_rows "$TOUCH" "$LIMIT" tests/torch/@.py "$(touch_files)" --device "$device" -m "not slow" "${workers[@]}"
}

for part in $ONLY; do
    case $part in
    facts) facts_rows ;;
    smoke) smoke_rows ;;
    cufile) cufile_rows ;;
    torch) torch_rows torch "$TORCH_TESTS" "not gds" && measured_rows ;;
    training) training_rows ;;
    tests) rust_rows ;;
    touch) touch_rows ;;
    late) torch_rows "torch by cuFile" "$CUFILE_TESTS" "gds or cufile" && sanitizer_rows ;;
    esac
done

if [ -n "${LOGS:-}" ]; then
    printf '%s' "$table" >"$logs/table"
    tar -C "$(dirname "$logs")" -czf "$logs.tar.gz" "$(basename "$logs")" && echo "all of it is in $logs.tar.gz"
fi
printf '\n%s' "$table"
echo "$ran of $rows rows ran, $failed failed, $((SECONDS - begun)) s"
if [ "$failed" -gt 0 ]; then exit 1; fi
if [ "$ran" -lt "$rows" ]; then exit 2; fi
