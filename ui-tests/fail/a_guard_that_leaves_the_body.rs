//! 12: the guard of an attribute in a spawned task.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", guard = lock)]
async fn spawned() -> Result<(), Error> {
    tokio::spawn(async move { lock.check() });
    Ok(())
}

fn main() {}
