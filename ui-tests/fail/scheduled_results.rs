//! Return types without a value for a call that does not run its tick, or for an error.

use dlock_runtime::{Error, scheduled};

#[scheduled(name = "no-option", every = "5m")]
async fn no_option() -> Result<u32, Error> {
    Ok(7)
}

#[scheduled(name = "no-result", every = "5m")]
async fn no_result() {}

#[scheduled(name = "no-room-for-errors", every = "5m")]
async fn no_room_for_errors() -> Result<Option<u32>, u8> {
    Ok(None)
}

pub struct Mute;

impl From<Error> for Mute {
    fn from(_: Error) -> Self {
        Self
    }
}

#[scheduled(name = "no-text", every = "5m")]
async fn an_error_without_a_text() -> Result<Option<u32>, Mute> {
    Ok(None)
}

fn main() {}
