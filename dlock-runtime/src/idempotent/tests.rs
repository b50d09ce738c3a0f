//! The behavior of idempotent calls in memory, under paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;

use crate::idempotent::{IdempotencyState, OnCrash};
use crate::{Error, LockManager, Result};

const SECOND: Duration = Duration::from_secs(1);

async fn manager() -> LockManager {
    LockManager::connect("memory://").await.expect("memory is always there")
}

#[test]
fn no_key_is_the_name_of_a_record() {
    for key in ["a", "{a}", "a:b", &"x".repeat(600)] {
        let key = crate::LockKey::new(key).expect("it is a key");
        let record = crate::idempotent::begin::record_name(&key);

        assert!(crate::LockKey::new(&*record).is_err() && crate::LockKey::from_shown(&record).is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_call_gets_the_stored_result() {
    let manager = manager().await;
    let call = manager.idempotent("k");

    let first = call.run(async |record| Ok::<_, Error>(record.attempt())).await.expect("it runs");
    let again = call.run(async |_| Ok::<_, Error>(7_u32)).await.expect("it is replayed");

    assert!(!first.is_replayed() && again.is_replayed());
    assert_eq!((first.into_value(), again.into_value()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_duplicates_share_one_body() {
    let manager = manager().await;
    let runs = Arc::new(AtomicU32::new(0));
    let calls: Vec<_> = (0..1_000)
        .map(|_| {
            let (call, runs) = (manager.idempotent("k").wait(60 * SECOND), Arc::clone(&runs));
            tokio::spawn(async move {
                call.run(async move |_| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(20 * SECOND).await;
                    Ok::<_, Error>(5_u8)
                })
                .await
            })
        })
        .collect();

    let mut replayed = 0;
    for call in calls {
        let outcome = call.await.expect("it does not panic").expect("it succeeds");
        assert_eq!(*outcome.value(), 5);
        replayed += u32::from(outcome.is_replayed());
    }
    assert_eq!((runs.load(Ordering::SeqCst), replayed), (1, 999));
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_in_another_process_is_woken() {
    let (one, two) =
        (LockManager::connect("memory://wake").await, LockManager::connect("memory://wake").await);
    let (one, two) = (one.expect("it connects"), two.expect("it connects"));
    let first = tokio::spawn(async move {
        one.idempotent("k")
            .run(async |_| {
                tokio::time::sleep(Duration::from_millis(1_234)).await;
                Ok::<_, Error>(1)
            })
            .await
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let started = tokio::time::Instant::now();

    let again = two.idempotent("k").wait(60 * SECOND).run(async |_| Ok::<_, Error>(2)).await;

    assert_eq!(again.expect("it is replayed").into_value(), 1);
    assert!(started.elapsed() < Duration::from_millis(1_230), "{:?}", started.elapsed());
    first.await.expect("it ends").expect("it succeeds");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_crash() {
    for (on_crash, runs) in [(OnCrash::Fail, false), (OnCrash::Rerun, true)] {
        let manager = manager().await;
        let call = manager.idempotent("k").on_crash(on_crash);
        let panicking = call.clone();
        let crashed = tokio::spawn(async move {
            panicking
                .run(async |record| {
                    assert_ne!(record.attempt(), 1, "this panic is part of the test");
                    Ok::<_, Error>(0)
                })
                .await
        });
        assert!(crashed.await.expect_err("it panics").is_panic());
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(state(&call).await, Some(IdempotencyState::OutcomeUnknown));

        let again = call.run(async |record| Ok::<_, Error>(record.attempt())).await;

        match again {
            Ok(outcome) => assert!(runs && outcome.into_value() == 2),
            Err(error) => assert!(!runs && matches!(error, Error::OutcomeUnknown { attempt: 1, .. })),
        }
    }
}

#[cfg(feature = "testing")]
#[tokio::test(start_paused = true)]
async fn a_test_crashes_an_attempt_at_each_point() {
    use crate::testing::{CrashPoint, TestLocks};

    for (point, effects, replayed) in [
        (CrashPoint::InStep("psp".to_owned()), 2, false),
        (CrashPoint::BeforeResult, 1, false),
        (CrashPoint::AfterResult, 1, true),
    ] {
        let locks = TestLocks::new();
        let (call, runs) =
            (locks.manager().idempotent("k").on_crash(OnCrash::Resume), Arc::new(AtomicU32::new(0)));
        let attempt = async || {
            let runs = Arc::clone(&runs);
            call.run(async move |record| {
                let charge = async || Ok::<_, Error>(runs.fetch_add(1, Ordering::SeqCst));
                record.step("psp", charge).await
            })
            .await
        };
        locks.crash_at("k", point.clone());

        let crashed = attempt().await;
        assert!(matches!(crashed, Err(Error::Lost { .. })), "{point:?}: {crashed:?}");
        let outcome = attempt().await.expect("it resumes");

        assert_eq!((outcome.is_replayed(), runs.load(Ordering::SeqCst)), (replayed, effects), "{point:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_dropped_call_leaves_a_result_or_no_record() {
    for polls in 0..40 {
        let manager = manager().await;
        let call = manager.idempotent("k");
        let mut first = Box::pin(call.run(async |_| {
            tokio::task::yield_now().await;
            Ok::<_, Error>(1)
        }));
        for _ in 0..polls {
            if first.as_mut().now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(first);
        tokio::time::sleep(5 * SECOND).await;

        let again = call.run(async |_| Ok::<_, Error>(2)).await.expect("it is replayed, or it runs");

        assert_eq!(again.is_replayed(), *again.value() == 1, "after {polls} polls");
    }
}

async fn state<P>(call: &crate::Idempotent<P>) -> Option<IdempotencyState> {
    call.status().await.expect("memory is there").map(|status| status.state())
}

#[tokio::test(start_paused = true)]
async fn an_error_is_forgotten_and_the_body_runs_again() -> Result<()> {
    let manager = manager().await;
    let call = manager.idempotent("k");

    let failed = call.run(async |_| Err::<u8, _>(Error::NotInstalled {})).await;
    assert!(matches!(failed, Err(Error::NotInstalled {})));
    assert_eq!(state(&call).await, None);

    assert_eq!(call.run(async |_| Ok::<_, Error>(2)).await?.into_value(), 2);
    Ok(())
}
