//! A model checker for the rules of a record: every state that two calls, an operator, and the end
//! of leases can reach in a number of moves, with every pair of crash policies.
//!
//! [`Model`] is a second description of the rules. It says which reply each move must get, and the
//! states are searched breadth first, each once, so a failure is a shortest sequence.
//!
//! `DLOCK_EXHAUSTIVE=2` searches sequences that are two moves longer.

use std::collections::{BTreeSet, HashSet};

use crate::protocol::idempotency::event::{BeginCall, IdempotencyEvent, IdempotencyReply};
use crate::protocol::idempotency::{CallIdentity, IdempotencyRecord, OnCrash, StoredResult, apply};
use crate::token::{Token, TokenSource};

const LEASE: u64 = 10;
const TTL: u64 = 10_000;
const LENGTH: usize = 7;
const POLICIES: [OnCrash; 3] = [OnCrash::Fail, OnCrash::Rerun, OnCrash::Resume];

/// The state of a record in a correct store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Model {
    phase: ModelPhase,
    attempt: u32,
    /// Whether the attempt has taken over from one that crashed.
    took_over: bool,
    steps: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum ModelPhase {
    #[default]
    Absent,
    Running {
        owner: Token,
        policy: OnCrash,
        lease_end: u64,
        /// Whether the owner has ended the lease, which none of its events begins again.
        has_ended: bool,
    },
    /// The owner has forgotten the call, and its steps remain.
    Forgotten { by: Token },
    /// `by` is `None` if an operator has resolved the call.
    Completed { by: Option<Token>, result: StoredResult },
}

/// The reply that a move must get.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Started { attempt: u32, steps: BTreeSet<String> },
    Completed(StoredResult),
    Running,
    Crashed { attempt: u32 },
    Done,
    NotOwner,
    Absent,
    StillRunning,
    HasCompleted,
    Other,
}

impl Answer {
    fn of(reply: IdempotencyReply) -> Self {
        match reply {
            IdempotencyReply::Started { attempt, steps } => {
                Self::Started { attempt, steps: steps.into_keys().collect() }
            }
            IdempotencyReply::Completed { result, .. } => Self::Completed(result),
            IdempotencyReply::Running { .. } => Self::Running,
            IdempotencyReply::Crashed { attempt, .. } => Self::Crashed { attempt },
            IdempotencyReply::Done => Self::Done,
            IdempotencyReply::NotOwner => Self::NotOwner,
            IdempotencyReply::Absent => Self::Absent,
            IdempotencyReply::StillRunning => Self::StillRunning,
            IdempotencyReply::HasCompleted => Self::HasCompleted,
            IdempotencyReply::KeyReused { .. } | IdempotencyReply::Snapshot(_) => Self::Other,
        }
    }
}

impl Model {
    /// Applies `event`, and returns the only right reply.
    fn apply(&mut self, event: &IdempotencyEvent, now: u64) -> Answer {
        match event {
            IdempotencyEvent::Begin(call) => self.begin(call, now),
            IdempotencyEvent::Renew { token, lease, .. } => match &mut self.phase {
                ModelPhase::Absent => Answer::Absent,
                ModelPhase::Running { owner, has_ended: false, lease_end, .. } if owner == token => {
                    *lease_end = now + lease;
                    Answer::Done
                }
                _ => Answer::NotOwner,
            },
            IdempotencyEvent::EndLease { token } => self.by_owner(*token, |model| model.end_lease(now)),
            IdempotencyEvent::StoreStep { token, name, .. } => self.by_owner(*token, |model| {
                model.steps.insert(name.clone());
            }),
            IdempotencyEvent::Complete { token, result, .. } => {
                if matches!(&self.phase, ModelPhase::Completed { by: Some(by), .. } if by == token) {
                    return Answer::Done; // its first reply was lost
                }
                self.by_owner(*token, |model| model.complete(Some(*token), result))
            }
            IdempotencyEvent::Forget { token, has_run, .. } => self.forget(*token, *has_run, now),
            IdempotencyEvent::Resolve { result, replaces, .. } => match self.phase {
                ModelPhase::Absent => Answer::Absent,
                ModelPhase::Running { lease_end, .. } if now < lease_end => Answer::StillRunning,
                ModelPhase::Completed { by, .. } if by.is_some() || !replaces => Answer::NotOwner,
                _ => {
                    self.complete(None, result);
                    Answer::Done
                }
            },
            IdempotencyEvent::Remove { completed } => match self.phase {
                ModelPhase::Absent => Answer::Absent,
                ModelPhase::Running { lease_end, .. } if now < lease_end => Answer::StillRunning,
                ModelPhase::Completed { .. } if !completed => Answer::HasCompleted,
                _ => {
                    *self = Self::default();
                    Answer::Done
                }
            },
            IdempotencyEvent::Dequeue { .. } | IdempotencyEvent::Read => Answer::Other,
        }
    }

    fn begin(&mut self, call: &BeginCall, now: u64) -> Answer {
        match self.phase.clone() {
            ModelPhase::Absent => self.attempt = 1,
            ModelPhase::Forgotten { .. } => self.attempt += 1,
            ModelPhase::Completed { result, .. } => return Answer::Completed(result),
            // Its first reply was lost.
            ModelPhase::Running { owner, has_ended: false, .. } if owner == call.token => {}
            ModelPhase::Running { lease_end, .. } if now < lease_end => return Answer::Running,
            ModelPhase::Running { owner, policy, .. } => {
                if owner == call.token || policy == OnCrash::Fail || call.on_crash == OnCrash::Fail {
                    return Answer::Crashed { attempt: self.attempt };
                }
                if call.on_crash == OnCrash::Rerun {
                    self.steps.clear();
                }
                self.attempt += 1;
                self.took_over = true;
            }
        }
        let (owner, policy, lease_end) = (call.token, call.on_crash, now + call.lease);
        self.phase = ModelPhase::Running { owner, policy, lease_end, has_ended: false };
        Answer::Started { attempt: self.attempt, steps: self.steps.clone() }
    }

