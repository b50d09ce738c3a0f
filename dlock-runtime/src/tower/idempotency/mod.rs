//! [`IdempotencyLayer`], which makes the routes of a service safe to repeat.
//!
//! ```text
//! layer             IdempotencyLayer: the settings
//! service           IdempotencyService: one request
//! request_key       the header `Idempotency-Key`, and the key in the store
//! request_scope     who may see a response
//! request_fingerprint      what equal requests have in common
//! request_body      a body that was read, or is passed on
//! stored_response   which responses are stored, and in which form
//! response_reader   reads a response up to a limit
//! content_length    the length of a body that headers announce
//! whole_body        a body that does not end early without an error
//! ```

mod content_length;
mod layer;
mod request_body;
mod request_fingerprint;
mod request_key;
mod request_scope;
mod response_reader;
mod service;
mod stored_response;
mod whole_body;

use http::request::Parts;
use http::{HeaderName, Uri};

pub use layer::IdempotencyLayer;
pub use request_body::{ClientBody, RequestBody};
pub use request_fingerprint::RequestFingerprint;
pub use request_scope::RequestScope;
pub use service::IdempotencyService;

#[cfg(test)]
pub(crate) use layer::{HEADERS, LONGEST_RESPONSE};
#[cfg(any(test, fuzzing))]
pub(crate) use stored_response::check_stored_response;

/// The header of a request that contains its key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The header of a response that was stored by an earlier request. Its value is `true`.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Returns the URI that the client sent. Inside `Router::nest`, that of the request has lost its
/// prefix, which can tell one resource from another.
fn original_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}
