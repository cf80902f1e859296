#!/usr/bin/env bash
# The ticket protocol in every order that threads could run it (loom). Arguments go to the test program, `--no-run` to
# cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
build=()
if [ "${1:-}" = --no-run ]; then
    build=(--no-run)
    shift
fi
RUSTFLAGS="--cfg loom" cargo test --quiet --release -p tidelog-engine --lib --target-dir "${LOOM_TARGET_DIR:-target/loom}" "${build[@]}" -- loom_ "$@"
