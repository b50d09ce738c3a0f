//! actix-web: errors as responses, and extractors as parts of a key.

use actix_web::http::StatusCode;
use actix_web::http::header::{ContentType, RETRY_AFTER};
use actix_web::web::{Data, Form, Json, Path, Query, ReqData};
use actix_web::{HttpResponse, ResponseError};

use super::{extractors, public_text, responses, retry_after_seconds};
use crate::error::Error;

/// Responds with [`Error::http_status`], a short text for the client, and `Retry-After` if
/// [`Error::retry_after`] is `Some`.
///
/// The text contains no key and no server. Middleware can read the error itself from
/// `HttpResponse::error`.
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

/// The response for the error, for a handler that returns `HttpResponse`.
impl From<Error> for HttpResponse {
    fn from(error: Error) -> Self {
        Self::from_error(error)
    }
}

responses! { HttpResponse: HttpResponse::status }

extractors! { Data<T> Form<T> Json<T> Path<T> Query<T> ReqData<T + Clone + 'static> }
