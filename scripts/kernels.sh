#!/usr/bin/env bash
# The bridge's C++ as users' machines compile it, warnings as errors; for the torch of PYTHON (by default .venv's).
set -euo pipefail
cd "$(dirname "$0")/.."
made=target/kernels/tidelog
used=${XDG_CACHE_HOME:-$HOME/.cache}/tidelog
export XDG_CACHE_HOME=$PWD/target/kernels PYTHONPATH=torch-bridge/python
# Python's structures are meant to be left off at their end.
export CXX="${CXX:-g++} -Wall -Wextra -Werror -Wno-missing-field-initializers"
${PYTHON:-.venv/bin/python} -c 'import sys; from tidelog.native import _built; sys.exit(_built.build() or None)'
# Tests and the demo need not compile it again.
install -d -m 700 "$used"
for module in "$made"/*.so; do
    [ -e "$used/${module##*/}" ] || install -m 644 "$module" "$used"
done
