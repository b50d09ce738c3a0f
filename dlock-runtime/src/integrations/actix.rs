//! actix-web: errors as responses, and extractors as parts of a key.

use actix_web::http::StatusCode;
use actix_web::http::header::ContentType;
use actix_web::web::{Data, Form, Json, Path, Query, ReqData};
use actix_web::{HttpResponse, ResponseError};

use super::{extractors, public_text, responses};
use crate::error::Error;

/// Responds with [`Error::http_status`], [`Error::client_message`], and [`Error::headers`].
///
/// The text contains no key and no server. Middleware can read the error itself from
/// `HttpResponse::error`.
impl ResponseError for Error {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        for header in self.headers() {
            response.insert_header(header);
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
