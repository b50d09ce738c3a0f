//! Distributed locks for Rust, backed by Redis: one attribute on an `async fn`.
//!
//! ```
//! use dlock_runtime::distributed_lock;
//!
//! #[distributed_lock(key = "order:<user_id>", lease = "30s", retry = 3)]
//! async fn place_order(user_id: u64) -> Result<String, dlock_runtime::Error> {
//!     // At most one caller across all processes is in here for this user.
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
//! The attribute acquires the lock, renews its lease while the body runs, and releases it on every
//! exit. If the lock is lost, the body is dropped at its next await, and the call returns
//! [`Error::Lost`].
//!
//! dlock is not a consensus system. If two writers must never overlap, the resource must check the
//! [fencing token](LockGuard::fencing_token). [`docs::safety`] describes how, and every way to lose
//! a lock.
//!
//! # Where to start
//!
//! | to | see |
//! |---|---|
//! | annotate a function | [`distributed_lock`](macro@distributed_lock) |
//! | connect to the servers | [`init`], [`LockManager::builder`], [`Builder::connect_lazy`], [`docs::configuration`] |
//! | use TLS, Sentinel, a cluster, or a quorum | [`docs::deployments`] |
//! | run locks in production | [`docs::operating`] |
//! | lock without the attribute | [`LockManager::lock`], [`Lock::try_run`], [`Lock::acquire`] |
//! | turn an error into a response | [`Error`], [`Error::http_status`], [`Error::grpc_code`], [`Error::retry_after`] |
//! | write keys | [`docs::keys`], [`KeyPart`] |
//! | wait for a lock, or fail at once | [`docs::waiting`] |
//! | change a lease or a wait without a rebuild | [`docs::operating`], [`Builder::overrides`] |
//! | acquire two locks, or lock in blocking code | [`docs::recipes`] |
//! | know the cost of a lock | [`docs::performance`] |
//! | see the evidence for the guarantees, and the threat model | [`docs::proof`], [`docs::threats`] |
//! | share locks with services in other languages | [`docs::fleets`], [`Layout`] |
//! | migrate from another library | [`docs::coming_from`] |
//! | run a scheduled job once per tick, or elect a leader | [`docs::scheduled`], [`LockManager::leader`] |
//! | see who holds a lock, and whether the server replies | [`LockManager::inspect`], [`LockManager::ready`] |
//! | find server settings that can lose locks | [`doctor`](fn@doctor), `dlock doctor URL` |
//! | lock in handlers of axum, actix, or tonic | [`docs::services`] |
//! | make calls, or routes, safe to repeat | [`docs::idempotent`], [`docs::idempotent_http`] |
//! | test code that uses locks | [`docs::testing`], [`with_manager`] |
//!
//! The words of this documentation:
//!
//! | word | meaning |
//! |---|---|
//! | key | the name that is locked, such as `order:7` |
//! | lock | the right to run a body for a key, which at most one caller has at a time |
//! | hold | one possession of a lock, from its acquisition to its release or loss |
//! | holder, waiter | a caller or its process that has a lock, or that waits for it |
//! | lease | the time after which a lock expires at the server unless it is renewed |
//! | watchdog | the part of a manager that renews leases while bodies run |
//! | grant | the message by which the server hands a released lock off to a waiter |
//! | manager | the connections and the holds of one process: [`LockManager`] |
//! | call chain | a call, and the bodies under locks in which it is awaited, also by [`in_current_scope`] |
//! | fencing token | a number that rises from holder to holder, so that a resource can reject late writes |
//!
//! # Features
//!
//! None is on by default.
//!
//! - `tls`: `rediss://` URLs, by rustls, with `Builder::tls_ca_pem` and
//!   `Builder::tls_client_certificate_pem`.
//! - `axum`: [`Error`] is a response of axum 0.8, and its extractors can be parts of a key: `Path`,
//!   `Query`, `Json`, `Form`, `Extension`, `State`.
//! - `actix`: the same for actix-web 4: `Path`, `Query`, `Json`, `Form`, `Data`, `ReqData`.
//! - `tonic`: [`Error`] converts into a `Status` of tonic 0.14.
//! - `idempotent`: `#[idempotent]` and `LockManager::idempotent`, calls that are safe to repeat.
//! - `scheduled`: jobs of which each tick starts once in all processes: `#[scheduled]`,
//!   `LockManager::job`, and `scheduled::Jobs`.
//! - `tower`: [`tower::LockLayer`], for services of axum 0.8, hyper 1, and tonic 0.14; with
//!   `idempotent` also [`tower::IdempotencyLayer`].
//! - `testing`: `testing::TestLocks`, for `[dev-dependencies]`: contention, loss, outages, and
//!   crashed processes on command.

