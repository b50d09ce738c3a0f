//! Requests that go out together, and their answers.
//!
//! Each request is answered exactly once, whatever happens: what has no answer when its batch is dropped is answered "unknown".
//!
//! Not here: which connection is used and when it is given up (`node`, `health`), what bytes go over it (`codec`), who is told
//! (`answers`).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use redis::{RedisResult, Value};

use crate::backend::Request;
use crate::backend::redis::encoding::codec;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::connection::Connection;
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::inline_io::InlineDriver;
use crate::backend::redis::node::invalidation_tracker::TrackingConnection;
use crate::backend::redis::node::replica_acks::ReplicaAckConnection;
use crate::clock::boot_time;
use crate::protocol::command::{Failure, Reply};
use crate::protocol::deadline::BootInstant;

/// Over which of a link's connections a pipeline goes.
#[derive(Clone)]
pub(crate) enum Way {
    Commands,
    /// That on which replicas are waited for.
    ReplicaAckConnection,
    /// That on which what is read is tracked.
    Tracked(TrackingConnection),
}

/// Requests in one pipeline.
pub(crate) struct PipelineBatch {
    node: Arc<Node>,
    link: Arc<NodeConnection>,
    way: Way,
    requests: VecDeque<Request>,
    /// When they left: read before the first byte.
    sent: BootInstant,
    /// Whether scripts go by their text, which a server that has forgotten their names learns by.
    by_text: bool,
    passage: RouteHistory,
}

/// Has it poll for the first time.
fn queued(mut answered: Answered) -> Answered {
    match answered.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => Box::pin(std::future::ready(answers)),
        Poll::Pending => answered,
    }
}

/// What sends a batch and waits for its answers.
pub(crate) type Answered = Pin<Box<dyn Future<Output = RedisResult<Vec<Value>>> + Send>>;

/// Who finds out that answers are late.
#[derive(Clone, Copy)]
pub(crate) enum TimeoutSource {
    /// Timers of the runtime that sends.
    OfTheRuntime,
    /// The link: who sends may be on no runtime at all, and a timer for each batch is dear.
    OfTheLink,
}

/// How requests have come to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteHistory {
    /// When they were sent for the first time, where this is another.
    pub(crate) since: Option<BootInstant>,
    /// How often a server has sent them elsewhere.
    pub(crate) hops: u32,
    /// Whether the server is to take them though another serves their slot.
    pub(crate) contender: bool,
}

impl PipelineBatch {
    pub(crate) fn new(
        node: &Arc<Node>,
        link: &Arc<NodeConnection>,
        way: Way,
        requests: impl IntoIterator<Item = Request>,
        passage: RouteHistory,
    ) -> Self {
        let (node, link) = (Arc::clone(node), Arc::clone(link));
        let requests = requests.into_iter().collect();
        Self { node, link, way, requests, sent: boot_time(), by_text: false, passage }
    }

    /// Sends the requests; their answers are dealt with where they come in.
    pub(crate) fn send(self) {
        let link = Arc::clone(&self.link);
        link.exchanges.start(self);
    }

    /// Sends the requests here and now, and returns what deals with their answers. Those whose script the server does not know have not
    /// run; they are sent again by their text, as a batch with a time of its own.
    pub(crate) fn exchange(self) -> impl Future<Output = ()> + Send {
        // In which order tasks are polled is their runtime's affair; requests of one key leave in theirs.
        let mut answered = queued(self.begin(TimeoutSource::OfTheRuntime));
        async move {
            let mut batch = self;
            while let Some(forgotten) = batch.end(answered.await) {
                answered = queued(forgotten.begin(TimeoutSource::OfTheRuntime));
                batch = forgotten;
            }
        }
    }

    /// Does the same once `ready` is done: the requests leave then, and not before.
    pub(crate) async fn exchange_after(mut self, ready: impl Future<Output = ()>) {
        ready.await;
        self.sent = boot_time();
        self.exchange().await;
    }

    /// Returns what queues the requests at the connection when it is polled first, and waits for their answers then.
    pub(crate) fn begin(&self, timing: TimeoutSource) -> Answered {
        let loaded = self.link.scripts.as_ref().filter(|_| !self.by_text && !self.link.lacks_evalsha());
        let besides = |request: &Request| match self.way {
            Way::ReplicaAckConnection if request.command.grants_ownership() => Some("write"),
            Way::Commands | Way::ReplicaAckConnection => None,
            Way::Tracked(_) => Some("read"),
        };
        let mut pipeline = redis::Pipeline::with_capacity(self.requests.len() * self.stride() + 1);
        for request in &self.requests {
            if self.passage.contender {
                pipeline.cmd("ASKING");
            }
            let (layout, grant_lease) = (self.node.layout(), self.node.grant_lease);
            let namespaces = &self.node.shared.namespaces;
            layout.encode(request, namespaces, grant_lease, loaded, besides(request), &mut pipeline);
        }
        if let Some(acks) = self.acks() {
            pipeline.add_command(acks.wait());
        }
        let connection = self.connection(timing);
        let (held, mut connection) = (connection.hold(), connection.client().clone());
        // Unconstrained: a task that has used up its share would not be let in, and lose its place.
        Box::pin(tokio::task::unconstrained(async move {
            let _held = held;
            connection.send_packed_commands(&pipeline, 0, pipeline.len()).await
        }))
    }

