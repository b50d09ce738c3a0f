//! 17: two mistakes are two errors, and callers of the function get none.

use dlock_runtime::{Error, distributed_lock};

#[distributed_lock(key = "order:<userid>", lease = "30")]
async fn two(user_id: u64) -> Result<u64, Error> {
    Ok(user_id)
}

fn main() {
    drop(two(7));
}
