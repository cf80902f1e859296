#!/usr/bin/env bash
# The engine's and the C ABI's tests, the fuzz targets' corpus and the bridge's C++ under AddressSanitizer, the bridge's
# C++ under ThreadSanitizer, and the engine under that where the toolchain can. AddressSanitizer's runtime comes with
# every toolchain; ThreadSanitizer must also see the standard library's locks, so that has to be built from source.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_BOOTSTRAP=1
host=$(rustc -vV | sed -n 's/^host: //p')

echo "sanitize: AddressSanitizer"
# Leaks are on purpose where a device may still write; those tests would all have to say so.
ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS=-Zsanitizer=address cargo test --quiet --target "$host" \
    --target-dir target/asan -p tidelog-engine --lib --tests
ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS=-Zsanitizer=address cargo test --quiet --target "$host" \
    --target-dir target/asan -p tidelog-torch --test abi
ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS=-Zsanitizer=address cargo test --quiet --target "$host" \
    --target-dir target/asan -p tidelog-tests --test corpus

echo "sanitize: the bridge's C++ under AddressSanitizer and UndefinedBehaviorSanitizer"
runtimes=""
for library in libasan.so libubsan.so libstdc++.so.6; do # the last one for exceptions of torch's
    runtimes="$runtimes $(g++ -print-file-name=$library)"
done
# Not vptr: it asks for the types of torch's objects, which torch keeps to itself.
XDG_CACHE_HOME=$PWD/target/asan-kernels LD_PRELOAD=$runtimes \
    ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0 \
    CXX="g++ -g -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all" \
    OMP_NUM_THREADS=1 .venv/bin/python -m pytest -q -m "not slow" --timeout 1200 \
    tests/torch/test_{dispatch,backward,sums,operators,requests}.py tests/torch/test_touch_{reads,writes,threads}.py

echo "sanitize: the bridge's C++ under ThreadSanitizer"
# What is not compiled for it (torch, Python, the library) has locks and counts that it does not see. The compiler
# itself must not run under it. Tests that fork cannot be run: it refuses new threads in a child.
runtimes="$(g++ -print-file-name=libtsan.so) $(g++ -print-file-name=libstdc++.so.6)"
XDG_CACHE_HOME=$PWD/target/tsan-kernels LD_PRELOAD=$runtimes \
    TSAN_OPTIONS=ignore_noninstrumented_modules=1:report_signal_unsafe=0 \
    CXX="env -u LD_PRELOAD g++ -g -fsanitize=thread" \
    OMP_NUM_THREADS=1 setarch --addr-no-randomize .venv/bin/python -m pytest -q -m "not slow" --timeout 1200 \
    tests/torch/test_touch_turns.py

source=$(rustc --print sysroot)/lib/rustlib/src/rust/library
if [ -d "$source" ]; then
    echo "sanitize: ThreadSanitizer"
    RUSTFLAGS=-Zsanitizer=thread cargo test --quiet -Zbuild-std --target "$host" \
        --target-dir target/tsan -p tidelog-engine --lib
else
    echo "sanitize: SKIPPED ThreadSanitizer: the standard library's source is not there ($source);" \
        "with \`rustup component add rust-src\` this runs it" >&2
fi
