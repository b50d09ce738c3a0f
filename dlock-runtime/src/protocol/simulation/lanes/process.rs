//! One process: its lane, what it has abandoned, its connection and its clock.

use super::seen::Seen;
use crate::key::Name;
use crate::protocol::contender::ContenderState;
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::{KeyPhase, KeyState};
use crate::protocol::orphans::OrphanedTokens;
use crate::token::{Token, TokenSource};

pub(super) struct Process {
    pub(super) key_state: KeyState<u32>,
    pub(super) tokens: TokenSource,
    /// Whether its lock is contended, as far as the lane knows.
    pub(super) contended: bool,
    pub(super) abandoned: OrphanedTokens,
    pub(super) key: Name,
    /// Which connection to the server it is.
    pub(super) epoch: u64,
    pub(super) last_arrival: u64,
    pub(super) frozen_until: u64,
    /// For how long it has been frozen in all.
    pub(super) slept: u64,
    /// When it looks at its timers next.
    pub(super) tick_at: u64,
    pub(super) alive: bool,
    /// The token of its last acquire that followed the question whether another is still queued.
    pub(super) spare: Option<Token>,
    /// Nanoseconds of its clock in a millisecond of the server's.
    pace: u64,
}

impl Process {
    /// A process whose clock is faster than the server's by so many thousandths.
    pub(super) fn new(number: u32, faster: i64) -> Self {
        Self {
            key_state: KeyState::new(),
            contended: false,
            tokens: TokenSource::of_process(u64::from(number)),
            abandoned: OrphanedTokens::default(),
            key: "k".into(),
            epoch: 1,
            last_arrival: 0,
            frozen_until: 0,
            slept: 0,
            tick_at: u64::MAX,
            alive: true,
            spare: None,
            pace: 1_000_000_u64.saturating_add_signed(1_000 * faster),
        }
    }

    /// What its clock shows at `now`.
    pub(super) fn clock(&self, now: u64) -> BootInstant {
        BootInstant::from_nanos(now * self.pace)
    }

    /// The first time at which its clock shows that; none for one that never comes.
    pub(super) fn when(&self, local: BootInstant) -> Option<u64> {
        (local < BootInstant::LAST).then(|| local.nanos().div_ceil(self.pace))
    }

    /// How long `ms` of its clock take at least.
    pub(super) fn span(&self, ms: u64) -> u64 {
        if self.pace == 1_000_000 { ms } else { (ms * 1_000_000 / self.pace).saturating_sub(1) }
    }

    /// What is sent from now on goes over a new connection.
    pub(super) fn connects_anew(&mut self, now: u64) {
        self.epoch += 1;
        self.last_arrival = now;
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self.key_state.phase, KeyPhase::Held(_))
    }

    /// Returns whether the token is that of the present contender, and a message about it would be believed or answered.
    pub(super) fn is_about(&self, token: Token, grants_are_proof: bool) -> bool {
        match &self.key_state.phase {
            KeyPhase::Contending(contender) if contender.token == token => {
                grants_are_proof || !matches!(contender.step, ContenderState::Queued { .. })
            }
            _ => false,
        }
    }

    /// At which stage a task gives up that waits.
    pub(super) fn stage_of(&self, acquisition: u32) -> Seen {
        if self.key_state.head() != Some(&acquisition) {
            return Seen::LeftBehind;
        }
        match &self.key_state.phase {
            KeyPhase::Contending(contender) => match contender.step {
                ContenderState::Trying => Seen::LeftTrying,
                ContenderState::Enqueuing(_) => Seen::LeftEnqueuing,
                ContenderState::Queued { .. } => Seen::LeftQueued,
                ContenderState::Confirming { .. } => Seen::LeftConfirming,
                ContenderState::Polling { .. } => Seen::LeftPaused,
            },
            KeyPhase::Yielding(_) => Seen::LeftYielding,
            KeyPhase::Held(_) | KeyPhase::Idle | KeyPhase::CoolingDown(_) => Seen::LeftBehind,
        }
    }
}
