//! `#[idempotent]`: parameters that contradict each other.

use dlock_runtime::{Error, idempotent};

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, ttl = "1m", lease = "5m")]
async fn lease_longer_than_ttl(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, on_crash = resume)]
async fn resume_without_record(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, record = a)]
async fn record_hides_an_argument(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

fn main() {}
