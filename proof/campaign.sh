#!/usr/bin/env bash
# Campaigns: runs the layers of the proof with more seeds, faults, and servers than a merge allows,
# and records the results.
#
#   bash proof/campaign.sh LAYER COUNT [BUILD]   runs COUNT of a layer after the recorded seeds
#   bash proof/campaign.sh rest                  runs all that is missing; may take hours
#   bash proof/campaign.sh sum                   prints totals of the current sources, and goals
#
# The layers are those of GOALS, below. BUILD is a build of tests/servers.sh, for faults, kills, and
# the suite; the default is the server in PATH. The ledger is proof/ledger.tsv, with a line per run,
# including failed runs. Lines of a layer add up if `sources` is equal: a hash of the shipped code
# that the layer covers. It covers the rules for layers that run only these, the rules and the
# engine for `engine`, and the rules and the backends for all other layers. `commit` identifies all
# other code.
#
# A line that does not count has `-` as its sources, and its text begins with the reason: a JUDGE
# (an invariant check), a SCENE, the TESTS, or the MACHINE was wrong; the library was wrong and is
# MENDED, outside of the hashed code; the run was ENDED by hand; its sources were CHANGED during the
# run; it is counted AGAIN by other lines.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

LEDGER=proof/ledger.tsv
COLUMNS=(date commit sources layer count seeds violations seconds server machine said)
# The layers, with the goal and the unit of each. Together the goals take about an hour on two
# cores; each layer can be run for longer.
GOALS='
core       1000000 schedules of the rules
exhaustive 1       runs of the model checker in its larger bounds
engine     100000  schedules of the engine
turmoil    25000   runs of the Redis backend over a simulated network
faults     1800    real faults, on nine builds of the server
kills      200     killed holders, each with a waiter
suite      1       runs of the whole test suite
seeded     20      seeded bugs, a sample
mutants    60      mutants of the rules, a sample
fuzz       20      seconds per fuzz target
'

main() {
    case ${1:-} in
        sum) sum ;;
        rest) rest ;;
        '' | -*) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2 ;;
        *)
            grep -q "^$1 " <<<"$GOALS" || { echo "unknown layer $1; the layers are:$GOALS" >&2 && exit 2; }
            [ $# -ge 2 ] || { echo "missing COUNT: bash proof/campaign.sh $1 COUNT" >&2 && exit 2; }
            run "$@"
            ;;
    esac
}

# Runs COUNT of LAYER, over the server BUILD.
run() {
    local layer=$1 count=$2 build=${3:-} log status begun=$SECONDS commit sources
    [ -z "$(git status --porcelain -- . ":!$LEDGER")" ] || {
        echo "uncommitted changes: commit them, so that the ledger names the sources that ran" >&2
        exit 2
    }
    commit=$(git rev-parse --short HEAD) sources=$(sources "$layer")
    if [ -n "$build" ]; then
        local -x DLOCK_REDIS_SERVER
        DLOCK_REDIS_SERVER=$(bash tests/servers.sh "$build" | awk -v name="$build" '$1 == name { print $3 }')
        [ -n "$DLOCK_REDIS_SERVER" ] || { echo "SKIPPED: $layer on $build: the build is not available here" && return 0; }
    fi
    log=$(mktemp "${TMPDIR:-/tmp}/dlock-campaign.XXXXXX") || exit 1
    play "$layer" "$count" "$(next "$layer")" </dev/null >"$log" 2>&1
    status=$?
    write_down "$layer" "$count" "$status" "$log" $((SECONDS - begun)) "$commit" "$sources"
    tail -1 "$LEDGER"
    if [ "$status" -eq 0 ]; then rm -f "$log"; else echo "the run failed; its output is in $log" >&2; fi
    return "$status"
}

# Runs what is missing of each layer, and continues after a failure.
rest() {
    local layer done goal builds build failed=0
    while read -r layer done goal _; do
        [ "$done" -lt "$goal" ] || continue
        case $layer in
            faults)
                builds=$(bash tests/servers.sh | awk '/^SKIPPED/ { print > "/dev/stderr" } NF == 3 && $3 ~ /^\// { print $1 }')
                for build in $builds; do
                    run faults $(((goal - done) / $(wc -w <<<"$builds") + 1)) "$build" || failed=1
                done
                ;;
            # A line per run, so that a failed run does not discard the ones before it.
            suite) for _ in $(seq $((goal - done))); do run suite 1 || failed=1; done ;;
            *) run "$layer" $((goal - done)) || failed=1 ;;
        esac
    done < <(sum | tail -n +2)
    return $failed
}

