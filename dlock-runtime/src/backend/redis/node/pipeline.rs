//! Batches: requests that are sent together in one pipeline, and their replies.
//!
//! Each request is completed exactly once. A request without a reply is completed as *unknown* when
//! its batch is dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use redis::{RedisResult, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::ScriptParameters;
use crate::backend::redis::encoding::codec;
use crate::backend::redis::encoding::store_call;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::generations::GenerationGuard;
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::invalidation_tracker::TrackingConnection;
use crate::backend::redis::node::replica_acks::ReplicaAckConnection;
use crate::backend::redis::transport::completion_queue::{Batch, PendingReplies};
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::error_kind;
use crate::backend::reply_recipient::ReplyRecipient;
use crate::clock::boot_time;
use crate::protocol::command::{Failure, Reply};
use crate::protocol::deadline::BootInstant;

/// The connection of a node that a batch is sent over.
#[derive(Clone)]
pub(crate) enum ConnectionKind {
    Commands,
    /// The one that waits for replicas.
    ReplicaAcks,
    /// The one with key tracking.
    Tracking(TrackingConnection),
}

/// Requests in one pipeline.
pub(crate) struct PipelineBatch {
    node: Arc<Node>,
    connection: Arc<NodeConnection>,
    kind: ConnectionKind,
    requests: VecDeque<Request>,
    /// When the batch was sent: read before the first byte.
    sent: BootInstant,
    /// Whether scripts are sent as text, which also loads them into a server that has lost them.
    as_text: bool,
    route_history: RouteHistory,
    /// Dropped after the requests are completed.
    generation: GenerationGuard,
}

/// Polls replies once, which enqueues the requests.
fn poll_first(mut answered: PendingReplies) -> PendingReplies {
    match answered.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => Box::pin(std::future::ready(answers)),
        Poll::Pending => answered,
    }
}

/// Which timer finds late replies.
#[derive(Clone, Copy)]
enum TimeoutSource {
    /// A timer of the runtime that sends.
    Runtime,
    /// The watch of the connection: the sender may be on no runtime, and a timer per batch is
    /// expensive.
    Connection,
}

/// How a request has reached a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteHistory {
    /// When the request was sent first, if that was over another connection.
    pub(crate) since: Option<BootInstant>,
    /// How often it was redirected.
    pub(crate) hops: u32,
    /// Whether it is sent with `ASKING`, since another server owns its slot.
    pub(crate) asking: bool,
}

impl PipelineBatch {
    pub(crate) fn new(
        node: &Arc<Node>,
        connection: &Arc<NodeConnection>,
        kind: ConnectionKind,
        requests: impl IntoIterator<Item = Request>,
        route_history: RouteHistory,
        generation: GenerationGuard,
    ) -> Self {
        let (node, connection) = (Arc::clone(node), Arc::clone(connection));
        let (requests, sent, as_text) = (requests.into_iter().collect(), boot_time(), false);
        Self { node, connection, kind, requests, sent, as_text, route_history, generation }
    }

    /// Sends the batch. Its requests are completed where the replies are read.
    pub(crate) fn send(self) {
        let (connection, count) = (Arc::clone(&self.connection), self.caller_count());
        let driver = (!matches!(self.kind, ConnectionKind::Tracking(_))).then_some(&*connection.driver);
        let replies = self.start(TimeoutSource::Connection);
        connection.in_flight.start(self, replies, driver, count);
    }

