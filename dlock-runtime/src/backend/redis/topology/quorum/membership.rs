//! The servers of a quorum as they describe themselves: identity and uptime.
//!
//! A server that restarts empty has forgotten the holders. Its acceptance of an acquire does not
//! count until it has been up for the longest known lease; every hold that it forgot has expired by
//! then. A server that is met for the first time may have just restarted, so the same applies.
//!
//! Its reported uptime matters only in that case. It is the difference of two times of the server's
//! wall clock, so a clock that is set after the start adds to it. If a known server has restarted,
//! this manager counts from when it meets the new instance.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;

use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::error_kind;
use crate::backend::redis::transport::redacted::Redacted;
use crate::clock::boot_time;
use crate::config::deployment::Deployment;
use crate::protocol::command::{Command, Failure, FailureKind};
use crate::protocol::deadline::{BootInstant, time_to_expire};
use crate::sync::lock;

/// The recorded state of all servers.
pub(in crate::backend::redis) struct Membership {
    entries: Mutex<MemberEntries>,
}

struct MemberEntries {
    /// By server index; `None` until the first connection.
    servers: Vec<Option<MemberEntry>>,
    /// The longest lease that this manager has requested, initially the default lease. Other
    /// managers may use the same leases.
    longest_lease: Duration,
    /// The period of the holds that were extended beyond `longest_lease`.
    extended: Option<ExtendedHold>,
}

/// A period in which holds of this manager outlast a lease.
#[derive(Clone, Copy, Debug)]
struct ExtendedHold {
    since: BootInstant,
    ends: BootInstant,
}

#[derive(Debug)]
struct MemberEntry {
    run_id: String,
    /// `false` if another server was at its address last, and was rejected.
    is_here: bool,
    shown: String,
    /// When it was first seen, and its least uptime at that time.
    met: BootInstant,
    up: Duration,
}

/// One server of a [`Membership`].
pub(in crate::backend::redis) struct MemberIndex {
    pub(super) membership: Arc<Membership>,
    pub(super) server: usize,
}

impl Membership {
    pub(super) fn new(servers: usize, lease: Duration) -> Self {
        let servers = (0..servers).map(|_| None).collect();
        Self { entries: Mutex::new(MemberEntries { servers, longest_lease: lease, extended: None }) }
    }

    /// Records the lease of an acquire, or the end of an extended hold, sent at `sent`.
    pub(super) fn record_lease(&self, command: Command, sent: BootInstant) {
        let mut entries = lock(&self.entries);
        match command {
            Command::Acquire { lease } => entries.longest_lease = lease.max(entries.longest_lease),
            Command::Renew { lease } | Command::SetTtl { ttl: lease } if lease > entries.longest_lease => {
                let now = ExtendedHold { since: sent, ends: sent.plus(lease) };
                let before = entries.extended.filter(|before| sent < before.ends).unwrap_or(now);
                let ends = now.ends.max(before.ends);
                entries.extended = Some(ExtendedHold { since: before.since, ends });
            }
            _ => {}
        }
    }

    /// Returns `true` if the server's acceptance of a request sent at `sent` counts.
    ///
    /// The server must have been up until the longest lease was over on any clock, and since before
    /// any hold that is currently extended: holds of this manager, so their end needs no margin.
    pub(super) fn counts(&self, server: usize, sent: BootInstant) -> bool {
        let entries = lock(&self.entries);
        let Some(Some(entry)) = entries.servers.get(server) else { return false };
        let knows =
            |extended: ExtendedHold| sent >= extended.ends || entry.met <= extended.since.plus(entry.up);
        entry.up.saturating_add(sent.since(entry.met)) >= time_to_expire(entries.longest_lease)
            && entries.extended.is_none_or(knows)
    }

