//! A master, two replicas and three sentinels that watch them, to be failed over.
//!
//! ```text
//!  break_master(Kill | Pause | Order)  ->  switched()  ->  [judge]  ->  heal()
//! ```
//!
//! Everything but [`switched`](SentinelFleet::switched) blocks. Not here: what clients do meanwhile.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::mpsc;

use crate::clock::{Moment, within};
use crate::resp::Reply;
use crate::server::RedisServer;

/// Servers and sentinels on free ports of 127.0.0.1; all killed when dropped.
#[derive(Debug)]
pub struct SentinelFleet {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    /// The port of the master, as far as this fleet has been told.
    master: u16,
    switches: mpsc::UnboundedReceiver<Switch>,
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
        let master = RedisServer::builder().line(NO_DELAY).start();
        let of_master = format!("replicaof 127.0.0.1 {}", master.port());
        let replica = || RedisServer::builder().line(NO_DELAY).line(&of_master).start();
        let (port, servers) = (master.port(), vec![master, replica(), replica()]);
        wait_until("the replicas are there", || connected_replicas(&servers[0]) == 2);
        let sentinels: Vec<_> = (0..3).map(|_| start_sentinel(port)).collect();

        let (tell, switches) = mpsc::unbounded_channel();
        for sentinel in &sentinels {
            tokio::spawn(tell_switches(listen(sentinel).await, tell.clone()));
        }
        let fleet = Self { servers, sentinels, master: port, switches };
        fleet.wait_until_whole();
        fleet
    }

    /// Returns the URL of the master by its sentinels, followed by `suffix`, such as `?namespace=shop`.
    #[must_use]
    pub fn url_with(&self, suffix: &str) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|at| format!("127.0.0.1:{}", at.port())).collect();
        format!("redis+sentinel://{}/{MASTER}{suffix}", hosts.join(","))
    }

    /// Returns the master.
    #[must_use]
    pub fn master(&self) -> &RedisServer {
        self.server(self.master)
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

    /// Waits until a sentinel says that there is a new master.
    ///
    /// # Panics
    ///
    /// Panics if none does within twenty seconds.
    pub async fn switched(&mut self) -> Switch {
        let told = async {
            loop {
                let switch = self.switches.recv().await.expect("a sentinel is listened to");
                if switch.from == self.master {
                    break switch; // told by the first; the others follow
                }
            }
        };
        let switch = within(Duration::from_secs(20), "the fail-over", told).await;
        self.master = switch.to;
        switch
    }

    /// Lets a server that was paused go on, and returns when it answers.
    pub fn resume(&self, port: u16) {
        let server = self.server(port);
        server.resume();
        wait_until("the resumed server answers", || server.try_call(&["PING"], CALL_LIMIT).is_ok());
    }

    /// Makes an old master a replica of the new one, starting it again where it was killed, and returns when all is as at the start.
    ///
    /// # Panics
    ///
    /// Panics if the fleet does not become whole.
    pub fn heal(&mut self, port: u16) {
        let master = self.master.to_string();
        let server = self.server_mut(port);
        if server.try_call(&["PING"], CALL_LIMIT).is_err() {
            server.restart();
        }
        server.call(&["REPLICAOF", "127.0.0.1", &master]);
        self.wait_until_whole();
    }

    fn wait_until_whole(&self) {
        wait_until("the replicas follow", || connected_replicas(self.master()) == 2);
        wait_until("the sentinels know each other and the master", || {
            self.sentinels.iter().all(|sentinel| {
                let known = sentinel.call(&["SENTINEL", "MASTER", MASTER]).texts();
                let is = |field: &str, value: &str| known.windows(2).any(|pair| pair == [field, value]);
                is("port", &self.master.to_string())
                    && is("flags", "master")
                    && is("num-slaves", "2")
                    && is("num-other-sentinels", "2")
            })
        });
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
const CALL_LIMIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);
