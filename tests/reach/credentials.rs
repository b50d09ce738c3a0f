//! Credentials that a callback gives, for each connection anew.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::{Credentials, Error, LockManager};
use dlock_tests::{RedisServer, within};

use super::{LONG, SOON, assert_config, hold_beyond_the_lease, is_told_of_grants, until_ready};

/// What the callback gives, and how often it was asked.
#[derive(Clone, Default)]
struct Vault(Arc<(Mutex<String>, AtomicU32)>);

impl Vault {
    fn with(password: &str) -> Self {
        let vault = Self::default();
        vault.put(password);
        vault
    }

    fn put(&self, password: &str) {
        password.clone_into(&mut self.0.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn asked(&self) -> u32 {
        self.0.1.load(Ordering::SeqCst)
    }

    /// An empty vault fails.
    fn give(&self) -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> {
        self.0.1.fetch_add(1, Ordering::SeqCst);
        let password = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if password.is_empty() {
            Err("the vault is sealed".into())
        } else {
            Ok(Credentials::new("shop", password))
        }
    }

    async fn connect(&self, server: &RedisServer) -> dlock_runtime::Result<LockManager> {
        let vault = self.clone();
        LockManager::builder(&format!("redis://127.0.0.1:{}", server.port()))
            .credentials(move || {
                let vault = vault.clone();
                async move { vault.give() }
            })
            .connect()
            .await
    }
}

fn server_with(password: &str) -> RedisServer {
    RedisServer::builder().line(&format!("user shop on >{password} ~* &* +@all")).start()
}

/// Gives the user another password, and cuts the connections that he had by the old one.
fn rotate(server: &RedisServer, password: &str) {
    server.call(&["ACL", "SETUSER", "shop", "resetpass", &format!(">{password}")]);
    server.call(&["CLIENT", "KILL", "USER", "shop"]);
}

#[tokio::test]
async fn all_connections_log_in_with_what_the_callback_gives_and_it_is_not_asked_while_they_last() {
    let server = server_with("first-one");
    let vault = Vault::with("first-one");
    let manager = vault.connect(&server).await.expect("it is the password");
    let connected = vault.asked();

    hold_beyond_the_lease(&manager).await;
    let held = vault.asked();
    is_told_of_grants(&manager, vault.connect(&server).await.expect("it is the password")).await;

    // A lock that is held for a while is told of over a third.
    assert_eq!((connected, held, vault.asked()), (2, 3, 5));
}

#[tokio::test]
async fn a_manager_comes_back_by_itself_with_the_password_of_the_day() {
    let server = server_with("first-one");
    let vault = Vault::with("first-one");
    let manager = vault.connect(&server).await.expect("it is the password");
    let other = vault.connect(&server).await.expect("it is the password");
    let guard = manager.lock("held").lease(LONG).acquire().await.expect("the lock is free");

    vault.put("second-one");
    rotate(&server, "second-one");
    until_ready(&manager).await;
    until_ready(&other).await;
    let refused = LockManager::connect(&format!("redis://shop:first-one@127.0.0.1:{}", server.port())).await;

    assert!(guard.release().await.is_ok(), "a hold outlives its connection");
    assert_config(refused, "server", &["refused the user or the password"]);
    is_told_of_grants(&manager, other).await;
}

#[tokio::test]
async fn a_callback_that_fails_is_unavailable_with_its_own_words_and_is_asked_again() {
    let server = server_with("first-one");
    let vault = Vault::with("first-one");
    let manager = vault.connect(&server).await.expect("it is the password");

    vault.put("");
    rotate(&server, "second-one");
    let told = async {
        loop {
            match manager.ready().await {
                Err(Error::Unavailable { reason, .. }) if reason.contains("the vault is sealed") => break,
                Ok(()) | Err(Error::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    within(SOON, "the callback's words", told).await;
    let at_the_start = vault.connect(&server).await;
    vault.put("second-one");

    until_ready(&manager).await;
    assert!(matches!(at_the_start, Err(Error::Unavailable { key: None, .. })), "{at_the_start:?}");
}

#[tokio::test]
async fn a_callback_that_hangs_or_panics_is_unavailable_in_bounded_time() {
    let server = RedisServer::start();
    let builder = LockManager::builder(&server.url()).connect_timeout(Duration::from_millis(200));

    let hangs = builder.clone().credentials(|| async { std::future::pending().await }).connect();
    let hangs = within(Duration::from_secs(2), "the time-out", hangs).await;
    let panics = builder.credentials(|| async { panic!("as a bug in it may make it") }).connect();
    let panics = within(Duration::from_secs(2), "the failure", panics).await;

    for (outcome, words) in [(hangs, "did not answer in 200 ms"), (panics, "panicked")] {
        let error = outcome.expect_err("there are no credentials");
        assert!(error.is_unavailable() && error.to_string().contains(words), "{error:?}");
    }
}

#[tokio::test]
async fn what_the_server_refuses_is_told_without_the_password() {
    let server = server_with("first-one");
    let vault = Vault::with("hunter2swordfish");

    let refused = vault.connect(&server).await;

    let text = format!("{refused:?} {:?}", Credentials::password("hunter2swordfish"));
    assert!(!text.contains("hunter2"), "{text}");
    assert_config(refused, "server", &["refused the user or the password"]);
}

#[tokio::test]
async fn a_password_alone_is_that_of_the_default_user() {
    let server = RedisServer::builder().password("sesame").start();
    let url = format!("redis://127.0.0.1:{}", server.port());

    let manager = LockManager::builder(&url).credentials(|| async { Ok(Credentials::password("sesame")) });

    assert!(manager.connect().await.is_ok());
}
