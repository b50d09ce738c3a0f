//! Names and values of parameters that `#[scheduled]` does not have.

use dlock_runtime::{Error, scheduled};

#[scheduled(every = "5m")]
async fn no_name() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "", every = "5m")]
async fn empty_name() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "report:<id>", every = "5m")]
async fn template_as_name(id: u64) -> Result<Option<()>, Error> {
    let _ = id;
    Ok(Some(()))
}

#[scheduled(name = "a", interval = "5m")]
async fn foreign_name() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", evry = "5m")]
async fn misspelled_period() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(id = "a", every = "5m")]
async fn foreign_name_of_the_name() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", namespace = "shop")]
async fn namespace() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", lock_at_most_for = "10m")]
async fn bound_of_the_lock() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", overlap = "skip")]
async fn quoted_overlap() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", overlp = skip)]
async fn misspelled() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", overlap = wait)]
async fn unknown_overlap() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", on_error = retry)]
async fn retry_without_a_number() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", on_error = retry(0))]
async fn no_retry() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", on_crash = resume)]
async fn unknown_crash_policy() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", lease = "1h", max_hold = "10m")]
async fn lease_beyond_max_hold() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", tick = tick)]
async fn hidden_argument(tick: u64) -> Result<Option<()>, Error> {
    let _ = tick;
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", guard = lease)]
async fn hidden_lease(lease: u64) -> Result<Option<()>, Error> {
    let _ = lease;
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", tick = run, guard = run)]
async fn one_name_for_two() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", guard = "lease")]
async fn guard_that_is_no_name() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", min_hold = "5m")]
async fn min_hold_up_to_the_next_tick() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m")]
fn not_async() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

fn main() {}
