//! A lane in a unit test: events happen to it at given times, and what it wants done is looked at.
//!
//! Not here: whole schedules (`simulation`).

use std::time::Duration;

use super::Rules;
use super::deadline::BootTime;
use super::lane::{Action, Cx, Lane, Stage};
use super::patience::{Limits, Patience};
use super::queue::Waiter;
use super::terms::Terms;
use crate::protocol::command::{Command, Enqueue, Failure, FailureKind, Reply};
use crate::retry::RetryPolicy;
use crate::token::{Token, TokenSource};

pub(super) const LEASE: Duration = Duration::from_secs(30);
pub(super) const RULES: Rules = Rules { handoff_budget: Duration::ZERO, ..Rules::DEFAULT };
pub(super) const TERMS: Terms = Terms::of_lease(LEASE);

pub(super) const ACQUIRE: Command = Command::Acquire { lease: LEASE };

pub(super) const fn enqueue(mode: Enqueue) -> Command {
    Command::Enqueue { lease: LEASE, mode }
}

/// What a server has that is away for a moment.
pub(super) fn failure() -> Failure {
    Failure::new(FailureKind::Passing, "away")
}

pub(super) fn at(ms: u64) -> BootTime {
    BootTime::from_nanos(ms * 1_000_000)
}

/// All lanes of a test are of one process.
static TOKENS: TokenSource = TokenSource::of_process(1);

/// Lets `event` happen to the lane, `ms` after the start.
pub(super) fn happen(
    lane: &mut Lane<u32>,
    ms: u64,
    event: impl FnOnce(&mut Lane<u32>, &mut Cx<'_, u32>),
) -> Vec<Action<u32>> {
    happen_where(&mut false, lane, ms, event)
}

/// The same where it is remembered whether the lock is contended.
pub(super) fn happen_where(
    contended: &mut bool,
    lane: &mut Lane<u32>,
    ms: u64,
    event: impl FnOnce(&mut Lane<u32>, &mut Cx<'_, u32>),
) -> Vec<Action<u32>> {
    let mut actions = Vec::new();
    event(lane, &mut Cx { now: at(ms), rules: &RULES, tokens: &TOKENS, actions: &mut actions, contended });
    actions
}

/// A task that waits for a minute.
pub(super) fn waiter(seat: u32, terms: Terms) -> Waiter<u32> {
    let wait = Some(Duration::from_secs(60));
    let limits = Limits { wait, ..LIMITS };
    Waiter { seat, terms, patience: Patience::new(at(0), limits, seat) }
}

/// What a call asks of its patience that tries once.
pub(super) const LIMITS: Limits = Limits {
    retries: 0,
    wait: None,
    backoff: RetryPolicy::DEFAULT,
    response_timeout: LEASE,
    only_whether: false,
};

/// A lane whose task 1 holds the lock since 1 ms, and its token.
pub(super) fn held(terms: Terms) -> (Lane<u32>, Token) {
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(waiter(1, terms), cx));
    let Stage::Asking(asking) = &lane.stage else { panic!("{lane:?}") };
    let (token, acquire) = (asking.token, Command::Acquire { lease: terms.lease() });
    happen(&mut lane, 1, |lane, cx| lane.reply(token, acquire, at(0), Reply::Ours, cx));
    (lane, token)
}

/// A lane whose head, the waiter that is given, stands in the server's queue since 2 ms, as it asked for at 1 ms; and the head's token.
pub(super) fn queued(head: Waiter<u32>) -> (Lane<u32>, Token) {
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(head, cx));
    let Stage::Asking(asking) = &lane.stage else { panic!("{lane:?}") };
    let token = asking.token;
    happen(&mut lane, 1, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Taken, cx));
    let queued = Reply::Queued { ttl: Some(LEASE) };
    happen(&mut lane, 2, |lane, cx| lane.reply(token, enqueue(Enqueue::First), at(1), queued, cx));
    (lane, token)
}

impl<S> Cx<'_, S> {
    /// The same under other rules.
    pub(super) fn under<'a>(&'a mut self, rules: &'a Rules) -> Cx<'a, S> {
        let Self { now, tokens, .. } = *self;
        Cx { now, rules, tokens, actions: &mut *self.actions, contended: &mut *self.contended }
    }
}
