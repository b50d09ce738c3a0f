#!/usr/bin/env bash
# Campaigns: the layers of the proof with more seeds, faults and servers than a merge has time for, and the ledger of what came out.
#
#   bash proof/campaign.sh LAYER COUNT [BUILD]   runs so much of a layer, after the seeds that the ledger has, and writes it down
#   bash proof/campaign.sh rest                  runs all that is missing, layer by layer: hours, on two cores, where nothing is there
#   bash proof/campaign.sh sum                   prints what adds up for the sources as they are, beside the goals
#
# Layers are those of GOALS, below. BUILD is one of tests/servers.sh, for faults, kills and the suite; without it they use the server in
# PATH. The ledger is proof/ledger.tsv: a line for each run, also for one that failed. Lines of a layer add up as long as `sources` is the
# same: a hash of what it is about, of that which ships. That is the rules alone for those layers that run nothing else, the rules and the
# engine for the engine's, the rules and the backends for all others, which run all: what else of it has changed since is told by `commit`.
#
# A line is set aside, and does not add up, by `-` for its sources and a word for the reason in front of what it said: a JUDGE, a SCENE, the
# TESTS or the MACHINE was wrong; the library was, and is MENDED, in what is no part of the hash; the run was ENDED by hand; its sources were
# CHANGED on the way; it is counted AGAIN by other lines.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

LEDGER=proof/ledger.tsv
COLUMNS=(date commit sources layer count seeds violations seconds server machine said)
# What is counted of each layer, and how much of it there should be.
GOALS='
core       5000000 schedules of the rules alone
exhaustive 1       runs of the model checker in its larger bounds
engine     100000  schedules of the engine
turmoil    100000  runs of the Redis backend over a simulated network
faults     20000   real faults, on nine builds of the server
kills      1000    killed holders, each followed by a next one
suite      20      runs of the whole test suite
planted    25      planted bugs
mutants    500     mutants of the rules
fuzz       60      seconds of each fuzz target
'

main() {
    case ${1:-} in
        sum) sum ;;
        rest) rest ;;
        '' | -*) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2 ;;
        *)
            grep -q "^$1 " <<<"$GOALS" || { echo "there is no layer $1; there are:$GOALS" >&2 && exit 2; }
            [ $# -ge 2 ] || { echo "write how much: bash proof/campaign.sh $1 COUNT" >&2 && exit 2; }
            run "$@"
            ;;
    esac
}

# Runs COUNT of LAYER, over the server BUILD.
run() {
    local layer=$1 count=$2 build=${3:-} log status begun=$SECONDS commit sources
    [ -z "$(git status --porcelain -- . ":!$LEDGER")" ] || {
        echo "there are changes that are not committed: the ledger would name a commit that is something else" >&2
        exit 2
    }
    commit=$(git rev-parse --short HEAD) sources=$(sources "$layer")
    if [ -n "$build" ]; then
        local -x DLOCK_REDIS_SERVER
        DLOCK_REDIS_SERVER=$(bash tests/servers.sh "$build" | awk -v name="$build" '$1 == name { print $3 }')
        [ -n "$DLOCK_REDIS_SERVER" ] || { echo "SKIPPED: $layer on $build: it cannot be had here" && return 0; }
    fi
    log=$(mktemp "${TMPDIR:-/tmp}/dlock-campaign.XXXXXX") || exit 1
    play "$layer" "$count" "$(next "$layer")" </dev/null >"$log" 2>&1
    status=$?
    write_down "$layer" "$count" "$status" "$log" $((SECONDS - begun)) "$commit" "$sources"
    tail -1 "$LEDGER"
    if [ "$status" -eq 0 ]; then rm -f "$log"; else echo "it failed; all that it said is in $log" >&2; fi
    return "$status"
}

# Runs what is missing of each layer; one that fails does not keep the next from running.
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
            # A line for each: one that fails does not take those before it along.
            suite) for _ in $(seq $((goal - done))); do run suite 1 || failed=1; done ;;
            *) run "$layer" $((goal - done)) || failed=1 ;;
        esac
    done < <(sum | tail -n +2)
    return $failed
}

# The command of a layer, from a seed on. What it did it says in lines `campaign: LAYER: COUNT things, seeds A..B, V violations, ..`.
play() {
    local layer=$1 count=$2 from=$3
    local runtime=(cargo test --release -p dlock-runtime --lib) faults=(cargo test --release -p dlock-tests --test faults -- --nocapture)
    case $layer in
        # Each seed is a schedule with one server and one with several.
        core) DLOCK_SIM_SEEDS=$(((count + 1) / 2)) DLOCK_SIM_FROM=$from "${runtime[@]}" simulation -- --nocapture \
            --skip engine:: --skip redis:: ;;
        exhaustive) DLOCK_EXHAUSTIVE=2 "${runtime[@]}" exhaustive -- --nocapture ;;
        engine) DLOCK_ENGINE_SEEDS=$count DLOCK_ENGINE_FROM=$from "${runtime[@]}" engine::simulation -- --nocapture ;;
        turmoil) DLOCK_TURMOIL_SEEDS=$count DLOCK_TURMOIL_FROM=$from "${runtime[@]}" redis::simulation -- --nocapture ;;
        faults) DLOCK_FAULTS=$count DLOCK_FAULTS_FROM=$from "${faults[@]}" ;;
        kills) DLOCK_FAULTS=$count DLOCK_FAULTS_FROM=$from DLOCK_FAULTS_ROW=P1 "${faults[@]}" ;;
        # What is simulated is the same each time; what may fail in one run and not in the next are the tests with servers.
        suite) for _ in $(seq "$count"); do
            DLOCK_SIM_SEEDS=5000 DLOCK_ENGINE_SEEDS=200 DLOCK_TURMOIL_SEEDS=200 bash tests/run.sh || return
        done ;;
        planted) bash proof/planted.sh ;;
        # Parts add up: DLOCK_MUTANTS_SHARD names one, such as 2/8.
        mutants) bash proof/mutants.sh ${DLOCK_MUTANTS_SHARD:+--shard "$DLOCK_MUTANTS_SHARD"} ;;
        fuzz) bash fuzz/run.sh "$count" ;;
    esac
}

