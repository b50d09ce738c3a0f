//! The replies of the servers, as plain values.
//!
//! See `findings` for what they mean.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::bounds::LONGEST_FOREIGN_TEXT;
pub(crate) use crate::config::deployment::Deployment;
use crate::printable::prefix;
use crate::protocol::failure::{Failure, FailureKind};

/// A value that was read, or the reason why not, without secrets.
pub(crate) type Read<T> = Result<T, Arc<str>>;

/// All that was read.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The servers that store locks, or may become primary.
    pub(crate) servers: Vec<Server>,
    /// How many other servers were found and not examined.
    pub(crate) omitted: usize,
    /// The sentinels that report the primary.
    pub(crate) sentinels: Vec<Sentinel>,
    /// The servers that the URL of a cluster names.
    pub(crate) seeds: Vec<Seed>,
    /// The settings that the servers must fit.
    pub(crate) terms: Terms,
}

/// The settings of the manager that is going to use these servers.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) namespace: String,
    /// The pattern of the channels that notify waiters.
    pub(crate) channels: String,
    pub(crate) response_timeout: Duration,
    pub(crate) grant_lease: Duration,
    /// The lease of a call that sets none.
    pub(crate) lease: Duration,
    /// The number of replicas that must confirm a lock.
    pub(crate) replica_acks: u8,
    /// How long they may take.
    pub(crate) ack_limit: Duration,
    pub(crate) topology: Deployment,
    /// Whether the URL is one with TLS.
    pub(crate) tls: bool,
}

impl Terms {
    /// Returns the scheme of another deployment of the same servers.
    pub(crate) fn scheme_of(&self, deployment: Deployment) -> &'static str {
        deployment.scheme(self.tls)
    }
}

/// A server and its role.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its address.
    pub(crate) address: String,
    pub(crate) part: Part,
    /// Its replies, or why the connection failed.
    pub(crate) replies: Result<ServerReplies, Unreached>,
}

/// Why a server could not be examined, without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreached {
    pub(crate) why: Arc<str>,
    /// Whether a further attempt fails as well, such as with a wrong password. Then `why` says what
    /// to change.
    pub(crate) is_lasting: bool,
}

impl Unreached {
    pub(crate) fn passing(why: impl Into<Arc<str>>) -> Self {
        Self { why: why.into(), is_lasting: false }
    }
}

impl From<Failure> for Unreached {
    fn from(failure: Failure) -> Self {
        Self { is_lasting: failure.kind == FailureKind::Lasting, why: failure.reason }
    }
}

/// The role of a server for the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It receives the commands for locks.
    Master,
    /// It may become the primary.
    Replica,
}

/// The replies of one server.
#[derive(Debug)]
pub(crate) struct ServerReplies {
    pub(crate) info: Result<Info, Refusal>,
    pub(crate) settings: Vec<(&'static str, Read<String>)>,
    pub(crate) clock: Read<Offset>,
    /// The time of each ping, as many as there was time for.
    pub(crate) pings: Vec<Duration>,
    /// How many replicas acknowledged a write in time, or why that is unknown. `None` if no replica
    /// must, or if the commands for it fail, which `probes` shows.
    pub(crate) acks: Option<Read<u64>>,
    /// The commands that locks need, tried as this user; empty for a replica.
    pub(crate) probes: Vec<Probe>,
    /// The commands of records; empty if this build keeps none, or the servers cannot.
    pub(crate) record_probes: Vec<Probe<RecordNeed>>,
}

impl ServerReplies {
    /// Returns a setting, as `CONFIG GET` reports it.
    pub(crate) fn setting(&self, name: &str) -> Read<&str> {
        let found = self.settings.iter().find(|(setting, _)| *setting == name);
        match found {
            Some((_, Ok(value))) => Ok(value),
            Some((_, Err(why))) => Err(Arc::clone(why)),
            None => Err("it was not requested".into()),
        }
    }
}

/// The reply to `INFO`.
#[derive(Debug)]
pub(crate) struct Info(pub(crate) String);

impl Info {
    /// Returns the value of a field, up to a bound.
    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        let of = |line: &'_ str| line.strip_prefix(field).is_some_and(|rest| rest.starts_with(':'));
        let line = self.0.lines().find(|line| of(line))?;
        line.split_once(':').map(|(_, value)| prefix(value.trim_end(), LONGEST_FOREIGN_TEXT))
    }

