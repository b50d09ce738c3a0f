//! Scheduled jobs: each tick runs once in the fleet.
//!
//! ```text
//! job             Job: the handle of a job, for calls and for operators
//!   job_store     requests about the record of a job
//! schedule        Schedule: the instants of a job, and what happens at crashes and overlaps
//! tick            Tick: what the body receives
//! jobs            Jobs: the runner, which sleeps to the next tick of each job
//!   job_runner    the runner of one job
//!   catch_up      which missed ticks run
//! job_call        one call of a tick: begins, runs the body, and reports its end
//! server_clock    the server's clock, as far as this process knows it
//! job_history     what operators see of a record
//! operation       the requests about a record: a script for Redis, a pure rule for memory
//!   record_fields a record as the fields of a hash
//! ```
//!
//! The rules of a record are in `protocol::job`, and the lease of a run is in
//! `engine::renewed_lease`.

mod catch_up;
mod job;
mod job_call;
mod job_history;
mod job_runner;
mod job_store;
mod jobs;
mod operation;
mod record_fields;
mod schedule;
pub(crate) mod server_clock;
mod tick;

pub use crate::protocol::job::begin::{CrashedRun, Overlap};
pub use catch_up::CatchUp;
pub use job::Job;
pub use job_history::{JobRun, JobStatus, RunOutcome};
pub use jobs::Jobs;
pub use schedule::{FailedRun, Schedule};
pub use tick::Tick;
