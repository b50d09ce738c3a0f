//! The terms of leaders over memory, with paused time, and over a quorum.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{CurrentLeader, Error, FencingToken, LeaderWatch, LockManager, LossCause, Term};
use dlock_tests::{Proxy, QuorumFleet, RedisServer, until, within};
use futures_util::FutureExt as _;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};

use super::LONG;

/// The lease of the leaders that [`lead`] starts.
const LEASE: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// Two managers of one store in memory.
async fn two_managers(store: &str) -> (LockManager, LockManager) {
    let url = format!("memory://{store}");
    let connect = async || LockManager::connect(&url).await.expect("no server is needed");
    (connect().await, connect().await)
}

/// Leads `name` in a task. Each term is reported with its number, and lasts until it is ended.
fn lead(manager: &LockManager, name: &'static str) -> mpsc::UnboundedReceiver<u64> {
    let (send, terms) = mpsc::unbounded_channel();
    let leadership = manager.leader(name).lease(LEASE);
    tokio::spawn(async move {
        let body = async |term: Term| {
            let _ = send.send(term.number().get());
            std::future::pending::<()>().await;
        };
        leadership.lead(body).await.expect("it leads until the shutdown");
    });
    terms
}

async fn next(terms: &mut mpsc::UnboundedReceiver<u64>) -> u64 {
    within(LONG, "the next term", terms.recv()).await.expect("it leads")
}

/// Waits for the next report of a watch.
async fn report(watch: &mut LeaderWatch) -> Option<CurrentLeader> {
    within(LONG, "a report", watch.changed()).await.expect("it can be inspected")
}

/// Checks that a watch reports this manager and this term. Returns the reported owner.
async fn assert_reports(watch: &mut LeaderWatch, manager: &LockManager, term: u64) -> Option<String> {
    let leader = report(watch).await.expect("one leads");
    let number = leader.term.map(FencingToken::get);
    assert_eq!((leader.manager, number), (manager.id(), Some(term)));
    leader.owner
}

#[tokio::test]
async fn other_elections_of_a_process_end_no_term() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let mut terms = lead(&manager, "indexer");
    next(&mut terms).await;

    let others = ["reports", "mails"].map(|name| manager.leader(name).is_leader());

    assert_eq!(others, [false, false]);
    assert!(manager.leader("indexer").is_leader());
}

#[tokio::test]
async fn a_resignation_hands_off_to_another_process() {
    let (a, b) = two_managers("resigns").await;
    let mut terms_of_a = lead(&a, "indexer");
    let first = next(&mut terms_of_a).await;
    let mut terms_of_b = lead(&b, "indexer");
    let mut watch = b.leader("indexer").watch();
    let owner = assert_reports(&mut watch, &a, first).await;
    assert_eq!(owner.as_deref(), Some(a.owner()));
    assert!(a.leader("indexer").is_leader() && !b.leader("indexer").is_leader());
    // The candidate waits in the queue of the lock.
    until_a_candidate_waits(&a).await;

    a.leader("indexer").resign().await.expect("a valid name");
    let second = next(&mut terms_of_b).await;

    assert!(second > first, "{second} after {first}");
    assert!(!a.leader("indexer").is_leader() && b.leader("indexer").is_leader());
    assert_reports(&mut watch, &b, second).await;
}

#[tokio::test]
async fn a_shutdown_resigns_at_once() {
    let (a, b) = two_managers("shuts-down").await;
    let (send, mut terms_of_a) = mpsc::unbounded_channel();
    let of_a = a.clone();
    let led = tokio::spawn(async move {
        let body = async |term: Term| {
            let _ = send.send(term.number().get());
            std::future::pending::<()>().await;
        };
        of_a.leader("indexer").lead(body).await
    });
    next(&mut terms_of_a).await;
    let mut terms_of_b = lead(&b, "indexer");

    // The body would keep the shutdown waiting for its whole deadline.
    within(Duration::from_secs(10), "the shutdown", a.shutdown(LONG)).await;

    assert!(led.await.expect("no panic").is_ok());
    next(&mut terms_of_b).await;
}

#[tokio::test]
async fn a_term_ends_by_itself_when_its_body_resigns() {
    let (a, b) = two_managers("resigns-itself").await;
    let (send, mut terms) = mpsc::unbounded_channel();
    let of_a = a.clone();
    tokio::spawn(async move {
        let body = async |term: Term| {
            let _ = send.send(term.number().get());
            term.resign().await;
            unreachable!("the body is dropped");
        };
        of_a.leader("indexer").lead(body).await
    });

    next(&mut terms).await;
    next(&mut lead(&b, "indexer")).await;
}

