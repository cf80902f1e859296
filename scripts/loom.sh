#!/usr/bin/env bash
# The ticket protocol in every order that threads could run it (loom).
set -euo pipefail
cd "$(dirname "$0")/.."
RUSTFLAGS="--cfg loom" cargo test --quiet --release -p tidelog-engine --lib --target-dir target/loom -- loom_
