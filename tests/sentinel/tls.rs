//! Accepted certificates for the addresses that sentinels announce.

use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::{Authority, RedisServer, within};

const SOON: Duration = Duration::from_secs(20);

/// Starts a master with a certificate for `name`, and a sentinel with one for `localhost` that
/// announces it as 127.0.0.1.
fn start(authority: &Authority, name: &str) -> (RedisServer, RedisServer) {
    let master = RedisServer::builder().tls(authority.sign(name), authority).start();
    let monitor = format!("sentinel monitor mymaster 127.0.0.1 {} 1", master.known_port());
    let sentinel = RedisServer::builder().sentinel().tls(authority.sign("localhost"), authority);
    (master, sentinel.line("tls-replication yes").line(&monitor).start())
}

async fn connect(sentinel: &RedisServer, options: &str, authority: &Authority) -> Result<LockManager, Error> {
    let url = format!("rediss+sentinel://localhost:{}/mymaster{options}", sentinel.known_port());
    within(SOON, "connecting", LockManager::builder(&url).tls_ca_pem(authority.pem()).connect()).await
}

#[tokio::test]
async fn announced_address_accepts_a_certificate_for_the_url_host() {
    let Some(authority) = Authority::of_servers() else { return };
    let (_master, sentinel) = start(&authority, "localhost");

    let manager = connect(&sentinel, "", &authority).await.expect("the certificate is for the URL's name");

    let held = manager.lock("order:7").acquire().await.expect("the lock is free");
    held.release().await.expect("it was held");
    let url = format!("rediss+sentinel://localhost:{}/mymaster", sentinel.known_port());
    let report = LockManager::builder(&url).tls_ca_pem(authority.pem()).doctor().await;
    let report = report.expect("the URL is valid").to_string();
    assert!(!report.contains("certificate"), "{report}");
}

#[tokio::test]
async fn an_announced_address_with_another_certificate_needs_tls_name() {
    let Some(authority) = Authority::of_servers() else { return };
    let (_master, sentinel) = start(&authority, "cache.example");

    let refused =
        connect(&sentinel, "", &authority).await.expect_err("the certificate has another name").to_string();
    let by_name = connect(&sentinel, "?tls_name=cache.example", &authority).await;

    for words in ["not for `127.0.0.1` or `localhost`", "the sentinels announced this address", "`tls_name`"]
    {
        assert!(refused.contains(words), "`{words}` is not in: {refused}");
    }
    assert!(by_name.is_ok(), "{by_name:?}");
}
