//! 1: a manager connects, so no constructor is named `new`.

use dlock_runtime::LockManager;

fn main() {
    let _locks = LockManager::new("redis://127.0.0.1:6379");
}
