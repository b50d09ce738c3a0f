#!/usr/bin/env bash
# Mutants outside the rules: a random sample of what cargo-mutants can change in the engine, guards, keys, configuration, backends, and
# macros. At least nine of ten that build must be noticed.
#
#   bash proof/mutants_sample.sh              until 40 mutants that build are judged; continues where the last run stopped
#   bash proof/mutants_sample.sh --list       the sample in its order
#   bash proof/mutants_sample.sh --report     what was judged so far
#
# DLOCK_MUTANTS_SEED draws another sample (20261126 unless given), DLOCK_MUTANTS_COUNT a larger one. The order is that of the SHA-256 of seed
# and mutant, so that everyone draws the same sample. The unit tests of the package judge first, then the suites that touch the file.
# Each verdict is appended to DLOCK_MUTANTS_RESULTS (target/mutants/sample.tsv) at once, so a run can be stopped at any time.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

seed=${DLOCK_MUTANTS_SEED:-20261126}
count=${DLOCK_MUTANTS_COUNT:-40}
work=${DLOCK_MUTANTS_OUT:-$PWD/target/mutants}
results=${DLOCK_MUTANTS_RESULTS:-$work/sample.tsv}
tree=$work/tree

main() {
    cargo mutants --version >/dev/null 2>&1 || cargo install cargo-mutants --locked >&2 || {
        echo "SKIPPED: mutants: cargo-mutants is not installed and cannot be (cargo install cargo-mutants --locked)"
        exit 0
    }
    case ${1:-} in
        "") ;;
        --list) sample; exit ;;
        --report) report; exit ;;
        *) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
    esac
    mkdir -p "$work" && touch "$results"
    copy_sources
    local mutant
    while IFS= read -r mutant; do
        [ "$(built)" -lt "$count" ] || break
        cut -f 2 "$results" | grep -qxF -- "$mutant" || judge "$mutant"
    done < <(sample)
    report
}

# All mutants, in the order of the sample.
sample() {
    cargo mutants --config proof/mutants/sample.toml --list | while IFS= read -r mutant; do
        printf '%s %s\n' "$(printf '%s:%s' "$seed" "$mutant" | sha256sum | cut -c 1-16)" "$mutant"
    done | sort | cut -d ' ' -f 2-
}

# The tree that is mutated in place: a copy, so that cargo builds only what a mutant changes and the checkout stays as it is.
copy_sources() {
    mkdir -p "$tree"
    git ls-files -z | while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
        tar --null --files-from=- --create | tar --extract --directory "$tree"
}

# judge MUTANT : appends `verdict, mutant, judge` to the results.
judge() {
    local mutant=$1 package=dlock-runtime verdict judge=units
    [[ $mutant != dlock-macros/* ]] || package=dlock-macros
    verdict=$(run "$mutant" "$package" 300 $([ "$package" = dlock-macros ] || echo --lib) -- --skip exhaustive)
    if [ "$verdict" = missed ]; then
        judge=suites
        if [ "$package" = dlock-macros ]; then
            verdict=$(run "$mutant" dlock-ui-tests 900)
            [ "$verdict" != missed ] || verdict=$(run "$mutant" dlock-tests 900 --test attribute --test contract --test spans)
        else
            verdict=$(run "$mutant" dlock-tests 1200 $(suites "$mutant"))
        fi
    fi
    printf '%s\t%s\t%s\n' "$verdict" "$mutant" "$judge" | tee -a "$results"
}

# suites MUTANT : the targets of `tests` that touch its file.
suites() {
    local suite all=(contract promises cancel tasks losses spans)
    case $1 in
        */cluster/*) all+=(cluster) ;;
        */sentinel/*) all+=(sentinel) ;;
        */quorum/*) all+=(quorum) ;;
        */redisson/*) all+=(redisson) ;;
        */backend/redis/*) all+=(reach bad_input tracking acks trips) ;;
        */doctor/*) all=(doctor) ;;
        */testing/*) all+=(testing) ;;
        */integrations/*) all=(integrations) ;;
        */config/* | */key/* | */builder.rs | */credentials.rs) all+=(reach bad_input secrets) ;;
    esac
    for suite in "${all[@]}"; do printf ' --test %s' "$suite"; done
}

# run MUTANT PACKAGE SECONDS ARGUMENTS.. : prints `caught`, `missed`, `timeout`, or `unviable`.
run() {
    local mutant=$1 package=$2 longest=$3 out list
    shift 3
    out=$(mktemp -d "$work/run.XXXXXX") || exit 1
    (
        cd "$tree" || exit 1
        export CARGO_TARGET_DIR=$work/target CARGO_PROFILE_DEV_DEBUG=0 RUST_TEST_THREADS=${RUST_TEST_THREADS:-6}
        export DLOCK_SIM_SEEDS=${DLOCK_SIM_SEEDS:-500} DLOCK_ENGINE_SEEDS=${DLOCK_ENGINE_SEEDS:-200}
        export DLOCK_TURMOIL_SEEDS=${DLOCK_TURMOIL_SEEDS:-100}
        cargo mutants --config proof/mutants/sample.toml --in-place --baseline skip --colors never --output "$out" \
            --timeout "$longest" --build-timeout 900 --cap-lints true --test-package "$package" --re "^$(quoted "$mutant")\$" -- "$@"
    ) >"$out/log" 2>&1
    for list in caught missed timeout unviable; do
        if [ -s "$out/mutants.out/$list.txt" ]; then
            echo "$list"
            rm -rf "$out"
            return
        fi
    done
    echo "mutants: no verdict on $mutant; see $out/log" >&2
    exit 1
}

quoted() {
    sed 's/[][\\.*^$()+?{}|]/\\&/g' <<<"$1"
}

# How many of those judged so far build.
built() {
    grep -vc '^unviable' "$results"
}

report() {
    local noticed
    grep '^missed' "$results"
    noticed=$(grep -cE '^(caught|timeout)' "$results")
    echo "campaign: mutants outside the rules: seed $seed, $(built) that build, $noticed noticed, $(grep -c '^unviable' "$results") unviable"
    [ $((10 * noticed)) -ge $((9 * $(built))) ]
}

main "$@"; exit