#[tokio::test]
async fn a_blocked_body_learns_that_its_term_is_over() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("it runs");
    let (send, mut seen) = mpsc::unbounded_channel();
    let paused = &server;
    let body = async |term: Term| {
        let valid = (term.check().is_ok(), term.is_valid(), term.remaining() > Duration::ZERO);
        paused.pause(); // no renewal succeeds
        let begun = std::time::Instant::now();
        while term.is_valid() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1)); // the body does not return to its executor
        }
        let _ = send.send((valid, term.check(), term.remaining()));
        paused.resume();
        std::future::pending::<()>().await;
    };
    let leader = locks.leader("indexer").lease(Duration::from_millis(500));

    let (valid, check, remaining) = tokio::select! {
        led = leader.lead(body) => panic!("it leads until the shutdown: {led:?}"),
        seen = within(LONG, "the term", seen.recv()) => seen.expect("it leads"),
    };

    assert_eq!(valid, (true, true, true));
    assert!(matches!(check, Err(Error::Lost { .. })), "{check:?}");
    assert_eq!(remaining, Duration::ZERO);
}

#[tokio::test]
async fn a_lost_term_drops_its_body_and_another_begins() {
    let (a, b) = two_managers("is-lost").await;
    let (send, mut terms) = mpsc::unbounded_channel();
    let of_a = a.clone();
    let alive = Arc::new(());
    let bodies = Arc::downgrade(&alive);
    tokio::spawn(async move {
        let body = async |term: Term| {
            let _alive = Arc::clone(&alive);
            let _ = send.send((term.number().get(), Arc::strong_count(&alive)));
            std::future::pending::<()>().await;
        };
        of_a.leader("indexer").lead(body).await
    });
    let first = within(LONG, "a term", terms.recv()).await.expect("it leads");

    assert!(b.force_release("leader:indexer").await.expect("a store"));
    let second = within(LONG, "another term", terms.recv()).await.expect("it leads again");

    assert!(second.0 > first.0);
    assert_eq!((first.1, second.1), (2, 2), "one body at a time");
    assert_eq!(bodies.strong_count(), 2);
}

/// In a minute, the pauses of 100 ms to 10 s permit about a dozen terms.
#[tokio::test(start_paused = true)]
async fn a_body_that_returns_at_once_causes_no_busy_loop() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let terms = AtomicU64::new(0);
    let count = |_: Term| async {
        terms.fetch_add(1, Ordering::Relaxed);
    };

    let led = tokio::time::timeout(Duration::from_secs(60), manager.leader("indexer").lead(count)).await;

    assert!(led.is_err(), "it leads until the shutdown");
    let terms = terms.load(Ordering::Relaxed);
    assert!((8..=14).contains(&terms), "{terms} terms");
}

#[tokio::test]
async fn invalid_names_and_leases_are_reported() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let lead = async |name: &str, lease| manager.leader(name).lease(lease).lead(async |_| ()).await;

    assert!(matches!(lead("", LONG).await, Err(Error::InvalidKey { .. })));
    assert!(matches!(lead("a##b", LONG).await, Err(Error::InvalidKey { .. })));
    assert!(matches!(lead("a", Duration::from_millis(99)).await, Err(Error::Config { .. })));
    assert!(manager.leader("").resign().await.is_err() && !manager.leader("").is_leader());
}

#[tokio::test]
async fn a_quorum_elects_leaders() {
    let quorum = QuorumFleet::start(3).await;
    let (a, b) = (quorum.manager("").await, quorum.manager("").await);
    let first = next(&mut lead(&a, "indexer")).await;
    let mut terms_of_b = lead(&b, "indexer");
    quorum.until_waiting("leader:indexer").await;

    a.leader("indexer").resign().await.expect("a valid name");

    assert!(next(&mut terms_of_b).await > first);
}

