//! [`JobRun`] and [`JobStatus`], what operators see of a record.

use std::time::{Duration, SystemTime};

use crate::printable::shortened;
use crate::protocol::job::job_record::{JobRecord, RunResult};
use crate::scheduled::tick::from_millis;

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobRun {
    /// When its tick was due, or when the run was requested.
    pub slot: SystemTime,
    /// Whether an operator requested it.
    pub is_requested: bool,
    /// When it started, by the server's clock.
    pub started: SystemTime,
    /// How long it ran, by the server's clock.
    pub took: Duration,
    /// How it ended.
    pub outcome: RunOutcome,
    /// The [ID](crate::LockManager::id) of the manager that ran it.
    pub node: String,
    /// The text of its error, at most 512 bytes.
    pub error: Option<String>,
}

/// A run that is active.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningJob {
    /// When its tick was due, or when the run was requested.
    pub slot: SystemTime,
    /// When it started, by the server's clock.
    pub started: SystemTime,
    /// The [ID](crate::LockManager::id) of the manager that runs it.
    pub node: String,
    /// The rest of its lease, which is renewed while it runs.
    pub remaining: Duration,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunOutcome {
    /// Its body returned `Ok`.
    Succeeded,
    /// Its body returned an error, panicked, or was dropped, also after `max_hold`.
    Failed,
    /// A newer tick replaced it.
    Cancelled,
    /// Its lease was lost while its body ran, or its process crashed.
    Lost,
}

impl RunOutcome {
    /// Returns the name: `succeeded`, `failed`, `cancelled`, or `lost`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStatus {
    /// When the job was first seen with its schedule, or was reset after that. Ticks before are not
    /// missed.
    pub known: Option<SystemTime>,
    /// The last tick that started.
    pub slot: Option<SystemTime>,
    /// The run that is active.
    pub running: Option<RunningJob>,
    /// Whether the job is paused.
    pub is_paused: bool,
    /// Whether a run is requested and has not started.
    pub is_requested: bool,
    /// The number of runs that started.
    pub runs: u64,
    /// The number of runs that failed or were lost.
    pub failures: u64,
    /// The number of ticks that were skipped: the job was paused, or its previous run was active.
    pub skips: u64,
    /// The number of ticks that no process started in time.
    ///
    /// They are counted when the next run ends. If its process crashes and the tick does not run
    /// again, those before it are not in this number; the event `dlock.job_missed` has reported
    /// them at its start.
    pub missed: u64,
    /// When a run last succeeded.
    pub succeeded: Option<SystemTime>,
    /// The schedule of the last request, as text of at most 512 bytes. Empty if callers have chosen
    /// all slots.
    pub schedule: String,
}

pub(super) fn runs(record: &JobRecord, count: usize) -> Vec<JobRun> {
    let run = |past: &crate::protocol::job::job_record::PastRun| JobRun {
        slot: from_millis(past.slot),
        is_requested: past.is_requested,
        started: from_millis(past.started),
        took: Duration::from_millis(past.finished.saturating_sub(past.started)),
        outcome: match past.result {
            RunResult::Succeeded => RunOutcome::Succeeded,
            RunResult::Failed => RunOutcome::Failed,
            RunResult::Cancelled => RunOutcome::Cancelled,
            RunResult::Lost | RunResult::Unstarted => RunOutcome::Lost,
        },
        node: shortened(&past.node).into_owned(),
        error: (!past.error.is_empty()).then(|| shortened(&past.error).into_owned()),
    };
    record.history.iter().take(count).map(run).collect()
}

pub(super) fn status(record: &JobRecord, now: u64) -> JobStatus {
    let running = record.run.as_ref().filter(|run| run.lease_end > now);
    JobStatus {
        known: record.known.map(from_millis),
        slot: (record.slot > 0).then(|| from_millis(record.slot)),
        running: running.map(|run| RunningJob {
            slot: from_millis(run.slot),
            started: from_millis(run.started),
            node: shortened(&run.node).into_owned(),
            remaining: Duration::from_millis(run.lease_end - now),
        }),
        is_paused: record.is_paused,
        is_requested: record.request.is_some(),
        runs: record.counters.runs,
        failures: record.counters.failures,
        skips: record.counters.skips,
        missed: record.counters.missed,
        succeeded: record.succeeded.map(|(time, _)| from_millis(time)),
        schedule: shortened(&record.spec).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::LONGEST_FOREIGN_TEXT;
    use crate::protocol::job::job_record::{ActiveRun, PastRun};
    use crate::token::TokenSource;

    fn active_run(node: &str) -> ActiveRun {
        ActiveRun {
            owner: TokenSource::of_process(1).next(),
            slot: 5_000,
            is_requested: false,
            started: 5_001,
            lease_end: 8_000,
            is_cancelled: false,
            node: node.to_owned(),
        }
    }

    #[test]
    fn texts_that_another_client_wrote_are_shown_up_to_a_bound() {
        let text = "x".repeat(2 * LONGEST_FOREIGN_TEXT);
        let past = PastRun {
            slot: 5_000,
            is_requested: false,
            started: 5_001,
            finished: 5_002,
            result: RunResult::Failed,
            node: text.clone(),
            error: text.clone(),
        };
        let history = [past].into_iter().collect();
        let run = Some(active_run(&text));
        let record = JobRecord { run, spec: text, history, ..JobRecord::default() };

        let JobStatus { running, schedule, .. } = status(&record, 7_000);
        let JobRun { node, error, .. } = runs(&record, 1).remove(0);

        let shown = [running.expect("it is running").node, schedule, node, error.expect("it has failed")];
        for shown in shown {
            assert_eq!(shown.len(), LONGEST_FOREIGN_TEXT);
        }
    }

    #[test]
    fn an_outcome_is_named_like_its_variant() {
        for outcome in [RunOutcome::Succeeded, RunOutcome::Failed, RunOutcome::Cancelled, RunOutcome::Lost] {
            assert_eq!(outcome.name(), format!("{outcome:?}").to_lowercase());
        }
    }

    #[test]
    fn a_run_is_running_until_its_lease_ends() {
        let record = JobRecord { slot: 5_000, run: Some(active_run("dl2-7")), ..JobRecord::default() };

        let running = |now| status(&record, now).running.map(|run| (run.node, run.remaining));

        assert_eq!(running(7_000), Some(("dl2-7".to_owned(), Duration::from_secs(1))));
        assert_eq!((running(8_000), running(9_000)), (None, None));
        assert_eq!(status(&record, 7_000).slot, Some(from_millis(5_000)));
        assert_eq!(status(&JobRecord::default(), 7_000).slot, None);
    }
}
