#!/usr/bin/env bash
# Mutants of the rules: cargo-mutants makes one change at a time in `dlock-runtime/src/protocol`,
# which the fast tests of the rules must catch.
#
#   bash proof/mutants.sh                all mutants: about 1,300, two or three seconds each
#   bash proof/mutants.sh --shard 2/8    the third of eight parts; parts add up
#   bash proof/mutants.sh --file queue   the mutants of one file
#   bash proof/mutants.sh --list         lists the mutants
#   bash proof/mutants.sh --table PART.. prints the results of parts (all, shard-0-of-8) per file
#
# A crate with only the rules (`proof/mutants`) tests them: first with its unit tests and a few
# hundred seeds of each simulation, and then, for mutants that these miss, with the model checker
# and DLOCK_MUTANTS_SEEDS seeds (3000; 0 skips this step). The lists of caught and missed mutants
# are below target/mutants, with a folder per part. DLOCK_MUTANTS_OUT sets another folder,
# DLOCK_MUTANTS_JOBS the number of concurrent tests (2). `.cargo/mutants.toml` excludes mutants that
# change no behavior, with the reasons.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

main() {
    local part=all select=() out seeds=${DLOCK_MUTANTS_SEEDS:-3000} jobs=${DLOCK_MUTANTS_JOBS:-2}
    install || { echo "SKIPPED: mutants: cargo-mutants is not installed and cannot be (cargo install cargo-mutants --locked)"; exit 0; }
    case ${1:-} in
        "") ;;
        --list) exec cargo mutants --list ;;
        --table) shift; table "$@"; exit ;;
        --shard) part=shard-${2//\//-of-} select=(--shard "$2") ;;
        --file) part=$2 select=(--re "^dlock-runtime/src/protocol/$2[./]") ;;
        *) echo "unknown argument $1" >&2; exit 1 ;;
    esac
    out=${DLOCK_MUTANTS_OUT:-$PWD/target/mutants}/$part
    mkdir -p "$out" && rm -rf "$out"/mutants.out* "$out"/*.txt

    export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}
    DLOCK_SIM_SEEDS=30 cargo test --quiet -p dlock-mutants --features alone >"$out/baseline.log" 2>&1 || {
        echo "mutants: the tests fail without a mutant" >&2
        tail -20 "$out/baseline.log" >&2
        exit 1
    }
    # Never the target folder of the baseline: cargo would reuse artifacts of a mutated copy. Each
    # of several copies has a separate folder.
    if [ "$jobs" -eq 1 ]; then export CARGO_TARGET_DIR=$out/../target; else unset CARGO_TARGET_DIR; fi
    # Without optimization, which the simulations normally use, builds are faster.
    DLOCK_SIM_SEEDS=300 judge 60 --cargo-arg=--config=profile.test.package.dlock-mutants.opt-level=0 ${select[@]+"${select[@]}"} \
        -- -- --skip exhaustive
    local missed=()
    mapfile -t missed < <(sed 's/[][\\.*^$()+?{}|]/\\&/g; s/^/--re=^/; s/$/$/' "$out/mutants.out/missed.txt")
    if [ ${#missed[@]} -gt 0 ] && [ "$seeds" -gt 0 ]; then
        # Selected by name, because `--shard` would select other mutants.
        DLOCK_SIM_SEEDS=$seeds judge 300 "${missed[@]}"
    fi
    report
}

# judge SECONDS ARGUMENTS: a test that runs longer than SECONDS hangs.
judge() {
    local longest=$1 status
    shift
    cargo mutants --baseline skip --timeout "$longest" --jobs "$jobs" --colors never --output "$out" "$@"
    status=$?
    # 2: some mutants were missed; 3: some timed out.
    [[ $status = [023] ]] || { echo "mutants: cargo-mutants failed with status $status" >&2; exit 1; }
}

# Merges the lists of the two runs, or of the only one. A mutant that the first run missed and that
# times out in the second is missed.
report() {
    local last=$out/mutants.out first=$out/mutants.out.old caught missed late unviable
    if [ -d "$first" ]; then
        sort -u "$last/missed.txt" "$last/timeout.txt" >"$out/missed.txt"
    else
        first=$last
        sort -u "$last/missed.txt" >"$out/missed.txt"
    fi
    sort -u "$first/timeout.txt" >"$out/timeout.txt"
    sort -u "$first/caught.txt" "$last/caught.txt" >"$out/caught.txt"
    sort -u "$first/unviable.txt" "$last/unviable.txt" >"$out/unviable.txt"
    caught=$(wc -l <"$out/caught.txt") missed=$(wc -l <"$out/missed.txt")
    late=$(wc -l <"$out/timeout.txt") unviable=$(wc -l <"$out/unviable.txt")
    sed 's/^/missed: /' "$out/missed.txt"
    echo "campaign: mutants: $((caught + missed + late + unviable)), $caught caught, $missed missed, $late timed out, $unviable unviable"
    # At least nine of ten must be caught; a timeout counts as caught.
    [ $((10 * (caught + late))) -ge $((9 * (caught + late + missed))) ]
}

# Prints the lists of these parts, counted per file.
table() {
    local list part lists=${DLOCK_MUTANTS_OUT:-target/mutants}
    [ $# -gt 0 ] || { echo "missing PART: the parts are below $lists" >&2; return 1; }
    for part in "$@"; do
        [ -f "$lists/$part/caught.txt" ] || { echo "no part $part below $lists, or its run has not ended" >&2; return 1; }
    done
    printf '# The last results of `bash proof/mutants.sh`, printed by `--table`.\n'
    printf 'file\tmutants\tcaught\tmissed\ttimed out\tunviable\twhich are missed\n'
    for list in caught missed timeout unviable; do
        for part in "$@"; do sed "s|^|$list\t|" "$lists/$part/$list.txt"; done
    done | awk -F '\t' '
        {
            file = mutant = $2
            sub(/[.]rs:.*/, "", file); sub(/.*protocol[/]/, "", file); sub(/^[^:]*:/, "", mutant)
            all[file]++; count[file, $1]++
            if ($1 == "missed") said[file] = said[file] (said[file] == "" ? "" : "; ") mutant
        }
        END {
            for (file in all) printf "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", file, all[file], count[file, "caught"],
                count[file, "missed"], count[file, "timeout"], count[file, "unviable"], said[file] | "sort"
        }'
}

install() {
    cargo mutants --version >/dev/null 2>&1 || {
        echo "cargo-mutants is missing: installing it" >&2
        cargo install cargo-mutants --locked >&2
    }
}

main "$@"; exit
