//! Instants that never come, that the parser does not know, or that contradict each other.

use dlock_runtime::{Error, scheduled};

#[scheduled(name = "never", cron = "0 0 30 2 *")]
async fn never() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "six-fields", cron = "0 0 2 * * *")]
async fn six_fields() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "four-fields", cron = "0 2 * *")]
async fn four_fields() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "nickname", cron = "@daily")]
async fn nickname() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "no-such-hour", cron = "0 25 * * *")]
async fn no_such_hour() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "whole-name", cron = "0 2 * * MONDAY")]
async fn whole_name() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "day-as-hour", cron = "0 MON * * *")]
async fn day_as_hour() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "unknown-form", cron = "5/10 * * * *")]
async fn unknown_form() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "long-step", cron = "*/90 * * * *")]
async fn long_step() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "space-in-a-list", cron = "0 9, 17 * * *")]
async fn space_in_a_list() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "unknown-zone", cron = "0 2 * * *", tz = "Europe/Berln")]
async fn unknown_zone() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "zone-of-a-period", every = "5m", tz = "Europe/Berlin")]
async fn zone_of_a_period() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "short-period", every = "500ms")]
async fn short_period() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "two-schedules", cron = "0 2 * * *", every = "5m")]
async fn two_schedules() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "no-schedule")]
async fn no_schedule() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "fixed-slot", slot = 7)]
async fn fixed_slot(_at: u64) -> Result<Option<()>, Error> {
    Ok(Some(()))
}

#[scheduled(name = "slot-of-no-argument", slot = NOW)]
async fn slot_of_no_argument() -> Result<Option<()>, Error> {
    Ok(Some(()))
}

fn main() {}
