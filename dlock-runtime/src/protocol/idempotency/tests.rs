use std::collections::BTreeMap;

use super::event::{BeginCall, IdempotencyEvent, IdempotencyReply};
use super::*;
use crate::token::{Token, TokenSource};

const LEASE: u64 = 1_000;
const TTL: u64 = 60_000;

fn tokens() -> [Token; 3] {
    let source = TokenSource::of_process(1);
    [source.next(), source.next(), source.next()]
}

fn identity(fingerprint: &str) -> CallIdentity {
    CallIdentity { fingerprint: fingerprint.to_owned(), ..CallIdentity::default() }
}

fn call(token: Token, on_crash: OnCrash) -> BeginCall {
    BeginCall {
        token,
        lease: LEASE,
        ttl: TTL,
        on_crash,
        identity: identity("f"),
        previous_fingerprint: String::new(),
        waiter: Some("w".to_owned()),
    }
}

fn stored(text: &str) -> StoredResult {
    StoredResult::Bytes { bytes: text.into(), is_error: false }
}

/// A record and the time.
#[derive(Default)]
struct Rig {
    slot: Option<IdempotencyRecord>,
    now: u64,
}

impl Rig {
    fn apply(&mut self, event: &IdempotencyEvent) -> (IdempotencyReply, Vec<String>) {
        apply(&mut self.slot, event, self.now)
    }

    fn begin(&mut self, token: Token, on_crash: OnCrash) -> IdempotencyReply {
        self.apply(&IdempotencyEvent::Begin(call(token, on_crash))).0
    }

    fn complete(&mut self, token: Token, text: &str) -> IdempotencyReply {
        self.apply(&IdempotencyEvent::Complete { token, result: stored(text), ttl: TTL }).0
    }

    fn step(&mut self, token: Token, name: &str) -> IdempotencyReply {
        let (name, result) = (name.to_owned(), Some(b"1".to_vec()));
        self.apply(&IdempotencyEvent::StoreStep { token, name, result, ttl: TTL }).0
    }

    fn forget(&mut self, token: Token, has_run: bool) -> IdempotencyReply {
        self.apply(&IdempotencyEvent::Forget { token, has_run, ttl: TTL }).0
    }
}

fn started(attempt: u32, steps: &[&str]) -> IdempotencyReply {
    let steps = steps.iter().map(|name| ((*name).to_owned(), Some(b"1".to_vec())));
    IdempotencyReply::Started { attempt, steps: steps.collect::<BTreeMap<_, _>>() }
}

#[test]
fn a_crash_policy_decides_what_a_call_does_after_the_lease() {
    let [one, two, _] = tokens();
    for (policy, expected) in [
        (OnCrash::Fail, IdempotencyReply::Crashed { identity: identity("f"), attempt: 1 }),
        (OnCrash::Rerun, started(2, &[])),
        (OnCrash::Resume, started(2, &["a"])),
    ] {
        let mut rig = Rig::default();
        assert_eq!(rig.begin(one, policy), started(1, &[]));
        assert_eq!(rig.step(one, "a"), IdempotencyReply::Done);
        rig.now = LEASE - 1;
        assert!(matches!(rig.begin(two, policy), IdempotencyReply::Running { lease_left: 1, .. }));

        rig.now = LEASE;
        assert_eq!(rig.begin(two, policy), expected, "{policy:?}");
    }
}

#[test]
fn a_late_finisher_overwrites_nothing() {
    let [one, two, _] = tokens();
    let mut rig = Rig::default();
    rig.begin(one, OnCrash::Rerun);
    rig.now = LEASE;
    rig.begin(two, OnCrash::Rerun);

    assert_eq!(rig.complete(one, "late"), IdempotencyReply::NotOwner);
    assert_eq!(rig.step(one, "late"), IdempotencyReply::NotOwner);
    assert_eq!(rig.forget(one, true), IdempotencyReply::NotOwner);
    assert_eq!(rig.complete(two, "second"), IdempotencyReply::Done);
    assert_eq!(rig.complete(one, "late"), IdempotencyReply::NotOwner);
    let seen = rig.begin(one, OnCrash::Rerun);
    assert!(matches!(seen, IdempotencyReply::Completed { result, .. } if result == stored("second")));
}

