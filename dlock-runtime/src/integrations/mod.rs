//! Web frameworks, each behind a feature: responses for errors, and extractors as parts of a key.
//!
//! | feature | an error becomes | extractors that are parts of a key if their inner type is |
//! |---|---|---|
//! | `axum` | `IntoResponse`; `Response`, `StatusCode`, `(StatusCode, String)` by `From`, and as the whole return type | `Path`, `Query`, `Json`, `Form`, `Extension`, `State` |
//! | `actix` | `ResponseError`; `HttpResponse` as the whole return type | `Path`, `Query`, `Json`, `Form`, `Data`, `ReqData` |
//! | `tonic` | `Status` by `From` | |
//!
//! It contains only trait impls. See `error` for statuses, codes, and retry times.

#[cfg(feature = "actix")]
mod actix;
#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "tonic")]
mod tonic;

use crate::error::Error;
use crate::telemetry;

/// Returns the text for the client, and logs the error.
///
/// One text per status: clients must not see keys, servers, and causes.
pub(crate) fn public_text(error: &Error) -> &'static str {
    telemetry::answered(error);
    match error.http_status() {
        400 => "a value in the request is empty or cannot be used",
        409 => "another request is working on this: try again in a moment",
        422 => "the idempotency key was used for another request: use a new key",
        503 => "the service cannot do this right now: try again in a moment",
        _ => "the request could not be completed",
    }
}

/// Returns the value of `Retry-After` (RFC 9110, section 10.2.3): whole seconds, rounded up, at
/// least one.
#[cfg(any(feature = "actix", feature = "axum", feature = "tower"))]
pub(crate) fn retry_after_seconds(error: &Error) -> Option<u64> {
    let after = error.retry_after()?;
    Some(after.as_secs() + u64::from(after.subsec_nanos() > 0))
}

/// Implements `KeyPart` for extractors: each writes its inner value.
#[cfg(any(feature = "actix", feature = "axum"))]
macro_rules! extractors {
    ($($type:ident<T $(+ $bound:tt)*>)*) => {$(
        impl<T: $crate::key::KeyPart $(+ $bound)*> $crate::key::KeyPart for $type<T> {
            fn write_part(&self, out: $crate::key::PartWriter<'_>) -> $crate::key::Written {
                T::write_part(self, out)
            }
        }
    )*};
}
#[cfg(any(feature = "actix", feature = "axum"))]
use extractors;

/// Makes responses return types that carry lock errors, without a `Result`. Each entry has its
/// status.
#[cfg(any(feature = "actix", feature = "axum"))]
macro_rules! responses {
    ($($type:ty: $status:expr),* $(,)?) => {$(
        impl $crate::__private::ReportsLockError for $type {
            fn report(error: $crate::Error) -> Self {
                error.into()
            }

            fn is_error(&self) -> bool {
                let status = $status(self);
                status.is_client_error() || status.is_server_error()
            }
        }

        impl $crate::__private::ReportsLoss for $type {
            fn report_loss(error: $crate::Error) -> Self {
                error.into()
            }
        }
    )*};
}
#[cfg(any(feature = "actix", feature = "axum"))]
use responses;

#[cfg(all(test, any(feature = "actix", feature = "axum")))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::LockKey;

    #[test]
    fn a_part_of_a_second_is_a_whole_one_to_wait() {
        let key = LockKey::new("order:7").expect("a key");
        let live = Some(Duration::from_millis(300));

        let contended = Error::Contended { key, attempts: 1, waited: Duration::ZERO, retry_after: live };

        assert_eq!(retry_after_seconds(&contended), Some(1));
    }
}
