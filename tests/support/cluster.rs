//! A Redis Cluster of three primaries with one replica each, for failovers and slot migrations.
//!
//! ```text
//!  break_master(Kill | Pause | Order)  ->  switched()  ->  [judge]  ->  heal()
//!  begin_to_move(slot, to)  ->  finish_the_move(slot, to)
//! ```
//!
//! All methods block the thread, except the `async` ones.

use std::time::{Duration, Instant};

use crate::acl;
use crate::clock::{Moment, within};
use crate::resp::Reply;
use crate::sentinel::{End, Switch, role};
use crate::server::{RedisServer, RedisServerBuilder};
use crate::world::name;

/// Servers on free ports of 127.0.0.1. They are killed on drop.
#[derive(Debug)]
pub struct ClusterFleet {
    servers: Vec<RedisServer>,
    /// The ports of the primaries that this fleet knows, in the order of their slots.
    masters: Vec<u16>,
    /// The last broken primary and its expected successor.
    broken: Option<(u16, u16)>,
}

impl ClusterFleet {
    /// Starts all servers, and returns when every server knows all the others.
    ///
    /// # Panics
    ///
    /// Panics if the servers do not form a cluster.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(|server| server)
    }

    /// Starts servers with the additional settings of `set_up`.
    ///
    /// # Panics
    ///
    /// Panics if the servers do not form a cluster.
    #[must_use]
    pub fn start_with(set_up: impl Fn(RedisServerBuilder) -> RedisServerBuilder) -> Self {
        let server = || {
            let server = RedisServer::builder().of_a_cluster(NODE_TIMEOUT).line("repl-diskless-sync-delay 0");
            // A slot map omits replicas that have received nothing.
            let server = server.line("repl-ping-replica-period 1");
            let server = server.also_allow(acl::IN_A_CLUSTER).also_allow(acl::WITH_ACKS);
            set_up(server.line("cluster-replica-validity-factor 0")).start()
        };
        let servers: Vec<_> = (0..2 * MASTERS).map(|_| server()).collect();
        for (number, server) in servers.iter().enumerate() {
            ok(server, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        for server in &servers {
            for other in &servers {
                ok(server, &["CLUSTER", "MEET", "127.0.0.1", &other.known_port().to_string()]);
            }
        }
        let (masters, replicas) = servers.split_at(MASTERS);
        for (number, master) in masters.iter().enumerate() {
            let slots = (SLOTS * number / MASTERS)..(SLOTS * (number + 1) / MASTERS);
            let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
            let words: Vec<_> =
                ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(|slot| &**slot)).collect();
            ok(master, &words);
        }
        let ids: Vec<_> = masters.iter().map(id).collect();
        let appoint = |replicas: &[RedisServer]| {
            for (id, replica) in ids.iter().zip(replicas) {
                let nodes = replica.call(&["CLUSTER", "NODES"]);
                if !nodes.text().is_some_and(|nodes| nodes.contains("myself,slave")) {
                    // Rejected until the replica knows its primary.
                    replica.call(&["CLUSTER", "REPLICATE", id]);
                }
            }
        };
        appoint(replicas);
        let masters = masters.iter().map(RedisServer::port).collect();
        let mut fleet = Self { servers, masters, broken: None };
        // While the servers still meet, an appointed replica may become a primary again.
        let started = Instant::now();
        while !fleet.is_whole() && started.elapsed() < LIMIT {
            appoint(&fleet.servers[MASTERS..]);
            std::thread::sleep(POLL);
        }
        fleet.wait_until_whole();
        fleet
    }

    /// Returns a URL with one primary and one replica, followed by `suffix`, such as
    /// `?namespace=shop`.
    #[must_use]
    pub fn url_with(&self, suffix: &str) -> String {
        let hosts = [0, 2 * MASTERS - 1].map(|at| format!("127.0.0.1:{}", self.servers[at].port()));
        format!("redis+cluster://{}{}{}", self.servers[0].access(), hosts.join(","), suffix)
    }

    /// Returns the server on `port`.
    ///
    /// # Panics
    ///
    /// Panics if no server of this fleet uses `port`.
    #[must_use]
    pub fn server(&self, port: u16) -> &RedisServer {
        self.servers.iter().find(|server| server.port() == port).expect("the port is one of this fleet")
    }

    /// Returns all servers.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the ports of the primaries, in the order of their initial slots.
    #[must_use]
    pub fn masters(&self) -> &[u16] {
        &self.masters
    }

    /// Returns the slot of the lock `key`, as computed by a server.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[must_use]
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.server(self.masters[0]).call(&["CLUSTER", "KEYSLOT", &name(key)]).integer();
        slot.and_then(|slot| u16::try_from(slot).ok()).expect("a slot")
    }

    /// Returns one lock key with `prefix` for each of the three initial slot ranges.
    #[must_use]
    pub fn keys_on_each(&self, prefix: &str) -> Vec<String> {
        (0..MASTERS).map(|part| self.key_in(part, prefix)).collect()
    }

    /// Returns a lock key with `prefix` in the initial slot range number `part`.
    ///
    /// # Panics
    ///
    /// Panics if there is no such range.
    #[must_use]
    pub fn key_in(&self, part: usize, prefix: &str) -> String {
        let is_in = |key: &String| self.part(key) == part;
        (0..1_000).map(|number| format!("{prefix}:{number}")).find(is_in).expect("slots are spread")
    }

    /// Returns the number of the initial slot range that contains a lock key.
    #[must_use]
    pub fn part(&self, key: &str) -> usize {
        let slot = usize::from(self.slot(key));
        (0..MASTERS).rfind(|part| SLOTS * part / MASTERS <= slot).unwrap_or_default()
    }

    /// Breaks the current primary of the slot range `part`, and returns when that happened.
    ///
    /// # Panics
    ///
    /// Panics if the fleet is not whole, or if a server rejects the ordered failover.
    pub fn break_master(&mut self, part: usize, end: End) -> Moment {
        self.wait_until_whole();
        let old = self.masters[part];
        let successor = self.replica_of(old);
        self.broken = Some((old, successor));
        let at = Moment::now();
        match end {
            End::Kill => self.server_mut(old).kill(),
            End::Pause => self.server(old).pause(),
            End::Order => ok(self.server(successor), &["CLUSTER", "FAILOVER"]),
        }
        at
    }

    /// Kills the primary of `part` when `granted` completes, before anything is replicated.
    ///
    /// Returns the output of `granted`.
    ///
    /// # Panics
    ///
    /// Panics if the fleet is not whole.
    pub async fn kill_before_replication<R>(&mut self, part: usize, granted: impl Future<Output = R>) -> R {
        self.wait_until_whole();
        let old = self.masters[part];
        let successor = self.replica_of(old);
        self.broken = Some((old, successor));
        self.server(successor).pause();
        // Data already in a socket would be read later.
        self.server(old).call(&["CLIENT", "KILL", "TYPE", "replica"]);
        let granted = granted.await;
        self.server_mut(old).kill();
        self.server(successor).resume();
        granted
    }

    /// Waits until the replica of the broken primary is a primary.
    ///
    /// # Panics
    ///
    /// Panics if that takes more than 20 s.
    pub async fn switched(&mut self) -> Switch {
        let (from, to) = self.broken.take().expect("a primary was broken");
        let elected = async {
            while role(self.server(to)) != "master" {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        };
        within(Duration::from_secs(20), "the failover", elected).await;
        let at = Moment::now();
        self.masters.iter_mut().filter(|port| **port == from).for_each(|port| *port = to);
        Switch { at, from, to }
    }

    /// Resumes or restarts a server, and returns when the fleet is whole again.
    ///
    /// # Panics
    ///
    /// Panics if the fleet does not become whole within 30 s.
    pub fn heal(&mut self, port: u16) {
        let server = self.server_mut(port);
        server.try_resume();
        if server.try_call(&["PING"], CALL_LIMIT).is_err() {
            server.restart();
        }
        self.wait_until_whole();
    }

    /// Starts the migration of a slot to the primary on the port `to`, where new keys are created
    /// from now on.
    ///
    /// # Panics
    ///
    /// Panics if a server rejects a command.
    pub fn begin_to_move(&self, slot: u16, to: u16) {
        let (source, target) = (self.server(self.owner(slot)), self.server(to));
        let slot = slot.to_string();
        ok(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(source)]);
        ok(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(target)]);
    }

    /// Moves the keys of a slot to the primary on the port `to`, and assigns the slot to it.
    ///
    /// # Panics
    ///
    /// Panics if a server rejects a step.
    pub fn finish_the_move(&self, slot: u16, to: u16) {
        let from = self.owner(slot);
        let (slot, port, source) = (slot.to_string(), to.to_string(), self.server(from));
        loop {
            let keys = source.call(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).texts();
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "2000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let moved = source.call(&words);
            assert!(matches!(moved.text(), Some("OK" | "NOKEY")), "MIGRATE: {moved:?}");
        }
        let others = self.masters.iter().filter(|port| ![from, to].contains(port));
        for port in [to, from].iter().chain(others) {
            ok(self.server(*port), &["CLUSTER", "SETSLOT", &slot, "NODE", &id(self.server(to))]);
        }
    }

    /// Returns the port of the primary of a slot, according to the first primary.
    ///
    /// # Panics
    ///
    /// Panics if no primary serves the slot.
    #[must_use]
    pub fn owner(&self, slot: u16) -> u16 {
        let ranges = ranges(self.server(self.masters[0]));
        let range = ranges.iter().find(|range| (range.first..=range.last).contains(&slot.into()));
        range.expect("the slot is served").ports[0]
    }

    fn replica_of(&self, master: u16) -> u16 {
        let ranges = ranges(self.server(master));
        let range = ranges.iter().find(|range| range.ports[0] == master && range.ports.len() > 1);
        range.expect("each primary has a replica").ports[1]
    }

    fn server_mut(&mut self, port: u16) -> &mut RedisServer {
        self.servers.iter_mut().find(|server| server.port() == port).expect("the port is one of this fleet")
    }

    /// Waits until all servers report the same primaries, and each replica is connected to its
    /// primary.
    fn wait_until_whole(&mut self) {
        let started = Instant::now();
        while !self.is_whole() {
            let nodes = self.servers.iter().map(|server| server.call(&["CLUSTER", "NODES"]));
            let late = started.elapsed() > LIMIT;
            assert!(!late, "not whole within {LIMIT:?}: {:#?}", nodes.collect::<Vec<_>>());
            std::thread::sleep(POLL);
        }
        // The primaries may have changed without an order.
        let ranges = ranges(&self.servers[0]);
        for port in &mut self.masters {
            let range = ranges.iter().find(|range| range.ports.contains(port));
            *port = range.expect("each part is served").ports[0];
        }
    }

    fn is_whole(&self) -> bool {
        let views: Vec<_> = self.servers.iter().map(ranges).collect();
        let is_content = |server: &RedisServer| {
            let (info, nodes) = (server.call(&["CLUSTER", "INFO"]), server.call(&["CLUSTER", "NODES"]));
            info.text().is_some_and(|text| text.contains("cluster_state:ok"))
                && nodes.text().is_some_and(|text| !text.contains("fail") && !text.contains("handshake"))
        };
        views.iter().all(|ranges| ranges.iter().all(|range| range.ports.len() == 2))
            && views.windows(2).all(|pair| pair[0] == pair[1])
            && self.servers.iter().all(is_content)
            && self.servers.iter().filter(|server| is_following(server)).count() == MASTERS
    }
}