# Runs a layer from a seed on. It prints lines
# `campaign: LAYER: COUNT things, seeds A..B, V violations, ..`.
play() {
    local layer=$1 count=$2 from=$3
    local runtime=(cargo test --release -p dlock-runtime --lib) faults=(cargo test --release -p dlock-tests --test faults -- --nocapture)
    case $layer in
        # Each seed runs a schedule with one server and one with a quorum.
        core) DLOCK_SIM_SEEDS=$(((count + 1) / 2)) DLOCK_SIM_FROM=$from "${runtime[@]}" simulation -- --nocapture \
            --skip engine:: --skip redis:: ;;
        exhaustive) DLOCK_EXHAUSTIVE=2 "${runtime[@]}" exhaustive -- --nocapture ;;
        engine) DLOCK_ENGINE_SEEDS=$count DLOCK_ENGINE_FROM=$from "${runtime[@]}" engine::simulation -- --nocapture ;;
        turmoil) DLOCK_TURMOIL_SEEDS=$count DLOCK_TURMOIL_FROM=$from "${runtime[@]}" redis::simulation -- --nocapture ;;
        faults) DLOCK_FAULTS=$count DLOCK_FAULTS_FROM=$from "${faults[@]}" ;;
        kills) DLOCK_FAULTS=$count DLOCK_FAULTS_FROM=$from DLOCK_FAULTS_ROW=P1 "${faults[@]}" ;;
        # Simulations are deterministic, so repeated runs use few seeds; only tests with servers
        # differ between runs.
        suite) for _ in $(seq "$count"); do
            DLOCK_SIM_SEEDS=5000 DLOCK_ENGINE_SEEDS=200 DLOCK_TURMOIL_SEEDS=200 bash tests/run.sh || return
        done ;;
        # Each run continues after the last one, and begins again after the last bug or mutant.
        seeded)
            echo "campaign: seeded: seeds $from..$((from + count))"
            bash proof/seeded_bugs.sh $(some_bugs "$count" "$from")
            ;;
        mutants)
            echo "campaign: mutants: seeds $from..$((from + count))"
            bash proof/mutants.sh --shard "$(part_of_mutants "$count" "$from")"
            ;;
        fuzz) bash fuzz/run.sh "$count" ;;
    esac
}

