//! [`LayerBody`], the body of a request or a response that passed a layer, and [`ResponseFuture`].

use std::error::Error as StdError;
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
pub type ResponseFuture<B, E> = Pin<Box<dyn Future<Output = Result<Response<LayerBody<B>>, E>> + Send>>;

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