#[test]
fn a_late_completion_counts_if_no_other_attempt_has_started() {
    let [one, two, _] = tokens();
    let mut rig = Rig::default();
    rig.begin(one, OnCrash::Fail);
    rig.now = 3 * LEASE;
    assert!(matches!(rig.begin(two, OnCrash::Fail), IdempotencyReply::Crashed { .. }));

    assert_eq!(rig.complete(one, "late"), IdempotencyReply::Done);
    assert!(matches!(rig.begin(two, OnCrash::Fail), IdempotencyReply::Completed { .. }));
}

#[test]
fn every_event_of_an_owner_can_be_repeated() {
    let [one, two, _] = tokens();
    let mut rig = Rig::default();
    assert_eq!(rig.begin(one, OnCrash::Fail), started(1, &[]));
    assert_eq!(rig.begin(one, OnCrash::Fail), started(1, &[]), "its first reply was lost");
    assert_eq!([rig.step(one, "a"), rig.step(one, "a")], [IdempotencyReply::Done, IdempotencyReply::Done]);
    assert_eq!(
        [rig.forget(one, true), rig.forget(one, true)],
        [IdempotencyReply::Done, IdempotencyReply::Done]
    );
    assert_eq!(rig.begin(two, OnCrash::Fail), started(2, &["a"]), "steps survive an error");
    assert_eq!(
        [rig.complete(two, "x"), rig.complete(two, "y")],
        [IdempotencyReply::Done, IdempotencyReply::Done]
    );
    let seen = rig.begin(one, OnCrash::Fail);
    assert!(matches!(seen, IdempotencyReply::Completed { result, .. } if result == stored("x")));
}

#[test]
fn an_attempt_that_never_ran_leaves_the_record_as_it_was() {
    let [one, two, three] = tokens();
    let mut rig = Rig::default();
    rig.begin(one, OnCrash::Rerun);
    assert_eq!(rig.forget(one, false), IdempotencyReply::Done);
    assert!(rig.slot.is_none());

    rig.begin(one, OnCrash::Rerun);
    rig.now = LEASE;
    rig.begin(two, OnCrash::Rerun);
    assert_eq!(rig.forget(two, false), IdempotencyReply::Done);
    let seen = rig.begin(three, OnCrash::Fail);
    assert!(matches!(seen, IdempotencyReply::Crashed { .. }), "the crash is remembered: {seen:?}");
}

/// Brings a record of this owner into a state.
type Reach = fn(&mut Rig, Token);

/// Its body panicked, or its start was undone. The renewal and the first of two starts arrive after
/// that, and no process would end the lease that they began.
#[test]
fn no_late_event_brings_back_an_attempt_that_has_ended_its_lease() {
    let [one, two, three] = tokens();
    for policy in [OnCrash::Fail, OnCrash::Rerun, OnCrash::Resume] {
        for is_undone in [false, true] {
            if is_undone && policy == OnCrash::Fail {
                continue; // it follows no crash
            }
            let mut rig = Rig::default();
            let (ended, attempt) = if is_undone { (two, 2) } else { (one, 1) };
            rig.begin(one, policy);
            if is_undone {
                rig.now = LEASE;
                rig.begin(two, policy);
                assert_eq!(rig.forget(two, false), IdempotencyReply::Done);
            } else {
                let ends = IdempotencyEvent::EndLease { token: one };
                assert_eq!(rig.apply(&ends).0, IdempotencyReply::Done);
            }

            let renewal = IdempotencyEvent::Renew { token: ended, lease: LEASE, ttl: TTL };
            let crashed = IdempotencyReply::Crashed { identity: identity("f"), attempt };
            assert_eq!(rig.apply(&renewal).0, IdempotencyReply::NotOwner, "{policy:?}");
            assert_eq!(rig.begin(ended, policy), crashed, "{policy:?}");

            let expected = if policy == OnCrash::Fail { crashed } else { started(attempt + 1, &[]) };
            assert_eq!(rig.begin(three, policy), expected, "{policy:?}");
        }
    }
}

