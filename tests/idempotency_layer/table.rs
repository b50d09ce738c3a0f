//! Pairs of requests, and the exact answer to the second one.
//!
//! Each pair runs with a new service, over memory and over Redis.

use axum::body::Body;
use dlock_tests::world::World;
use dlock_tests::{RedisServer, until};
use http::{HeaderValue, Request};

use crate::shop::Shop;

/// A request of the table.
#[derive(Clone)]
struct Sent {
    method: &'static str,
    path: &'static str,
    keys: Vec<Vec<u8>>,
    user: Option<&'static str>,
    body: &'static str,
    content_type: Option<&'static str>,
}

impl Sent {
    fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    fn keys(mut self, keys: &[&[u8]]) -> Self {
        self.keys = keys.iter().map(|key| key.to_vec()).collect();
        self
    }

    fn key(self, key: &str) -> Self {
        self.keys(&[key.as_bytes()])
    }

    fn user(mut self, user: Option<&'static str>) -> Self {
        self.user = user;
        self
    }

    fn body(mut self, body: &'static str) -> Self {
        self.body = body;
        self
    }

    fn content_type(mut self, content_type: &'static str) -> Self {
        self.content_type = Some(content_type);
        self
    }

    fn request(&self) -> Request<Body> {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for key in &self.keys {
            let key = HeaderValue::from_bytes(key).expect("the transport accepts it");
            request = request.header("idempotency-key", key);
        }
        if let Some(user) = self.user {
            request = request.header("x-user", user);
        }
        if let Some(content_type) = self.content_type {
            request = request.header("content-type", content_type);
        }
        request.body(Body::from(self.body)).expect("a request")
    }
}

/// A `POST` request of user 7 with the key `k1` and the body `a`.
fn to(path: &'static str) -> Sent {
    Sent { method: "POST", path, keys: vec![b"k1".to_vec()], user: Some("7"), body: "a", content_type: None }
}

