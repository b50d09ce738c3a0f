//! 8: keys without fixed text.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "")]
async fn empty() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "<user_id>")]
async fn only_a_value(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

#[distributed_lock(key = "{<user_id>}")]
async fn only_a_tag(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {}
