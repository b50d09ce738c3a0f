//! Which errors of a body are stored, in memory and under paused time.

use std::time::Duration;

use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};

use super::*;
use crate::backend::store_call::StoreOperation;
use crate::idempotent::begin::{Asked, PendingCall};
use crate::idempotent::operation::RecordOperation;
use crate::idempotent::{ErrorPolicy, IdempotencyState, IdempotentRecord, OnCrash};
use crate::{Error, Idempotent, LockManager};

const LEASE: Duration = Duration::from_secs(10);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ChargeError {
    Declined,
    Lock(String),
}

impl From<Error> for ChargeError {
    fn from(error: Error) -> Self {
        Self::Lock(error.to_string())
    }
}

/// An error that has no JSON.
#[derive(Debug, Serialize, Deserialize)]
enum UnstorableError {
    #[serde(skip)]
    Lock(Error),
}

impl From<Error> for UnstorableError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// A start that was written to a lost connection arrives after the attempt has ended.
#[tokio::test(start_paused = true)]
async fn a_start_that_takes_effect_after_the_end_is_undone() {
    for has_run in [true, false] {
        let manager = LockManager::in_new_memory();
        let call = manager.idempotent("k");
        let key = call.key.clone().expect("it is a key");
        let pending = PendingCall::new(&manager, key, &call.options).expect("its options are valid");
        let Ok(Asked::Started(mut execution)) = pending.ask(None).await else { panic!("the key is free") };
        let attempt = Arc::get_mut(&mut execution.attempt).expect("the body has not started");
        attempt.may_start_late = true;
        let start = pending.begin_call(attempt.token, None);

        if has_run {
            execution.run(async |_| (Completion::Forget, ())).await.expect("it has not lost its lease");
        } else {
            drop(execution);
            tokio::task::yield_now().await;
        }
        assert_eq!(state(&call).await, None);
        let start: Arc<dyn StoreOperation> = Arc::new(RecordOperation(IdempotencyEvent::Begin(start)));
        manager.engine().call(&pending.record, &start).await.expect("memory is there");

        assert_eq!(state(&call).await, Some(IdempotencyState::InProgress));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(state(&call).await, None, "the body has run: {has_run}");
    }
}

/// Its end is sent again after it has taken effect.
#[cfg(feature = "testing")]
#[test]
fn a_step_of_a_call_dropped_at_its_end_is_no_event() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let events = crate::telemetry::tests::emitted(|| {
        runtime.expect("it is a runtime").block_on(async {
            let locks = crate::testing::TestLocks::new();
            let manager = locks.manager();
            let call = manager.idempotent("k");
            let key = call.key.clone().expect("it is a key");
            let pending = PendingCall::new(&manager, key, &call.options).expect("its options are valid");
            let Ok(Asked::Started(mut execution)) = pending.ask(None).await else {
                panic!("the key is free")
            };
            execution.attempt.mark_run();
            let outage = locks.outage();
            execution.attempt.store_step("psp", Some(b"1".to_vec())).await.expect("it is stored later");
            outage.end();
            let end = execution.event(Completion::Forget);
            execution.ending = Some(end.clone());
            let ended = execution.end(end).await;
            assert!(matches!(ended, Ok(IdempotencyReply::Done)), "{ended:?}");

            drop(execution); // as if it had not read this reply
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_eq!(state(&call).await, Some(IdempotencyState::Forgotten));
        });
    });

    let lost: Vec<_> = events.iter().filter(|line| line.contains("dlock.result_lost")).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// Lets two leases pass within one poll, as in a process that is frozen.
fn freeze() {
    let _ = tokio::time::advance(2 * LEASE).now_or_never();
}

async fn state<P>(call: &Idempotent<P>) -> Option<IdempotencyState> {
    call.status().await.expect("memory is there").map(|status| status.state())
}

/// Runs a body whose step returns the number of the attempt.
async fn attempt<E, P>(call: &Idempotent<P>) -> Result<(u32, bool), E>
where
    E: From<Error>,
    P: ErrorPolicy<E>,
{
    let body = async |record: IdempotentRecord| {
        let number = record.attempt();
        record.step("pay", async || Ok::<_, E>(number)).await
    };
    call.run_attached(body).await.map(|outcome| (*outcome.value(), outcome.is_replayed()))
}

#[tokio::test(start_paused = true)]
async fn an_error_of_a_lost_attempt_is_not_stored() {
    let manager = LockManager::in_new_memory();
    for on_crash in [OnCrash::Rerun, OnCrash::Resume] {
        for declines in [true, false] {
            let call = manager.idempotent(format!("k:{on_crash:?}:{declines}")).lease(LEASE);
            let call = call.on_crash(on_crash).remember_errors_if(|_: &ChargeError| true);
            let body = async |record: IdempotentRecord| {
                freeze();
                if declines {
                    return Err(ChargeError::Declined);
                }
                record.step("pay", async || Ok(9)).await
            };

            let lost = call.run_attached(body).await.expect_err("it fails");
            assert_eq!(lost == ChargeError::Declined, declines, "the caller gets its error: {lost:?}");
            assert_eq!(state(&call).await, Some(IdempotencyState::OutcomeUnknown), "{on_crash:?}");

            assert_eq!(attempt(&call).await, Ok((2, false)), "{on_crash:?}, {lost:?}");
        }
    }
}

