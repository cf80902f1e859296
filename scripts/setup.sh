#!/usr/bin/env bash
# Checks the machine for what Tidelog needs, installs what it may, and says exactly what is missing otherwise.
# Runs in a moment when everything is there; needs no network then.
#
#   scripts/setup.sh            for tests: programs that make devices and file systems, PyTorch in .venv
#   scripts/setup.sh build      for the library and the tools alone
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need cc build-essential
need python3 python3
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)

if [ ${#missing[@]} -gt 0 ]; then
    if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        echo "setup: installing ${missing[*]}"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
    else
        echo "setup: missing: ${missing[*]}" >&2
        echo "setup: install them (on Debian and Ubuntu: sudo apt-get install ${missing[*]}) and run make again" >&2
        exit 1
    fi
fi
if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo was not found; install Rust 1.89 or newer from https://rustup.rs and run make again" >&2
    exit 1
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "setup: python3 is $(python3 -V 2>&1); Python 3.10 or newer is needed" >&2
    exit 1
fi
[ "${1:-}" != build ] || exit 0

# Programs that only tests use: they make the file systems, volumes and partition tables that tidelog-format
# must refuse. Tests that miss one say so and show nothing, so nothing stops here without them.
export PATH="$PATH:/usr/sbin:/sbin"
missing=()
need mkfs.ext4 e2fsprogs
need mkfs.xfs xfsprogs
need mkfs.btrfs btrfs-progs
need mkfs.vfat dosfstools
need ntfs-3g ntfs-3g
need qemu-io qemu-utils
need pvcreate lvm2
need sgdisk gdisk
need sfdisk fdisk
need losetup mount
need wipefs util-linux
need fio fio
# fio's job files, which tests read where they are: they are under fio's license.
! command -v dpkg >/dev/null 2>&1 || dpkg -s fio-examples >/dev/null 2>&1 || missing+=(fio-examples)
# For DeepSpeed's async_io, a peer of `make compare`.
[ -e /usr/include/libaio.h ] || missing+=(libaio-dev)
if [ ${#missing[@]} -gt 0 ]; then
    if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
        echo "setup: installing ${missing[*]} for tests"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"; } ||
            echo "setup: that did not work; tests that need them will be skipped" >&2
    else
        echo "setup: tests that need ${missing[*]} will be skipped" >&2
    fi
fi

# The virtual environment is as new as its list of packages, or it is made again.
stamp=.venv/installed
if ! cmp -s requirements.txt "$stamp"; then
    echo "setup: installing PyTorch and the test packages into .venv (about 3 GB of downloads, once)"
    python3 -m venv .venv
    # Python compiles what is imported; of these packages that is little.
    .venv/bin/python -m pip install --quiet --no-compile -r requirements.txt
    cp requirements.txt "$stamp"
fi
