//! Distributed locks over Redis: one line above an `async fn`.
//!
//! # Layout
//!
//! ```text
//! lib, global      what is installed for the process
//! manager, lock, guard, run, held, options, retry, key, error, config      what users touch
//! engine           binds tasks that wait to the rules and to a backend
//! protocol         the rules of the lock, as state machines without clock, socket or runtime
//! backend          where locks live: redis, memory
//! private          what the attribute's expansion calls
//! ```

mod backend;
mod clock;
mod config;
mod engine;
pub mod error;
mod global;
mod guard;
mod held;
mod key;
mod lock;
mod manager;
mod options;
mod protocol;
mod retry;
mod run;
mod telemetry;
mod token;

#[doc(hidden)]
#[path = "private/mod.rs"]
pub mod __private;

pub use config::Builder;
pub use dlock_macros::distributed_lock;
pub use error::{Error, LossCause, Result};
pub use global::{AlreadyInstalled, init, install, manager, with_manager};
pub use guard::{FencingToken, LockGuard};
pub use held::in_current_scope;
pub use key::{IntoLockKey, KeyBuilder, KeyPart, LockKey, PartWriter, Written};
pub use lock::Lock;
pub use manager::LockManager;
pub use options::{OnLost, Options};
pub use retry::RetryPolicy;
