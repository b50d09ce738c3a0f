//! Forms of `#[scheduled]` that compile: instants, options, arguments, and methods.

use std::fmt;
use std::time::{Duration, SystemTime};

use dlock_runtime::scheduled::Tick;
use dlock_runtime::{Error, LockManager, scheduled};

const PERIOD: Duration = Duration::from_secs(5);

#[scheduled(name = "nightly-report", cron = "0 2 * * MON-FRI", tz = "Europe/Berlin", tick = tick)]
async fn nightly_report(recipient: &str) -> Result<Option<String>, Error> {
    Ok(Some(format!("{recipient} {}", tick.attempt())))
}

#[scheduled(name = "sync", every = "5m", overlap = skip)]
async fn sync() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "poll", every = PERIOD, overlap = queue_one, on_error = done, on_crash = rerun)]
async fn poll() -> Result<Option<u8>, Failed> {
    Err(Failed("no answer".to_owned()))
}

#[scheduled(
    name = "import",
    slot = fire_at,
    overlap = cancel_previous,
    on_error = retry(3),
    on_crash = skip,
    lease = "10s",
    max_hold = "1m",
    tick = tick,
)]
async fn import(fire_at: SystemTime) -> Result<Option<Tick>, Error> {
    let _ = fire_at;
    Ok(Some(tick))
}

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

struct Service {
    locks: LockManager,
    runs: u32,
}

impl Service {
    #[scheduled(name = "cleanup", every = "1s", manager = self.locks)]
    async fn cleanup(&mut self, (left, right): (u32, u32)) -> Result<Option<u32>, Error> {
        self.runs += left + right;
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
    assert_eq!(poll().await.expect_err("it fails").0, "no answer");
    let slot = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
    assert_eq!(import(slot).await.expect("a store").map(|tick| tick.due()), Some(slot));
    assert_eq!(import(slot).await.expect("a store"), None);
    let mut service = Service { locks, runs: 0 };
    assert_eq!(service.cleanup((1, 2)).await.expect("a store"), Some(3));
}