    /// Deals with the answers, and returns what is to be sent again.
    pub(crate) fn end(mut self, answers: RedisResult<Vec<Value>>) -> Option<Self> {
        match answers {
            Ok(answers) => self.deliver(&answers),
            Err(error) => {
                let timeout = error.is_timeout();
                let inbound = self.connection(TimeoutSource::OfTheLink).inbound();
                let failure = self.link.route.lost(error, inbound);
                self.end_unanswered(&failure, timeout);
                None
            }
        }
    }

    /// The answers have not come in time.
    pub(crate) fn give_up_waiting(self) {
        let failure = self.link.route.late();
        self.end_unanswered(&failure, true);
    }

    fn end_unanswered(mut self, failure: &Failure, timeout: bool) {
        let failure = &Failure { connection_lost: !timeout, ..failure.clone() };
        match self.way {
            Way::Commands => self.link.unanswered(failure, !timeout),
            // Nobody looks now and then whether this one is alive.
            Way::ReplicaAckConnection => self.link.give_up(failure.clone()),
            Way::Tracked(_) => self.node.tracking.give_up(),
        }
        self.fail(failure);
    }

    /// Returns how many of its requests are those of callers, which others of theirs are likely to follow.
    pub(crate) fn of_callers(&self) -> usize {
        let is_of_a_caller = |request: &&Request| {
            // Of those that several servers are asked nobody says who waits for them; whoever lets go hardly ever does.
            let lets_go = request.ballot.is_some() && request.command.is_release();
            request.is_awaited() && !lets_go && !request.command.is_renewal()
        };
        self.requests.iter().filter(is_of_a_caller).count()
    }

    /// Returns what drives the connection that it goes over, where that is ours to have.
    pub(crate) fn pump(&self) -> Option<Arc<InlineDriver>> {
        self.link.pump.clone().filter(|_| matches!(self.way, Way::Commands))
    }

    /// Returns the link that it goes over.
    pub(crate) fn link(&self) -> &Arc<NodeConnection> {
        &self.link
    }

    /// Returns whether it goes over the connection that tells of changes.
    pub(crate) fn is_tracked(&self) -> bool {
        matches!(self.way, Way::Tracked(_))
    }

    /// Returns when it left.
    pub(crate) fn sent(&self) -> BootInstant {
        self.sent
    }

