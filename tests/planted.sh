#!/usr/bin/env bash
# Plants one bug after the other (tests/planted/*.patch) into a copy of the source, and lets the simulation look for it:
# each must be found within 500 seeds. Ends with 1 where one is not, or where a patch does not apply any more.
set -uo pipefail
cd "$(dirname "$0")/.."
seeds=${SEEDS:-500}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | grep -zE '^(Cargo|engine/|planner/|torch-bridge/|tests/|tools/|rustfmt)' | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/planted}
failed=0
printf '%-30s %s\n' 'planted bug' 'found'
for patch in "$PWD"/tests/planted/*.patch; do
    name=$(basename "$patch" .patch)
    if ! patch -s -p1 -d "$copy" <"$patch" >/dev/null; then
        printf '%-30s %s\n' "$name" 'NO: the patch does not apply; write it anew'
        failed=1
        continue
    fi
    if ! (cd "$copy" && cargo build -q --release -p tidelog-tests --bin tidelog-sim) 2>"$copy/errors"; then
        printf '%-30s %s\n' "$name" "NO: it does not compile: $(grep -m1 '^error' "$copy/errors")"
        failed=1
    else
        found=$("$CARGO_TARGET_DIR/release/tidelog-sim" --seeds "$seeds" --first 2>&1 | grep -m1 'FAILED at')
        if [ -n "$found" ]; then
            printf '%-30s %s\n' "$name" "${found:0:140}"
        else
            printf '%-30s %s\n' "$name" "NO: not in $seeds seeds"
            failed=1
        fi
    fi
    patch -s -R -p1 -d "$copy" <"$patch" >/dev/null
done
exit $failed
