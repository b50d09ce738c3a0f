//! Every parameter, in every form of its value.

use std::time::Duration;

use dlock_runtime::{Error, LockManager, distributed_lock};

const LEASE: Duration = Duration::from_secs(7200);
const TRIES: u32 = 2;

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
    on_contended = error,
    on_lost = abort,
)]
async fn all() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = LEASE, retry = TRIES, wait = self::LEASE, backoff = LEASE, on_lost = finish)]
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
