//! A node that is connected to a server of the test, which sees the requests in their order, and
//! decides when replies come.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::grant_message::GrantMessage;
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::reply_sink::{RedirectHandler, ReplySink};
use crate::backend::redis::tests::resp::{message, primary};
use crate::backend::redis::tests::scripted_server::{LIMIT, ScriptedServer, patient};
use crate::backend::redis::tests::within_limit;
use crate::backend::redis::topology::cluster::redirects::Redirect;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::{EventReceiver, Request};
use crate::config::Settings;
use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::token::TokenSource;

/// The keys of requests that were redirected together, and the route that they have taken.
type Redirected = (Vec<String>, RouteHistory);

/// A callback for replies.
type OnReply = Arc<dyn Fn(&str, &Reply) + Send + Sync>;

/// A node, and the requests and replies that a test sees.
pub(crate) struct TestNode {
    pub(crate) node: Arc<Node>,
    pub(crate) shared: Arc<CommandQueue>,
    primary: TestPrimary,
    asked: mpsc::UnboundedReceiver<String>,
    recorded: Arc<RecordedReplies>,
    running: JoinSet<()>,
}

impl TestNode {
    /// Creates a node that is not connected.
    pub(crate) fn down(response_timeout: Duration) -> Self {
        Self::down_with(Discovery::Fixed, |settings| settings.rules.response_timeout = response_timeout)
    }

    /// Like [`down`](Self::down), with other settings.
    pub(crate) fn down_with(
        discovery: impl FnOnce(Arc<ConnectTarget>) -> Discovery,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let (ask, asked) = mpsc::unbounded_channel();
        let primary = TestPrimary::start(ask);
        let mut settings = patient();
        change(&mut settings);
        let target = Arc::new(primary.server.target(&settings));
        let shared = Arc::new(CommandQueue::new(&settings.namespace));
        let recorded = Arc::new(RecordedReplies::default());
        let node = Arc::new(Node::new(
            discovery(target),
            Arc::clone(&shared),
            EventReceiver::default(),
            Arc::clone(&recorded) as Arc<dyn ReplySink>,
            TokenSource::of_process(1).process(),
            &settings,
        ));
        Self { node, shared, primary, asked, recorded, running: JoinSet::new() }
    }

    /// Creates a node, and connects it on the runtime of the test.
    pub(crate) async fn new(response_timeout: Duration) -> Self {
        let mut test_node = Self::down(response_timeout);
        test_node.connect().await;
        test_node
    }

    /// Connects the node on the runtime of the test.
    pub(crate) async fn connect(&mut self) {
        self.shared.runtimes.set_own(tokio::runtime::Handle::current());
        let (first, connected) = oneshot::channel();
        self.running.spawn(Arc::clone(&self.node).run(Some(first)));
        connected.await.expect("it tells").expect("the server takes connections");
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
        self.primary.hold();
    }

    /// Has the server reply to acquires again, on new connections.
    pub(crate) fn resume(&self) {
        lock(&self.primary.state).is_silent = false;
    }

    /// From now on, the server replies `reply` to commands that begin with these words. Without a
    /// reply, it closes the connection.
    pub(crate) fn set_reply(&self, words: &str, reply: &str) {
        self.set_replies(words, reply, usize::MAX);
    }

    /// Like [`set_reply`](Self::set_reply), for the next `count` of these commands.
    pub(crate) fn set_replies(&self, words: &str, reply: &str, count: usize) {
        lock(&self.primary.state).replies.insert(words.to_owned(), (reply.to_owned(), count));
    }

    /// Has the server wait before its next reply to `command`, until the returned value is dropped.
    /// Meanwhile, it replies to nothing on that connection.
    pub(crate) fn stall(&self, command: &str) -> std::sync::mpsc::Sender<()> {
        let (stall, stalled) = std::sync::mpsc::channel();
        lock(&self.primary.state).stalled = Some((command.to_owned(), stalled));
        stall
    }

