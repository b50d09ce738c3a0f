//! `#[idempotent]`: the body runs on its own task, so its arguments must not borrow.

use std::borrow::Cow;

use dlock_runtime::{Error, idempotent};

#[idempotent(key = "charge:<tenant>:<key>")]
async fn a_reference(tenant: u64, key: &str) -> Result<u64, Error> {
    let _ = key;
    Ok(tenant)
}

#[idempotent(key = "charge:<tenant>:<key>")]
async fn a_lifetime(tenant: u64, key: Cow<'_, str>) -> Result<u64, Error> {
    let _ = key;
    Ok(tenant)
}

pub struct Ledger {
    pub id: u64,
}

impl Ledger {
    #[idempotent(key = "charge:<self.id>:<key>")]
    async fn a_method(&self, key: u64) -> Result<u64, Error> {
        Ok(self.id + key)
    }

    #[idempotent(key = "charge:<self.id>:<key>", detached = true)]
    async fn said_twice(&mut self, key: u64) -> Result<u64, Error> {
        Ok(self.id + key)
    }
}

#[idempotent(key = "charge:<tenant>:<key>")]
async fn a_named_lifetime<'a>(tenant: u64, key: &'a str) -> Result<u64, Error> {
    let _ = key;
    Ok(tenant)
}

fn main() {}
