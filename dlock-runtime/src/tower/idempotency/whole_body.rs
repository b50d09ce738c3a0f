//! [`WholeBody`], a body that does not end early without an error.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::tower::layer_body::BoxError;

pin_project! {
    /// A body that fails if it ends before the length that it has announced.
    ///
    /// hyper ends such a body without an error, for example after an `RST_STREAM` with `NO_ERROR`.
    /// Its reader would take the first part for the whole.
    #[derive(Debug)]
    pub(super) struct WholeBody<B> {
        #[pin]
        body: B,
        // The announced bytes that have not come yet.
        missing: u64,
    }
}

impl<B: Body> WholeBody<B> {
    /// Creates the body from one that has not been read yet.
    pub(super) fn new(body: B) -> Self {
        Self { missing: body.size_hint().lower(), body }
    }
}

impl<B> Body for WholeBody<B>
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
        let polled = match ready!(this.body.poll_frame(cx)) {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Buf::remaining) as u64;
                *this.missing = this.missing.saturating_sub(length);
                return Poll::Ready(Some(Ok(frame)));
            }
            Some(Err(error)) => Some(Err(error.into())),
            None if *this.missing > 0 => Some(Err(ENDED_EARLY.into())),
            None => None,
        };
        *this.missing = 0; // one error is enough
        Poll::Ready(polled)
    }

    /// A reader that took this end for the real one would not see the error.
    fn is_end_stream(&self) -> bool {
        self.missing == 0 && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

const ENDED_EARLY: &str = "the body ended before the length that it has announced";
