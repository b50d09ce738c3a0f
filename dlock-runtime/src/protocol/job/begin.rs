//! The decision about one tick: whether the process that asks runs it.

use crate::protocol::job::job_record::{ActiveRun, JobRecord, SlotState, WaitingSlot};
use crate::token::Token;

/// The effect of a run that is still active when the next tick is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// The new tick is skipped.
    #[default]
    Skip,
    /// The first tick that waits runs when the active run has ended. Ticks that are due before it
    /// starts are skipped. If its call was dropped or its process has crashed, the next tick that
    /// is due at least 5 s later takes its place.
    QueueOne,
    /// The active run is stopped at its next await, if it started before the new tick was due. The
    /// new tick runs when that run has ended, or when its lease has expired.
    CancelPrevious,
}

/// The effect of a run whose process crashed or lost its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashedRun {
    /// The tick runs once more, or as often as failed ticks are retried, if that is more often.
    #[default]
    Rerun,
    /// The tick does not run again.
    Skip,
}

/// A process asks whether it runs a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BeginRequest {
    pub(crate) kind: BeginKind,
    /// Identifies the run. A repeated request has the same owner.
    pub(crate) owner: Token,
    pub(crate) node: String,
    /// The schedule, as text; empty if the caller chooses the slots.
    pub(crate) spec: String,
    /// The lease, in milliseconds.
    pub(crate) lease: u64,
    pub(crate) overlap: Overlap,
    pub(crate) crashed: CrashedRun,
    /// How often a failed tick runs again.
    pub(crate) retries: u32,
    /// How long after the start of a slot no newer one starts, in milliseconds.
    pub(crate) min_hold: u64,
}

/// The run that a process requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeginKind {
    /// The current tick.
    Tick {
        slot: u64,
        /// The times of the server from which, and until which, a call belongs to the slot.
        window: (u64, u64),
        /// The slot before this one, if missed slots must run first.
        previous: Option<u64>,
    },
    /// A slot of any time: a caller chose it, or it runs again.
    Slot { slot: u64 },
    /// A slot that was missed.
    Missed { slot: u64 },
    /// The run that an operator requested.
    Requested,
}

/// The decision about a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BeginReply {
    /// The process that asks runs it.
    Run(RunGrant),
    /// The process asks again: the previous run must end first, and its `min_hold`. Its lease, or
    /// its `min_hold` if that is longer, ends in so many milliseconds.
    Wait { lease_left: u64 },
    /// It does not run here.
    Skip(SkipReason),
    /// Missed slots after this one, and since the job was first seen with its schedule, must run
    /// first. A slot that was given back is among them. `is_running`: a missed slot is running,
    /// which may be one of another schedule, so a runner asks again. A call without a runner leaves
    /// its tick to that runner.
    Missed { since: u64, is_running: bool },
    /// By the server's clock, a call belongs to another slot.
    OtherTick,
}

/// The terms of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunGrant {
    pub(crate) slot: u64,
    /// 1 for the first attempt.
    pub(crate) attempt: u32,
    /// The time after which slots that did not start are missed.
    pub(crate) counted: u64,
    /// The fencing token of the run.
    pub(crate) fence: u64,
}

/// Why a tick does not run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SkipReason {
    Paused,
    /// It is running. Its lease ends in so many milliseconds.
    Running {
        lease_left: u64,
    },
    /// It has run.
    Done,
    /// A newer slot has started, which is given, or this one was skipped, or may have run.
    Late {
        slot: u64,
    },
    /// The previous run is still active, or within its `min_hold`, or an older tick that waits must
    /// start first. This call made the decision.
    Overlap {
        lease_left: u64,
    },
    /// There is no request of an operator.
    NotRequested,
    /// The slot is more than [`FURTHEST_AHEAD`] ahead of the server's clock.
    Ahead,
}

/// The longest time for which a caller's slot may be ahead of the server's clock: one day.
pub(crate) const FURTHEST_AHEAD: u64 = 24 * 60 * 60 * 1_000;

impl JobRecord {
    /// Returns `true` while a missed slot runs.
    pub(super) fn is_missed_running(&self) -> bool {
        self.state == SlotState::Running && self.began.is_none()
    }

    /// Returns `true` if newer slots wait for the last one: a missed slot until its last attempt
    /// has ended, and a slot that was given back, which starts again even if newer ones were
    /// skipped for it.
    fn is_open(&self, retries: u32, reruns: bool) -> bool {
        let has_attempts = self.is_missed_running() || self.has_attempts_left(retries, reruns);
        self.state == SlotState::Unstarted || (self.began.is_none() && has_attempts)
    }

