//! [`JobRecord`], what the server knows about one job.

use std::collections::VecDeque;

use crate::token::Token;

/// Returns the last attempt of a slot that runs again after a crash.
fn attempts_after_crashes(retries: u32) -> u32 {
    retries.max(1)
}

/// The maximum number of runs in the history of a job.
pub(crate) const HISTORY: usize = 50;

/// The longest time for which a slot waits while no process asks for it, in milliseconds. A process
/// that waits asks every 200 ms. If a request fails, a runner asks for the same slot 1 s later.
pub(super) const LONGEST_SILENCE: u64 = 5_000;

/// How long before its time a slot may start, in milliseconds.
pub(crate) const LONGEST_EARLY: u64 = 10_000;

/// The record of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobRecord {
    /// When the job was first seen with its schedule; `None` before its first request.
    pub(crate) known: Option<u64>,
    /// The last slot that started.
    pub(crate) slot: u64,
    /// The attempts of `slot`.
    pub(crate) attempt: u32,
    /// The state of `slot`.
    pub(crate) state: SlotState,
    /// When the first attempt of `slot` started; `None` if its body did not, or the slot was missed
    /// before.
    pub(crate) began: Option<u64>,
    /// The last slot that was skipped. It never starts.
    pub(crate) skipped: u64,
    /// The slot up to which missed slots are counted.
    pub(crate) counted: u64,
    /// The run whose lease was valid when it was last renewed.
    pub(crate) run: Option<ActiveRun>,
    /// The fencing token of the last run that started: the server's time in microseconds, or more.
    pub(crate) fence: u64,
    /// The owner of the run that ended last. A late request of it starts nothing.
    pub(crate) ended: Option<Token>,
    /// The slot that starts when the active run ends.
    pub(crate) waiting: Option<WaitingSlot>,
    /// A request of an operator to run the job now, by its time.
    pub(crate) request: Option<u64>,
    pub(crate) is_paused: bool,
    pub(crate) counters: JobCounters,
    /// The schedule of the last request, as text. Empty if callers have chosen all slots.
    pub(crate) spec: String,
    /// When a run last succeeded, and its slot.
    pub(crate) succeeded: Option<(u64, u64)>,
    /// The latest runs, the latest first.
    pub(crate) history: VecDeque<PastRun>,
}

/// The state of the last slot that started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// No slot has started.
    #[default]
    None,
    Running,
    /// It does not start again: its run succeeded or was cancelled, or a pause ended after its run.
    Done,
    Failed,
    /// The lease of its run expired.
    Lost,
    /// Its owner gave it back before its body started.
    Unstarted,
}

/// The counts of a job since it was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobCounters {
    pub(crate) runs: u64,
    pub(crate) failures: u64,
    pub(crate) skips: u64,
    pub(crate) missed: u64,
}

/// A slot that waits for the end of the active run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingSlot {
    pub(crate) slot: u64,
    /// When a process last asked for it.
    pub(crate) asked: u64,
}

impl WaitingSlot {
    /// Returns `true` if a process still asks for it. If the server's clock is behind the last
    /// request, it has stepped back.
    pub(crate) fn is_live(self, now: u64) -> bool {
        now.checked_sub(self.asked).is_some_and(|silence| silence < LONGEST_SILENCE)
    }
}

