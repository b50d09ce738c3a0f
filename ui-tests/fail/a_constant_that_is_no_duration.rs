//! 2: the path of another type.

use dlock_runtime::{Error, distributed_lock};

const LEASE: u64 = 30;

#[distributed_lock(key = "a", lease = LEASE)]
async fn number() -> Result<(), Error> {
    Ok(())
}

fn main() {}