    /// Returns the time after which missed slots run before a newer one. A slot that is open is one
    /// of them.
    pub(crate) fn caught_up(&self, retries: u32, reruns: bool) -> u64 {
        let last = if self.is_open(retries, reruns) { self.slot.saturating_sub(1) } else { self.decided() };
        last.max(self.known.unwrap_or_default())
    }

    /// Decides about a tick at the server's time `now`.
    pub(crate) fn begin(&mut self, now: u64, request: &BeginRequest) -> BeginReply {
        let slot = match request.kind {
            BeginKind::Tick { slot, window: (from, until), .. }
                if (now < from || now >= until) && !self.waits(slot) =>
            {
                return BeginReply::OtherTick;
            }
            BeginKind::Tick { slot, .. } | BeginKind::Slot { slot, .. } | BeginKind::Missed { slot } => slot,
            BeginKind::Requested => return self.begin_requested(now, request),
        };
        if slot > now.saturating_add(FURTHEST_AHEAD) {
            return BeginReply::Skip(SkipReason::Ahead);
        }
        if let Some(reply) = self.repeated(now, request) {
            return reply;
        }
        self.see(now, &request.spec);
        self.expire_run(now);
        if self.is_paused {
            self.skip(slot);
            return BeginReply::Skip(SkipReason::Paused);
        }
        if slot == self.slot && self.state != SlotState::None {
            return self.begin_again(now, request);
        }
        let is_missed = matches!(request.kind, BeginKind::Missed { .. });
        // A process that read the record before another schedule was seen still asks for these.
        let is_of_other_schedule = is_missed && Some(slot) <= self.known;
        if slot < self.slot || (slot <= self.skipped && !self.waits(slot)) || is_of_other_schedule {
            return BeginReply::Skip(SkipReason::Late { slot: self.slot });
        }
        let (retries, reruns) = (request.retries, request.crashed == CrashedRun::Rerun);
        let since = self.caught_up(retries, reruns);
        if let BeginKind::Tick { previous, .. } = request.kind
            && (self.is_missed_running() || previous.is_some_and(|previous| since < previous))
            && !self.waits(slot)
        {
            self.cancel_for(slot, request);
            return BeginReply::Missed { since, is_running: self.is_missed_running() };
        }
        // A process that read the record before the last slot failed asks for the next one.
        let must_wait = is_missed && self.is_open(retries, reruns) && Some(self.slot) > self.known;
        let min_hold = if is_missed { 0 } else { request.min_hold };
        let lease_left = self.run.as_ref().map_or(0, |run| run.lease_end - now);
        match lease_left.max(self.hold_left(now, min_hold)) {
            0 if !must_wait
                && (request.overlap != Overlap::QueueOne || !self.is_older_waiting(now, slot)) =>
            {
                BeginReply::Run(self.start(now, slot, 1, request))
            }
            lease_left if is_missed => BeginReply::Skip(SkipReason::Running { lease_left }),
            lease_left => self.overlap(now, slot, lease_left, request),
        }
    }

    /// Returns `true` if a slot before `slot` waits, and a process asks for it.
    fn is_older_waiting(&self, now: u64, slot: u64) -> bool {
        self.waiting.is_some_and(|waiting| waiting.slot < slot && waiting.is_live(now))
    }

    /// Returns how long a newer slot must not start, since the last one started less than
    /// `min_hold` ago. If the server's clock is behind that start, it has stepped back. Missed
    /// slots run without such pauses.
    fn hold_left(&self, now: u64, min_hold: u64) -> u64 {
        let since_start = self.began.and_then(|began| now.checked_sub(began));
        since_start.map_or(0, |since| min_hold.saturating_sub(since))
    }

    /// Starts the run that an operator requested.
    fn begin_requested(&mut self, now: u64, request: &BeginRequest) -> BeginReply {
        if let Some(reply) = self.repeated(now, request) {
            return reply;
        }
        self.see(now, &request.spec);
        self.expire_run(now);
        let Some(requested) = self.request else { return BeginReply::Skip(SkipReason::NotRequested) };
        if let Some(run) = &self.run {
            return BeginReply::Skip(SkipReason::Running { lease_left: run.lease_end - now });
        }
        self.request = None;
        self.activate(now, requested, true, request);
        BeginReply::Run(RunGrant {
            slot: requested,
            attempt: 1,
            counted: self.missed_since(),
            fence: self.fence,
        })
    }

    /// Decides about the slot that started last.
    fn begin_again(&mut self, now: u64, request: &BeginRequest) -> BeginReply {
        if let Some(run) = &self.run {
            return BeginReply::Skip(SkipReason::Running { lease_left: run.lease_end - now });
        }
        if self.state == SlotState::Unstarted {
            return BeginReply::Run(self.start(now, self.slot, self.attempt, request));
        }
        if !self.has_attempts_left(request.retries, request.crashed == CrashedRun::Rerun) {
            return BeginReply::Skip(SkipReason::Done);
        }
        BeginReply::Run(self.start(now, self.slot, self.attempt + 1, request))
    }

