//! One process of the model: its protocol state, its connection, and its clock.

use super::coverage_points::CoveragePoint;
use crate::key::Name;
use crate::protocol::contender::ContenderState;
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::KeyState;
use crate::protocol::orphans::OrphanedTokens;
use crate::token::{Token, TokenSource};

pub(super) struct Process {
    pub(super) key_state: KeyState<u32>,
    pub(super) tokens: TokenSource,
    /// The contention hint of the key.
    pub(super) contended: bool,
    pub(super) orphans: OrphanedTokens,
    pub(super) key: Name,
    /// The number of the current connection.
    pub(super) epoch: u64,
    /// When the last request on this connection arrives. Requests on one connection keep their
    /// order.
    pub(super) last_arrival: u64,
    pub(super) frozen_until: u64,
    /// The total time for which the process was frozen, in milliseconds.
    pub(super) slept: u64,
    /// When the process checks its timers next.
    pub(super) tick_at: u64,
    pub(super) alive: bool,
    /// Nanoseconds of its clock per millisecond of the server's clock.
    pace: u64,
}

impl Process {
    /// Returns a process whose clock is `faster` thousandths faster than the server's.
    pub(super) fn new(number: u32, faster: i64) -> Self {
        Self {
            key_state: KeyState::new(),
            contended: false,
            tokens: TokenSource::of_process(u64::from(number)),
            orphans: OrphanedTokens::default(),
            key: "k".into(),
            epoch: 1,
            last_arrival: 0,
            frozen_until: 0,
            slept: 0,
            tick_at: u64::MAX,
            alive: true,
            pace: 1_000_000_u64.saturating_add_signed(1_000 * faster),
        }
    }

    /// Returns the time on its clock when the server's clock shows `now`.
    pub(super) fn clock(&self, now: u64) -> BootInstant {
        BootInstant::from_nanos(now * self.pace)
    }

    /// Returns the first server time at which its clock shows `local`, or `None` if it never does.
    pub(super) fn when(&self, local: BootInstant) -> Option<u64> {
        (local < BootInstant::LAST).then(|| local.nanos().div_ceil(self.pace))
    }

    /// Returns the server time that `ms` milliseconds of its clock take, rounded down.
    pub(super) fn span(&self, ms: u64) -> u64 {
        if self.pace == 1_000_000 { ms } else { (ms * 1_000_000 / self.pace).saturating_sub(1) }
    }

    /// Replaces the connection. Later requests do not queue behind those of the old one.
    pub(super) fn reconnect(&mut self, now: u64) {
        self.epoch += 1;
        self.last_arrival = now;
    }

    pub(super) fn is_held(&self) -> bool {
        self.key_state.holds.active().next().is_some()
    }

    /// Returns `true` if a forged grant for `token` is outside the model.
    ///
    /// The token of the current contender is a secret. If grants are not proof, a grant for a
    /// queued token may still be forged, because the process confirms every grant.
    pub(super) fn is_unforgeable(&self, token: Token, grants_are_proof: bool) -> bool {
        match self.key_state.contender() {
            Some(contender) if contender.token == token => match contender.step {
                ContenderState::Queued { .. } => grants_are_proof,
                ContenderState::Yielding => false,
                _ => true,
            },
            _ => false,
        }
    }

    /// Returns the coverage point for the cancellation of a waiting task.
    pub(super) fn cancellation_point(&self, acquisition: u32) -> CoveragePoint {
        if self.key_state.head() != Some(&acquisition) {
            return CoveragePoint::CancelledBehindHead;
        }
        match self.key_state.contender().map(|contender| contender.step) {
            Some(ContenderState::Trying) => CoveragePoint::CancelledTrying,
            Some(ContenderState::Enqueuing(_)) => CoveragePoint::CancelledEnqueuing,
            Some(ContenderState::Queued { .. }) => CoveragePoint::CancelledQueued,
            Some(ContenderState::Confirming { .. }) => CoveragePoint::CancelledConfirming,
            Some(ContenderState::Polling { .. }) => CoveragePoint::CancelledPolling,
            Some(ContenderState::Yielding) => CoveragePoint::CancelledYielding,
            None => CoveragePoint::CancelledBehindHead,
        }
    }
}
