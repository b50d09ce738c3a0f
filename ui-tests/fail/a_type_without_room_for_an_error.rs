//! 5: a return type that cannot report that the lock was not acquired.

use dlock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn number() -> u64 {
    7
}

#[distributed_lock(key = "a")]
async fn nothing() {}

#[distributed_lock(key = "a")]
async fn option() -> Option<u8> {
    None
}

fn main() {}
