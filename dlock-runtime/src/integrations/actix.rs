//! actix-web: errors as answers of a handler, extractors as parts of a key.
//!
//! Not here: what the answers say (the module above).

use actix_web::http::StatusCode;
use actix_web::http::header::{ContentType, RETRY_AFTER};
use actix_web::web::{Data, Form, Json, Path, Query, ReqData};
use actix_web::{HttpResponse, ResponseError};

use super::{extractors, public_text, responses, retry_after_seconds};
use crate::error::Error;

/// Answers with [`Error::http_status`], a short text for the client, and `Retry-After` where [`Error::retry_after`] has a time.
///
/// No key and no server is in the text. `HttpResponse::error` has the error itself, for a middleware that wants it.
impl ResponseError for Error {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        if let Some(seconds) = retry_after_seconds(self) {
            response.insert_header((RETRY_AFTER, seconds));
        }
        response.content_type(ContentType::plaintext()).body(public_text(self))
    }
}

/// The answer of the error, for a handler that returns `HttpResponse`.
impl From<Error> for HttpResponse {
    fn from(error: Error) -> Self {
        Self::from_error(error)
    }
}

responses! { HttpResponse: HttpResponse::status }

extractors! { Data<T> Form<T> Json<T> Path<T> Query<T> ReqData<T + Clone + 'static> }
