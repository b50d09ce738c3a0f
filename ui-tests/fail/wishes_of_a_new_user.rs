//! 10: what a new user types for something that dlock has under another form, or does not have.

use axum::Json;
use axum::http::HeaderMap;
use dlock_runtime::{Error, distributed_lock};

struct NewOrder {
    user_id: u64,
}

#[distributed_lock(key = "a", fencing = true)]
async fn a_fencing_token() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", fencing)]
async fn a_fencing_token_without_a_value() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", read)]
async fn a_reader() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", exclusive = true)]
async fn a_writer() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", semaphore = 3)]
async fn a_semaphore() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", kind = fair)]
async fn a_fair_lock() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", kind = "read")]
async fn a_kind_in_quotes() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", blocking = true)]
async fn a_call_that_waits() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", url = "redis://localhost")]
async fn a_url() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", poll_interval = "1s")]
async fn an_option_of_the_manager() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "order", args = [id])]
async fn arguments_by_a_list(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<id>", hash = true)]
async fn a_modifier_as_parameter(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "a", lock_at_most_for = "10m")]
async fn of_shedlock() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", namespace = "shop:")]
async fn a_namespace_with_its_separator() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "a", lease)]
async fn a_parameter_without_a_value() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "order:<user_id>")]
async fn a_field_of_a_body(order: Json<NewOrder>) -> Result<u64, Error> {
    Ok(order.user_id)
}

#[distributed_lock(key = "order:<user_id>")]
async fn a_field_of_a_pattern(Json(order): Json<NewOrder>) -> Result<u64, Error> {
    Ok(order.user_id)
}

#[distributed_lock(key = "request:<headers>")]
async fn all_headers(headers: HeaderMap) -> Result<usize, Error> {
    Ok(headers.len())
}

fn main() {}
