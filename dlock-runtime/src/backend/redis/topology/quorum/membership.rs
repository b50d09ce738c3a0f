//! The servers of a quorum as they are known from their own words: which process each is, and since when it is up.
//!
//! A server that comes back empty has forgotten who holds. Its "yes" to somebody who wants a lock counts for nothing until it has been
//! up for the longest lease we know: whatever it has forgotten is over by then. One that is met for the first time may have been
//! started a moment ago just as well, so the same holds for it.
//!
//! Not here: what a vote that does not count comes to (`protocol::quorum`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;

use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::node::connection::Connection;
use crate::clock::boot_time;
use crate::protocol::command::{Command, Failure, FailureKind};
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// What is known of all servers.
pub(in crate::backend::redis) struct Membership {
    entries: Mutex<MemberEntries>,
}

struct MemberEntries {
    /// By server; `None` before it is met.
    servers: Vec<Option<MemberEntry>>,
    /// The longest lease that was ever asked for here, or is asked for where nobody says: others may have such a one, too.
    longest_lease: Duration,
    /// When a hold of ours was prolonged beyond that, if one was.
    prolonged: Option<ExtendedHold>,
}

/// A time in which holds of ours last for longer than a lease.
#[derive(Clone, Copy, Debug)]
struct ExtendedHold {
    since: BootInstant,
    ends: BootInstant,
}

#[derive(Debug)]
struct MemberEntry {
    run_id: String,
    shown: String,
    /// When it was met, and for how long it had been up by then.
    met: BootInstant,
    up: Duration,
}

/// One server's place in the roll.
pub(in crate::backend::redis) struct MemberIndex {
    pub(super) roll: Arc<Membership>,
    pub(super) server: usize,
}

impl Membership {
    pub(super) fn new(servers: usize, lease: Duration) -> Self {
        let servers = (0..servers).map(|_| None).collect();
        Self { entries: Mutex::new(MemberEntries { servers, longest_lease: lease, prolonged: None }) }
    }

    /// Notes for how long locks are asked for, or holds are prolonged, at `sent`.
    pub(super) fn is_asked(&self, command: Command, sent: BootInstant) {
        let mut entries = lock(&self.entries);
        match command {
            Command::Acquire { lease } => entries.longest_lease = lease.max(entries.longest_lease),
            Command::Renew { lease } | Command::SetTtl { ttl: lease } if lease > entries.longest_lease => {
                let now = ExtendedHold { since: sent, ends: sent.plus(lease) };
                let before = entries.prolonged.filter(|before| sent < before.ends).unwrap_or(now);
                let ends = now.ends.max(before.ends);
                entries.prolonged = Some(ExtendedHold { since: before.since, ends });
            }
            _ => {}
        }
    }

    /// Returns whether the server's "yes" counts to what was asked at `sent`: it has been up for as long as a lease may last, and for
    /// longer than a hold of ours that is prolonged.
    pub(super) fn counts(&self, server: usize, sent: BootInstant) -> bool {
        let entries = lock(&self.entries);
        let Some(Some(entry)) = entries.servers.get(server) else { return false };
        let knows =
            |prolonged: ExtendedHold| sent >= prolonged.ends || entry.met <= prolonged.since.plus(entry.up);
        entry.up.saturating_add(sent.since(entry.met)) >= entries.longest_lease
            && entries.prolonged.is_none_or(knows)
    }

    /// Enters what a server says of itself.
    fn enter(&self, server: usize, info: &ServerUptime<'_>, shown: String) -> Result<(), Failure> {
        let mut entries = lock(&self.entries);
        let refuse = |what: String| Failure::new(FailureKind::Lasting, format!("redis at {shown} {what}"));
        if info.is_replica {
            let what =
                "is a replica: name the servers of a quorum that are masters, and know nothing of each other";
            return Err(refuse(what.to_owned()));
        }
        if info.is_in_cluster {
            return Err(refuse("is a part of a cluster: write `redis+cluster://`".to_owned()));
        }
        let same = |(other, entry): (usize, &Option<MemberEntry>)| {
            entry
                .as_ref()
                .filter(|entry| other != server && entry.run_id == info.run_id)
                .map(|entry| entry.shown.clone())
        };
        if let Some(other) = entries.servers.iter().enumerate().find_map(same) {
            return Err(refuse(format!("is the same server as {other}: name each server of a quorum once")));
        }
        let Some(entry) = entries.servers.get_mut(server) else { return Ok(()) };
        if entry.as_ref().is_none_or(|entry| entry.run_id != info.run_id) {
            let run_id = info.run_id.to_owned();
            *entry = Some(MemberEntry { run_id, shown, met: boot_time(), up: info.up });
        }
        Ok(())
    }
}

impl MemberIndex {
    /// Asks a server that has just let us in what it is, and enters it.
    pub(in crate::backend::redis) async fn enter(
        &self,
        route: &ConnectTarget,
        connection: &mut Connection,
    ) -> Result<(), Failure> {
        connection.inbound().allow_descriptions(1);
        let answer = connection.send_packed_command(&redis::cmd("INFO")).await;
        connection.inbound().allow_descriptions(0);
        let answer = answer.and_then(Value::extract_error).map_err(|error| {
            let failure = route.lost(error, connection.inbound());
            match failure.kind {
                FailureKind::Lasting => {
                    let reason = format!("{}; allow it `+info`", failure.reason);
                    Failure { reason: reason.into(), ..failure }
                }
                _ => failure,
            }
        })?;
        let text = match &answer {
            Value::BulkString(text) => String::from_utf8_lossy(text),
            Value::VerbatimString { text, .. } => text.into(),
            _ => "".into(),
        };
        let info = ServerUptime::read(&text).ok_or_else(|| {
            let text = format!("redis at {} does not say since when it is up", route.shown);
            Failure::new(FailureKind::Passing, text)
        })?;
        self.roll.enter(self.server, &info, route.shown.to_string())
    }
}

