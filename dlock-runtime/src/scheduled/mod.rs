//! Scheduled jobs: each tick starts once in all processes, and again after a crash.
//!
//! ```text
//! job             Job: the handle of a job, for calls and for operators
//!   job_store     requests about the record of a job
//! schedule        Schedule: the instants of a job, and what happens at crashes and overlaps
//! tick            Tick: what the body receives
//! jobs            Jobs: the runner, which sleeps to the next tick of each job
//!   job_runner    the runner of one job
//!   catch_up      which missed ticks run
//! function        a function with `#[scheduled]`, called by a timer or by a runner
//! job_call        one call of a tick: begins, runs the body, and reports its end
//!   run_output    what a run reads from the output of its body
//!   run_lease     RunLease: the lease of a run as its body sees it
//! server_clock    the server's clock, as far as this process knows it
//! job_history     what operators see of a record
//! operation       the requests about a record: a script for Redis, a pure rule for memory
//!   record_fields a record as the fields of a hash
//! ```
//!
//! The rules of a record are in `protocol::job`, and the lease of a run is in
//! `engine::renewed_lease`.

mod catch_up;
pub(crate) mod function;
mod job;
mod job_call;
mod job_history;
mod job_runner;
mod job_store;
mod jobs;
mod operation;
mod record_fields;
mod run_lease;
pub(crate) mod run_output;
mod schedule;
pub(crate) mod server_clock;
#[cfg(test)]
mod tests;
mod tick;

pub use crate::protocol::job::begin::{CrashedRun, Overlap};
pub use catch_up::CatchUp;
pub use job::Job;
pub use job_history::{JobRun, JobStatus, RunOutcome, RunningJob};
pub use jobs::Jobs;
pub use run_lease::RunLease;
pub use schedule::{FailedRun, Schedule};
pub use tick::Tick;
