//! [`IdempotencyLayer`], the settings of routes that are safe to repeat.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Method, StatusCode, response};
use tower_layer::Layer;

use super::{IdempotencyService, RequestFingerprint, RequestScope, stored_response};
use crate::idempotent::{Idempotent, IdempotentOptions, OnCrash, OnUnavailable, checked_ttl};
use crate::key::LockKey;
use crate::manager::LockManager;
use crate::options::checked_lease;
use crate::tower::accept;
use crate::tower::response_problem::has_grpc_error;

/// A layer that makes routes safe to repeat, with the header `Idempotency-Key`.
///
/// The first request with a key runs the handler, and its response is stored before its first byte
/// is sent. Later requests with the same key get the stored response, with the header
/// `Idempotent-Replayed: true`.
///
/// # Requests
///
/// - The key is 1 to 255 visible ASCII characters, quoted (as in the draft of the IETF) or bare.
///   Two headers, an empty key, and other characters get 400.
/// - `scope` returns who may see the response, such as the authenticated user. Another user with
///   the same key has another record. So put the layer inside the layers that authenticate.
/// - `POST` and `PATCH` requests are covered; see [`methods`](Self::methods). Other requests pass
///   through, and so do requests without a key unless [`required`](Self::required) is set.
/// - A key belongs to one method and one route: the same key with another one is another call. Over
///   axum, the matched path identifies the route, such as `/orders/{id}`, which needs the feature
///   `axum`; otherwise the path does. Without that feature, put the layer outside `Router::nest`:
///   inside, a request has lost the prefix of its path, and requests that differ only there are
///   equal.
/// - The body is read before the handler runs, up to [`max_body`](Self::max_body), for the
///   [fingerprint](Self::fingerprint): another path of the route, another query, or another body
///   with the same key gets 422.
///
/// # Responses
///
/// | case | response |
/// |---|---|
/// | first request | the handler's |
/// | later request | the stored one |
/// | the first request is running | 409 with `Retry-After`; with [`wait`](Self::wait), its response |
/// | no key, and it is required; a key of the wrong form | 400 |
/// | another request with the same key | 422 |
/// | the body is too long; it ended early, or is longer than its `Content-Length` | 413; 400 |
/// | the handler crashed | until its [`lease`](Self::lease) ends, as while it runs; then 500, see [`on_crash`](Self::on_crash) |
/// | the handler panicked | none, since the service panics; later requests get 500, see [`on_crash`](Self::on_crash) |
/// | a [`LockLayer`](crate::tower::LockLayer) inside lost its lock | its 500, or the error of the handler; later requests as after a crash |
/// | the same while the body is sent, with [`until_body_end`](crate::tower::LockLayer::until_body_end) | it is cut; later requests get 500: it is not stored |
/// | the response is not stored | 500: the handler does not run again |
/// | the server is unavailable | 503 with `Retry-After` |
///
/// Each of these from 400 on is a problem document (RFC 9457) with a `code`. The error itself is in
/// the extensions of the response.
///
/// Stored are responses with 2xx, 3xx, and 4xx, except 401, 403, 408, 409, 421, 425, and 429, and
/// except errors of gRPC in the headers; see [`store`](Self::store). After another response, the
/// next request runs the handler; also after one without 2xx to a request whose body ended early. A
/// stored response has its status, its body, and these headers: `content-type`, `content-encoding`,
/// `content-language`, `location`, `content-location`, `etag`, `last-modified`, `link`, and those
/// of [`replay_headers`](Self::replay_headers). `Set-Cookie` is never stored.
///
/// A response that is longer than [`max_response`](Self::max_response), has trailers, ends early,
/// is longer than its `Content-Length`, is an upgrade, or is `text/event-stream` is sent as it is.
/// It counts as completed, also with an error of gRPC in its trailers. Later requests get 500 with
/// the code `result_not_stored`.
///
/// Put timeouts, layers that catch panics, compression, and CORS outside this layer. A timeout
/// inside drops the handler at any point, and the next request runs it again. For CORS, expose the
/// header [`IDEMPOTENT_REPLAYED`](super::IDEMPOTENT_REPLAYED). Put a
/// [`LockLayer`](crate::tower::LockLayer) inside.
///
/// The handler finds its [`IdempotentRecord`](crate::idempotent::IdempotentRecord) in the
/// extensions of the request, for steps and child keys.
///
/// # Panics
///
/// An option out of its bounds is a panic when the service is built: of the method that sets the
/// option, or of [`Layer::layer`] if two options contradict each other or the manager's store is a
/// quorum.
///
/// # Cancel safety
///
/// The handler runs on a task of its own: if the client disconnects, it runs to its end, and a
/// retry gets its response. If the client disconnects before the body of the request was read, the
/// handler does not run; with [`RequestFingerprint::ROUTE`](super::RequestFingerprint::ROUTE), the
/// handler has started by then, and runs on. Inside a lock, such as that of a `LockLayer` around
/// this layer, the handler is dropped with the request. See [`detached`](Self::detached).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use dlock_runtime::LockManager;
/// use dlock_runtime::tower::{IdempotencyLayer, RequestScope};
/// use http::StatusCode;
/// use http::request::Parts;
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// # async fn connect() -> Result<(), dlock_runtime::Error> {
/// let manager = LockManager::connect("memory://").await?;
/// let idempotent = IdempotencyLayer::new(manager, |parts: &Parts| {
///     // Authentication, further outside, has put the user here.
///     let user = parts.extensions.get::<User>().ok_or(StatusCode::UNAUTHORIZED)?;
///     Ok(RequestScope::of(user.id))
/// })
/// .required(true)
/// .ttl(Duration::from_secs(24 * 3600));
/// # drop(idempotent);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer<F> {
    settings: Arc<IdempotencySettings<F>>,
}

