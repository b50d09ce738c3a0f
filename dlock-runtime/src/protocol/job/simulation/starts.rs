//! [`Starts`], every start of a run, and the invariants that it must keep.

use crate::protocol::job::begin::{BeginKind, BeginRequest, CrashedRun, Overlap, RunGrant};
use crate::protocol::job::job_record::{LONGEST_SILENCE, RunResult};
use crate::token::Token;

/// All runs that the server started.
#[derive(Debug, Default)]
pub(super) struct Starts {
    runs: Vec<StartedRun>,
    /// The slots that were skipped before a run of them started.
    skipped: Vec<u64>,
    /// When pauses ended, by the server's clock, and the slot whose run was active then.
    resumed: Vec<(u64, Option<u64>)>,
    /// When the schedule last changed, by the server's clock.
    schedule_since: u64,
    /// The slots that wait, and when each was last asked for, by the server's clock.
    waits: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct StartedRun {
    owner: Token,
    slot: u64,
    attempt: u32,
    is_requested: bool,
    /// Whether a process asked for it as for a missed slot.
    is_missed: bool,
    /// When the server granted it, by its clock.
    granted: u64,
    fence: u64,
    /// Until when the replica considers its lease valid, in true time.
    valid_until: u64,
    ended: Option<RunResult>,
}

impl Starts {
    /// Records that the server grants a run, at the true time `now`, which is `server_time` by its
    /// clock. Returns `true` for a new run.
    ///
    /// # Errors
    ///
    /// The violated invariant.
    pub(super) fn on_run(
        &mut self,
        (now, server_time): (u64, u64),
        request: &BeginRequest,
        grant: RunGrant,
    ) -> Result<bool, String> {
        // A late request may start a run that its replica does not want any more, but only as any
        // other request may.
        let is_repeated = |run: &StartedRun| {
            run.owner == request.owner && (run.slot, run.attempt) == (grant.slot, grant.attempt)
        };
        if self.runs.last().is_some_and(is_repeated) {
            return Ok(false);
        }
        let is_requested = request.kind == BeginKind::Requested;
        self.on_missed(grant.counted)?;
        if let Some(other) = self.runs.iter().find(|run| run.ended.is_none() && run.valid_until > now) {
            return Err(format!("{grant:?} starts while {other:?} is valid"));
        }
        if let Some(other) = self.runs.iter().find(|run| run.fence >= grant.fence) {
            return Err(format!("the fencing token of {grant:?} is not above that of {other:?}"));
        }
        let is_missed = matches!(request.kind, BeginKind::Missed { .. });
        let earlier = || self.runs.iter().filter(|run| !run.is_requested);
        // A run that was given back does not count as one.
        let counted = || earlier().filter(|run| run.ended != Some(RunResult::Unstarted));
        if !is_requested {
            if let Some(newer) = earlier().find(|run| run.slot > grant.slot) {
                return Err(format!("{grant:?} starts after {newer:?}"));
            }
            let is_of_pause =
                |(at, active): &&(u64, Option<u64>)| grant.slot <= *at && *active != Some(grant.slot);
            if let Some((at, _)) = self.resumed.iter().find(is_of_pause) {
                return Err(format!("{grant:?} starts after a pause that ended at {at}"));
            }
            let last = earlier().next_back().map(|run| run.slot).filter(|slot| *slot < grant.slot);
            let last = counted().find(|run| Some(run.slot) == last && run.granted <= server_time);
            let has_hold = |last: &&StartedRun| !is_missed && !last.is_missed;
            if let Some(last) =
                last.filter(has_hold).filter(|last| server_time - last.granted < request.min_hold)
            {
                return Err(format!("{grant:?} starts within the `min_hold` of {last:?}"));
            }
            let is_passed = |(waiting, asked): &&(u64, u64)| {
                *waiting < grant.slot && *asked <= server_time && server_time - asked < LONGEST_SILENCE
            };
            if request.overlap == Overlap::QueueOne
                && let Some((waiting, asked)) = self.waits.iter().find(is_passed)
            {
                return Err(format!("{grant:?} starts before {waiting}, which waits, asked for at {asked}"));
            }
            if let Some(passed) = self.given_back(request, grant.slot) {
                return Err(format!("{grant:?} starts before {passed}, a missed slot that was given back"));
            }
            let is_new = !earlier().any(|run| run.slot == grant.slot);
            if is_missed && is_new && grant.slot <= self.schedule_since {
                return Err(format!("{grant:?} was missed before its schedule of {}", self.schedule_since));
            }
            let same: Vec<_> = counted().filter(|run| run.slot == grant.slot).collect();
            if same.is_empty() && self.skipped.contains(&grant.slot) {
                return Err(format!("{grant:?} starts, and was skipped before"));
            }
            let attempts = u32::try_from(same.len()).unwrap_or(u32::MAX);
            if grant.attempt != attempts + 1 {
                return Err(format!(
                    "attempt {} of {} is number {}",
                    grant.attempt,
                    grant.slot,
                    attempts + 1
                ));
            }
            let failed = same.iter().filter(|run| run.ended == Some(RunResult::Failed)).count();
            if same.iter().any(|run| matches!(run.ended, Some(RunResult::Succeeded | RunResult::Cancelled))) {
                return Err(format!("{grant:?} starts a tick twice, which has run: {same:?}"));
            }
            if request.crashed == CrashedRun::Skip && failed < same.len() {
                return Err(format!("{grant:?} starts a tick twice, after a crash: {same:?}"));
            }
            if failed > request.retries as usize + (same.len() - failed) {
                return Err(format!("{grant:?} is one retry too many: {same:?}"));
            }
        }
        let RunGrant { slot, attempt, fence, .. } = grant;
        if !is_requested {
            self.waits.retain(|(waiting, _)| *waiting > slot);
        }
        self.runs.push(StartedRun {
            owner: request.owner,
            slot,
            attempt,
            is_requested,
            is_missed,
            granted: server_time,
            fence,
            valid_until: 0,
            ended: None,
        });
        Ok(true)
    }

