#!/usr/bin/env bash
# The library and the tools for aarch64, compiled from any machine; then the engine's unit tests in an emulator.
# Needs rustup's target aarch64-unknown-linux-gnu; for the tests qemu-user-static, and a C compiler for aarch64.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu

cargo check --workspace --lib --bins --target $target
if ! command -v qemu-aarch64-static aarch64-linux-gnu-gcc >/dev/null; then
    echo "aarch64: no tests: apt-get install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
    exit
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
# The emulator has no io_uring, not all flags of preadv2, and no fork of a process with threads.
cargo test --release --target $target -p tidelog-engine --lib -- --skip fork --skip path::tests --skip what_is_left_of
