//! The invariants of this simulation.
//!
//! ```text
//! J1  no two tasks consider the lock held at once. No task is granted the lock while the body of
//!     an expired hold still runs, if that hold was valid when it ended
//! J2  no task is granted the lock at or after its deadline, and no body runs past it
//! J3  fencing tokens rise in the order of the holds
//! J5  if a task waits and no task holds, a grant follows within a bound, once faults have ended
//! J6  at the end nothing is left, and the state of dead processes expires
//! J8  every task gets exactly one outcome
//! J10 without faults no hold is lost, however distant the server is, if three round trips fit into
//!     the lease
//! ```
//!
//! In addition, no task is granted the lock before the `min_hold` of another hold is over, tasks of
//! one process are granted the lock in their order, and a process contends while it holds only if
//! it yields the hold.
//!
//! With a fault outside the model, J1 counts overlaps instead: a task that was granted the lock by
//! a server that lost the grant may hold at the same time as another task, and no other task may.

use std::collections::BTreeMap;

use super::coverage_points::CoveragePoint;
use super::fault_profile::{FaultProfile, OutOfModelFault, PROCESSES, TASKS};
use crate::error::LossCause;
use crate::protocol::deadline::BootInstant;
use crate::protocol::simulation::coverage::Coverage;
use crate::protocol::simulation::{Violation, violation};
use crate::token::Token;

/// A hold as its task sees it. Times are on the clock of its process.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveHold {
    pub(super) process: usize,
    pub(super) token: Token,
    /// The earlier of `deadline` and `ends`.
    pub(super) until: BootInstant,
    pub(super) deadline: BootInstant,
    /// When `max_hold` ends the hold.
    pub(super) ends: BootInstant,
    pub(super) lost: bool,
    /// The sequence number of the hold, across all tasks.
    pub(super) number: u32,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TaskState {
    #[default]
    NotStarted,
    Waiting {
        since: u64,
    },
    Granted,
    Rejected,
    /// The task was cancelled while it waited.
    Cancelled,
    /// The process was killed.
    Killed,
}

#[derive(Debug, Default)]
pub(super) struct Invariants {
    pub(super) holds: [Option<ActiveHold>; TASKS as usize],
    pub(super) tasks: [TaskState; TASKS as usize],
    /// By process: its tasks in the order of their arrival, and in the order of their grants.
    orders: [(Vec<u32>, Vec<u32>); PROCESSES as usize],
    hold_count: u32,
    /// The token of the retained hold, its end, and the generation of the server's data.
    pub(super) retained: Option<(Token, u64, u32)>,
    /// When a task was last granted the lock with a token.
    granted_at: BTreeMap<Token, u64>,
    /// The generation of the server's data in which a token was first granted the lock. A later
    /// generation may not contain that grant.
    pub(super) granted_in: BTreeMap<Token, u32>,
    /// The fencing tokens, with the numbers of their holds.
    fences: Vec<(u32, u64)>,
    /// Since when no task holds the lock.
    idle_since: u64,
    /// When faults end.
    pub(super) faults_end: u64,
}

impl Invariants {
    pub(super) fn new(faults_end: u64) -> Self {
        Self { faults_end, ..Self::default() }
    }

    /// Records that a task joins the queue of its process.
    pub(super) fn on_join(&mut self, acquisition: u32, process: usize, now: u64) {
        self.tasks[acquisition as usize] = TaskState::Waiting { since: now };
        self.orders[process].0.push(acquisition);
    }

    /// Checks J8 and returns since when the task has waited.
    fn set_outcome(&mut self, acquisition: u32, outcome: TaskState) -> Result<u64, Box<Violation>> {
        match self.tasks[acquisition as usize] {
            TaskState::Waiting { since } => {
                self.tasks[acquisition as usize] = outcome;
                Ok(since)
            }
            before => violation(
                "J8 one outcome",
                format!("task {acquisition} becomes {outcome:?}, but was {before:?}"),
            ),
        }
    }

    /// Checks J5.
    fn check_wait(
        &self,
        acquisition: u32,
        since: u64,
        now: u64,
        profile: &FaultProfile,
    ) -> Result<(), Box<Violation>> {
        let since = since.max(self.idle_since).max(self.faults_end);
        if self.holds.iter().all(Option::is_none) && now > since + profile.max_grant_gap() {
            return violation(
                "J5 no lost wake-up",
                format!("no task held the lock for {} ms while task {acquisition} waited", now - since),
            );
        }
        Ok(())
    }

    /// Records that a task is rejected.
    pub(super) fn on_rejected(
        &mut self,
        acquisition: u32,
        now: u64,
        profile: &FaultProfile,
    ) -> Result<(), Box<Violation>> {
        let since = self.set_outcome(acquisition, TaskState::Rejected)?;
        self.check_wait(acquisition, since, now, profile)
    }

