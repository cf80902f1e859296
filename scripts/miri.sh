#!/usr/bin/env bash
# Miri over the unsafe code that makes no system call that it does not know: memory's ends and the layout's
# casts; and over the planner. Miri comes with nightly toolchains only.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo miri --version >/dev/null 2>&1; then
    echo "miri: SKIPPED: this toolchain has no Miri; with a nightly that has one" \
        "(rustup +nightly component add miri; RUSTUP_TOOLCHAIN=nightly make miri) this runs" >&2
    exit 0
fi
export MIRIFLAGS="-Zmiri-disable-isolation"
cargo miri test -p tidelog-engine --lib --target-dir target/miri -- layout:: memory::ends
cargo miri test -p tidelog-planner --lib --target-dir target/miri -- trace:: plan:: lifetime::
