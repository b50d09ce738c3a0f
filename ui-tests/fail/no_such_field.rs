//! 3: the root exists, and the compiler reports the rest.

use dlock_runtime::{Error, distributed_lock};

struct Order {
    id: u64,
}

#[distributed_lock(key = "order:<order.nr>")]
async fn field(order: Order) -> Result<u64, Error> {
    Ok(order.id)
}

#[distributed_lock(key = "order:<MISSING>")]
async fn constant() -> Result<(), Error> {
    Ok(())
}

fn main() {}
