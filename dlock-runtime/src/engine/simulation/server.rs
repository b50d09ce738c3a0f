//! The server of a simulation: the records of `protocol::record`, a clock, and loss of data.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::fencing;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::record::Record;
use crate::token::Token;

#[derive(Debug, Default)]
pub(super) struct Server {
    records: BTreeMap<Name, Record>,
    counters: BTreeMap<Name, u64>,
    /// The state of a replica.
    replica: BTreeMap<Name, Record>,
    /// How much faster its clock runs, in parts per million.
    pub(super) drift: i64,
}

impl Server {
    fn time(&self, now: u64) -> BootInstant {
        let ahead = i128::from(now) * i128::from(self.drift) / 1_000_000;
        BootInstant::from_nanos(u64::try_from(i128::from(now) + ahead).unwrap_or_default())
    }

    pub(super) fn run(
        &mut self,
        (key, token, command): (&Name, Token, Command),
        now: u64,
        grant_lease: Duration,
        on_grant: impl FnMut(Token, Grant) -> bool,
    ) -> Reply {
        let now = self.time(now);
        let record = self.records.entry(Name::clone(key)).or_default();
        let reply = record.run(token, command, now, grant_lease, on_grant);
        if record.is_empty(now) {
            self.records.remove(key);
        }
        match (command, reply) {
            (Command::Fence, Reply::Owner) => {
                let last = self.counters.get(key).copied();
                let fence = fencing::next(last, now.nanos() / 1_000).expect("the clock is below 2^53");
                self.counters.insert(Name::clone(key), fence);
                Reply::Fenced(fence)
            }
            (_, reply) => reply,
        }
    }

    /// Returns the token that holds the lock at `now`.
    pub(super) fn holder(&self, key: &Name, now: u64) -> Option<Token> {
        self.records.get(key)?.tokens(self.time(now)).first().copied()
    }

    /// Returns all tokens that hold a lock or wait for one.
    pub(super) fn tokens(&self, now: u64) -> Vec<(Name, Token)> {
        let of = |(key, record): (&Name, &Record)| {
            record
                .tokens(self.time(now))
                .into_iter()
                .map(|token| (Name::clone(key), token))
                .collect::<Vec<_>>()
        };
        self.records.iter().flat_map(of).collect()
    }

    pub(super) fn replicate(&mut self) {
        self.replica = self.records.clone();
    }

    /// Promotes the replica to primary.
    pub(super) fn promote(&mut self) {
        self.records = self.replica.clone();
    }

    pub(super) fn wipe(&mut self) {
        (self.records, self.counters) = (BTreeMap::new(), BTreeMap::new());
        self.replicate();
    }
}
