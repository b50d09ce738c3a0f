//! Any expression except a string literal is the whole key.

use dlock_runtime::{Error, LockKey, distributed_lock};

const NIGHTLY: &str = "nightly";

struct Path<T>(T);

struct Order {
    key: String,
}

fn order_key(order: &Order) -> String {
    order.key.clone()
}

#[distributed_lock(key = order_key(&order))]
async fn of_a_call(order: Order) -> Result<Order, Error> {
    Ok(order)
}

#[distributed_lock(key = format!("order:{id}"))]
async fn of_a_format(id: u64, Path(other): Path<String>) -> Result<String, Error> {
    let _ = id;
    Ok(other)
}

#[distributed_lock(key = NIGHTLY)]
async fn of_a_constant() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = order.key)]
async fn of_a_field(order: Order) -> Result<String, Error> {
    Ok(order.key)
}

#[distributed_lock(key = key)]
async fn of_an_argument(key: String) -> Result<String, Error> {
    Ok(key)
}

#[distributed_lock(key = key)]
async fn of_a_borrowed_argument(key: &str) -> Result<&str, Error> {
    Ok(key)
}

#[distributed_lock(key = user_id)]
async fn of_a_number(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = key)]
async fn of_a_finished_key(key: LockKey) -> Result<LockKey, Error> {
    Ok(key)
}

#[distributed_lock(key = id)]
async fn of_a_name_in_a_pattern(Path(id): Path<String>) -> Result<String, Error> {
    Ok(id)
}

fn main() {}