    /// Records what a server reports about itself.
    fn enter(&self, server: usize, info: &ServerUptime<'_>, shown: &Redacted) -> Result<(), Failure> {
        let mut entries = lock(&self.entries);
        let reject =
            |problem: String| Failure::new(FailureKind::Lasting, format!("redis at {shown} {problem}"));
        if info.is_replica {
            let advice = shown.advice().replica_of(Deployment::Quorum);
            return Err(reject(format!("is a replica: {advice}")));
        }
        if info.is_in_cluster {
            let scheme = shown.advice().scheme_of(Deployment::Cluster);
            return Err(reject(format!("is part of a cluster: write `{scheme}`")));
        }
        // Another server is at this address now, so the one that was may be at another address: two
        // names may have swapped their servers.
        if let Some(Some(entry)) = entries.servers.get_mut(server)
            && entry.run_id != info.run_id
        {
            entry.is_here = false;
        }
        let same = |(other, entry): (usize, &Option<MemberEntry>)| {
            entry
                .as_ref()
                .filter(|entry| other != server && entry.is_here && entry.run_id == info.run_id)
                .map(|entry| entry.shown.clone())
        };
        if let Some(other) = entries.servers.iter().enumerate().find_map(same) {
            return Err(reject(format!("is the same server as {other}: name each server of a quorum once")));
        }
        let Some(entry) = entries.servers.get_mut(server) else { return Ok(()) };
        let up = match entry {
            Some(entry) if entry.run_id == info.run_id => {
                entry.is_here = true;
                return Ok(());
            }
            Some(_) => Duration::ZERO, // it may have restarted just now, whatever it reports
            None => info.up,
        };
        let (run_id, shown) = (info.run_id.to_owned(), shown.to_string());
        *entry = Some(MemberEntry { run_id, is_here: true, shown, met: boot_time(), up });
        Ok(())
    }
}

impl MemberIndex {
    /// Reads `INFO` from a server that has just accepted a connection, and records it.
    pub(in crate::backend::redis) async fn enter(
        &self,
        route: &ConnectTarget,
        connection: &mut Connection,
    ) -> Result<(), Failure> {
        connection.inbound().allow_descriptions(1);
        let reply = connection.send_packed_command(&redis::cmd("INFO")).await;
        connection.inbound().end_descriptions();
        let reply = reply.map_err(|error| route.connection_failure(error, connection.inbound()))?;
        let text = match &reply {
            Value::ServerError(error) => {
                let failure = route.failure(error.clone().into());
                let hint = if error_kind::lacks_permission(error) { "; allow it `+info`" } else { "" };
                return Err(Failure { reason: format!("{}{hint}", failure.reason).into(), ..failure });
            }
            Value::BulkString(text) => String::from_utf8_lossy(text),
            Value::VerbatimString { text, .. } => text.into(),
            _ => "".into(),
        };
        let info = ServerUptime::read(&text).ok_or_else(|| {
            let text = format!("redis at {} does not report its uptime", route.shown);
            Failure::new(FailureKind::Passing, text)
        })?;
        self.membership.enter(self.server, &info, &route.shown)
    }
}

/// The relevant fields of `INFO`.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::backend::redis) struct ServerUptime<'a> {
    /// Changes with each start of the server.
    run_id: &'a str,
    /// The minimum uptime.
    up: Duration,
    is_replica: bool,
    is_in_cluster: bool,
}

impl<'a> ServerUptime<'a> {
    /// Returns `None` if the server reports no run id or no uptime: then it has no vote.
    pub(in crate::backend::redis) fn read(text: &'a str) -> Option<Self> {
        let field = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let seconds: i64 = field("uptime_in_seconds")?.parse().ok()?;
        // Negative if the server's clock was set back after its start.
        let up = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        Some(Self {
            run_id: field("run_id").filter(|id| !id.is_empty())?,
            up: up.saturating_sub(WHOLE_SECONDS),
            is_replica: field("role") == Some("slave"),
            is_in_cluster: field("cluster_enabled") == Some("1"),
        })
    }
}

