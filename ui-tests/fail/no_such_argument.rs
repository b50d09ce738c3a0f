//! 3: placeholders that name nothing, and invalid ones.

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

fn main() {}
