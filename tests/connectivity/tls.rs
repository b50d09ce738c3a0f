//! TLS with custom certificates, and the errors of unusable ones.

use std::path::PathBuf;
use std::time::Duration;

use dlock_runtime::{Builder, Error, LockManager, doctor};
use dlock_tests::server::RedisServerBuilder;
use dlock_tests::{Answer, Authority, HostileServer, Identity, RedisServer, Worker, within};
use rustls::crypto::{CryptoProvider, ring};
use tempfile::TempDir;

use super::{LONG, SOON, assert_config, assert_grant_is_received, hold_beyond_the_lease, until_ready};

const HOST: &str = "127.0.0.1";

/// A server with a certificate for its address.
fn server_of(authority: &Authority) -> RedisServerBuilder {
    RedisServer::builder().tls(authority.sign(HOST), authority)
}

fn builder_for(server: &RedisServer, authority: &Authority) -> Builder {
    LockManager::builder(&server.tls_url()).tls_ca_pem(authority.pem())
}

/// A directory with the certificates of an authority and of a client.
struct Files {
    dir: TempDir,
}

impl Files {
    fn of(authority: &Authority, client: &Identity) -> Self {
        let files = Self { dir: tempfile::tempdir().expect("a temporary directory") };
        files.write("ca.pem", &authority.pem());
        client.save(&files.path("client.pem"), &files.path("client.key"));
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("the directory is writable");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns URL options whose values are files in this directory.
    fn options(&self, options: &[(&str, &str)]) -> String {
        let option = |(name, file): &(&str, &str)| format!("{name}={}", self.path(file).display());
        format!("?{}", options.iter().map(option).collect::<Vec<_>>().join("&"))
    }
}

#[tokio::test]
async fn hold_over_tls_is_renewed_and_waiters_are_granted() {
    let Some(authority) = Authority::of_servers() else { return };
    let server = server_of(&authority).start();
    let manager = builder_for(&server, &authority).connect().await.expect("its authority is trusted");
    let other = builder_for(&server, &authority).connect().await.expect("its authority is trusted");

    hold_beyond_the_lease(&manager).await;
    assert_grant_is_received(&manager, other).await;
}

#[tokio::test]
async fn the_url_names_files_of_certificates_too() {
    let Some(authority) = Authority::of_servers() else { return };
    let server = server_of(&authority).line("tls-auth-clients yes").start();
    let files = Files::of(&authority, &authority.sign("shop"));
    let options =
        files.options(&[("tls_ca", "ca.pem"), ("tls_cert", "client.pem"), ("tls_key", "client.key")]);

    let manager = LockManager::connect(&format!("{}{options}", server.tls_url())).await;

    hold_beyond_the_lease(&manager.expect("both sides trust the other's authority")).await;
}

#[tokio::test]
async fn client_certificate_is_sent_on_request() {
    let Some(authority) = Authority::of_servers() else { return };
    let server = server_of(&authority).line("tls-auth-clients yes").start();
    let client = authority.sign("shop");

    let manager = builder_for(&server, &authority)
        .tls_client_certificate_pem(client.certificate, client.key)
        .connect()
        .await
        .expect("both sides trust the other's authority");

    hold_beyond_the_lease(&manager).await;
}

#[tokio::test]
async fn an_authority_of_the_system_is_trusted() {
    let Some(authority) = Authority::of_servers() else { return };
    let server = server_of(&authority).start();
    let files = Files::of(&authority, &authority.sign("shop"));
    let system = format!("SSL_CERT_FILE={}", files.path("ca.pem").display());
    let program = env!("CARGO_BIN_EXE_lock-worker");

    let mut worker = Worker::spawn("env", &[&system, program, &server.tls_url()]).await;
    worker.send("acquire order:7 5000 0");

    worker.event("acquired", "order:7").await;
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused() {
    let Some(authority) = Authority::of_servers() else { return };
    let server = server_of(&authority).start();

    let by_the_system = LockManager::connect(&server.tls_url()).await;
    let by_another = builder_for(&server, &Authority::new()).connect().await;
    let by_a_namesake = builder_for(&server, &authority.of_the_same_name()).connect().await;

    let address = format!("redis at 127.0.0.1:{}", server.known_port());
    assert_config(by_the_system, "tls", &[&address, "not signed by a trusted authority", "`tls_ca`"]);
    assert_config(by_another, "tls", &["not signed by a trusted authority"]);
    assert_config(by_a_namesake, "tls", &["not signed by a trusted authority"]);
}

#[tokio::test]
async fn a_certificate_for_another_host_is_rejected_with_both_names() {
    let Some(authority) = Authority::of_servers() else { return };
    let server = RedisServer::builder().tls(authority.sign("cache.example"), &authority).start();

    let refused = builder_for(&server, &authority).connect().await;
    let of_another_name = builder_for(&server, &authority).tls_name("shop.example").connect().await;
    let by_its_name = builder_for(&server, &authority).tls_name("cache.example").connect().await;

    assert_config(refused, "tls", &["cache.example", "not for `127.0.0.1`"]);
    assert_config(of_another_name, "tls", &["cache.example", "not for `127.0.0.1` or `shop.example`"]);
    assert!(by_its_name.is_ok(), "{by_its_name:?}");
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused() {
    let Some(authority) = Authority::of_servers() else { return };
    let server = RedisServer::builder().tls(authority.sign_expired(HOST), &authority).start();

    let refused = builder_for(&server, &authority).connect().await;

    assert_config(refused, "tls", &["has expired", "clock of this machine"]);
}

#[tokio::test]
async fn missing_or_foreign_client_certificate_is_explained() {
    let Some(authority) = Authority::of_servers() else { return };
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let line = format!("tls-protocols {protocol}");
        let server = server_of(&authority).line("tls-auth-clients yes").line(&line).start();
        let stranger = Authority::new().sign("shop");

        // The server closes the connection during our write. The error must not depend on whether
        // its alert or the close is read first.
        for _ in 0..20 {
            let none = builder_for(&server, &authority).connect().await;
            assert_config(none, "tls", &["want", "client certificate", "`tls_cert`"]);
        }
        let strangers = builder_for(&server, &authority)
            .tls_client_certificate_pem(&stranger.certificate, &stranger.key)
            .connect()
            .await;
        assert_config(strangers, "tls", &["rejected the client certificate", "UnknownCA"]);
    }
}

#[tokio::test]
async fn port_without_tls_is_reported() {
    // A Redis without TLS parses the handshake as a line. It waits for the line's end, unless the
    // handshake contains one.
    let server = RedisServer::start();
    let other = HostileServer::start(|_| Answer::Usual);
    let ca = Authority::new().pem(); // reading all system authorities may exceed the limit below
    let over_tls = |url: String| LockManager::builder(&url.replacen("redis", "rediss", 1)).tls_ca_pem(&ca);
    let connect = over_tls(server.url()).connect_timeout(Duration::from_millis(200)).connect();

    let waits = connect.await.expect_err("it does not speak TLS");
    let answers = over_tls(other.url()).connect().await;

    assert!(waits.to_string().contains("not speak TLS on this port"), "{waits}");
    assert_config(answers, "tls", &["does not speak TLS on this port", "`redis://`"]);
    let cluster = over_tls(other.url().replace("redis://", "redis+cluster://")).connect().await;
    assert!(cluster.is_err_and(|error| error.to_string().contains("write `redis+cluster://`")));
}

#[tokio::test]
async fn tls_only_port_is_reported() {
    let Some(authority) = Authority::of_servers() else { return };
    let server = server_of(&authority).start();

    let closed = LockManager::connect("redis://127.0.0.1:1").await.expect_err("the port is closed");

    assert!(!closed.to_string().contains("TLS"), "{closed}");
    for (scheme, path) in [("redis", ""), ("redis+cluster", ""), ("redis+sentinel", "/shop")] {
        let url = server.tls_url().replace("rediss://", &format!("{scheme}://")) + path;
        let words = format!("write `{}://`", scheme.replacen("redis", "rediss", 1));
        let error = LockManager::connect(&url).await.expect_err("it closes the connection");
        assert!(error.is_unavailable() && error.to_string().contains(&words), "{scheme}: {error}");
        let report = doctor(&url).await.expect("the URL can be used").to_string();
        assert!(report.contains(&words), "{scheme}: {report}");
    }
}

#[tokio::test]
async fn unusable_certificates_are_rejected_before_connecting() {
    let authority = Authority::new();
    let client = authority.sign("shop");
    let files = Files::of(&authority, &client);
    files.write("empty.pem", "");
    files.write("other.key", &authority.sign("shop").key);
    let closed = "rediss://127.0.0.1:1";

    for (options, part, words) in [
        (vec![("tls_ca", "missing.pem")], "tls_ca", "cannot be read"),
        (vec![("tls_ca", "empty.pem")], "tls_ca", "no certificate in PEM"),
        (vec![("tls_ca", "client.key")], "tls_ca", "no certificate in PEM"),
        (vec![("tls_cert", "client.pem")], "tls_cert", "`tls_key`"),
        (vec![("tls_key", "client.key")], "tls_key", "`tls_cert`"),
        (vec![("tls_cert", "client.pem"), ("tls_key", "missing")], "tls_key", "cannot be read"),
        (vec![("tls_cert", "empty.pem"), ("tls_key", "client.key")], "tls_cert", "no certificate in PEM"),
        (vec![("tls_cert", "client.pem"), ("tls_key", "client.pem")], "tls_key", "no private key in PEM"),
        (vec![("tls_cert", "client.pem"), ("tls_key", "other.key")], "tls_key", "cannot be used with"),
    ] {
        let refused = LockManager::connect(&format!("{closed}{}", files.options(&options))).await;
        assert_config(refused, part, &[words]);
    }
    let not_asked_for =
        LockManager::builder("redis://127.0.0.1:1").tls_ca_pem(authority.pem()).connect().await;
    assert_config(not_asked_for, "tls", &["`rediss://`"]);
}

#[tokio::test]
async fn files_that_are_not_regular_or_too_large_are_refused() {
    let authority = Authority::new();
    let files = Files::of(&authority, &authority.sign("shop"));
    make_fifo(&files.path("fifo"));
    let large = std::fs::File::create(files.path("large.pem")).expect("the directory is writable");
    large.set_len((1 << 20) + 1).expect("the file can grow");
    std::os::unix::fs::symlink("/dev/zero", files.path("zero")).expect("a link");
    std::os::unix::fs::symlink(files.path("fifo"), files.path("link")).expect("a link");

    for (options, part, words) in [
        (vec![("tls_ca", "fifo")], "tls_ca", "not a regular file"),
        (vec![("tls_ca", "link")], "tls_ca", "not a regular file"),
        (vec![("tls_ca", "zero")], "tls_ca", "not a regular file"),
        (vec![("tls_ca", "")], "tls_ca", "is a directory"),
        (vec![("tls_ca", "large.pem")], "tls_ca", "larger than 1024 KiB"),
        (vec![("tls_ca", "ca.pem"), ("tls_cert", "fifo"), ("tls_key", "client.key")], "tls_cert", "regular"),
        (vec![("tls_ca", "ca.pem"), ("tls_cert", "client.pem"), ("tls_key", "fifo")], "tls_key", "regular"),
        (vec![("tls_cert", "zero"), ("tls_key", "zero"), ("tls_ca", "ca.pem")], "tls_cert", "regular"),
    ] {
        let connect = LockManager::connect(&format!("rediss://127.0.0.1:1{}", files.options(&options))).await;
        assert_config(connect, part, &[words]);
    }
}

#[tokio::test]
async fn system_authorities_that_are_not_regular_files_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (fifo, empty) = (folder.path().join("fifo"), folder.path().join("empty"));
    make_fifo(&fifo);
    std::fs::create_dir(&empty).expect("a directory");

    for (variable, value, words) in [
        ("SSL_CERT_FILE", &*fifo, "SSL_CERT_FILE"),
        ("SSL_CERT_FILE", std::path::Path::new("/dev/zero"), "not a regular file"),
        ("SSL_CERT_FILE", folder.path(), "is a directory"),
        ("SSL_CERT_DIR", &*fifo, "SSL_CERT_DIR"),
        ("SSL_CERT_DIR", &*empty, "no authorities"),
        ("SSL_CERT_DIR", folder.path(), "no authorities"), // the FIFO in it is skipped
    ] {
        let mut worker = tokio::process::Command::new(env!("CARGO_BIN_EXE_lock-worker"));
        worker.arg("rediss://127.0.0.1:1").env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
        worker.env(variable, value).stdin(std::process::Stdio::null()).kill_on_drop(true);
        let output = within(SOON, "the end of the worker", worker.output()).await;
        let output = output.expect("the worker starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{variable}={}: {said}", value.display());
    }
}

#[tokio::test]
async fn a_ca_file_that_turns_into_a_fifo_is_named_until_it_is_back() {
    let Some(authority) = Authority::of_servers() else { return };
    let mut server = server_of(&authority).start();
    let files = Files::of(&authority, &authority.sign("shop"));
    let url = format!("{}{}", server.tls_url(), files.options(&[("tls_ca", "ca.pem")]));
    let manager = LockManager::connect(&url).await.expect("its authority is trusted");

    std::fs::remove_file(files.path("ca.pem")).expect("the file exists");
    make_fifo(&files.path("ca.pem"));
    server.restart();
    let reported = async {
        loop {
            match manager.ready().await {
                Err(Error::Unavailable { reason, .. }) if reason.contains("not a regular file") => break,
                Ok(()) | Err(Error::Unavailable { .. }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    within(SOON, "the reason", reported).await;
    std::fs::remove_file(files.path("ca.pem")).expect("the file exists");
    files.write("ca.pem", &authority.pem());

    until_ready(&manager).await;
}

#[tokio::test]
async fn connecting_installs_no_crypto_provider_for_the_process() {
    let Some(authority) = Authority::of_servers() else { return };
    let server = server_of(&authority).line("tls-auth-clients yes").start();
    let client = authority.sign("shop");
    let builder = builder_for(&server, &authority).tls_client_certificate_pem(client.certificate, client.key);
    let before = builder.clone().connect().await.expect("both sides trust the other's authority");

    assert!(CryptoProvider::get_default().is_none(), "the process has a default provider");
    ring::default_provider().install_default().expect("the application is the first to install one");

    let after = builder.connect().await.expect("the application's provider is used");
    hold_beyond_the_lease(&before).await;
    hold_beyond_the_lease(&after).await;
}

fn make_fifo(path: &std::path::Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("`mkfifo` can be run");
    assert!(made.success());
}

#[tokio::test]
async fn no_private_key_is_printed() {
    let authority = Authority::new();
    let client = authority.sign("shop");
    let piece = client.key.lines().nth(1).expect("a key has several lines").to_owned();

    let builder = LockManager::builder("rediss://127.0.0.1:1")
        .tls_client_certificate_pem(&client.certificate, &client.key);
    let shown = format!("{builder:?} {builder:#?}");
    // Swap the certificate and the key, as a user might by mistake.
    let swapped = LockManager::builder("rediss://127.0.0.1:1")
        .tls_client_certificate_pem(&client.key, &client.certificate)
        .connect()
        .await;

    assert!(shown.contains("tls_client_certificate_pem: ..") && !shown.contains(&piece), "{shown}");
    let text = format!("{swapped:?} {}", swapped.as_ref().expect_err("no certificate is a key"));
    assert!(!text.contains(&piece), "{text}");
}

#[tokio::test]
async fn manager_recovers_from_an_untrusted_server_certificate() {
    let Some(authority) = Authority::of_servers() else { return };
    let mut server = server_of(&authority).start();
    let manager = builder_for(&server, &authority).connect().await.expect("its authority is trusted");

    server.show(&Authority::new().sign(HOST));
    server.restart();
    let reported = async {
        loop {
            match manager.ready().await {
                Err(Error::Unavailable { reason, .. })
                    if reason.contains("not signed by a trusted authority") =>
                {
                    break;
                }
                Ok(()) | Err(Error::Unavailable { .. }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    within(SOON, "the reason", reported).await;
    let refused = manager.lock("order:7").lease(LONG).acquire().await;
    server.show(&authority.sign(HOST));
    server.restart();
    until_ready(&manager).await;

    assert!(matches!(&refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(manager.lock("order:7").lease(LONG).acquire().await.is_ok());
}

#[tokio::test]
async fn replaced_certificate_files_are_used_when_reconnecting() {
    let Some(authority) = Authority::of_servers() else { return };
    let next = Authority::new();
    let mut server = server_of(&authority).line("tls-auth-clients yes").start();
    let files = Files::of(&authority, &authority.sign("shop"));
    let options =
        files.options(&[("tls_ca", "ca.pem"), ("tls_cert", "client.pem"), ("tls_key", "client.key")]);
    let manager = LockManager::connect(&format!("{}{options}", server.tls_url()))
        .await
        .expect("both sides trust the other's authority");

    files.write("ca.pem", &next.pem());
    next.sign("shop").save(&files.path("client.pem"), &files.path("client.key"));
    server.show(&next.sign(HOST));
    server.trust(&next);
    server.restart();

    until_ready(&manager).await;
}
