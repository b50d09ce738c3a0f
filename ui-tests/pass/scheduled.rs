//! Forms of `#[scheduled]` that compile: instants, options, arguments, methods, and calls of a
//! runner.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use dlock_runtime::scheduled::{Jobs, Tick};
use dlock_runtime::{Error, LockManager, scheduled};

const PERIOD: Duration = Duration::from_secs(5);

#[scheduled(name = "nightly-report", cron = "0 2 * * MON-FRI", tz = "Europe/Berlin", tick = tick)]
async fn nightly_report(recipient: &str) -> Result<Option<String>, Error> {
    Ok(Some(format!("{recipient} {}", tick.attempt())))
}

#[scheduled(
    name = "sync",
    every = "5m",
    overlap = skip,
    catch_up = all(max = 10, window = "1h"),
    spread = "30s",
    min_hold = "4m",
)]
async fn sync() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "poll", every = PERIOD, catch_up = all(max = 2, window = PERIOD), overlap = queue_one, on_error = done, on_crash = rerun)]
async fn poll() -> Result<Option<u8>, Failed> {
    Err(Failed("no reply".to_owned()))
}

#[scheduled(
    name = "import",
    slot = fire_at,
    overlap = cancel_previous,
    on_error = retry(3),
    on_crash = skip,
    lease = "10s",
    min_hold = "1m",
    max_hold = "1m",
    tick = tick,
    guard = lease,
)]
async fn import(fire_at: SystemTime) -> Result<Option<Tick>, Error> {
    let _ = fire_at;
    lease.check()?;
    Ok(Some(tick))
}

/// A module of a function's name, as in `use sync::sync`: the attribute adds no item with
/// the name of the function.
mod latest {
    use super::{Error, Tick, scheduled};

    #[scheduled(name = "latest", every = "1h", catch_up = latest, tick = tick)]
    pub(crate) async fn latest<T: Send>(_value: T) -> Result<Option<Tick>, Error> {
        Ok(Some(tick))
    }
}
use latest::latest;

#[derive(Debug)]
struct Failed(String);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone)]
struct Service {
    locks: LockManager,
    runs: u32,
}

impl Service {
    #[scheduled(name = "associated", every = "1s")]
    async fn associated() -> Result<Option<()>, Error> {
        Ok(Some(()))
    }

    #[scheduled(name = "cleanup", every = "1s", manager = self.locks)]
    async fn cleanup(&mut self, (left, right): (u32, u32)) -> Result<Option<u32>, Error> {
        self.runs += left + right;
        Ok(Some(self.runs))
    }
}

#[async_trait]
trait Nightly {
    async fn nightly(&self) -> Result<Option<u32>, Error>;
}

#[async_trait]
impl Nightly for Service {
    #[scheduled(name = "nightly", cron = "0 3 * * *", guard = lease, manager = self.locks)]
    async fn nightly(&self) -> Result<Option<u32>, Error> {
        lease.check()?;
        Ok(Some(self.runs))
    }
}

fn is_send<T: Send>(future: T) -> T {
    future
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let locks = dlock_runtime::init("memory://").await.expect("no server is needed").clone();
    assert_eq!(is_send(nightly_report("all")).await.expect("a store").as_deref(), Some("all 1"));
    assert_eq!(is_send(nightly_report("all")).await.expect("a store"), None);
    assert_eq!(sync().await.expect("a store"), Some(()));
    assert_eq!(poll().await.expect_err("it fails").0, "no reply");
    let slot = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
    assert_eq!(import(slot).await.expect("a store").map(|tick| tick.due()), Some(slot));
    assert_eq!(import(slot).await.expect("a store"), None);
    let mut service = Service { locks: locks.clone(), runs: 0 };
    assert_eq!(service.cleanup((1, 2)).await.expect("a store"), Some(3));
    let boxed: Arc<dyn Nightly + Send + Sync> = Arc::new(service.clone());
    assert_eq!(boxed.nightly().await.expect("a store"), Some(3));
    let jobs = Jobs::new(locks)
        .add_scheduled(move || {
            let boxed = Arc::clone(&boxed);
            async move { boxed.nightly().await }
        })
        .add_scheduled(sync)
        .add_scheduled(poll)
        .add_scheduled(Service::associated)
        .add_scheduled(|| latest("a value"))
        .add_scheduled(|| async { nightly_report(&"all".to_owned()).await })
        .add_scheduled(move || {
            let mut service = service.clone();
            async move { service.cleanup((1, 2)).await }
        });
    jobs.run_until(async {}).await.expect("each is a job");
}
