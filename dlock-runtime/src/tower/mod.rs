//! Layers for services of `http` requests: axum, hyper, and tonic.
//!
//! ```text
//! lock_layer        LockLayer: a lock around the handler
//! idempotency       IdempotencyLayer: routes that are safe to repeat, with the feature `idempotent`
//! held_body         a response body that is sent under a lock
//! layer_body        the body and the future of every layer
//! ready_service     takes the service that is ready
//! response_problem  problem documents, and their form for gRPC
//! ```
//!
//! The layers need only the traits of tower, and work with every server that uses them.

mod held_body;
#[cfg(feature = "idempotent")]
mod idempotency;
mod layer_body;
mod lock_layer;
mod ready_service;
mod response_problem;

#[cfg(all(feature = "idempotent", any(test, fuzzing)))]
pub(crate) use idempotency::check_stored_response;
#[cfg(feature = "idempotent")]
pub use idempotency::{
    ClientBody, IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, IdempotencyLayer, IdempotencyService, RequestBody,
    RequestFingerprint, RequestScope,
};
#[cfg(all(feature = "idempotent", test))]
pub(crate) use idempotency::{HEADERS, LONGEST_RESPONSE};
pub use layer_body::{BoxError, LayerBody, ResponseFuture};
pub use lock_layer::{LockLayer, LockService};

use crate::error::Error;

/// Refuses an option of a layer before the service starts.
///
/// # Panics
///
/// Panics with the text of the error, at the line of the caller.
#[track_caller]
fn accept<T>(option: Result<T, Error>) {
    if let Err(error) = option {
        panic!("{error}");
    }
}
