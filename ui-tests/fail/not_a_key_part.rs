//! 11: a struct or a float in the key.

use dlock_runtime::{Error, distributed_lock};

struct Order {
    total: f64,
}

#[distributed_lock(key = "order:<order>")]
async fn a_struct(order: Order) -> Result<Order, Error> {
    Ok(order)
}

#[distributed_lock(key = "order:<order.total>")]
async fn a_float(order: &Order) -> Result<f64, Error> {
    Ok(order.total)
}

fn main() {}
