//! The one server: the record of production, a counter of fencing tokens, and what becomes of them when it is started again.

use std::collections::BTreeSet;
use std::time::Duration;

use super::planted::Bug;
use crate::protocol::command::{Command, RecordInfo, Reply};
use crate::protocol::fencing;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::record::Record;
use crate::protocol::simulation::{Wrong, at, wrong};
use crate::token::Token;

#[derive(Debug, Default)]
pub(super) struct Server {
    record: Record,
    /// The last fencing token that was issued.
    fence: Option<u64>,
    /// What a replica has of both.
    replica: Option<(Record, Option<u64>)>,
    /// How often it was started again with other data.
    pub(super) life: u32,
    /// How often it was started again.
    pub(super) starts: u32,
    pub(super) down_until: u64,
    /// Who held in an earlier life: nobody of them may hold again but whom the replica knew.
    held_before: BTreeSet<Token>,
}

impl Server {
    /// Does a command at `now`, and tells who is granted the lock.
    pub(super) fn run(
        &mut self,
        token: Token,
        command: Command,
        now: u64,
        grant_lease: Duration,
        bug: Bug,
        mut told: impl FnMut(Token, Grant) -> bool,
    ) -> Result<Reply, Box<Wrong>> {
        let server_time = at(now);
        if bug == Bug::AnybodyReleases && command.is_release() {
            self.record.run(token, Command::ForceRelease, server_time, grant_lease, &mut told);
        }
        let mut reply = self.record.run(token, command, server_time, grant_lease, &mut told);
        if bug == Bug::RenewedIntoBeing
            && let (Command::Renew { lease }, Reply::NotOwner) = (command, &reply)
            && self.record.is_empty(server_time)
        {
            reply = self.record.run(token, Command::Acquire { lease }, server_time, grant_lease, told);
        }
        if let (Command::Fence, Reply::Owner) = (command, &reply) {
            let micros = if bug == Bug::CounterStartsAgain { 1 } else { SINCE_THE_EPOCH + now * 1_000 };
            let next = fencing::next(self.fence, micros).expect("the clock is below 2^53");
            self.fence = Some(next);
            reply = Reply::Fenced(next);
        }
        if !self.held_before.is_empty() {
            self.judge_who_holds(now)?;
        }
        Ok(reply)
    }

    /// Nobody comes to hold again who held before the data was lost.
    fn judge_who_holds(&self, now: u64) -> Result<(), Box<Wrong>> {
        match self.record.tokens(at(now)).first() {
            Some(holder) if self.held_before.contains(holder) => {
                wrong("nobody is put back silently", "who lost the lock with the server's data has it again")
            }
            _ => Ok(()),
        }
    }

    /// A replica has heard all until now.
    pub(super) fn replicate(&mut self) {
        self.replica = Some((self.record.clone(), self.fence));
    }

    /// Starts again, with the data or without.
    pub(super) fn restart(&mut self, keeps: bool, now: u64) {
        self.starts += 1;
        if !keeps {
            self.replace(Record::default(), None, now);
        }
    }

    /// The replica takes over. Returns the tokens that it knows.
    pub(super) fn promote(&mut self, now: u64) -> Vec<Token> {
        self.starts += 1;
        let (record, fence) = self.replica.take().unwrap_or_default();
        let known = record.tokens(at(now));
        self.replace(record, fence, now);
        known
    }

    fn replace(&mut self, record: Record, fence: Option<u64>, now: u64) {
        self.held_before.extend(self.record.tokens(at(now)).first());
        for known in record.tokens(at(now)) {
            self.held_before.remove(&known);
        }
        (self.record, self.fence) = (record, fence);
        self.life += 1;
    }

    pub(super) fn tokens(&self, now: u64) -> Vec<Token> {
        self.record.tokens(at(now))
    }

    /// AtomicDeadline when what stands there stands.
    pub(super) fn until(&mut self, now: u64) -> Option<u64> {
        let nobody = crate::token::TokenSource::of_process(u64::MAX).next();
        match self.record.run(nobody, Command::Inspect, at(now), Duration::ZERO, |_, _| false) {
            Reply::Info(Some(RecordInfo { ttl, .. })) => {
                ttl.map(|ttl| now + u64::try_from(ttl.as_millis()).unwrap_or_default())
            }
            _ => None,
        }
    }
}

/// Some time in 2025, in microseconds.
const SINCE_THE_EPOCH: u64 = 1_750_000_000_000_000;