    /// Returns the last slot, if it was missed and each of its runs was given back, and a request
    /// that catches up must not pass it with `slot`. A slot that waits passes it, one from before
    /// the end of a pause does not start again, and one from before a change of the schedule is
    /// none of its missed ones.
    fn given_back(&self, request: &BeginRequest, slot: u64) -> Option<u64> {
        let catches_up =
            matches!(request.kind, BeginKind::Missed { .. } | BeginKind::Tick { previous: Some(_), .. });
        let last = self.runs.iter().rfind(|run| !run.is_requested)?.slot;
        let is_given_back =
            |run: &StartedRun| run.is_missed && run.attempt == 1 && run.ended == Some(RunResult::Unstarted);
        let is_open = self.runs.iter().filter(|run| !run.is_requested && run.slot == last).all(is_given_back);
        let waits = self.waits.iter().any(|(waiting, _)| *waiting == slot);
        let is_paused = self.resumed.iter().any(|(at, active)| last <= *at && *active != Some(last));
        let is_of_schedule = last > self.schedule_since;
        (catches_up && last < slot && is_open && !waits && !is_paused && is_of_schedule).then_some(last)
    }

    /// Records that the schedule changes at `server_time`.
    pub(super) fn on_schedule(&mut self, server_time: u64) {
        self.schedule_since = server_time;
    }

    /// Checks the time after which slots are missed.
    ///
    /// # Errors
    ///
    /// It is before the schedule was first seen.
    pub(super) fn on_missed(&self, since: u64) -> Result<(), String> {
        if since >= self.schedule_since {
            return Ok(());
        }
        Err(format!("slots after {since} are missed, of a schedule of {}", self.schedule_since))
    }

    /// Returns `true` if this is the first attempt of a missed slot.
    pub(super) fn is_missed(&self, owner: Token) -> bool {
        let run = self.runs.iter().rfind(|run| run.owner == owner);
        run.is_some_and(|run| run.is_missed && run.attempt == 1)
    }

    /// Records that the server skips a slot.
    pub(super) fn on_skip(&mut self, slot: u64) {
        self.waits.retain(|(waiting, _)| *waiting != slot);
        if !self.runs.iter().any(|run| !run.is_requested && run.slot == slot) {
            self.skipped.push(slot);
        }
    }

    /// Records that a pause ends at `server_time`, while a run of the slot `active` is active.
    pub(super) fn on_resume(&mut self, server_time: u64, active: Option<u64>) {
        self.resumed.push((server_time, active));
        self.waits.retain(|(waiting, _)| *waiting > server_time);
    }

    /// Records that a process asks for a slot at `server_time`, which waits.
    pub(super) fn on_wait(&mut self, slot: u64, server_time: u64) {
        self.waits.retain(|(waiting, _)| *waiting != slot);
        self.waits.push((slot, server_time));
    }

    /// Checks a slot that is skipped at `server_time` because another one waits.
    ///
    /// # Errors
    ///
    /// No process has asked for another slot for longer than [`LONGEST_SILENCE`].
    pub(super) fn on_overlap(&self, slot: u64, server_time: u64) -> Result<(), String> {
        let is_live = |(waiting, asked): &(u64, u64)| {
            *waiting != slot && *asked <= server_time && server_time - asked < LONGEST_SILENCE
        };
        if self.waits.iter().any(is_live) {
            return Ok(());
        }
        Err(format!("{slot} is skipped for a slot that no process asks for, at {server_time}"))
    }

    /// Records until when the replica of a run considers its lease valid.
    pub(super) fn on_valid(&mut self, owner: Token, until: u64) {
        if let Some(run) = self.runs.iter_mut().rfind(|run| run.owner == owner) {
            run.valid_until = run.valid_until.max(until);
        }
    }

    /// Records that a replica stopped, without a report.
    pub(super) fn on_crash(&mut self, owner: Token) {
        if let Some(run) = self.runs.iter_mut().rfind(|run| run.owner == owner) {
            run.valid_until = 0;
        }
    }

    /// Records that the server accepted the end of a run.
    pub(super) fn on_end(&mut self, owner: Token, result: RunResult) {
        if let Some(run) = self.runs.iter_mut().rfind(|run| run.owner == owner) {
            run.ended = Some(result);
        }
    }

    pub(super) fn of_attempts_after_the_first(&self) -> u64 {
        self.runs.iter().filter(|run| run.attempt > 1).count() as u64
    }

    pub(super) fn of_missed_slots(&self) -> u64 {
        self.runs.iter().filter(|run| run.is_missed).count() as u64
    }

    pub(super) fn len(&self) -> u64 {
        self.runs.len() as u64
    }
}
