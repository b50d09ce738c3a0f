//! Unit tests of a key state: events are applied at given times, and their actions are returned.

use std::time::Duration;

use super::ProtocolConfig;
use super::deadline::BootInstant;
use super::hold_terms::HoldTerms;
use super::key_state::{Action, EventContext, KeyState};
use super::retry_state::{RetryLimits, RetryState};
use super::wait_queue::QueueEntry;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, Reply};
use crate::retry::RetryPolicy;
use crate::token::{Token, TokenSource};

pub(super) const LEASE: Duration = Duration::from_secs(30);
pub(super) const RULES: ProtocolConfig =
    ProtocolConfig { handoff_budget: Duration::ZERO, ..ProtocolConfig::DEFAULT };
pub(super) const TERMS: HoldTerms = HoldTerms::of_lease(LEASE);

pub(super) const ACQUIRE: Command = Command::Acquire { lease: LEASE };

pub(super) const fn enqueue(mode: EnqueueMode) -> Command {
    Command::Enqueue { lease: LEASE, mode }
}

/// Returns the failure of a server that is down for a short time.
pub(super) fn failure() -> Failure {
    Failure::new(FailureKind::Passing, "away")
}

pub(super) fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

/// All key states of a test belong to one process.
static TOKENS: TokenSource = TokenSource::of_process(1);

/// Applies `event` to the key state at `ms`, and returns its actions.
pub(super) fn happen(
    key_state: &mut KeyState<u32>,
    ms: u64,
    event: impl FnOnce(&mut KeyState<u32>, &mut EventContext<'_, u32>),
) -> Vec<Action<u32>> {
    happen_where(&mut false, key_state, ms, event)
}

/// Like [`happen`], with the contention hint.
pub(super) fn happen_where(
    contended: &mut bool,
    key_state: &mut KeyState<u32>,
    ms: u64,
    event: impl FnOnce(&mut KeyState<u32>, &mut EventContext<'_, u32>),
) -> Vec<Action<u32>> {
    let mut actions = Vec::new();
    event(
        key_state,
        &mut EventContext { now: at(ms), rules: &RULES, tokens: &TOKENS, actions: &mut actions, contended },
    );
    actions
}

/// Returns a task that waits for up to 60 s.
pub(super) fn waiter(acquisition: u32, terms: HoldTerms) -> QueueEntry<u32> {
    let wait = Some(Duration::from_secs(60));
    let limits = RetryLimits { wait, ..LIMITS };
    QueueEntry { acquisition, terms, retry_state: RetryState::new(at(0), limits, acquisition) }
}

/// The limits of a call that tries once.
pub(super) const LIMITS: RetryLimits = RetryLimits {
    retries: 0,
    wait: None,
    backoff: RetryPolicy::DEFAULT,
    response_timeout: LEASE,
    try_only: false,
};

/// Returns a key state whose task 1 holds the lock since 1 ms, and its token.
pub(super) fn held(terms: HoldTerms) -> (KeyState<u32>, Token) {
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, |key_state, ctx| key_state.join(waiter(1, terms), ctx));
    let Some(contender) = key_state.contender() else { panic!("{key_state:?}") };
    let (token, acquire) = (contender.token, Command::Acquire { lease: terms.lease() });
    happen(&mut key_state, 1, |key_state, ctx| key_state.on_reply(token, acquire, at(0), Reply::Owner, ctx));
    (key_state, token)
}

/// Returns a key state whose head is queued in the server since 2 ms, by an enqueue of 1 ms, and
/// the token of the head.
pub(super) fn queued(head: QueueEntry<u32>) -> (KeyState<u32>, Token) {
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, |key_state, ctx| key_state.join(head, ctx));
    let Some(contender) = key_state.contender() else { panic!("{key_state:?}") };
    let token = contender.token;
    happen(&mut key_state, 1, |key_state, ctx| {
        key_state.on_reply(token, ACQUIRE, at(0), Reply::Contended, ctx);
    });
    let queued = Reply::Queued { ttl: Some(LEASE) };
    happen(&mut key_state, 2, |key_state, ctx| {
        key_state.on_reply(token, enqueue(EnqueueMode::Join), at(1), queued, ctx);
    });
    (key_state, token)
}

impl<A> EventContext<'_, A> {
    /// Returns the same context with other rules.
    pub(super) fn under<'a>(&'a mut self, rules: &'a ProtocolConfig) -> EventContext<'a, A> {
        let Self { now, tokens, .. } = *self;
        EventContext { now, rules, tokens, actions: &mut *self.actions, contended: &mut *self.contended }
    }
}
