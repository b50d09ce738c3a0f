//! 3: placeholders that name nothing, and invalid ones.

use axum::Json;
use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "order:<userid>")]
async fn misspelt(user_id: u64, cart: Vec<u8>) -> Result<(), Error> {
    drop((user_id, cart));
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn no_arguments() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "order:<self.id>")]
async fn no_self(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<a + b>")]
async fn an_expression(a: u64, b: u64) -> Result<u64, Error> {
    Ok(a + b)
}

#[distributed_lock(key = "order:<a|md5>")]
async fn no_modifier(a: u64) -> Result<u64, Error> {
    Ok(a)
}

pub struct Search {
    pub user_id: u64,
    pub text: String,
}

#[distributed_lock(key = "search:<user_id>")]
async fn a_field_that_no_pattern_binds(Search { text, .. }: Search) -> Result<String, Error> {
    Ok(text)
}

#[distributed_lock(key = "search:<search.user_id>")]
async fn a_field_that_a_pattern_binds(Search { user_id, text }: Search) -> Result<String, Error> {
    drop(user_id);
    Ok(text)
}

#[distributed_lock(key = "search:<user_id>")]
async fn a_field_behind_an_extractor(Json(search): Json<Search>) -> Result<String, Error> {
    Ok(search.text)
}

fn main() {}
