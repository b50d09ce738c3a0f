//! Tests of the script of a job, and of a job over connections that are lost.

mod late_requests;
mod rules;