/// A run that has a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ActiveRun {
    /// Identifies the run. Never reused.
    pub(crate) owner: Token,
    /// Its slot; for a requested run, the time of its request.
    pub(crate) slot: u64,
    /// Whether an operator requested it.
    pub(crate) is_requested: bool,
    pub(crate) started: u64,
    pub(crate) lease_end: u64,
    /// Whether a newer slot wants it to end.
    pub(crate) is_cancelled: bool,
    /// The process that runs it.
    pub(crate) node: String,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PastRun {
    pub(crate) slot: u64,
    pub(crate) is_requested: bool,
    pub(crate) started: u64,
    pub(crate) finished: u64,
    pub(crate) result: RunResult,
    /// The process that ran it.
    pub(crate) node: String,
    /// The text of its error; empty if there is none.
    pub(crate) error: String,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunResult {
    Succeeded,
    Failed,
    /// A newer slot replaced it.
    Cancelled,
    /// Its lease expired: its owner reports that, or another request found it.
    Lost,
    /// Its body did not start: its owner received no reply in time.
    Unstarted,
}

/// The end of a run, as its owner reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FinishRequest {
    pub(crate) owner: Token,
    pub(crate) result: RunResult,
    pub(crate) error: String,
    /// The slots that were missed before this run: the time from which they were counted, and their
    /// number.
    pub(crate) missed: Option<(u64, u64)>,
}

/// The reply to the renewal or the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerReply {
    Owner,
    /// The run is the owner's, and a newer slot wants it to end.
    Cancelled,
    NotOwner,
}

impl JobRecord {
    /// Extends the lease of a run to `lease` from `now`.
    ///
    /// A run whose lease has expired is renewed if no other request has found that.
    pub(crate) fn renew(&mut self, now: u64, owner: Token, lease: u64) -> OwnerReply {
        let Some(run) = self.run.as_mut().filter(|run| run.owner == owner) else {
            return OwnerReply::NotOwner;
        };
        run.lease_end = run.lease_end.max(now.saturating_add(lease));
        if run.is_cancelled { OwnerReply::Cancelled } else { OwnerReply::Owner }
    }

    /// Ends a run. Changes nothing unless the run is still the active one.
    pub(crate) fn finish(&mut self, now: u64, end: FinishRequest) -> OwnerReply {
        if self.is_recorded(&end) {
            return OwnerReply::Owner;
        }
        if self.run.as_ref().is_none_or(|run| run.owner != end.owner) {
            return OwnerReply::NotOwner;
        }
        let slot = self.slot;
        if let Some((counted, missed)) = end.missed
            && counted >= self.counted
            && counted < slot
        {
            self.counted = slot;
            self.counters.missed += missed;
        }
        self.end_run(now, end.result, end.error);
        OwnerReply::Owner
    }

    /// Returns `true` if an earlier request has recorded this end. If another request found that
    /// the lease was over, the run was lost instead.
    fn is_recorded(&self, end: &FinishRequest) -> bool {
        let last = self.history.front().map(|past| past.result);
        self.ended == Some(end.owner) && (end.result == RunResult::Unstarted || last == Some(end.result))
    }

    /// Pauses or resumes the job. When it resumes, slots until `now` do not start any more, and
    /// neither does the last slot again, unless its run is active.
    pub(crate) fn set_paused(&mut self, now: u64, is_paused: bool) {
        self.known.get_or_insert(now);
        if self.is_paused && !is_paused {
            if let Some(waiting) = self.waiting.filter(|waiting| waiting.slot <= now) {
                self.skip(waiting.slot);
            }
            self.skipped = self.skipped.max(now);
            self.expire_run(now);
            let has_ended = !matches!(self.state, SlotState::None | SlotState::Running);
            if has_ended && self.slot <= now {
                self.state = SlotState::Done;
            }
        }
        self.is_paused = is_paused;
    }

    /// Records that a runner has the job, so that ticks from now on can be missed, and operators
    /// can request a run.
    pub(crate) fn register(&mut self, now: u64, spec: &str) {
        self.see(now, spec);
    }

    /// Records a request for the job with this schedule; empty if the caller chooses the slots.
    /// Slots before a schedule was first seen are none of its missed ones. While processes with
    /// different schedules ask in turn, each of these changes counts.
    pub(super) fn see(&mut self, now: u64, spec: &str) {
        if !spec.is_empty() && spec != self.spec {
            spec.clone_into(&mut self.spec);
            self.known = Some(now);
        }
        self.known.get_or_insert(now);
    }