    /// Records that a task is granted the lock. `local` is the time of its process.
    pub(super) fn on_granted(
        &mut self,
        acquisition: u32,
        mut hold: ActiveHold,
        (now, local, generation): (u64, BootInstant, u32),
        profile: &FaultProfile,
    ) -> Result<u32, Box<Violation>> {
        let since = self.set_outcome(acquisition, TaskState::Granted)?;
        self.check_wait(acquisition, since, now, profile)?;
        if local >= hold.until {
            return violation(
                "J2 no grant after the deadline",
                format!("task {acquisition} is granted the lock after its deadline"),
            );
        }
        let is_retained = |(token, until, of)| token != hold.token && now < until && of == generation;
        // A server that lost a grant does not protect that hold, nor a later one from its holder.
        let is_forgotten = self.granted_in.get(&hold.token).is_some_and(|of| *of < generation);
        if profile.out_of_model != OutOfModelFault::ExcessiveDrift
            && !is_forgotten
            && self.retained.is_some_and(is_retained)
        {
            return violation(
                "min_hold",
                format!(
                    "task {acquisition} is granted the lock before the `min_hold` of another hold is over"
                ),
            );
        }
        self.granted_at.insert(hold.token, now);
        self.orders[hold.process].1.push(acquisition);
        self.hold_count += 1;
        hold.number = self.hold_count;
        self.holds[acquisition as usize] = Some(hold);
        Ok(self.hold_count)
    }

    /// Checks J1: while a task holds, by the clock of its process, no other task does.
    pub(super) fn check_exclusion(
        &self,
        acquisition: u32,
        clocks: impl Fn(usize) -> BootInstant,
        (generation, out_of_model): (u32, OutOfModelFault),
        coverage: &mut Coverage,
    ) -> Result<(), Box<Violation>> {
        let Some(mine) = self.holds[acquisition as usize].filter(|mine| clocks(mine.process) < mine.until)
        else {
            return Ok(());
        };
        for (other, hold) in self.holds.iter().enumerate() {
            let Some(hold) = hold else { continue };
            if other == acquisition as usize || clocks(hold.process) >= hold.until {
                continue;
            }
            let is_forgotten = [mine.token, hold.token]
                .iter()
                .any(|token| self.granted_in.get(token).is_some_and(|of| *of < generation));
            match out_of_model {
                OutOfModelFault::ExcessiveDrift => {
                    coverage.increment(CoveragePoint::OverlapByDrift as usize);
                }
                OutOfModelFault::DataLoss if is_forgotten => {
                    coverage.increment(CoveragePoint::OverlapAfterDataLoss as usize);
                }
                OutOfModelFault::Promotion(_) if is_forgotten => {
                    coverage.increment(CoveragePoint::OverlapAfterPromotion as usize);
                }
                _ => {
                    return violation(
                        "J1 mutual exclusion",
                        format!("task {acquisition} holds the lock at the same time as task {other}"),
                    );
                }
            }
        }
        Ok(())
    }

    /// Removes the hold of a task.
    pub(super) fn end_hold(&mut self, acquisition: u32, now: u64) -> Option<ActiveHold> {
        let hold = self.holds[acquisition as usize].take();
        if hold.is_some() {
            self.idle_since = now;
        }
        hold
    }

    /// Checks J10 when the protocol reports a hold as lost.
    pub(super) fn check_loss(
        acquisition: u32,
        cause: LossCause,
        profile: &FaultProfile,
    ) -> Result<(), Box<Violation>> {
        if profile.must_keep_hold(acquisition) && !matches!(cause, LossCause::MaxHold | LossCause::Shutdown) {
            return violation(
                "J10 no loss without faults",
                format!("the lock of task {acquisition} is lost: {cause:?}"),
            );
        }
        Ok(())
    }

    /// Checks J2 when a body ends.
    ///
    /// `late` is the time in milliseconds since its deadline, or since its process was last frozen.
    pub(super) fn check_body(acquisition: u32, hold: &ActiveHold, late: u64) -> Result<(), Box<Violation>> {
        if !hold.lost && late > 50 {
            return violation(
                "J2 no body runs past its deadline",
                format!("the body of task {acquisition} runs {late} ms past its deadline"),
            );
        }
        Ok(())
    }

    /// Records that the server retains a lock until `requested`, or until its `min_hold` is over.
    pub(super) fn on_retained(&mut self, token: Token, requested: u64, min_hold: u64, generation: u32) {
        let min_hold_ends = self.granted_at.get(&token).map_or(0, |at| at + min_hold);
        self.retained = Some((token, min_hold_ends.min(requested), generation));
    }

    /// Checks J3 when a task that holds receives a fencing token.
    pub(super) fn on_fencing_token(&mut self, acquisition: u32, token: u64) -> Result<(), Box<Violation>> {
        let Some(hold) = self.holds[acquisition as usize].filter(|hold| !hold.lost) else { return Ok(()) };
        let is_out_of_order = |&&(number, other): &&(u32, u64)| (number < hold.number) != (other < token);
        if let Some((number, other)) =
            self.fences.iter().filter(|(number, _)| *number != hold.number).find(is_out_of_order)
        {
            return violation(
                "J3 fencing tokens rise",
                format!("hold {number} received {other}, and hold {} received {token}", hold.number),
            );
        }
        self.fences.push((hold.number, token));
        Ok(())
    }

    /// Checks the order of grants, and J8 for processes that are alive, at the end of the schedule.
    pub(super) fn check_end(&self, alive: [bool; PROCESSES as usize]) -> Result<(), Box<Violation>> {
        for ((joined, granted), _) in self.orders.iter().zip(alive).filter(|(_, alive)| *alive) {
            let order = joined.iter().filter(|acquisition| granted.contains(acquisition));
            if !order.eq(granted) {
                return violation("order", "tasks of one process were granted the lock out of order");
            }
        }
        match self.tasks.iter().position(|task| matches!(task, TaskState::Waiting { .. })) {
            Some(acquisition) => violation("J8 one outcome", format!("task {acquisition} has no outcome")),
            None => Ok(()),
        }
    }
}
