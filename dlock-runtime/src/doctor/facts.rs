//! What was read of the servers, as plain values.
//!
//! Not here: how it is asked for (`backend`), what it means (`findings`, `fleet`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What could be read, or why it could not: in words without secrets.
pub(crate) type Read<T> = Result<T, Arc<str>>;

/// All that was read.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The servers that keep locks, or might.
    pub(crate) servers: Vec<Server>,
    /// Those who say which of them is master.
    pub(crate) sentinels: Vec<Sentinel>,
    /// Those by which a cluster was found.
    pub(crate) seeds: Vec<Seed>,
    /// What is asked of them.
    pub(crate) terms: Terms,
}

/// What the manager that is going to use these servers is set to.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) namespace: String,
    /// The pattern of the channels that tell those who wait.
    pub(crate) channels: String,
    pub(crate) response_timeout: Duration,
    pub(crate) grant_lease: Duration,
    /// The lease of a call that names none.
    pub(crate) lease: Duration,
    pub(crate) poll_interval: Duration,
    /// How many replicas must confirm a lock.
    pub(crate) replica_acks: u8,
    pub(crate) topology: Topology,
}

/// How the servers belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// There is one.
    One,
    /// A master and its replicas, which sentinels watch.
    Sentinels,
    /// Masters that share the keys, and their replicas, which watch each other.
    Cluster,
    /// Masters that know nothing of each other, and vote.
    Quorum,
}

impl Topology {
    /// Returns whether a replica is promoted where a master is gone, and we go to it.
    pub(crate) const fn fails_over(self) -> bool {
        matches!(self, Self::Sentinels | Self::Cluster)
    }
}

/// A server, and what it is to us.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its address.
    pub(crate) address: String,
    pub(crate) part: Part,
    /// What it answered, or why we could not connect.
    pub(crate) answers: Read<Answers>,
}

/// What a server is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It is given the commands for locks.
    Master,
    /// It may become the master.
    Replica,
}

/// What one server answered.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) info: Read<Info>,
    pub(crate) settings: Vec<(&'static str, Read<String>)>,
    pub(crate) clock: Read<Offset>,
    /// How long each ping took, of as many as there was time for.
    pub(crate) pings: Vec<Duration>,
    /// Whether we may listen on the channel of our grants.
    pub(crate) listening: Read<()>,
    /// The commands that locks need, tried as this user; none for a replica.
    pub(crate) probes: Vec<Probe>,
}

impl Answers {
    /// Returns a setting, as `CONFIG GET` shows it.
    pub(crate) fn setting(&self, name: &str) -> Read<&str> {
        let found = self.settings.iter().find(|(setting, _)| *setting == name);
        match found {
            Some((_, Ok(value))) => Ok(value),
            Some((_, Err(why))) => Err(Arc::clone(why)),
            None => Err("it was not asked for".into()),
        }
    }
}

/// What a server says of itself: the answer to `INFO`.
#[derive(Debug)]
pub(crate) struct Info(pub(crate) String);

impl Info {
    /// Returns the value of a field.
    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        let of = |line: &'_ str| line.strip_prefix(field).is_some_and(|rest| rest.starts_with(':'));
        let line = self.0.lines().find(|line| of(line))?;
        line.split_once(':').map(|(_, value)| value.trim_end())
    }

    /// Returns the value of a field that is a number.
    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }

    /// Returns the replicas that it has, by host and port, and whether each has all that was written.
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

/// How far a server's clock is from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset {
    /// Microseconds that it is ahead of ours.
    pub(crate) ahead: i64,
    /// Microseconds that this may be wrong by, in either direction: half of what the question took.
    pub(crate) within: i64,
}

impl Offset {
    /// Returns how far the two clocks are apart, at least.
    pub(crate) fn least(self) -> Duration {
        let micros = self.ahead.saturating_abs().saturating_sub(self.within).max(0);
        Duration::from_micros(micros.unsigned_abs())
    }

    /// Returns how far this server's clock is ahead of another's.
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

/// A command that was tried as this user, on a key of its own in the namespace.
#[derive(Debug)]
pub(crate) struct Probe {
    /// The command, as one types it.
    pub(crate) command: &'static str,
    /// What an ACL allows it by; `None` for a step of a lock's life, which is several commands.
    pub(crate) rule: Option<&'static str>,
    pub(crate) need: Need,
    pub(crate) answer: Result<(), Refusal>,
}

/// What a command is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Taking, renewing and releasing locks.
    Locks,
    /// Telling those who wait.
    Telling,
    /// Fencing tokens.
    Fencing,
    /// Being told at once of what is done to a lock.
    Tracking,
    /// Calling scripts by their names.
    ScriptNames,
}

/// Why a command was not done.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Whether it is a matter of what this user may do.
    pub(crate) is_forbidden: bool,
    /// The server's words.
    pub(crate) said: Arc<str>,
}

impl Refusal {
    /// Returns whether the server has no such command.
    pub(crate) fn is_unknown(&self) -> bool {
        self.said.contains("nknown command")
    }
}

/// What a server that was named says of its cluster.
#[derive(Debug)]
pub(crate) struct Seed {
    /// Its address.
    pub(crate) address: String,
    /// Whether every slot is served and the cluster is up, or why not.
    pub(crate) whole: Read<()>,
}

/// What one sentinel answered.
#[derive(Debug)]
pub(crate) struct Sentinel {
    /// Its address.
    pub(crate) address: String,
    /// The address of the master by what it says.
    pub(crate) master: Read<String>,
    /// How many sentinels it knows, itself too.
    pub(crate) known: Read<u64>,
    /// What it says of the quorum: fine, or what is wrong with it.
    pub(crate) quorum: Read<Result<(), String>>,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::doctor::report::{Finding, Severity};

    /// What a server told of itself, in words with a space between.
    pub(in crate::doctor) fn info(text: &str) -> Info {
        Info(text.replace(' ', "\r\n"))
    }

    /// Checks how grave a finding is, and what it says.
    #[track_caller]
    pub(in crate::doctor) fn assert_is(finding: &Finding, severity: Severity, said: &str) {
        assert_eq!(finding.severity(), severity, "{finding}");
        assert!(finding.to_string().contains(said), "{finding}");
    }

    /// The answers of a server that told nothing of itself, and refused nothing.
    pub(in crate::doctor) fn answers() -> Answers {
        Answers {
            info: Err("not asked".into()),
            settings: Vec::new(),
            clock: Ok(Offset { ahead: 0, within: 0 }),
            pings: Vec::new(),
            listening: Ok(()),
            probes: Vec::new(),
        }
    }

    /// The terms of a manager that is set to nothing.
    pub(in crate::doctor) fn terms() -> Terms {
        Terms {
            namespace: "dlock".to_owned(),
            channels: "dlock:grant:*".to_owned(),
            response_timeout: Duration::from_millis(500),
            grant_lease: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            poll_interval: Duration::from_millis(100),
            replica_acks: 0,
            topology: Topology::One,
        }
    }

    #[test]
    fn the_fields_of_an_answer_are_found_by_their_whole_names() {
        let info = Info("# Memory\r\nmaxmemory_human:1M\r\nmaxmemory:1048576\r\n".to_owned());

        assert_eq!(info.number("maxmemory"), Some(1_048_576));
        assert_eq!((info.get("maxmemory_human"), info.get("maxmem")), (Some("1M"), None));
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
