//! [`ResponseBody`], the body of a response that passed a layer.

use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use pin_project_lite::pin_project;

/// Any error of a body.
pub type BoxError = Box<dyn StdError + Send + Sync>;

pin_project! {
    /// The body of a response that passed a layer of dlock: the handler's, or one that the layer
    /// made.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        source: BodySource<B>,
    }
}

pin_project! {
    #[project = Source]
    #[derive(Debug)]
    enum BodySource<B> {
        /// The handler's body, as it is.
        Handler { #[pin] body: B },
        /// The handler's body inside another one.
        Wrapped { #[pin] body: UnsyncBoxBody<Bytes, BoxError> },
        /// A body that the layer made.
        Layer { #[pin] body: Full<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    /// Passes the handler's body on.
    pub(super) fn handler(body: B) -> Self {
        Self { source: BodySource::Handler { body } }
    }

    /// Passes on a body that contains the handler's.
    pub(super) fn wrapped(body: impl Body<Data = Bytes, Error = BoxError> + Send + 'static) -> Self {
        Self { source: BodySource::Wrapped { body: body.boxed_unsync() } }
    }

    /// Returns a body of these bytes.
    pub(super) fn layer(bytes: Bytes) -> Self {
        Self { source: BodySource::Layer { body: Full::new(bytes) } }
    }
}

impl<B> Body for ResponseBody<B>
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
            Source::Handler { body } => {
                body.poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            Source::Wrapped { body } => body.poll_frame(cx),
            Source::Layer { body } => {
                body.poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Handler { body } => body.is_end_stream(),
            BodySource::Wrapped { body } => body.is_end_stream(),
            BodySource::Layer { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Handler { body } => body.size_hint(),
            BodySource::Wrapped { body } => body.size_hint(),
            BodySource::Layer { body } => body.size_hint(),
        }
    }
}
