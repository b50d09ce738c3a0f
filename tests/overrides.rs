//! Overrides of annotated functions, by the builder and by the environment.
//!
//! This is a separate program, as one test runs it again with a variable.

use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::{Error, LockManager, distributed_lock};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Returns how much of its lease remains.
#[distributed_lock(key = "a", name = "orders.place", lease = "20s", guard = lock, manager = locks)]
async fn place(locks: &LockManager) -> Result<Duration, Error> {
    Ok(lock.remaining())
}

/// Returns how much of its lease remains, with an expression that an override replaces.
#[distributed_lock(key = "b", lease = lease, guard = lock, manager = locks)]
async fn evaluated(locks: &LockManager, lease: Duration) -> Result<Duration, Error> {
    Ok(lock.remaining())
}

async fn connect(overrides: &str) -> LockManager {
    LockManager::builder("memory://").overrides(overrides).connect().await.expect("the text is valid")
}

fn is_nearly(remaining: Duration, lease: u64) -> bool {
    let lease = Duration::from_secs(lease);
    remaining <= lease && remaining > lease * 9 / 10
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_overridden_by_the_name_of_its_function() {
    let plain = connect("").await;
    let overridden = connect("orders.place: lease=5s; overrides::evaluated: lease=6s").await;
    let own = Duration::from_secs(10);

    assert!(is_nearly(place(&plain).await.expect("it is free"), 20));
    assert!(is_nearly(place(&overridden).await.expect("it is free"), 5));
    assert!(is_nearly(evaluated(&plain, own).await.expect("it is free"), 10));
    assert!(is_nearly(evaluated(&overridden, own).await.expect("it is free"), 6));
}

#[tokio::test(start_paused = true)]
async fn a_wait_and_retries_are_overridden() {
    let locks = connect("orders.place: wait=3s").await;
    let retrying = connect("orders.place: retry=2 backoff=10ms").await;
    let _held = [locks.lock("a").acquire().await, retrying.lock("a").acquire().await];

    let waited = place(&locks).await;
    let retried = place(&retrying).await;

    assert!(
        matches!(waited, Err(Error::Contended { waited, .. }) if waited >= Duration::from_secs(3)),
        "{waited:?}"
    );
    assert!(matches!(retried, Err(Error::Contended { attempts: 3, .. })), "{retried:?}");
}

#[tokio::test]
async fn an_override_that_contradicts_its_function_is_refused() {
    let locks = connect("limited: lease=2m").await;

    #[distributed_lock(key = "a", name = "limited", max_hold = "1m", manager = locks)]
    async fn limited(locks: &LockManager) -> Result<(), Error> {
        Ok(())
    }
    let refused = limited(&locks).await;

    assert!(matches!(&refused, Err(Error::Config { part, .. }) if &**part == "lease"), "{refused:?}");
}

#[tokio::test]
async fn invalid_overrides_are_refused_with_their_place() {
    let refused = LockManager::builder("memory://").overrides("orders.place: lease=10").connect().await;

    let refused = refused.expect_err("the lease has no unit").to_string();
    assert!(refused.contains("overrides: `orders.place: lease=10`") && refused.contains("10s"), "{refused}");
}

/// Runs itself again with the variable set, because a variable of this process concerns all tests.
#[test]
fn the_variable_takes_precedence_over_the_builder() {
    const NAME: &str = "the_variable_takes_precedence_over_the_builder";
    const CHILD: &str = "OVERRIDES_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        return runtime.expect("a runtime").block_on(async {
            let locks = connect("orders.place: lease=5s").await;
            assert!(is_nearly(place(&locks).await.expect("it is free"), 7));
        });
    }
    let run = |overrides: &str| {
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"));
        child.args(["--exact", NAME]).env(CHILD, "1").env("DLOCK_OVERRIDES", overrides);
        let output = child.output().expect("it starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };

    let (valid, text) = run("orders.place: lease=7s");
    assert!(valid && text.contains("1 passed"), "{text}");
    let (invalid, text) = run("orders.place: leese=7s");
    assert!(!invalid && text.contains("DLOCK_OVERRIDES") && text.contains("did you mean `lease`"), "{text}");
}

/// Records the `name` of each `dlock.override_unused`.
#[derive(Clone, Default)]
struct Unused(Arc<Mutex<Vec<String>>>);

impl Visit for Unused {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "name" {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(value.to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl<S: tracing::Subscriber> Layer<S> for Unused {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().name() == "dlock.override_unused" {
            event.record(&mut self.clone());
        }
    }
}

#[tokio::test]
async fn unused_overrides_are_reported_at_the_shutdown() {
    let unused = Unused::default();
    let _log = tracing::subscriber::set_default(tracing_subscriber::registry().with(unused.clone()));
    let locks = connect("orders.place: lease=5s; orders.plaec: lease=5s").await;
    place(&locks).await.expect("it is free");

    for _ in 0..2 {
        locks.shutdown(Duration::ZERO).await;
    }

    assert_eq!(*unused.0.lock().unwrap_or_else(PoisonError::into_inner), ["orders.plaec"]);
}
