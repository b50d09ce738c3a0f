//! `#[idempotent]`: names that are no parameters, and a missing key.

use dlock_runtime::{Error, idempotent};

#[idempotent(ttl = "1h")]
async fn no_key(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = "charge:<id>", scope = everyone, expiresAfterSeconds = "1h")]
async fn of_powertools(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = "charge:<id>", scope = everyone, on_duplicat = skip)]
async fn misspelled(id: u64) -> Result<(), Error> {
    let _ = id;
    Ok(())
}

#[idempotent(key = "charge:<id>", scope = everyone, timeout = "10s")]
async fn ambiguous(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = "charge:<id>", scope = everyone, wait = "10s")]
async fn of_a_lock(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = "charge:<id>", scope = everyone, ttl = "1h", ttl = "2h")]
async fn twice(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = "charge:<id>", scope = everyone, return_type = "receipt")]
async fn other_name_of_result_type(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, scope)]
async fn scope_without_value(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

fn main() {}
