//! [`LockLayer`], a lock around a handler.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tower_layer::Layer;
use tower_service::Service;

use super::held_body::HeldBody;
use super::layer_body::{BoxError, LayerBody, ResponseFuture};
use super::ready_service::take_ready;
use super::response_problem::{ResponseProblem, is_error, is_grpc};
use crate::body::Body;
use crate::error::Error;
use crate::guard::LockGuard;
use crate::key::{IntoLockKey, LockKey};
use crate::manager::LockManager;
use crate::options::{OnLost, Options, checked_lease};
use crate::run::{Acquiring, Releasing, Running};
use crate::telemetry::CallSpan;
use crate::tower::accept;

/// A layer that runs the inner service under a lock whose key comes from the request.
///
/// It works with every service of `http` requests: axum, hyper, and tonic. The handler runs as the
/// body of [`Lock::run`](crate::Lock::run) does: the watchdog renews the lease, calls inside the
/// handler that need the same key join the hold, and a loss drops the handler at its next await.
///
/// The lock is released when the handler has returned its response, before the response body is
/// sent. For a body that does its work while it is sent, set
/// [`until_body_end`](Self::until_body_end).
///
/// A handler fails if it returns an error, a status of 400 or above, or a `grpc-status` other than
/// 0. Then [`MinHoldOn::Ok`](crate::MinHoldOn::Ok) does not retain the lock, and a loss does not
/// replace the response of a completed handler: [`Error::Lost`] is in its extensions.
///
/// If there is no lock, the handler does not run. The response is a problem document (RFC 9457)
/// with [`Error::http_status`], and with `Retry-After` if [`Error::retry_after`] is `Some`. For a
/// request of gRPC, it is a status with [`Error::grpc_code`]. The text contains no key and no
/// server; the error itself is in the extensions of the response.
///
/// Put it inside the layers that authenticate, and apply it only to the routes that need the lock.
///
/// # Panics
///
/// An option out of its bounds is a panic when the service is built: of the method that sets the
/// option, or of [`Layer::layer`] if two options contradict each other.
///
/// # Cancel safety
///
/// If the future of the service is dropped, the handler is dropped, then the lock is released. With
/// `until_body_end`, dropping the response body does the same.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use dlock_runtime::tower::LockLayer;
/// use dlock_runtime::{KeyBuilder, LockManager};
/// use http::request::Parts;
///
/// # async fn connect() -> Result<(), dlock_runtime::Error> {
/// let locks = LockManager::connect("memory://").await?;
/// let one_at_a_time = LockLayer::new(locks, |parts: &Parts| {
///     let user = parts.headers.get("x-user").map(|user| user.as_bytes());
///     // A request without the header gets 400.
///     KeyBuilder::default().text("cart:").part("user", &user)
/// })
/// .wait(Duration::from_secs(2));
/// # drop(one_at_a_time);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LockLayer<F> {
    settings: Arc<LockSettings<F>>,
}

/// The state that all services of a layer share.
#[derive(Clone)]
struct LockSettings<F> {
    manager: LockManager,
    key: F,
    options: Options,
    until_body_end: bool,
}

impl<F: Clone> LockLayer<F> {
    /// Returns a layer that locks the key that `key` returns for a request.
    ///
    /// The key gets the manager's namespace. A string is used unescaped, so a value that a client
    /// chooses belongs into a [`KeyBuilder`](crate::KeyBuilder).
    #[must_use]
    pub fn new<K>(manager: LockManager, key: F) -> Self
    where
        F: Fn(&Parts) -> K,
        K: IntoLockKey,
    {
        let settings = LockSettings { manager, key, options: Options::new(), until_body_end: false };
        Self { settings: Arc::new(settings) }
    }

    /// Sets how long a request waits for the lock, woken by releases. Default: it does not wait.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|settings| settings.options = settings.options.wait(wait))
    }

    /// Sets the lease: how long the lock outlives a crash. Default: the manager's, which is 30 s
    /// unless set. From 100 ms to 365 days.
    ///
    /// # Panics
    ///
    /// Panics if `lease` is out of these bounds.
    #[must_use]
    #[track_caller]
    pub fn lease(self, lease: Duration) -> Self {
        accept(checked_lease(lease));
        self.with(|settings| settings.options = settings.options.lease(lease))
    }

    /// Sets all options of the lock at once.
    ///
    /// # Panics
    ///
    /// Panics if an option is out of its bounds, or contradicts another one.
    #[must_use]
    #[track_caller]
    pub fn options(self, options: Options) -> Self {
        accept(options.checked(self.settings.manager.engine().lease));
        self.with(|settings| settings.options = options)
    }

    /// Sets whether the lock is held until the response body has been sent. Default: `false`.
    ///
    /// If the lock is lost meanwhile, the body is dropped, and the stream ends with
    /// [`Error::Lost`]. With [`OnLost::Finish`], it is sent to its end. For
    /// [`MinHoldOn::Ok`](crate::MinHoldOn::Ok), a body fails if it ends with an error or with an
    /// error in the trailer `grpc-status`, or is dropped before its end. A server drops a body
    /// after the bytes that the response's `Content-Length` says, so a body that then does not know
    /// its end (`is_end_stream`) is no success.
    #[must_use]
    pub fn until_body_end(self, until_body_end: bool) -> Self {
        self.with(|settings| settings.until_body_end = until_body_end)
    }

    fn with(mut self, change: impl FnOnce(&mut LockSettings<F>)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S, F> Layer<S> for LockLayer<F> {
    type Service = LockService<S, F>;

    /// Returns the service.
    ///
    /// # Panics
    ///
    /// Panics if two options contradict each other: each request would fail.
    #[track_caller]
    fn layer(&self, inner: S) -> Self::Service {
        let LockSettings { manager, options, .. } = &*self.settings;
        accept(options.checked(manager.engine().lease));
        LockService { inner, settings: Arc::clone(&self.settings) }
    }
}

impl<F> fmt::Debug for LockLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("options", &self.settings.options)
            .field("until_body_end", &self.settings.until_body_end)
            .finish_non_exhaustive()
    }
}

