//! Failures that other leader elections have had. `docs::proof` lists them with their tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_runtime::testing::TestLocks;
use dlock_runtime::{LockManager, Term};
use dlock_tests::{Moment, Proxy, ProxyHandle, RedisServer, within};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::LONG;

const LEASE: Duration = Duration::from_secs(15);

/// Leads in a task with a body that lasts until it is dropped, and reports each term.
fn lead(manager: &LockManager, lease: Duration) -> mpsc::UnboundedReceiver<Term> {
    let (send, terms) = mpsc::unbounded_channel();
    let leadership = manager.leader("indexer").lease(lease);
    tokio::spawn(async move {
        let body = async |term: Term| {
            let _ = send.send(term);
            std::future::pending::<()>().await;
        };
        leadership.lead(body).await
    });
    terms
}

/// Waits for the next term, and returns how long that took.
async fn next(terms: &mut mpsc::UnboundedReceiver<Term>) -> Duration {
    let began = Instant::now();
    within(LONG, "the next term", terms.recv()).await.expect("it leads");
    began.elapsed()
}

/// A lease that has ended, or was given back, delays no candidate.
#[tokio::test(start_paused = true)]
async fn a_candidate_leads_at_once_if_no_process_leads() {
    let locks = TestLocks::new();
    let fleet = locks.fleet(4);
    let at_once = Duration::from_millis(10);
    let mut terms = lead(&fleet[0].manager(), LEASE);
    assert!(next(&mut terms).await < at_once, "no process has ever led");

    fleet[0].manager().shutdown(Duration::ZERO).await;
    let mut terms = lead(&fleet[1].manager(), LEASE);
    assert!(next(&mut terms).await < at_once, "the leader was shut down");

    fleet[1].crash();
    tokio::time::sleep(LEASE).await;
    let mut terms = lead(&fleet[2].manager(), LEASE);
    assert!(next(&mut terms).await < at_once, "the lease of the crashed leader is over");

    // A candidate that waits already leads when the lease is over, at the latest.
    let mut waiting = lead(&fleet[3].manager(), LEASE);
    tokio::time::sleep(Duration::from_secs(60)).await;
    fleet[2].crash();
    assert!(next(&mut waiting).await <= LEASE + at_once);
}

/// The renewals of a leader hang, on the way to the server or on the way back. They arrive when
/// another process leads.
#[tokio::test]
async fn a_leader_whose_renewal_hangs_stops_before_its_successor_leads() {
    let server = RedisServer::start();
    for hang in [ProxyHandle::hold_requests as fn(&ProxyHandle), ProxyHandle::hold_replies] {
        let proxy = Proxy::in_front_of(&server);
        let slow = LockManager::builder(&proxy.url()).response_timeout(LONG);
        let a = slow.connect().await.expect("the server takes managers");
        let b = LockManager::connect(&server.url()).await.expect("the server takes managers");
        let (last_poll, bodies) = (Arc::new(AtomicU64::new(0)), Arc::new(()));
        let (send, mut leads) = mpsc::unbounded_channel();
        let (of_body, alive, of_a) = (Arc::clone(&last_poll), Arc::clone(&bodies), a.clone());
        let leading = tokio::spawn(async move {
            let body = async |term: Term| {
                let _alive = Arc::clone(&alive);
                let _ = send.send(term);
                loop {
                    of_body.store(Moment::now().nanos(), Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            of_a.leader("indexer").lease(Duration::from_millis(500)).lead(body).await
        });
        let of_a = within(LONG, "the first term", leads.recv()).await.expect("it leads");

        hang(&proxy);
        let mut terms_of_b = lead(&b, Duration::from_secs(5));
        let of_b = within(LONG, "the second term", terms_of_b.recv()).await.expect("it leads");
        let began = Moment::now();
        let stopped = async {
            while Arc::strong_count(&bodies) > 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(LONG, "the end of the body", stopped).await;
        proxy.pass();
        tokio::time::sleep(Duration::from_millis(300)).await; // the late renewals arrive

        assert!(last_poll.load(Ordering::SeqCst) <= began.nanos(), "two leaders");
        assert!(!of_a.is_valid() && of_b.is_valid() && of_b.number() > of_a.number());
        assert!(!a.leader("indexer").is_leader() && b.leader("indexer").is_leader());
        assert!(leads.try_recv().is_err(), "a late renewal begins no term");
        leading.abort();
        b.shutdown(Duration::ZERO).await;
    }
}