# The seed after the last one that the ledger has of a layer, whatever the sources were.
next() {
    [ -f "$LEDGER" ] || { echo 0 && return; }
    awk -F '\t' -v layer="$1" '$4 == layer && split($6, seeds, "[.][.]") == 2 && seeds[2] > last { last = seeds[2] }
        END { printf "%d\n", last }' "$LEDGER"
}

# Adds what a run said to the ledger.
write_down() {
    local layer=$1 count=$2 status=$3 log=$4 seconds=$5 commit=$6 sources=$7 done violations seeds said caught
    said=$(grep -ohE '(campaign|fuzz|tests): .*' "$log" | paste -s -d '|' | sed 's/campaign: //g; s/|/ | /g; s/\t/ /g')
    seeds=$(grep -oE 'seeds [0-9]+\.\.[0-9]+' <<<"$said" | head -1 | cut -d ' ' -f 2)
    case $layer in
        # What did not run is not done, though nothing failed.
        exhaustive) done=$(grep -cm1 'campaign: exhaustive' "$log") violations=0 ;;
        suite) done=$(grep -cE '^tests: [1-9][0-9]* passed, 0 failed' "$log") violations=0 ;;
        fuzz)
            done=0 violations=$(grep -cE '^fuzz: .*FOUND' "$log")
            [ "$(grep -c '^fuzz: .*nothing found' "$log")" -lt "$(ls fuzz/fuzz_targets | wc -l)" ] || done=$count
            ;;
        planted)
            done=$(grep -oE '[0-9]+ bugs' <<<"$said" | cut -d ' ' -f 1)
            caught=$(grep -oE '[0-9]+ caught' <<<"$said" | cut -d ' ' -f 1)
            violations=$((${done:-0} - ${caught:-0}))
            ;;
        mutants)
            # What does not build was not judged.
            done=$(grep -oE '[0-9]+ (caught|missed|timed out)' <<<"$said" | awk '{ all += $1 } END { print all + 0 }')
            violations=$(grep -oE '[0-9]+ missed' <<<"$said" | cut -d ' ' -f 1)
            seeds=${DLOCK_MUTANTS_SHARD:+part $DLOCK_MUTANTS_SHARD}
            ;;
        *)
            done=$(grep -oE ': [0-9]+ (schedules|faults)[, ]' <<<"$said" | awk '{ all += $2 } END { print all + 0 }')
            violations=$(grep -oE '[0-9]+ violations' <<<"$said" | awk '{ all += $1 } END { print all + 0 }')
            ;;
    esac
    # What failed without a violation that was counted was wrong all the same.
    [ "$status" -eq 0 ] || [ "${violations:-0}" -gt 0 ] || violations=1
    [ "$status" -ne 0 ] || [ "${done:-0}" -gt 0 ] || said="FAILED: nothing was done: $(grep -om1 'SKIPPED: .*' "$log")"
    # What fails by plan panics, too: the tests that failed come first.
    [ "$status" -eq 0 ] || said="FAILED: $({ grep -E '^test .* FAILED$' "$log" || grep -E 'panicked|FAILED|^error' "$log"; } | head -1) $said"
    [ "$sources" = "$(sources "$layer")" ] || said="CHANGED while they were run. $said" sources=-
    [ -f "$LEDGER" ] || (IFS=$'\t' && echo "${COLUMNS[*]}") >"$LEDGER"
    (IFS=$'\t' && echo "$(date -u +%F)	$commit	$sources	$layer	${done:-0}	${seeds:--}	${violations:-0}	$seconds	$(server)	$(machine)	$said") >>"$LEDGER"
}

# What ships of that which a layer is about: tests and simulations in files of their own may change, and lines add up all the same.
sources() {
    local rooms=(protocol)
    case $1 in
        core | exhaustive | mutants) ;;
        engine) rooms+=(engine) ;;
        *) rooms+=(backend) ;;
    esac
    git ls-files -s "${rooms[@]/#/dlock-runtime/src/}" |
        grep -vE '(simulation|exhaustive|interleavings|tests|scene|rig|hostile)(/|\.rs)' | git hash-object --stdin | cut -c 1-12
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
    [ -f "$LEDGER" ] || { echo "there is no $LEDGER yet: nothing has been run" >&2 && exit 1; }
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
