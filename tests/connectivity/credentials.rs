//! Credentials from a callback, which is called for each new connection.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::{Credentials, Error, LockManager};
use dlock_tests::{RedisServer, within};

use super::{LEASE, LONG, SOON, assert_config, assert_grant_is_received, hold_beyond_the_lease, until_ready};

/// A callback's password, and the number of its calls.
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

    fn calls(&self) -> u32 {
        self.0.1.load(Ordering::SeqCst)
    }

    /// Returns the credentials. An empty vault fails.
    fn credentials(&self) -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>> {
        self.0.1.fetch_add(1, Ordering::SeqCst);
        let password = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if password.is_empty() {
            Err("the vault is sealed".into())
        } else {
            Ok(Credentials::new("shop", password))
        }
    }

    async fn connect(&self, server: &RedisServer) -> dlock_runtime::Result<LockManager> {
        self.connect_with(server, "").await
    }

    async fn connect_with(&self, server: &RedisServer, options: &str) -> dlock_runtime::Result<LockManager> {
        let vault = self.clone();
        LockManager::builder(&format!("redis://127.0.0.1:{}{options}", server.port()))
            .credentials(move || {
                let vault = vault.clone();
                async move { vault.credentials() }
            })
            .connect()
            .await
    }
}

fn server_with(password: &str) -> RedisServer {
    RedisServer::builder().line(&format!("user shop on >{password} ~* &* +@all")).start()
}

/// Changes the user's password, and closes the user's connections.
fn rotate(server: &RedisServer, password: &str) {
    server.call(&["ACL", "SETUSER", "shop", "resetpass", &format!(">{password}")]);
    server.call(&["CLIENT", "KILL", "USER", "shop"]);
}

#[tokio::test]
async fn callback_is_called_once_per_connection() {
    let server = server_with("first-one");
    let vault = Vault::with("first-one");
    let manager = vault.connect(&server).await.expect("the password is correct");
    let connected = vault.calls();

    hold_beyond_the_lease(&manager).await;
    let held = vault.calls();
    // Its hold can last long enough for a tracking connection.
    let second = vault.connect_with(&server, "?tracking=off").await.expect("the password is correct");
    assert_grant_is_received(&manager, second).await;

    // The longer hold opens a third connection, for tracking.
    assert_eq!((connected, held, vault.calls()), (2, 3, 5));
}

#[tokio::test]
async fn manager_reconnects_with_a_rotated_password() {
    let server = server_with("first-one");
    let vault = Vault::with("first-one");
    let manager = vault.connect(&server).await.expect("the password is correct");
    let other = vault.connect(&server).await.expect("the password is correct");
    let guard = manager.lock("held").lease(LONG).acquire().await.expect("the lock is free");

    vault.put("second-one");
    rotate(&server, "second-one");
    until_ready(&manager).await;
    until_ready(&other).await;
    let refused = LockManager::connect(&format!("redis://shop:first-one@127.0.0.1:{}", server.port())).await;

    assert!(guard.release().await.is_ok(), "a hold survives a lost connection");
    assert_config(refused, "server", &["refused the user or the password"]);
    assert_grant_is_received(&manager, other).await;
}

#[tokio::test]
async fn failed_callback_is_unavailable_and_called_again() {
    let server = server_with("first-one");
    let vault = Vault::with("first-one");
    let manager = vault.connect(&server).await.expect("the password is correct");

    vault.put("");
    rotate(&server, "second-one");
    let reported = async {
        loop {
            match manager.ready().await {
                Err(Error::Unavailable { reason, .. }) if reason.contains("the vault is sealed") => break,
                Ok(()) | Err(Error::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    within(SOON, "the callback's words", reported).await;
    let at_the_start = vault.connect(&server).await;
    vault.put("second-one");

    until_ready(&manager).await;
    assert!(matches!(at_the_start, Err(Error::Unavailable { key: None, .. })), "{at_the_start:?}");
}

#[tokio::test]
async fn hanging_or_panicking_callback_is_unavailable_in_time() {
    let server = RedisServer::start();
    let builder = LockManager::builder(&server.url());

    let hangs = builder.clone().connect_timeout(Duration::from_millis(200));
    let hangs = hangs.credentials(|| async { std::future::pending().await }).connect();
    let hangs = within(Duration::from_secs(2), "the timeout", hangs).await;
    let panics = builder.credentials(|| async { panic!("a bug in the callback") }).connect();
    let panics = within(Duration::from_secs(2), "the failure", panics).await;

    for (outcome, words) in [(hangs, "did not reply in 200 ms"), (panics, "panicked")] {
        let error = outcome.expect_err("there are no credentials");
        assert!(error.is_unavailable() && error.to_string().contains(words), "{error:?}");
    }
}

#[tokio::test]
async fn rejected_password_is_not_printed() {
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

/// A callback that blocks its thread while the gate is locked.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<()>>, Arc<AtomicU32>);

impl Gate {
    async fn connect(&self, server: &RedisServer) -> LockManager {
        let Self(gate, calls) = self.clone();
        let builder = LockManager::builder(&format!("redis://127.0.0.1:{}", server.port()));
        let manager = builder.credentials(move || {
            let (gate, calls) = (Arc::clone(&gate), Arc::clone(&calls));
            async move {
                calls.fetch_add(1, Ordering::SeqCst);
                drop(gate.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(Credentials::new("shop", "first-one"))
            }
        });
        manager.connect().await.expect("the password is correct")
    }

    /// Waits until the callback has been called more than `before` times.
    async fn until_called_after(&self, before: u32) {
        let calls = async {
            while self.1.load(Ordering::SeqCst) <= before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(SOON, "a call of the callback", calls).await;
    }

    fn calls(&self) -> u32 {
        self.1.load(Ordering::SeqCst)
    }
}

/// Runs `test` while another thread holds the gate.
async fn while_locked<T>(gate: &Gate, test: impl Future<Output = T>) -> T {
    let (unlock, unlocked) = std::sync::mpsc::channel::<()>();
    let (report, reported) = tokio::sync::oneshot::channel();
    let gate = Arc::clone(&gate.0);
    let locks = std::thread::spawn(move || {
        let _locked = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = report.send(());
        let _ = unlocked.recv_timeout(Duration::from_secs(30)); // bounds the thread's life if the test hangs
    });
    reported.await.expect("the gate is locked");
    let outcome = test.await;
    drop(unlock);
    locks.join().expect("no panic");
    outcome
}

#[tokio::test]
async fn a_blocked_callback_does_not_delay_the_end_of_a_lost_body() {
    let mut server = server_with("first-one");
    let gate = Gate::default();
    let manager = gate.connect(&server).await;
    let guard = manager.lock("order:7").lease(LEASE).acquire().await.expect("the lock is free");
    let before = gate.calls();

    let lost = while_locked(&gate, async {
        server.kill();
        gate.until_called_after(before).await;
        tokio::time::timeout(LEASE * 2, guard.lost()).await
    });

    assert!(lost.await.is_ok(), "the loss was not reported while the callback blocked");
}

#[tokio::test]
async fn a_blocked_callback_does_not_delay_renewals() {
    let server = server_with("first-one");
    let gate = Gate::default();
    let manager = gate.connect(&server).await;
    let before = gate.calls();

    while_locked(&gate, async {
        server.call(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        gate.until_called_after(before).await;
        hold_beyond_the_lease(&manager).await;
    })
    .await;
}
