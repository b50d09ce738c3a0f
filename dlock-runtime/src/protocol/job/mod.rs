//! The rules of a scheduled job: each tick is decided once in the fleet.
//!
//! ```text
//! job_record    what the server knows about a job, and what each request does to it
//! begin         the decision about one tick: run, wait, or skip
//! ```
//!
//! A *slot* is the identity of a tick: its due time in milliseconds since the epoch. All times here
//! are the server's. The script `job.lua` of the Redis backend implements the same; the in-memory
//! backend and the simulation run this module.
//!
//! # Invariants
//!
//! - Slots only increase: a slot that is older than the last started or skipped one never starts.
//! - A slot starts again only after its run has failed or its lease has expired, and only if the
//!   request permits it.
//! - A slot that was due when a pause ended does not start after it, except again if its run was
//!   active then.
//! - A slot is skipped for one that waits only while a process asks for the one that waits. With
//!   [`Overlap::QueueOne`](begin::Overlap::QueueOne), no newer slot starts before that one.
//! - At most one run has a valid lease. Each run has a higher fencing token than all runs before.
//! - A newer slot starts at least `min_hold` after the last one, unless missed slots are in
//!   between.
//! - A run changes the record only while no other run has replaced it.

pub(crate) mod begin;
pub(crate) mod job_record;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
