#!/usr/bin/env bash
# cargo test --workspace, and then the tests that took longest.
set -euo pipefail
cd "$(dirname "$0")/.."
log=target/test-rust.log
mkdir -p target
# A test program tells times only where RUSTC_BOOTSTRAP allows it; cargo itself must not see that
# variable, or it builds everything anew.
cargo test --workspace --profile "${TEST_PROFILE:-dev}" --lib --bins --tests --examples \
    --config 'target."cfg(all())".runner=["env", "RUSTC_BOOTSTRAP=1"]' --no-fail-fast -- -Zunstable-options --report-time |
    tee "$log"
cargo test --workspace --profile "${TEST_PROFILE:-dev}" --doc
echo "The tests that took longest:"
sed -nE 's/^test (.*) \.\.\. ok <([0-9.]+)s>$/\2 s  \1/p' "$log" | sort -rn | sed -n 1,10p
