//! Missed and delayed ticks: values that run none, and jobs that have none.

use std::time::SystemTime;

use dlock_runtime::{Error, scheduled};

#[scheduled(name = "a", every = "5m", catch_up = all(max = 0, window = "1h"))]
async fn no_tick() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", catch_up = all(max = 1001, window = "1h"))]
async fn too_many_ticks() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", catch_up = all(max = 10))]
async fn no_window() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", catch_up = all(10, "1h"))]
async fn bounds_without_names() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", catch_up = all(max = 10, window = 3600))]
async fn window_without_a_unit() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", catch_up = all(max = 10, window = "1m"))]
async fn window_within_a_period() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", catch_up = always)]
async fn unknown_word() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", slot = fire_at, catch_up = latest)]
async fn slot_of_no_runner(fire_at: SystemTime) -> Result<Option<()>, Error> {
    let _ = fire_at;
    Ok(Some(()))
}

#[scheduled(name = "a", every = "5m", spread = "3m")]
async fn spread_over_half_of_the_period() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "a", slot = fire_at, spread = "30s")]
async fn spread_of_a_slot(fire_at: SystemTime) -> Result<Option<()>, Error> {
    let _ = fire_at;
    Ok(Some(()))
}

fn main() {}