# Prints the names of COUNT seeded bugs from one on, in an order that mixes layers and rules.
some_bugs() {
    local count=$1 from=$2 names
    mapfile -t names < <(for bug in proof/seeded_bugs/*.patch; do
        echo "$(basename "$bug" .patch | sha256sum | cut -c 1-16) $(basename "$bug" .patch)"
    done | sort | cut -d ' ' -f 2)
    for bug in $(seq "$from" $((from + count - 1))); do echo "${names[bug % ${#names[@]}]}"; done
}

# Prints the part of the mutants, such as 2/8, that has about COUNT of them and follows FROM others.
part_of_mutants() {
    local count=$1 from=$2 parts
    parts=$((($(bash proof/mutants.sh --list | wc -l) + count - 1) / count))
    echo "$((from / count % parts))/$parts"
}

# Prints the seed after the last recorded one of a layer, for any sources.
next() {
    [ -f "$LEDGER" ] || { echo 0 && return; }
    awk -F '\t' -v layer="$1" '$4 == layer && split($6, seeds, "[.][.]") == 2 && seeds[2] > last { last = seeds[2] }
        END { printf "%d\n", last }' "$LEDGER"
}

# Appends the result of a run to the ledger.
write_down() {
    local layer=$1 count=$2 status=$3 log=$4 seconds=$5 commit=$6 sources=$7 done violations seeds said caught
    said=$(grep -ohE '(campaign|fuzz|tests): .*' "$log" | paste -s -d '|' | sed 's/campaign: //g; s/|/ | /g; s/\t/ /g')
    seeds=$(grep -oE 'seeds [0-9]+\.\.[0-9]+' <<<"$said" | head -1 | cut -d ' ' -f 2)
    case $layer in
        # A layer that did not run does not count, even without a failure.
        exhaustive) done=$(grep -cm1 'campaign: exhaustive' "$log") violations=0 ;;
        suite) done=$(grep -cE '^tests: [1-9][0-9]* passed, 0 failed' "$log") violations=0 ;;
        fuzz)
            done=0 violations=$(grep -cE '^fuzz: .*FOUND' "$log")
            [ "$(grep -c '^fuzz: .*nothing found' "$log")" -lt "$(ls fuzz/fuzz_targets | wc -l)" ] || done=$count
            ;;
        seeded)
            done=$(grep -oE '[0-9]+ bugs' <<<"$said" | cut -d ' ' -f 1)
            caught=$(grep -oE '[0-9]+ caught' <<<"$said" | cut -d ' ' -f 1)
            violations=$((${done:-0} - ${caught:-0}))
            ;;
        mutants)
            # Mutants that do not build do not count.
            done=$(grep -oE '[0-9]+ (caught|missed|timed out)' <<<"$said" | awk '{ all += $1 } END { print all + 0 }')
            violations=$(grep -oE '[0-9]+ missed' <<<"$said" | cut -d ' ' -f 1)
            ;;
        *)
            done=$(grep -oE ': [0-9]+ (schedules|faults)[, ]' <<<"$said" | awk '{ all += $2 } END { print all + 0 }')
            violations=$(grep -oE '[0-9]+ violations' <<<"$said" | awk '{ all += $1 } END { print all + 0 }')
            ;;
    esac
    # A failed run counts as a violation, even if it printed none.
    [ "$status" -eq 0 ] || [ "${violations:-0}" -gt 0 ] || violations=1
    [ "$status" -ne 0 ] || [ "${done:-0}" -gt 0 ] || said="FAILED: nothing was done: $(grep -om1 'SKIPPED: .*' "$log")"
    # Tests that expect a failure panic as well, so failed tests are preferred to panics.
    [ "$status" -eq 0 ] || said="FAILED: $({ grep -E '^test .* FAILED$' "$log" || grep -E 'panicked|FAILED|^error' "$log"; } | head -1) $said"
    [ "$sources" = "$(sources "$layer")" ] || said="CHANGED while they were run. $said" sources=-
    [ -f "$LEDGER" ] || (IFS=$'\t' && echo "${COLUMNS[*]}") >"$LEDGER"
    (IFS=$'\t' && echo "$(date -u +%F)	$commit	$sources	$layer	${done:-0}	${seeds:--}	${violations:-0}	$seconds	$(server)	$(machine)	$said") >>"$LEDGER"
}

# Prints the hash of the shipped code that a layer covers. Tests and simulations are not part of it,
# neither separate files nor the module of tests at the end of a file.
sources() {
    local rooms=(protocol)
    case $1 in
        core | exhaustive | mutants) ;;
        engine) rooms+=(engine) ;;
        *) rooms+=(backend) ;;
    esac
    git ls-files "${rooms[@]/#/dlock-runtime/src/}" |
        grep -vE '(simulation|exhaustive|interleavings|tests|scene|rig|hostile|test_node)(/|\.rs)' | xargs awk '
            FNR == 1 { tests = 0; print FILENAME }
            held != "" {
                is_module = /^(pub(\([a-z:() ]*\))? )?mod [a-z_]+;$/
                if (/^mod tests \{$/) tests = 1; else if (!is_module) print held
                held = ""
                if (is_module) next
            }
            tests || /^$/ { next }
            /^#\[cfg\(test\)\]$/ { held = $0; next }
            { print }' | git hash-object --stdin | cut -c 1-12
}

server() {
    "${DLOCK_REDIS_SERVER:-redis-server}" --version 2>/dev/null | sed -n 's/^\([A-Za-z]*\).* v=\([0-9.]*\).*/\1 \2/p'
}

machine() {
    printf '%s cores, %s, %s' "$(getconf _NPROCESSORS_ONLN)" \
        "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -1)" "$(uname -sr)"
}

sum() {
    local layer goal what
    [ -f "$LEDGER" ] || { echo "no $LEDGER: no run is recorded yet" >&2 && exit 1; }
    printf '%-11s %9s %9s %11s %7s  %s\n' layer done goal violations failed what
    while read -r layer goal what; do
        [ -n "$layer" ] || continue
        awk -F '\t' -v layer="$layer" -v goal="$goal" -v what="$what" -v sources="$(sources "$layer")" '
            $3 == sources && $4 == layer { done += $5; violations += $7; failed += $11 ~ /^FAILED/; servers[$9] }
            END {
                for (server in servers) builds++
                if (layer == "faults") what = what ", on " builds + 0 " so far"
                printf "%-11s %9d %9d %11d %7d  %s\n", layer, done, goal, violations, failed, what
            }' "$LEDGER"
    done <<<"$GOALS"
}

main "$@"; exit
