//! Options that are out of bounds are refused before the first request.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_runtime::tower::IdempotencyLayer;
use dlock_tests::QuorumFleet;
use dlock_tests::world::World;
use tower::Layer;

use crate::shop::{Scope, ShopLayer, user};

const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);

/// Returns the message of the panic with which a service with these options does not start.
async fn refused(configure: impl FnOnce(ShopLayer) -> ShopLayer) -> String {
    refused_over(World::in_memory().url(), configure).await
}

/// Like [`refused`], with the store at `url`.
async fn refused_over(url: &str, configure: impl FnOnce(ShopLayer) -> ShopLayer) -> String {
    let manager = LockManager::connect(url).await.expect("the store is reachable");
    let layer = IdempotencyLayer::new(manager, user as Scope);
    let service = AssertUnwindSafe(|| drop(configure(layer).layer(())));
    let panic = catch_unwind(service).expect_err("the options are refused");
    *panic.downcast::<String>().expect("it has a message")
}

#[tokio::test]
async fn a_service_with_options_out_of_bounds_does_not_start() {
    let short = refused(|layer| layer.ttl(Duration::from_secs(10))).await;
    assert!(short.contains("`ttl`") && short.contains("1 min"), "{short}");
    for ttl in [Duration::ZERO, Duration::from_millis(59_999), YEAR] {
        assert!(refused(|layer| layer.ttl(ttl)).await.contains("`ttl`"), "{ttl:?}");
    }
    for lease in [Duration::ZERO, Duration::from_millis(99), YEAR] {
        let message = refused(|layer| layer.lease(lease)).await;
        assert!(message.contains("lease") && message.contains("100 ms"), "{lease:?}: {message}");
    }
    let longer = refused(|layer| layer.ttl(Duration::from_secs(60)).lease(Duration::from_secs(61))).await;
    assert!(longer.contains("`lease` is longer than `ttl`"), "{longer}");
}

#[tokio::test]
async fn a_service_over_a_quorum_does_not_start() {
    let quorum = QuorumFleet::start_young(3);

    let message = refused_over(&quorum.url_with(""), |layer| layer).await;

    assert!(message.contains("a quorum keeps no records of idempotent calls"), "{message}");
}

#[tokio::test]
async fn the_refusal_names_the_line_of_the_option() {
    let place = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&place);
    let before = std::panic::take_hook();
    let this = std::thread::current().id();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().id() == this {
            let line = panic.location().map(|location| (location.file().to_owned(), location.line()));
            *seen.lock().expect("no test panics while it holds the lock") = line;
        } else {
            before(panic);
        }
    }));
    let mut line = 0;
    refused(|layer| {
        line = line!() + 1;
        layer.ttl(Duration::from_secs(10))
    })
    .await;

    let (file, at) = place.lock().expect("as above").clone().expect("it panicked");
    assert!(file.ends_with("options.rs") && at == line, "{file}:{at}, not {line}");
}

#[tokio::test]
async fn options_are_set_in_any_order() {
    let world = World::in_memory();
    let manager = LockManager::connect(world.url()).await.expect("the store is reachable");
    let hours = |hours: u64| Duration::from_secs(hours * 3600);

    // Longer than the default `ttl` of 24 h, until the next line.
    let layer = IdempotencyLayer::new(manager, user as Scope).lease(hours(48)).ttl(hours(72));

    drop(layer.layer(()));
}
