#!/usr/bin/env bash
# Mutants of the rules: cargo-mutants changes one thing at a time in `dlock-runtime/src/protocol`, and the rules' own fast tests must notice.
#
#   bash proof/mutants.sh                all of them: some eight hundred, of which each takes two or three seconds
#   bash proof/mutants.sh --shard 2/8    the third of eight parts; parts add up
#   bash proof/mutants.sh --file queue   those of one file
#   bash proof/mutants.sh --list         what there is to change
#   bash proof/mutants.sh --table PART.. what was said of these parts (all, or shard-0-of-8 and so on), file by file
#
# They are judged by a crate that has nothing but the rules (`proof/mutants`): first by its unit tests and a few hundred seeds of each
# simulation, and what those miss by the model checker and DLOCK_MUTANTS_SEEDS seeds (3000; with 0 by nothing more). The lists of what was
# caught and missed are kept below target/mutants, a folder for each part; DLOCK_MUTANTS_OUT names another place, DLOCK_MUTANTS_JOBS how many
# are tested side by side (2). What cannot be noticed since it changes nothing is left out in `.cargo/mutants.toml`, with the reason.
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
        *) echo "what is $1?" >&2; exit 1 ;;
    esac
    out=${DLOCK_MUTANTS_OUT:-$PWD/target/mutants}/$part
    mkdir -p "$out" && rm -rf "$out"/mutants.out* "$out"/*.txt

    export CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}
    DLOCK_SIM_SEEDS=30 cargo test --quiet -p dlock-mutants --features alone >"$out/baseline.log" 2>&1 || {
        echo "mutants: the tests do not pass without any" >&2
        tail -20 "$out/baseline.log" >&2
        exit 1
    }
    # Never the target folder of the baseline: cargo would take what was built of a changed copy for what is here. Of several copies each
    # has one of its own.
    if [ "$jobs" -eq 1 ]; then export CARGO_TARGET_DIR=$out/../target; else unset CARGO_TARGET_DIR; fi
    # Without the optimisation that the simulations have it is built sooner.
    DLOCK_SIM_SEEDS=300 judge 60 --cargo-arg=--config=profile.dev.package.dlock-mutants.opt-level=0 ${select[@]+"${select[@]}"} \
        -- -- --skip exhaustive
    local missed=()
    mapfile -t missed < <(sed 's/[][\\.*^$()+?{}|]/\\&/g; s/^/--re=^/; s/$/$/' "$out/mutants.out/missed.txt")
    if [ ${#missed[@]} -gt 0 ] && [ "$seeds" -gt 0 ]; then
        # By name: a part of what is left would be another part.
        DLOCK_SIM_SEEDS=$seeds judge 300 "${missed[@]}"
    fi
    report
}

# judge SECONDS ARGUMENTS: what runs for longer than that hangs.
judge() {
    local longest=$1 status
    shift
    cargo mutants --baseline skip --timeout "$longest" --jobs "$jobs" --colors never --output "$out" "$@"
    status=$?
    # 2: some were missed; 3: some took too long.
    [[ $status = [023] ]] || { echo "mutants: cargo-mutants ended with $status before it was done" >&2; exit 1; }
}

# The lists of the only run, or of two where the first missed some: of those, what takes too long in the second is missed.
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
    # Nine of ten at least; what hangs is noticed, too.
    [ $((10 * (caught + late))) -ge $((9 * (caught + late + missed))) ]
}

# The lists of these parts, counted for each file.
table() {
    local list part lists=${DLOCK_MUTANTS_OUT:-target/mutants}
    [ $# -gt 0 ] || { echo "write which parts: those below $lists" >&2; return 1; }
    for part in "$@"; do
        [ -f "$lists/$part/caught.txt" ] || { echo "there is no $part below $lists, or its run is not over" >&2; return 1; }
    done
    printf '# What `bash proof/mutants.sh` said last, by `--table`.\n'
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
