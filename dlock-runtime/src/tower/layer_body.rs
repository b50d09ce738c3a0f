//! [`LayerBody`], the body of a request or a response that passed a layer, and [`ResponseFuture`].

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full};
use pin_project_lite::pin_project;

/// The future of [`LockService`](super::LockService) and of the service of an `IdempotencyLayer`,
/// which say what dropping it does.
#[must_use = "a request is handled only while this is polled"]
pub struct ResponseFuture<B, E>(Pin<Box<dyn Future<Output = Handled<B, E>> + Send>>);

/// The response of a service, or its error.
pub(super) type Handled<B, E> = Result<Response<LayerBody<B>>, E>;

impl<B, E> ResponseFuture<B, E> {
    pub(super) fn new(response: impl Future<Output = Handled<B, E>> + Send + 'static) -> Self {
        Self(Box::pin(response))
    }
}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Handled<B, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// Any error of a body.
pub type BoxError = Box<dyn StdError + Send + Sync>;

pin_project! {
    /// The body of a request or a response that passed a layer of dlock: the one that the layer
    /// received, or one that the layer made.
    #[derive(Debug)]
    pub struct LayerBody<B> {
        #[pin]
        source: Either<B, Either<UnsyncBoxBody<Bytes, BoxError>, Full<Bytes>>>,
    }
}

impl<B> LayerBody<B> {
    /// Passes a body on as it is.
    pub(super) fn received(body: B) -> Self {
        Self { source: Either::Left(body) }
    }

    /// Passes on a body that contains the one that the layer received.
    pub(super) fn wrapped(body: impl Body<Data = Bytes, Error = BoxError> + Send + 'static) -> Self {
        Self { source: Either::Right(Either::Left(body.boxed_unsync())) }
    }

    /// Returns a body of these bytes.
    pub(super) fn of_bytes(bytes: Bytes) -> Self {
        Self { source: Either::Right(Either::Right(Full::new(bytes))) }
    }
}

impl<B> Body for LayerBody<B>
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
        self.project().source.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}
