//! Independent servers for a quorum. Any of them can be killed, frozen, or restarted without data.
//!
//! The vote of a server counts once it has been up for a lease and its margin, plus one second,
//! because a server reports its uptime in whole seconds. Here, a lease and its margin are just
//! below one second, and [`start`](QuorumFleet::start) returns when every vote counts.

use std::time::Duration;

use dlock_runtime::LockManager;

use crate::acl;
use crate::clock::until;
use crate::resp::Reply;
use crate::server::{RedisServer, RedisServerBuilder};
use crate::world::name;

/// Servers on free ports of 127.0.0.1. They are killed on drop.
#[derive(Debug)]
pub struct QuorumFleet {
    servers: Vec<RedisServer>,
}

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// SIGKILL.
    Killed,
    /// SIGSTOP.
    Frozen,
    /// SIGKILL and an immediate restart without data.
    Restarted,
}

impl QuorumFleet {
    /// Starts `count` servers, and returns when the vote of each counts.
    pub async fn start(count: usize) -> Self {
        let fleet = Self::start_young(count);
        Self::until_old_enough().await;
        fleet
    }

    /// Waits until the votes of the servers that run now count.
    pub async fn until_old_enough() {
        // Uptimes are in whole seconds, so one more second is needed. No event reports that.
        tokio::time::sleep(LEASE + Duration::from_millis(1_200)).await;
    }

    /// Starts `count` servers whose votes do not count yet.
    #[must_use]
    pub fn start_young(count: usize) -> Self {
        Self { servers: (0..count).map(|_| server().start()).collect() }
    }

    /// Returns the URL of all servers, with the fleet's lease and `options`, such as
    /// `&poll_interval=5s`.
    #[must_use]
    pub fn url_with(&self, options: &str) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|at| format!("127.0.0.1:{}", at.port())).collect();
        let options = &format!("?lease={}ms{options}", LEASE.as_millis());
        format!("redis+quorum://{}{}{options}", self.servers[0].access(), hosts.join(","))
    }

    /// Connects a new manager, like another process.
    ///
    /// # Panics
    ///
    /// Panics if the manager cannot connect.
    pub async fn manager(&self, options: &str) -> LockManager {
        LockManager::connect(&self.url_with(options)).await.expect("the quorum takes managers")
    }

    /// Returns the servers.
    pub fn servers(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// Returns every non-empty set of servers that a quorum of `count` can spare.
    #[must_use]
    pub fn minorities(count: usize) -> Vec<Vec<usize>> {
        let most = (count - 1) / 2;
        let chosen = |bits: u32| (0..count).filter(|at| bits & (1 << at) != 0).collect::<Vec<_>>();
        (1..1_u32 << count).map(chosen).filter(|chosen| chosen.len() <= most).collect()
    }

    /// Applies a fault to some servers.
    pub fn befall(&mut self, chosen: &[usize], fate: Fate) {
        for at in chosen {
            match fate {
                Fate::Killed => self.servers[*at].kill(),
                Fate::Frozen => self.servers[*at].pause(),
                Fate::Restarted => self.servers[*at].restart(),
            }
        }
    }

    /// Ends the fault of some servers.
    pub fn heal(&mut self, chosen: &[usize], fate: Fate) {
        for at in chosen {
            match fate {
                Fate::Killed => self.servers[*at].restart(),
                Fate::Frozen => self.servers[*at].resume(),
                Fate::Restarted => {}
            }
        }
    }

    /// Waits until a process waits for the lock `key` at every server.
    ///
    /// # Panics
    ///
    /// Panics if a server does not reply.
    pub async fn until_waiting(&self, key: &str) {
        let is_waiting = |server: &RedisServer| subscribers(server, key) > 0;
        until("a waiter at every server", async || self.servers.iter().all(is_waiting)).await;
    }

    /// Returns the number of servers that have the key of the lock `key`.
    ///
    /// # Panics
    ///
    /// Panics if a server does not reply.
    #[must_use]
    pub fn holding(&self, key: &str) -> usize {
        let has = |server: &&RedisServer| server.call(&["EXISTS", &name(key)]) == Reply::Integer(1);
        self.servers.iter().filter(has).count()
    }
}

/// Returns how many processes a server notifies of a release of the lock `key`.
///
/// # Panics
///
/// Panics if the server does not reply.
#[must_use]
pub fn subscribers(server: &RedisServer, key: &str) -> i64 {
    match server.call(&["PUBSUB", "NUMSUB", &format!("dlock:free:{}", name(key))]) {
        Reply::List(pair) => pair.last().and_then(Reply::integer).expect("a channel and its count"),
        other => panic!("{other:?}"),
    }
}

/// The lease of the fleet's managers.
pub const LEASE: Duration = Duration::from_millis(980);

fn server() -> RedisServerBuilder {
    RedisServer::builder().also_allow(acl::IN_A_QUORUM)
}
