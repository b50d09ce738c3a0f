//! Tests of the script of a job.

mod rules;
