//! axum: handlers in typical application style.

use axum::extract::{Form, Json, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use dlock_runtime::{Error, KeyBuilder, distributed_lock};

use crate::Shop;
use crate::http::{Named, Service, answer, send, suite};
use crate::visit::door;

suite!(serve);

#[tokio::test]
async fn a_client_that_hangs_up_frees_the_lock_at_once() {
    crate::http::a_client_that_hangs_up_frees_the_lock_at_once(serve).await;
}

#[tokio::test]
async fn every_error_type_of_axum_carries_a_lock_error() {
    let mut service = Service::start("memory://", serve).await;
    let first = send(service.post("/orders/7"));
    let visit = service.visits.next().await;
    let text = "another request is working on this: try again in a moment";
    let after = || Some("1".to_owned());

    let named = || Named { id: "7".to_owned() };
    let response = answer(send(service.post("/response/7"))).await;
    let status = answer(send(service.post("/status?id=7"))).await;
    let status_and_text = answer(send(service.post("/status-and-text").form(&named()))).await;
    let anything = answer(send(service.post("/anything").json(&named()))).await;
    let bare_response = answer(send(service.post("/bare-response/7"))).await;
    let bare_status = answer(send(service.post("/bare-status/7"))).await;
    visit.end();

    assert_eq!(response, (409, after(), text.to_owned()));
    assert_eq!(status, (409, None, String::new()));
    assert_eq!(status_and_text, (409, None, text.to_owned()));
    assert_eq!(anything, (409, after(), text.to_owned()));
    assert_eq!(bare_response, (409, after(), text.to_owned()));
    assert_eq!(bare_status, (409, None, String::new()));
    assert_eq!(answer(first).await.0, 200);
}

#[test]
fn extractors_format_their_inner_value() {
    let key =
        KeyBuilder::new("").text("a:").part("path", &Path(7_u64)).text(":").part("query", &Query("a:b"));
    let key = key.text(":").part("json", &Json(true)).text(":").part("form", &Form('x'));
    let key = key.text(":").part("extension", &Extension(8_u8)).text(":").part("state", &State("eu"));

    let key = key.build().expect("a key");

    assert_eq!(key.as_str(), "a:7:a%3Ab:true:x:8:eu");
}

#[tokio::test]
async fn a_layer_finds_the_error_in_the_response() {
    let (door, _visits) = door();
    let locks =
        dlock_runtime::LockManager::connect("memory://").await.expect("the in-memory backend connects");
    let shop = Shop { locks, door };

    let refused = name(State(shop), Json(Named { id: String::new() })).await.into_response();

    assert!(matches!(refused.extensions().get(), Some(Error::InvalidKey { .. })), "{refused:?}");
}

fn serve(listener: std::net::TcpListener, shop: Shop) {
    let routes = Router::new()
        .route("/orders/{id}", post(place))
        .route("/short/{id}", post(place_shortly))
        .route("/names", post(name))
        .route("/response/{id}", post(with_response))
        .route("/status", post(with_status))
        .route("/status-and-text", post(with_status_and_text))
        .route("/anything", post(with_anything))
        .route("/bare-response/{id}", post(bare_response))
        .route("/bare-status/{id}", post(bare_status))
        .with_state(shop);
    let listener = tokio::net::TcpListener::from_std(listener).expect("it is in a runtime");
    tokio::spawn(async move { axum::serve(listener, routes).await });
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<id>", lease = "30s", manager = shop.locks)]
async fn place(State(shop): State<Shop>, Path(id): Path<u64>) -> Result<String, Error> {
    shop.door.visit().await;
    Ok(format!("order {id}"))
}

#[distributed_lock(key = "order:<id>", lease = "600ms", manager = shop.locks)]
#[axum::debug_handler]
async fn place_shortly(State(shop): State<Shop>, id: Path<u64>) -> Result<String, Error> {
    shop.door.visit().await;
    Ok(format!("order {}", *id))
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<order.id>", lease = "30s", manager = shop.locks)]
async fn name(State(shop): State<Shop>, order: Json<Named>) -> Result<Json<Named>, Error> {
    shop.door.visit().await;
    Ok(order)
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<id>", lease = "30s", manager = shop.locks)]
async fn with_response(State(shop): State<Shop>, id: Path<u64>) -> Result<String, Response> {
    shop.door.visit().await;
    Ok(format!("order {}", *id))
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<order.id>", lease = "30s", manager = shop.locks)]
async fn with_status(State(shop): State<Shop>, order: Query<Named>) -> Result<Json<Named>, StatusCode> {
    shop.door.visit().await;
    Ok(Json(order.0))
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<order.id>", lease = "30s", manager = shop.locks)]
async fn with_status_and_text(
    State(shop): State<Shop>,
    Form(order): Form<Named>,
) -> Result<impl IntoResponse, (StatusCode, String)> {
    shop.door.visit().await;
    Ok((StatusCode::CREATED, order.id))
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<order.id>", lease = "30s", manager = shop.locks)]
async fn with_anything(State(shop): State<Shop>, Json(order): Json<Named>) -> axum::response::Result<String> {
    shop.door.visit().await;
    Ok(order.id)
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<id>", lease = "30s", manager = shop.locks)]
async fn bare_response(State(shop): State<Shop>, id: Path<u64>) -> Response {
    shop.door.visit().await;
    format!("order {}", *id).into_response()
}

async fn fallback_status(_: State<Shop>, _: Path<u64>) -> StatusCode {
    std::future::ready(StatusCode::CONFLICT).await
}

#[axum::debug_handler]
#[distributed_lock(key = "order:<id>", lease = "30s", manager = shop.locks, on_contended = fallback(fallback_status))]
async fn bare_status(State(shop): State<Shop>, Path(id): Path<u64>) -> StatusCode {
    shop.door.visit().await;
    if id > 0 { StatusCode::CREATED } else { StatusCode::NOT_FOUND }
}
