//! Calls that wait for another one with their key, under paused time.

use std::time::Duration;

use super::key_of;
use crate::backend::store_call::waiter;
use crate::idempotent::begin::{Asked, PendingCall};
use crate::idempotent::options::IdempotentOptions;
use crate::protocol::idempotency::MAX_WAITING_PROCESSES;
use crate::{Error, LockManager};

/// As after a message that is lost in a reconnect: the process that waits is not notified.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_notified_asks_when_its_wait_ends() {
    let one = LockManager::connect("memory://unnotified").await.expect("memory is there");
    let two = LockManager::connect("memory://unnotified").await.expect("memory is there");
    let (first, duplicate) = (one.idempotent("k"), two.idempotent("k"));
    let running = first.run_attached(async |_| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok::<_, Error>(1)
    });
    let waiting = async {
        let others = PendingCall::new(&two, key_of(&two, "k"), &IdempotentOptions::default());
        let others = others.expect("its options are valid");
        for process in 0..MAX_WAITING_PROCESSES {
            let asked = others.ask(Some(waiter(&process.to_string()))).await;
            assert!(matches!(asked, Ok(Asked::Found(_))), "{asked:?}");
        }
        // Its second question is due after 500 ms.
        duplicate.wait(Duration::from_millis(450)).run_attached(async |_| Ok::<_, Error>(2)).await
    };

    let (ran, waited) = tokio::join!(running, waiting);

    assert_eq!(ran.expect("it completes").into_value(), 1);
    let waited = waited.expect("the result has been stored for 430 ms");
    assert!(waited.is_replayed() && waited.into_value() == 1);
}

#[cfg(feature = "testing")]
mod outages {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::idempotent::OnUnavailable;
    use crate::idempotent::tests::SECOND;
    use crate::testing::TestLocks;

    /// Another call has waited since before the failure, and so its knowledge is kept.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_has_failed_does_not_count_as_running() {
        let locks = TestLocks::new();
        let call = locks.manager().idempotent("k").wait(10 * SECOND).on_unavailable(OnUnavailable::Run);
        let patient = call.clone().wait(30 * SECOND);
        let mut failing = pin!(call.run_attached(async |_| {
            tokio::time::sleep(SECOND).await;
            Err::<u32, _>(Error::NotInstalled {})
        }));
        let mut waiting = pin!(patient.run_attached(async |_| Ok::<_, Error>(2)));
        assert!((&mut failing).now_or_never().is_none());
        assert!((&mut waiting).now_or_never().is_none());
        let failed = failing.await;
        assert!(matches!(failed, Err(Error::NotInstalled {})), "{failed:?}");

        let _outage = locks.outage();
        let (waited, later) = tokio::join!(waiting, call.run_attached(async |_| Ok::<_, Error>(3)));

        assert_eq!(later.expect("no call has run since it arrived").into_value(), 3);
        assert_eq!(waited.expect("no call has run").into_value(), 2);
    }

    /// A start whose body is dropped before it runs.
    #[tokio::test(start_paused = true)]
    async fn a_call_whose_body_has_not_run_does_not_count_as_running() {
        let locks = TestLocks::new();
        let call = locks.manager().idempotent("k").wait(10 * SECOND).on_unavailable(OnUnavailable::Run);
        let manager = locks.manager();
        let pending = PendingCall::new(&manager, key_of(&manager, "k"), &call.options);
        let pending = pending.expect("its options are valid");
        let begun = pending.wait(SECOND).await.expect("the key is free");
        let mut waiting = pin!(call.run_attached(async |_| Ok::<_, Error>(2)));
        assert!((&mut waiting).now_or_never().is_none());

        let _outage = locks.outage();
        drop(begun);

        assert_eq!(waiting.await.expect("no call has run").into_value(), 2);
    }

    /// The store may not have its result, so the next attempt would run the body again.
    #[tokio::test(start_paused = true)]
    async fn a_call_whose_end_is_not_confirmed_counts_as_running() {
        let locks = TestLocks::new();
        let call = locks.manager().idempotent("k").wait(10 * SECOND).on_unavailable(OnUnavailable::Run);
        let mut outage = None;
        let mut ending = pin!(call.run_attached(async |_| {
            tokio::time::sleep(SECOND).await;
            outage = Some(locks.outage());
            Ok::<_, Error>(1)
        }));
        let mut waiting = pin!(call.run_attached(async |_| Ok::<_, Error>(2)));
        assert!((&mut ending).now_or_never().is_none());
        assert!((&mut waiting).now_or_never().is_none());

        let (ended, waited) = tokio::join!(ending, waiting);

        assert_eq!(ended.expect("it returns its value").into_value(), 1);
        assert!(matches!(waited, Err(Error::InProgress { .. })), "{waited:?}");
    }

    /// The call that has the turn is on a runtime that stands still.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_started_without_a_turn_counts_as_running() {
        let locks = TestLocks::new();
        let call = locks.manager().idempotent("k").wait(SECOND).on_unavailable(OnUnavailable::Run);
        let mut stands_still = pin!(call.run_attached(async |_| Ok::<_, Error>(1)));
        let outage = locks.outage();
        assert!((&mut stands_still).now_or_never().is_none());
        outage.end();
        let running = call.run_attached(async |_| {
            tokio::time::sleep(20 * SECOND).await;
            Ok::<_, Error>(2)
        });
        let duplicate = async {
            tokio::time::sleep(2 * SECOND).await;
            let _outage = locks.outage();
            call.run_attached(async |_| Ok::<_, Error>(3)).await
        };

        let (ran, duplicate) = tokio::join!(running, duplicate);

        assert_eq!(ran.expect("it completes").into_value(), 2);
        assert!(matches!(duplicate, Err(Error::InProgress { .. })), "{duplicate:?}");
    }

    /// The call that has the turn is on a runtime that stands still.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_found_without_a_turn_counts_as_running() {
        let locks = TestLocks::new();
        let other = locks.another_manager().idempotent("k");
        let call = locks.manager().idempotent("k").wait(SECOND).on_unavailable(OnUnavailable::Run);
        let mut stands_still = pin!(call.run_attached(async |_| Ok::<_, Error>(1)));
        let outage = locks.outage();
        assert!((&mut stands_still).now_or_never().is_none());
        outage.end();
        let running = other.run_attached(async |_| {
            tokio::time::sleep(20 * SECOND).await;
            Ok::<_, Error>(2)
        });
        let duplicates = async {
            let before = call.run_attached(async |_| Ok::<_, Error>(3)).await;
            let _outage = locks.outage();
            (before, call.run_attached(async |_| Ok::<_, Error>(4)).await)
        };

        let (ran, (before, after)) = tokio::join!(running, duplicates);

        assert_eq!(ran.expect("it completes").into_value(), 2);
        assert!(matches!(before, Err(Error::InProgress { .. })), "{before:?}");
        assert!(matches!(after, Err(Error::InProgress { .. })), "{after:?}");
    }
}
