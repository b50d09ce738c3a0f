//! [`WholeBody`], a body that does not end early without an error.

use std::ops::RangeInclusive;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::tower::layer_body::BoxError;

pin_project! {
    /// A body that fails if it does not have the length that was announced.
    ///
    /// hyper ends a body that is too short without an error, for example after an `RST_STREAM` with
    /// `NO_ERROR`. Its reader would take the first part for the whole, and send it with the
    /// `Content-Length` of the whole.
    #[derive(Debug)]
    pub(super) struct WholeBody<B> {
        #[pin]
        body: B,
        received: u64,
        announced: RangeInclusive<u64>,
        // Whether the body has ended or failed: it is not polled again.
        has_ended: bool,
    }
}

impl<B: Body> WholeBody<B> {
    /// Creates the body from one that has not been read yet, of a message with this
    /// `Content-Length`.
    ///
    /// A body that knows its length has it, whatever the header says: a layer outside may have
    /// replaced the body that the header describes.
    pub(super) fn new(body: B, content_length: Option<u64>) -> Self {
        let hint = body.size_hint();
        let exact = hint.exact().or(content_length);
        let shortest = exact.unwrap_or_default().max(hint.lower());
        Self { body, received: 0, announced: shortest..=exact.unwrap_or(u64::MAX), has_ended: false }
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
        if *this.has_ended {
            return Poll::Ready(None);
        }
        let polled = if *this.received > *this.announced.end() {
            Some(Err(TOO_LONG.into()))
        } else {
            match ready!(this.body.poll_frame(cx)) {
                Some(Ok(frame)) => {
                    *this.received += frame.data_ref().map_or(0, Buf::remaining) as u64;
                    return Poll::Ready(Some(Ok(frame)));
                }
                Some(Err(error)) => Some(Err(error.into())),
                None if *this.received < *this.announced.start() => Some(Err(ENDED_EARLY.into())),
                None => None,
            }
        };
        *this.has_ended = true;
        Poll::Ready(polled)
    }

    /// A reader that took this end for the real one would not see the error.
    fn is_end_stream(&self) -> bool {
        self.has_ended || self.announced.contains(&self.received) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

const ENDED_EARLY: &str = "the body ended before the length that was announced";

const TOO_LONG: &str = "the body is longer than was announced";
