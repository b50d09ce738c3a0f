//! 2: durations without a unit, and invalid ones.

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

#[distributed_lock(key = "a", lease = "1.5s")]
async fn a_fraction() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", min_hold = "1d")]
async fn days() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = 30s)]
async fn without_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "0s")]
async fn no_wait() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", max_hold = "50ms")]
async fn a_short_max_hold() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", backoff = "2s..100ms")]
async fn downwards() -> Result<(), Error> {
    Ok(())
}

fn main() {}