    /// Returns the value of a field that is a number.
    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }

    /// Returns the replicas as host, port, and whether each is online.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = (&str, u16, bool)> {
        let lines = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix("slave")?;
            let (number, fields) = rest.split_once(':')?;
            number.parse::<u32>().ok().map(|_| fields.trim_end())
        });
        lines.filter_map(|fields| {
            let field =
                |name: &str| fields.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            Some((field("ip")?, field("port")?.parse().ok()?, field("state") == Some("online")))
        })
    }
}

/// The difference between a server's clock and this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset {
    /// How far it is ahead of this machine's clock, in microseconds.
    pub(crate) ahead: i64,
    /// The error bound in either direction, in microseconds: half of the round trip time.
    pub(crate) within: i64,
}

impl Offset {
    /// Returns the minimum difference of the two clocks.
    pub(crate) fn least(self) -> Duration {
        let micros = self.ahead.saturating_abs().saturating_sub(self.within).max(0);
        Duration::from_micros(micros.unsigned_abs())
    }

    /// Returns how far this server's clock is ahead of another server's.
    pub(crate) fn from(self, other: Self) -> Self {
        Self {
            ahead: self.ahead.saturating_sub(other.ahead),
            within: self.within.saturating_add(other.within),
        }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.ahead < 0 { "behind" } else { "ahead of" };
        let by = Duration::from_micros(self.ahead.unsigned_abs());
        write!(f, "{:.1} ms {side}", by.as_secs_f64() * 1000.0)
    }
}

/// A command that was tried as this user, on a separate key in the namespace.
#[derive(Debug)]
pub(crate) struct Probe<N = Need> {
    /// The command, as typed in a client.
    pub(crate) command: &'static str,
    /// The ACL rule that allows it; `None` for a step of several commands.
    pub(crate) rule: Option<&'static str>,
    pub(crate) need: N,
    pub(crate) reply: Result<(), Refusal>,
}

/// The purpose of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Acquiring, renewing, and releasing locks.
    Locks,
    /// Notifying waiters.
    Telling,
    /// Ending subscriptions to the channels of unused locks.
    Unsubscribing,
    /// Fencing tokens.
    Fencing,
    /// Receiving invalidations of locks.
    Tracking,
    /// Calling scripts by hash.
    ScriptNames,
    /// Naming connections by the owner of the manager.
    Owner,
}

/// The records that need a command, which no lock needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordNeed {
    /// Those of idempotent calls and of scheduled jobs.
    CallsAndJobs,
    /// Those of idempotent calls.
    Calls,
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) cause: RefusalCause,
    /// The server's error, or why it did not reply.
    pub(crate) said: Arc<str>,
}

/// The cause of a failed command, which determines the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCause {
    /// This user lacks a permission.
    NotPermitted,
    /// The server does not have the command.
    NoCommand,
    /// The server, or a proxy before it, closes the connection on the command.
    Closed,
    /// The server is a replica.
    ReadOnly,
    /// Another node of a cluster has the key.
    OtherNode,
    /// The time for the examination was over.
    NoTime,
    /// Another error, or no reply.
    Other,
}

impl Refusal {
    /// Creates the refusal of a server that did not reply with an error.
    pub(crate) fn other(said: impl Into<Arc<str>>) -> Self {
        Self { cause: RefusalCause::Other, said: said.into() }
    }

    /// Returns `true` if the command, or a permission for it, is missing: it fails in the same way
    /// in any state of the server, and other commands may work.
    pub(crate) fn is_lasting(&self) -> bool {
        self.cause == RefusalCause::NotPermitted || self.is_unknown()
    }

