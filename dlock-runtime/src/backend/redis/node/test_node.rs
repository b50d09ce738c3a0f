//! A node that is connected to a fake server: a test sees the requests in their order, and decides
//! when replies come.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::grant_message::GrantMessage;
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::reply_sink::ReplySink;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::error_kind;
use crate::backend::{EventReceiver, Request};
use crate::config::Settings;
use crate::config::node_spec::NodeSpec;
use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::token::TokenSource;

/// A callback for replies.
type OnReply = Arc<dyn Fn(&str, &Reply) + Send + Sync>;

/// A node, and the requests and replies that a test sees.
pub(crate) struct TestNode {
    pub(crate) node: Arc<Node>,
    pub(crate) shared: Arc<CommandQueue>,
    server: FakeServer,
    asked: mpsc::UnboundedReceiver<String>,
    recorded: Arc<RecordedReplies>,
    running: JoinSet<()>,
}

impl TestNode {
    /// Creates a node that is not connected.
    pub(crate) fn down(response_timeout: Duration) -> Self {
        let (ask, asked) = mpsc::unbounded_channel();
        let server = FakeServer::start(ask);
        let mut settings = Settings::default();
        settings.rules.tracking = false;
        settings.rules.response_timeout = response_timeout;
        let at = NodeSpec { host: "127.0.0.1".to_owned(), port: server.port, ..NodeSpec::default() };
        let target = Arc::new(ConnectTarget::new(at, &settings));
        let shared = Arc::new(CommandQueue::default());
        let recorded = Arc::new(RecordedReplies::default());
        let node = Arc::new(Node::new(
            Discovery::Fixed(target),
            Arc::clone(&shared),
            EventReceiver::default(),
            Arc::clone(&recorded) as Arc<dyn ReplySink>,
            TokenSource::of_process(1).process(),
            &settings,
        ));
        Self { node, shared, server, asked, recorded, running: JoinSet::new() }
    }

    /// Creates a node, and connects it on the runtime of the test.
    pub(crate) async fn new(response_timeout: Duration) -> Self {
        let mut test_node = Self::down(response_timeout);
        test_node.shared.runtimes.set_own(tokio::runtime::Handle::current());
        let (first, connected) = oneshot::channel();
        test_node.running.spawn(Arc::clone(&test_node.node).run(Some(first)));
        connected.await.expect("it tells").expect("the server takes connections");
        test_node
    }

    /// Returns the node's connection.
    pub(crate) fn connection(&self) -> Arc<NodeConnection> {
        self.node.connection().expect("it is ready")
    }

    /// Ends the task that runs the node.
    pub(crate) async fn stop(&mut self) {
        self.running.shutdown().await;
    }

    /// Stops the replies to acquires.
    pub(crate) fn hold(&self) {
        self.server.hold();
    }

    /// Returns the next key that an acquire was received for.
    pub(crate) async fn asked(&mut self) -> String {
        self.asked.recv().await.expect("the server runs")
    }

    /// Returns the replies so far: the key, and whether the lock was acquired.
    pub(crate) fn told(&self) -> Vec<(String, bool)> {
        lock(&self.recorded.replies).clone()
    }

    /// Waits until `count` requests were completed.
    pub(crate) async fn until_replied(&self, count: usize) {
        while self.told().len() < count {
            self.recorded.more.notified().await;
        }
    }

    /// Calls `on_reply` for each reply, on the thread that completes the request.
    pub(crate) fn on_reply(&self, on_reply: impl Fn(&str, &Reply) + Send + Sync + 'static) {
        *lock(&self.recorded.on_reply) = Some(Arc::new(on_reply));
    }
}

/// Returns an acquire.
pub(crate) fn acquire(key: &str) -> Request {
    let lease = Duration::from_secs(30);
    Request::new(key.into(), TokenSource::of_process(1).next(), Command::Acquire { lease })
}

/// Records replies.
#[derive(Default)]
struct RecordedReplies {
    replies: Mutex<Vec<(String, bool)>>,
    on_reply: Mutex<Option<OnReply>>,
    more: tokio::sync::Notify,
}

impl ReplySink for RecordedReplies {
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

    fn on_key_event(&self, _key: Option<&Name>) {}

    fn connected(&self, _moved: bool) {}
}

/// A fake primary, on threads of its own.
pub(crate) struct FakeServer {
    pub(crate) port: u16,
    is_silent: Arc<Mutex<bool>>,
}

impl FakeServer {
    /// Starts a server that sends the key of each acquire to `ask`.
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

    /// Stops the replies to acquires.
    pub(crate) fn hold(&self) {
        *lock(&self.is_silent) = true;
    }
}

fn serve(mut stream: TcpStream, ask: &mpsc::UnboundedSender<String>, silent: &Mutex<bool>) {
    let mut parser = redis::Parser::new();
    while let Ok(Value::Array(words)) = parser.parse_value(&mut stream) {
        let words: Vec<_> = words.iter().map(|word| error_kind::text(word).unwrap_or_default()).collect();
        let answer = match words[..] {
            ["SET", key, ..] => {
                let _ = ask.send(key.to_owned());
                if *lock(silent) {
                    // Later commands get no reply either: it would be taken for the reply to this
                    // one.
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