/// The servers issue numbers of their own, of which a majority knows one.
#[tokio::test]
async fn a_watch_reports_the_terms_of_a_quorum() {
    let quorum = QuorumFleet::start(3).await;
    let (a, b) = (quorum.manager("").await, quorum.manager("").await);
    let mut watch = b.leader("indexer").watch();
    assert_eq!(report(&mut watch).await, None, "no process leads");
    let first = next(&mut lead(&a, "indexer")).await;
    let mut terms_of_b = lead(&b, "indexer");
    assert_reports(&mut watch, &a, first).await;
    quorum.until_waiting("leader:indexer").await;

    a.leader("indexer").resign().await.expect("a valid name");

    let second = next(&mut terms_of_b).await;
    assert_reports(&mut watch, &b, second).await;
}

#[tokio::test]
async fn a_watch_reports_each_term_of_a_leader() {
    let server = RedisServer::start();
    let connect = async || LockManager::connect(&server.url()).await.expect("the server takes managers");
    let (a, b) = (connect().await, connect().await);
    let mut watch = b.leader("indexer").watch();
    assert_eq!(report(&mut watch).await, None, "no process leads");
    let mut terms = lead(&a, "indexer");
    let first = next(&mut terms).await;
    assert_reports(&mut watch, &a, first).await;

    assert!(b.force_release("leader:indexer").await.expect("a store"));
    let second = next(&mut terms).await;

    assert!(second > first, "{second} after {first}");
    assert_reports(&mut watch, &a, second).await;
    let info = b.inspect("leader:indexer").await.expect("a store").expect("it is held");
    assert_eq!(info.fencing_token().map(FencingToken::get), Some(second));
}

/// A lease is 5 s, and the backoff after a short term 100 ms.
#[tokio::test(start_paused = true)]
async fn a_process_that_resigned_pauses_for_a_lease_if_another_leads() {
    let (a, b) = two_managers("pauses").await;
    let mut terms_of_a = lead(&a, "indexer");
    next(&mut terms_of_a).await;
    let mut terms_of_b = lead(&b, "indexer");
    until_a_candidate_waits(&a).await;
    let resigned = Instant::now();
    a.leader("indexer").resign().await.expect("a valid name");
    next(&mut terms_of_b).await;

    // The lock is free from here on, and `a` is still pausing.
    b.shutdown(Duration::ZERO).await;
    next(&mut terms_of_a).await;

    let paused = resigned.elapsed();
    assert!((LEASE..LEASE + Duration::from_millis(200)).contains(&paused), "{paused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_resigned_leads_again_soon_if_no_other_does() {
    let (a, _) = two_managers("is-alone").await;
    let mut terms = lead(&a, "indexer");
    next(&mut terms).await;
    let resigned = Instant::now();

    a.leader("indexer").resign().await.expect("a valid name");
    next(&mut terms).await;

    let paused = resigned.elapsed();
    assert!(paused < Duration::from_millis(300), "{paused:?}");
}

/// Waits until a candidate is in the queue of the lock.
async fn until_a_candidate_waits(manager: &LockManager) {
    while manager.inspect("leader:indexer").await.expect("a store").is_none_or(|info| info.waiters() == 0) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_lock_is_released_when_resign_returns() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let a = LockManager::connect(&proxy.url()).await.expect("the server takes managers");
    let b = LockManager::connect(&server.url()).await.expect("the server takes managers");
    next(&mut lead(&a, "indexer")).await;
    proxy.hold_requests();

    let leadership = a.leader("indexer");
    let mut resigned = Box::pin(leadership.resign());
    let early = tokio::time::timeout(Duration::from_millis(200), &mut resigned).await;
    assert!(early.is_err(), "the server has no request to release the lock");
    assert!(b.inspect("leader:indexer").await.expect("a store").is_some());
    proxy.pass();
    within(LONG, "the release", resigned).await.expect("a valid name");
}

#[tokio::test(start_paused = true)]
async fn an_ended_term_cannot_resign_from_a_newer_one() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let (send, mut terms) = mpsc::unbounded_channel();
    let of_body = manager.clone();
    tokio::spawn(async move {
        let mut count = 0;
        let body = |term: Term| {
            let _ = send.send(term);
            count += 1;
            let is_first = count == 1;
            async move {
                if !is_first {
                    std::future::pending::<()>().await;
                }
            }
        };
        of_body.leader("indexer").lead(body).await
    });
    let old = within(LONG, "a term", terms.recv()).await.expect("it leads");
    let newer = within(LONG, "a newer term", terms.recv()).await.expect("it leads again");

    let _ = tokio::time::timeout(Duration::from_secs(1), old.resign()).await;

    assert!(newer.is_valid() && manager.leader("indexer").is_leader());
    assert!(terms.try_recv().is_err(), "no further term");
}

