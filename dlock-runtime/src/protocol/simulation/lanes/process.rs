//! One process: its lane, what it has abandoned, its connection and its clock.

use super::seen::Seen;
use crate::key::Name;
use crate::protocol::abandon::AbandonList;
use crate::protocol::acquire::Step;
use crate::protocol::deadline::BootTime;
use crate::protocol::lane::{Lane, Stage};
use crate::token::{Token, TokenSource};

pub(super) struct Process {
    pub(super) lane: Lane<u32>,
    pub(super) tokens: TokenSource,
    /// Whether its lock is contended, as far as the lane knows.
    pub(super) contended: bool,
    pub(super) abandoned: AbandonList,
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
            lane: Lane::new(),
            contended: false,
            tokens: TokenSource::of_process(u64::from(number)),
            abandoned: AbandonList::default(),
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
    pub(super) fn clock(&self, now: u64) -> BootTime {
        BootTime::from_nanos(now * self.pace)
    }

    /// The first time at which its clock shows that; none for one that never comes.
    pub(super) fn when(&self, local: BootTime) -> Option<u64> {
        (local < BootTime::LAST).then(|| local.nanos().div_ceil(self.pace))
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
        matches!(self.lane.stage, Stage::Held(_))
    }

    /// Returns whether the token is that of the present contender, and a message about it would be believed or answered.
    pub(super) fn is_about(&self, token: Token, told_is_given: bool) -> bool {
        match &self.lane.stage {
            Stage::Asking(asking) if asking.token == token => {
                told_is_given || !matches!(asking.step, Step::Queued { .. })
            }
            _ => false,
        }
    }

    /// At which stage a task gives up that waits.
    pub(super) fn stage_of(&self, seat: u32) -> Seen {
        if self.lane.head() != Some(&seat) {
            return Seen::LeftBehind;
        }
        match &self.lane.stage {
            Stage::Asking(asking) => match asking.step {
                Step::Trying => Seen::LeftTrying,
                Step::Enqueuing(_) => Seen::LeftEnqueuing,
                Step::Queued { .. } => Seen::LeftQueued,
                Step::Confirming { .. } => Seen::LeftConfirming,
                Step::Paused { .. } => Seen::LeftPaused,
            },
            Stage::Yielding(_) => Seen::LeftYielding,
            Stage::Held(_) | Stage::Idle | Stage::Away(_) => Seen::LeftBehind,
        }
    }
}