    /// Sends the batch at once, and returns a future that completes its requests.
    ///
    /// Requests whose script the server has lost did not run. They are sent again, with the script
    /// as text, in a batch with a timeout of its own.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send {
        // Enqueued now: the order in which the runtime polls tasks must not change the order of the
        // requests.
        let mut answered = poll_first(self.start(TimeoutSource::Runtime));
        async move {
            let mut batch = self;
            while let Some(unknown_scripts) = batch.finish(answered.await) {
                answered = poll_first(unknown_scripts.start(TimeoutSource::Runtime));
                batch = unknown_scripts;
            }
        }
    }

    /// Sends the batch once `ready` completes.
    pub(crate) async fn run_after(mut self, ready: impl Future<Output = ()>) {
        ready.await;
        self.sent = boot_time();
        self.run().await;
    }

    /// Returns a future that enqueues the requests on its first poll, and then waits for their
    /// replies.
    fn start(&self, timeout_source: TimeoutSource) -> PendingReplies {
        let as_text = self.as_text || self.connection.target.lacks_evalsha();
        let loaded = self.connection.scripts.as_ref().filter(|_| !as_text);
        let extra = |request: &Request| match self.kind {
            ConnectionKind::ReplicaAcks if request.command.grants_ownership() => Some("write"),
            ConnectionKind::Tracking(_) if request.command.is_renewal() => Some("read"),
            ConnectionKind::Commands | ConnectionKind::ReplicaAcks | ConnectionKind::Tracking(_) => None,
        };
        let (encoding, times) = (self.node.encoding(), self.node.script_times);
        let namespaces = &self.node.shared.namespaces;
        let mut pipeline =
            redis::Pipeline::with_capacity(self.requests.len() * self.replies_per_request() + 1);
        for request in &self.requests {
            if self.route_history.asking {
                pipeline.cmd("ASKING");
            }
            if let Some(call) = &request.call {
                let is_known = loaded.is_some() && self.connection.has_script(call.script());
                store_call::encode(&**call, &request.key, namespaces, is_known, &mut pipeline);
                if call.has_large_reply() {
                    self.client_connection(timeout_source).inbound().allow_large_replies();
                }
                continue;
            }
            let parameters = ScriptParameters { namespaces, times, loaded, extra: extra(request) };
            encoding.encode(request, &parameters, &mut pipeline);
        }
        if let Some(acks) = self.acks() {
            pipeline.add_command(acks.wait());
        }
        let client = self.client_connection(timeout_source);
        let (held, mut client) = (client.hold(), client.client().clone());
        // Unconstrained: without budget the task could not enqueue the requests, and would lose
        // their place.
        Box::pin(tokio::task::unconstrained(async move {
            let _held = held;
            client.send_packed_commands(&pipeline, 0, pipeline.len()).await
        }))
    }

    /// Completes the requests with their replies. Returns those that must be sent again.
    fn finish(mut self, answers: RedisResult<Vec<Value>>) -> Option<Self> {
        match answers {
            Ok(answers) => self.dispatch_replies(&answers),
            Err(error) => {
                let timeout = error.is_timeout();
                let inbound = self.client_connection(TimeoutSource::Connection).inbound();
                let failure = self.connection.target.connection_failure(error, inbound);
                self.finish_unanswered(&failure, timeout);
                None
            }
        }
    }

    fn finish_unanswered(mut self, failure: &Failure, timeout: bool) {
        let failure = &Failure { connection_lost: !timeout, ..failure.clone() };
        match self.kind {
            ConnectionKind::Commands => self.connection.unanswered(failure, !timeout),
            // This connection is never pinged, so it is given up at once.
            ConnectionKind::ReplicaAcks => self.connection.give_up(failure.clone()),
            ConnectionKind::Tracking(_) => self.node.tracking.give_up(self.epoch()),
        }
        self.fail(failure);
    }

    /// Returns how many requests are those of callers, who are likely to send more.
    fn caller_count(&self) -> usize {
        let is_of_a_caller = |request: &&Request| {
            // A request to a quorum does not show whether a caller waits for it, but a release
            // rarely does.
            let is_vote = request.recipient.as_ref().and_then(ReplyRecipient::operation).is_some();
            let is_release = is_vote && request.command.is_release();
            request.is_awaited() && !is_release && !request.command.is_renewal()
        };
        self.requests.iter().filter(is_of_a_caller).count()
    }

    /// Completes the requests with their replies. Returns those that must be sent again.
    fn dispatch_replies(&mut self, answers: &[Value]) -> Option<Self> {
        if let Some(error) = answers.iter().find_map(error_kind::out_of_service) {
            let error = self.connection.target.shown.advised_text(error);
            self.connection.give_up_because(&format!("is out of service: {error}"));
        } else {
            self.connection.answered();
        }
        let (node, count) = (Arc::clone(&self.node), self.requests.len());
        let redirects = node.sink.redirects();
        // The reply to `WAIT` follows those to the requests.
        let missing =
            self.acks().and_then(|acks| acks.missing(answers.get(count * self.replies_per_request())));
        let mut replies = Vec::with_capacity(count);
        let (mut unknown_scripts, mut redirected) = (VecDeque::new(), Vec::new());
        for answer in answers.iter().skip(self.replies_per_request() - 1).step_by(self.replies_per_request())
        {
            let Some(request) = self.requests.pop_front() else { break };
            let is_unknown = error_kind::is_unknown_script(answer) || self.note_missing_evalsha(answer);
            if is_unknown && !self.as_text {
                unknown_scripts.push_back(request);
            } else if let Some(redirect) = redirects.and_then(|redirects| redirects.read(answer)) {
                redirected.push((request, redirect));
            } else {
                let reply = match (self.decode(&request, answer), &missing) {
                    (Reply::Owner | Reply::Called(_), Some(missing)) if request.needs_acks() => {
                        Reply::Unknown(missing.clone())
                    }
                    (reply, _) => reply,
                };
                if self.node.is_foreign_lock(request.command, &reply) {
                    self.node.tracking.note_foreign_lock(&request.key);
                }
                replies.push((request, reply));
            }
        }
        self.reply(replies);
        if let Some(redirects) = redirects.filter(|_| !redirected.is_empty()) {
            if let Some(acks) = self.connection.acks.as_ref().filter(|_| self.acks().is_none()) {
                acks.on_replies(&ReplicaAckConnection::changes(
                    redirected.iter().map(|(request, _)| request),
                ));
            }
            let since = self.route_history.since.or(Some(self.sent));
            redirects.follow(redirected, RouteHistory { since, ..self.route_history });
        }
        let again = !unknown_scripts.is_empty();
        again.then(|| {
            let mut again = Self::new(
                &self.node,
                &self.connection,
                self.kind.clone(),
                unknown_scripts,
                self.route_history,
                self.generation.clone(),
            );
            again.as_text = true;
            again
        })
    }

    fn decode(&self, request: &Request, answer: &Value) -> Reply {
        let server = &self.connection.target.shown;
        let Some(call) = &request.call else { return self.node.encoding().decode(request, answer, server) };
        if let Value::ServerError(error) = answer {
            return codec::error_reply(server, error);
        }
        self.connection.note_script(call.script());
        store_call::decode(answer).map_or_else(|| codec::unexpected_reply(server), Reply::Called)
    }

    /// Returns `true` if a reply shows that the server has no `EVALSHA`, and sends all scripts as
    /// text from now on.
    fn note_missing_evalsha(&self, answer: &Value) -> bool {
        let lacks = error_kind::lacks_evalsha(answer);
        if lacks {
            self.connection.target.note_lacking_evalsha(answer);
        }
        lacks
    }

    /// Returns the number of replies per request. The last one is that to its command.
    fn replies_per_request(&self) -> usize {
        1 + usize::from(self.route_history.asking)
    }

    /// Returns the connection that waits for replicas, if the batch is sent over it.
    fn acks(&self) -> Option<&ReplicaAckConnection> {
        self.connection.acks.as_ref().filter(|_| matches!(self.kind, ConnectionKind::ReplicaAcks))
    }

    /// Returns the connection of the client library that the batch is sent over.
    fn client_connection(&self, timeout_source: TimeoutSource) -> &Connection {
        match (&self.kind, self.acks(), timeout_source) {
            (ConnectionKind::Tracking(tracking), _, TimeoutSource::Connection) => &tracking.untimed,
            (ConnectionKind::Tracking(tracking), ..) => &tracking.timed,
            (_, Some(acks), _) => &acks.connection,
            (.., TimeoutSource::Connection) => &self.connection.untimed,
            _ => &self.connection.timed,
        }
    }

    /// Returns the epoch of that connection.
    fn epoch(&self) -> u64 {
        match (&self.kind, self.acks()) {
            (ConnectionKind::Tracking(tracking), _) => tracking.epoch,
            (_, Some(acks)) => acks.epoch,
            _ => self.connection.epoch,
        }
    }

    fn fail(&mut self, failure: &Failure) {
        let requests = std::mem::take(&mut self.requests);
        self.reply(requests.into_iter().map(|request| (request, Reply::Unknown(failure.clone()))).collect());
    }

    fn reply(&self, replies: Vec<(Request, Reply)>) {
        let epoch = self.epoch();
        let behind =
            self.connection.acks.as_ref().filter(|_| self.acks().is_none()).map(|acks| {
                (acks, ReplicaAckConnection::changes(replies.iter().map(|(request, _)| request)))
            });
        self.node.sink.on_replies(replies, self.sent, Some(epoch));
        if let Some((acks, changes)) = behind {
            acks.on_replies(&changes);
        }
    }
}

