//! axum: errors as answers of a handler, extractors as parts of a key.
//!
//! Not here: what the answers say (the module above).

use axum::Extension;
use axum::extract::{Form, Json, Path, Query, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::{extractors, public_text, responses, retry_after_seconds};
use crate::error::Error;
use crate::telemetry;

/// Answers with [`Error::http_status`], a short text for the client, and `Retry-After` where [`Error::retry_after`] has a time.
///
/// No key and no server is in the text. The error itself is in the extensions of the response, for a layer that wants it.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (status(&self), public_text(&self)).into_response();
        if let Some(seconds) = retry_after_seconds(&self) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// The answer of the error, for a handler that returns `Result<_, Response>`.
impl From<Error> for Response {
    fn from(error: Error) -> Self {
        error.into_response()
    }
}

/// The status alone, for a handler that returns `Result<_, StatusCode>`.
impl From<Error> for StatusCode {
    fn from(error: Error) -> Self {
        telemetry::answered(&error);
        status(&error)
    }
}

/// The status and the text for the client, for a handler that returns `Result<_, (StatusCode, String)>`.
impl<T: From<&'static str>> From<Error> for (StatusCode, T) {
    fn from(error: Error) -> Self {
        (status(&error), T::from(public_text(&error)))
    }
}

responses! {
    Response: Response::status,
    StatusCode: StatusCode::clone,
    (StatusCode, String): |response: &(StatusCode, String)| response.0,
    (StatusCode, &'static str): |response: &(StatusCode, &'static str)| response.0,
}

extractors! { Extension<T> Form<T> Json<T> Path<T> Query<T> State<T> }

fn status(error: &Error) -> StatusCode {
    StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
