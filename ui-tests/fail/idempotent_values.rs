//! `#[idempotent]`: values of the wrong form, and durations out of bounds.

use dlock_runtime::{Error, idempotent};

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, ttl = "30s")]
async fn ttl_too_short(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, ttl = 24)]
async fn ttl_without_unit(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, ttl = 86400)]
async fn ttl_in_seconds_without_unit(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, lease = "10ms")]
async fn lease_too_short(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = "amount")]
async fn fingerprint_of_a_literal(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, on_duplicate = wait)]
async fn wait_without_time(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, on_duplicate = wait(10))]
async fn wait_without_unit(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, on_duplicate = retry)]
async fn other_duplicate(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, on_crash = retry)]
async fn other_crash(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, on_crash = "resume")]
async fn quoted_crash(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, on_error = store)]
async fn other_error(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, on_error = remember_if)]
async fn remember_without_predicate(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, on_unavailable = skip, on_missing = skip)]
async fn other_outcomes(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, version = "2", detached = no, record = self.record)]
async fn other_forms(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, scope = "tenant")]
async fn scope_of_a_literal(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:{a}:{b}", fingerprint = none)]
async fn braces_are_literal_text(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, result_type = "")]
async fn empty_result_type(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, result_type = "Result<u64, Error>")]
async fn result_type_with_white_space(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = none, result_type = Receipt)]
async fn unquoted_result_type(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

fn main() {}
