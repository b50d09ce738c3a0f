//! [`ResponseFuture`], the future of a service that a layer wraps.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;

use super::layer_body::LayerBody;

/// The future of [`LockService`](super::LockService) and of the service of an `IdempotencyLayer`.
///
/// # Cancel safety
///
/// The layer that returned it says what dropping it does.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<B, E> {
    inner: Pin<Box<dyn Future<Output = Responded<B, E>> + Send>>,
}

/// The output of a service's future.
type Responded<B, E> = Result<Response<LayerBody<B>>, E>;

impl<B, E> ResponseFuture<B, E> {
    pub(super) fn new(future: impl Future<Output = Responded<B, E>> + Send + 'static) -> Self {
        Self { inner: Box::pin(future) }
    }
}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Responded<B, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner.as_mut().poll(cx)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
