//! 10: names of other libraries, typos, and parameters that this version does not have.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a", ttl = "30s")]
async fn foreign() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", timeout = "5s")]
async fn two_meanings() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", retrys = 3)]
async fn misspelt() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", colour = "red")]
async fn unheard_of() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "30s", lease = "60s")]
async fn twice() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", permits = 5)]
async fn later() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(keys = ["a", "b"])]
async fn later_and_the_key() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", concurrency = 5)]
async fn foreign_and_later() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lockAtLeastFor = "1s")]
async fn foreign_in_camel_case() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", at_least = "1s")]
async fn the_name_before_0_1_0() -> Result<(), Error> {
    Ok(())
}

fn main() {}