    fn by_owner(&mut self, token: Token, change: impl FnOnce(&mut Self)) -> Answer {
        match &self.phase {
            ModelPhase::Absent => Answer::Absent,
            ModelPhase::Running { owner, .. } if *owner == token => {
                change(self);
                Answer::Done
            }
            _ => Answer::NotOwner,
        }
    }

    fn end_lease(&mut self, now: u64) {
        if let ModelPhase::Running { lease_end, has_ended, .. } = &mut self.phase {
            (*lease_end, *has_ended) = (now, true);
        }
    }

    fn complete(&mut self, by: Option<Token>, result: &StoredResult) {
        self.phase = ModelPhase::Completed { by, result: result.clone() };
        self.steps.clear();
    }

    fn forget(&mut self, token: Token, has_run: bool, now: u64) -> Answer {
        if matches!(&self.phase, ModelPhase::Forgotten { by } if *by == token) {
            return Answer::Done; // its first reply was lost
        }
        self.by_owner(token, |model| {
            if !has_run && model.took_over {
                model.end_lease(now); // the crash before it is remembered
            } else if model.steps.is_empty() {
                *model = Self::default();
            } else {
                model.phase = ModelPhase::Forgotten { by: token };
                model.took_over = false;
            }
        })
    }
}

/// One move of a sequence: an event, or the end of all leases.
#[derive(Clone, Debug)]
enum Move {
    Event(IdempotencyEvent),
    LeasesPass,
}

fn moves(calls: [(Token, OnCrash); 2]) -> Vec<Move> {
    let result = |text: String| StoredResult::Bytes { bytes: text.into_bytes(), is_error: false };
    let of_call = |(token, on_crash): (Token, OnCrash)| {
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
            IdempotencyEvent::StoreStep { token, name: token.to_string(), result: None, ttl: TTL },
            IdempotencyEvent::Complete { token, result: result(token.to_string()), ttl: TTL },
            IdempotencyEvent::Forget { token, has_run: true, ttl: TTL },
            IdempotencyEvent::Forget { token, has_run: false, ttl: TTL },
        ]
    };
    let operator = [
        IdempotencyEvent::Resolve { result: result("operator".to_owned()), replaces: false, ttl: TTL },
        IdempotencyEvent::Resolve { result: result("again".to_owned()), replaces: true, ttl: TTL },
        IdempotencyEvent::Remove { completed: false },
        IdempotencyEvent::Remove { completed: true },
    ];
    let events = calls.into_iter().flat_map(of_call).chain(operator);
    events.map(Move::Event).chain([Move::LeasesPass]).collect()
}

/// A state, as the rules and as the model have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Reached {
    slot: Option<IdempotencyRecord>,
    model: Model,
    now: u64,
}

impl Reached {
    /// Makes one move.
    ///
    /// # Errors
    ///
    /// The two replies, if the rules and the model differ.
    fn after(&self, next: &Move) -> Result<Self, String> {
        let mut reached = self.clone();
        match next {
            Move::LeasesPass => reached.now += LEASE,
            Move::Event(event) => {
                let (reply, _) = apply(&mut reached.slot, event, reached.now);
                let (answer, right) = (Answer::of(reply), reached.model.apply(event, reached.now));
                if answer != right {
                    return Err(format!("the reply is {answer:?}, and {right:?} is right"));
                }
            }
        }
        Ok(reached)
    }
}

/// Searches all sequences of up to `length` moves. Returns the number of states.
fn search(calls: [(Token, OnCrash); 2], length: usize) -> usize {
    let moves = moves(calls);
    let (mut known, mut level) =
        (HashSet::from([Reached::default()]), vec![(Reached::default(), Vec::new())]);
    for _ in 0..length {
        let mut next_level = Vec::new();
        for (reached, path) in &level {
            for (number, next) in moves.iter().enumerate() {
                let path: Vec<usize> = path.iter().copied().chain([number]).collect();
                let after = reached.after(next).unwrap_or_else(|problem| {
                    let path: Vec<_> = path.iter().map(|number| &moves[*number]).collect();
                    panic!("{problem}, to the last of {path:#?}");
                });
                if known.insert(after.clone()) {
                    next_level.push((after, path));
                }
            }
        }
        level = next_level;
    }
    known.len()
}

#[test]
fn every_short_sequence_keeps_the_invariants() {
    let tokens = TokenSource::of_process(1);
    let (one, two) = (tokens.next(), tokens.next());
    let more: usize = std::env::var("DLOCK_EXHAUSTIVE").ok().and_then(|more| more.parse().ok()).unwrap_or(0);
    for (first, second) in POLICIES.iter().flat_map(|first| POLICIES.map(|second| (*first, second))) {
        let states = search([(one, first), (two, second)], LENGTH + more);
        println!("{first:?} and {second:?}: {states} states");
        assert!(states > 500, "{first:?} and {second:?}: {states} states");
    }
}