    /// From now on, the server accepts subscriptions, and sends these messages after the next one:
    /// each is a channel and a text.
    pub(crate) fn accept_subscriptions(&self, messages: &[(&str, &str)]) {
        let messages = messages.iter().map(|(channel, text)| message(channel, text));
        lock(&self.primary.state).messages = Some(messages.collect());
    }

    /// Returns the commands so far that begin with this word, in one line each.
    pub(crate) fn commands(&self, word: &str) -> Vec<String> {
        self.received(word).into_iter().map(|(command, _)| command).collect()
    }

    /// Returns the connections, by number, of the commands so far that begin with this word.
    pub(crate) fn connections(&self, word: &str) -> Vec<usize> {
        self.received(word).into_iter().map(|(_, connection)| connection).collect()
    }

    fn received(&self, word: &str) -> Vec<(String, usize)> {
        let received = self.primary.server.received();
        received.into_iter().filter(|(command, _)| command.split(' ').next() == Some(word)).collect()
    }

    /// Returns the epochs of the connections of the replies so far.
    pub(crate) fn epochs(&self) -> Vec<Option<u64>> {
        lock(&self.recorded.epochs).clone()
    }

    /// Returns `true` if the task that runs the node ends with a panic.
    pub(crate) async fn panics(&mut self) -> bool {
        self.running.join_next().await.is_some_and(|ended| ended.is_err_and(|error| error.is_panic()))
    }

    /// Returns when the requests of the replies so far were sent.
    pub(crate) fn sent(&self) -> Vec<BootInstant> {
        lock(&self.recorded.sent).clone()
    }

    /// Returns the messages and changes of the connection so far, in one line each.
    pub(crate) fn events(&self) -> Vec<String> {
        lock(&self.recorded.events).clone()
    }

    /// Waits until there was an event.
    pub(crate) async fn until_event(&self, event: &str) {
        let is_recorded = async {
            while !self.events().iter().any(|line| line == event) {
                self.recorded.more.notified().await;
            }
        };
        within_limit(event, is_recorded).await;
    }

    /// Returns the next key that an acquire was received for.
    pub(crate) async fn asked(&mut self) -> String {
        within_limit("an acquire", self.asked.recv()).await.expect("the server runs")
    }

    /// Returns the replies so far: the key, and whether the lock was acquired.
    pub(crate) fn told(&self) -> Vec<(String, bool)> {
        lock(&self.recorded.replies).clone()
    }

    /// Waits until `count` requests were completed.
    pub(crate) async fn until_replied(&self, count: usize) {
        let are_completed = async {
            while self.told().len() < count {
                self.recorded.more.notified().await;
            }
        };
        within_limit("replies", are_completed).await;
    }

    /// From now on, requests that the server answers with `TRYAGAIN` are redirected.
    pub(crate) fn follow_redirects(&self) {
        *lock(&self.recorded.redirected) = Some(Vec::new());
    }

    /// Returns the redirected requests so far.
    pub(crate) fn redirected(&self) -> Vec<Redirected> {
        lock(&self.recorded.redirected).clone().unwrap_or_default()
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
    epochs: Mutex<Vec<Option<u64>>>,
    sent: Mutex<Vec<BootInstant>>,
    events: Mutex<Vec<String>>,
    /// The redirected requests. `None`: a redirect is a reply like any other.
    redirected: Mutex<Option<Vec<Redirected>>>,
    on_reply: Mutex<Option<OnReply>>,
    more: tokio::sync::Notify,
}

impl ReplySink for RecordedReplies {
    fn on_replies(&self, replies: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>) {
        for (request, reply) in replies {
            lock(&self.epochs).push(epoch);
            lock(&self.sent).push(sent);
            lock(&self.replies).push((request.key.to_string(), matches!(reply, Reply::Owner)));
            let on_reply = lock(&self.on_reply).clone();
            if let Some(on_reply) = on_reply {
                on_reply(&request.key, &reply);
            }
        }
        self.more.notify_one();
    }

    fn on_grant(&self, grant: GrantMessage) {
        self.add(format!("grant {}", grant.key));
    }