impl Batch for PipelineBatch {
    fn sent(&self) -> BootInstant {
        self.sent
    }

    fn complete(self, answers: RedisResult<Vec<Value>>) {
        if let Some(again) = self.finish(answers) {
            again.send();
        }
    }

    fn time_out(self) {
        let failure = self.connection.target.timeout_failure();
        self.finish_unanswered(&failure, true);
    }
}

impl Drop for PipelineBatch {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            self.fail(&self.connection.no_reply_failure().with_connection_lost());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::node::test_node::{TestNode, acquire};
    use crate::backend::redis::owner_lookup::OwnerLookup;
    use crate::backend::redis::topology::LoadHint;
    use crate::backend::redis::topology::discovery::Discovery;
    use crate::backend::tests::test_operation::TestOperation;
    use crate::protocol::command::{Command, ScriptReply};
    use crate::sync::lock;
    use crate::token::TokenSource;
    use std::sync::Mutex;
    use std::time::Duration;

    /// More than the request queue of the client library holds by default.
    const MANY: usize = 90;

    #[tokio::test]
    async fn requests_keep_their_order_if_many_wait() {
        let mut test = TestNode::new(Duration::from_secs(20)).await;
        let keys: Vec<_> = (0..=MANY).map(|number| number.to_string()).collect();

        for key in &keys[..MANY] {
            test.node.take(vec![acquire(key)], RouteHistory::default());
        }
        // The queue has space again, but the waiting tasks have not been polled yet.
        tokio::task::yield_now().await;
        test.node.take(vec![acquire(&keys[MANY])], RouteHistory::default());
        let mut left = Vec::new();
        while left.len() < keys.len() {
            left.push(test.asked().await);
        }

        assert_eq!(left, keys);
    }

