//! Calls that are safe to repeat: their semantics in memory and over Redis, their cost, and their
//! behavior in faults.

mod cost;
mod deployments;
mod faults;
mod forged_records;
mod ledger;
mod options;
mod outage;
mod outbox;
mod processes;
mod replies;
mod semantics;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_runtime::{Error, Idempotent, LockKey};
use dlock_tests::world::World;
use dlock_tests::{RedisServer, acl, within};
use tokio::sync::Notify;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);
/// A lease whose end a test waits for.
const LEASE: Duration = Duration::from_millis(500);

/// Returns an empty store in memory, and one over Redis.
fn worlds() -> [World; 2] {
    [World::in_memory(), World::over_redis_with_records()]
}

/// Starts a server whose user may keep records.
fn server() -> RedisServer {
    let server = RedisServer::start();
    server.allow(acl::documented_besides(acl::WITH_RECORDS));
    server
}

/// Returns the number in an environment variable, or the default.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |number| number.parse().expect("a number"))
}

/// Returns the error of a body that fails.
fn failure() -> Error {
    LockKey::new("").expect_err("a key is not empty").into()
}

/// Counts the bodies that run.
#[derive(Clone, Debug, Default)]
struct Runs(Arc<AtomicU32>);

impl Runs {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Runs a body that is counted and returns its number.
    async fn run<P>(&self, call: &Idempotent<P>) -> Result<(u32, bool), Error>
    where
        P: dlock_runtime::idempotent::ErrorPolicy<Error> + Clone + Send + Sync + 'static,
    {
        let runs = Arc::clone(&self.0);
        let body = move |_record| async move { Ok(runs.fetch_add(1, Ordering::SeqCst) + 1) };
        call.run(body).await.map(|outcome| (*outcome.value(), outcome.is_replayed()))
    }
}

/// A body that begins, and returns 7 once the test lets it end.
#[derive(Clone, Debug, Default)]
struct PausedBody(Arc<(Notify, Notify)>);

impl PausedBody {
    async fn run(&self) -> Result<u32, Error> {
        let (begun, may_end) = &*self.0;
        begun.notify_one();
        may_end.notified().await;
        Ok(7)
    }

    /// Waits until the body has begun.
    async fn begun(&self) {
        within(LONG, "the start of the body", self.0.0.notified()).await;
    }

    /// Lets the body end.
    fn end(&self) {
        self.0.1.notify_one();
    }
}

/// Leaves a record behind as a crash does: the lease of its attempt is over, and there is no
/// result.
async fn crash(call: &Idempotent) {
    let entered = Notify::new();
    let call = call.clone().lease(Duration::from_millis(400));
    let mut attempt = Box::pin(call.run_attached(async |_record| {
        entered.notify_one();
        std::future::pending::<Result<u32, Error>>().await
    }));
    tokio::select! {
        _ = &mut attempt => unreachable!("its body is pending"),
        () = entered.notified() => {}
    }
    drop(attempt);
    tokio::time::sleep(Duration::from_millis(420)).await;
}
