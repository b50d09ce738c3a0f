//! [`IdempotencyService`]: passes a request on, refuses it, runs its handler, or replays.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use super::content_length::{content_length, response_content_length};
use super::layer::IdempotencySettings;
use super::request_body::{ClientBody, RequestFailure};
use super::request_key::{client_key, store_key};
use super::response_reader::{ReadBody, read};
use super::{RequestBody, RequestFingerprint, RequestScope, request_body, stored_response};
use crate::error::Error;
use crate::idempotent::{BytesOutcome, Completion, IdempotentRecord};
use crate::key::LockKey;
use crate::tower::layer_body::{BoxError, Handled, LayerBody, ResponseFuture};
use crate::tower::ready_service::take_ready;
use crate::tower::response_problem::{ResponseProblem, is_error, is_grpc};

/// The service of an [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Clone)]
pub struct IdempotencyService<S, F> {
    inner: S,
    settings: Arc<IdempotencySettings<F>>,
}

impl<S, F> IdempotencyService<S, F> {
    pub(super) fn new(inner: S, settings: Arc<IdempotencySettings<F>>) -> Self {
        Self { inner, settings }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for IdempotencyService<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, F, ReqBody, ResBody> Service<Request<ReqBody>> for IdempotencyService<S, F>
where
    S: Service<Request<RequestBody<ReqBody>>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    F: Fn(&Parts) -> Result<RequestScope, StatusCode> + Send + Sync + 'static,
    ReqBody: Body<Data = Bytes> + Send + 'static,
    ReqBody::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes> + Send + 'static,
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
        let settings = Arc::clone(&self.settings);
        let (parts, body) = request.into_parts();
        let is_grpc = is_grpc(&parts.headers);
        match settings.target(&parts) {
            Ok(Some(key)) => ResponseFuture::new(async move {
                let handled = handle(settings, key, ready, parts, body).await;
                handled.unwrap_or_else(|problem| Ok(problem.into_response(is_grpc).map(LayerBody::of_bytes)))
            }),
            Ok(None) => {
                let length = content_length(&parts.headers);
                let body = ClientBody::new(body, length, &RequestFailure::default());
                let body = LayerBody::received(body);
                pass_on(ready, Request::from_parts(parts, body))
            }
            Err(problem) => ResponseFuture::new(std::future::ready(Ok(problem
                .into_response(is_grpc)
                .map(LayerBody::of_bytes)))),
        }
    }
}

impl<F> IdempotencySettings<F>
where
    F: Fn(&Parts) -> Result<RequestScope, StatusCode>,
{
    /// Returns the key of a request in the store, or `None` if the request passes through.
    fn target(&self, parts: &Parts) -> Result<Option<LockKey>, ResponseProblem> {
        if !self.methods.contains(&parts.method) {
            return Ok(None);
        }
        let Some(client_key) = client_key(&parts.headers)? else {
            let detail = "the request needs an Idempotency-Key";
            let missing =
                || ResponseProblem::of_request(StatusCode::BAD_REQUEST, "missing_idempotency_key", detail);
            return if self.required { Err(missing()) } else { Ok(None) };
        };
        let scope = (self.scope)(parts).map_err(|status| {
            ResponseProblem::of_request(
                status,
                "no_scope",
                "the request is not allowed to use an Idempotency-Key",
            )
        })?;
        store_key(self.manager.namespace(), parts, &scope, &client_key)
            .map(Some)
            .map_err(|invalid| ResponseProblem::of_error(invalid.into()))
    }
}

/// Passes a request on as it is.
fn pass_on<S, ReqBody, ResBody>(
    mut service: S,
    request: Request<RequestBody<ReqBody>>,
) -> ResponseFuture<ResBody, S::Error>
where
    S: Service<Request<RequestBody<ReqBody>>, Response = Response<ResBody>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ReqBody: Send + 'static,
{
    ResponseFuture::new(async move {
        let response = service.call(request).await?;
        Ok(response.map(LayerBody::received))
    })
}

