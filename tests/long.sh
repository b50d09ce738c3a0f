#!/usr/bin/env bash
# The long form of the CI tests. It takes more than 30 minutes on two cores, prints its figures, and
# ends like `tests/run.sh`. It runs:
#
# - failovers, slot migrations, failures of quorum servers, lost locks, hand-offs far from the
#   server, and soak tests with clients of other libraries; the variables below set their counts,
# - faults and failovers during idempotent calls, and simulated schedules of their records,
# - many ticks of scheduled jobs, terms of leaders, and simulated fleets,
# - many simulated networks, and real faults,
# - the programs of other libraries that the benchmarks run,
# - the compile time of the attribute, and all benchmarks in short,
# - nearly all suites as the user with the fewest permissions,
# - the suites over every available build of the server, and the faults over one more build.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

export DLOCK_FAIL_OVERS=${DLOCK_FAIL_OVERS:-50} DLOCK_MIGRATIONS=${DLOCK_MIGRATIONS:-50}
export DLOCK_ALL_MINORITIES=${DLOCK_ALL_MINORITIES-1}
export DLOCK_TICKS=${DLOCK_TICKS:-1000} DLOCK_TERMS=${DLOCK_TERMS:-1000} DLOCK_JOB_SEEDS=${DLOCK_JOB_SEEDS:-100000}
export DLOCK_TURMOIL_SEEDS=${DLOCK_TURMOIL_SEEDS:-20000} DLOCK_FAULTS=${DLOCK_FAULTS:-1000}
export DLOCK_IDEM_FAULTS=${DLOCK_IDEM_FAULTS:-500}
export DLOCK_TEST_LIMIT=${DLOCK_TEST_LIMIT:-7200}
export DLOCK_LOSSES=${DLOCK_LOSSES:-1000} DLOCK_SOAK_SECONDS=${DLOCK_SOAK_SECONDS:-60} DLOCK_HAND_OFFS=${DLOCK_HAND_OFFS:-1000}

failed=0
bash tests/run.sh -p dlock-tests --test sentinel --test cluster --test quorum --test tracking --test setnx --test redisson --test distance || failed=1
bash tests/run.sh -p dlock-tests --test jobs --test leader || failed=1
bash tests/run.sh -p dlock-runtime --lib --features scheduled protocol::job || failed=1
bash tests/run.sh -p dlock-runtime --lib redis::simulation || failed=1
bash tests/run.sh -p dlock-tests --test faults || failed=1
bash tests/run.sh -p dlock-tests --test idempotent || failed=1
DLOCK_SIM_SEEDS=${DLOCK_SIM_SEEDS:-100000} bash tests/run.sh -p dlock-runtime --lib --features idempotent protocol::idempotency || failed=1
bash tests/run.sh -p dlock-bench-rivals --test obedience || failed=1
cargo run --release -p dlock-benches --bin compile-time || failed=1
cargo run --release -p dlock-benches -- --short || failed=1
# As the user with the fewest permissions, in all tests that do not select a user. (The doctor needs
# more permissions, and `round_trips` counts commands.)
suites=(contract guarantees cancel lock_loss tasks acks tracking bad_input quorum sentinel cluster connectivity secrets jobs leader)
DLOCK_TEST_ACL=1 bash tests/run.sh -p dlock-tests "${suites[@]/#/--test=}" || failed=1
bash tests/servers.sh --test || failed=1
bash tests/servers.sh --test=faults valkey-9.1 || failed=1
exit "$failed"
