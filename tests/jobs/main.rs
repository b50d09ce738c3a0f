//! Scheduled jobs: each tick starts once, whatever the clocks, the timers, and the processes do.
//!
//! The long form runs more ticks:
//!
//! ```text
//! DLOCK_TICKS=1000 cargo test -p dlock-tests --test jobs
//! ```

mod bad_input;
mod clocks;
mod crashes;
mod deployments;
mod events;
mod forged_records;
mod functions;
mod known_failures;
mod operators;
mod overlaps;
mod rules;
mod runner;
mod timers;

use std::time::{Duration, SystemTime};

use dlock_runtime::scheduled::{Schedule, Tick};
use dlock_runtime::testing::TestLocks;
use dlock_runtime::{Error, LockManager};
use dlock_tests::RedisServer;
use dlock_tests::acl::{WITH_JOBS, documented_besides};

const LONG: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
/// A period whose end almost no test can meet.
const LONG_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Returns the number of ticks of a test that is longer in the long form.
fn ticks_of_a_run(short: u64) -> u64 {
    std::env::var("DLOCK_TICKS").map_or(short, |ticks| ticks.parse().expect("DLOCK_TICKS is a number"))
}

/// Starts a server, whose user has the permissions that the guide names for jobs.
fn redis() -> RedisServer {
    permitted(RedisServer::start())
}

/// Gives the user of a server the permissions that the guide names for jobs.
fn permitted(server: RedisServer) -> RedisServer {
    server.allow(documented_besides(WITH_JOBS));
    server
}

async fn in_memory() -> LockManager {
    LockManager::connect("memory://").await.expect("no server is needed")
}

/// A schedule with a period, so long that a test ends within one tick, or as short as a test needs.
fn every(period: Duration) -> Schedule {
    Schedule::every(period).expect("a valid period")
}

/// Runs a job whose body returns its tick at once.
async fn run(manager: &LockManager, name: &str, schedule: &Schedule) -> Option<Tick> {
    manager.job(name).run(schedule, async |tick| Ok::<_, Error>(tick)).await.expect("the store is available")
}

/// Sleeps until shortly after the next multiple of `period` of the wall clock.
async fn until_next(period: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
    let period = period.as_millis();
    let left = u64::try_from(period - now % period).expect("a short time");
    tokio::time::sleep(Duration::from_millis(left + 1)).await;
}

/// Sleeps until `before` ahead of one of the next multiples of `period`, by the clock of the store.
async fn until_before(locks: &TestLocks, period: Duration, before: Duration) {
    let now = locks.fleet(1)[0].now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let next = (now.as_millis() / period.as_millis() + 2) * period.as_millis();
    let left = u64::try_from(next - before.as_millis() - now.as_millis()).expect("a short time");
    tokio::time::sleep(Duration::from_millis(left)).await;
}