/// The answer to the second request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    /// The response of the first request, with this status. The handler runs once.
    Replay(u16),
    /// A response of its own, with this status. The handler runs twice.
    Run(u16),
    /// A problem document with this status and code. The handler runs once.
    Problem(u16, &'static str),
    /// The same for both requests. No handler runs.
    BothProblem(u16, &'static str),
}

use Expected::{BothProblem, Problem, Replay, Run};

struct Pair {
    name: &'static str,
    first: Sent,
    second: Sent,
    expected: Expected,
}

fn pair(name: &'static str, first: Sent, second: Sent, expected: Expected) -> Pair {
    Pair { name, first, second, expected }
}

/// The same request twice.
fn twice(name: &'static str, request: Sent, expected: Expected) -> Pair {
    pair(name, request.clone(), request, expected)
}

fn key_forms() -> Vec<Pair> {
    let order = || to("/orders/1");
    let long = "k".repeat(255);
    let too_long = "k".repeat(256);
    let invalid =
        |name, key: &[u8]| twice(name, order().keys(&[key]), BothProblem(400, "invalid_idempotency_key"));
    vec![
        twice("bare, twice", order(), Replay(201)),
        twice("quoted, twice", order().key("\"k1\""), Replay(201)),
        pair("quoted, then bare", order().key("\"k1\""), order(), Replay(201)),
        pair("bare, then quoted", order(), order().key("\"k1\""), Replay(201)),
        pair("white space around it", order(), order().key(" k1 "), Replay(201)),
        pair("an escaped quote", order().key(r#""a\"b""#), order().key(r#"a"b"#), Replay(201)),
        twice("one character", order().key("k"), Replay(201)),
        twice("separators", order().key("a:b{c}<d>%~#"), Replay(201)),
        twice("255 characters", order().key(&long), Replay(201)),
        twice("256 characters", order().key(&too_long), BothProblem(400, "invalid_idempotency_key")),
        pair("upper case", order(), order().key("K1"), Run(201)),
        pair("a prefix", order(), order().key("k"), Run(201)),
        pair("a slash that is escaped", order().key("a%2Fb"), order().key("a/b"), Run(201)),
        invalid("empty", b""),
        invalid("empty in quotes", b"\"\""),
        invalid("never closed", b"\"k1"),
        invalid("a quote inside quotes", b"\"k\"1\""),
        invalid("a parameter", b"\"k1\";p=1"),
        invalid("an escape of nothing", b"\"k1\\n\""),
        invalid("a space inside", b"k 1"),
        invalid("a tab inside", b"k\t1"),
        invalid("not ASCII", "ké".as_bytes()),
        twice("two headers", order().keys(&[b"k1", b"k1"]), BothProblem(400, "invalid_idempotency_key")),
        twice("no key", order().keys(&[]), Run(201)),
        pair("no key, then a key", order().keys(&[]), order(), Run(201)),
        pair("a key, then no key", order(), order().keys(&[]), Run(201)),
    ]
}

fn methods_and_routes() -> Vec<Pair> {
    let order = || to("/orders/1");
    vec![
        twice("PATCH", order().method("PATCH"), Replay(201)),
        twice("PUT passes through", order().method("PUT"), Run(201)),
        twice("DELETE passes through", order().method("DELETE"), Run(201)),
        twice("GET passes through", order().method("GET").body(""), Run(201)),
        twice("GET with an invalid key", order().method("GET").body("").key(""), Run(201)),
        twice("OPTIONS passes through", order().method("OPTIONS").body(""), Run(201)),
        pair("another method", order(), order().method("PATCH"), Run(201)),
        pair("another route", order(), to("/carts/1"), Run(201)),
        pair("another path of the route", order(), to("/orders/2"), Problem(422, "key_reused")),
        pair("a query", order(), to("/orders/1?a=1"), Problem(422, "key_reused")),
        pair("another query", to("/orders/1?a=1"), to("/orders/1?a=2"), Problem(422, "key_reused")),
        pair("another order", to("/orders/1?a=1&b=2"), to("/orders/1?b=2&a=1"), Problem(422, "key_reused")),
        twice("the same query", to("/orders/1?a=1"), Replay(201)),
    ]
}

fn scopes() -> Vec<Pair> {
    let order = || to("/orders/1");
    vec![
        pair("another user", order(), order().user(Some("8")), Run(201)),
        pair("another user and payload", order(), order().user(Some("8")).body("b"), Run(201)),
        pair("the mark of everyone", order(), order().user(Some("~")), Run(201)),
        pair("a separator in the user", order().user(Some("7:k1")), order(), Run(201)),
        pair(
            "user and key that join alike",
            order().user(Some("7:a")).key("b"),
            order().user(Some("7")).key("a:b"),
            Run(201),
        ),
        twice("no user", order().user(None), BothProblem(401, "no_scope")),
        twice("an empty user", order().user(Some("")), BothProblem(400, "invalid_key")),
        twice("no user and no key", order().user(None).keys(&[]), Run(201)),
    ]
}

fn payloads() -> Vec<Pair> {
    let order = || to("/orders/1");
    vec![
        pair("another body", order(), order().body("b"), Problem(422, "key_reused")),
        pair("a longer body", order(), order().body("a "), Problem(422, "key_reused")),
        pair("no body", order(), order().body(""), Problem(422, "key_reused")),
        pair("a body after none", order().body(""), order(), Problem(422, "key_reused")),
        twice("no body, twice", order().body(""), Replay(201)),
        pair("another content type", order(), order().content_type("text/html"), Replay(201)),
        pair(
            "path and body that join alike",
            to("/orders/1").body("0"),
            to("/orders/10").body(""),
            Problem(422, "key_reused"),
        ),
    ]
}

fn statuses() -> Vec<Pair> {
    let stored = [
        ("/status/200", 200),
        ("/status/201", 201),
        ("/status/202", 202),
        ("/status/204", 204),
        ("/status/206", 206),
        ("/status/301", 301),
        ("/status/303", 303),
        ("/status/304", 304),
        ("/status/400", 400),
        ("/status/402", 402),
        ("/status/404", 404),
        ("/status/410", 410),
        ("/status/412", 412),
        ("/status/422", 422),
    ];
    let forgotten = [
        ("/status/401", 401),
        ("/status/403", 403),
        ("/status/408", 408),
        ("/status/409", 409),
        ("/status/421", 421),
        ("/status/425", 425),
        ("/status/429", 429),
        ("/status/500", 500),
        ("/status/502", 502),
        ("/status/503", 503),
        ("/status/504", 504),
    ];
    let stored = stored.map(|(path, code)| twice(path, to(path), Replay(code)));
    let forgotten = forgotten.map(|(path, code)| twice(path, to(path), Run(code)));
    stored.into_iter().chain(forgotten).collect()
}

async fn check(url: &str, table: &str, pairs: Vec<Pair>) {
    for (number, Pair { name, first, second, expected }) in pairs.into_iter().enumerate() {
        let at = format!("{table}: {name} over {url}");
        // Another namespace for each pair, in one server.
        let separator = if url.contains('?') { '&' } else { '?' };
        let shop = Shop::start(&format!("{url}{separator}namespace={table}{number}"), |layer| layer).await;

        let one = shop.send(first.request()).await;
        let two = shop.send(second.request()).await;

        let runs = shop.counters.runs();
        match expected {
            Replay(status) => {
                assert_eq!((one.status, two.status, runs), (status, status, 1), "{at}");
                assert!(!one.is_replayed() && two.is_replayed(), "{at}: {two:?}");
                assert_eq!(one.body, two.body, "{at}");
            }
            Run(status) => {
                assert_eq!((one.status, two.status, runs), (status, status, 2), "{at}");
                assert!(!one.is_replayed() && !two.is_replayed(), "{at}: {two:?}");
            }
            Problem(status, code) => {
                assert_eq!((two.status, two.code().as_deref(), runs), (status, Some(code), 1), "{at}");
                assert!(one.status < 300 && !two.is_replayed(), "{at}: {one:?}");
            }
            BothProblem(status, code) => {
                for problem in [one, two] {
                    let found = (problem.status, problem.code());
                    assert_eq!((found.0, found.1.as_deref(), runs), (status, Some(code), 0), "{at}");
                }
            }
        }
    }
}

async fn check_everywhere(table: &str, pairs: fn() -> Vec<Pair>) {
    let redis = RedisServer::start();
    check(World::in_memory().url(), table, pairs()).await;
    check(&redis.url(), table, pairs()).await;
}

#[tokio::test]
async fn the_form_of_the_key_decides() {
    check_everywhere("key", key_forms).await;
}

#[tokio::test]
async fn method_and_route_decide() {
    check_everywhere("route", methods_and_routes).await;
}

#[tokio::test]
async fn each_scope_has_its_own_records() {
    check_everywhere("scope", scopes).await;
}

#[tokio::test]
async fn another_payload_is_refused() {
    check_everywhere("payload", payloads).await;
}

#[tokio::test]
async fn the_status_decides_what_is_stored() {
    check_everywhere("status", statuses).await;
}

#[test]
fn the_table_is_not_shorter_than_promised() {
    let tables = [key_forms(), methods_and_routes(), scopes(), payloads(), statuses()];

    assert!(tables.iter().map(Vec::len).sum::<usize>() >= 60);
}

#[tokio::test]
async fn a_required_key_is_required_of_covered_methods() {
    let shop = Shop::start(World::in_memory().url(), |layer| layer.required(true)).await;

    let missing = shop.send(to("/orders/1").keys(&[]).request()).await;
    let other = shop.send(to("/orders/1").keys(&[]).method("PUT").request()).await;
    let given = shop.send(to("/orders/1").request()).await;

    assert_eq!((missing.status, missing.code().as_deref()), (400, Some("missing_idempotency_key")));
    assert_eq!((other.status, given.status, shop.counters.runs()), (201, 201, 2));
}

#[tokio::test]
async fn other_methods_are_covered_if_listed() {
    let shop = Shop::start(World::in_memory().url(), |layer| layer.methods([http::Method::PUT])).await;

    let (put, post) = (to("/orders/1").method("PUT"), to("/orders/1").key("k2"));
    let _ = shop.send(put.request()).await;
    let again = shop.send(put.request()).await;
    let _ = shop.send(post.request()).await;
    let not_covered = shop.send(post.request()).await;

    assert!(again.is_replayed() && !not_covered.is_replayed());
    assert_eq!(shop.counters.runs(), 3);
}

#[tokio::test]
async fn a_refused_payload_leaves_the_stored_response() {
    let redis = RedisServer::start();
    for url in [World::in_memory().url(), &redis.url()] {
        let shop = Shop::start(url, |layer| layer).await;
        let first = shop.send(to("/orders/1").request()).await;

        let refused = shop.send(to("/orders/1").body("b").request()).await;
        let again = shop.send(to("/orders/1").request()).await;
        let refused_again = shop.send(to("/orders/1").body("b").request()).await;

        assert_eq!((refused.status, refused_again.status), (422, 422), "{url}");
        assert!(again.is_replayed() && again.body == first.body, "{url}");
        assert_eq!(shop.counters.runs(), 1, "{url}");
    }
}

/// Every request while the first one runs.
#[tokio::test]
async fn a_running_request_refuses_its_duplicates() {
    let redis = RedisServer::start();
    for url in [World::in_memory().url(), &redis.url()] {
        let shop = Shop::start(url, |layer| layer).await;
        let first = tokio::spawn({
            let (shop, request) = (shop.clone(), to("/gate/1").request());
            async move { shop.send(request).await }
        });
        shop.counters.entered.notified().await;

        let duplicate = shop.send(to("/gate/1").request()).await;
        let other_payload = shop.send(to("/gate/1").body("b").request()).await;
        let other_path = shop.send(to("/gate/2").request()).await;
        let other_route = shop.send(to("/orders/1").request()).await;
        shop.counters.gate.open();
        let first = first.await.expect("no panic");
        let later = shop.send(to("/gate/1").request()).await;

        let retry_after = duplicate.headers.get("retry-after").map(|value| value.to_str().expect("digits"));
        assert_eq!((duplicate.status, retry_after), (409, Some("1")), "{url}");
        assert_eq!(duplicate.code().as_deref(), Some("in_progress"), "{url}");
        for refused in [other_payload, other_path] {
            assert_eq!((refused.status, refused.code().as_deref()), (422, Some("key_reused")), "{url}");
        }
        assert_eq!((other_route.status, first.status), (201, 201), "{url}");
        assert!(later.is_replayed() && later.body == first.body, "{url}");
        assert_eq!(shop.counters.runs(), 2, "{url}: the gate and the other route");
    }
}

/// Requests of two processes at one time: each that loses the race is a duplicate, not a failure of
/// the server.
#[tokio::test]
async fn a_lost_race_is_a_conflict() {
    const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let redis = RedisServer::start();
    let shops =
        [Shop::start(&redis.url(), |layer| layer).await, Shop::start(&redis.url(), |layer| layer).await];
    for key in KEYS {
        let requests = (0..16).map(|number| shops[number % 2].send(to("/orders/1").key(key).request()));
        let answers = futures_util::future::join_all(requests).await;

        for answer in answers {
            match answer.status {
                201 => {}
                409 => assert!(answer.headers.contains_key("retry-after"), "{key}"),
                other => panic!("{key}: {other}, {:?}", answer.code()),
            }
        }
    }
    assert_eq!(shops.map(|shop| shop.counters.runs()).iter().sum::<usize>(), KEYS.len());
}

/// Every request after the first one has crashed.
#[tokio::test]
async fn a_crashed_request_is_never_repeated() {
    let redis = RedisServer::start();
    for url in [World::in_memory().url(), &redis.url()] {
        let shop = Shop::start(url, |layer| layer).await;
        let first = tokio::spawn({
            let (shop, request) = (shop.clone(), to("/panic/1").request());
            async move { shop.send(request).await }
        });
        assert!(first.await.is_err_and(|failed| failed.is_panic()), "{url}: the handler panics");

        let duplicate = until_not_running(&shop, &to("/panic/1")).await;
        let other_payload = shop.send(to("/panic/1").body("b").request()).await;
        let other_route = shop.send(to("/orders/1").request()).await;

        assert_eq!((duplicate.0, duplicate.1.as_deref()), (500, Some("outcome_unknown")), "{url}");
        assert_eq!(
            (other_payload.status, other_payload.code().as_deref()),
            (422, Some("key_reused")),
            "{url}"
        );
        assert_eq!((other_route.status, shop.counters.runs()), (201, 2), "{url}");
    }
}

/// Repeats a request until the end of the crashed one has reached the store.
async fn until_not_running(shop: &Shop, request: &Sent) -> (u16, Option<String>) {
    until("the crash is stored", async || shop.send(request.request()).await.status != 409).await;
    let answer = shop.send(request.request()).await;
    (answer.status, answer.code())
}