/// Handles a request with a key: runs the service, or returns the stored response.
async fn handle<S, F, ReqBody, ResBody>(
    settings: Arc<IdempotencySettings<F>>,
    key: LockKey,
    service: S,
    parts: Parts,
    body: ReqBody,
) -> Result<Handled<ResBody, S::Error>, ResponseProblem>
where
    S: Service<Request<RequestBody<ReqBody>>, Response = Response<ResBody>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    F: Send + Sync + 'static,
    ReqBody: Body<Data = Bytes> + Send + 'static,
    ReqBody::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    let (length, failure) = (content_length(&parts.headers), RequestFailure::default());
    let (body, payload) = if settings.fingerprint.reads_body {
        let bytes = request_body::read(body, length, settings.max_body).await?;
        let payload = RequestFingerprint::payload(&parts, Some(&bytes));
        (LayerBody::of_bytes(bytes), payload)
    } else {
        let body = LayerBody::received(ClientBody::new(body, length, &failure));
        (body, RequestFingerprint::payload(&parts, None))
    };
    let call = settings.call(key.clone(), &payload);
    let detached = settings.detached;
    let request = Request::from_parts(parts, body);
    let body = move |record| run(settings, service, request, (record, failure));
    let outcome = if detached { call.run_bytes(body).await } else { call.run_bytes_attached(body).await };
    match outcome.map_err(ResponseProblem::of_error)? {
        BytesOutcome::Ran(handled) => Ok(handled),
        BytesOutcome::Replayed { bytes, .. } => match stored_response::replayed(bytes) {
            Some(response) => Ok(Ok(response.map(LayerBody::of_bytes))),
            None => Err(ResponseProblem::of_error(undecodable(key))),
        },
    }
}

/// Runs the service, and returns what to store and what to send.
async fn run<S, F, ReqBody, ResBody>(
    settings: Arc<IdempotencySettings<F>>,
    mut service: S,
    mut request: Request<RequestBody<ReqBody>>,
    (record, failure): (IdempotentRecord, RequestFailure),
) -> (Completion, Handled<ResBody, S::Error>)
where
    S: Service<Request<RequestBody<ReqBody>>, Response = Response<ResBody>>,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    request.extensions_mut().insert(record);
    let method = request.method().clone();
    let response = match service.call(request).await {
        Ok(response) => response,
        Err(error) => return (Completion::Forget, Err(error)),
    };
    if matches!(response.extensions().get::<Error>(), Some(Error::Lost { .. })) {
        // The loss of a lock may have stopped the handler: the response does not say what it did.
        return (Completion::Crashed, Ok(response.map(LayerBody::received)));
    }
    // A refusal is not final if a step of the handler was refused: see `Execution`.
    let is_error = is_error(&response);
    let (parts, body) = response.into_parts();
    // A handler that refuses half a request has not judged the whole one.
    let is_cut = failure.load(Ordering::Acquire) && !parts.status.is_success();
    if is_cut || !settings.is_stored(&parts) {
        return (Completion::Forget, Ok(Response::from_parts(parts, LayerBody::received(body))));
    }
    let not_stored = if is_error { Completion::ErrorNotStored } else { Completion::NotStored };
    let too_long = body.size_hint().lower() > settings.max_response as u64;
    if too_long || stored_response::is_endless(&parts) {
        return (not_stored, Ok(Response::from_parts(parts, LayerBody::received(body))));
    }
    let length = response_content_length(&method, parts.status, &parts.headers);
    match read(body, length, settings.max_response).await {
        ReadBody::Whole(bytes) => {
            let store = if is_error { Completion::StoreError } else { Completion::Store };
            let stored = settings.encoded(&parts, &bytes).map_or(not_stored, store);
            (stored, Ok(Response::from_parts(parts, LayerBody::of_bytes(bytes))))
        }
        ReadBody::Part(body) => (not_stored, Ok(Response::from_parts(parts, LayerBody::wrapped(body)))),
    }
}

/// Returns the error of a stored response that this version cannot read.
fn undecodable(key: LockKey) -> Error {
    Error::Undecodable { key, problem: "it is not an HTTP response that this version stored".into() }
}
