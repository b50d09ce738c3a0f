//! Servers that know nothing of each other, of which a majority decides: any few of them can be killed, frozen, or started again empty.
//!
//! A server's word counts once it has been up for a lease, and a second longer since it says whole seconds. Leases are a second here,
//! and [`start`](QuorumFleet::start) returns when all have been up for longer than both.
//!
//! Not here: what clients do meanwhile.

use std::time::Duration;

use dlock_runtime::LockManager;

use crate::acl;
use crate::io;
use crate::resp::Reply;
use crate::server::{RedisServer, RedisServerBuilder};
use crate::world::name;

/// Servers on free ports of 127.0.0.1; all killed when dropped.
#[derive(Debug)]
pub struct QuorumFleet {
    servers: Vec<RedisServer>,
}

/// What becomes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// SIGKILL.
    Killed,
    /// SIGSTOP.
    Frozen,
    /// SIGKILL, and up again at once with nothing in it.
    Restarted,
}

impl QuorumFleet {
    /// Starts `count` servers, and returns when the word of each counts.
    pub async fn start(count: usize) -> Self {
        let fleet = Self::start_young(count);
        Self::until_old_enough().await;
        fleet
    }

    /// Returns when the word of servers counts that are up now.
    pub async fn until_old_enough() {
        // A server tells its age in whole seconds, of which one is not believed: no event says that it is old enough.
        tokio::time::sleep(LEASE + Duration::from_millis(1_200)).await;
    }

    /// Starts `count` servers, whose word does not count yet.
    #[must_use]
    pub fn start_young(count: usize) -> Self {
        Self { servers: (0..count).map(|_| server().start()).collect() }
    }

    /// Returns the URL of all servers, with the fleet's lease and with `options`, such as `&poll_interval=5s`.
    #[must_use]
    pub fn url_with(&self, options: &str) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|at| format!("127.0.0.1:{}", at.port())).collect();
        let options = io::asked_for(&format!("?lease={}s{options}", LEASE.as_secs()));
        format!("redis+quorum://{}{}{options}", self.servers[0].access(), hosts.join(","))
    }

    /// Connects a manager of its own, as another process would.
    ///
    /// # Panics
    ///
    /// Panics if it cannot connect.
    pub async fn manager(&self, options: &str) -> LockManager {
        LockManager::connect(&self.url_with(options)).await.expect("the quorum takes managers")
    }

    /// Returns the servers.
    pub fn servers(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// Returns every choice of servers that a quorum of `count` can spare, the empty one left out.
    #[must_use]
    pub fn minorities(count: usize) -> Vec<Vec<usize>> {
        let most = (count - 1) / 2;
        let chosen = |bits: u32| (0..count).filter(|at| bits & (1 << at) != 0).collect::<Vec<_>>();
        (1..1_u32 << count).map(chosen).filter(|chosen| chosen.len() <= most).collect()
    }

    /// Has some servers meet their fate.
    pub fn befall(&mut self, chosen: &[usize], fate: Fate) {
        for at in chosen {
            match fate {
                Fate::Killed => self.servers[*at].kill(),
                Fate::Frozen => self.servers[*at].pause(),
                Fate::Restarted => self.servers[*at].restart(),
            }
        }
    }

    /// Undoes what befell them.
    pub fn heal(&mut self, chosen: &[usize], fate: Fate) {
        for at in chosen {
            match fate {
                Fate::Killed => self.servers[*at].restart(),
                Fate::Frozen => self.servers[*at].resume(),
                Fate::Restarted => {}
            }
        }
    }

    /// Returns how many servers have something under the lock `key`.
    ///
    /// # Panics
    ///
    /// Panics if one does not answer.
    #[must_use]
    pub fn holding(&self, key: &str) -> usize {
        let has = |server: &&RedisServer| server.call(&["EXISTS", &name(key)]) == Reply::Integer(1);
        self.servers.iter().filter(has).count()
    }
}

/// The lease of the fleet's managers.
pub const LEASE: Duration = Duration::from_secs(1);

fn server() -> RedisServerBuilder {
    RedisServer::builder().also_allow(acl::IN_A_QUORUM)
}