#[test]
fn another_payload_is_refused_in_every_state() {
    let [one, two, three] = tokens();
    let states: [(&str, Reach); 6] = [
        ("running", |_, _| {}),
        ("crashed", |rig, _| rig.now = LEASE),
        ("completed", |rig, token| drop(rig.complete(token, "x"))),
        ("not stored", |rig, token| {
            let result = StoredResult::NotStored;
            drop(rig.apply(&IdempotencyEvent::Complete { token, result, ttl: TTL }));
        }),
        ("forgotten", |rig, token| {
            rig.step(token, "a");
            rig.forget(token, true);
        }),
        ("started again", |rig, token| {
            rig.step(token, "a");
            rig.forget(token, true);
            rig.begin(tokens()[1], OnCrash::Fail);
        }),
    ];
    for (state, reach) in states {
        for policy in [OnCrash::Fail, OnCrash::Rerun, OnCrash::Resume] {
            for identity in
                [identity("g"), identity(""), CallIdentity { function: "other".to_owned(), ..identity("f") }]
            {
                let mut rig = Rig::default();
                rig.begin(one, policy);
                reach(&mut rig, one);
                let before = rig.slot.clone();

                let other = BeginCall { identity, ..call(three, policy) };
                let (reply, wake) = rig.apply(&IdempotencyEvent::Begin(other));

                let function = String::new();
                assert_eq!((reply, wake), (IdempotencyReply::KeyReused { function }, Vec::new()), "{state}");
                assert_eq!(rig.slot, before, "{state}");
            }
        }
    }
    let _ = two;
}

#[test]
fn the_fingerprint_under_the_previous_secret_is_accepted() {
    let [one, two, _] = tokens();
    let mut rig = Rig::default();
    rig.begin(one, OnCrash::Fail);
    rig.complete(one, "x");

    let rotated = BeginCall {
        identity: identity("new"),
        previous_fingerprint: "f".to_owned(),
        ..call(two, OnCrash::Fail)
    };
    let (reply, _) = rig.apply(&IdempotencyEvent::Begin(rotated));

    assert!(matches!(reply, IdempotencyReply::Completed { .. }), "{reply:?}");
}

#[test]
fn waiters_are_notified_once_when_the_record_changes() {
    let [one, two, three] = tokens();
    for (event, announces) in [
        (IdempotencyEvent::Complete { token: one, result: stored("x"), ttl: TTL }, true),
        (IdempotencyEvent::Forget { token: one, has_run: true, ttl: TTL }, true),
        (IdempotencyEvent::EndLease { token: one }, true),
        (IdempotencyEvent::Renew { token: one, lease: LEASE, ttl: TTL }, false),
        (IdempotencyEvent::Dequeue { waiter: "w".to_owned() }, false),
    ] {
        let mut rig = Rig::default();
        rig.begin(one, OnCrash::Fail);
        for waiting in [two, three] {
            assert!(matches!(
                rig.begin(waiting, OnCrash::Fail),
                IdempotencyReply::Running { is_queued: true, .. }
            ));
        }
        let (reply, wake) = rig.apply(&event);

        assert_eq!(reply, IdempotencyReply::Done, "{event:?}");
        assert_eq!(wake, if announces { vec!["w".to_owned()] } else { Vec::new() }, "{event:?}");
        if event == (IdempotencyEvent::Dequeue { waiter: "w".to_owned() }) {
            assert_eq!(rig.apply(&IdempotencyEvent::EndLease { token: one }).1, Vec::<String>::new());
        }
    }
}

