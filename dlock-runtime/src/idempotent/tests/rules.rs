//! The scripts do what the rules do: random events of records, in memory and over Redis.

use std::sync::Arc;

use crate::backend::store_call::StoreOperation;
use crate::backend::tests::real_server::{RealServer, assert_scripts_follow_rules};
use crate::idempotent::operation::{RecordOperation, decode};
use crate::manager::LockManager;
use crate::protocol::idempotency::event::{BeginCall, IdempotencyEvent, IdempotencyReply};
use crate::protocol::idempotency::{CallIdentity, OnCrash, StoredResult};
use crate::token::Token;

/// Enough that every event meets every phase of a record.
const RECORDS: u64 = 300;
const EVENTS: u64 = 25;

#[tokio::test]
async fn the_scripts_follow_the_rules() {
    let record_in =
        |manager: &LockManager, record| RecordEvents::new(manager, &format!("dlock:r{record}##idem"));
    let test = "the scripts of idempotent calls, and their rules";
    assert_scripts_follow_rules(test, (RECORDS, EVENTS), record_in, RecordEvents::apply).await;
}

/// A record whose events a test chooses one by one.
struct RecordEvents {
    manager: LockManager,
    key: String,
}

/// The lease of an event that is never over within a test.
const LONG: u64 = 3_600_000;

impl RecordEvents {
    /// Returns the record with this name in the manager's store.
    fn new(manager: &LockManager, key: &str) -> Self {
        Self { manager: manager.clone(), key: key.to_owned() }
    }

    /// Applies the event that `choice` selects. Returns it with its reply as text, and whether
    /// replicas must acknowledge it.
    async fn apply(&self, choice: u64) -> (String, bool) {
        let event = event_of(choice);
        let reply = self.send(&event).await;
        let is_done = matches!(reply, IdempotencyReply::Started { .. } | IdempotencyReply::Done);
        let is_write = RecordOperation(event.clone()).needs_acks() && is_done;
        (format!("{event:?} -> {:?}", without_times(reply)), is_write)
    }

    async fn send(&self, event: &IdempotencyEvent) -> IdempotencyReply {
        let operation: Arc<dyn StoreOperation> = Arc::new(RecordOperation(event.clone()));
        let reply = self.manager.engine().call(&self.key.as_str().into(), &operation).await;
        let reply = reply.unwrap_or_else(|failure| panic!("{event:?}: {failure:?}"));
        decode(&reply).unwrap_or_else(|problem| panic!("{event:?}: {problem:?}: {reply:?}"))
    }
}

/// The attempt follows one that crashed.
#[tokio::test]
async fn a_full_server_refuses_no_event_of_an_owner() {
    let Some(server) = RealServer::start("events of records in a server whose memory is full") else {
        return;
    };
    let manager = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let [crashed, token] = [1, 2].map(|number| Token::of_numbers(7, number).expect("the number is small"));
    let begin = |token, lease| {
        IdempotencyEvent::Begin(BeginCall {
            token,
            lease,
            ttl: LONG,
            on_crash: OnCrash::Rerun,
            identity: CallIdentity {
                fingerprint: String::new(),
                function: String::new(),
                version: "0:".to_owned(),
            },
            previous_fingerprint: String::new(),
            waiter: None,
        })
    };
    let events = [
        IdempotencyEvent::Renew { token, lease: LONG, ttl: LONG },
        IdempotencyEvent::EndLease { token },
        IdempotencyEvent::StoreStep { token, name: "s".to_owned(), result: None, ttl: LONG },
        IdempotencyEvent::Complete { token, result: StoredResult::NotStored, ttl: LONG },
        IdempotencyEvent::Forget { token, has_run: true, ttl: LONG },
        IdempotencyEvent::Forget { token, has_run: false, ttl: LONG },
    ];
    let records: Vec<_> =
        (0..events.len()).map(|key| RecordEvents::new(&manager, &format!("dlock:r{key}##idem"))).collect();
    for record in &records {
        for start in [begin(crashed, 0), begin(token, LONG)] {
            assert!(matches!(record.send(&start).await, IdempotencyReply::Started { .. }));
        }
    }

    server.fill();

    for (record, event) in records.iter().zip(&events) {
        assert_eq!(record.send(event).await, IdempotencyReply::Done, "{event:?}");
    }
}

/// Returns one of many events, of three tokens with different payloads and policies.
fn event_of(choice: u64) -> IdempotencyEvent {
    let mut rest = choice;
    let mut draw = |count: u64| {
        let drawn = rest % count;
        rest /= count;
        drawn
    };
    let (kind, number) = (draw(12), draw(3));
    let token = Token::of_numbers(7, number + 1).expect("the number is small");
    let result = match draw(3) {
        0 => StoredResult::NotStored,
        drawn => StoredResult::Bytes { bytes: vec![0, 255, b'a'], is_error: drawn == 1 },
    };
    let lease = draw(4).min(1) * LONG;
    let ttl = LONG * (1 + draw(3));
    match kind {
        0..=3 => IdempotencyEvent::Begin(BeginCall {
            token,
            lease,
            ttl,
            on_crash: match draw(3) {
                0 => OnCrash::Fail,
                1 => OnCrash::Rerun,
                _ => OnCrash::Resume,
            },
            identity: CallIdentity {
                fingerprint: if draw(5) == 0 { "g" } else { "f" }.to_owned(),
                function: if draw(7) == 0 { "other" } else { "" }.to_owned(),
                version: "0:".to_owned(),
            },
            previous_fingerprint: if draw(5) == 0 { "f" } else { "" }.to_owned(),
            waiter: (draw(2) == 0).then(|| format!("{number:040}")),
        }),
        4 => IdempotencyEvent::Renew { token, lease, ttl },
        5 => IdempotencyEvent::EndLease { token },
        6 => {
            let result = (draw(3) > 0).then(|| vec![0, b'+']);
            IdempotencyEvent::StoreStep { token, name: format!("s{}", draw(2)), result, ttl }
        }
        7 => IdempotencyEvent::Complete { token, result, ttl },
        8 => IdempotencyEvent::Forget { token, has_run: draw(2) == 0, ttl },
        9 => IdempotencyEvent::Dequeue { waiter: format!("{number:040}") },
        10 if draw(3) == 0 => IdempotencyEvent::Remove { completed: draw(2) == 0 },
        10 => IdempotencyEvent::Resolve { result, replaces: draw(2) == 0, ttl },
        _ => IdempotencyEvent::Read,
    }
}

/// Replaces the times of a reply, which differ between stores.
fn without_times(reply: IdempotencyReply) -> IdempotencyReply {
    match reply {
        IdempotencyReply::Running { identity, lease_left, is_queued } => {
            IdempotencyReply::Running { identity, lease_left: lease_left.min(1), is_queued }
        }
        IdempotencyReply::Snapshot(Some(mut snapshot)) => {
            snapshot.lease_left = snapshot.lease_left.min(1);
            snapshot.created_ago = 0;
            snapshot.done_ago = snapshot.done_ago.map(|_| 0);
            snapshot.ttl = snapshot.ttl.div_ceil(LONG); // a test takes less than this
            IdempotencyReply::Snapshot(Some(snapshot))
        }
        reply => reply,
    }
}
