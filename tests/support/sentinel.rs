//! A primary, two replicas, and three sentinels that monitor them, for failovers.
//!
//! ```text
//!  break_master(Kill | Pause | Order)  ->  switched()  ->  [judge]  ->  heal()
//! ```
//!
//! On a busy machine, sentinels may consider a slow primary failed and start an unexpected
//! failover. [`switches`](SentinelFleet::switches) returns all failovers.
//!
//! All methods block the thread, except the `async` ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::mpsc;

use crate::acl;
use crate::clock::{Moment, within};
use crate::resp::Reply;
use crate::server::{RedisServer, RedisServerBuilder};
use crate::wall_clock::WallClock;

/// Servers and sentinels on free ports of 127.0.0.1. They are killed on drop.
#[derive(Debug)]
pub struct SentinelFleet {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    /// The port of the primary that this fleet knows.
    master: u16,
    telling: mpsc::UnboundedReceiver<Switch>,
    told: Vec<Switch>,
}

/// A failover, as announced by a sentinel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The time at which the first sentinel announced it.
    pub at: Moment,
    /// The port of the old primary.
    pub from: u16,
    /// The port of the new primary.
    pub to: u16,
}

/// The way in which a primary fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGKILL.
    Kill,
    /// SIGSTOP. [`heal`](SentinelFleet::heal) or [`resume`](SentinelFleet::resume) resumes it.
    Pause,
    /// `SENTINEL FAILOVER`. The old primary keeps running, and considers itself the primary for
    /// seconds.
    Order,
}

impl SentinelFleet {
    /// Starts all processes, and returns when every sentinel knows all the others.
    ///
    /// # Panics
    ///
    /// Panics if they do not find each other.
    pub async fn start() -> Self {
        Self::of(RedisServer::builder).await
    }

    /// Starts a fleet like [`start`](Self::start), with replicas that use another clock than their
    /// primary.
    ///
    /// # Panics
    ///
    /// Panics if they do not find each other.
    pub async fn start_with_replicas_by(clock: &Arc<WallClock>) -> Self {
        Self::of(|| RedisServer::builder().wall_clock(clock)).await
    }

    async fn of(replica: impl Fn() -> RedisServerBuilder) -> Self {
        let for_locks = |builder: RedisServerBuilder| {
            builder.line(NO_DELAY).also_allow(acl::BEHIND_SENTINELS).also_allow(acl::WITH_ACKS)
        };
        let master = for_locks(RedisServer::builder()).start();
        let of_master = format!("replicaof 127.0.0.1 {}", master.port());
        let replica = || for_locks(replica()).line(&of_master).start();
        let (port, servers) = (master.port(), vec![master, replica(), replica()]);
        wait_until("the replicas are there", || connected_replicas(&servers[0]) == 2);
        let sentinels: Vec<_> = (0..3).map(|_| start_sentinel(port)).collect();

        let (tell, telling) = mpsc::unbounded_channel();
        for sentinel in &sentinels {
            tokio::spawn(tell_switches(listen(sentinel).await, tell.clone()));
        }
        let mut fleet = Self { servers, sentinels, master: port, telling, told: Vec::new() };
        fleet.wait_until_whole();
        fleet
    }

