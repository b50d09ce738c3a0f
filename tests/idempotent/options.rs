//! Options out of bounds, and deployments that keep no records.

use std::time::Duration;

use dlock_runtime::idempotent::{IdempotentRecord, OnCrash};
use dlock_runtime::{Error, LockManager};

use super::{Runs, failure};

#[tokio::test]
async fn options_out_of_bounds_are_rejected() {
    let (manager, runs) =
        (LockManager::connect("memory://").await.expect("memory is there"), Runs::default());
    let call = || manager.idempotent("k");
    let minute = Duration::from_secs(60);
    for (part, wrong) in [
        ("ttl", call().ttl(Duration::from_millis(59_999))),
        ("ttl", call().ttl(366 * 24 * 60 * minute)),
        ("lease", call().lease(Duration::from_millis(99))),
        ("lease", call().ttl(minute).lease(minute + Duration::from_millis(1))),
        ("fingerprint", call().fingerprint(&std::collections::BTreeMap::from([([1_u8], 1)]))),
    ] {
        match runs.run(&wrong).await {
            Err(Error::Config { part: of, .. }) => assert_eq!(&*of, part),
            other => panic!("{part}: {other:?}"),
        }
    }
    let empty = runs.run(&manager.idempotent("")).await;
    assert!(matches!(empty, Err(Error::InvalidKey { .. })), "{empty:?}");
    assert_eq!(runs.count(), 0);
    runs.run(&call().ttl(minute).lease(minute)).await.expect("both are in their bounds");
}

#[tokio::test]
async fn steps_out_of_bounds_are_rejected() {
    let manager = LockManager::connect("memory://").await.expect("memory is there");
    let call = manager.idempotent("k").on_crash(OnCrash::Resume);
    let body = call.run(async |record| {
        let one = async || Ok::<_, Error>(1_u8);
        for number in 0..64 {
            record.step(&number.to_string(), one).await?;
        }
        for name in ["", "65th", &"x".repeat(65)] {
            let refused = record.step(name, one).await;
            assert!(
                matches!(&refused, Err(Error::Config { part, .. }) if &**part == "step"),
                "{name}: {refused:?}"
            );
        }
        Ok::<_, Error>(())
    });
    body.await.expect("the body itself succeeds");
}

#[tokio::test]
async fn a_step_result_that_is_too_large_is_not_run_again() {
    let manager = LockManager::connect("memory://").await.expect("memory is there");
    let call = manager.idempotent("k");
    let attempt = async |length: usize| {
        call.run(async move |record| {
            let step = async || Ok::<_, Error>("x".repeat(length));
            assert_eq!(record.step("large", step).await?.len(), length);
            Err::<(), _>(failure())
        })
        .await
    };

    let first = attempt(65 << 10).await;
    assert!(matches!(first, Err(Error::InvalidKey { .. })), "the caller gets its value: {first:?}");
    let second = attempt(1).await;
    assert!(
        matches!(&second, Err(Error::ResultNotStored { step: Some(step), .. }) if &**step == "large"),
        "{second:?}"
    );
}

#[tokio::test]
async fn child_keys_are_stable() {
    let manager = LockManager::connect("memory://").await.expect("memory is there");
    let keys = async |key: &str| {
        let call = manager.idempotent(key);
        let body = async |record: IdempotentRecord| {
            Ok::<_, Error>([record.child_key("psp"), record.child_key("mail")])
        };
        let keys = call.run_attached(body).await.expect("it runs").into_value();
        assert!(call.forget().await.expect("memory is there"));
        keys
    };

    let first = keys("charge:7").await;
    assert_eq!(first, keys("charge:7").await);
    assert_ne!(first[0], first[1]);
    assert_ne!(first, keys("charge:8").await);
}
