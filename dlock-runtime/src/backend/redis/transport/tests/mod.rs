//! Helpers that several tests of the transport share.

pub(super) mod duplex_server;
pub(super) mod fake_batch;
