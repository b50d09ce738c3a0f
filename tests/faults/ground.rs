//! What a scene plays on: servers with one kind of settings, and the URL that processes are given.
//!
//! Not here: what befalls them.

use std::sync::Arc;
use std::time::Duration;

use dlock_tests::{Proxy, RedisServer, WallClock};

/// The kinds of ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ground {
    /// One server that keeps nothing on a disk.
    Plain,
    /// One server that has every write on the disk before it answers.
    Durable,
    /// One server that brings its writes to the disk once a second.
    EverySecond,
    /// One server whose wall clock can be stepped.
    Clock,
    /// Three servers that know nothing of each other.
    Quorum,
}

impl Ground {
    /// All grounds on which rows of one server play.
    pub(crate) const SINGLE: &[Self] = &[Self::Plain, Self::Durable, Self::EverySecond, Self::Clock];
    /// All grounds.
    pub(crate) const ALL: &[Self] =
        &[Self::Plain, Self::Durable, Self::EverySecond, Self::Clock, Self::Quorum];

    /// Starts its servers.
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

    /// Returns how many servers it has.
    pub(crate) fn servers(self) -> usize {
        if self == Self::Quorum { 3 } else { 1 }
    }

    /// Returns for how long its servers must be up before their word counts.
    pub(crate) fn age(self) -> Duration {
        // A server tells its age in whole seconds, of which one is not believed.
        if self == Self::Quorum { LEASE + Duration::from_millis(1_700) } else { Duration::ZERO }
    }

    /// Returns the URL of servers behind these proxies; `io` is `thread` or `runtime`.
    pub(crate) fn url(self, ways: &[Proxy], io: &str) -> String {
        let scheme = if self == Self::Quorum { "redis+quorum" } else { "redis" };
        let hosts: Vec<_> = ways.iter().map(|way| format!("127.0.0.1:{}", way.port())).collect();
        // A quorum has no queue, and so nothing is granted.
        let grant = if self == Self::Quorum {
            String::new()
        } else {
            format!("&grant_lease={}ms", LEASE.as_millis())
        };
        let lease = LEASE.as_millis();
        format!(
            "{scheme}://{USER}:{PASSWORD}@{}?lease={lease}ms{grant}&response_timeout=200ms&connect_timeout=200ms&io={io}",
            hosts.join(",")
        )
    }
}

/// The lease of all locks.
pub(crate) const LEASE: Duration = Duration::from_millis(400);
/// The user that locks are taken as.
pub(crate) const USER: &str = "worker";
/// His password, which nobody may say.
pub(crate) const PASSWORD: &str = "sesame-of-the-faults";
