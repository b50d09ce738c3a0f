#!/usr/bin/env bash
# Mutants outside the rules: a random sample of what cargo-mutants can change in the engine, guards,
# keys, configuration, backends, and macros. Tests must catch at least nine of ten mutants that
# build.
#
#   bash proof/mutants_sample.sh              tests those of the sample that have no verdict yet
#   bash proof/mutants_sample.sh --list       prints the sample
#   bash proof/mutants_sample.sh --report     prints the results so far
#
# DLOCK_MUTANTS_SEED selects another sample (default 20261130), and DLOCK_MUTANTS_COUNT a larger one
# (default 60, of which about 40 build). The sample has the mutants with the lowest SHA-256 of seed
# and name, so it is reproducible. The unit tests of the package run first, then the suites that
# cover the file. Most mutants are built together (`proof/mutants/switch.py`), the others one by
# one. Each verdict is appended to DLOCK_MUTANTS_RESULTS (proof/mutants/sample_SEED.tsv) at once,
# so a run can be stopped at any time and continued on another machine.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

seed=${DLOCK_MUTANTS_SEED:-20261130}
count=${DLOCK_MUTANTS_COUNT:-60}
work=${DLOCK_MUTANTS_OUT:-$PWD/target/mutants}
results=${DLOCK_MUTANTS_RESULTS:-$PWD/proof/mutants/sample_$seed.tsv}
tree=$work/tree
# Options of cargo for each build and test.
options=()
# The same for all builds, so that none is repeated.
export CARGO_TARGET_DIR=$work/target CARGO_PROFILE_DEV_DEBUG=0 RUSTFLAGS="--cap-lints=allow"

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
    sample --json >"$work/sample.jsonl"
    copy_sources
    python3 proof/mutants/switch.py "$tree" "$work/sample.jsonl" >"$work/switched" || exit 1
    local number=0 mutant checked=
    while IFS= read -r mutant <&3; do
        number=$((number + 1))
        grep -q "^$number	" "$work/switched" && ! has_verdict "$mutant" || continue
        [ "$checked" ] || passes_without_mutant || exit 1
        checked=yes
        DLOCK_MUTANT=$number judge "$mutant"
    done 3<"$work/sample.jsonl"

    copy_sources
    # These mutants need a build each, so a quick build saves more than quick tests.
    options=(--config profile.test.package.dlock-runtime.opt-level=0)
    checked=
    while IFS= read -r mutant <&3; do
        ! has_verdict "$mutant" || continue
        [ "$checked" ] || passes_without_mutant || exit 1
        checked=yes
        judge_alone "$mutant"
    done 3<"$work/sample.jsonl"
    report
}

has_verdict() {
    field name <<<"$1" | without_place >"$work/name"
    cut -f 2 "$results" | without_place | grep -qxFf "$work/name"
}

# Prints the sample: the names, or JSON with `--json`.
#
# The hash leaves out line and column, so that an edit elsewhere in a file keeps the sample.
sample() {
    cargo mutants --config proof/mutants/sample.toml --list --json --diff | python3 -c '
import hashlib, json, re, sys

seed, count, form = sys.argv[1:]
def place(mutant):
    name = re.sub(r":\d+:\d+: ", ": ", mutant["name"], count=1)
    return hashlib.sha256(f"{seed}:{name}".encode()).hexdigest(), mutant["name"]
for mutant in sorted(json.load(sys.stdin), key=place)[: int(count)]:
    print(json.dumps(mutant) if form == "--json" else mutant["name"])
' "$seed" "$count" "${1:-}"
}

# The tree that is mutated in place: a copy, so that cargo builds only what a mutant changes and the
# checkout stays as it is.
copy_sources() {
    # Without files of an earlier run that have been removed. All have the present time: otherwise,
    # cargo would take what it has built from a mutated file for that of the restored one.
    rm -rf "$tree"
    mkdir -p "$tree"
    git ls-files -z | while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
        tar --null --files-from=- --create | tar --extract --touch --directory "$tree"
}

# Otherwise each mutant would be caught, or be unviable. Also builds the suites, so that their time
# limits apply to tests only.
passes_without_mutant() {
    local verdict
    (cd "$tree" && cargo test -q "${options[@]}" --no-run -p dlock-tests) && verdict=$(confirmed 600 -p dlock-runtime --lib --all-features -- --skip exhaustive)
    [ "${verdict:-unviable}" = missed ] || {
        echo "without a mutant, the sources do not build or a unit test fails: ${verdict:-unviable} $(failed_tests)" >&2
        return 1
    }
}

# Removes line and column from the names of mutants: an edit elsewhere in a file must not have the
# same mutant judged twice.
without_place() {
    sed -E 's/:[0-9]+:[0-9]+: /: /'
}

# field NAME : prints a field of the mutant on standard input.
field() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