// Labels each item of the documentation with the feature that it needs. Only docs.rs sets `docsrs`.
#![cfg_attr(docsrs, feature(doc_cfg))]

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
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod hostile;
#[cfg(feature = "idempotent")]
pub mod idempotent;
#[cfg(any(feature = "actix", feature = "axum", feature = "tonic", feature = "tower"))]
mod integrations;
mod key;
mod layout;
mod leader;
mod lock;
mod lock_info;
mod manager;
mod options;
mod owner;
mod printable;
mod protocol;
mod retry;
mod run;
#[cfg(feature = "scheduled")]
pub mod scheduled;
mod scope;
#[cfg(any(test, dlock_shuttle))]
mod simulated;
mod sync;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod timer;
mod token;
#[cfg(feature = "tower")]
pub mod tower;

#[doc(hidden)]
#[path = "private/mod.rs"]
pub mod __private;

#[cfg(dlock_shuttle)]
pub use engine::interleavings::coverage;
#[cfg(any(dlock_loom, dlock_shuttle))]
pub use engine::interleavings::{Model, models};

/// The guides.
// Of two definitions of a link, the first one counts. So `rustdoc_links.md` leads to items, and the
// definitions at the end of a guide lead to files, for readers of the sources. A failed example is
// reported at its line in both texts together: its module is the guide.
pub mod docs {
    macro_rules! guides {
        ($($guide:ident)*) => {$(
            #[doc = include_str!("docs/rustdoc_links.md")]
            #[doc = include_str!(concat!("docs/", stringify!($guide), ".md"))]
            pub mod $guide {}
        )*};
    }

    guides! {
        safety proof threats configuration keys waiting recipes services idempotent_http deployments
        operating performance fleets coming_from
    }

    // Its examples need the feature.
    #[doc = include_str!("docs/rustdoc_links.md")]
    #[cfg_attr(feature = "idempotent", doc = include_str!("docs/idempotent.md"))]
    #[cfg_attr(
        not(feature = "idempotent"),
        doc = "How to make endpoints safe to repeat: documented with the feature `idempotent`."
    )]
    pub mod idempotent {}

    // Its examples need the feature.
    #[doc = include_str!("docs/rustdoc_links.md")]
    #[cfg_attr(feature = "scheduled", doc = include_str!("docs/scheduled.md"))]
    #[cfg_attr(
        not(feature = "scheduled"),
        doc = "Scheduled jobs and leaders: documented with the feature `scheduled`. Leaders do not need it: see `LockManager::leader`."
    )]
    pub mod scheduled {}

    // Its examples need the feature.
    #[doc = include_str!("docs/rustdoc_links.md")]
    #[cfg_attr(feature = "testing", doc = include_str!("docs/testing.md"))]
    #[cfg_attr(
        not(feature = "testing"),
        doc = "How to test code that acquires locks: documented with the feature `testing`."
    )]
    pub mod testing {}
}

pub use builder::Builder;
pub use credentials::Credentials;
#[cfg(feature = "idempotent")]
pub use dlock_macros::idempotent;
#[cfg(feature = "scheduled")]
pub use dlock_macros::scheduled;
pub use dlock_macros::{KeyPart, distributed_lock};
pub use doctor::doctor;
pub use error::{Error, LossCause, Result};
pub use global::{AlreadyInstalled, in_current_scope, init, install, manager, with_manager};
pub use guard::{FencingToken, LockGuard};
#[cfg(feature = "idempotent")]
pub use idempotent::Idempotent;
pub use key::{FieldWriter, IntoLockKey, InvalidKey, KeyBuilder, KeyPart, LockKey, PartWriter, Written};
pub use layout::{Layout, Publish};
pub use leader::{CurrentLeader, LeaderWatch, Leadership, Term};
pub use lock::Lock;
pub use lock_info::LockInfo;
pub use manager::LockManager;
pub use options::{MinHoldOn, OnLost, Options, ReleaseMode};
