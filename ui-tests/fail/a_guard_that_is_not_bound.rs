//! 1: the lock is released at once, which is a warning, made an error here to be seen.

#![deny(unused_must_use)]

use dlock_runtime::{Error, LockManager};

async fn unbound(locks: &LockManager) -> Result<(), Error> {
    locks.lock("a").acquire().await?;
    Ok(())
}

fn main() {}