    /// Gives the answers to whom they belong, and returns what is to be sent again.
    fn deliver(&mut self, answers: &[Value]) -> Option<Self> {
        if answers.iter().any(codec::is_out_of_service) {
            self.link.give_up_since("is out of service: read-only, loading or without a master");
        } else {
            self.link.answered();
        }
        let (node, count) = (Arc::clone(&self.node), self.requests.len());
        let redirects = node.answers.redirects();
        // The answer to the `WAIT` stands behind those to the requests.
        let missing = self.acks().and_then(|acks| acks.missing(answers.get(count * self.stride())));
        let mut replies = Vec::with_capacity(count);
        let (mut forgotten, mut sent_away) = (VecDeque::new(), Vec::new());
        for answer in answers.iter().skip(self.stride() - 1).step_by(self.stride()) {
            let Some(request) = self.requests.pop_front() else { break };
            let is_not_known = codec::is_unknown_script(answer) || self.notes_lacking(answer);
            if is_not_known && !self.by_text {
                forgotten.push_back(request);
            } else if let Some(elsewhere) = redirects.and_then(|redirects| redirects.read(answer)) {
                sent_away.push((request, elsewhere));
            } else {
                let layout = self.node.layout();
                let reply = match (layout.decode(&request, answer, &self.link.route.shown), &missing) {
                    (Reply::Owner, Some(missing)) if request.command.grants_ownership() => {
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
        if let Some(redirects) = redirects.filter(|_| !sent_away.is_empty()) {
            if let Some(acks) = self.link.acks.as_ref().filter(|_| self.acks().is_none()) {
                acks.answered(&ReplicaAckConnection::changed(sent_away.iter().map(|(request, _)| request)));
            }
            let since = self.passage.since.or(Some(self.sent));
            redirects.follow(sent_away, RouteHistory { since, ..self.passage });
        }
        let again = !forgotten.is_empty();
        again.then(|| {
            let mut again = Self::new(&self.node, &self.link, self.way.clone(), forgotten, self.passage);
            again.by_text = true;
            again
        })
    }

    /// Returns `true` if the server has no `EVALSHA`: all that comes later goes by its text.
    fn notes_lacking(&self, answer: &Value) -> bool {
        let lacks = codec::lacks_evalsha(answer);
        if lacks && self.link.note_lacking_evalsha() {
            self.link.route.report_unsupported("EVALSHA", answer);
        }
        lacks
    }

    /// Returns how many answers there are to each request, of which the last is its own.
    fn stride(&self) -> usize {
        1 + usize::from(self.passage.contender)
    }

    /// Returns the way over which it goes, where that is the one on which replicas are waited for.
    fn acks(&self) -> Option<&ReplicaAckConnection> {
        self.link.acks.as_ref().filter(|_| matches!(self.way, Way::ReplicaAckConnection))
    }

    /// Returns the connection that it goes over.
    fn connection(&self, timing: TimeoutSource) -> &Connection {
        match (&self.way, self.acks(), timing) {
            (Way::Tracked(wire), _, TimeoutSource::OfTheLink) => &wire.untimed,
            (Way::Tracked(wire), ..) => &wire.connection,
            (_, Some(acks), _) => &acks.connection,
            (.., TimeoutSource::OfTheLink) => &self.link.untimed,
            _ => &self.link.connection,
        }
    }

    /// Returns which connection that is.
    fn epoch(&self) -> u64 {
        match (&self.way, self.acks()) {
            (Way::Tracked(wire), _) => wire.epoch,
            (_, Some(acks)) => acks.epoch,
            _ => self.link.epoch,
        }
    }

    fn fail(&mut self, failure: &Failure) {
        let requests = std::mem::take(&mut self.requests);
        self.reply(requests.into_iter().map(|request| (request, Reply::Unknown(failure.clone()))).collect());
    }

    fn reply(&self, replies: Vec<(Request, Reply)>) {
        let epoch = self.epoch();
        let behind =
            self.link.acks.as_ref().filter(|_| self.acks().is_none()).map(|acks| {
                (acks, ReplicaAckConnection::changed(replies.iter().map(|(request, _)| request)))
            });
        self.node.answers.on_replies(replies, self.sent, Some(epoch));
        if let Some((acks, keys)) = behind {
            acks.answered(&keys);
        }
    }
}

impl Drop for PipelineBatch {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            self.fail(&self.link.unanswered_since().with_connection_lost());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::node::test_node::{TestNode, acquire};
    use crate::sync::lock;
    use std::sync::Mutex;
    use std::time::Duration;

    /// More than a connection of the client has room for by itself.
    const MANY: usize = 90;

    #[tokio::test]
    async fn requests_leave_in_their_order_however_many_wait_for_the_connection() {
        let mut rig = TestNode::new(Duration::from_secs(20)).await;
        let keys: Vec<_> = (0..=MANY).map(|number| number.to_string()).collect();

        for key in &keys[..MANY] {
            rig.node.take(vec![acquire(key)], RouteHistory::default());
        }
        // The connection has made room, and what waits for it has not been polled again.
        tokio::task::yield_now().await;
        rig.node.take(vec![acquire(&keys[MANY])], RouteHistory::default());
        let mut left = Vec::new();
        while left.len() < keys.len() {
            left.push(rig.asked().await);
        }

        assert_eq!(left, keys);
    }

    #[tokio::test]
    async fn requests_leave_in_the_order_in_which_they_were_given_whichever_task_is_polled_first() {
        let mut rig = TestNode::new(Duration::from_secs(20)).await;
        let link = rig.node.link().expect("it is ready");
        let batch = |key| {
            PipelineBatch::new(&rig.node, &link, Way::Commands, [acquire(key)], RouteHistory::default())
        };

        let (first, second) = (batch("a").exchange(), batch("b").exchange());
        tokio::join!(second, first);

        assert_eq!([rig.asked().await, rig.asked().await], ["a", "b"]);
    }

    #[tokio::test]
    async fn who_has_no_answer_is_told_why_the_connection_was_given_up() {
        let mut rig = TestNode::new(Duration::from_secs(20)).await;
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        rig.on_reply(move |_, reply| lock(&heard).push(format!("{reply:?}")));
        rig.hold();

        rig.node.take(vec![acquire("a")], RouteHistory::default());
        rig.asked().await;
        rig.node.link().expect("it is ready").give_up_since("has moved away");
        rig.until_told(1).await;

        let said = lock(&said);
        assert!(
            said[0].contains("given up before it answered") && said[0].contains("has moved away"),
            "{said:?}"
        );
    }
}
