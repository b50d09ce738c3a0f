//! Problem documents (RFC 9457), and their form for gRPC.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::error::Error;
use crate::integrations::public_text;

/// A problem that a layer reports instead of the handler's response.
#[derive(Clone, Debug)]
pub(super) struct ResponseProblem {
    status: StatusCode,
    /// A short name that clients can compare.
    code: &'static str,
    detail: &'static str,
    error: Option<Error>,
}

impl ResponseProblem {
    /// A problem of the request itself.
    #[cfg(feature = "idempotent")]
    pub(super) fn of_request(status: StatusCode, code: &'static str, detail: &'static str) -> Self {
        Self { status, code, detail, error: None }
    }

    /// The problem that an error is for the client. It names no key and no server.
    pub(super) fn of_error(error: Error) -> Self {
        let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, code: code(&error), detail: public_text(&error), error: Some(error) }
    }

    /// Returns the response. For gRPC, it consists of trailers only.
    pub(super) fn into_response(self, is_grpc: bool) -> Response<Bytes> {
        let mut response = if is_grpc { self.grpc() } else { self.document() };
        if let Some(error) = self.error {
            response.extensions_mut().insert(error);
        }
        response
    }

    fn document(&self) -> Response<Bytes> {
        let Self { status, code, detail, error } = self;
        let title = status.canonical_reason().unwrap_or("Error");
        // No text here needs escaping: each is a literal of this crate.
        let body = format!(
            "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{},\"detail\":\"{detail}\",\"code\":\"{code}\"}}",
            status.as_u16()
        );
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = *status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        for (name, value) in error.iter().flat_map(Error::headers) {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
        response
    }

    fn grpc(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let code = self.error.as_ref().map_or(INVALID_ARGUMENT, Error::grpc_code);
        headers.insert("grpc-status", HeaderValue::from(code));
        headers.insert("grpc-message", HeaderValue::from_static(self.detail));
        if let Some(after) = self.error.as_ref().and_then(Error::retry_after) {
            let millis = i32::try_from(after.as_millis()).unwrap_or(i32::MAX);
            headers.insert("grpc-retry-pushback-ms", HeaderValue::from(millis));
        }
        response
    }
}

/// The gRPC code of an invalid request.
const INVALID_ARGUMENT: i32 = 3;

/// Returns `true` for a request of gRPC, including gRPC-Web.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Returns `true` for a response with a status of 400 or above, or with an error of gRPC.
pub(super) fn is_error<B>(response: &Response<B>) -> bool {
    let status = response.status();
    status.is_client_error() || status.is_server_error() || has_grpc_error(response.headers())
}

/// Returns `true` if headers or trailers contain an error of gRPC.
pub(super) fn has_grpc_error(fields: &HeaderMap) -> bool {
    fields.get("grpc-status").is_some_and(|code| code != "0")
}

/// Returns the name of an error for clients.
fn code(error: &Error) -> &'static str {
    match error {
        Error::Contended { .. } => "contended",
        Error::InvalidKey { .. } => "invalid_key",
        Error::Unavailable { .. } | Error::Shutdown { .. } => "unavailable",
        Error::Lost { .. } => "lost",
        Error::InProgress { .. } => "in_progress",
        Error::KeyReused { .. } => "key_reused",
        Error::OutcomeUnknown { .. } => "outcome_unknown",
        Error::ResultNotStored { .. } => "result_not_stored",
        Error::Undecodable { .. } => "undecodable",
        Error::UnknownJob { .. } => "unknown_job",
        _ => "internal",
    }
}