type Decision = dyn Fn(&response::Parts) -> bool + Send + Sync;

/// The state that all services of a layer share.
#[derive(Clone)]
pub(super) struct IdempotencySettings<F> {
    pub(super) manager: LockManager,
    pub(super) scope: F,
    pub(super) methods: Vec<Method>,
    pub(super) required: bool,
    pub(super) fingerprint: RequestFingerprint,
    pub(super) max_body: usize,
    pub(super) max_response: usize,
    pub(super) detached: bool,
    replay_headers: Vec<HeaderName>,
    store: Option<Arc<Decision>>,
    options: IdempotentOptions,
}

impl<F: Clone> IdempotencyLayer<F> {
    /// Returns a layer whose records are those of `manager`.
    ///
    /// `scope` returns who may see the response of a request, or the status with which the request
    /// is refused. [`RequestScope::everyone`] must be written out.
    #[must_use]
    pub fn new(manager: LockManager, scope: F) -> Self
    where
        F: Fn(&Parts) -> Result<RequestScope, StatusCode>,
    {
        let settings = IdempotencySettings {
            manager,
            scope,
            methods: vec![Method::POST, Method::PATCH],
            required: false,
            fingerprint: RequestFingerprint::BODY_AND_ROUTE,
            max_body: DEFAULT_LIMIT,
            max_response: DEFAULT_LIMIT,
            detached: true,
            replay_headers: Vec::new(),
            store: None,
            options: IdempotentOptions {
                result_type: "http response".to_owned(),
                ..IdempotentOptions::default()
            },
        };
        Self { settings: Arc::new(settings) }
    }

    /// Sets whether a request without a key gets 400. Default: `false`, it passes through.
    #[must_use]
    pub fn required(self, required: bool) -> Self {
        self.with(|settings| settings.required = required)
    }

