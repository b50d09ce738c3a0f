//! axum: errors as responses, and extractors as parts of a key.

use axum::Extension;
use axum::extract::{Form, Json, Path, Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::{extractors, public_text, responses};
use crate::error::Error;
use crate::telemetry;

/// Responds with [`Error::http_status`], [`Error::client_message`], and [`Error::headers`].
///
/// The text contains no key and no server. A layer can read the error itself from the extensions of
/// the response.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (status(&self), public_text(&self)).into_response();
        for (name, value) in self.headers() {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// The response for the error, for a handler that returns `Result<_, Response>`.
impl From<Error> for Response {
    fn from(error: Error) -> Self {
        error.into_response()
    }
}

/// Only the status, for a handler that returns `Result<_, StatusCode>`.
impl From<Error> for StatusCode {
    fn from(error: Error) -> Self {
        telemetry::answered(&error);
        status(&error)
    }
}

/// The status and the text for the client, for a handler that returns
/// `Result<_, (StatusCode, String)>`.
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
