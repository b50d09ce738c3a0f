//! `#[idempotent]`: the result of a step that cannot be stored.

use dlock_runtime::{Error, idempotent};

pub struct Receipt(u64);

async fn pay(amount: u64) -> Result<Receipt, Error> {
    Ok(Receipt(amount))
}

#[idempotent(key = "charge:<a>:<b>", on_crash = resume, record = record)]
async fn a_result_that_is_no_json(a: u64, b: u64) -> Result<u64, Error> {
    let receipt = record.step("pay", async || pay(a + b).await).await?;
    Ok(receipt.0)
}

fn main() {}
