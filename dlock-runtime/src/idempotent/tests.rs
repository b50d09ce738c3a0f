//! The behavior of idempotent calls in memory, under paused time.

mod rules;
mod waits;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::backend::store_call::StoreOperation;
use crate::backend::tests::test_operation::TestOperation;
use crate::error::LossCause;
use crate::idempotent::begin::{Begun, begin, record_name};
use crate::idempotent::options::IdempotentOptions;
use crate::idempotent::outcome::Completion;
use crate::idempotent::{IdempotencyState, IdempotentRecord, OnCrash};
use crate::key::IntoLockKey;
use crate::protocol::command::ScriptReply;
use crate::{Error, LockManager, Result};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn no_key_is_the_name_of_a_record() {
    for key in ["a", "{a}", "a:b", &"x".repeat(600)] {
        let key = crate::LockKey::new(key).expect("it is a key");
        let record = record_name(&key);

        assert!(crate::LockKey::new(&*record).is_err() && crate::LockKey::from_shown(&record).is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_call_gets_the_stored_result() {
    let manager = LockManager::in_new_memory();
    let call = manager.idempotent("k");

    let first = call.run(async |record| Ok::<_, Error>(record.attempt())).await.expect("it runs");
    let again = call.run(async |_| Ok::<_, Error>(7_u32)).await.expect("it is replayed");

    assert!(!first.is_replayed() && again.is_replayed());
    assert_eq!((first.into_value(), again.into_value()), (1, 1));
}

#[test]
fn a_duplicate_gets_the_result_though_the_one_before_it_stands_still() {
    let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let (stands_still, runs, manager) = (runtime(), runtime(), LockManager::in_new_memory());
    // As in another process: the calls that wait do not see its end in memory.
    let without_wait = manager.idempotent("k");
    let call = without_wait.clone().wait(Duration::from_millis(50));
    let (end, ended) = oneshot::channel();
    let (mut first, mut before, duplicate) = (
        pin!(without_wait.run_attached(async |_| Ok::<_, Error>(ended.await.expect("it ends")))),
        pin!(call.run_attached(async |_| Ok::<_, Error>(2))),
        call.run_attached(async |_| Ok::<_, Error>(3)),
    );
    runs.block_on(async { assert!((&mut first).now_or_never().is_none()) });
    stands_still.block_on(async { assert!((&mut before).now_or_never().is_none()) });

    let got = runs.block_on(async {
        let mut duplicate = pin!(duplicate);
        assert!((&mut duplicate).now_or_never().is_none());
        end.send(1).expect("it runs");
        first.await.expect("it completes");
        duplicate.await.expect("it waits for its turn in vain, and asks")
    });

    assert!(got.is_replayed() && got.into_value() == 1);
}

/// The value has 17 significant digits. A reader that is one bit off would return another one.
#[tokio::test(start_paused = true)]
async fn a_float_is_replayed_exactly() {
    let (manager, value) = (LockManager::in_new_memory(), 1.08_f64 * 1.19);
    let call = manager.idempotent("k");

    for _ in 0..2 {
        let got = call.run(async move |_| Ok::<_, Error>(value)).await.expect("it runs, or is replayed");
        assert_eq!(got.into_value().to_bits(), value.to_bits());
    }
}

#[tokio::test(start_paused = true)]
async fn steps_that_run_at_the_same_time_are_at_most_64() {
    let manager = LockManager::in_new_memory();
    let call = manager.idempotent("k");
    let step = async |record: &IdempotentRecord, number: u32| {
        let body = async || {
            tokio::task::yield_now().await;
            Ok::<_, Error>(())
        };
        record.step(&number.to_string(), body).await
    };

    let ran = call.run_attached(async |record| {
        let ended = join_all((0..150).map(|number| step(&record, number))).await;
        Ok::<_, Error>(ended.iter().filter(|ended| matches!(ended, Err(Error::Config { .. }))).count())
    });

    assert_eq!(ran.await.expect("it is stored").into_value(), 150 - 64);
    assert!(call.status().await.expect("memory is there").is_some_and(|record| record.attempt() == 1));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_duplicates_share_one_body() {
    let manager = LockManager::in_new_memory();
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
        let manager = LockManager::in_new_memory();
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

    let in_step = || CrashPoint::InStep("psp".to_owned());
    // The second call: how often the step has run, and the attempt that returns, if one does.
    for (point, on_crash, second) in [
        (in_step(), OnCrash::Fail, (1, None)),
        (in_step(), OnCrash::Rerun, (2, Some(2))),
        (in_step(), OnCrash::Resume, (2, Some(2))),
        (CrashPoint::BeforeResult, OnCrash::Fail, (1, None)),
        (CrashPoint::BeforeResult, OnCrash::Rerun, (2, Some(2))),
        (CrashPoint::BeforeResult, OnCrash::Resume, (1, Some(2))),
        (CrashPoint::AfterResult, OnCrash::Fail, (1, Some(1))),
        (CrashPoint::AfterResult, OnCrash::Rerun, (1, Some(1))),
        (CrashPoint::AfterResult, OnCrash::Resume, (1, Some(1))),
    ] {
        let locks = TestLocks::new();
        let call = locks.manager().idempotent("k").on_crash(on_crash);
        let runs = Arc::new(AtomicU32::new(0));
        let attempt = async || {
            let runs = Arc::clone(&runs);
            call.run(async move |record| {
                // The error of a step ends the body within the same poll.
                let charge = async || Ok::<_, Error>(runs.fetch_add(1, Ordering::SeqCst));
                record.step("psp", charge).await.map(|_| record.attempt())
            })
            .await
        };
        locks.crash_at("k", point.clone());

        let crashed = attempt().await;
        assert!(matches!(crashed, Err(Error::Lost { .. })), "{point:?}: {crashed:?}");
        let outcome = attempt().await;

        let ran = (runs.load(Ordering::SeqCst), outcome.as_ref().ok().map(|outcome| *outcome.value()));
        assert_eq!(ran, second, "{point:?}, {on_crash:?}: {outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_dropped_call_leaves_a_result_or_no_record() {
    for polls in 0..40 {
        let manager = LockManager::in_new_memory();
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
    let manager = LockManager::in_new_memory();
    let call = manager.idempotent("k");

    let failed = call.run(async |_| Err::<u8, _>(Error::NotInstalled {})).await;
    assert!(matches!(failed, Err(Error::NotInstalled {})));
    assert_eq!(state(&call).await, None);

    assert_eq!(call.run(async |_| Ok::<_, Error>(2)).await?.into_value(), 2);
    Ok(())
}

/// The next call may not repeat a step whose result is missing, so an operator ends the call.
#[tokio::test(start_paused = true)]
async fn a_call_with_a_step_that_is_not_stored_is_resolved() -> Result<()> {
    let manager = LockManager::in_new_memory();
    let call = manager.idempotent("k");
    let large = async |record: IdempotentRecord| {
        let charge = record.step("psp", async || Ok::<_, Error>("x".repeat(70 << 10))).await?;
        Err::<String, _>(Error::WrongKind { key: record.key().clone(), found: charge[..1].into() })
    };

    call.run(large).await.expect_err("the body fails");
    let refused = call.run(large).await.expect_err("the step is not stored");
    assert!(
        matches!(&refused, Error::ResultNotStored { step: Some(step), .. } if &**step == "psp"),
        "{refused}"
    );
    assert_eq!(state(&call).await, Some(IdempotencyState::Forgotten));
    assert!(refused.to_string().contains("dlock idem resolve"), "{refused}");

    assert!(call.resolve("charged").await?);

    let resolved = call.run(large).await?;
    assert!(resolved.is_replayed());
    assert_eq!(resolved.value(), "charged");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_step_of_another_type_is_named() -> Result<()> {
    let manager = LockManager::in_new_memory();
    let call = manager.idempotent("k");
    let lost = |record: &IdempotentRecord| Error::Shutdown { key: Some(record.key().clone()) };
    let failed = call.run(async move |record| {
        record.step("psp", async || Ok::<_, Error>("text".to_owned())).await?;
        Err::<u32, _>(lost(&record))
    });
    failed.await.expect_err("the body fails");

    let refused = call.run(async |record| record.step("psp", async || Ok::<_, Error>(7)).await).await;

    let refused = refused.expect_err("the type has changed").to_string();
    assert!(refused.contains("its step `psp` cannot be read"), "{refused}");
    assert!(!refused.contains("version") && !refused.contains("--replace"), "{refused}");
    assert!(call.resolve(&7).await?);
    assert_eq!(call.run(async |_| Ok::<_, Error>(8)).await?.into_value(), 7);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_value_that_json_loses_is_not_stored() -> Result<()> {
    let manager = LockManager::in_new_memory();
    let (number, nothing) = (manager.idempotent("number"), manager.idempotent("nothing"));

    assert!(number.run(async |_| Ok::<_, Error>(f64::NAN)).await?.into_value().is_nan());
    assert_eq!(nothing.run(async |_| Ok::<_, Error>(Some(()))).await?.into_value(), Some(()));

    let number = number.run(async |_| Ok::<_, Error>(1.0)).await;
    assert!(matches!(number, Err(Error::ResultNotStored { step: None, .. })), "{number:?}");
    let nothing = nothing.run(async |_| Ok::<_, Error>(Some(()))).await;
    assert!(matches!(nothing, Err(Error::ResultNotStored { step: None, .. })), "{nothing:?}");
    Ok(())
}

fn key_of(manager: &LockManager, key: &str) -> crate::LockKey {
    key.into_lock_key(manager.namespace()).expect("it is a key")
}

/// Deletes a record, as `FLUSHALL` does.
async fn evict(manager: &LockManager, key: &str) {
    let operation: Arc<dyn StoreOperation> = TestOperation::with_effect(|slot, _| {
        slot.value = None;
        ScriptReply::Int(1)
    });
    manager.engine().call(&record_name(&key_of(manager, key)), &operation).await.expect("memory is there");
}

#[tokio::test(start_paused = true)]
async fn a_body_is_dropped_if_its_record_is_gone() {
    for on_crash in [OnCrash::Fail, OnCrash::Resume] {
        let manager = LockManager::in_new_memory();
        let call = manager.idempotent("k").lease(30 * SECOND).on_crash(on_crash);
        let lost = call.run_attached(async |_| {
            evict(&manager, "k").await;
            tokio::time::sleep(60 * SECOND).await;
            Ok::<_, Error>(1)
        });

        let lost = lost.await;
        assert!(
            matches!(lost, Err(Error::Lost { cause: LossCause::NotOwner, .. })),
            "{on_crash:?}: {lost:?}"
        );
    }
}

/// The lock is free once its call has ended: a body that continued would overlap with the next one.
#[tokio::test(start_paused = true)]
async fn a_body_inside_a_lock_is_dropped_with_the_call_that_holds_it() {
    let manager = LockManager::in_new_memory();
    let call = manager.idempotent("charge:7").lease(30 * SECOND).on_crash(OnCrash::Rerun);
    let ended = Arc::new(AtomicU32::new(0));
    let of_body = CountOnDrop(Arc::clone(&ended));
    let body = |_: IdempotentRecord| async move {
        let _of_body = of_body;
        tokio::time::sleep(10 * SECOND).await;
        Ok::<_, Error>(1)
    };
    let held = manager.lock("account:7").run(async |_| call.run(body).await);

    let dropped = tokio::time::timeout(SECOND, held).await;

    assert!(dropped.is_err());
    assert_eq!(ended.load(Ordering::SeqCst), 1, "the body has ended");
    drop(manager.lock("account:7").retry(0).acquire().await.expect("it is free"));
    assert_eq!(state(&call).await, Some(IdempotencyState::InProgress), "until its lease ends");
    let again = call.wait(60 * SECOND).run(async |_| Ok::<_, Error>(2)).await;
    assert_eq!(again.expect("it runs again").into_value(), 2);
}

/// Counts its drops.
struct CountOnDrop(Arc<AtomicU32>);

impl Drop for CountOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_resend_leaves_the_outcome_unknown() {
    use crate::protocol::command::{Failure, FailureKind, Reply};

    let lost = || Failure { connection_lost: true, ..Failure::new(FailureKind::Passing, "lost") };
    let (unknown, refused) = (Reply::Unknown(lost()), Reply::Refused(lost()));
    for (sent, is_unknown) in [
        (&[&unknown, &refused][..], true),
        (&[&refused, &refused], false),
        (&[&refused, &unknown], true),
        (&[&unknown, &refused, &refused], true),
        (&[&refused, &refused, &refused], false),
    ] {
        let replies = std::cell::RefCell::new(sent.iter().copied());
        let send = || std::future::ready(replies.borrow_mut().next().cloned().ok_or(()));
        let resends = u32::try_from(sent.len()).expect("a few") - 1;

        let (reply, is_resent) =
            LockManager::in_new_memory().engine().request_with_retry(resends, send).await;

        assert!(is_resent);
        let reply = reply.expect("there is a reply");
        assert_eq!(matches!(reply, Reply::Unknown(_)), is_unknown, "{sent:?}: {reply:?}");
        assert!(replies.borrow_mut().next().is_none(), "{sent:?}: all are sent");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_before_the_first_poll_leaves_no_record() {
    let url = "memory://unpolled";
    let (manager, other) =
        (LockManager::connect(url).await.expect("it connects"), LockManager::connect(url).await);
    let other = other.expect("it connects").idempotent("k");
    let begun = begin(&manager, key_of(&manager, "k"), &IdempotentOptions::default()).await;
    let begun = begun.expect("it begins");
    assert_eq!(state(&other).await, Some(IdempotencyState::InProgress));
    let Begun::Started(execution) = begun else { panic!("{begun:?}") };

    let body = async {
        manager.engine().calls.aborted.wait().await;
        execution.run(async |_| (Completion::NotStored, ())).await
    };
    let (ran, ()) = tokio::join!(body, manager.shutdown(Duration::ZERO));

    assert!(matches!(ran, Err(Error::Lost { cause: LossCause::Shutdown, .. })), "{ran:?}");
    tokio::time::sleep(SECOND).await;
    assert_eq!(state(&other).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_with_another_payload_does_not_wait() {
    let manager = LockManager::in_new_memory();
    let call = |payload: u8| manager.idempotent("k").fingerprint(&payload).wait(60 * SECOND);
    let first = call(1);
    let first = tokio::spawn(async move {
        first
            .run(async |_| {
                tokio::time::sleep(20 * SECOND).await;
                Ok::<_, Error>(1)
            })
            .await
    });
    tokio::time::sleep(SECOND).await;
    let started = tokio::time::Instant::now();

    let other = call(2).run(async |_| Ok::<_, Error>(2)).await;

    assert!(matches!(other, Err(Error::KeyReused { .. })), "{other:?}");
    assert!(started.elapsed() < SECOND, "{:?}", started.elapsed());
    first.await.expect("it ends").expect("it succeeds");
}

#[cfg(feature = "testing")]
mod outages {
    use super::*;
    use crate::engine::store_calls::MAX_BACKGROUND_CALLS;
    use crate::idempotent::{BytesOutcome, OnUnavailable};
    use crate::telemetry::tests::emitted;
    use crate::testing::TestLocks;

    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    struct StepError(String);

    impl From<Error> for StepError {
        fn from(error: Error) -> Self {
            Self(error.to_string())
        }
    }

    /// Returns the events of `future` about results that are not stored.
    fn lost_results(future: impl Future<Output = ()>) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("it is a runtime");
        let mut events = emitted(|| runtime.block_on(future));
        events.retain(|line| line.contains("dlock.result_lost"));
        events
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_dropped_at_its_deadline() {
        // Renewals fail at 5.3 s, and then once a second: none of them at the deadline.
        let lease = 16 * SECOND;
        let locks = TestLocks::new();
        let manager = locks.manager();
        for (on_crash, ttl) in [(OnCrash::Rerun, 3_600 * SECOND), (OnCrash::Fail, 61 * SECOND)] {
            let term = if on_crash == OnCrash::Fail { ttl } else { lease };
            let call = manager.idempotent(format!("k:{on_crash:?}")).lease(lease).ttl(ttl).on_crash(on_crash);
            let started = tokio::time::Instant::now();

            let lost = call.run_attached(async |_| {
                let _outage = locks.outage();
                tokio::time::sleep(2 * term).await;
                Ok::<_, Error>(1)
            });
            let lost = lost.await;

            assert!(matches!(lost, Err(Error::Lost { .. })), "{on_crash:?}: {lost:?}");
            let after = started.elapsed();
            assert!(after <= term && after + SECOND > term, "{on_crash:?}: after {after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_is_stored_before_its_attempt_is_forgotten() {
        let locks = TestLocks::new();
        for (outage_ends_first, key) in [(true, "a"), (false, "b")] {
            let call = locks.manager().idempotent(key);
            let mut outage = None;
            let failed = call.run_attached(async |record| {
                outage = Some(locks.outage());
                record.step("psp", async || Ok::<_, Error>(1)).await?;
                if outage_ends_first {
                    outage.take().expect("it has begun").end();
                }
                Err::<u8, _>(Error::NotInstalled {})
            });
            assert!(matches!(failed.await, Err(Error::NotInstalled {})));
            drop(outage);
            tokio::time::sleep(10 * SECOND).await;

            let again = call.run(async |record| record.step("psp", async || Ok::<_, Error>(2)).await).await;

            assert_eq!(again.expect("it runs").into_value(), 1, "{key}: the step is not repeated");
        }
    }

    /// The retry of the step pauses for a second when the attempt crashes.
    #[tokio::test(start_paused = true)]
    async fn a_step_is_stored_before_its_crashed_attempt_ends() {
        for panics in [true, false] {
            let locks = TestLocks::new();
            let call = locks.manager().idempotent("k").on_crash(OnCrash::Resume);
            let call = call.remember_errors_if(|_: &StepError| true);
            let body = async move |record: IdempotentRecord| {
                let outage = locks.outage();
                record.step("psp", async || Ok::<_, StepError>(1)).await?;
                tokio::time::sleep(3 * SECOND).await;
                outage.end();
                assert!(!panics, "this panic is part of the test");
                record.step("psp", async || Ok::<_, StepError>(0)).await
            };
            let crashed = tokio::spawn({
                let call = call.clone();
                async move { call.run_attached(body).await }
            });
            assert_eq!(crashed.await.is_err(), panics);
            tokio::time::sleep(Duration::from_millis(5)).await;

            let again = call.run(async |record| record.step("psp", async || Ok::<_, StepError>(2)).await);

            assert_eq!(again.await.expect("it resumes").into_value(), 1, "{panics}: it is not repeated");
        }
    }

    /// The steps that are sent before the end are in memory until then.
    #[tokio::test(start_paused = true)]
    async fn an_end_in_the_background_is_admitted_with_its_steps() {
        const BYTES: usize = 60_000;
        let locks = TestLocks::new();
        let manager = locks.manager();
        let call = manager.idempotent("k");
        let ended = call.run_bytes_attached(async |record| {
            let outage = locks.outage();
            for name in ["a", "b"] {
                record.step(name, async || Ok::<_, Error>("x".repeat(BYTES))).await.expect("it ran");
            }
            (Completion::Crashed, outage)
        });

        let Ok(BytesOutcome::Ran(_outage)) = ended.await else { panic!("it runs") };

        let bytes = manager.engine().calls.background_bytes();
        assert!(bytes >= 2 * 2 * BYTES, "each step alone, and again before the end: {bytes}");
    }

    /// The request in the background arrives when the attempt has ended.
    #[test]
    fn a_step_that_is_answered_late_is_no_event() {
        for end in ["completes", "fails", "crashes"] {
            let lost = lost_results(async {
                let locks = TestLocks::new();
                let call = locks.manager().idempotent("k").on_crash(OnCrash::Resume);
                let call = call.remember_errors_if(|error: &StepError| error.0 != "temporary");
                let body = async |record: IdempotentRecord| {
                    if record.attempt() > 1 {
                        return record.step("psp", async || Ok(2)).await;
                    }
                    let outage = locks.outage();
                    record.step("psp", async || Ok::<_, StepError>(1)).await?;
                    tokio::time::sleep(3 * SECOND).await;
                    outage.end();
                    match end {
                        "completes" => Ok(1),
                        "fails" => Err(StepError("temporary".to_owned())),
                        _ => record.step("psp", async || Ok(3)).await,
                    }
                };
                let first = call.run_attached(body).await;
                assert_eq!(first.is_ok(), end == "completes", "{end}: {first:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
                let again = call.run_attached(body).await;
                assert_eq!(again.expect("it is stored").into_value(), 1, "{end}");
                tokio::time::sleep(10 * SECOND).await;
            });

            assert!(lost.is_empty(), "{end}: {lost:?}");
        }
    }

    /// The manager has too many requests in the background to store the step there.
    #[tokio::test(start_paused = true)]
    async fn a_step_without_a_place_in_the_background_is_not_forgotten() {
        let locks = TestLocks::new();
        let call = locks.manager().idempotent("k");
        let failed = call.run_attached(async |record| {
            let outage = locks.outage();
            for _ in 0..MAX_BACKGROUND_CALLS {
                let other = Arc::new(TestOperation::default());
                locks.manager().engine().call_in_background("other".into(), other, SECOND, |_| {});
            }
            record.step("psp", async || Ok::<_, Error>(1)).await?;
            outage.end();
            Err::<u8, _>(Error::NotInstalled {})
        });
        assert!(matches!(failed.await, Err(Error::NotInstalled {})));

        let again = call.run(async |record| record.step("psp", async || Ok::<_, Error>(2)).await).await;

        assert_eq!(again.expect("it runs").into_value(), 1, "the step is not repeated");
    }

    /// Another attempt may repeat it. A result replaces it, so then the event is about the result.
    #[test]
    fn a_step_that_is_refused_after_an_outage_is_one_event() {
        let of_step = r#"lock.step="psp" lock.reason="the record has expired""#;
        let of_result = r#"lock.key=k lock.reason="the record has expired""#;
        for (ends_late, completes, expected) in
            [(true, false, of_step), (false, false, of_step), (false, true, of_result)]
        {
            let lost = lost_results(async {
                let locks = TestLocks::new();
                let call = locks.manager().idempotent("k").on_crash(OnCrash::Resume);
                let ended = call.run_attached(async |record| {
                    let outage = locks.outage();
                    record.step("psp", async || Ok::<_, Error>(1)).await?;
                    outage.end();
                    evict(&locks.manager(), "k").await;
                    if ends_late {
                        tokio::time::sleep(2 * SECOND).await;
                    }
                    if completes { Ok(1) } else { Err(Error::NotInstalled {}) }
                });
                assert_eq!(ended.await.is_ok(), completes);
                tokio::time::sleep(10 * SECOND).await;
            });

            assert!(lost.len() == 1 && lost[0].ends_with(expected), "{ends_late}, {completes}: {lost:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_is_stored_after_an_outage_of_20_s_at_its_end() {
        let locks = TestLocks::new();
        let manager = locks.manager();
        let call = manager.idempotent("k").lease(10 * SECOND);
        let other = locks.another_manager().idempotent("k");
        let mut outage = None;

        let ran = call.run_attached(async |_| {
            outage = Some(locks.outage());
            Ok::<_, Error>(1)
        });
        assert_eq!(ran.await.expect("the caller gets its value").into_value(), 1);
        assert_eq!(manager.pending_results(), 1);
        tokio::time::sleep(20 * SECOND).await;
        let away = other.run(async |_| Ok::<_, Error>(2)).await;
        assert!(matches!(away, Err(Error::Unavailable { .. })), "{away:?}");
        drop(outage);
        // The result is not there yet, and the lease is over.
        let crashed = other.run(async |_| Ok::<_, Error>(3)).await;
        assert!(matches!(crashed, Err(Error::OutcomeUnknown { attempt: 1, .. })), "{crashed:?}");
        tokio::time::sleep(5 * SECOND).await;

        let again = other.run(async |_| Ok::<_, Error>(4)).await.expect("it is replayed");
        assert_eq!((*again.value(), again.is_replayed(), manager.pending_results()), (1, true, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_wait_in_an_outage_end_as_one_that_waits_alone() {
        for on_unavailable in [OnUnavailable::Run, OnUnavailable::Error] {
            let locks = TestLocks::new();
            let call = locks.manager().idempotent("k").on_unavailable(on_unavailable);
            let _outage = locks.outage();

            let (patient, other) = (call.clone().wait(5 * SECOND), call.wait(4 * SECOND));
            let ran = tokio::join!(
                patient.run_attached(async |_| Ok::<_, Error>(1)),
                other.run_attached(async |_| Ok::<_, Error>(2))
            );

            for ran in [ran.0, ran.1] {
                let unavailable = matches!(ran, Err(Error::Unavailable { .. }));
                assert_eq!(unavailable, on_unavailable == OnUnavailable::Error, "{ran:?}");
                assert_eq!(ran.is_ok(), on_unavailable == OnUnavailable::Run, "{ran:?}");
            }
        }
    }

    /// Its turn comes when the next question of the call before it is not due yet.
    #[tokio::test(start_paused = true)]
    async fn a_call_whose_wait_ends_before_it_has_asked_asks_once() {
        let (locks, ms) = (TestLocks::new(), Duration::from_millis);
        let outage = locks.outage();
        let call = locks.manager().idempotent("k");
        let later = async {
            tokio::time::sleep(ms(450)).await;
            call.clone().wait(ms(500)).run_attached(async |_| Ok::<_, Error>(2)).await
        };
        let ends = async {
            tokio::time::sleep(ms(700)).await;
            drop(outage);
        };

        // The first one asks at 500 ms and at its end, and would ask again after a second.
        let first = call.clone().wait(ms(600));
        let first = first.run_attached(async |_| Ok::<_, Error>(1));
        let (first, later, ()) = tokio::join!(first, later, ends);

        assert!(matches!(first, Err(Error::Unavailable { .. })), "{first:?}");
        assert_eq!(later.expect("the server is back").into_value(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_running_does_not_run_again_in_an_outage() {
        let locks = TestLocks::new();
        let first = locks.another_manager().idempotent("k").lease(60 * SECOND);
        let first = tokio::spawn(async move {
            first
                .run(async |_| {
                    tokio::time::sleep(20 * SECOND).await;
                    Ok::<_, Error>(1)
                })
                .await
        });
        tokio::time::sleep(SECOND).await;
        let call = locks.manager().idempotent("k").wait(5 * SECOND).on_unavailable(OnUnavailable::Run);
        let outage = async {
            tokio::time::sleep(SECOND).await;
            locks.outage()
        };

        let without_turn = call.clone().wait(4 * SECOND);
        let (again, other, outage) = tokio::join!(
            call.run_attached(async |_| Ok::<_, Error>(2)),
            without_turn.run_attached(async |_| Ok::<_, Error>(3)),
            outage
        );

        assert!(matches!(again, Err(Error::InProgress { .. })), "{again:?}");
        assert!(matches!(other, Err(Error::InProgress { .. })), "{other:?}");
        drop(outage);
        first.await.expect("it ends").expect("it succeeds");
    }
}
