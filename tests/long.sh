#!/usr/bin/env bash
# The long form of what CI runs in short: fail-overs, moves of slots, servers of a quorum that fail, thefts, hand-overs far from the
# server, and soaks beside clients of other libraries; the programs of other libraries that the benchmarks run; what the attribute costs
# the compiler; all benchmarks in short; nearly all suites as the user who may do least; then the suites over every build of the server
# that can be had. It takes more than half an hour on two cores, prints its figures, and ends like `tests/run.sh`. Each count can be set
# by the variable that stands below.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

export DLOCK_FAIL_OVERS=${DLOCK_FAIL_OVERS:-50} DLOCK_MIGRATIONS=${DLOCK_MIGRATIONS:-50}
export DLOCK_ALL_MINORITIES=${DLOCK_ALL_MINORITIES-1}
export DLOCK_LOSSES=${DLOCK_LOSSES:-1000} DLOCK_SOAK_SECONDS=${DLOCK_SOAK_SECONDS:-60} DLOCK_HAND_OVERS=${DLOCK_HAND_OVERS:-1000}

failed=0
bash tests/run.sh -p dlock-tests --test sentinel --test cluster --test quorum --test tracking --test setnx --test redisson --test distance || failed=1
bash tests/run.sh -p dlock-bench-rivals --test obedience || failed=1
cargo run --release -p dlock-benches --bin compile-time || failed=1
cargo run --release -p dlock-benches -- --short || failed=1
# As the user who may do least, wherever a test does not say as whom. (The doctor asks for more than locks do, and `trips` counts.)
suites=(contract promises cancel losses tasks acks tracking bad_input quorum sentinel cluster reach secrets)
DLOCK_TEST_ACL=1 bash tests/run.sh -p dlock-tests "${suites[@]/#/--test=}" || failed=1
bash tests/servers.sh --test || failed=1
exit "$failed"
