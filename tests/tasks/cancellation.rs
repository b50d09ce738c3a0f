//! T9: calls that `select!`, `timeout`, `join!`, and `abort` cancel, also at the moment of their
//! grant.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use dlock_runtime::Error;
use dlock_tests::{RedisServer, overrun, within};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{KEY, LONG, PROMPT, assert_nothing_is_left, manager_of, until_waiting};

#[tokio::test]
async fn a_body_that_a_timeout_ends_releases_at_once() {
    let server = RedisServer::start();
    let manager = manager_of(&server).await;
    let lock = manager.lock(KEY).lease(LONG);

    let ended =
        timeout(Duration::from_millis(50), lock.run(async |_guard| std::future::pending::<()>().await));
    let ended = ended.await;

    assert!(ended.is_err());
    assert_nothing_is_left(&server, PROMPT).await;
}

#[tokio::test]
async fn untaken_select_branch_releases_and_leaves_the_queue() {
    let server = RedisServer::start();
    let (ours, theirs) = (manager_of(&server).await, manager_of(&server).await);
    let elsewhere = theirs.lock("taken").lease(LONG).acquire().await.expect("it is free");
    let (free, taken) = (ours.lock(KEY).lease(LONG), ours.lock("taken").lease(LONG).wait(LONG));

    tokio::select! {
        outcome = free.run(async |_guard| std::future::pending::<()>().await) => panic!("{outcome:?}"),
        outcome = taken.acquire() => panic!("{outcome:?}"),
        () = until_waiting(&server, "taken", 1) => {}
    }
    elsewhere.release().await.expect("it is held");

    assert_nothing_is_left(&server, PROMPT).await;
}

#[tokio::test]
async fn joined_calls_of_one_task_all_acquire() {
    let server = RedisServer::start();
    let (ours, theirs) = (manager_of(&server).await, manager_of(&server).await);
    let body = async |_guard: &_| tokio::time::sleep(Duration::from_millis(5)).await;
    let (first, second) = (ours.lock(KEY).lease(LONG).wait(LONG), theirs.lock(KEY).lease(LONG).wait(LONG));
    let another = ours.lock("another").lease(LONG);

    let outcomes = within(LONG, "all holds", async {
        tokio::join!(first.run(body), second.run(body), first.run(body), another.run(body))
    })
    .await;

    assert!(matches!(outcomes, (Ok(()), Ok(()), Ok(()), Ok(()))), "{outcomes:?}");
    assert_nothing_is_left(&server, PROMPT).await;
}

/// A task that waits for a lock that it holds through another guard fails like any other waiter.
#[tokio::test]
async fn two_guards_of_one_key_in_one_task_are_contended() {
    let server = RedisServer::start();
    let wait = Duration::from_millis(300);
    let lock = manager_of(&server).await.lock(KEY).lease(LONG).wait(wait);

    let both = async { tokio::join!(lock.acquire(), lock.acquire()) };
    let (outcomes, late) = overrun(wait, both).await;

    let (first, second) = &outcomes;
    let refused =
        [first, second].into_iter().filter_map(|outcome| outcome.as_ref().err()).collect::<Vec<_>>();
    assert!(matches!(refused[..], [Error::Contended { .. }]), "{outcomes:?}");
    assert!(late < Duration::from_millis(100), "{late:?}");
    drop(outcomes);
    assert_nothing_is_left(&server, PROMPT).await;
}

#[tokio::test]
async fn aborted_waiters_do_not_delay_later_ones() {
    let server = RedisServer::start();
    let (ours, theirs) = (manager_of(&server).await, manager_of(&server).await);
    let held = ours.lock(KEY).lease(LONG).acquire().await.expect("it is free");
    let mut aborted = JoinSet::new();
    for manager in [&ours, &theirs].into_iter().cycle().take(40) {
        let lock = manager.lock(KEY).lease(LONG).wait(LONG);
        aborted.spawn(async move { lock.acquire().await.map(drop) });
    }
    until_waiting(&server, KEY, 1).await;
    let last = manager_of(&server).await.lock(KEY).lease(LONG).wait(LONG);
    let last = tokio::spawn(async move { last.run(async |_guard| ()).await });
    until_waiting(&server, KEY, 2).await;

    aborted.abort_all();
    held.release().await.expect("it is held");
    let grant = within(PROMPT, "the grant of the remaining waiter", last).await.expect("no panic");

    assert!(grant.is_ok(), "{grant:?}");
    assert_nothing_is_left(&server, PROMPT).await;
}

/// The wait is cancelled around the hand-off: before it, during it, and after it but before the
/// task is polled.
#[tokio::test]
async fn wait_cancelled_during_its_grant_leaves_nothing() {
    let server = RedisServer::start();
    let (ours, theirs) = (manager_of(&server).await, manager_of(&server).await);
    for round in 0..120_u32 {
        // In every other round, the lock comes from another process.
        let is_theirs = round % 2 == 1;
        let from = if is_theirs { &theirs } else { &ours };
        let held = from.lock(KEY).lease(LONG).wait(LONG).acquire().await.expect("the lock is free");
        let waiting = ours.lock(KEY).lease(LONG).wait(LONG);
        let mut acquire = Box::pin(waiting.acquire());
        let grant = Arc::new(GrantSignal::default());
        let waker = Waker::from(Arc::clone(&grant));
        let early = acquire.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(early.is_pending(), "it is held: {early:?}");
        if is_theirs {
            until_waiting(&server, KEY, 1).await;
        }

        let released = tokio::spawn(held.release());
        let moment = Instant::now() + Duration::from_micros(2) * round;
        let is_time = async || match round / 2 % 3 {
            0 => {}
            // Timers of tokio are too coarse: they round to about ten times the duration of a
            // release.
            1 => {
                while Instant::now() < moment {
                    tokio::task::yield_now().await;
                }
            }
            _ => grant.arrived.notified().await,
        };
        within(PROMPT, &format!("the grant of round {round}"), is_time()).await;
        // The call is not polled again, so it has not observed a grant that has arrived.
        drop(acquire);
        released.await.expect("no panic").expect("it was held");

        let next = theirs.lock(KEY).lease(LONG).wait(LONG);
        let next = within(PROMPT, &format!("the lock after round {round}"), next.acquire()).await;
        next.expect("it is free").release().await.expect("it is held");
    }

    assert_nothing_is_left(&server, PROMPT).await;
}

/// Receives the wake-up of a call that is not polled again.
#[derive(Default)]
struct GrantSignal {
    arrived: Notify,
}

impl Wake for GrantSignal {
    fn wake(self: Arc<Self>) {
        self.arrived.notify_one();
    }
}