/// Such an error would become a tombstone.
#[tokio::test(start_paused = true)]
async fn an_unstorable_error_of_a_lost_attempt_is_no_end() {
    let manager = LockManager::in_new_memory();
    let call = manager.idempotent("k").lease(LEASE).on_crash(OnCrash::Resume);
    let call = call.remember_errors_if(|_: &UnstorableError| true);
    let body = async |record: IdempotentRecord| {
        freeze();
        record.step("pay", async || Ok::<_, UnstorableError>(9)).await
    };

    let lost = call.run_attached(body).await;
    assert!(matches!(lost, Err(UnstorableError::Lock(Error::Lost { .. }))), "{lost:?}");

    assert_eq!(attempt(&call).await.expect("it resumes"), (2, false));
}

#[tokio::test(start_paused = true)]
async fn a_lost_attempt_is_not_forgotten() {
    let manager = LockManager::in_new_memory();
    let call = manager.idempotent("k").lease(LEASE).on_crash(OnCrash::Resume);
    let body = async |record: IdempotentRecord| {
        freeze();
        record.step("pay", async || Ok::<u32, Error>(9)).await
    };

    let lost = call.run_attached(body).await;
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");

    assert_eq!(attempt::<Error, _>(&call).await.expect("it resumes"), (2, false));
}

#[tokio::test(start_paused = true)]
async fn a_late_value_is_stored() {
    let manager = LockManager::in_new_memory();
    for on_crash in [OnCrash::Fail, OnCrash::Rerun, OnCrash::Resume] {
        let call = manager.idempotent(format!("k:{on_crash:?}")).lease(LEASE).on_crash(on_crash);
        let body = async |_| {
            freeze();
            Ok::<_, Error>(7)
        };
        assert_eq!(call.run_attached(body).await.expect("it runs").into_value(), 7);

        assert_eq!(attempt::<Error, _>(&call).await.expect("it is replayed"), (7, true), "{on_crash:?}");
    }
}

/// No second attempt can start, so the attempt is not lost.
#[tokio::test(start_paused = true)]
async fn a_late_error_is_stored_with_fail() {
    let call =
        LockManager::in_new_memory().idempotent("k").lease(LEASE).remember_errors_if(|_: &ChargeError| true);
    let body = async |record: IdempotentRecord| {
        freeze();
        record.step("check", async || Ok::<_, ChargeError>(())).await?;
        freeze();
        Err::<u32, _>(ChargeError::Declined)
    };
    assert_eq!(call.run_attached(body).await.expect_err("it fails"), ChargeError::Declined);

    assert_eq!(attempt(&call).await, Err(ChargeError::Declined));
    assert_eq!(state(&call).await, Some(IdempotencyState::Completed));
}

/// The attempt did not finish, whichever error the body makes of it.
#[tokio::test(start_paused = true)]
async fn an_error_after_a_refused_step_is_not_stored() {
    let manager = LockManager::in_new_memory();
    for on_crash in [OnCrash::Fail, OnCrash::Resume] {
        for name in ["large", "twice"] {
            let call = manager.idempotent(format!("k:{on_crash:?}:{name}")).on_crash(on_crash);
            let call = call.remember_errors_if(|error: &ChargeError| *error != ChargeError::Declined);
            let large = async |record: IdempotentRecord| {
                record.step("large", async || Ok::<_, ChargeError>("x".repeat(70_000))).await?;
                Err::<u32, _>(ChargeError::Declined)
            };
            assert_eq!(call.run_attached(large).await.expect_err("it fails"), ChargeError::Declined);
            let refused = call.run_attached(async |record: IdempotentRecord| {
                record.step("twice", async || Ok::<_, ChargeError>(())).await?;
                record.step(name, async || Ok::<_, ChargeError>(String::new())).await?;
                Ok::<_, ChargeError>(9)
            });

            let refused = refused.await;
            assert!(matches!(refused, Err(ChargeError::Lock(_))), "{name}: {refused:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!(state(&call).await, Some(IdempotencyState::OutcomeUnknown), "{on_crash:?}, {name}");

            let again = attempt(&call).await;
            let is_unknown =
                matches!(&again, Err(ChargeError::Lock(text)) if text.contains("dlock idem resolve"));
            assert!(
                if on_crash == OnCrash::Fail { is_unknown } else { again == Ok((3, false)) },
                "{again:?}"
            );
        }
    }
}
