//! Distributed locks over Redis: one line above an `async fn`.

#[doc(hidden)]
#[path = "private/mod.rs"]
pub mod __private;
pub mod error;
mod guard;
mod key;
mod manager;
mod options;
mod retry;

pub use dlock_macros::distributed_lock;
pub use error::{Error, LossCause, Result};
pub use guard::LockGuard;
pub use key::{IntoLockKey, KeyBuilder, KeyPart, LockKey, PartWriter, Written};
pub use manager::LockManager;
pub use options::{OnLost, Options};
pub use retry::RetryPolicy;
