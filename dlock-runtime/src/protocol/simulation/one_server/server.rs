//! The server of the model: the production record, a fencing counter, and a replica.

use std::collections::BTreeSet;
use std::time::Duration;

use super::seeded_bugs::Bug;
use crate::protocol::command::{Command, RecordInfo, Reply};
use crate::protocol::fencing;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::record::Record;
use crate::protocol::simulation::{Violation, at, violation};
use crate::token::Token;

#[derive(Debug, Default)]
pub(super) struct Server {
    record: Record,
    /// The last fencing token issued.
    fence: Option<u64>,
    /// The replicated record and fencing token.
    replica: Option<(Record, Option<u64>)>,
    /// How often the data was replaced.
    pub(super) generation: u32,
    /// The number of restarts, including promotions.
    pub(super) starts: u32,
    pub(super) down_until: u64,
    /// Holders whose data was lost. They must not hold again, unless the replica had them.
    lost_holders: BTreeSet<Token>,
}

impl Server {
    /// Runs a command at `now`, and calls `notify` for each token that is granted the lock.
    pub(super) fn run(
        &mut self,
        token: Token,
        command: Command,
        now: u64,
        grant_lease: Duration,
        bug: Bug,
        mut notify: impl FnMut(Token, Grant) -> bool,
    ) -> Result<Reply, Box<Violation>> {
        let server_time = at(now);
        if bug == Bug::ReleaseByNonOwner && command.is_release() {
            self.record.run(token, Command::ForceRelease, server_time, grant_lease, &mut notify);
        }
        let mut reply = self.record.run(token, command, server_time, grant_lease, &mut notify);
        if bug == Bug::RenewalCreatesKey
            && let (Command::Renew { lease }, Reply::NotOwner) = (command, &reply)
            && self.record.is_empty(server_time)
        {
            reply = self.record.run(token, Command::Acquire { lease }, server_time, grant_lease, notify);
        }
        if let (Command::Fence, Reply::Owner) = (command, &reply) {
            let micros = if bug == Bug::FencingCounterResets { 1 } else { MICROS_SINCE_EPOCH + now * 1_000 };
            let next = fencing::next(self.fence, micros).expect("the clock is below 2^53");
            self.fence = Some(next);
            reply = Reply::Fenced(next);
        }
        if !self.lost_holders.is_empty() {
            self.check_holder(now)?;
        }
        Ok(reply)
    }

    /// Checks that no holder whose data was lost holds again.
    fn check_holder(&self, now: u64) -> Result<(), Box<Violation>> {
        match self.record.tokens(at(now)).first() {
            Some(holder) if self.lost_holders.contains(holder) => {
                violation("restored hold", "a token holds again after the server lost its hold")
            }
            _ => Ok(()),
        }
    }

    /// Copies all data to the replica.
    pub(super) fn replicate(&mut self) {
        self.replica = Some((self.record.clone(), self.fence));
    }

    /// Restarts the server, with or without its data.
    pub(super) fn restart(&mut self, keeps_data: bool, now: u64) {
        self.starts += 1;
        if !keeps_data {
            self.replace(Record::default(), None, now);
        }
    }

    /// Promotes the replica. Returns the tokens in its record.
    pub(super) fn promote(&mut self, now: u64) -> Vec<Token> {
        self.starts += 1;
        let (record, fence) = self.replica.take().unwrap_or_default();
        let known = record.tokens(at(now));
        self.replace(record, fence, now);
        known
    }

    fn replace(&mut self, record: Record, fence: Option<u64>, now: u64) {
        self.lost_holders.extend(self.record.tokens(at(now)).first());
        for known in record.tokens(at(now)) {
            self.lost_holders.remove(&known);
        }
        (self.record, self.fence) = (record, fence);
        self.generation += 1;
    }

    /// Returns the tokens in the record, the holder first.
    pub(super) fn tokens(&self, now: u64) -> Vec<Token> {
        self.record.tokens(at(now))
    }

    /// Returns when the key expires, in milliseconds, or `None` if it does not exist.
    pub(super) fn until(&mut self, now: u64) -> Option<u64> {
        let stranger = crate::token::TokenSource::of_process(u64::MAX).next();
        match self.record.run(stranger, Command::Inspect, at(now), Duration::ZERO, |_, _| false) {
            Reply::Info(Some(RecordInfo { ttl, .. })) => {
                ttl.map(|ttl| now + u64::try_from(ttl.as_millis()).unwrap_or_default())
            }
            _ => None,
        }
    }
}

/// A time in 2025, in microseconds since the Unix epoch.
const MICROS_SINCE_EPOCH: u64 = 1_750_000_000_000_000;
