//! [`HeldBody`], a response body that is sent under a lock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::layer_body::BoxError;
use super::response_problem::has_grpc_error;
use crate::error::{Error, LossCause};
use crate::guard::LockGuard;
use crate::scope::ScopeSlot;

pin_project! {
    /// A body that is polled while its lock is held.
    ///
    /// The body is dropped before the lock is released: when it ends, and when the response is
    /// dropped. If the lock is lost, the body is dropped, and the stream ends with an error. This
    /// includes a loss during the poll that returns the end.
    pub(super) struct HeldBody<B> {
        // Before `hold`, since fields are dropped in order.
        #[pin]
        body: Option<B>,
        hold: Option<BodyHold>,
    }
}

/// The lock of a body.
struct BodyHold {
    guard: Arc<LockGuard>,
    /// Whether the handler or the body has reported an error.
    failed: bool,
    /// Whether a loss ends the stream.
    stops: bool,
    loss: Pin<Box<dyn Future<Output = LossCause> + Send>>,
}

impl<B> HeldBody<B> {
    /// Sends `body` under the lock of `guard`.
    ///
    /// If the response has `failed`, its end is no success. If `stops` is `false`, a loss does not
    /// end the stream.
    pub(super) fn new(body: B, guard: LockGuard, failed: bool, stops: bool) -> Self {
        let guard = Arc::new(guard);
        let watched = Arc::clone(&guard);
        let loss = Box::pin(async move { watched.lost().await });
        Self { body: Some(body), hold: Some(BodyHold { guard, failed, stops, loss }) }
    }
}

impl BodyHold {
    /// Returns the loss because of which the last poll may have overlapped with another holder.
    ///
    /// It does not replace the end of a body that has failed, as for a handler.
    fn overlap(&self, has_ended: bool) -> Option<Error> {
        let held = self.guard.held().filter(|_| self.stops && !(self.failed && has_ended))?;
        let loss = match held.check_valid() {
            Ok(()) => return None,
            Err(loss @ (LossCause::MaxHold, _)) => held.overlap(loss, held.engine.now())?,
            Err(loss) => loss,
        };
        Some(held.lost_error(loss, has_ended))
    }

    /// Records how the body has ended, for `min_hold_on = ok`.
    fn record_end(&self) {
        if !self.failed
            && let Some(held) = self.guard.held()
        {
            held.record_success();
        }
    }
}

/// Returns `true` for an error of a body, and for trailers with an error of gRPC.
fn is_failed<E>(frame: &Result<Frame<Bytes>, E>) -> bool {
    frame.as_ref().map_or(true, |frame| frame.trailers_ref().is_some_and(has_grpc_error))
}

impl<B> Body for HeldBody<B>
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
        let mut this = self.project();
        loop {
            let (Some(mut body), Some(lock)) = (this.body.as_mut().as_pin_mut(), this.hold.as_mut()) else {
                return Poll::Ready(None);
            };
            // Before every poll, as for the body of a function: after a pause of any length, the
            // body of a lost lock is not polled again.
            if lock.stops
                && let Err(error) = lock.guard.check()
            {
                this.body.set(None);
                *this.hold = None;
                return Poll::Ready(Some(Err(error.into())));
            }
            // Inside the scope of this poll: an outer hold may have ended since the response was
            // returned, and has not if the body of an outer layer polls this one.
            let polled = match lock.guard.held() {
                Some(held) => ScopeSlot::new().enter(held, || body.as_mut().poll_frame(cx)),
                None => body.as_mut().poll_frame(cx),
            };
            match polled {
                Poll::Pending if !lock.stops || lock.loss.as_mut().poll(cx).is_pending() => {
                    return Poll::Pending;
                }
                // The check above returns the error.
                Poll::Pending => {}
                Poll::Ready(frame) => {
                    lock.failed |= frame.as_ref().is_some_and(is_failed);
                    // Nothing follows trailers, so a server does not poll again.
                    let is_open = matches!(&frame, Some(Ok(frame)) if !frame.is_trailers());
                    let has_ended = !is_open || body.is_end_stream();
                    if has_ended {
                        this.body.set(None);
                    }
                    // Also after a frame that is not known to be the last: a server that has sent
                    // as many bytes as `Content-Length` says does not poll again.
                    let overlap = lock.overlap(has_ended);
                    if overlap.is_some() {
                        this.body.set(None);
                    } else if has_ended {
                        lock.record_end();
                    }
                    if has_ended || overlap.is_some() {
                        *this.hold = None;
                    }
                    let frame = frame.map(|frame| frame.map_err(Into::into));
                    return Poll::Ready(overlap.map_or(frame, |error| Some(Err(error.into()))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // Not before a poll has ended the body under its lock.
        self.body.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
