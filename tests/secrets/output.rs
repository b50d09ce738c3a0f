//! Output of public types, TLS, callbacks, and hashed key parts: none shows a secret.

use std::time::Duration;

use dlock_runtime::{Credentials, Error, KeyBuilder, LockManager, Options, doctor};
use dlock_tests::{Authority, RedisServer, within};

use super::{LONG, Log, SECRET, SOON, assert_clean, printed};

#[tokio::test]
async fn every_public_type_is_shown_without_secrets() {
    let log = Log::of_the_process();
    let server = RedisServer::builder().password(SECRET).start();
    let builder = LockManager::builder(&server.url());
    let by_a_callback =
        LockManager::builder("redis://h:1").credentials(|| async { Ok(Credentials::new(SECRET, SECRET)) });
    let manager = builder.clone().connect().await.expect("the password is correct");
    let lock = manager.lock("order:7").lease(LONG);
    let guard = lock.acquire().await.expect("the lock is free");
    let seen = manager.inspect("order:7").await.expect("the server replies");
    let token = guard.fencing_token().await;
    let healthy = doctor(&server.url()).await.expect("the URL can be used");
    let wrong = server.url().replace(SECRET, &format!("{SECRET}x"));
    let sick = doctor(&wrong).await.expect("the URL can be used");
    let sentinel = format!("redis+sentinel://shop:{SECRET}@h1,h2,h3/main?sentinel_password={SECRET}");
    let of_sentinels = LockManager::builder(&sentinel);

    let shown = [
        format!("{builder:?} {builder:#?} {by_a_callback:?} {of_sentinels:?} {of_sentinels:#?}"),
        format!("{:?} {:#?}", Credentials::password(SECRET), Credentials::new("shop", SECRET)),
        format!("{manager:?} {lock:?} {guard:?} {seen:?} {token:?} {:?}", Options::default()),
        format!("{healthy:?} {sick:?} {healthy} {sick}"),
        format!("{:?}", guard.key()),
    ];

    assert!(sick.to_string().contains("password"), "{sick}");
    for text in shown.into_iter().chain([log.text()]) {
        assert_clean(&text);
    }
}

#[tokio::test]
async fn failing_or_panicking_callback_reveals_no_password() {
    let log = Log::of_the_process();
    let server = RedisServer::builder().password("another").start();
    let builder = LockManager::builder(&format!("redis://127.0.0.1:{}", server.port()));

    let wrong = builder.clone().credentials(|| async { Ok(Credentials::password(SECRET)) });
    let wrong = within(SOON, "the refusal", wrong.connect()).await.expect_err("the password is wrong");
    // The text of a callback's own error or panic is its own. The library must not add the password
    // to it.
    let panics = builder.credentials(|| async {
        let fetched = Credentials::password(SECRET);
        panic!("a bug in the callback, with {fetched:?}")
    });
    let panics = within(SOON, "the refusal", panics.connect()).await.expect_err("there are no credentials");

    assert!(log.text().contains("a bug in the callback"), "panics are logged");
    for text in [printed(&wrong), printed(&panics), log.text()] {
        assert_clean(&text);
    }
}

#[tokio::test]
async fn a_life_over_tls_prints_neither_the_key_nor_a_piece_of_it() {
    let Some(authority) = Authority::of_servers() else { return };
    let log = Log::of_the_process();
    let server = RedisServer::builder()
        .password(SECRET)
        .tls(authority.sign("127.0.0.1"), &authority)
        .line("tls-auth-clients yes")
        .start();
    let client = authority.sign("shop");
    let url = server.tls_url();
    let builder = LockManager::builder(&url)
        .tls_ca_pem(authority.pem())
        .tls_client_certificate_pem(&client.certificate, &client.key);

    let manager = builder.clone().connect().await.expect("both sides trust the other's authority");
    let guard =
        manager.lock("order:7").lease(Duration::from_millis(600)).acquire().await.expect("it is free");
    server.call(&["DEL", "dlock:order:7"]);
    within(SOON, "the loss", guard.lost()).await;
    let stranger = LockManager::builder(&url).tls_ca_pem(authority.pem()).connect();
    let stranger = within(SOON, "the refusal", stranger).await.expect_err("the client has no certificate");
    let shown = format!("{builder:?} {manager:?} {guard:?} {}", printed(&stranger));

    // The first line of every key is the same, so use a later one.
    let piece = client.key.lines().nth(2).expect("a key has several lines");
    for text in [shown, log.text()] {
        assert_clean(&text);
        assert!(!text.contains(piece), "the key is in: {text}");
    }
}

#[tokio::test]
async fn a_hashed_value_is_in_no_error_and_no_line_of_the_log() {
    let log = Log::of_the_process();
    let mut server = RedisServer::start();
    let manager =
        LockManager::connect(&server.url_with("?tracking=off")).await.expect("it accepts connections");
    let other = LockManager::connect(&server.url()).await.expect("it accepts connections");
    let key = || KeyBuilder::default().text("mail:").hashed("address", SECRET).build().expect("it is a key");
    let lease = Duration::from_secs(2);

    let lock = manager.lock(key()).lease(lease);
    let guard = lock.acquire().await.expect("the lock is free");
    let contended = other.lock(key()).retry(1).acquire().await.expect_err("it is held");
    let nested = lock.run(async |_guard| ()).await.expect_err("it is held by another guard");
    let held_for = lock.clone().wait(lease / 8).acquire().await.expect_err("it is held");
    server.kill();
    within(SOON, "the loss", guard.lost()).await;
    let lost = guard.check().expect_err("no renewal succeeds");
    let unavailable = other.lock(key()).acquire().await.expect_err("the server is gone");
    let shown = format!("{lock:?} {guard:?} {:?} {}", key(), key());

    assert!(matches!(lost, Error::Lost { .. }) && unavailable.is_unavailable());
    for error in [&contended, &nested, &held_for, &lost, &unavailable] {
        assert_clean(&printed(error));
    }
    for text in [shown, log.text()] {
        assert_clean(&text);
    }
}