    fn on_key_event(&self, key: Option<&Name>) {
        self.add(format!("event {}", key.map_or("*", |key| key)));
    }

    fn connected(&self, moved: bool) {
        self.add(format!("connected moved={moved}"));
    }

    fn disconnected(&self) {
        self.add("disconnected".to_owned());
    }

    fn redirects(&self) -> Option<&dyn RedirectHandler> {
        lock(&self.redirected).as_ref().map(|_| self as &dyn RedirectHandler)
    }
}

impl RedirectHandler for RecordedReplies {
    fn read(&self, reply: &Value) -> Option<Redirect> {
        let is_redirect = matches!(reply, Value::ServerError(error) if error.code() == "TRYAGAIN");
        is_redirect.then_some(Redirect::TryAgain)
    }

    fn follow(&self, sent_away: Vec<(Request, Redirect)>, history: RouteHistory) {
        let keys = sent_away.iter().map(|(request, _)| request.key.to_string()).collect();
        lock(&self.redirected).get_or_insert_default().push((keys, history));
        self.more.notify_one();
    }
}

impl RecordedReplies {
    fn add(&self, event: String) {
        assert!(!event.ends_with("panic"), "this panic is part of the test");
        lock(&self.events).push(event);
        self.more.notify_one();
    }
}

/// A primary whose replies a test sets.
pub(crate) struct TestPrimary {
    server: ScriptedServer,
    state: Arc<Mutex<PrimaryState>>,
}

#[derive(Default)]
struct PrimaryState {
    /// Whether acquires get no reply.
    is_silent: bool,
    /// The replies that differ from the usual ones, and to how many commands, by their first words.
    replies: HashMap<String, (String, usize)>,
    /// The command whose next reply waits for the end of this channel.
    stalled: Option<(String, std::sync::mpsc::Receiver<()>)>,
    /// The messages that follow the next subscription. `None`: subscriptions are refused.
    messages: Option<String>,
}

impl TestPrimary {
    /// Starts a server that sends the key of each acquire to `ask`.
    pub(crate) fn start(ask: mpsc::UnboundedSender<String>) -> Self {
        let state = Arc::<Mutex<PrimaryState>>::default();
        let shared = Arc::clone(&state);
        let server = ScriptedServer::start(move |command| {
            let stalled = lock(&shared).stalled.take_if(|(of, _)| of == command);
            if let Some((_, stalled)) = stalled {
                let _ = stalled.recv_timeout(LIMIT); // the test has dropped the other end
            }
            let reply = lock(&shared).reply(command);
            if let Some(key) = command.strip_prefix("SET ").and_then(|rest| rest.split(' ').next()) {
                let _ = ask.send(key.to_owned());
            }
            reply
        });
        Self { server, state }
    }

    /// Stops the replies to acquires.
    pub(crate) fn hold(&self) {
        lock(&self.state).is_silent = true;
    }

    pub(crate) fn address(&self) -> Address {
        self.server.address()
    }
}

impl PrimaryState {
    fn reply(&mut self, command: &str) -> Option<String> {
        match (self.set_reply(command), command.split(' ').next()) {
            (_, Some("SET")) if self.is_silent => Some(String::new()),
            (Some(reply), _) => Some(reply).filter(|reply| !reply.is_empty()), // or it closes
            (None, Some("SUBSCRIBE")) => Some(match &mut self.messages {
                Some(messages) => primary(command) + &std::mem::take(messages),
                None => "-ERR nobody subscribes here\r\n".to_owned(),
            }),
            (None, _) => Some(primary(command)),
        }
    }

    /// Returns the reply that a test has set for a command.
    fn set_reply(&mut self, command: &str) -> Option<String> {
        let is_begin = |words: &str| {
            command.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let begin = self.replies.iter_mut().filter(|(words, (_, count))| *count > 0 && is_begin(words));
        let (_, (reply, count)) = begin.max_by_key(|(words, _)| words.len())?;
        *count -= 1;
        Some(reply.clone())
    }
}
