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
pub(crate) fn public_text(error: &Error) -> &'static str {
    telemetry::answered(error);
    error.client_message()
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
