//! Tests of the script of a job, of a job over connections that are lost, and of runs that are
//! dropped.

mod dropped_runs;
pub(super) mod late_requests;
mod rules;
