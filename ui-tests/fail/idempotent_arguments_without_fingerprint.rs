//! `#[idempotent]`: an argument in neither the key nor the fingerprint is questioned.

#![deny(deprecated)]

use dlock_runtime::{Error, idempotent};

#[idempotent(key = "charge:<tenant>:<key>")]
async fn charge(tenant: u64, key: String, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(tenant + amount)
}

pub struct Request {
    pub key: String,
    pub amount: u64,
}

#[idempotent(key = "charge:<tenant>:<request.key>")]
async fn a_part_is_not_the_whole(tenant: u64, request: Request) -> Result<u64, Error> {
    Ok(tenant + request.amount)
}

fn main() {
    drop(charge(7, String::new(), 1));
    drop(a_part_is_not_the_whole(7, Request { key: String::new(), amount: 1 }));
}
