#!/usr/bin/env bash
# Seeded bugs: each patch in `seeded_bugs/` breaks one rule of the lock, and the tests that it names
# must fail.
#
#   bash proof/seeded_bugs.sh --check   checks that every patch applies, is complete, and names a
#                                   module that exists, and that every numbered rule has one; 4 s
#   bash proof/seeded_bugs.sh           seeds all bugs, one after the other; about 30 s each
#   bash proof/seeded_bugs.sh NAME..    seeds these bugs
#
# The copy is a worktree in a temporary folder, with the changes of tracked files. It is removed at
# exit, also after a signal. Its target folder is removed with it, unless DLOCK_SEEDED_TARGET names
# one to keep. Use that folder for nothing else: cargo would reuse artifacts of a broken copy. A
# test that takes longer than DLOCK_SEEDED_LIMIT seconds (180) hangs, which counts as caught.
# `seeded_bugs/README.md` lists the rules and guarantees by number.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"
bugs=proof/seeded_bugs
limit=${DLOCK_SEEDED_LIMIT:-180}
numbered=(1 2 3 4 5 6 7 8 9 P1 P2 P3 P4 P5)
# Without optimization, builds take a quarter of the time, and tests up to three times as long.
unoptimized=(--config profile.test.package.dlock-runtime.opt-level=0)
work=
running=

