//! The first example of the README, verbatim.

use dlock_runtime::distributed_lock;

struct Cart;
struct Receipt;

#[derive(Debug)]
enum OrderError {
    Lock(dlock_runtime::Error),
    Empty,
}

impl From<dlock_runtime::Error> for OrderError {
    fn from(error: dlock_runtime::Error) -> Self {
        Self::Lock(error)
    }
}

#[distributed_lock(key = "order:<user_id>", lease = "30s", retry = 3)]
async fn place_order(user_id: u64, cart: Cart) -> Result<Receipt, OrderError> {
    let Cart = cart;
    if user_id == 0 {
        return Err(OrderError::Empty);
    }
    Ok(Receipt)
}

fn main() {
    let _ = place_order(7, Cart);
}
