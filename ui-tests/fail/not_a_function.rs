//! 14: items that are not a function with a body.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "a")]
struct Order;

#[distributed_lock(key = "a")]
impl Order {
    async fn place(&self) -> Result<(), Error> {
        Ok(())
    }
}

trait Store {
    #[distributed_lock(key = "a")]
    async fn put(&self) -> Result<(), Error>;
}

fn main() {
    // The refused item is kept, so that no other error is reported.
    drop(Order.place());
}
