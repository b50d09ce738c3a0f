//! [`RequestBody`], the body of a request that passed the layer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use pin_project_lite::pin_project;

use crate::tower::response_body::BoxError;
use crate::tower::response_problem::ResponseProblem;

pin_project! {
    /// The body of a request that passed an [`IdempotencyLayer`](super::IdempotencyLayer): the
    /// client's, or one that the layer has read.
    #[derive(Debug)]
    pub struct RequestBody<B> {
        #[pin]
        source: RequestSource<B>,
    }
}

pin_project! {
    #[project = Source]
    #[derive(Debug)]
    enum RequestSource<B> {
        Client { #[pin] body: B, failure: RequestFailure },
        Read { #[pin] body: Full<Bytes> },
    }
}

/// Whether a request ended early: its client has gone, or has broken the protocol.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestFailure(Arc<AtomicBool>);

impl RequestFailure {
    fn record(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_recorded(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl<B> RequestBody<B> {
    /// Passes the client's body on, and records in `failure` whether it fails.
    pub(super) fn client(body: B, failure: &RequestFailure) -> Self {
        Self { source: RequestSource::Client { body, failure: failure.clone() } }
    }

    /// Passes on a body that was read.
    pub(super) fn read(bytes: Bytes) -> Self {
        Self { source: RequestSource::Read { body: Full::new(bytes) } }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.project().source.project() {
            Source::Client { body, failure } => body
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.inspect_err(|_| failure.record()).map_err(Into::into))),
            Source::Read { body } => {
                body.poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            RequestSource::Client { body, .. } => body.is_end_stream(),
            RequestSource::Read { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            RequestSource::Client { body, .. } => body.size_hint(),
            RequestSource::Read { body } => body.size_hint(),
        }
    }
}

/// Reads a body of at most `limit` bytes. A longer one is not read further.
pub(super) async fn read<B>(body: B, limit: usize) -> Result<Bytes, ResponseProblem>
where
    B: Body<Data = Bytes>,
{
    let too_large = || {
        let detail = "the body of a request with an Idempotency-Key is larger than this service accepts";
        ResponseProblem::of_request(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut body = std::pin::pin!(body);
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            let detail = "the body of the request ended early";
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