/// The lock of the first call is not handed off to the second one.
#[tokio::test(start_paused = true)]
async fn resign_releases_the_lock_if_a_second_call_waits() {
    let (a, b) = two_managers("two-calls").await;
    let mut first = lead(&a, "indexer");
    next(&mut first).await;
    let mut second = lead(&a, "indexer");
    sleep(SECOND).await; // it waits in this process

    a.leader("indexer").resign().await.expect("it is released");

    assert!(is_free(&b).await && !a.leader("indexer").is_leader());
    next(&mut first).await;
    assert!(second.try_recv().is_err(), "it waits until the first call has ended");
}

#[tokio::test(start_paused = true)]
async fn a_second_call_leads_when_the_first_has_ended() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let first = lead_in_a_task(&manager).await;
    let mut second = lead(&manager, "indexer");
    sleep(SECOND).await; // it waits in this process

    first.abort();

    next(&mut second).await;
    assert!(manager.leader("indexer").is_leader());
}

/// The first call waits for the lock that the call chain of the second one holds.
#[tokio::test(start_paused = true)]
async fn a_second_call_under_the_lock_of_its_name_is_reentrant() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let lock = manager.lock("leader:indexer");

    let ended = lock.run(async |_| {
        let _first = lead(&manager, "indexer");
        sleep(SECOND).await; // it waits for the lock
        timeout(LONG, manager.leader("indexer").lead(async |_| ())).await
    });

    let ended = ended.await.expect("it is free");
    assert!(matches!(ended, Ok(Err(Error::Reentrant { .. }))), "{ended:?}");
}

/// The first call is not polled, so that it does not end.
#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_a_call_that_waits_for_another() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let leadership = manager.leader("indexer");
    let mut first = Box::pin(leadership.lead(async |_| std::future::pending::<()>().await));
    assert!(first.as_mut().now_or_never().is_none() && leadership.is_leader());
    let second = timeout(LONG, leadership.lead(async |_| ()));

    let (ended, ()) = tokio::join!(second, manager.shutdown(Duration::ZERO));

    assert!(matches!(ended, Ok(Ok(()))), "{ended:?}");
}

/// The lock has a holder without a number, like a leader that has not begun its term.
#[tokio::test(start_paused = true)]
async fn a_watch_waits_300_ms_for_a_term_to_begin() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let _guard = manager.lock("leader:indexer").acquire().await.expect("it is free");
    let begun = tokio::time::Instant::now();

    let leader =
        manager.leader("indexer").watch().changed().await.expect("a store").expect("one holds the lock");

    let waited = begun.elapsed();
    assert_eq!((leader.manager.as_str(), leader.term), (&*manager.id(), None));
    assert!(waited >= Duration::from_millis(300) && waited < Duration::from_millis(350), "{waited:?}");
}

/// A report that is not due would be wrong, or would name no term.
#[tokio::test(start_paused = true)]
async fn a_watch_reports_nothing_while_the_term_stays() {
    let (a, b) = two_managers("stays").await;
    let mut watch = b.leader("indexer").watch();
    assert_eq!(report(&mut watch).await, None, "no process leads");
    assert!(timeout(60 * SECOND, watch.changed()).await.is_err(), "no process leads yet");

    let mut terms = lead(&a, "indexer");
    let first = next(&mut terms).await;
    assert_reports(&mut watch, &a, first).await;

    assert!(timeout(60 * SECOND, watch.changed()).await.is_err(), "the leader and its term are the same");
}

/// Until a leader has its number, the server knows that of its predecessor.
#[tokio::test(start_paused = true)]
async fn a_watch_does_not_take_the_number_of_another_leader() {
    let (a, b) = two_managers("predecessor").await;
    let mut watch = b.leader("indexer").watch();
    let first = next(&mut lead(&a, "indexer")).await;
    assert_reports(&mut watch, &a, first).await;

    a.shutdown(Duration::ZERO).await;
    let guard = b.lock("leader:indexer").acquire().await.expect("it is free");

    let leader = report(&mut watch).await.expect("one holds the lock");
    assert_eq!((leader.manager, leader.term), (b.id(), None));
    let number = guard.fencing_token().await.expect("it is held").get();
    assert!(number > first, "{number} after {first}");
    assert_reports(&mut watch, &b, number).await;
}

