#!/usr/bin/env bash
# Plants one bug after the other into a copy of the source, and lets a test look for it:
#   tests/planted/*.patch        the simulation must find each within 500 seeds (SEEDS)
#   tests/planted/loom/*.patch   a loom model of the ticket protocol must find each
#   tests/planted/named/*.patch  the test must find each that its first line names
# tests/planted.sh [sim|loom|named|check] [NAME]...: those of one kind, or all, or of one kind those of these names;
# check only sees whether the patches apply. Ends with 1 where one is not found, or where a patch does not apply any
# more.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0

# A patch that does not apply finds nothing, and planting all of them takes an hour: this takes none.
if [ "${1:-}" = check ]; then
    for patch in tests/planted/*.patch tests/planted/{loom,named}/*.patch; do
        git apply --check "$patch" || {
            echo "planted.sh: $patch does not apply any more; write it anew" >&2
            failed=1
        }
    done
    exit $failed
fi

seeds=${SEEDS:-500}
kinds=${1:-sim loom named}
names=" ${*:2} "
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
root=$PWD
git ls-files -z | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/planted}
export LOOM_TARGET_DIR=$CARGO_TARGET_DIR/loom

# Says what found the bug, or ends with 1; what is said then is why it was not found. Nothing is measured, so the
# engine is built by several threads.
find_by_sim() {
    (cd "$copy" && cargo build -q --release --config profile.release.package.tidelog-engine.codegen-units=16 \
        -p tidelog-tests --bin tidelog-sim) 2>"$copy/errors" || does_not_compile || return
    # It ends with 1 when it has found something.
    "$CARGO_TARGET_DIR/release/tidelog-sim" --seeds "$seeds" --first >"$copy/said" 2>&1
    grep -m1 'FAILED at' "$copy/said" || {
        echo "not in $seeds seeds"
        return 1
    }
}

find_by_loom() {
    "$copy/scripts/loom.sh" --no-run 2>"$copy/errors" || does_not_compile || return
    # Loom's own panics within a panic end the process before the harness says which model it was.
    if "$copy/scripts/loom.sh" --test-threads 1 --nocapture >"$copy/said" 2>&1; then
        echo "no model finds it"
        return 1
    fi
    grep -m1 -oE 'loom_tests::loom_[a-z_]+.*panicked' "$copy/said" | grep -oE 'loom_[a-z_]+_[a-z]+' | tail -n 1 ||
        { echo "the models did not run: $(tail -n 1 "$copy/said")" && return 1; }
}

# `found by: cargo ...` or `found by: pytest ...`, with the rest of the command. A test that cannot be made finds
# nothing.
find_by_named() {
    local command
    command=$(sed -n '1s/^found by: //p' "$1")
    case $command in
        cargo\ *)
            (cd "$copy" && $command --no-run) 2>"$copy/errors" || does_not_compile || return
            ! (cd "$copy" && $command) >"$copy/said" 2>&1 || { echo "the test passes" && return 1; }
            ;;
        pytest\ *)
            (cd "$copy" && cargo build -q --release -p tidelog-torch) 2>"$copy/errors" || does_not_compile || return
            export TIDELOG_LIBRARY=$CARGO_TARGET_DIR/release/libtidelog.so XDG_CACHE_HOME=$CARGO_TARGET_DIR/cache
            ! (cd "$copy" && PYTHONPATH=torch-bridge/python "$root/.venv/bin/python" -m $command -q -x \
                -p no:cacheprovider) >"$copy/said" 2>&1 || { echo "the test passes" && return 1; }
            ! grep -q 'errors during collection\|Error: the part in C++' "$copy/said" || does_not_compile || return
            ;;
    esac
    grep -m1 -oE '^(FAILED [^ ]+|test [^ ]+ \.\.\. FAILED)' "$copy/said" || {
        echo "no test has failed: $(tail -n 1 "$copy/said")"
        return 1
    }
}

does_not_compile() {
    echo "it does not compile: $(grep -m1 '^error' "$copy/errors")"
    return 1
}

# Answers as the two above.
find() {
    if ! git -C "$copy" apply "$2" 2>/dev/null; then
        echo "the patch does not apply; write it anew"
        return 1
    fi
    "find_by_$1" "$2"
    local found=$?
    git -C "$copy" apply -R "$2"
    return $found
}

printf '%-32s %s\n' 'planted bug' 'found'
for kind in $kinds; do
    case $kind in
        sim) patches=("$PWD"/tests/planted/*.patch) ;;
        loom | named) patches=("$PWD/tests/planted/$kind"/*.patch) ;;
        *) echo "no bugs of kind $kind are planted: sim, loom or named" >&2 && exit 2 ;;
    esac
    for patch in "${patches[@]}"; do
        name=$(basename "$patch" .patch)
        [ "$names" = "  " ] || [[ $names == *" $name "* ]] || continue
        if found=$(find "$kind" "$patch"); then
            answer=$found
        else
            answer="NO: $found"
            failed=1
        fi
        printf '%-32s %s\n' "$name" "${answer:0:140}"
    done
done
exit $failed
