//! A master, two replicas and three sentinels that watch them, to be failed over.
//!
//! ```text
//!  break_master(Kill | Pause | Order)  ->  switched()  ->  [judge]  ->  heal()
//! ```
//!
//! On a busy machine a master may be thought dead that is only late: there can be switches that nobody asked for, and
//! [`switches`](SentinelFleet::switches) has them all. Everything but [`switched`](SentinelFleet::switched) blocks.
//!
//! Not here: what clients do meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::mpsc;

use crate::acl;
use crate::clock::{Moment, within};
use crate::io;
use crate::resp::Reply;
use crate::server::{RedisServer, RedisServerBuilder};
use crate::wall_clock::WallClock;

/// Servers and sentinels on free ports of 127.0.0.1; all killed when dropped.
#[derive(Debug)]
pub struct SentinelFleet {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    /// The port of the master, as far as this fleet has been told.
    master: u16,
    telling: mpsc::UnboundedReceiver<Switch>,
    told: Vec<Switch>,
}

/// A fail-over, as a sentinel told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// When the first sentinel told it.
    pub at: Moment,
    /// The port of the old master.
    pub from: u16,
    /// The port of the new master.
    pub to: u16,
}

/// How a master ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGKILL.
    Kill,
    /// SIGSTOP; [`heal`](SentinelFleet::heal) or [`resume`](SentinelFleet::resume) lets it go on.
    Pause,
    /// `SENTINEL FAILOVER`: it lives on, and believes for seconds that it is the master.
    Order,
}

impl SentinelFleet {
    /// Starts all of them, and returns when every sentinel knows all the others.
    ///
    /// # Panics
    ///
    /// Panics if they do not find each other.
    pub async fn start() -> Self {
        Self::of(RedisServer::builder).await
    }

    /// Starts them as [`start`](Self::start) does, with replicas that live by another clock than their master.
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