    /// Returns the URL of the sentinels, followed by `suffix`, such as `?namespace=shop`.
    #[must_use]
    pub fn url_with(&self, suffix: &str) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|at| format!("127.0.0.1:{}", at.port())).collect();
        let access = self.master().access();
        format!("redis+sentinel://{access}{}/{MASTER}{}", hosts.join(","), suffix)
    }

    /// Returns the primary.
    #[must_use]
    pub fn master(&self) -> &RedisServer {
        self.server(self.master)
    }

    /// Returns the replicas.
    pub fn replicas(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter().filter(|server| server.port() != self.master)
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

    /// Returns the sentinels.
    pub fn sentinels(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// Breaks the current primary, and returns when that happened.
    ///
    /// # Panics
    ///
    /// Panics if the sentinels reject an ordered failover for 30 s.
    pub fn break_master(&mut self, end: End) -> Moment {
        self.wait_until_whole();
        let at = Moment::now();
        match end {
            End::Kill => self.server_mut(self.master).kill(),
            End::Pause => self.master().pause(),
            End::Order => wait_until("the start of a failover", || {
                self.sentinels[0].call(&["SENTINEL", "FAILOVER", MASTER]) == Reply::Status("OK".to_owned())
            }),
        }
        at
    }

    /// Kills the primary after `granted`, before anything is replicated: its replicas are frozen
    /// meanwhile.
    ///
    /// # Panics
    ///
    /// Panics if the fleet is not whole before that.
    pub async fn kill_before_replication<R>(&mut self, granted: impl Future<Output = R>) -> R {
        self.wait_until_whole();
        self.replicas().for_each(RedisServer::pause);
        // Data already in a socket would be read later.
        self.master().call(&["CLIENT", "KILL", "TYPE", "replica"]);
        let granted = granted.await;
        self.server_mut(self.master).kill();
        self.replicas().for_each(RedisServer::resume);
        granted
    }

    /// Waits until a sentinel announces a new primary.
    ///
    /// # Panics
    ///
    /// Panics if none does within a minute.
    pub async fn switched(&mut self) -> Switch {
        let told = async {
            loop {
                let switch = self.telling.recv().await.expect("a sentinel is connected");
                if self.is_news(switch) {
                    return switch;
                }
            }
        };
        within(SWITCH_LIMIT, "the failover", told).await
    }

    /// Returns every failover so far, in order of its first announcement.
    pub fn switches(&mut self) -> &[Switch] {
        while let Ok(switch) = self.telling.try_recv() {
            self.is_news(switch);
        }
        &self.told
    }

    /// Records a failover. Returns `false` if another sentinel has announced it already.
    fn is_news(&mut self, switch: Switch) -> bool {
        let is_news = switch.from == self.master;
        if is_news {
            self.master = switch.to;
            self.told.push(switch);
        }
        is_news
    }

    /// Resumes a frozen server, and returns when it replies.
    pub fn resume(&self, port: u16) {
        let server = self.server(port);
        server.resume();
        wait_until("the resumed server replies", || server.try_call(&["PING"], CALL_LIMIT).is_ok());
    }

    /// Restarts a killed server, and returns when the fleet is whole again.
    ///
    /// Makes every server that should not be a primary a replica.
    ///
    /// # Panics
    ///
    /// Panics if the fleet does not become whole within 30 s.
    pub fn heal(&mut self, port: u16) {
        let server = self.server_mut(port);
        if server.try_call(&["PING"], CALL_LIMIT).is_err() {
            server.restart();
        }
        self.wait_until_whole();
    }

    fn wait_until_whole(&mut self) {
        let started = Instant::now();
        loop {
            self.switches();
            let views = self.sentinels.iter().map(|at| at.call(&["SENTINEL", "MASTER", MASTER]).texts());
            let views: Vec<_> = views.collect();
            if views.iter().all(|view| is_whole(view, self.master)) && connected_replicas(self.master()) == 2
            {
                return;
            }
            let late = started.elapsed() > WHOLE_LIMIT;
            assert!(!late, "not whole within {WHOLE_LIMIT:?}, with primary {}: {views:#?}", self.master);
            // During a failover, another primary may be the next one.
            if views.iter().all(|view| is_settled(view, self.master)) {
                let strays = self.servers.iter().filter(|server| server.port() != self.master);
                for stray in strays.filter(|server| role(server) == "master") {
                    stray.call(&["REPLICAOF", "127.0.0.1", &self.master.to_string()]);
                }
            }
            std::thread::sleep(POLL);
        }
    }

    fn server_mut(&mut self, port: u16) -> &mut RedisServer {
        self.servers.iter_mut().find(|server| server.port() == port).expect("the port is one of this fleet")
    }
}

/// Starts a sentinel that monitors the primary on `port`.
#[must_use]
pub fn start_sentinel(port: u16) -> RedisServer {
    RedisServer::builder()
        .sentinel()
        .line(&format!("sentinel monitor {MASTER} 127.0.0.1 {port} 2"))
        .line(&format!("sentinel down-after-milliseconds {MASTER} 500"))
        .line(&format!("sentinel failover-timeout {MASTER} 3000"))
        .line(&format!("sentinel parallel-syncs {MASTER} 2"))
        .start()
}

async fn listen(sentinel: &RedisServer) -> redis::aio::PubSub {
    let client = redis::Client::open(sentinel.url()).expect("the URL of the server is valid");
    let mut pubsub = client.get_async_pubsub().await.expect("the sentinel takes connections");
    pubsub.subscribe("+switch-master").await.expect("the sentinel accepts the subscription");
    pubsub
}

async fn tell_switches(mut pubsub: redis::aio::PubSub, tell: mpsc::UnboundedSender<Switch>) {
    let mut messages = pubsub.on_message();
    while let Some(message) = messages.next().await {
        let at = Moment::now();
        let text: String = message.get_payload().expect("a sentinel sends text");
        let words: Vec<_> = text.split(' ').collect();
        let port = |at: usize| words[at].parse().expect("a port");
        if tell.send(Switch { at, from: port(2), to: port(4) }).is_err() {
            return;
        }
    }
}

/// Returns `true` if a sentinel reports the primary on `master`, two replicas, and two other
/// sentinels.
fn is_whole(view: &[String], master: u16) -> bool {
    is_settled(view, master) && has(view, "num-slaves", "2") && has(view, "num-other-sentinels", "2")
}

/// Returns `true` if a sentinel reports the primary on `master`, and no failover.
fn is_settled(view: &[String], master: u16) -> bool {
    has(view, "port", &master.to_string()) && has(view, "flags", "master")
}

fn has(view: &[String], field: &str, value: &str) -> bool {
    view.windows(2).any(|pair| pair == [field, value])
}

/// Returns the role that a server reports: `master` or `slave`.
#[must_use]
pub fn role(server: &RedisServer) -> String {
    server.call(&["ROLE"]).texts().swap_remove(0)
}

fn connected_replicas(server: &RedisServer) -> usize {
    let info = server.call(&["INFO", "replication"]);
    info.text().map_or(0, |text| text.matches("state=online").count())
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < WHOLE_LIMIT, "{what}: not within {WHOLE_LIMIT:?}");
        std::thread::sleep(POLL);
    }
}

/// The name of the primary in the sentinels.
pub const MASTER: &str = "shop-master";

/// A replica need not wait for others to connect.
const NO_DELAY: &str = "repl-diskless-sync-delay 0";
const WHOLE_LIMIT: Duration = Duration::from_secs(30);

/// In TILT mode, a sentinel that was not scheduled for 2 s does nothing for 30 s. Sentinels with a
/// split vote retry after two failover timeouts.
const SWITCH_LIMIT: Duration = Duration::from_secs(60);
const CALL_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
