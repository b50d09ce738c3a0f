//! Distributed locks over Redis: one line above an `async fn`.
//!
//! ```
//! use dlock_runtime::distributed_lock;
//!
//! #[distributed_lock(key = "order:<user_id>", lease = "30s", retry = 3)]
//! async fn place_order(user_id: u64) -> Result<String, dlock_runtime::Error> {
//!     // At most one caller in the whole fleet is in here for one user.
//!     Ok(format!("an order of user {user_id}"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), dlock_runtime::Error> {
//! dlock_runtime::init("memory://").await?; // or "redis://127.0.0.1:6379"
//! assert_eq!(place_order(7).await?, "an order of user 7");
//! # Ok(()) }
//! ```
//!
//! The attribute takes the lock, renews its lease while the body runs, and releases it on every way out. When the lock is lost the
//! body is dropped at its next await, and the call returns [`Error::Lost`].
//!
//! It is not a consensus system. Where two writers must be impossible, the resource checks the
//! [fencing token](LockGuard::fencing_token); [`docs::safety`] says how, and what each way to lose a lock looks like.
//!
//! # Where to start
//!
//! | to | see |
//! |---|---|
//! | annotate a function | [`distributed_lock`](macro@distributed_lock) |
//! | say where locks live | [`init`], [`LockManager::builder`], [`docs::operating`] |
//! | lock without the attribute | [`LockManager::lock`], [`Lock::run`], [`Lock::acquire`] |
//! | answer for an error | [`Error`], [`Error::http_status`], [`Error::grpc_code`], [`Error::retry_after`] |
//! | say what is locked | [`docs::keys`], [`KeyPart`] |
//! | wait, or not | [`docs::waiting`] |
//! | know what a lock costs | [`docs::performance`] |
//! | know what was done to locks to see that they hold, and who can do what harm | [`docs::proof`], [`docs::threats`] |
//! | share locks with services in other languages | [`docs::fleets`], [`Layout`] |
//! | find what another library's words are here | [`docs::coming_from`] |
//! | see who holds a lock, and whether the server answers | [`LockManager::inspect`], [`LockManager::ready`] |
//! | see what is set on the servers so that locks can be lost | [`doctor`](fn@doctor), `dlock doctor URL` |
//! | lock in handlers of axum, actix or tonic | [`docs::services`] |
//! | test code that takes locks | [`docs::testing`], [`with_manager`] |
//!
//! # Features
//!
//! None is on by default.
//!
//! - `tls`: `rediss://` URLs, by rustls, with `Builder::tls_ca` and `Builder::tls_client_certificate`.
//! - `axum`: [`Error`] is an answer of axum 0.8, and its extractors are parts of a key: `Path`, `Query`, `Json`, `Form`, `Extension`,
//!   `State`.
//! - `actix`: the same for actix-web 4: `Path`, `Query`, `Json`, `Form`, `Data`, `ReqData`.
//! - `tonic`: [`Error`] becomes a `Status` of tonic 0.14.
//! - `testing`: `testing::TestLocks`, for `[dev-dependencies]`: contention, loss and outages on command.
//!
//! # Layout
//!
//! ```text
//! lib, global      what is installed for the process
//! manager, lock, guard, builder, options, layout, retry, key, error      what users touch
//! credentials, inspection      who we are to a server, what an operator is shown of a lock
//! doctor           what is wrong with the servers, before locks are
//! config           options, their bounds, and URLs
//! run, body, held  a body under a lock, and what the current call chain holds
//! engine           binds tasks that wait to the rules and to a backend
//! protocol         the rules of the lock, as state machines without clock, socket or runtime
//! backend          where locks live: redis, memory
//! clock, timer, token, telemetry, sync, fork     the time that leases are measured with, timers, who holds, spans and events, mutexes, other processes
//! printable        which characters of a foreign text are shown as they are
//! testing          the test kit: a world in memory and the hand that reaches into it
//! integrations     what handlers of axum, actix and tonic need, each behind its feature
//! private          what the attribute's expansion calls
//! docs             the guides
//! ```

mod backend;
mod body;
mod bounds;
mod builder;
mod clock;
mod config;
mod credentials;
pub mod doctor;
mod engine;
pub mod error;
mod fork;
mod global;
mod guard;
mod held;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod hostile;
#[cfg(any(feature = "actix", feature = "axum", feature = "tonic"))]
mod integrations;
mod io;
mod key;
mod layout;
mod lock;
mod lock_info;
mod manager;
mod options;
mod printable;
mod protocol;
mod retry;
mod run;
#[cfg(any(test, dlock_shuttle))]
mod simulated;
mod sync;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod timer;
mod token;

#[doc(hidden)]
#[path = "private/mod.rs"]
pub mod __private;

#[cfg(dlock_shuttle)]
pub use engine::interleavings::tally;
#[cfg(any(dlock_loom, dlock_shuttle))]
pub use engine::interleavings::{Model, models};

/// The guides.
pub mod docs {
    #[doc = include_str!("docs/safety.md")]
    pub mod safety {}

    #[doc = include_str!("docs/proof.md")]
    pub mod proof {}

    #[doc = include_str!("docs/threats.md")]
    pub mod threats {}

    #[doc = include_str!("docs/keys.md")]
    pub mod keys {}

    #[doc = include_str!("docs/waiting.md")]
    pub mod waiting {}

    #[doc = include_str!("docs/services.md")]
    pub mod services {}

    // Its examples need the feature.
    #[cfg_attr(feature = "testing", doc = include_str!("docs/testing.md"))]
    #[cfg_attr(
        not(feature = "testing"),
        doc = "How to test code that takes locks: documented with the feature `testing`."
    )]
    pub mod testing {}

    #[doc = include_str!("docs/operating.md")]
    pub mod operating {}

    #[doc = include_str!("docs/performance.md")]
    pub mod performance {}

    #[doc = include_str!("docs/fleets.md")]
    pub mod fleets {}

    #[doc = include_str!("docs/coming_from.md")]
    pub mod coming_from {}
}

pub use builder::Builder;
pub use credentials::Credentials;
pub use dlock_macros::{KeyPart, distributed_lock};
pub use doctor::doctor;
pub use error::{Error, LossCause, Result};
pub use global::{AlreadyInstalled, init, install, manager, with_manager};
pub use guard::{FencingToken, LockGuard};
pub use held::in_current_scope;
pub use io::Io;
pub use key::{FieldWriter, IntoLockKey, KeyBuilder, KeyPart, LockKey, PartWriter, Written};
pub use layout::{Layout, Publish};
pub use lock::Lock;
pub use lock_info::LockInfo;
pub use manager::LockManager;
pub use options::{OnLost, Options, ReleaseMode};
pub use retry::RetryPolicy;
