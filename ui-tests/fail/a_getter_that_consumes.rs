//! 6: a getter that consumes its owner.

use dlock_runtime::{Error, distributed_lock};

struct Order {
    id: String,
}

impl Order {
    fn into_id(self) -> String {
        self.id
    }
}

#[distributed_lock(key = "order:<order.into_id()>")]
async fn consume(order: Order) -> Result<Order, Error> {
    Ok(order)
}

fn main() {}
