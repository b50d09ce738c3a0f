//! The environment of a scene: servers with a configuration, and the URL for the processes.

use std::sync::Arc;
use std::time::Duration;

use dlock_tests::{Proxy, RedisServer, WallClock};

/// The kinds of environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ground {
    /// One server without persistence.
    Plain,
    /// One server that writes to the disk before it replies.
    Durable,
    /// One server that writes to the disk once a second.
    EverySecond,
    /// One server whose wall clock can be stepped.
    Clock,
    /// Three independent servers.
    Quorum,
}

impl Ground {
    /// All environments for rows that need one server.
    pub(crate) const SINGLE: &[Self] = &[Self::Plain, Self::Durable, Self::EverySecond, Self::Clock];
    /// All environments.
    pub(crate) const ALL: &[Self] =
        &[Self::Plain, Self::Durable, Self::EverySecond, Self::Clock, Self::Quorum];

    /// Starts the servers.
    pub(crate) fn start(self, clock: Option<&Arc<WallClock>>) -> Vec<RedisServer> {
        let build = || {
            let builder = RedisServer::builder().line(&format!("user {USER} on >{PASSWORD} ~* &* +@all"));
            match self {
                Self::Plain | Self::Quorum => builder,
                Self::Durable => builder.line("appendonly yes").line("appendfsync always"),
                Self::EverySecond => builder.line("appendonly yes").line("appendfsync everysec"),
                Self::Clock => builder.wall_clock(clock.expect("this ground has a clock")),
            }
        };
        (0..self.servers()).map(|_| build().start()).collect()
    }

    /// Returns the number of servers.
    pub(crate) fn servers(self) -> usize {
        if self == Self::Quorum { 3 } else { 1 }
    }

    /// Returns how long the servers must be up before their votes count.
    pub(crate) fn age(self) -> Duration {
        // Uptimes are in whole seconds, so one more second is needed.
        if self == Self::Quorum { LEASE + Duration::from_millis(1_700) } else { Duration::ZERO }
    }

    /// Returns the URL of the servers behind these proxies.
    pub(crate) fn url(self, ways: &[Proxy]) -> String {
        let scheme = if self == Self::Quorum { "redis+quorum" } else { "redis" };
        let hosts: Vec<_> = ways.iter().map(|way| format!("127.0.0.1:{}", way.port())).collect();
        // A quorum has no queue, and therefore no grants.
        let grant = if self == Self::Quorum {
            String::new()
        } else {
            format!("&grant_lease={}ms", LEASE.as_millis())
        };
        let lease = LEASE.as_millis();
        format!(
            "{scheme}://{USER}:{PASSWORD}@{}?lease={lease}ms{grant}&response_timeout=200ms&connect_timeout=200ms",
            hosts.join(",")
        )
    }
}

/// The lease of all locks.
pub(crate) const LEASE: Duration = Duration::from_millis(400);
/// The user for locks.
pub(crate) const USER: &str = "worker";
/// The password of the user, which no output may contain.
pub(crate) const PASSWORD: &str = "sesame-of-the-faults";
