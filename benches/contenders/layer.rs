//! dlock's layer around an HTTP handler, called without a network.

use std::convert::Infallible;
use std::task::{Context, Poll};
use std::time::Duration;

use dlock_bench_peer::{Called, Cannot, Library, Result, WAIT};
use dlock_runtime::LockManager;
use dlock_runtime::tower::{
    IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, IdempotencyLayer, IdempotencyService, RequestBody, RequestScope,
};
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower_layer::Layer;
use tower_service::Service;

type Scope = fn(&Parts) -> Result<RequestScope, StatusCode>;

/// A handler under the layer.
#[derive(Clone)]
pub(crate) struct Layered(IdempotencyService<Handler, Scope>);

impl Layered {
    pub(crate) async fn connect(url: String) -> Result<Self> {
        let manager = LockManager::connect(&url).await?;
        let scope: Scope = |_| Ok(RequestScope::of(7));
        Ok(Self(IdempotencyLayer::new(manager, scope).wait(WAIT).layer(Handler)))
    }
}

/// The time of the handler, as an extension of the request.
#[derive(Clone, Copy)]
struct Work(Duration);

#[derive(Clone)]
struct Handler;

impl Service<Request<RequestBody<String>>> for Handler {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody<String>>) -> Self::Future {
        Box::pin(async move {
            if let Some(Work(body)) = request.extensions().get().filter(|Work(body)| *body > Duration::ZERO) {
                tokio::time::sleep(*body).await;
            }
            Ok(Response::new("paid".to_owned()))
        })
    }
}

impl Library for Layered {
    type Guard = Infallible;

    async fn lock(&self, _key: &str, _wait: Duration, _lease: Duration) -> Result<Infallible> {
        Err(Cannot::because("it is measured with idempotent calls only"))
    }

    async fn unlock(&self, guard: Infallible) -> Result<()> {
        match guard {}
    }

    async fn call(&self, key: &str, body: Duration) -> Result<Called> {
        let request = Request::post("/charge").header(IDEMPOTENCY_KEY, key).extension(Work(body));
        let mut service = self.0.clone();
        let response = service.call(request.body(String::new())?).await?;
        let is_replayed = response.headers().contains_key(IDEMPOTENT_REPLAYED);
        let status = response.status();
        let text = response.into_body().collect().await?.to_bytes();
        if status != StatusCode::OK || text != "paid" {
            return Err(format!("the response is {status}").into());
        }
        Ok(if is_replayed { Called::Replayed } else { Called::Ran })
    }
}
