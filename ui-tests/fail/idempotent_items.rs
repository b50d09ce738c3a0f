//! `#[idempotent]`: items that are no `async fn`.

use dlock_runtime::{Error, idempotent};

#[idempotent(key = "charge:<a>:<b>")]
fn not_async(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[idempotent(key = "charge:7")]
pub struct Charge;

pub trait Charges {
    #[idempotent(key = "charge:<a>:<b>")]
    async fn no_body(a: u64, b: u64) -> Result<u64, Error>;
}

#[idempotent(key = "charge:7")]
async fn main() -> Result<(), Error> {
    Ok(())
}