/// Consecutive slots, with the port of their primary and those of its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    first: i64,
    last: i64,
    ports: Vec<u16>,
}

fn ranges(server: &RedisServer) -> Vec<Range> {
    let Reply::List(entries) = server.call(&["CLUSTER", "SLOTS"]) else { panic!("no map") };
    let mut ranges: Vec<_> = entries
        .iter()
        .map(|entry| {
            let Reply::List(entry) = entry else { panic!("no entry of a map") };
            let ports = entry[2..].iter().map(|server| match server {
                Reply::List(words) => u16::try_from(words[1].integer().expect("a port")).expect("a port"),
                other => panic!("no server: {other:?}"),
            });
            let slot = |at: usize| entry[at].integer().expect("a slot");
            Range { first: slot(0), last: slot(1), ports: ports.collect() }
        })
        .collect();
    ranges.sort_by_key(|range| range.first);
    ranges
}

fn is_following(server: &RedisServer) -> bool {
    let words = server.call(&["ROLE"]).texts();
    words.first().is_some_and(|role| role == "slave") && words.iter().any(|word| word == "connected")
}

fn id(server: &RedisServer) -> String {
    server.call(&["CLUSTER", "MYID"]).text().expect("a name").to_owned()
}

fn ok(server: &RedisServer, words: &[&str]) {
    let reply = server.call(words);
    assert_eq!(reply, Reply::Status("OK".to_owned()), "{}", words[..words.len().min(4)].join(" "));
}

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
/// Short enough to wait for, and long enough that a busy server is not considered failed.
const NODE_TIMEOUT: Duration = Duration::from_millis(1_500);
const LIMIT: Duration = Duration::from_secs(30);
const CALL_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
