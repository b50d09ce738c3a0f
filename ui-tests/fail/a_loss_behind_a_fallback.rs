//! 5, for `fallback`: when the lock is lost the arguments are gone.

use dlock_runtime::distributed_lock;

#[distributed_lock(key = "a:<id>", on_contended = fallback(other))]
async fn number(id: u64) -> u64 {
    id
}

async fn other(id: u64) -> u64 {
    id
}

fn main() {}
