//! `#[idempotent]`: results that cannot be stored and replayed.

use dlock_runtime::{Error, idempotent};

pub struct Receipt;

#[derive(Debug)]
pub struct OwnError;

#[idempotent(key = "charge:<a>:<b>")]
async fn a_plain_value(a: u64, b: u64) -> u64 {
    a + b
}

#[idempotent(key = "charge:<a>:<b>")]
async fn a_value_that_is_no_json(a: u64, b: u64) -> Result<Receipt, Error> {
    let _ = a + b;
    Ok(Receipt)
}

#[idempotent(key = "charge:<a>:<b>")]
async fn an_error_that_carries_nothing(a: u64, b: u64) -> Result<u64, OwnError> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", on_duplicate = skip)]
async fn nothing_to_skip_with(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:<a>:<b>", on_error = remember)]
async fn an_error_that_is_no_json(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[derive(Debug)]
pub struct Declined;

impl From<Error> for Declined {
    fn from(_: Error) -> Self {
        Self
    }
}

#[idempotent(key = "charge:<a>:<b>", on_error = remember_if(is_final))]
async fn an_own_error_that_is_no_json(a: u64, b: u64) -> Result<u64, Declined> {
    Ok(a + b)
}

fn is_final(_: &Declined) -> bool {
    true
}

#[idempotent(key = "charge:<a>:<b>")]
async fn a_value_without_name(a: u64, b: u64) -> impl Sized {
    a + b
}

#[idempotent(key = "charge:<a>:<b>", on_duplicate = skip)]
async fn a_value_like_the_skipped_one(a: u64, b: u64) -> Result<Option<()>, Error> {
    let _ = a + b;
    Ok(Some(()))
}

fn main() {}
