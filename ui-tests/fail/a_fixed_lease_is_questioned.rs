//! 2: `renew = false` without a lease is a warning, made an error here to be seen.

#![deny(deprecated)]

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", renew = false)]
async fn without_a_lease() -> Result<u64, Error> {
    Ok(7)
}

#[distributed_lock(key = "a", lease = "30s", renew = false)]
async fn with_a_lease() -> Result<u64, Error> {
    Ok(7)
}

fn main() {}