    /// Requests a run at once, in addition to the schedule. Returns `false` for a job that no
    /// process has used.
    pub(crate) fn request_run(&mut self, now: u64) -> bool {
        if self.known.is_some() {
            self.request = Some(now);
        }
        self.known.is_some()
    }

    /// Forgets the slots, so that slots up to `now` neither start nor count as missed, and neither
    /// does one that started early. A run that is active is forgotten: its end changes nothing.
    pub(crate) fn reset(&mut self, now: u64) {
        let is_early = self.slot > now && self.slot <= now + LONGEST_EARLY;
        *self = Self {
            known: Some(now),
            skipped: if is_early { self.slot } else { now },
            counted: now,
            is_paused: self.is_paused,
            counters: self.counters,
            history: std::mem::take(&mut self.history),
            fence: self.fence,
            spec: std::mem::take(&mut self.spec),
            succeeded: self.succeeded,
            ..Self::default()
        };
    }

    /// Returns the time after which slots that did not start are missed.
    pub(super) fn missed_since(&self) -> u64 {
        self.counted.max(self.skipped).max(self.known.unwrap_or_default())
    }

    /// Returns `true` if `slot` waits for the end of the active run.
    pub(super) fn waits(&self, slot: u64) -> bool {
        self.waiting.is_some_and(|waiting| waiting.slot == slot)
    }

    /// Returns the last slot about which there is a decision.
    pub(crate) fn decided(&self) -> u64 {
        self.slot.max(self.skipped)
    }

    /// Returns `true` if the last slot that started may run again at `now`, or its run is lost and
    /// must be recorded.
    pub(crate) fn may_run_again(&self, now: u64, retries: u32, reruns: bool) -> bool {
        match &self.run {
            Some(run) if run.lease_end > now => false,
            Some(run) if !run.is_requested => reruns,
            Some(_) | None => self.state == SlotState::Unstarted || self.has_attempts_left(retries, reruns),
        }
    }

    /// Returns `true` if the last slot has failed or crashed, and may start again.
    pub(super) fn has_attempts_left(&self, retries: u32, reruns: bool) -> bool {
        match self.state {
            SlotState::Failed => self.attempt <= retries,
            SlotState::Lost => reruns && self.attempt <= attempts_after_crashes(retries),
            _ => false,
        }
    }

    /// Returns when the lease of the active run ends, unless it is renewed.
    pub(crate) fn lease_end(&self) -> Option<u64> {
        self.run.as_ref().map(|run| run.lease_end)
    }

    /// Ends the active run if its lease is over.
    pub(super) fn expire_run(&mut self, now: u64) {
        if self.run.as_ref().is_some_and(|run| run.lease_end <= now) {
            self.end_run(now, RunResult::Lost, String::new());
        }
    }

    fn end_run(&mut self, now: u64, result: RunResult, error: String) {
        let Some(run) = self.run.take() else { return };
        self.ended = Some(run.owner);
        if result == RunResult::Unstarted {
            self.counters.runs = self.counters.runs.saturating_sub(1);
            if run.is_requested {
                self.request.get_or_insert(run.slot);
            } else {
                self.state = SlotState::Unstarted;
                if self.attempt == 1 {
                    self.began = None;
                }
            }
            return;
        }
        if !run.is_requested {
            self.state = match result {
                RunResult::Succeeded | RunResult::Cancelled => SlotState::Done,
                RunResult::Failed => SlotState::Failed,
                RunResult::Lost | RunResult::Unstarted => SlotState::Lost,
            };
        }
        match result {
            RunResult::Succeeded => self.succeeded = Some((now, run.slot)),
            RunResult::Failed | RunResult::Lost => self.counters.failures += 1,
            RunResult::Cancelled | RunResult::Unstarted => {}
        }
        let ActiveRun { slot, is_requested, started, node, .. } = run;
        self.history.push_front(PastRun { slot, is_requested, started, finished: now, result, node, error });
        self.history.truncate(HISTORY);
    }
}