    /// Returns `true` if the server does not have the command.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.cause, RefusalCause::NoCommand | RefusalCause::Closed)
    }
}

impl From<Refusal> for Arc<str> {
    fn from(refusal: Refusal) -> Self {
        refusal.said
    }
}

/// The report of a server of the URL about its cluster.
#[derive(Debug)]
pub(crate) struct Seed {
    /// Its address.
    pub(crate) address: String,
    /// Whether the cluster is up and serves every slot, or why not.
    pub(crate) whole: Read<()>,
}

/// The replies of one sentinel.
#[derive(Debug)]
pub(crate) struct Sentinel {
    /// Its address.
    pub(crate) address: String,
    /// The primary's address that it reports, or why it reports none.
    pub(crate) master: Result<String, Unreached>,
    /// The number of sentinels that it knows, including itself.
    pub(crate) known: Read<u64>,
    /// Its report about the quorum: fine, or the problem.
    pub(crate) quorum: Read<Result<(), String>>,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::doctor::report::{Finding, Severity};

    /// Returns the `INFO` of a server. Spaces separate the lines.
    pub(in crate::doctor) fn info(text: &str) -> Info {
        Info(text.replace(' ', "\r\n"))
    }

    /// Asserts the severity of a finding, and that its text contains `said`.
    #[track_caller]
    pub(in crate::doctor) fn assert_is(finding: &Finding, severity: Severity, said: &str) {
        assert_eq!(finding.severity(), severity, "{finding}");
        assert!(finding.to_string().contains(said), "{finding}");
    }

    /// Returns the replies of a server without `INFO` that refused nothing.
    pub(in crate::doctor) fn replies() -> ServerReplies {
        ServerReplies {
            info: Err(Refusal::other("not asked")),
            settings: Vec::new(),
            clock: Ok(Offset { ahead: 0, within: 0 }),
            pings: Vec::new(),
            acks: None,
            probes: Vec::new(),
            record_probes: Vec::new(),
        }
    }

    /// Returns the default terms.
    pub(in crate::doctor) fn terms() -> Terms {
        Terms {
            namespace: "dlock".to_owned(),
            channels: "dlock:grant:*".to_owned(),
            response_timeout: Duration::from_millis(500),
            grant_lease: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            replica_acks: 0,
            ack_limit: Duration::from_millis(200),
            topology: Deployment::One,
            tls: false,
        }
    }

    #[test]
    fn the_fields_of_a_reply_are_found_by_their_whole_names() {
        let info = Info("# Memory\r\nmaxmemory_human:1M\r\nmaxmemory:1048576\r\n".to_owned());

        assert_eq!(info.number("maxmemory"), Some(1_048_576));
        assert_eq!((info.get("maxmemory_human"), info.get("maxmem")), (Some("1M"), None));
        let long = Info(format!("redis_version:{}\r\n", "7".repeat(2 * LONGEST_FOREIGN_TEXT)));
        assert_eq!(long.get("redis_version").map(str::len), Some(LONGEST_FOREIGN_TEXT));
    }

    #[test]
    fn replicas_are_read_with_their_addresses() {
        let text = "slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0\r\nslave1:ip=10.0.0.3,port=6380,state=wait_bgsave,offset=0,lag=0\r\nslave_repl_offset:7\r\n";

        let info = Info(text.to_owned());
        let seen: Vec<_> = info.replicas().collect();

        assert_eq!(seen, [("10.0.0.2", 6379, true), ("10.0.0.3", 6380, false)]);
    }

    #[test]
    fn clocks_are_apart_by_what_is_sure() {
        let (ours, theirs) = (Offset { ahead: 300, within: 100 }, Offset { ahead: -700, within: 50 });

        let between = ours.from(theirs);

        assert_eq!(between, Offset { ahead: 1000, within: 150 });
        assert_eq!(between.least(), Duration::from_micros(850));
        assert_eq!(Offset { ahead: 50, within: 100 }.least(), Duration::ZERO);
    }
}