    /// Returns the URL of the master by its sentinels, followed by `suffix`, such as `?namespace=shop`.
    #[must_use]
    pub fn url_with(&self, suffix: &str) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|at| format!("127.0.0.1:{}", at.port())).collect();
        let access = self.master().access();
        format!("redis+sentinel://{access}{}/{MASTER}{}", hosts.join(","), io::asked_for(suffix))
    }

    /// Returns the master.
    #[must_use]
    pub fn master(&self) -> &RedisServer {
        self.server(self.master)
    }

    /// Returns the servers that follow the master.
    pub fn replicas(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter().filter(|server| server.port() != self.master)
    }

    /// Returns the server on `port`.
    ///
    /// # Panics
    ///
    /// Panics if there is none.
    #[must_use]
    pub fn server(&self, port: u16) -> &RedisServer {
        self.servers.iter().find(|server| server.port() == port).expect("the port is one of this fleet")
    }

    /// Returns the sentinels.
    pub fn sentinels(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// Ends the rule of the present master, and returns when it was.
    ///
    /// # Panics
    ///
    /// Panics if the sentinels refuse an ordered fail-over for ten seconds.
    pub fn break_master(&mut self, end: End) -> Moment {
        self.wait_until_whole();
        let at = Moment::now();
        match end {
            End::Kill => self.server_mut(self.master).kill(),
            End::Pause => self.master().pause(),
            End::Order => wait_until("a fail-over is begun", || {
                self.sentinels[0].call(&["SENTINEL", "FAILOVER", MASTER]) == Reply::Status("OK".to_owned())
            }),
        }
        at
    }

    /// Kills the master after `granted`, of which its replicas hear nothing: they stand still meanwhile.
    ///
    /// # Panics
    ///
    /// Panics if the fleet is not whole before.
    pub async fn kill_before_replication<R>(&mut self, granted: impl Future<Output = R>) -> R {
        self.wait_until_whole();
        self.replicas().for_each(RedisServer::pause);
        self.master().call(&["CLIENT", "KILL", "TYPE", "replica"]); // what lies in a socket is read by and by
        let granted = granted.await;
        self.server_mut(self.master).kill();
        self.replicas().for_each(RedisServer::resume);
        granted
    }

    /// Waits until a sentinel says that there is a new master.
    ///
    /// # Panics
    ///
    /// Panics if none does within a minute.
    pub async fn switched(&mut self) -> Switch {
        let told = async {
            loop {
                let switch = self.telling.recv().await.expect("a sentinel is listened to");
                if self.is_news(switch) {
                    return switch;
                }
            }
        };
        within(SWITCH_LIMIT, "the fail-over", told).await
    }

    /// Returns every switch so far, as it was told first.
    pub fn switches(&mut self) -> &[Switch] {
        while let Ok(switch) = self.telling.try_recv() {
            self.is_news(switch);
        }
        &self.told
    }

    /// Notes a switch, unless another sentinel has told it already.
    fn is_news(&mut self, switch: Switch) -> bool {
        let is_news = switch.from == self.master;
        if is_news {
            self.master = switch.to;
            self.told.push(switch);
        }
        is_news
    }

    /// Lets a server that was paused go on, and returns when it answers.
    pub fn resume(&self, port: u16) {
        let server = self.server(port);
        server.resume();
        wait_until("the resumed server answers", || server.try_call(&["PING"], CALL_LIMIT).is_ok());
    }

    /// Starts a server again where it was killed, has whoever is not the master follow it, and returns when all is as at the start.
    ///
    /// # Panics
    ///
    /// Panics if the fleet does not become whole.
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
            assert!(!late, "not whole within {WHOLE_LIMIT:?}, with master {}: {views:#?}", self.master);
            let strays = self.servers.iter().filter(|server| server.port() != self.master);
            for stray in strays.filter(|server| role(server) == "master") {
                stray.call(&["REPLICAOF", "127.0.0.1", &self.master.to_string()]);
            }
            std::thread::sleep(POLL);
        }
    }

    fn server_mut(&mut self, port: u16) -> &mut RedisServer {
        self.servers.iter_mut().find(|server| server.port() == port).expect("the port is one of this fleet")
    }
}

/// Starts a sentinel that watches the master on `port`.
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
    let client = redis::Client::open(sentinel.url()).expect("the server's own URL is one");
    let mut pubsub = client.get_async_pubsub().await.expect("the sentinel takes connections");
    pubsub.subscribe("+switch-master").await.expect("the sentinel lets us subscribe");
    pubsub
}

async fn tell_switches(mut pubsub: redis::aio::PubSub, tell: mpsc::UnboundedSender<Switch>) {
    let mut messages = pubsub.on_message();
    while let Some(message) = messages.next().await {
        let at = Moment::now();
        let text: String = message.get_payload().expect("a sentinel tells text");
        let words: Vec<_> = text.split(' ').collect();
        let port = |at: usize| words[at].parse().expect("a port");
        if tell.send(Switch { at, from: port(2), to: port(4) }).is_err() {
            return;
        }
    }
}

/// Returns whether a sentinel sees the master where it is, two replicas, and the other sentinels.
fn is_whole(view: &[String], master: u16) -> bool {
    let is = |field: &str, value: &str| view.windows(2).any(|pair| pair == [field, value]);
    is("port", &master.to_string())
        && is("flags", "master")
        && is("num-slaves", "2")
        && is("num-other-sentinels", "2")
}

/// Returns what a server says that it is: `master` or `slave`.
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

/// What the sentinels call their master.
pub const MASTER: &str = "shop-master";

/// Replicas need not wait for others to come.
const NO_DELAY: &str = "repl-diskless-sync-delay 0";
const WHOLE_LIMIT: Duration = Duration::from_secs(30);

/// A sentinel that was kept from its work for two seconds does nothing for thirty ("TILT mode", Redis Sentinel's documentation), and three
/// that voted for each other try again after two fail-over timeouts.
const SWITCH_LIMIT: Duration = Duration::from_secs(60);
const CALL_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
