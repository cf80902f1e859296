#!/usr/bin/env bash
# Licences, sources and bans of every dependency (deny.toml). Installs cargo-deny where it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v cargo-deny >/dev/null 2>&1; then
    echo "lint: installing cargo-deny (once, minutes)"
    # It runs for a second: built without optimisation it is there in half the time.
    CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug cargo-deny
fi
# Of what is built on other targets only, a clean machine has nothing yet.
cargo fetch --quiet --locked
cargo deny --offline check licenses bans sources
