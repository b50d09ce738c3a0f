//! Reads a response up to a limit, so that it can be stored before its first byte is sent.

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, StreamExt};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, BodyStream, StreamBody};

use super::whole_body::WholeBody;
use crate::tower::layer_body::BoxError;

/// The part of a body that was read.
///
/// A handler that has failed to send its body may have had its effects, so a part is never
/// forgotten.
pub(super) enum ReadBody<P> {
    /// All of it.
    Whole(Bytes),
    /// A part of it: it is too long, has trailers, or has failed. The body is that part and the
    /// rest.
    Part(P),
}

/// Reads a body of at most `limit` bytes, of a response with this `Content-Length`.
pub(super) async fn read<B>(
    body: B,
    content_length: Option<u64>,
    limit: usize,
) -> ReadBody<impl Body<Data = Bytes, Error = BoxError>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut rest = Box::pin(WholeBody::new(body, content_length));
    let mut read = BytesMut::new();
    let next = loop {
        match rest.frame().await.map(|frame| frame.map(Frame::into_data)) {
            None => return ReadBody::Whole(read.freeze()),
            Some(Ok(Ok(data))) if data.len() <= limit - read.len() => read.extend_from_slice(&data),
            Some(Ok(Ok(data))) => break Ok(Frame::data(data)),
            Some(Ok(Err(trailers))) => break Ok(trailers),
            Some(Err(error)) => break Err(error),
        }
    };
    // Nothing follows an error.
    let rest = next.is_ok().then(|| BodyStream::new(rest));
    let read = (!read.is_empty()).then(|| Ok(Frame::data(read.freeze())));
    let frames = stream::iter(read.into_iter().chain([next])).chain(stream::iter(rest).flatten());
    ReadBody::Part(StreamBody::new(frames))
}