    #[tokio::test]
    async fn requests_keep_their_order_across_tasks() {
        let mut test = TestNode::new(Duration::from_secs(20)).await;
        let connection = test.node.connection().expect("it is ready");
        let batch = |key| {
            PipelineBatch::new(
                &test.node,
                &connection,
                ConnectionKind::Commands,
                [acquire(key)],
                RouteHistory::default(),
                test.node.generations.enter(),
            )
        };

        let (first, second) = (batch("a").run(), batch("b").run());
        tokio::join!(second, first);

        assert_eq!([test.asked().await, test.asked().await], ["a", "b"]);
    }

    /// Otherwise one `inspect` would shorten the pipelines of all locks, and a server could send
    /// longer replies to them.
    #[tokio::test]
    async fn the_lookup_of_an_owner_leaves_the_limits_of_replies_as_they_are() {
        let mut test = TestNode::new(Duration::from_secs(20)).await;
        let process = TokenSource::of_process(2).process();
        let lookup = OwnerLookup::new(process, "dlock");
        let lookup = Request { command: Command::Call, call: Some(Arc::new(lookup)), ..acquire("a") };

        test.node.take(vec![lookup], RouteHistory::default());
        test.node.take(vec![acquire("b")], RouteHistory::default());
        test.asked().await;

        assert!(!test.connection().untimed.inbound().allows_large_replies());
    }

    #[tokio::test]
    async fn an_unanswered_request_reports_why_the_connection_was_lost() {
        let mut test = TestNode::new(Duration::from_secs(20)).await;
        let failures = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&failures);
        test.on_reply(move |_, reply| lock(&log).push(format!("{reply:?}")));
        test.hold();

        test.node.take(vec![acquire("a")], RouteHistory::default());
        test.asked().await;
        test.node.connection().expect("it is ready").give_up_because("has moved away");
        test.until_replied(1).await;