/// What a server says of itself.
#[derive(Debug, PartialEq, Eq)]
struct ServerUptime<'a> {
    /// Another one after each start.
    run_id: &'a str,
    /// For how long it has been up at least.
    up: Duration,
    is_replica: bool,
    is_in_cluster: bool,
}

impl<'a> ServerUptime<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        Some(Self {
            run_id: field("run_id").filter(|id| !id.is_empty())?,
            up: Duration::from_secs(field("uptime_in_seconds")?.parse().ok()?).saturating_sub(WHOLE_SECONDS),
            is_replica: field("role") == Some("slave"),
            is_in_cluster: field("cluster_enabled") == Some("1"),
        })
    }
}

/// A server subtracts two times of which each is cut to whole seconds: it may be so much younger than it says.
const WHOLE_SECONDS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn info(run_id: &str, up: u64) -> ServerUptime<'_> {
        ServerUptime { run_id, up: Duration::from_secs(up), is_replica: false, is_in_cluster: false }
    }

    fn enter(roll: &Membership, server: usize, info: &ServerUptime<'_>) -> Result<(), Failure> {
        roll.enter(server, info, format!("h{server}:6379"))
    }

    #[test]
    fn what_a_server_says_is_read() {
        let text = "# Server\r\nrun_id:abc\r\nuptime_in_seconds:12\r\n# Replication\r\nrole:slave\r\n# Cluster\r\ncluster_enabled:1\r\n";

        assert_eq!(
            ServerUptime::read(text),
            Some(ServerUptime { is_replica: true, is_in_cluster: true, ..info("abc", 11) })
        );
        assert_eq!(ServerUptime::read("run_id:abc"), None);
    }

    #[test]
    fn a_server_that_was_started_at_the_end_of_a_second_is_not_taken_to_be_a_second_old() {
        let read = |up| ServerUptime::read(up).map(|info| info.up);

        assert_eq!(read("run_id:abc\r\nuptime_in_seconds:1\r\n"), Some(Duration::ZERO));
        assert_eq!(read("run_id:abc\r\nuptime_in_seconds:0\r\n"), Some(Duration::ZERO));
    }

    #[test]
    fn a_server_counts_once_it_has_been_up_for_the_longest_lease() {
        let roll = Membership::new(3, 30 * SECOND);
        assert!(enter(&roll, 0, &info("a", 10)).is_ok() && enter(&roll, 1, &info("b", 31)).is_ok());
        let now = boot_time();

        assert_eq!([0, 1, 2].map(|server| roll.counts(server, now)), [false, true, false]);
        assert!(roll.counts(0, now.plus(20 * SECOND)));

        roll.is_asked(Command::Acquire { lease: 60 * SECOND }, now);
        assert!(!roll.counts(1, now) && !roll.counts(0, now.plus(20 * SECOND)));
    }

    #[test]
    fn a_server_that_came_up_while_a_hold_is_prolonged_does_not_count_before_it_ends() {
        for longer in [Command::Renew { lease: 60 * SECOND }, Command::SetTtl { ttl: 60 * SECOND }] {
            let roll = Membership::new(3, SECOND);
            let now = boot_time();
            roll.is_asked(longer, now);

            assert!(enter(&roll, 0, &info("a", 0)).is_ok());

            assert!(!roll.counts(0, now.plus(50 * SECOND)), "{longer:?}");
            assert!(roll.counts(0, now.plus(61 * SECOND)), "{longer:?}");
        }
    }

    #[test]
    fn a_server_that_was_up_when_a_hold_was_prolonged_goes_on_counting() {
        let roll = Membership::new(3, 30 * SECOND);
        assert!(enter(&roll, 0, &info("a", 31)).is_ok());
        let now = boot_time();

        roll.is_asked(Command::Renew { lease: 3_600 * SECOND }, now);

        assert!(roll.counts(0, now.plus(SECOND)));
    }

    #[test]
    fn a_new_connection_to_the_same_process_changes_nothing_and_one_to_another_begins_anew() {
        let roll = Membership::new(3, 30 * SECOND);
        assert!(enter(&roll, 0, &info("a", 31)).is_ok() && enter(&roll, 0, &info("a", 0)).is_ok());
        assert!(roll.counts(0, boot_time()));

        assert!(enter(&roll, 0, &info("b", 0)).is_ok());

        assert!(!roll.counts(0, boot_time()));
    }

    #[test]
    fn what_cannot_be_a_server_of_a_quorum_is_told_with_its_cure() {
        let roll = Membership::new(3, SECOND);
        assert!(enter(&roll, 0, &info("a", 0)).is_ok());

        for (info, cure) in [
            (info("a", 0), "h1:6379 is the same server as h0:6379"),
            (
                ServerUptime { is_replica: true, ..info("b", 0) },
                "name the servers of a quorum that are masters",
            ),
            (ServerUptime { is_in_cluster: true, ..info("b", 0) }, "write `redis+cluster://`"),
        ] {
            let refused = enter(&roll, 1, &info);
            assert!(
                matches!(&refused, Err(failure) if failure.kind == FailureKind::Lasting && failure.reason.contains(cure)),
                "{refused:?}"
            );
        }
    }
}
