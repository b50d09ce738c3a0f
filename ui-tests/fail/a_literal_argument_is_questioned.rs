//! 1: missing brackets; a warning, since it may be intended, made an error here to be seen.

#![deny(deprecated)]

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "order:user_id")]
async fn forgotten(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

const CACHE: &str = "cache";

#[distributed_lock(key = CACHE)]
async fn meant(cache: u64) -> Result<u64, Error> {
    Ok(cache)
}

#[distributed_lock(key = "user:<id>")]
async fn a_word_beside_a_hole(user: u64, id: u64) -> Result<u64, Error> {
    Ok(user + id)
}

fn main() {}
