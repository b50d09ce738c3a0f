//! `#[idempotent]`: types of a web framework as the result or in the fingerprint.

use axum::Json;
use dlock_runtime::{Error, idempotent};

#[derive(serde::Serialize, serde::Deserialize)]
pub struct Charge {
    cents: u64,
}

#[idempotent(key = "charge:<a>:<b>")]
async fn a_response(a: u64, b: u64) -> Result<Json<Charge>, Error> {
    Ok(Json(Charge { cents: a + b }))
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = charge)]
async fn an_extractor(a: u64, b: u64, charge: Json<Charge>) -> Result<u64, Error> {
    Ok(a + b + charge.cents)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = (a, charge))]
async fn an_extractor_among_others(a: u64, b: u64, charge: Json<Charge>) -> Result<u64, Error> {
    Ok(a + b + charge.cents)
}

#[idempotent(key = "charge:<a>:<b>", fingerprint = charge.0)]
async fn the_value_of_an_extractor(a: u64, b: u64, charge: Json<Charge>) -> Result<u64, Error> {
    Ok(a + b + charge.cents)
}

fn main() {}
