//! [`RequestFingerprint`], what two requests with the same key must have in common.

use http::request::Parts;
use sha2::{Digest, Sha256};

use super::original_uri;

/// The parts that two requests with the same key, method, and route must have in common. Otherwise,
/// the second one gets 422.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFingerprint {
    pub(super) reads_body: bool,
}

impl RequestFingerprint {
    /// Path, query, and body. The default.
    ///
    /// The body is read before the handler runs, up to
    /// [`max_body`](crate::tower::IdempotencyLayer::max_body).
    pub const BODY_AND_ROUTE: Self = Self { reads_body: true };

    /// Path and query.
    ///
    /// The body is not read, and may be of any size: for uploads.
    pub const ROUTE: Self = Self { reads_body: false };

    /// Returns the bytes that equal requests have in common.
    pub(super) fn payload(parts: &Parts, body: Option<&[u8]>) -> Vec<u8> {
        let uri = original_uri(parts);
        let path = uri.path().as_bytes();
        let query = uri.query().unwrap_or_default().as_bytes();
        let mut payload = Vec::with_capacity(path.len() + query.len() + 64);
        for part in [parts.method.as_str().as_bytes(), path, query] {
            payload.extend((part.len() as u64).to_be_bytes());
            payload.extend(part);
        }
        if let Some(body) = body {
            payload.extend(Sha256::digest(body));
        }
        payload
    }
}
