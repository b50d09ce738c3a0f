//! A node before a server that a unit test answers for: what it sends is seen in its order, and answers come when the test says so.
//!
//! Not here: a Redis (the tests of the package `tests` have real ones).

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::backend::Request;
use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::encoding::codec;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::connect::{ConnectTarget, GrantMessage};
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::reply_sink::ReplySink;
use crate::backend::redis::topology::discovery::Discovery;
use crate::config::Settings;
use crate::config::url::Server;
use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::token::TokenSource;

/// What a test does when requests are answered.
type OnReply = Arc<dyn Fn(&str, &Reply) + Send + Sync>;

/// A node that is ready, and what is seen of it.
pub(crate) struct TestNode {
    pub(crate) node: Arc<Node>,
    pub(crate) shared: Arc<CommandQueue>,
    server: FakeServer,
    asked: mpsc::UnboundedReceiver<String>,
    told: Arc<Told>,
    running: JoinSet<()>,
}

impl TestNode {
    /// Makes a node that is not connected.
    pub(crate) fn down(response_timeout: Duration) -> Self {
        let (ask, asked) = mpsc::unbounded_channel();
        let server = FakeServer::start(ask);
        let mut settings = Settings::default();
        settings.rules.tracking = false;
        settings.rules.response_timeout = response_timeout;
        let at = Server { host: "127.0.0.1".to_owned(), port: server.port, ..Server::default() };
        let route = Arc::new(ConnectTarget::new(at, &settings).expect("the address is one"));
        let shared = Arc::new(CommandQueue::default());
        let told = Arc::new(Told::default());
        let node = Arc::new(Node::new(
            Discovery::Fixed(route),
            Arc::clone(&shared),
            Weak::new(),
            Arc::clone(&told) as Arc<dyn ReplySink>,
            TokenSource::of_process(1).process(),
            &settings,
        ));
        Self { node, shared, server, asked, told, running: JoinSet::new() }
    }

    /// Connects a node on the runtime of the test.
    pub(crate) async fn new(response_timeout: Duration) -> Self {
        let mut rig = Self::down(response_timeout);
        rig.shared.moves_to(Some(tokio::runtime::Handle::current()));
        let (first, connected) = oneshot::channel();
        rig.running.spawn(Arc::clone(&rig.node).run(Some(first)));
        connected.await.expect("it tells").expect("the server takes connections");
        rig
    }

    /// Returns the connection of a node that is ready.
    pub(crate) fn link(&self) -> Arc<NodeConnection> {
        self.node.link().expect("it is ready")
    }

    /// What runs the node ends.
    pub(crate) async fn stop(&mut self) {
        self.running.shutdown().await;
    }

    /// From now on the server says nothing to locks being taken.
    pub(crate) fn hold(&self) {
        self.server.hold();
    }

    /// Returns the next key that the server was asked to lock.
    pub(crate) async fn asked(&mut self) -> String {
        self.asked.recv().await.expect("the server runs")
    }

    /// Returns what was answered so far: keys, and whether they are ours.
    pub(crate) fn told(&self) -> Vec<(String, bool)> {
        lock(&self.told.replies).clone()
    }

    /// Returns once so many requests were answered.
    pub(crate) async fn until_told(&self, count: usize) {
        while self.told().len() < count {
            self.told.more.notified().await;
        }
    }

    /// Has something done whenever a request is answered, where that is heard.
    pub(crate) fn on_reply(&self, on_reply: impl Fn(&str, &Reply) + Send + Sync + 'static) {
        *lock(&self.told.on_reply) = Some(Arc::new(on_reply));
    }
}

/// Returns a request to take a lock.
pub(crate) fn acquire(key: &str) -> Request {
    let lease = Duration::from_secs(30);
    Request::new(key.into(), TokenSource::of_process(1).next(), Command::Acquire { lease })
}

/// Notes what it is told.
#[derive(Default)]
struct Told {
    replies: Mutex<Vec<(String, bool)>>,
    on_reply: Mutex<Option<OnReply>>,
    more: tokio::sync::Notify,
}

impl ReplySink for Told {
    fn on_replies(&self, replies: Vec<(Request, Reply)>, _sent: BootInstant, _epoch: Option<u64>) {
        for (request, reply) in replies {
            lock(&self.replies).push((request.key.to_string(), matches!(reply, Reply::Owner)));
            let on_reply = lock(&self.on_reply).clone();
            if let Some(on_reply) = on_reply {
                on_reply(&request.key, &reply);
            }
        }
        self.more.notify_one();
    }

    fn on_grant(&self, _grant: GrantMessage) {}

    fn on_key_event(&self, _key: &Name) {}

    fn connected(&self, _moved: bool) {}
}

/// A master on threads of its own.
pub(crate) struct FakeServer {
    pub(crate) port: u16,
    is_silent: Arc<Mutex<bool>>,
}

impl FakeServer {
    /// Starts one that says which keys it was asked to lock.
    pub(crate) fn start(ask: mpsc::UnboundedSender<String>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("this machine has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let is_silent = Arc::new(Mutex::new(false));
        let silent = Arc::clone(&is_silent);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let (ask, silent) = (ask.clone(), Arc::clone(&silent));
                std::thread::spawn(move || serve(stream, &ask, &silent));
            }
        });
        Self { port, is_silent }
    }

    /// From now on it says nothing to locks being taken.
    pub(crate) fn hold(&self) {
        *lock(&self.is_silent) = true;
    }
}

fn serve(mut stream: TcpStream, ask: &mpsc::UnboundedSender<String>, silent: &Mutex<bool>) {
    let mut parser = redis::Parser::new();
    while let Ok(Value::Array(words)) = parser.parse_value(&mut stream) {
        let words: Vec<_> = words.iter().map(|word| codec::text(word).unwrap_or_default()).collect();
        let answer = match words[..] {
            ["SET", key, ..] => {
                let _ = ask.send(key.to_owned());
                if *lock(silent) {
                    // What comes later is not answered either: it would be taken for the answer to this.
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                    return;
                }
                "+OK\r\n"
            }
            ["SUBSCRIBE", ..] => "-ERR nobody subscribes here\r\n",
            ["ROLE", ..] => "*1\r\n$6\r\nmaster\r\n",
            ["PING", ..] => "+PONG\r\n",
            ["SCRIPT", ..] => "+name\r\n",
            _ => "+OK\r\n",
        };
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