    /// Decides about a slot that is due before the active run has ended, and before the slot that
    /// waits for that has started. Newer slots never wait for a slot that waits: if its process has
    /// crashed, the first of them to ask when its place is free would pass the older ones.
    fn overlap(&mut self, now: u64, slot: u64, lease_left: u64, request: &BeginRequest) -> BeginReply {
        let is_next = self.waiting.is_none_or(|waiting| waiting.slot == slot || !waiting.is_live(now));
        match request.overlap {
            Overlap::QueueOne if is_next => {}
            Overlap::CancelPrevious => self.cancel_for(slot, request),
            Overlap::Skip | Overlap::QueueOne => {
                self.skip(slot);
                return BeginReply::Skip(SkipReason::Overlap { lease_left });
            }
        }
        if let Some(replaced) = self.waiting.filter(|waiting| waiting.slot < slot) {
            self.skip(replaced.slot);
        }
        self.waiting = Some(WaitingSlot { slot, asked: now });
        BeginReply::Wait { lease_left }
    }

    /// Cancels the active run if the request says so, and `slot` was due after that run started. If
    /// a missed slot starts late, the ticks that are due already wait for it. A slot that a caller
    /// chooses is due with the call.
    fn cancel_for(&mut self, slot: u64, request: &BeginRequest) {
        let is_chosen = matches!(request.kind, BeginKind::Slot { .. }) && !self.waits(slot);
        if let Some(run) = &mut self.run
            && request.overlap == Overlap::CancelPrevious
            && (is_chosen || run.started < slot)
        {
            run.is_cancelled = true;
        }
    }

    /// Returns the reply to a request that arrives again, since its first reply was late or lost.
    ///
    /// The lease of its run counts from this request, as its owner assumes. A request that arrives
    /// after its run has ended starts nothing.
    fn repeated(&mut self, now: u64, request: &BeginRequest) -> Option<BeginReply> {
        if self.ended == Some(request.owner) {
            return Some(BeginReply::Skip(SkipReason::Done));
        }
        let run = self.run.as_mut().filter(|run| run.owner == request.owner)?;
        run.lease_end = run.lease_end.max(now.saturating_add(request.lease));
        let attempt = if run.is_requested { 1 } else { self.attempt };
        let (slot, is_requested) = (run.slot, run.is_requested);
        let counted = if !is_requested && self.repeats_missed() { slot } else { self.missed_since() };
        Some(BeginReply::Run(RunGrant { slot, attempt, counted, fence: self.fence }))
    }

    /// Decides that a slot does not start, even if it waits.
    pub(super) fn skip(&mut self, slot: u64) {
        let waited = self.waiting.take_if(|waiting| waiting.slot == slot).is_some();
        if waited || slot > self.decided() {
            self.counters.skips += 1;
            self.skipped = self.skipped.max(slot);
        }
    }

    fn start(&mut self, now: u64, slot: u64, attempt: u32, request: &BeginRequest) -> RunGrant {
        if slot > self.slot && self.state == SlotState::Lost && self.began.is_some() {
            self.counted = self.counted.max(self.slot); // it started in time, and no end has said so
        }
        let counted = self.missed_since();
        self.slot = slot;
        self.attempt = attempt;
        if attempt == 1 {
            self.began = (!matches!(request.kind, BeginKind::Missed { .. })).then_some(now);
        }
        self.state = SlotState::Running;
        if let Some(passed) = self.waiting.filter(|waiting| waiting.slot < slot && waiting.slot <= counted) {
            self.skip(passed.slot); // it is not counted as missed
        }
        self.waiting = self.waiting.filter(|waiting| waiting.slot > slot);
        self.activate(now, slot, false, request);
        let counted = if self.repeats_missed() { slot } else { counted };
        RunGrant { slot, attempt, counted, fence: self.fence }
    }

    /// Returns `true` if the last slot is a missed one that runs again. As its first attempt, it
    /// counts no missed slots, which the next slot on time does.
    fn repeats_missed(&self) -> bool {
        self.attempt > 1 && self.began.is_none()
    }

    fn activate(&mut self, now: u64, slot: u64, is_requested: bool, request: &BeginRequest) {
        let BeginRequest { owner, node, lease, .. } = request;
        self.counters.runs += 1;
        self.fence = now.saturating_mul(1_000).max(self.fence + 1);
        self.run = Some(ActiveRun {
            owner: *owner,
            slot,
            is_requested,
            started: now,
            lease_end: now.saturating_add(*lease),
            is_cancelled: false,
            node: node.clone(),
        });
    }
}
