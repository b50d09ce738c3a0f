//! Accepted certificates for the addresses that a cluster announces.

use std::cell::Cell;
use std::time::Duration;

use dlock_runtime::{Error, LockManager};
use dlock_tests::{Authority, ClusterFleet, within};

const LONG: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(20);

/// Starts a cluster that announces 127.0.0.1. The first server's certificate is for `first`, the
/// others' for `others`.
fn fleet_of(authority: &Authority, first: &str, others: &str) -> ClusterFleet {
    let started = Cell::new(0);
    ClusterFleet::start_with(|server| {
        let name = if started.replace(started.get() + 1) == 0 { first } else { others };
        let server = server.tls(authority.sign(name), authority);
        server.line("tls-cluster yes").line("tls-replication yes")
    })
}

/// Returns a URL with `options` that reaches one server as `host`.
fn url(fleet: &ClusterFleet, host: &str, options: &str) -> String {
    let port = fleet.servers()[0].known_port();
    format!("rediss+cluster://{}{host}:{port}{options}", fleet.servers()[0].access())
}

async fn connect(url: &str, authority: &Authority) -> Result<LockManager, Error> {
    within(SOON, "connecting", LockManager::builder(url).tls_ca_pem(authority.pem()).connect()).await
}

async fn lock_on_each(fleet: &ClusterFleet, manager: &LockManager) {
    for key in fleet.keys_on_each("order") {
        let held = manager.lock(&*key).lease(LONG).acquire().await.expect("the lock is free");
        held.release().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_address_accepts_a_certificate_for_the_url_host() {
    let Some(authority) = Authority::of_servers() else { return };
    let fleet = fleet_of(&authority, "localhost", "localhost");

    for (host, options) in [
        ("localhost", ""),
        ("LOCALHOST", ""),
        ("127.0.0.1", "?tls_name=localhost"),
        ("127.0.0.1", "?tls_name=LocalHost."),
        ("localhost", "?tls_name=localhost"),
    ] {
        let manager = connect(&url(&fleet, host, options), &authority).await;
        lock_on_each(&fleet, &manager.unwrap_or_else(|error| panic!("{host}{options}: {error}"))).await;
    }
    for (host, options, words) in [
        ("127.0.0.1", "", "give one by `tls_name`"),
        ("127.0.0.1", "?tls_name=cache.example", "not for `127.0.0.1` or `cache.example`"),
    ] {
        let error = connect(&url(&fleet, host, options), &authority).await.expect_err("no name matches");
        assert!(error.to_string().contains(words), "{host}{options}: {error}");
    }
    let builder = LockManager::builder(&url(&fleet, "localhost", "")).tls_ca_pem(authority.pem());
    let report = builder.doctor().await.expect("the URL is valid").to_string();
    assert!(!report.contains("certificate"), "{report}");
    for server in fleet.servers() {
        assert!(report.contains(&format!("127.0.0.1:{}", server.known_port())), "{report}");
    }
    // A trusted name does not replace a trusted authority.
    let by_another = connect(&url(&fleet, "localhost", ""), &Authority::new()).await;
    let error = by_another.expect_err("its authority is not trusted").to_string();
    assert!(error.contains("not signed by a trusted authority"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_address_rejects_a_certificate_for_another_name() {
    let Some(authority) = Authority::of_servers() else { return };
    let fleet = fleet_of(&authority, "localhost", "cache.example");

    let manager = connect(&url(&fleet, "localhost", ""), &authority).await;

    let mut refusals = Vec::new();
    match manager {
        Ok(manager) => {
            for key in fleet.keys_on_each("order") {
                refusals.extend(manager.lock(&*key).lease(LONG).acquire().await.err());
            }
        }
        Err(error) => refusals.push(error),
    }
    let reported = refusals.iter().map(ToString::to_string).find(|text| text.contains("cache.example"));
    let reported = reported.unwrap_or_else(|| panic!("{refusals:?}"));
    for words in [
        "not for `127.0.0.1` or `localhost`",
        "the cluster announced this address",
        "`cluster-announce-hostname`",
    ] {
        assert!(reported.contains(words), "`{words}` is not in: {reported}");
    }
}
