#!/usr/bin/env bash
# The engine's and the C ABI's tests under AddressSanitizer, and the engine's under ThreadSanitizer where the
# toolchain can. AddressSanitizer's runtime comes with every toolchain; ThreadSanitizer must also see the
# standard library's locks, so that has to be built from source.
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

source=$(rustc --print sysroot)/lib/rustlib/src/rust/library
if [ -d "$source" ]; then
    echo "sanitize: ThreadSanitizer"
    RUSTFLAGS=-Zsanitizer=thread cargo test --quiet -Zbuild-std --target "$host" \
        --target-dir target/tsan -p tidelog-engine --lib
else
    echo "sanitize: SKIPPED ThreadSanitizer: the standard library's source is not there ($source);" \
        "with \`rustup component add rust-src\` this runs it" >&2
fi
