//! The contender axum-idempotent, around a handler of axum that is called without a network.
//!
//! Its store is that of ruts over Redis, with one connection of fred for all calls. All requests
//! are of one session, which it needs, and which a first request creates. It takes its keys from
//! the header, its fastest mode, and stores responses for a day, as dlock does.
//!
//! It has no mark for a running call, so duplicates at one time all run. It needs a server with
//! HEXPIRE (Redis 7.4); without it, the store reports an error, and every call runs.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::routing::post;
use axum::{Extension, Router};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use dlock_bench_peer::{Called, Cannot, Library, Result};
use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::Builder;
use fred::types::config::Config;
use ruts::store::Ttl;
use ruts::store::redis::RedisStore;
use ruts::{CookieOptions, Session, SessionLayer};
use tower::ServiceExt;
use tower_cookies::CookieManagerLayer;

type Store = RedisStore<Client>;

const DAY_SECS: u32 = 24 * 3_600;

/// The routes, and the cookie of the session.
#[derive(Clone)]
pub(crate) struct AxumIdempotent {
    routes: Router,
    cookie: String,
}

impl AxumIdempotent {
    pub(crate) async fn connect(servers: &[String]) -> Result<Self> {
        let [server] = servers else { return Err(Cannot::because("it has no Redlock")) };
        let mut builder = Builder::from_config(Config::from_url(&format!("redis://{server}"))?);
        builder.with_connection_config(|config| config.tcp.nodelay = Some(true));
        let client = builder.build()?;
        client.init().await?;
        let store = Arc::new(Store::new(Arc::new(client)).await?);

        let options = IdempotentOptions::default()
            .use_idempotency_key_header(None, true)
            .expire_after(DAY_SECS.into());
        let cookies = CookieOptions::build().name("session").max_age(DAY_SECS.into()).path("/");
        let routes = Router::new()
            .route("/charge", post(charge))
            .layer(IdempotentLayer::<Store>::new(options))
            .route("/login", post(log_in))
            .layer(SessionLayer::new(store).with_cookie_options(cookies))
            .layer(CookieManagerLayer::new());
        let login = routes.clone().oneshot(Request::post("/login").body(Body::empty())?).await?;
        if login.status() != StatusCode::OK {
            return Err(Cannot::because("its store needs HEXPIRE, a command of Redis 7.4"));
        }
        let cookie = login.headers().get(header::SET_COOKIE).ok_or("the login sets no cookie")?;
        let cookie = cookie.to_str()?.split(';').next().unwrap_or_default().to_owned();
        Ok(Self { routes, cookie })
    }
}

async fn log_in(session: Session<Store>) -> Result<(), StatusCode> {
    let ttl = Ttl::new(DAY_SECS.into()).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    session.set("user", &7_u64, ttl, None).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn charge(Extension(Work(body)): Extension<Work>) -> &'static str {
    if body > Duration::ZERO {
        tokio::time::sleep(body).await;
    }
    "paid"
}

/// The time of the handler, as an extension of the request.
#[derive(Clone, Copy)]
struct Work(Duration);

impl Library for AxumIdempotent {
    type Guard = Infallible;

    async fn lock(&self, _key: &str, _wait: Duration, _lease: Duration) -> Result<Infallible> {
        Err(Cannot::because("it has no locks"))
    }

    async fn unlock(&self, guard: Infallible) -> Result<()> {
        match guard {}
    }

    async fn call(&self, key: &str, body: Duration) -> Result<Called> {
        let request = Request::post("/charge")
            .header("idempotency-key", key)
            .header(header::COOKIE, &self.cookie)
            .extension(Work(body));
        let response = self.routes.clone().oneshot(request.body(Body::empty())?).await?;
        let is_replayed = response.headers().contains_key("idempotency-replayed");
        let status = response.status();
        let text = axum::body::to_bytes(response.into_body(), 64).await?;
        if status != StatusCode::OK || text != "paid" {
            return Err(format!("the response is {status}").into());
        }
        Ok(if is_replayed { Called::Replayed } else { Called::Ran })
    }
}
