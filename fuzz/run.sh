#!/usr/bin/env bash
# Runs each fuzz target for some seconds: `bash fuzz/run.sh 60`, or `bash fuzz/run.sh 60 url reply`.
# Prints a line per target, and exits with an error if any of them found something. New inputs are
# discarded: only `fuzz/corpus` is read.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

seconds=${1:?missing the number of seconds per target}
shift
work=$(mktemp -d "${TMPDIR:-/tmp}/dlock-fuzz.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

if ! cargo +nightly --version > /dev/null 2>&1; then
    echo "SKIPPED: fuzzing: no nightly compiler was found"
    exit 0
fi
if ! cargo fuzz --version > /dev/null 2>&1; then
    echo "SKIPPED: fuzzing: no cargo-fuzz was found (cargo install cargo-fuzz --locked)"
    exit 0
fi
# Without a sanitizer: dlock has no unsafe code, and panics are found without one.
if ! cargo +nightly fuzz build --sanitizer none > "$work/build" 2>&1; then
    cat "$work/build"
    exit 1
fi

[ $# -gt 0 ] || set -- $(sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | grep -v '^dlock-fuzz$')
failed=0
for target in "$@"; do
    mkdir -p "$work/$target"
    if cargo +nightly fuzz run --sanitizer none "$target" "$work/$target" "corpus/$target" -- \
        -max_total_time="$seconds" -max_len=512 -timeout=5 -print_final_stats=1 > "$work/log" 2>&1; then
        echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log") executions in $seconds s, nothing found"
    else
        echo "fuzz: $target: FOUND"
        grep -aE 'panicked|shows|ALARM|SUMMARY|Test unit written|Output of' -A3 "$work/log" | head -40
        failed=1
    fi
done
exit "$failed"
