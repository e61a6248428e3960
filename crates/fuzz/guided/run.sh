#!/usr/bin/env bash
# Builds the targets with counters for libFuzzer, and gives each FUZZ_SECONDS (60). Arguments name targets; without any,
# all are run. Ends with the first input that makes a target panic, which is kept below target/guided-fuzz.
#
# The corpus of each target stays there, so that the next run goes on from it.
set -euo pipefail
cd "$(dirname "$0")/../../.."
dir=target/guided-fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
coverage=(-Cpasses=sancov-module)
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage+=("-Cllvm-args=-sanitizer-coverage-$option")
done
# The versions of the dependencies are those of the program.
cp Cargo.lock crates/fuzz/guided/Cargo.lock
# With a target, build scripts and macros get no counters.
RUSTFLAGS="${coverage[*]}" ${CARGO:-cargo} build --release --target "$host" --target-dir "$dir" \
    --manifest-path crates/fuzz/guided/Cargo.toml ${FUZZ_FEATURES:+--features "$FUZZ_FEATURES"}
program=$dir/$host/release/watershed-guided-fuzz

names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
    mapfile -t names < <("$program")
fi
for name in "${names[@]}"; do
    corpus=$dir/corpus/$name
    mkdir -p "$corpus"
    log=$dir/$name.log
    FUZZ_TARGET=$name FUZZ_CORPUS=$corpus "$program" -max_total_time="${FUZZ_SECONDS:-60}" -max_len=65536 -timeout=20 \
        -artifact_prefix="$dir/$name-" -print_final_stats=1 "$corpus" 2>"$log" || {
        tail -n 30 "$log" >&2
        exit 1
    }
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    mapfile -t edges < <(sed -n 's/.*\(INITED\|DONE\).* cov: \([0-9]*\) .*/\2/p' "$log")
    echo "$name: $inputs inputs, ${edges[0]} edges reached by the corpus, ${edges[-1]} at the end"
done