/// Redis computes the uptime from two times in whole seconds, so it may be up to one second too
/// long.
const WHOLE_SECONDS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::tests::resp::OK;
    use crate::backend::redis::tests::scripted_server::{ScriptedServer, patient};

    const SECOND: Duration = Duration::from_secs(1);

    fn info(run_id: &str, up: u64) -> ServerUptime<'_> {
        ServerUptime { run_id, up: Duration::from_secs(up), is_replica: false, is_in_cluster: false }
    }

    fn enter(membership: &Membership, server: usize, info: &ServerUptime<'_>) -> Result<(), Failure> {
        membership.enter(server, info, &Redacted::new(&format!("h{server}:6379")))
    }

    #[test]
    fn info_is_parsed() {
        let text = "# Server\r\nrun_id:abc\r\nuptime_in_seconds:12\r\n# Replication\r\nrole:slave\r\n# Cluster\r\ncluster_enabled:1\r\n";

        assert_eq!(
            ServerUptime::read(text),
            Some(ServerUptime { is_replica: true, is_in_cluster: true, ..info("abc", 11) })
        );
        assert_eq!(ServerUptime::read("run_id:abc"), None);
    }

    #[test]
    fn uptime_is_rounded_down_by_one_second_and_never_negative() {
        for (reported, up) in [("2", 1), ("1", 0), ("0", 0), ("-5", 0)] {
            let text = format!("run_id:abc\r\nuptime_in_seconds:{reported}\r\n");

            assert_eq!(ServerUptime::read(&text), Some(info("abc", up)), "{reported}");
        }
    }

    #[test]
    fn a_server_counts_after_the_longest_lease() {
        let membership = Membership::new(3, 30 * SECOND);
        assert!(
            enter(&membership, 0, &info("a", 10)).is_ok() && enter(&membership, 1, &info("b", 31)).is_ok()
        );
        let now = boot_time();

        assert_eq!([0, 1, 2].map(|server| membership.counts(server, now)), [false, true, false]);
        assert!(membership.counts(0, now.plus(21 * SECOND)));

        membership.record_lease(Command::Acquire { lease: 60 * SECOND }, now);
        assert!(!membership.counts(1, now) && !membership.counts(0, now.plus(21 * SECOND)));
    }

    #[test]
    fn a_server_restarted_during_an_extended_hold_does_not_count() {
        for longer in [Command::Renew { lease: 60 * SECOND }, Command::SetTtl { ttl: 60 * SECOND }] {
            let membership = Membership::new(3, SECOND);
            let now = boot_time();
            membership.record_lease(longer, now);

            assert!(enter(&membership, 0, &info("a", 0)).is_ok());

            assert!(!membership.counts(0, now.plus(50 * SECOND)), "{longer:?}");
            assert!(membership.counts(0, now.plus(61 * SECOND)), "{longer:?}");
        }
    }

    #[test]
    fn a_server_up_before_an_extended_hold_counts() {
        let membership = Membership::new(3, 30 * SECOND);
        assert!(enter(&membership, 0, &info("a", 31)).is_ok());
        let now = boot_time();

        membership.record_lease(Command::Renew { lease: 3_600 * SECOND }, now);

        assert!(membership.counts(0, now.plus(SECOND)));
    }

    #[test]
    fn uptime_restarts_with_the_server_but_not_with_a_connection() {
        let membership = Membership::new(3, 30 * SECOND);
        assert!(
            enter(&membership, 0, &info("a", 31)).is_ok() && enter(&membership, 0, &info("a", 0)).is_ok()
        );
        assert!(membership.counts(0, boot_time()));

        assert!(enter(&membership, 0, &info("b", 0)).is_ok());

        assert!(!membership.counts(0, boot_time()));
    }

    #[test]
    fn a_restarted_server_counts_a_lease_later_whatever_uptime_it_reports() {
        let membership = Membership::new(3, 30 * SECOND);
        assert!(enter(&membership, 0, &info("a", 3_600)).is_ok());
        assert!(membership.counts(0, boot_time()));

        // Its clock was an hour behind when it started, and was set since.
        assert!(enter(&membership, 0, &info("b", 3_599)).is_ok());

        let now = boot_time();
        assert!(!membership.counts(0, now.plus(29 * SECOND)) && membership.counts(0, now.plus(31 * SECOND)));
    }

    #[test]
    fn unsuitable_servers_are_rejected_with_a_remedy() {
        let membership = Membership::new(3, SECOND);
        assert!(enter(&membership, 0, &info("a", 0)).is_ok());

        for (info, remedy) in [
            (info("a", 0), "h1:6379 is the same server as h0:6379"),
            (ServerUptime { is_replica: true, ..info("b", 0) }, "name independent primaries"),
            (ServerUptime { is_in_cluster: true, ..info("b", 0) }, "write `redis+cluster://`"),
        ] {
            let result = enter(&membership, 1, &info);
            assert!(
                matches!(&result, Err(failure) if failure.kind == FailureKind::Lasting && failure.reason.contains(remedy)),
                "{result:?}"
            );
        }
    }

    #[test]
    fn names_that_have_swapped_their_servers_are_entered() {
        let membership = Membership::new(3, 30 * SECOND);
        for (server, run_id) in ["a", "b", "c"].into_iter().enumerate() {
            assert!(enter(&membership, server, &info(run_id, 60)).is_ok());
        }
        let enter = |server, run_id| enter(&membership, server, &info(run_id, 60)).is_ok();

        assert!(!enter(0, "b") && !enter(1, "c"), "their servers have another name, as far as is known");
        assert!(enter(2, "a") && enter(1, "c") && enter(0, "b"));

        assert!(!enter(2, "b"), "it is entered");
        let now = boot_time();
        assert!(!membership.counts(0, now) && membership.counts(0, now.plus(31 * SECOND)));
    }

    #[test]
    fn a_server_that_its_name_leads_to_again_counts() {
        let membership = Membership::new(3, 30 * SECOND);
        for (server, run_id) in ["a", "b", "c"].into_iter().enumerate() {
            assert!(enter(&membership, server, &info(run_id, 60)).is_ok());
        }
        assert!(enter(&membership, 0, &info("b", 60)).is_err(), "it has another name");

        assert!(enter(&membership, 0, &info("a", 60)).is_ok());

        assert!(membership.counts(0, boot_time()));
        assert!(enter(&membership, 1, &info("a", 60)).is_err(), "it is known by its name again");
    }

    #[test]
    fn a_hold_extended_again_began_with_the_first_extension() {
        for (again, counts) in [(50, false), (59, false), (60, true)] {
            let (membership, now) = (Membership::new(3, SECOND), boot_time());
            let extended = Command::Renew { lease: 60 * SECOND };
            membership.record_lease(extended, now);
            assert!(enter(&membership, 0, &info("a", 0)).is_ok());

            membership.record_lease(extended, now.plus(again * SECOND));

            assert_eq!(membership.counts(0, now.plus(100 * SECOND)), counts, "extended after {again} s");
        }
    }

    #[test]
    fn a_shorter_extension_does_not_end_a_longer_one() {
        let (membership, now) = (Membership::new(3, SECOND), boot_time());
        membership.record_lease(Command::Renew { lease: 60 * SECOND }, now);
        assert!(enter(&membership, 0, &info("a", 0)).is_ok());

        membership.record_lease(Command::SetTtl { ttl: 2 * SECOND }, now.plus(SECOND));

        assert!(!membership.counts(0, now.plus(50 * SECOND)) && membership.counts(0, now.plus(60 * SECOND)));
    }

    #[test]
    fn a_server_counts_from_the_end_of_the_longest_lease_on_any_clock() {
        let membership = Membership::new(3, 30 * SECOND);
        let before = boot_time();
        assert!(enter(&membership, 0, &info("a", 20)).is_ok());
        let after = boot_time();

        // The margin is 1 % of the lease and 2 ms.
        let [early, late] = [301, 302].map(|margin| 10 * SECOND + Duration::from_millis(margin));
        assert!(!membership.counts(0, before.plus(early)) && membership.counts(0, after.plus(late)));
    }

    /// Enters a server with this reply to `INFO` as the first of three.
    async fn described(reply: &'static str) -> (Arc<Membership>, Result<(), Failure>) {
        let server = ScriptedServer::start(move |command| match command {
            "INFO" => reply.to_owned(),
            _ => OK.to_owned(),
        });
        let membership = Arc::new(Membership::new(3, SECOND));
        let route = ConnectTarget::new(server.spec(), &patient());
        let mut connection = route.open(route.attempt()).await.expect("it accepts");
        let index = MemberIndex { membership: Arc::clone(&membership), server: 0 };
        let entered = index.enter(&route, &mut connection).await;
        (membership, entered)
    }

    #[tokio::test]
    async fn a_server_describes_itself() {
        for reply in [
            "$33\r\nrun_id:a\r\nuptime_in_seconds:100\r\n\r\n",
            "=37\r\ntxt:run_id:a\r\nuptime_in_seconds:100\r\n\r\n",
        ] {
            let (membership, entered) = described(reply).await;

            assert!(entered.is_ok(), "{reply}: {entered:?}");
            assert!(membership.counts(0, boot_time()) && !membership.counts(1, boot_time()));
        }
    }

    #[tokio::test]
    async fn a_server_that_does_not_describe_itself_is_not_entered() {
        for (reply, kind, text) in [
            ("+OK\r\n", FailureKind::Passing, "does not report its uptime"),
            ("$8\r\nrun_id:a\r\n", FailureKind::Passing, "does not report its uptime"),
            ("-NOPERM no\r\n", FailureKind::Lasting, "NOPERM no"),
            ("-NOPERM no\r\n", FailureKind::Lasting, "; allow it `+info`"),
            ("-ERR unknown command 'INFO'\r\n", FailureKind::Lasting, "unknown command 'INFO'"),
            ("-LOADING it\r\n", FailureKind::Passing, "LOADING it"),
        ] {
            let (membership, entered) = described(reply).await;

            let failure = entered.expect_err("it is not described");
            assert!(failure.kind == kind && failure.reason.contains(text), "{failure:?}");
            assert_eq!(failure.reason.contains("+info"), reply.contains("NOPERM"), "{failure:?}");
            assert!(!membership.counts(0, boot_time()));
        }
    }
}
