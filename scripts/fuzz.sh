#!/usr/bin/env bash
# Every fuzz target for SECONDS_EACH seconds, two at a time, from the committed corpus by a seed that was never used.
# What is new goes to fuzz/found and stays out of git; `cargo fuzz cmin` moves what is worth keeping into fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${SECONDS_EACH:-60}
export PATH="$PWD/../.venv/bin:$PATH" # cargo-fuzz
# A stable toolchain has all that libFuzzer and AddressSanitizer need, behind flags that it only takes so.
export RUSTC_BOOTSTRAP=1
host=$(rustc -vV | sed -n 's/^host: //p')
cargo fuzz build --fuzz-dir . --target "$host" >&2
mkdir -p found

one() {
    local target=$1 log=found/$1.log found=found/$1 before after result=ok
    mkdir -p "$found" "artifacts/$target"
    before=$(find "$found" -type f | wc -l)
    # On one core each: a simulated pool's reactor and its caller take turns. A decoder that allocates by a size it
    # should not trust stops at malloc_limit_mb.
    taskset -c "$((SLOT % $(nproc)))" "target/$host/release/$target" "$found" "corpus/$target" -artifact_prefix="artifacts/$target/" \
        -max_total_time="$seconds" -print_final_stats=1 -max_len=16384 -timeout=20 \
        -rss_limit_mb=2048 -malloc_limit_mb=256 >"$log" 2>&1 || result=FOUND
    after=$(find "$found" -type f | wc -l)
    printf '%-12s %12s %10s %8s  %s\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
        "$(sed -n 's/.* ft: \([0-9]*\) .*/\1/p' "$log" | tail -1)" "$((after - before))" "$result"
    if [ "$result" != ok ]; then
        grep -m1 -A1 -E 'panicked at|ERROR: ' "$log" | sed 's/^/    /' || true
        sed -n 's/.*Test unit written to \(.*\)/    replay: cargo run -p tidelog-tests --bin tidelog-corpus -- replay '"$target"' fuzz\/\1/p' "$log"
        return 1
    fi
}
export -f one
export seconds host

printf '%-12s %12s %10s %8s  %s\n' target executions features new result
sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | grep -v '^tidelog-fuzz$' | xargs -P 2 --process-slot-var=SLOT -I{} bash -c 'one {}' || {
    echo "fuzz: a rule was broken; the log is fuzz/found/TARGET.log" >&2
    exit 1
}
