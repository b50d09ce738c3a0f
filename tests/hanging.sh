#!/usr/bin/env bash
# Ends test programs that hang: `bash tests/hanging.sh PROCESS SECONDS [LOG]`.
#
# While PROCESS lives, ends each test program among its descendants that is older than SECONDS, with
# SIGKILL. Before that, prints the tests that are still running by the output of `cargo test` in
# LOG, and what each thread of the program waits for. Without this, one test that never ends hides
# the results of all others.
set -u

main() {
    local process=$1 limit=$2 log=${3:-/dev/null} old
    while kill -0 "$process" 2>/dev/null; do
        # One at a time: a program that has ended could have given its process id to another.
        old=$(older_than "$limit" "$process" $((SECONDS + 60)))
        [ -z "$old" ] || finish "$old" "$limit" "$log"
        sleep 1
    done
}

# Prints the process id of a test program, or of the `rustdoc` that runs one, that is older than the
# first argument, and not older than the third: `ps` shows an age of many years for a process that
# started after it had read the clock.
older_than() {
    ps -A -o pid= -o ppid= -o etime= -o args= | awk -v limit="$1" -v root="$2" -v oldest="$3" '
        # [[days-]hours:]minutes:seconds
        function seconds(text, part, count, at, sum, days) {
            days = split(text, part, "-") == 2 ? part[1] : 0
            count = split(part[days ? 2 : 1], part, ":")
            for (at = 1; at <= count; at++) sum = sum * 60 + part[at]
            return days * 86400 + sum
        }
        function descends(pid) {
            do pid = parent[pid]; while (pid in parent && pid != root)
            return pid == root
        }
        { parent[$1] = $2 }
        / .*\/deps\/[a-z0-9_-]+-[0-9a-f]+( |$)/ || $4 ~ /(^|\/)rustdoc$/ { age = seconds($3); if (age > limit && age <= oldest) old[$1] }
        END { for (pid in old) if (descends(pid)) { print pid; exit } }'
}

finish() {
    local tests
    tests=$(awk '
        /^     Running / { delete slow }
        / has been running for over / { slow[$2] }
        /^test .* \.\.\. / { delete slow[$2] }
        END { for (name in slow) printf " %s", name }' "$3")
    echo "hangs: a test program, which is ended after $2 s, in:$tests"
    stacks "$1"
    kill -9 "$1" 2>/dev/null
}

# Prints one line for each thread: its name, which is that of its test, and its innermost
# functions. Without gdb, prints the functions of the kernel in which the threads and the children
# of the program wait.
stacks() {
    if ! command -v gdb >/dev/null 2>&1; then
        ps -L -o comm=,stat=,wchan:30= -p "$1" --ppid "$1" 2>/dev/null | sed 's/^/hangs: /'
        return
    fi
    timeout 60 gdb -p "$1" -batch -ex 'thread apply all backtrace 40' 2>/dev/null | awk '
        /^Thread / { if (line) print line; match($0, /"[^"]*"/); line = "hangs: " substr($0, RSTART, RLENGTH); next }
        /^#/ {
            sub(/^#[0-9]+ +(0x[0-9a-f]+ in )?/, "")
            sub(/ \(.*/, "")
            sub(/(<[^>].*|::h[0-9a-f]+)$/, "") # generic arguments, and hashes
            if ($0 !~ /^(<|{closure|(core|alloc|std|tokio|test|mio|parking_lot[a-z_]*)::|__|\?\?)/) line = line " < " $0
        }
        END { if (line) print line }'
}

main "$@"
