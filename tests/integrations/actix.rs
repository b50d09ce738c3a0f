//! actix-web: handlers in typical application style.

use actix_web::{App, FromRequest, HttpMessage, HttpRequest, HttpResponse, HttpServer, Responder, post, web};
use dlock_runtime::{Error, KeyBuilder, distributed_lock};
use dlock_tests::world::World;

use crate::Shop;
use crate::http::{Named, Service, answer, send, suite};

suite!(serve);

#[tokio::test]
async fn disconnect_frees_the_lock_if_half_closed_is_off() {
    crate::http::a_client_that_hangs_up_frees_the_lock_at_once(serve_without_half_closed).await;
}

/// By default, actix-web treats a closed client side as half-closed, and keeps the handler running.
#[tokio::test]
async fn disconnect_does_not_stop_the_handler_by_default() {
    let world = World::in_memory();
    let mut service = Service::start(world.url(), serve).await;
    let client = send(service.post("/orders/7"));
    let visit = service.visits.next().await;

    client.abort();
    // The single worker has processed the first disconnect before it serves another connection.
    let other = send(service.post("/orders/8"));
    service.visits.next().await.end();
    assert_eq!(answer(other).await.0, 200);

    visit.end();
    crate::assert_free_at_once(&world, "order:7").await;
}

#[tokio::test]
async fn every_error_type_of_actix_carries_a_lock_error() {
    let mut service = Service::start("memory://", serve).await;
    let first = send(service.post("/orders/7"));
    let visit = service.visits.next().await;

    let named = || Named { id: "7".to_owned() };
    let any = answer(send(service.post("/any?id=7"))).await;
    let request = answer(send(service.post("/request").form(&named()))).await;
    let bare = answer(send(service.post("/bare-response/7"))).await;
    visit.end();

    let refused =
        (409, Some("1".to_owned()), "another request is working on this: try again in a moment".to_owned());
    assert_eq!((any, request, bare), (refused.clone(), refused.clone(), refused));
    assert_eq!(answer(first).await.0, 200);
}

#[tokio::test]
async fn extractors_format_their_inner_value() {
    let request = actix_web::test::TestRequest::default().to_http_request();
    request.extensions_mut().insert(8_u8);
    let data = web::ReqData::<u8>::extract(&request).await.expect("the extension is set");
    let key = KeyBuilder::new("").text("a:").part("path", &web::Path::from(7_u64));
    let key = key.text(":").part("query", &web::Query("a:b")).text(":").part("json", &web::Json(true));
    let key = key.text(":").part("form", &web::Form('x')).text(":").part("data", &web::Data::new("eu"));

    let key = key.text(":").part("request data", &data).build().expect("a key");

    assert_eq!(key.as_str(), "a:7:a%3Ab:true:x:eu:8");
}

fn serve(listener: std::net::TcpListener, shop: Shop) {
    serve_with(listener, shop, true);
}

fn serve_without_half_closed(listener: std::net::TcpListener, shop: Shop) {
    serve_with(listener, shop, false);
}

fn serve_with(listener: std::net::TcpListener, shop: Shop, half_closed: bool) {
    let shop = web::Data::new(shop);
    let app = move || {
        App::new()
            .app_data(shop.clone())
            .service(place)
            .service(place_shortly)
            .service(name)
            .service(with_request)
            .route("/any", web::post().to(with_any))
            .service(bare_response)
    };
    let server = HttpServer::new(app).workers(1).disable_signals().h1_allow_half_closed(half_closed);
    tokio::spawn(server.listen(listener).expect("the socket listens").run());
}

#[post("/orders/{id}")]
#[distributed_lock(key = "order:<path>", lease = "30s", manager = shop.locks)]
async fn place(path: web::Path<u64>, shop: web::Data<Shop>) -> Result<String, Error> {
    shop.door.visit().await;
    Ok(format!("order {path}"))
}

#[distributed_lock(key = "order:<path.0>", lease = "600ms", manager = shop.locks)]
#[post("/short/{id}")]
async fn place_shortly(path: web::Path<(u64,)>, shop: web::Data<Shop>) -> Result<String, Error> {
    shop.door.visit().await;
    Ok(format!("order {}", path.0))
}

#[post("/names")]
#[distributed_lock(key = "order:<order.id>", lease = "30s", manager = shop.locks)]
async fn name(order: web::Json<Named>, shop: web::Data<Shop>) -> Result<impl Responder, Error> {
    shop.door.visit().await;
    Ok(HttpResponse::Created().json(order))
}

#[post("/request")]
#[distributed_lock(key = "order:<order.id>", lease = "30s", manager = shop.locks)]
async fn with_request(
    request: HttpRequest,
    web::Form(order): web::Form<Named>,
    shop: web::Data<Shop>,
) -> Result<HttpResponse, actix_web::Error> {
    shop.door.visit().await;
    Ok(HttpResponse::Ok().body(format!("{} {}", request.path(), order.id)))
}

#[post("/bare-response/{id}")]
#[distributed_lock(key = "order:<id>", lease = "30s", manager = shop.locks)]
async fn bare_response(id: web::Path<u64>, shop: web::Data<Shop>) -> HttpResponse {
    shop.door.visit().await;
    HttpResponse::Ok().body(format!("order {id}"))
}

#[distributed_lock(key = "order:<order.id>", lease = "30s", manager = shop.locks)]
async fn with_any(order: web::Query<Named>, shop: web::Data<Shop>) -> actix_web::Result<String> {
    shop.door.visit().await;
    Ok(order.into_inner().id)
}
