//! 1, 3: a guard that hides an argument, misplaced templates, and arguments that look like
//! constants.

use dlock_runtime::{Error, distributed_lock};

struct Order {
    id: u64,
}

#[distributed_lock(key = "order:<id>", guard = lock)]
async fn a_guard_that_hides(id: u64, lock: String) -> Result<(), Error> {
    drop((id, lock));
    Ok(())
}

#[distributed_lock(key = format!("order:<id>"))]
async fn a_template_in_a_format(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = concat!("order:", "<order.id>").to_owned())]
async fn a_template_in_pieces(order: Order) -> Result<u64, Error> {
    Ok(order.id)
}

#[distributed_lock(key = "order:<Id>")]
async fn in_capitals(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<order::id>")]
async fn a_path(order: Order) -> Result<u64, Error> {
    Ok(order.id)
}

#[distributed_lock(key = "order:<id|hash|opt>")]
async fn two_modifiers(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:< id | hash >")]
async fn a_modifier_with_white_space(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(key = "order:<id>")]
async fn without_a_name(_: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {}