/// The service of a [`LockLayer`].
#[derive(Clone)]
pub struct LockService<S, F> {
    inner: S,
    settings: Arc<LockSettings<F>>,
}

impl<S: fmt::Debug, F> fmt::Debug for LockService<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, F, K, ReqBody, ResBody> Service<Request<ReqBody>> for LockService<S, F>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    F: Fn(&Parts) -> K,
    K: IntoLockKey,
    ReqBody: Send + 'static,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<LayerBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<ResBody, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let ready = take_ready(&mut self.inner);
        let LockSettings { manager, key, options, until_body_end } = &*self.settings;
        let (parts, body) = request.into_parts();
        let key = key(&parts).into_lock_key(manager.namespace()).map_err(|error| Box::new(error.into()));
        let locked =
            LockedCall { manager: manager.clone(), key, options: *options, until_body_end: *until_body_end };
        let is_grpc = is_grpc(&parts.headers);
        let request = Request::from_parts(parts, body);
        ResponseFuture::new(async move {
            match locked.run(ready, request).await {
                Ok(response) => response,
                Err(error) => {
                    Ok(ResponseProblem::of_error(error).into_response(is_grpc).map(LayerBody::of_bytes))
                }
            }
        })
    }
}

/// One request and its lock.
struct LockedCall {
    manager: LockManager,
    key: Result<LockKey, Box<Error>>,
    options: Options,
    until_body_end: bool,
}

impl LockedCall {
    /// Runs the service under the lock.
    async fn run<S, ReqBody, ResBody>(
        self,
        mut service: S,
        request: Request<ReqBody>,
    ) -> Result<Result<Response<LayerBody<ResBody>>, S::Error>, Error>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>>,
        ResBody: HttpBody<Data = Bytes> + Send + 'static,
        ResBody::Error: Into<BoxError>,
    {
        let Self { manager, key, options, until_body_end } = &self;
        let telemetry = CallSpan::begin(None, key.as_ref().ok());
        let mut entering = Acquiring::new(manager, key, options);
        let held = poll_fn(|cx| entering.poll(options, &telemetry, cx)).await.map_err(|error| *error)?;
        let mut guard = LockGuard::new(held);
        let response = {
            let Some(held) = guard.held() else { unreachable!("the guard was made of a hold") };
            let mut body = pin!(Body::Future { future: service.call(request) });
            let mut running = Running::new(held);
            let ended =
                poll_fn(|cx| running.poll(body.as_mut(), options.on_lost, false, &telemetry, cx)).await;
            let streams = |value: &Result<Response<ResBody>, S::Error>| {
                value.as_ref().is_ok_and(|response| !response.body().is_end_stream())
            };
            let keeps = *until_body_end && ended.is_ok() && body.as_ref().value().is_some_and(streams);
            if !keeps {
                let succeeds = |value: &Result<Response<ResBody>, S::Error>| {
                    value.as_ref().is_ok_and(|response| !is_error(response))
                };
                if body.as_ref().value().is_some_and(succeeds) {
                    held.record_success();
                }
                let mut leaving = Releasing::new(held, ended, options, &telemetry);
                return match poll_fn(|cx| leaving.poll(&telemetry, cx)).await {
                    Err(error) if body.as_ref().value().is_none_or(succeeds) => Err(error),
                    left => Ok(body.take().map(|mut response| {
                        if let Err(lost) = left {
                            // The loss may have caused the error: see the layers further outside.
                            response.extensions_mut().insert(lost);
                        }
                        response.map(LayerBody::received)
                    })),
                };
            }
            body.take()
        };
        telemetry.guarded();
        guard.detach();
        Ok(response.map(|response| {
            let (failed, stops) = (is_error(&response), options.on_lost == OnLost::Abort);
            response.map(|body| LayerBody::wrapped(HeldBody::new(body, guard, failed, stops)))
        }))
    }
}
