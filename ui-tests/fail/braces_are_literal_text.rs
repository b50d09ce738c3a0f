//! 1: `{user_id}`, typed by habit.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "order:{user_id}")]
async fn named(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:{order.id}:<name>")]
async fn a_field(order: (u64,), name: String) -> Result<(), Error> {
    drop((order, name));
    Ok(())
}

#[distributed_lock(key = "order:{}")]
async fn positional(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:{0}")]
async fn a_number(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:$user_id")]
async fn a_dollar(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "order:#{user_id}")]
async fn an_expression_of_spring(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
