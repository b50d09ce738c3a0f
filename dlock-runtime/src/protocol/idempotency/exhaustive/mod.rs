//! Every sequence of events of two calls, up to a length, against the invariants of the module.
//!
//! `DLOCK_EXHAUSTIVE=2` checks sequences that are two events longer.

use crate::protocol::idempotency::event::{BeginCall, IdempotencyEvent, IdempotencyReply};
use crate::protocol::idempotency::{CallIdentity, CrashPolicy, IdempotencyRecord, StoredResult, apply};
use crate::token::{Token, TokenSource};

const LEASE: u64 = 10;
const TTL: u64 = 10_000;
const LENGTH: usize = 5;

/// The state of a record in a correct store.
#[derive(Clone, Debug, Default)]
struct Expected {
    /// The token of the last start, if it has not ended.
    owner: Option<Token>,
    lease_end: u64,
    result: Option<StoredResult>,
}

/// A state that a sequence has reached.
#[derive(Clone, Debug)]
struct Reached {
    slot: Option<IdempotencyRecord>,
    expected: Expected,
    now: u64,
    trace: Vec<String>,
}

/// One step of a sequence: an event, or the end of a lease.
#[derive(Clone, Debug)]
enum Move {
    Event(IdempotencyEvent),
    LeasePasses,
}

fn moves(tokens: [Token; 2], on_crash: CrashPolicy) -> Vec<Move> {
    let of = |token: Token| {
        let result = StoredResult::Bytes { bytes: token.to_string().into_bytes(), is_error: false };
        [
            IdempotencyEvent::Begin(BeginCall {
                token,
                lease: LEASE,
                ttl: TTL,
                on_crash,
                identity: CallIdentity::default(),
                previous_fingerprint: String::new(),
                waiter: None,
            }),
            IdempotencyEvent::Renew { token, lease: LEASE, ttl: TTL },
            IdempotencyEvent::EndLease { token },
            IdempotencyEvent::Complete { token, result, ttl: TTL },
            IdempotencyEvent::Forget { token, has_run: true, ttl: TTL },
            IdempotencyEvent::Forget { token, has_run: false, ttl: TTL },
        ]
    };
    tokens.into_iter().flat_map(of).map(Move::Event).chain([Move::LeasePasses]).collect()
}

impl Reached {
    fn start() -> Self {
        Self { slot: None, expected: Expected::default(), now: 1, trace: Vec::new() }
    }

    /// Makes one move, and checks its reply.
    fn after(&self, next: &Move, on_crash: CrashPolicy) -> Self {
        let mut reached = self.clone();
        reached.trace.push(format!("{next:?}"));
        let Move::Event(event) = next else {
            reached.now += LEASE;
            return reached;
        };
        let (reply, _) = apply(&mut reached.slot, event, reached.now);
        if let Err(problem) = reached.check(event, &reply, on_crash) {
            panic!("{on_crash:?}: {problem}: {reply:?} to the last of {:#?}", reached.trace);
        }
        reached
    }

    fn check(
        &mut self,
        event: &IdempotencyEvent,
        reply: &IdempotencyReply,
        on_crash: CrashPolicy,
    ) -> Result<(), &'static str> {
        let Expected { owner, lease_end, result } = &mut self.expected;
        let is_over = self.now >= *lease_end;
        match (event, reply) {
            (IdempotencyEvent::Begin(call), IdempotencyReply::Started { .. }) => {
                let may_take_over = is_over && on_crash != CrashPolicy::Fail;
                if result.is_some() {
                    return Err("a completed call starts again");
                }
                if owner.is_some_and(|owner| owner != call.token) && !may_take_over {
                    return Err("a second call starts");
                }
                (*owner, *lease_end) = (Some(call.token), self.now + call.lease);
            }
            (IdempotencyEvent::Begin(_), IdempotencyReply::Completed { result: replayed, .. })
                if result.as_ref() != Some(replayed) =>
            {
                return Err("another result is replayed");
            }
            (IdempotencyEvent::Begin(_), IdempotencyReply::Running { .. }) if owner.is_none() || is_over => {
                return Err("no call runs");
            }
            (IdempotencyEvent::Begin(_), IdempotencyReply::Crashed { .. })
                if owner.is_none() || !is_over || on_crash != CrashPolicy::Fail =>
            {
                return Err("no call has crashed");
            }
            (IdempotencyEvent::Complete { token, result: new, .. }, IdempotencyReply::Done) => {
                if result.is_none() && *owner != Some(*token) {
                    return Err("a call completes that does not own the record");
                }
                result.get_or_insert_with(|| new.clone());
            }
            (
                IdempotencyEvent::Renew { token, .. } | IdempotencyEvent::EndLease { token },
                IdempotencyReply::Done,
            ) => {
                if *owner != Some(*token) || result.is_some() {
                    return Err("a call changes a lease that is not its own");
                }
                let renews = matches!(event, IdempotencyEvent::Renew { .. });
                *lease_end = if renews { self.now + LEASE } else { self.now };
            }
            (IdempotencyEvent::Forget { token, .. }, IdempotencyReply::Done) => {
                if *owner != Some(*token) || result.is_some() {
                    return Err("a call forgets what is not its own");
                }
                if self.slot.is_none() {
                    *owner = None;
                } else {
                    *lease_end = self.now; // the crash before it is remembered
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn every_short_sequence_keeps_the_invariants() {
    let tokens = TokenSource::of_process(1);
    let tokens = [tokens.next(), tokens.next()];
    let more = std::env::var("DLOCK_EXHAUSTIVE").ok().and_then(|more| more.parse().ok());
    let length = LENGTH + more.unwrap_or(0);
    for on_crash in [CrashPolicy::Fail, CrashPolicy::Rerun, CrashPolicy::Resume] {
        let moves = moves(tokens, on_crash);
        let (mut pending, mut count) = (vec![Reached::start()], 0_u64);
        while let Some(reached) = pending.pop() {
            for next in &moves {
                let after = reached.after(next, on_crash);
                count += 1;
                if after.trace.len() < length {
                    pending.push(after);
                }
            }
        }
        println!("{on_crash:?}: {count} sequences");
    }
}