#[test]
fn the_number_of_waiting_processes_is_bounded() {
    let [one, two, _] = tokens();
    let mut rig = Rig::default();
    rig.begin(one, OnCrash::Fail);
    for number in 0..=MAX_WAITING_PROCESSES {
        let call = BeginCall { waiter: Some(number.to_string()), ..call(two, OnCrash::Fail) };
        let (reply, _) = rig.apply(&IdempotencyEvent::Begin(call));
        let IdempotencyReply::Running { is_queued, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(is_queued, number < MAX_WAITING_PROCESSES);
    }
}

#[test]
fn an_operator_resolves_only_what_has_no_result() {
    let [one, two, _] = tokens();
    let resolve = || IdempotencyEvent::Resolve { result: stored("operator"), replaces: false, ttl: TTL };
    let mut rig = Rig::default();
    assert_eq!(rig.apply(&resolve()).0, IdempotencyReply::Absent);
    rig.begin(one, OnCrash::Fail);
    assert_eq!(rig.apply(&resolve()).0, IdempotencyReply::StillRunning);

    rig.now = LEASE;
    assert_eq!(rig.apply(&resolve()).0, IdempotencyReply::Done);
    assert_eq!(rig.complete(one, "late"), IdempotencyReply::NotOwner, "the operator has decided");
    assert_eq!(rig.apply(&resolve()).0, IdempotencyReply::NotOwner, "there is a result");
    let seen = rig.begin(two, OnCrash::Fail);
    assert!(matches!(seen, IdempotencyReply::Completed { result, .. } if result == stored("operator")));
}

#[test]
fn an_operator_removes_a_completed_call_only_on_purpose() {
    let [one, two, three] = tokens();
    let remove = |rig: &mut Rig, completed| rig.apply(&IdempotencyEvent::Remove { completed }).0;
    for completed in [false, true] {
        let mut rig = Rig::default();
        assert_eq!(remove(&mut rig, completed), IdempotencyReply::Absent);
        rig.begin(one, OnCrash::Fail);
        assert_eq!(remove(&mut rig, completed), IdempotencyReply::StillRunning);
        rig.now = LEASE;
        assert_eq!(remove(&mut rig, completed), IdempotencyReply::Done, "it has crashed");
        assert!(rig.slot.is_none());

        rig.begin(two, OnCrash::Fail);
        rig.step(two, "a");
        rig.forget(two, true);
        assert_eq!(remove(&mut rig, completed), IdempotencyReply::Done, "it has only steps");

        rig.begin(three, OnCrash::Fail);
        rig.complete(three, "x");
        let expected = if completed { IdempotencyReply::Done } else { IdempotencyReply::HasCompleted };
        assert_eq!(remove(&mut rig, completed), expected);
        assert_eq!(rig.slot.is_none(), completed);
    }
}

#[test]
fn an_operator_replaces_only_what_an_operator_stored() {
    let [one, two, _] = tokens();
    let replace =
        |text: &str| IdempotencyEvent::Resolve { result: stored(text), replaces: true, ttl: 2 * TTL };
    let mut rig = Rig::default();
    rig.begin(one, OnCrash::Fail);
    rig.complete(one, "x");
    assert_eq!(rig.apply(&replace("y")).0, IdempotencyReply::NotOwner, "a body has stored it");

    let mut rig = Rig::default();
    assert_eq!(rig.apply(&replace("y")).0, IdempotencyReply::Absent);
    rig.begin(one, OnCrash::Fail);
    assert_eq!(rig.apply(&replace("y")).0, IdempotencyReply::StillRunning);
    rig.now = LEASE;
    for text in ["y", "z"] {
        assert_eq!(rig.apply(&replace(text)).0, IdempotencyReply::Done, "{text}");
        let seen = rig.begin(two, OnCrash::Fail);
        assert!(matches!(seen, IdempotencyReply::Completed { result, .. } if result == stored(text)));
    }
    assert_eq!(rig.slot.as_ref().map(IdempotencyRecord::expires), Some(LEASE + 2 * TTL));
}

#[test]
fn an_operator_resolves_an_error_after_a_step() {
    let [one, two, _] = tokens();
    for replaces in [false, true] {
        let mut rig = Rig::default();
        rig.begin(one, OnCrash::Fail);
        rig.step(one, "a");
        rig.forget(one, true);

        let resolve = IdempotencyEvent::Resolve { result: stored("operator"), replaces, ttl: TTL };
        assert_eq!(rig.apply(&resolve).0, IdempotencyReply::Done);

        assert_eq!(rig.forget(one, true), IdempotencyReply::NotOwner, "the operator has decided");
        let seen = rig.begin(two, OnCrash::Fail);
        assert!(matches!(seen, IdempotencyReply::Completed { result, .. } if result == stored("operator")));
    }
}

#[test]
fn a_record_ends_with_its_time_to_live() {
    let [one, two, _] = tokens();
    let mut rig = Rig::default();
    rig.begin(one, OnCrash::Fail);
    rig.now = 10_000;
    rig.complete(one, "x");
    rig.now += TTL - 1;
    assert!(matches!(rig.begin(two, OnCrash::Fail), IdempotencyReply::Completed { .. }));

    rig.now += 1;
    assert_eq!(rig.begin(two, OnCrash::Fail), started(1, &[]));
}

#[test]
fn the_policy_of_the_owner_counts_too() {
    let [one, two, three] = tokens();
    for other in [OnCrash::Rerun, OnCrash::Resume] {
        let mut rig = Rig::default();
        rig.begin(one, OnCrash::Fail);
        rig.now = LEASE;
        assert!(matches!(rig.begin(two, other), IdempotencyReply::Crashed { .. }), "its body may still run");

        rig.forget(one, true);
        assert_eq!(rig.begin(two, other), started(1, &[]));
        rig.now += LEASE;
        assert!(matches!(rig.begin(three, OnCrash::Fail), IdempotencyReply::Crashed { .. }));
        assert_eq!(rig.begin(three, other), started(2, &[]));
    }
}