# judge_alone MUTANT : changes the sources for this mutant only.
judge_alone() {
    local file
    file=$(field file <<<"$1")
    cp "$tree/$file" "$work/original"
    field diff <<<"$1" | patch -s "$tree/$file" || exit 1
    judge "$1"
    cp "$work/original" "$tree/$file"
}

# judge MUTANT : appends `verdict, mutant, judge, failed tests` to the results.
judge() {
    local name file package verdict judge=units
    name=$(field name <<<"$1")
    file=$(field file <<<"$1")
    package=$(field package <<<"$1")
    case $package in
        dlock-macros) verdict=$(run 300 -p dlock-macros) ;;
        *) verdict=$(confirmed 300 -p "$package" --lib --all-features -- --skip exhaustive) ;;
    esac
    if [ "$verdict" = missed ]; then
        judge=suites
        case $package in
            dlock-macros)
                verdict=$(confirmed 900 -p dlock-ui-tests)
                [ "$verdict" != missed ] ||
                    verdict=$(confirmed 900 -p dlock-tests --test attribute --test contract --test spans)
                ;;
            *) verdict=$(confirmed 1200 -p dlock-tests $(suites "$file")) ;;
        esac
    fi
    printf '%s\t%s\t%s\t%s\n' "$verdict" "$name" "$judge" "$(failed_tests)" | tee -a "$results"
}

# suites FILE : prints the targets of `tests` that cover a file.
suites() {
    local suite all=(contract guarantees cancel tasks lock_loss spans)
    case $1 in
        */doctor/*) all=(doctor) ;;
        */testing/*) all=(testing) ;;
        */integrations/*) all=(integrations) ;;
        */scheduled/*) all=(jobs leader) ;;
        */leader/*) all=(leader) ;;
        */idempotent/* | */private/idempotent.rs) all=(idempotent idempotent_attribute idempotency_layer) ;;
        */private/*) all+=(attribute jobs) ;;
        */tower/*) all=(idempotency_layer integrations) ;;
        */clock.rs) all+=(testing) ;;
        */manager.rs | */lib.rs | */global.rs) all+=(testing leader jobs idempotent) ;;
        */config/* | */key/* | */builder.rs | */credentials.rs) all+=(connectivity bad_input secrets) ;;
        */backend/memory.rs | */backend/store_call.rs) all+=(testing idempotent jobs) ;;
        */backend/redis/*) all+=(connectivity bad_input tracking acks round_trips) ;;
    esac
    case $1 in
        */probe/* | */probe.rs) all+=(doctor) ;;
        */topology/*/*) ;;
        */topology/*) all+=(cluster sentinel quorum) ;;
    esac
    for suite in cluster sentinel quorum redisson; do
        case $1 in */$suite/* | */$suite.rs) all+=("$suite") ;; esac
    done
    for suite in "${all[@]}"; do printf ' --test %s' "$suite"; done
}

# confirmed SECONDS ARGUMENTS.. : like `run`, but a failure counts only if the failed test fails
# again alone. Some tests measure times, so a busy machine can fail one of them.
confirmed() {
    local verdict again attempt for_tests=(--)
    [[ " $* " != *" -- "* ]] || for_tests=()
    for attempt in 1 2 3; do
        verdict=$(run "$@")
        [ "$verdict" = caught ] || break
        again=$(run "$@" "${for_tests[@]}" --exact $(failed_tests))
        [ "$again" = missed ] || break
        verdict=missed
    done
    echo "$verdict"
}

# run SECONDS ARGUMENTS.. : prints what `cargo test` makes of the mutant: `caught`, `missed`,
# `timeout`, or `unviable`.
run() {
    local longest=$1
    shift
    (
        cd "$tree" || exit 1
        export RUST_TEST_THREADS=${RUST_TEST_THREADS:-6} DLOCK_SIM_SEEDS=${DLOCK_SIM_SEEDS:-500}
        export DLOCK_ENGINE_SEEDS=${DLOCK_ENGINE_SEEDS:-200} DLOCK_TURMOIL_SEEDS=${DLOCK_TURMOIL_SEEDS:-100}
        local arguments=("$@") build=() argument
        for argument in "$@"; do
            [ "$argument" != -- ] || break
            build+=("$argument")
        done
        cargo test -q "${options[@]}" --no-run "${build[@]}" || exit 3
        # One failed test is enough: others may hang until the limit.
        timeout "$longest" cargo test -q "${options[@]}" "${arguments[@]}" &
        tail --quiet --lines=+1 --follow --pid=$! "$work/log" | grep -qm1 -E '(---|\.\.\.) FAILED$' && kill $!
        wait $!
    ) >"$work/log" 2>&1
    case $? in
        0) echo missed ;;
        3) echo unviable ;;
        124) echo timeout ;;
        *) echo caught ;;
    esac
}

# Prints the tests that failed, so that a reader sees whether they failed because of the mutant.
failed_tests() {
    sed -nE 's/^(.*) --- FAILED$/\1/p' "$work/log" | sort -u | head -3 | paste -sd ' '
}

# Prints the number of tested mutants that build.
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
