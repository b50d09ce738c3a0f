//! `#[idempotent]`: a key that only the client may have chosen needs a scope.

use dlock_runtime::{Error, idempotent};

pub struct Request {
    pub key: String,
}

#[idempotent(key = "charge:<request.key>", fingerprint = none)]
async fn one_placeholder(request: Request) -> Result<String, Error> {
    Ok(request.key)
}

const REGION: &str = "eu";

#[idempotent(key = "charge:<REGION>:<key>")]
async fn a_constant_does_not_count(key: String) -> Result<String, Error> {
    Ok(key)
}

#[idempotent(key = request.key, fingerprint = none)]
async fn an_argument_as_the_key(request: Request) -> Result<String, Error> {
    Ok(request.key)
}

#[idempotent(key = format!("charge:{key}"), scope = tenant, fingerprint = none)]
async fn a_scope_beside_an_expression(tenant: u64, key: String) -> Result<String, Error> {
    Ok(format!("{tenant}{key}"))
}

#[idempotent(key = "charge:<key>", scope = tenat)]
async fn a_scope_that_is_no_argument(tenant: u64, key: String) -> Result<String, Error> {
    Ok(format!("{tenant}{key}"))
}

fn main() {}