/// The wait of 300 ms is for a leader that has not begun its term.
#[tokio::test(start_paused = true)]
async fn a_watch_reports_a_known_term_at_once() {
    let (a, b) = two_managers("at-once").await;
    let first = next(&mut lead(&a, "indexer")).await;
    let begun = Instant::now();

    assert_reports(&mut b.leader("indexer").watch(), &a, first).await;

    assert!(begun.elapsed() < Duration::from_millis(10), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_resignation_of_the_body_does_not_return() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let (terms, returns) = (AtomicU64::new(0), AtomicU64::new(0));
    let body = async |term: Term| {
        terms.fetch_add(1, Ordering::Relaxed);
        term.resign().await;
        returns.fetch_add(1, Ordering::Relaxed);
    };

    let led = timeout(SECOND, manager.leader("indexer").lead(body)).await;

    assert!(led.is_err(), "it leads until the shutdown");
    assert!(terms.into_inner() > 1, "each term ends");
    assert_eq!(returns.into_inner(), 0);
}

/// The backoff of 100 ms doubles only while terms are shorter than a lease.
#[tokio::test(start_paused = true)]
async fn a_term_longer_than_a_lease_ends_the_backoff() {
    let manager = LockManager::connect("memory://").await.expect("no server is needed");
    let terms = RefCell::new(Vec::new());
    let body = async |_: Term| {
        let (count, began) = (terms.borrow().len(), Instant::now());
        sleep(if count < 4 { Duration::ZERO } else { LEASE + SECOND }).await;
        terms.borrow_mut().push((began, Instant::now()));
    };

    let led = timeout(60 * SECOND, manager.leader("indexer").lease(LEASE).lead(body)).await;

    assert!(led.is_err(), "it leads until the shutdown");
    let terms = terms.into_inner();
    let pauses: Vec<_> = terms.windows(2).map(|terms| (terms[1].0 - terms[0].1).as_millis() / 100).collect();
    assert_eq!(pauses[..6], [1, 2, 4, 8, 1, 1], "tenths of a second");
}

/// Terms last no time. After two of them, another process leads for longer than a lease.
#[tokio::test(start_paused = true)]
async fn the_wait_for_a_term_does_not_end_the_backoff() {
    let (a, b) = two_managers("waits").await;
    let terms = RefCell::new(Vec::new());
    let of_a = async {
        let body = async |_: Term| terms.borrow_mut().push(Instant::now());
        timeout(20 * SECOND, a.leader("indexer").lease(LEASE).lead(body)).await
    };
    let of_b = async {
        sleep(Duration::from_millis(150)).await;
        let body = async |_: Term| std::future::pending::<()>().await;
        timeout(LEASE + SECOND, b.leader("indexer").lease(LEASE).lead(body)).await
    };

    let (led, other) = tokio::join!(of_a, of_b);

    assert!(led.is_err() && other.is_err(), "they lead until they are dropped");
    let terms = terms.into_inner();
    let pauses: Vec<_> = terms.windows(2).map(|terms| (terms[1] - terms[0]).as_millis() / 100).collect();
    assert_eq!((pauses[0], &pauses[2..5]), (1, &[4, 8, 16][..]), "tenths of a second: {pauses:?}");
    assert!(pauses[1] > 50, "it waits for the other process: {pauses:?}");
}

/// Only after a resignation, a process lets others lead for a lease.
#[tokio::test(start_paused = true)]
async fn a_process_whose_body_returned_contends_after_the_backoff() {
    let (a, b) = two_managers("returns").await;
    let (send, mut terms_of_a) = mpsc::unbounded_channel();
    let (of_a, returns) = (a.clone(), Arc::new(Notify::new()));
    let may_return = Arc::clone(&returns);
    tokio::spawn(async move {
        let body = async |term: Term| {
            let _ = send.send(term.number().get());
            may_return.notified().await;
        };
        of_a.leader("indexer").lease(LEASE).lead(body).await
    });
    next(&mut terms_of_a).await;
    let mut terms_of_b = lead(&b, "indexer");
    until_a_candidate_waits(&a).await;

    let returned = Instant::now();
    returns.notify_one();
    next(&mut terms_of_b).await;
    sleep(SECOND).await;
    b.shutdown(Duration::ZERO).await;
    next(&mut terms_of_a).await;

    assert!(returned.elapsed() < 2 * SECOND, "{:?}", returned.elapsed());
}

/// A candidate that entered the queue again would be behind a younger one. The times are such that
/// this is seen for waits of 24 s, 25 min, and about one hour.
#[tokio::test(start_paused = true)]
async fn candidates_lead_in_the_order_in_which_they_came() {
    let (a, b) = two_managers("in-order").await;
    let c = LockManager::connect("memory://in-order").await.expect("no server is needed");
    next(&mut lead(&a, "indexer")).await;
    let mut terms_of_b = lead(&b, "indexer");
    sleep(1_211 * SECOND).await;
    let mut terms_of_c = lead(&c, "indexer");
    sleep((3_630 - 1_211) * SECOND).await;

    a.leader("indexer").resign().await.expect("a valid name");

    next(&mut terms_of_b).await;
    assert!(terms_of_c.try_recv().is_err(), "it came later");
}

/// A manager whose requests go through a proxy, one that is connected directly, and their server.
async fn behind_a_proxy() -> (LockManager, Proxy, LockManager, RedisServer) {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let slow = LockManager::builder(&proxy.url()).response_timeout(SECOND).lease(2 * SECOND);
    let a = slow.connect().await.expect("the server takes managers");
    let b = LockManager::connect(&server.url()).await.expect("the server takes managers");
    (a, proxy, b, server)
}

async fn is_free(manager: &LockManager) -> bool {
    manager.lock("leader:indexer").try_acquire().await.expect("a store").is_some()
}

/// Checks that the server has not confirmed the release of the lock.
fn assert_unconfirmed(resigned: &Result<(), Error>) {
    let is_unconfirmed = matches!(
        resigned,
        Err(Error::Unavailable { key: Some(key), .. }) if key.as_str() == "leader:indexer"
    );
    assert!(is_unconfirmed, "{resigned:?}");
}

/// Leads until the returned task is aborted.
async fn lead_in_a_task(manager: &LockManager) -> tokio::task::JoinHandle<()> {
    let (send, mut terms) = mpsc::unbounded_channel();
    let leadership = manager.leader("indexer");
    let task = tokio::spawn(async move {
        let body = async |term: Term| {
            let _ = send.send(term.number().get());
            std::future::pending::<()>().await;
        };
        leadership.lead(body).await.expect("it leads until the shutdown");
    });
    next(&mut terms).await;
    task
}

#[tokio::test]
async fn resign_waits_for_the_release_of_a_dropped_lead() {
    let (a, proxy, b, _server) = behind_a_proxy().await;
    for is_dropped_first in [false, true] {
        let leading = lead_in_a_task(&a).await;
        let leadership = a.leader("indexer");
        proxy.hold_requests();
        let (mut first, mut second) = (Box::pin(leadership.resign()), Box::pin(leadership.resign()));
        if !is_dropped_first {
            assert!(timeout(Duration::from_millis(50), &mut first).await.is_err());
        }
        leading.abort();
        assert!(leading.await.is_err_and(|ended| ended.is_cancelled()));

        let early =
            timeout(Duration::from_millis(200), async { tokio::join!(&mut first, &mut second) }).await;

        assert!(early.is_err(), "the server has no request to release the lock: {early:?}");
        assert!(!is_free(&b).await && !leadership.is_leader());
        proxy.pass();
        let (first, second) = within(LONG, "the release", async { tokio::join!(first, second) }).await;
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
        assert!(is_free(&b).await);
    }
}

#[tokio::test]
async fn resign_waits_for_the_release_of_a_term_that_ends_itself() {
    let (a, proxy, b, _server) = behind_a_proxy().await;
    let (returns, leadership) = (Notify::new(), a.leader("indexer"));
    let (send, mut terms) = mpsc::unbounded_channel();
    let leading = leadership.lead(async |term| {
        let _ = send.send(term.number().get());
        returns.notified().await;
    });
    let resigning = async {
        next(&mut terms).await;
        proxy.hold_requests();
        returns.notify_one();
        tokio::task::yield_now().await;
        let mut resigning = Box::pin(leadership.resign());
        let early = timeout(Duration::from_millis(200), &mut resigning).await;
        assert!(early.is_err(), "the server has no request to release the lock: {early:?}");
        assert!(!is_free(&b).await);
        proxy.pass();
        within(LONG, "the release", resigning).await.expect("it is released");
        is_free(&b).await
    };

    let is_free = tokio::select! {
        led = leading => panic!("it leads until the shutdown: {led:?}"),
        is_free = resigning => is_free,
    };

    assert!(is_free);
}

#[tokio::test]
async fn resign_fails_if_the_server_does_not_confirm_the_release() {
    let (a, proxy, b, _server) = behind_a_proxy().await;
    for is_dropped in [false, true] {
        let (leading, leadership) = (lead_in_a_task(&a).await, a.leader("indexer"));
        proxy.hold_requests();
        if is_dropped {
            leading.abort();
        }

        let resigned = within(LONG, "the response timeout", async {
            tokio::join!(leadership.resign(), leadership.resign())
        });
        let (first, second) = resigned.await;
        leading.abort();
        let third = within(LONG, "the outcome", leadership.resign()).await;

        for resigned in [first, second, third] {
            assert_unconfirmed(&resigned);
        }
        proxy.pass();
        let freed = async || leadership.resign().await.is_ok();
        until("the lock is free", freed).await;
        assert!(is_free(&b).await);
    }
}

/// During an outage, the release is refused, and the lease of 5 s goes on.
#[tokio::test(start_paused = true)]
async fn resign_fails_until_the_lease_of_an_unreleased_term_ends() {
    let locks = TestLocks::new();
    let (manager, other) = (locks.manager(), locks.fleet(1).remove(0));
    next(&mut lead(&manager, "indexer")).await;
    let outage = locks.outage();
    let leadership = manager.leader("indexer");

    assert_unconfirmed(&leadership.resign().await);
    let failed = Instant::now();
    assert_unconfirmed(&leadership.resign().await);
    manager.shutdown(Duration::ZERO).await; // it does not lead again
    sleep((4 * SECOND).saturating_sub(failed.elapsed())).await;
    assert_unconfirmed(&leadership.resign().await);
    sleep(SECOND).await;

    leadership.resign().await.expect("the lease is over");
    outage.end();
    assert!(is_free(&other.manager()).await);
}

/// A renewal extends the lease on the server, but its reply does not arrive. The term ends by the
/// deadline that this process knows.
#[tokio::test]
async fn resign_fails_after_an_expired_term_while_the_lock_is_held() {
    let (a, proxy, b, _server) = behind_a_proxy().await;
    let (_leading, leadership) = (lead_in_a_task(&a).await, a.leader("indexer"));
    let remaining = async || {
        let info = b.inspect("leader:indexer").await.expect("a store").expect("it is held");
        info.remaining().expect("it has a lease")
    };
    proxy.hold_replies();
    let mut last = remaining().await;
    let renewed = async {
        loop {
            sleep(5 * MILLISECOND).await;
            let now = remaining().await;
            if now > last {
                break;
            }
            last = now;
        }
    };
    within(LONG, "a renewal", renewed).await;
    proxy.hold_requests();
    until("the term ends", async || !leadership.is_leader()).await;

    let first = within(LONG, "the outcome", leadership.resign()).await;

    assert!(!is_free(&b).await, "the server has extended the lease");
    assert!(matches!(first, Err(Error::Lost { cause: LossCause::Expired, .. })), "{first:?}");
    until("a later call succeeds", async || leadership.resign().await.is_ok()).await;
    assert!(is_free(&b).await);
}

/// The server has issued the number of the term, but its reply does not arrive.
#[tokio::test]
async fn resign_ends_a_term_that_has_no_number_yet() {
    let (a, proxy, b, _server) = behind_a_proxy().await;
    let guard = a.lock("leader:indexer").acquire().await.expect("it is free");
    let before = guard.fencing_token().await.expect("it is held"); // the scripts are loaded
    guard.release().await.expect("it is held");
    let leadership = a.leader("indexer");
    proxy.hold_replies_after(1); // the reply to the acquisition arrives
    let mut terms = lead(&a, "indexer");
    let has_number = async || {
        let info = b.inspect("leader:indexer").await.expect("a store");
        info.and_then(|info| info.fencing_token()).is_some_and(|number| number > before)
    };
    until("the server issues the number", has_number).await;
    proxy.hold_requests();

    let mut resigning = Box::pin(leadership.resign());
    let early = timeout(Duration::from_millis(200), &mut resigning).await;

    assert!(early.is_err(), "the server has no request to release the lock: {early:?}");
    assert!(!is_free(&b).await && !leadership.is_leader());
    proxy.pass();
    within(LONG, "the release", resigning).await.expect("it is released");
    assert!(is_free(&b).await && terms.try_recv().is_err(), "no body starts");
}

/// The outage lasts for a second, so the backoff alone would let the process lead after 1.5 s.
#[tokio::test(start_paused = true)]
async fn an_unconfirmed_resignation_pauses_for_a_lease() {
    let locks = TestLocks::new();
    let manager = locks.manager();
    let mut terms = lead(&manager, "indexer");
    next(&mut terms).await;
    let outage = locks.outage();
    let resigned = Instant::now();

    assert_unconfirmed(&manager.leader("indexer").resign().await);
    sleep(SECOND).await;
    outage.end();
    next(&mut terms).await;

    assert!(resigned.elapsed() >= LEASE, "{:?}", resigned.elapsed());
}

/// `lead` is polled by hand, to lose the lock after the resignation and before the release.
#[tokio::test]
async fn resign_returns_the_loss_of_a_lost_term() {
    let (a, b) = two_managers("resigns-lost").await;
    let leadership = a.leader("indexer");
    let mut leading = Box::pin(leadership.lead(async |_| std::future::pending::<()>().await));
    assert!(leading.as_mut().now_or_never().is_none() && leadership.is_leader());
    let mut resigning = Box::pin(leadership.resign());
    assert!(resigning.as_mut().now_or_never().is_none());

    assert!(b.force_release("leader:indexer").await.expect("a store"));
    drop(leading);

    let resigned = within(LONG, "the end of the term", resigning).await;
    assert!(matches!(resigned, Err(Error::Lost { .. })), "{resigned:?}");
    leadership.resign().await.expect("it does not lead");
    assert!(is_free(&b).await);
}

#[tokio::test]
async fn a_dropped_resignation_still_ends_the_term() {
    let (a, b) = two_managers("resigns-dropped").await;
    let leadership = a.leader("indexer");
    let mut leading = Box::pin(leadership.lead(async |_| std::future::pending::<()>().await));
    assert!(leading.as_mut().now_or_never().is_none() && !is_free(&b).await);
    let mut resigning = Box::pin(leadership.resign());
    assert!(resigning.as_mut().now_or_never().is_none());

    drop(resigning);

    assert!(leading.as_mut().now_or_never().is_none() && !leadership.is_leader());
    assert!(is_free(&b).await);
}

/// Between two checks of the watch, the lock goes from `a` to `b`, whose number the watch has not
/// seen, and on to a leader that has not begun its term.
#[tokio::test(start_paused = true)]
async fn a_watch_does_not_take_the_number_of_an_unseen_leader() {
    let (a, b) = two_managers("unseen").await;
    let (c, observer) = two_managers("unseen").await;
    for next_leader in [&a, &c] {
        let mut watch = observer.leader("indexer").watch();
        let guard = a.lock("leader:indexer").acquire().await.expect("it is free");
        let of_a = guard.fencing_token().await.expect("it is held").get();
        assert_reports(&mut watch, &a, of_a).await;
        assert!(timeout(100 * MILLISECOND, watch.changed()).await.is_err(), "nothing has changed");

        let acquires = async {
            guard.release().await.expect("it is held");
            let unseen = b.lock("leader:indexer").acquire().await.expect("it is free");
            let of_b = unseen.fencing_token().await.expect("it is held").get();
            unseen.release().await.expect("it is held");
            let guard = next_leader.lock("leader:indexer").acquire().await.expect("it is free");
            sleep(200 * MILLISECOND).await; // the watch checks four times
            let number = guard.fencing_token().await.expect("it is held").get();
            assert!(number > of_b, "{number} after {of_b}");
            (guard, number)
        };
        let ((guard, number), leader) = tokio::join!(acquires, report(&mut watch));

        let leader = leader.expect("one leads");
        assert_eq!((leader.manager, leader.term.map(FencingToken::get)), (next_leader.id(), Some(number)));
        guard.release().await.expect("it is held");
    }
}

/// As in a loop that also does other work.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_polled_for_short_times_reports() {
    let (a, b) = two_managers("short-polls").await;
    let mut watch = b.leader("indexer").watch();
    assert_eq!(report(&mut watch).await, None, "no process leads");
    let first = next(&mut lead(&a, "indexer")).await;
    let begun = Instant::now();

    let leader = loop {
        if let Ok(leader) = timeout(100 * MILLISECOND, watch.changed()).await {
            break leader.expect("a store").expect("one leads");
        }
        assert!(begun.elapsed() < SECOND, "it does not report");
    };

    assert_eq!((leader.manager, leader.term.map(FencingToken::get)), (a.id(), Some(first)));
}
