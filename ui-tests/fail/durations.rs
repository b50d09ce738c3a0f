//! 2: durations without a unit, and such that cannot be meant.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", lease = "30")]
async fn no_unit() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = 30)]
async fn a_number() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "0s")]
async fn zero() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "20ms")]
async fn too_short() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "five seconds")]
async fn words() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "5 min")]
async fn another_unit() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", backoff = "2s..100ms")]
async fn downwards() -> Result<(), Error> {
    Ok(())
}

fn main() {}
