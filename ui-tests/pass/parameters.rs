//! Every parameter, in every form of its value.

use std::time::Duration;

use dlock_runtime::{Error, LockManager, distributed_lock};

const LEASE: Duration = Duration::from_secs(7200);
const TRIES: u32 = 2;
const NAME: &str = "constants";

mod reexports {
    pub use dlock_runtime as dlock;
}

#[distributed_lock(
    key = "a",
    lease = "500ms",
    renew = false,
    retry = 3,
    wait = "5s",
    backoff = "100ms..2s",
    max_hold = "1m",
    min_hold = "100ms",
    reentrant = false,
    on_contended = error,
    on_lost = abort,
    on_unavailable = error,
    release = awaited,
    namespace = "shop",
    name = "all",
    kind = mutex,
)]
async fn all() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(
    key = "a",
    lease = LEASE,
    retry = TRIES,
    wait = self::LEASE,
    backoff = LEASE,
    max_hold = Duration::from_secs(9000),
    min_hold = Duration::from_millis(20),
    on_lost = finish,
    release = background,
    namespace = NAME,
    name = self::NAME,
)]
async fn constants() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "1h", wait = "5m", backoff = "10ms", renew = true, retry = 0)]
async fn units() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", crate = ::dlock_runtime)]
async fn an_outer_crate() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a:<id>", crate = crate::reexports::dlock, lease = "1s", on_contended = return(Ok(0)))]
async fn a_reexport(id: u8) -> Result<u8, Error> {
    Ok(id)
}

#[distributed_lock(key = "a:<id>", guard = lock)]
async fn a_guard(id: u8) -> Result<String, Error> {
    std::future::ready(()).await;
    Ok(format!("{id} {lock:?}"))
}

#[distributed_lock(key = "a", on_unavailable = run, guard = lock)]
async fn unlocked() -> Result<bool, Error> {
    Ok(lock.check().is_ok())
}

#[distributed_lock(key = "a", on_unavailable = skip, namespace = "")]
async fn skipped() -> Result<Option<u8>, Error> {
    Ok(Some(1))
}

#[distributed_lock(key = "a", on_unavailable = skip, on_contended = return(None))]
async fn skipped_or_returned() -> Option<u8> {
    Some(1)
}

struct Service {
    locks: LockManager,
}

impl Service {
    fn locks(&self) -> &LockManager {
        &self.locks
    }

    #[distributed_lock(key = "a", manager = self.locks)]
    async fn a_field(&self) -> Result<(), Error> {
        Ok(())
    }

    #[distributed_lock(key = "a", manager = self.locks())]
    async fn a_getter(self) -> Result<Self, Error> {
        Ok(self)
    }
}

struct State<T>(T);

#[distributed_lock(key = "a:<id>", manager = service.locks)]
async fn of_an_argument(State(service): State<std::sync::Arc<Service>>, id: u8) -> Result<u8, Error> {
    let _ = service;
    Ok(id)
}

fn main() {}