main() {
    local names=() name
    if [ "${1:-}" = --check ]; then
        check
        exit
    fi
    for name in "$@"; do
        [ -f "$bugs/$name.patch" ] || { echo "no patch $bugs/$name.patch" >&2; exit 1; }
    done
    names=("$@")
    if [ $# -eq 0 ]; then
        check >&2 || exit 1
        for name in "$bugs"/*.patch; do names+=("$(basename "$name" .patch)"); done
    fi
    plant "${names[@]}"
}

# Prints the text of a header line, such as `Rule`.
header() {
    sed -n "/^--- /q; s/^$2: //p" "$bugs/$1.patch"
}

# Prints the modules of a package, one per line, such as `::key::tests::`.
modules() {
    git grep -l '' -- "$1/src/*.rs" | sed -E "s|^$1/src/||; s|(/mod)?\.rs$||; s|/|::|g; s|.*|::&::|"
    git grep -E '^(pub(\(.*\))? )?mod [a-z_]+ \{' -- "$1/src/*.rs" |
        sed -E "s|^$1/src/||; s|(/mod)?\.rs:.*mod ([a-z_]+) \{.*|::\2|; s|/|::|g; s|.*|::&::|"
}

# Returns 0 if a filter of unit tests names a module of the package, or a module and the start of a
# function of the package.
names_module() {
    local package=$1 filter=$2
    grep -qF "::$filter::" <<<"${modules_of[$package]}" && return
    [[ $filter == *::* ]] && grep -qF "::${filter%::*}::" <<<"${modules_of[$package]}" &&
        git grep -q "fn ${filter##*::}" -- "$package/src/*.rs"
}

# Prints the errors of the patches, without building anything.
check() {
    local patch name word number wrong=0 count=0 rules manifests package
    local -A modules_of=()
    mapfile -t manifests < <(git ls-files '*Cargo.toml')
    complain() { echo "seeded bugs: $name: $1"; wrong=$((wrong + 1)); }
    for patch in "$bugs"/*.patch; do
        name=$(basename "$patch" .patch)
        count=$((count + 1))
        for word in Rule Layer Test; do
            [ "$(header "$name" "$word" | grep -c .)" -eq 1 ] || complain "the header must have exactly one line \`$word:\`"
        done
        [[ "$(header "$name" Test)" == *"-p "* ]] || complain "the line \`Test:\` must name a package with -p"
        for word in $(header "$name" Test | grep -oE -- '--test [^ ]+' | cut -d' ' -f2); do
            grep -qx "name = \"$word\"" "${manifests[@]}" || complain "there is no test target \`$word\`"
        done
        if [[ "$(header "$name" Test)" =~ ^-p\ ([^ ]+)\ --lib(\ --features\ [^ ]+)?(\ --)?\ ([^-].*)$ ]]; then
            package=${BASH_REMATCH[1]}
            [ -n "${modules_of[$package]:-}" ] || modules_of[$package]=$(modules "$package")
            for word in ${BASH_REMATCH[4]}; do
                names_module "$package" "$word" || complain "\`$word\` is in no module of $package"
            done
        elif [[ "$(header "$name" Test)" == *--lib* ]]; then
            complain "the filter of unit tests must follow \`--lib\`"
        fi
        if sed -n 's/^+++ b\///p' "$patch" | grep -qvE '^(dlock-runtime|dlock-macros|dlock-cli)/src/'; then
            complain "the patch changes code that is not shipped"
        fi
        if sed -n 's/^+++ b\///p' "$patch" | grep -qE '(/tests?(/|\.rs)|/simulation|/rig\.rs|/scene\.rs)'; then
            complain "the patch changes a test"
        fi
        git apply --check "$patch" 2>/dev/null || complain "the patch does not apply"
    done
    rules=$(for patch in "$bugs"/*.patch; do header "$(basename "$patch" .patch)" Rule; done)
    name=all
    for number in "${numbered[@]}"; do
        grep -q "^$number, " <<<"$rules" || complain "no patch breaks rule $number"
    done
    [ "$wrong" -eq 0 ] && echo "seeded bugs: $count patches apply, and every numbered rule has one"
}

# Seeds bugs, and prints the test that caught each.
plant() {
    local begun=$SECONDS name caught=0 tests status=0 commit
    trap clean EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    work=$(mktemp -d "${TMPDIR:-/tmp}/dlock-seeded.XXXXXX") || exit 1
    cp -r "$bugs" "$work/bugs" && bugs=$work/bugs
    commit=$(git stash create)
    git worktree add -q --detach "$work/tree" "${commit:-HEAD}" || exit 1
    export CARGO_TARGET_DIR=${DLOCK_SEEDED_TARGET:-$work/target} CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}

    # A test that fails without the bug catches nothing.
    local -A green=()
    for name in "$@"; do
        tests=$(header "$name" Test)
        [ -z "${green[$tests]:-}" ] || continue
        green[$tests]=no
        run_tests "$tests"
        case $outcome in
            passed) green[$tests]=yes ;;
            *) echo "seeded bugs: without a bug, \`cargo test $tests\` $outcome" >&2; tail -20 "$work/log" >&2 ;;
        esac
    done

    printf '%s | %s | %s | %s\n' name rule layer "caught in s by"
    for name in "$@"; do
        tests=$(header "$name" Test)
        outcome="not seeded: its tests fail without the bug"
        if [ "${green[$tests]:-}" = yes ]; then
            if git -C "$work/tree" apply "$bugs/$name.patch" 2>"$work/log"; then
                run_tests "$tests"
                git -C "$work/tree" apply -R "$bugs/$name.patch"
            else
                outcome="does not apply"
            fi
        fi
        case $outcome in
            failed*) caught=$((caught + 1)); outcome="$took s by ${outcome#failed by }" ;;
            hung) caught=$((caught + 1)); outcome="$took s: it hangs" ;;
            passed) outcome="LIVES: $count tests passed in $took s${skipped:+, and $skipped}"; status=1 ;;
            *) outcome="ERROR: $outcome"; status=1 ;;
        esac
        printf '%s | %s | %s | %s\n' "$name" "$(header "$name" Rule)" "$(header "$name" Layer)" "$outcome"
    done
    echo "campaign: seeded bugs: $# bugs, $caught caught, $((SECONDS - begun)) s"
    exit $status
}

# run_tests ARGUMENTS: builds and runs tests in the copy. Sets `outcome` to `passed`,
# `failed by <first test>`, `hung`, or an error; `took` to the seconds, `count` to the number of
# tests, and `skipped` to the first message of a skipped test.
run_tests() {
    local arguments said status begun
    read -ra arguments <<<"$1"
    # A skipped test passes, and cargo shows the output of passed tests only with --show-output.
    if [[ " $1 " == *" -- "* ]]; then said=(--show-output); else said=(-- --show-output); fi
    took=0 count=0 skipped=
    in_copy cargo test "${unoptimized[@]}" --no-run --quiet "${arguments[@]}"
    if [ $? -ne 0 ]; then
        outcome="does not build: $(grep -m1 '^error' "$work/log")"
        return
    fi
    begun=$(date +%s%N)
    # A test that hangs is stopped at the limit.
    in_copy timeout -k 5 "$limit" cargo test "${unoptimized[@]}" --no-fail-fast "${arguments[@]}" "${said[@]}"
    status=$?
    took=$((($(date +%s%N) - begun) / 100000000))
    took="$((took / 10)).$((took % 10))"
    count=$(awk '/^running [0-9]+ tests?$/ { count += $2 } END { print count + 0 }' "$work/log")
    skipped=$(grep -om1 'SKIPPED: .*' "$work/log")
    if [ "$count" -eq 0 ]; then
        outcome="runs no test"
    elif [ $status -eq 0 ]; then
        outcome=passed
    elif [ $status -eq 124 ] || [ $status -eq 137 ]; then
        outcome=hung
    else
        outcome="failed by $(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$work/log" | head -1)"
        [ "$outcome" != "failed by " ] || outcome="failed by the end of its process: $(grep -m1 -E 'signal|panicked' "$work/log")"
    fi
}

# Runs a command in the copy, with its output in the log. It runs in the background, so that Ctrl-C
# is handled at once.
in_copy() {
    (cd "$work/tree" && exec "$@") >"$work/log" 2>&1 &
    running=$!
    wait "$running"
    local status=$?
    running=
    return $status
}

clean() {
    trap - EXIT
    [ -z "$running" ] || kill "$running" 2>/dev/null
    [ -z "$running" ] || wait "$running" 2>/dev/null
    [ -z "$work" ] && return
    git worktree remove --force "$work/tree" 2>/dev/null
    rm -rf "$work"
    git worktree prune
}

main "$@"; exit