        let failures = lock(&failures);
        assert!(
            failures[0].contains("given up before it replied") && failures[0].contains("has moved away"),
            "{failures:?}"
        );
    }

    const LONG: Duration = Duration::from_secs(20);

    /// Returns a test node whose writes two replicas must acknowledge, of which `count` do.
    async fn with_replicas(count: u32) -> TestNode {
        let mut test = TestNode::down_with(Discovery::Fixed, |settings| {
            settings.rules.replica_acks = 2;
            settings.rules.response_timeout = LONG;
        });
        test.set_reply("WAIT 2", &format!(":{count}\r\n"));
        test.connect().await;
        test
    }

    /// Records the replies with their failures.
    fn log_replies(test: &TestNode) -> Arc<Mutex<Vec<Reply>>> {
        let replies = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&replies);
        test.on_reply(move |_, reply| lock(&log).push(reply.clone()));
        replies
    }

    fn renewal(key: &str) -> Request {
        Request { command: Command::Renew { lease: LONG }, ..acquire(key) }
    }

    fn keys_and(is_owner: bool, keys: &[&str]) -> Vec<(String, bool)> {
        keys.iter().map(|key| ((*key).to_owned(), is_owner)).collect()
    }

    #[tokio::test]
    async fn a_lost_script_is_sent_again_as_text() {
        let test = TestNode::new(LONG).await;
        test.set_reply("EVALSHA", "-NOSCRIPT No matching script. Please use EVAL.\r\n");
        test.set_reply("EVAL", ":1\r\n");

        test.node.take(vec![renewal("a"), acquire("b")], RouteHistory::default());
        test.until_replied(2).await;

        assert_eq!(test.told(), keys_and(true, &["b", "a"]));
        assert_eq!((test.commands("EVALSHA").len(), test.commands("EVAL").len()), (1, 1));
        assert!(!test.connection().target.lacks_evalsha());
    }

    #[tokio::test]
    async fn a_script_that_is_unknown_as_text_is_not_sent_again() {
        let test = TestNode::new(LONG).await;
        test.set_reply("EVALSHA", "-NOSCRIPT No matching script. Please use EVAL.\r\n");
        test.set_reply("EVAL", "-NOSCRIPT this is no Redis\r\n");

        test.node.take(vec![renewal("a")], RouteHistory::default());
        test.until_replied(1).await;

        assert_eq!(test.told(), keys_and(false, &["a"]));
        assert_eq!(test.commands("EVAL").len(), 1);
    }

    #[tokio::test]
    async fn a_server_without_evalsha_gets_all_scripts_as_text() {
        let test = TestNode::new(LONG).await;
        test.set_reply("EVALSHA", "-ERR unknown command 'EVALSHA'\r\n");
        test.set_reply("EVAL", ":1\r\n");

        for (count, key) in [(1, "a"), (2, "b")] {
            test.node.take(vec![renewal(key)], RouteHistory::default());
            test.until_replied(count).await;
        }

        assert_eq!(test.told(), keys_and(true, &["a", "b"]));
        assert_eq!((test.commands("EVALSHA").len(), test.commands("EVAL").len()), (1, 2));
    }

    #[tokio::test]
    async fn an_operation_is_sent_by_name_once_the_server_has_run_it() {
        let test = TestNode::new(LONG).await;
        let replies = log_replies(&test);
        let operation = Arc::new(TestOperation::default());
        test.set_reply("EVAL", ":1\r\n");
        test.set_reply("EVALSHA", ":2\r\n");

        for count in 1..=2 {
            test.node.take(vec![operation.request("a")], RouteHistory::default());
            test.until_replied(count).await;
        }

        assert!(matches!(
            lock(&replies)[..],
            [Reply::Called(ScriptReply::Int(1)), Reply::Called(ScriptReply::Int(2))]
        ));
        assert_eq!((test.commands("EVALSHA").len(), test.commands("EVAL").len()), (1, 1));
        assert!(!test.connection().untimed.inbound().allows_large_replies());
    }

    #[tokio::test]
    async fn an_operation_that_fails_is_not_known_to_the_server() {
        let test = TestNode::new(LONG).await;
        let replies = log_replies(&test);
        let operation = Arc::new(TestOperation { has_large_reply: true, ..TestOperation::default() });
        let answers = ["-OOM out of memory\r\n", "-ERR it stopped\r\n", "+OK\r\n"];

        for (count, answer) in (1..).zip(answers) {
            test.set_reply("EVAL", answer);
            test.node.take(vec![operation.request("a")], RouteHistory::default());
            test.until_replied(count).await;
        }

        assert!(matches!(
            lock(&replies)[..],
            [Reply::Refused(_), Reply::Unknown(_), Reply::Called(ScriptReply::Bytes(_))]
        ));
        assert!(test.commands("EVALSHA").is_empty());
        assert!(test.connection().untimed.inbound().allows_large_replies());
    }

    #[tokio::test]
    async fn a_redirected_request_is_answered_by_its_own_reply() {
        let test = TestNode::new(LONG).await;
        test.set_reply("ASKING", "+this is no reply to the request\r\n");
        let asking = RouteHistory { asking: true, ..RouteHistory::default() };

        test.node.take(vec![acquire("a"), acquire("b")], asking);
        test.until_replied(2).await;

        assert_eq!(test.told(), keys_and(true, &["a", "b"]));
        assert_eq!(test.commands("ASKING").len(), 2);
    }

    #[tokio::test]
    async fn ownership_counts_once_enough_replicas_have_it() {
        for (count, is_owner) in [(1, false), (2, true), (3, true)] {
            let test = with_replicas(count).await;
            let asking = RouteHistory { asking: true, ..RouteHistory::default() };

            test.node.take(vec![acquire("a"), acquire("b")], RouteHistory::default());
            test.until_replied(2).await;
            test.node.take(vec![acquire("c"), acquire("d")], asking);
            test.until_replied(4).await;

            assert_eq!(test.told(), keys_and(is_owner, &["a", "b", "c", "d"]), "{count}");
        }
    }

    #[tokio::test]
    async fn replicas_delay_no_request_that_grants_nothing() {
        let mut test = with_replicas(0).await;
        test.set_reply("EVALSHA", ":1\r\n");
        let release = |key| Request { command: Command::RELEASE, ..acquire(key) };

        test.node.take(vec![release("a"), acquire("a")], RouteHistory::default());
        test.until_replied(2).await;

        assert_eq!(test.told(), [("a".to_owned(), true), ("a".to_owned(), false)]);
        assert_eq!(test.asked().await, "a");
        assert_eq!(test.node.traffic(), LoadHint::DriverOnly);
        assert_eq!(test.node.under_way(), LoadHint::DriverOnly);
        let waits = test.commands("WAIT");
        assert_eq!(waits[1..], ["WAIT 2 8000".to_owned()], "2/5 of the response timeout: {waits:?}");
    }

    #[tokio::test]
    async fn a_renewal_that_replicas_acknowledge_is_always_a_write() {
        let test = with_replicas(2).await;
        test.set_reply("EVALSHA", ":1\r\n");

        test.node.take(vec![renewal("a")], RouteHistory::default());
        test.until_replied(1).await;

        assert!(test.commands("EVALSHA")[0].ends_with(" write"), "{:?}", test.commands("EVALSHA"));
    }

    #[tokio::test]
    async fn only_a_closed_connection_counts_as_lost() {
        for (is_lost, timeout) in [(true, LONG), (false, Duration::from_secs(1))] {
            let test = TestNode::new(timeout).await;
            let replies = log_replies(&test);
            let connection = test.connection();
            if is_lost {
                test.set_reply("SET", ""); // the server closes the connection
            } else {
                test.hold();
            }

            test.node.take(vec![acquire("a")], RouteHistory::default());
            test.until_replied(1).await;

            let replies = lock(&replies);
            assert!(
                matches!(&replies[..], [Reply::Unknown(failure)] if failure.connection_lost == is_lost),
                "{replies:?}"
            );
            assert_eq!(connection.is_given_up(), is_lost);
        }
    }

    #[tokio::test]
    async fn a_server_out_of_service_is_given_up_with_its_reply() {
        let test = TestNode::new(LONG).await;
        let connection = test.connection();
        test.set_reply("SET", "-READONLY You can't write against a read only replica.\r\n");

        test.node.take(vec![acquire("a")], RouteHistory::default());
        test.until_replied(1).await;

        assert_eq!(test.told(), keys_and(false, &["a"]));
        assert!(connection.is_given_up());
        assert!(connection.failure().reason.contains("out of service"));
    }

    #[tokio::test]
    async fn only_requests_of_callers_announce_more_requests() {
        let test = TestNode::new(LONG).await;
        let vote = |command| {
            let recipient = Some(ReplyRecipient::Operation(1));
            Request { command, recipient, ..acquire("a") }
        };
        let lease = LONG;
        let counts = [
            acquire("a"),
            Request { command: Command::RELEASE, ..acquire("a") },
            renewal("a"),
            Request { command: Command::Verify, ..acquire("a") },
            vote(Command::Acquire { lease }),
            vote(Command::RELEASE),
            vote(Command::Renew { lease }),
        ]
        .map(|request| {
            let (node, connection) = (&test.node, &test.connection());
            let mut batch = PipelineBatch::new(
                node,
                connection,
                ConnectionKind::Commands,
                [request],
                RouteHistory::default(),
                test.node.generations.enter(),
            );
            let count = batch.caller_count();
            batch.requests.clear(); // they are not sent
            count
        });

        assert_eq!(counts, [1, 1, 0, 0, 1, 0, 0]);
    }

    #[tokio::test]
    async fn a_batch_after_a_subscription_is_timed_from_its_end() {
        let test = TestNode::new(LONG).await;
        let batch = PipelineBatch::new(
            &test.node,
            &test.connection(),
            ConnectionKind::Commands,
            [acquire("a")],
            RouteHistory::default(),
            test.node.generations.enter(),
        );
        let created = batch.sent();
        assert!(created > BootInstant::START && created <= boot_time());

        let mut subscribed = BootInstant::NEVER;
        let subscription = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert!(test.commands("SET").is_empty());
            subscribed = boot_time();
        };

        batch.run_after(subscription).await;

        assert_eq!(test.told(), keys_and(true, &["a"]));
        assert!(test.sent()[0] >= subscribed && subscribed > created);
    }

    #[tokio::test]
    async fn replies_are_those_of_the_connection_that_carried_the_request() {
        let test = with_replicas(2).await;
        test.set_reply("EVALSHA", ":1\r\n");
        let connection = test.connection();
        let acks = connection.acks.as_ref().expect("it uses replicas");
        let release = Request { command: Command::RELEASE, ..acquire("a") };

        test.node.take(vec![release, acquire("b")], RouteHistory::default());
        test.until_replied(2).await;

        let mut epochs = test.epochs();
        epochs.sort();
        let mut expected = [Some(acks.epoch), Some(connection.epoch)];
        expected.sort();
        assert_eq!(epochs, expected);
        assert_ne!(test.connections("EVALSHA"), test.connections("SET"), "replicas delay one of them");
    }

    #[tokio::test]
    async fn a_redirected_release_needs_no_replica() {
        let test = with_replicas(0).await;
        test.set_reply("EVALSHA", ":1\r\n");
        let release = Request { command: Command::RELEASE, ..acquire("a") };
        let redirected = RouteHistory { hops: 1, ..RouteHistory::default() };

        test.node.take(vec![release], redirected);
        test.until_replied(1).await;

        assert_eq!(test.told(), keys_and(true, &["a"]));
        assert!(!test.commands("EVALSHA")[0].ends_with(" write"));
        assert_eq!(test.commands("WAIT").len(), 2, "it keeps the order of redirected requests");
    }

    #[tokio::test]
    async fn a_redirected_request_keeps_the_time_of_its_first_attempt() {
        let test = TestNode::new(LONG).await;
        test.follow_redirects();
        test.set_reply("SET away", "-TRYAGAIN the slot is migrating\r\n");
        let since = Some(BootInstant::from_nanos(7));
        let before = boot_time();

        for history in [RouteHistory::default(), RouteHistory { since, hops: 3, asking: false }] {
            test.node.take(vec![acquire("away"), acquire("here")], history);
            test.until_replied(test.told().len() + 1).await;
        }
        test.node.take(vec![acquire("here")], RouteHistory::default());
        test.until_replied(3).await;

        assert_eq!(test.told(), keys_and(true, &["here"; 3]));
        let redirected = test.redirected();
        let [(first, first_route), (second, second_route)] = &redirected[..] else {
            panic!("only batches with redirects are followed: {redirected:?}")
        };
        assert_eq!((&first[..], &second[..]), (&["away".to_owned()][..], &["away".to_owned()][..]));
        assert!(first_route.since.is_some_and(|since| since >= before && since <= boot_time()));
        assert_eq!(*second_route, RouteHistory { since, hops: 3, asking: false });
    }

    #[tokio::test]
    async fn a_redirected_release_does_not_block_its_key() {
        let test = with_replicas(2).await;
        test.follow_redirects();
        test.set_reply("EVALSHA", "-TRYAGAIN the slot is migrating\r\n");
        let release = Request { command: Command::RELEASE, ..acquire("a") };

        test.node.take(vec![release, acquire("a")], RouteHistory::default());
        test.until_replied(1).await;

        assert_eq!(test.told(), keys_and(true, &["a"]));
        assert_eq!(test.redirected().len(), 1);
    }
}