    /// Sets the methods that are covered. Default: `POST` and `PATCH`.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|settings| settings.methods = methods.into_iter().collect())
    }

    /// Sets how long a response is stored, from the end of its handler. Default: 24 h. From 1 min
    /// to 365 days.
    ///
    /// # Panics
    ///
    /// Panics if `ttl` is out of these bounds.
    #[must_use]
    #[track_caller]
    pub fn ttl(self, ttl: Duration) -> Self {
        accept(checked_ttl(ttl));
        self.with(|settings| settings.options.ttl = ttl)
    }

    /// Sets the lease: how long after a crash a request counts as running. Default: the manager's,
    /// which is 30 s unless set. From 100 ms to 365 days, and at most the `ttl`.
    ///
    /// # Panics
    ///
    /// Panics if `lease` is out of these bounds. [`Layer::layer`] panics if it exceeds the `ttl`.
    #[must_use]
    #[track_caller]
    pub fn lease(self, lease: Duration) -> Self {
        accept(checked_lease(lease));
        self.with(|settings| settings.options.lease = Some(lease))
    }

    /// Sets how long a request waits for the response of a running one. Default: it gets 409 at
    /// once.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|settings| settings.options.wait = Some(wait))
    }

    /// Sets what happens after a crash. Default: [`OnCrash::Fail`], later requests get 500 with the
    /// code `outcome_unknown`.
    #[must_use]
    pub fn on_crash(self, on_crash: OnCrash) -> Self {
        self.with(|settings| settings.options.on_crash = on_crash)
    }

    /// Sets what happens if the server is unavailable at the start. Default:
    /// [`OnUnavailable::Error`], the request gets 503.
    #[must_use]
    pub fn on_unavailable(self, on_unavailable: OnUnavailable) -> Self {
        self.with(|settings| settings.options.on_unavailable = on_unavailable)
    }

    /// Sets what two requests with the same key must have in common. Default:
    /// [`RequestFingerprint::BODY_AND_ROUTE`].
    #[must_use]
    pub fn fingerprint(self, fingerprint: RequestFingerprint) -> Self {
        self.with(|settings| settings.fingerprint = fingerprint)
    }

    /// Sets the largest body of a request with a key, in bytes. Default: 256 KiB.
    ///
    /// A longer one gets 413. At most this much of a body is in memory at a time.
    #[must_use]
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_body = bytes)
    }

    /// Sets the largest body of a response that is stored, in bytes. Default: 256 KiB.
    ///
    /// More than 3 MiB counts as 3 MiB, so that no script takes long to copy it.
    #[must_use]
    pub fn max_response(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_response = bytes.min(LONGEST_RESPONSE))
    }

    /// Sets which responses are stored. Default: by their status, as [above](Self#responses).
    ///
    /// After a response that is not stored, the next request runs the handler again.
    #[must_use]
    pub fn store(self, store: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.store = Some(Arc::new(store)))
    }

    /// Adds headers that are stored and replayed.
    ///
    /// `set-cookie`, `date`, `www-authenticate`, `proxy-authenticate`, and headers of the
    /// connection are never stored.
    #[must_use]
    pub fn replay_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|settings| settings.replay_headers.extend(names))
    }

    /// Sets whether the handler runs on a task of its own. Default: `true`. Inside a lock it never
    /// does, since it would continue without the lock.
    ///
    /// If `false`, a client that disconnects drops the handler. Then its request stays in progress
    /// until the lease ends, and [`on_crash`](Self::on_crash) applies.
    #[must_use]
    pub fn detached(self, detached: bool) -> Self {
        self.with(|settings| settings.detached = detached)
    }

    fn with(mut self, change: impl FnOnce(&mut IdempotencySettings<F>)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

/// The largest body of a request or a response, unless set.
const DEFAULT_LIMIT: usize = 256 * 1024;

/// The largest body of a response that can be stored. With its headers, it is below the size of a
/// record that scripts read, and below the limit of a reply.
pub(crate) const LONGEST_RESPONSE: usize = 3 * 1024 * 1024;

impl<F> IdempotencySettings<F> {
    /// Returns the idempotent call of a request.
    pub(super) fn call(&self, key: LockKey, payload: &[u8]) -> Idempotent {
        let longest_result = self.max_response + HEADERS;
        let options = IdempotentOptions { longest_result, ..self.options.clone() };
        self.manager.idempotent(key).with_options(options).fingerprint_bytes(payload)
    }

    /// Returns `true` if the next request must not run the handler again.
    pub(super) fn is_stored(&self, parts: &response::Parts) -> bool {
        match &self.store {
            Some(store) => store(parts),
            None => stored_response::is_final(parts.status) && !has_grpc_error(&parts.headers),
        }
    }

    /// Returns the bytes of a response to store.
    pub(super) fn encoded(&self, parts: &response::Parts, body: &[u8]) -> Option<Vec<u8>> {
        stored_response::encoded(parts, body, &self.replay_headers)
    }
}

/// The limit of the status and the headers of a stored response, in bytes.
pub(crate) const HEADERS: usize = 64 * 1024;

impl<S, F> Layer<S> for IdempotencyLayer<F> {
    type Service = IdempotencyService<S, F>;

    /// Returns the service.
    ///
    /// # Panics
    ///
    /// Panics if the lease is longer than the `ttl`, or the manager's store is a quorum: each
    /// request would fail.
    #[track_caller]
    fn layer(&self, inner: S) -> Self::Service {
        let IdempotencySettings { manager, options, .. } = &*self.settings;
        accept(manager.check_store("idempotent", "idempotent calls"));
        accept(options.checked_lease(manager.engine().lease));
        IdempotencyService::new(inner, Arc::clone(&self.settings))
    }
}

impl<F> fmt::Debug for IdempotencyLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("methods", &self.settings.methods)
            .field("required", &self.settings.required)
            .finish_non_exhaustive()
    }
}
