//! [`RequestBody`], the body of a request that passed the layer.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError};
use pin_project_lite::pin_project;

use super::whole_body::WholeBody;
use crate::tower::layer_body::{BoxError, LayerBody};
use crate::tower::response_problem::ResponseProblem;

/// The body of a request that passed an [`IdempotencyLayer`](super::IdempotencyLayer): the
/// client's, or one that the layer has read.
pub type RequestBody<B> = LayerBody<ClientBody<B>>;

pin_project! {
    /// The body of a client, of which the layer knows whether it fails. It also fails if it does
    /// not have the length that was announced.
    #[derive(Debug)]
    pub struct ClientBody<B> {
        #[pin]
        body: WholeBody<B>,
        failure: RequestFailure,
    }
}

/// Whether a request ended early: its client has gone, or has broken the protocol.
pub(super) type RequestFailure = Arc<AtomicBool>;

impl<B: Body> ClientBody<B> {
    /// Records in `failure` whether `body` fails, of a request with this `Content-Length`.
    pub(super) fn new(body: B, content_length: Option<u64>, failure: &RequestFailure) -> Self {
        Self { body: WholeBody::new(body, content_length), failure: Arc::clone(failure) }
    }
}

impl<B> Body for ClientBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let polled = this.body.poll_frame(cx);
        if let Poll::Ready(Some(Err(_))) = polled {
            this.failure.store(true, Ordering::Release);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads a body of at most `limit` bytes, of a request with this `Content-Length`. A longer one is
/// not read further.
pub(super) async fn read<B>(
    body: B,
    content_length: Option<u64>,
    limit: usize,
) -> Result<Bytes, ResponseProblem>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let too_large = || {
        let detail = "the body of a request with an Idempotency-Key is larger than this service accepts";
        ResponseProblem::of_request(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut body = std::pin::pin!(WholeBody::new(body, content_length));
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if is_over_limit(&*error) {
                return too_large();
            }
            let detail = "the body of the request ended early, or is longer than its Content-Length";
            ResponseProblem::of_request(StatusCode::BAD_REQUEST, "incomplete_body", detail)
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > limit - bytes.len() {
            return Err(too_large());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// Returns `true` for the error of a body that another layer limits, such as a
/// `RequestBodyLimitLayer`.
fn is_over_limit(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(<dyn StdError>::is::<LengthLimitError>)
}

#[cfg(test)]
mod tests {
    use http_body_util::{Empty, Full};

    use super::*;

    #[test]
    fn the_body_of_a_client_keeps_its_length_and_end() {
        let failure = RequestFailure::default();

        let five = ClientBody::new(Full::new(Bytes::from_static(b"hello")), None, &failure);
        assert_eq!(five.size_hint().exact(), Some(5));
        assert!(!five.is_end_stream());

        let empty = ClientBody::new(Empty::<Bytes>::new(), None, &failure);
        assert_eq!(empty.size_hint().exact(), Some(0));
        assert!(empty.is_end_stream());
        assert!(!failure.load(Ordering::Acquire));
    }
}
