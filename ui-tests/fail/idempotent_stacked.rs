//! `#[idempotent]` contains its lock: a lock of the same key is refused, above and below it.

use dlock_runtime::{Error, distributed_lock, idempotent};

#[distributed_lock(key = "charge:<tenant>:<key>")]
#[idempotent(key = "charge:<tenant>:<key>")]
async fn a_lock_above(tenant: u64, key: u64) -> Result<u64, Error> {
    Ok(tenant + key)
}

#[idempotent(key = "charge:<tenant>:<key>")]
#[distributed_lock(wait = "1s", key = "charge:<tenant>:<key>")]
async fn a_lock_below(tenant: u64, key: u64) -> Result<u64, Error> {
    Ok(tenant + key)
}

fn main() {}
