//! Reads a response up to a limit, so that it can be stored before its first byte is sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::tower::layer_body::BoxError;

/// The part of a body that was read.
///
/// A handler that has failed to send its body may have had its effects, so a part is never
/// forgotten.
pub(super) enum ReadBody<B> {
    /// All of it.
    Whole(Bytes),
    /// A part of it: it is too long, has trailers, or has failed.
    Part(PartialBody<B>),
}

/// A body of which a part was read: that part, the frame after it, and the rest.
#[derive(Debug)]
pub(super) struct PartialBody<B> {
    read: Bytes,
    next: Option<Result<Frame<Bytes>, BoxError>>,
    rest: Pin<Box<B>>,
    has_failed: bool,
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn read<B>(body: B, limit: usize) -> ReadBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut rest = Box::pin(body);
    let mut read = BytesMut::new();
    let next = loop {
        match rest.frame().await.map(|frame| frame.map(Frame::into_data)) {
            None => return ReadBody::Whole(read.freeze()),
            Some(Ok(Ok(data))) if data.len() <= limit - read.len() => read.extend_from_slice(&data),
            Some(Ok(Ok(data))) => break Ok(Frame::data(data)),
            Some(Ok(Err(trailers))) => break Ok(trailers),
            Some(Err(error)) => break Err(error.into()),
        }
    };
    ReadBody::Part(PartialBody { read: read.freeze(), next: Some(next), rest, has_failed: false })
}

impl<B> Body for PartialBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if !self.read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.read)))));
        }
        if let Some(next) = self.next.take() {
            self.has_failed = next.is_err();
            return Poll::Ready(Some(next));
        }
        if self.has_failed {
            return Poll::Ready(None);
        }
        self.rest.as_mut().poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.next.is_none() && (self.has_failed || self.rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.next.iter().filter_map(|next| next.as_ref().ok().and_then(Frame::data_ref));
        let known = self.read.len() as u64 + ahead.map(|data| data.len() as u64).sum::<u64>();
        let mut hint = self.rest.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + known);
        }
        hint.set_lower(hint.lower() + known);
        hint
    }
}
