#!/usr/bin/env bash
# Tidelog with other versions of torch than that of .venv.
#
#   scripts/versions.sh [VERSION]...     by default the newest of each minor version from the oldest that will do
#
# Each is installed into target/versions as pip has it here, and removed when it was tested; KEEP=1 keeps them.
# FILES: tests besides tests/torch/test_versions.py. The table in docs/versions.md says what this gave.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1
folder=target/versions
export OMP_NUM_THREADS=1 XDG_CACHE_HOME=$PWD/$folder/cache
passed=() failed=()

tested() {
    local python=$folder/$1/bin/python
    if [ ! -e "$folder/$1/installed" ]; then
        .venv/bin/python -m venv --clear "$folder/$1" &&
            "$python" -m pip install --quiet --no-compile "torch==$1" numpy pytest pytest-timeout pytest-xdist safetensors &&
            touch "$folder/$1/installed" || return
    fi
    PYTHON=$python scripts/kernels.sh || return
    # shellcheck disable=SC2086  # several files
    "$python" -m pytest -q -W ignore tests/torch/test_versions.py ${FILES-tests/torch/test_sums.py tests/torch/test_backward.py}
}

for version; do
    echo "== torch $version"
    if tested "$version"; then passed+=("$version"); else failed+=("$version"); fi
    [ -n "${KEEP-}" ] || rm -rf "${folder:?}/$version"
done
echo "versions: passed: ${passed[*]:-none}; failed: ${failed[*]:-none}"
[ ${#failed[@]} = 0 ]
