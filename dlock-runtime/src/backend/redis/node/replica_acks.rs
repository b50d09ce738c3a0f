//! Writes that replicas must acknowledge. They are sent over a connection of their own, each
//! pipeline followed by one `WAIT`.
//!
//! `WAIT` waits for the last write of its own connection, and blocks all later commands there. So
//! this connection carries only requests that grant ownership, and `SetTtl`, one pipeline at a
//! time. All other requests are sent over the connection for commands, where no replica delays
//! them.
//!
//! Two connections have no common order. A request on this connection waits until earlier requests
//! that may change its key are answered: an acquire must not overtake the release of the same task.
//! In the other direction no request waits. A release, or the end of an idempotent call's lease,
//! can only overtake a renewal, which then finds no owner. `SetTtl` would find the hold, and the
//! renewal after it would extend the time to live that it has set: so both use this connection. A
//! withdraw may overtake the enqueue before it; the reply to that enqueue belongs to no waiter, and
//! leads to another withdraw. Redirected requests of a cluster all use this connection, to keep
//! their order; only those that grant ownership need the replicas. If a slot moves, its requests
//! that are not written yet leave the queue, and those in flight delay the requests to the new
//! primary (`generations`).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Notify;

use crate::backend::Request;
use crate::backend::redis::node::generations::GenerationGuard;
use crate::backend::redis::reply_sink::ReplySink;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::connection::Connection;
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::sync::lock;
use crate::token::Token;

/// The connection whose writes replicas must acknowledge.
pub(crate) struct ReplicaAckConnection {
    pub(crate) connection: Connection,
    /// An epoch of its own: a reply on the other connection says nothing about requests on this
    /// one.
    pub(crate) epoch: u64,
    target: Arc<ConnectTarget>,
    /// The receiver of requests that cannot be sent anymore.
    sink: Arc<dyn ReplySink>,
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Default)]
struct Queue {
    ready: Vec<QueuedRequest>,
    /// The keys that requests in flight on the connection for commands may change.
    busy: HashMap<Name, Busy>,
}

/// The requests of one key that are in flight on the connection for commands, or wait for those.
#[derive(Default)]
struct Busy {
    /// Each with its number, in order.
    in_flight: VecDeque<(u64, KeyChange)>,
    /// Each with the number from which on requests in flight came later.
    waiting: VecDeque<(u64, QueuedRequest)>,
    next: u64,
}

/// A request that is not sent yet, and the generation that it has joined.
type QueuedRequest = (GenerationGuard, Request);

/// A request that may change its key. Requests that are equal as changes are interchangeable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyChange {
    key: Name,
    token: Token,
    command: Command,
}

impl KeyChange {
    /// Returns the change of a request that does not grant ownership, if it may change its key.
    fn of(request: &Request) -> Option<Self> {
        let changes = !matches!(request.command, Command::Inspect | Command::Ping | Command::Verify);
        changes.then(|| Self {
            key: Name::clone(&request.key),
            token: request.token,
            command: request.command,
        })
    }
}

impl ReplicaAckConnection {
    pub(crate) fn new(
        connection: Connection,
        epoch: u64,
        target: Arc<ConnectTarget>,
        sink: Arc<dyn ReplySink>,
    ) -> Self {
        Self { connection, epoch, target, sink, queue: Mutex::default(), more: Notify::new() }
    }

    /// Removes the requests that belong to this connection, and returns the others.
    ///
    /// When one of the others is answered, call [`on_replies`](Self::on_replies).
    pub(crate) fn intercept(&self, requests: Vec<Request>, generation: &GenerationGuard) -> Vec<Request> {
        let others = lock(&self.queue).intercept(requests, generation);
        self.more.notify_one();
        others
    }

    /// Returns which of `requests` may change their keys.
    pub(crate) fn changes<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Vec<KeyChange> {
        requests.into_iter().filter_map(KeyChange::of).collect()
    }

    /// Notes that these requests were answered on the connection for commands.
    pub(crate) fn on_replies(&self, changes: &[KeyChange]) {
        let mut queue = lock(&self.queue);
        for change in changes {
            queue.on_reply(change);
        }
        drop(queue);
        self.more.notify_one();
    }

    /// Returns the requests of the next pipeline, and the oldest of their generations. Waits until
    /// there is one.
    pub(crate) async fn next(&self) -> (GenerationGuard, Vec<Request>) {
        loop {
            let more = self.more.notified();
            let next = lock(&self.queue).take();
            if let Some(oldest) = GenerationGuard::oldest(&next) {
                return (oldest, next.into_iter().map(|(_, request)| request).collect());
            }
            more.await;
        }
    }

    /// Removes the requests that were not written and for which `is_taken` returns `true`: another
    /// connection may send them.
    pub(crate) fn take_unsent(&self, is_taken: impl Fn(&Request) -> bool) -> Vec<QueuedRequest> {
        lock(&self.queue).take_if(is_taken)
    }

    /// Returns the `WAIT` command.
    pub(crate) fn wait(&self) -> Cmd {
        wait_command(&self.target)
    }

    /// Reads the reply to [`wait`](Self::wait). Returns the failure if too few replicas
    /// acknowledged.
    pub(crate) fn missing(&self, reply: Option<&Value>) -> Option<Failure> {
        let wanted = self.target.replica_acks;
        let what = match reply {
            Some(Value::Int(had)) if *had >= i64::from(wanted) => return None,
            Some(Value::Int(had)) => self.too_few(*had),
            Some(Value::ServerError(error)) => return Some(self.target.shown.failure(error)),
            _ => "the reply to `WAIT` is missing".to_owned(),
        };
        Some(Failure::new(FailureKind::Passing, format!("redis at {}: {what}", self.target.shown)))
    }

    /// Says how many replicas acknowledged in time, and what to do.
    fn too_few(&self, had: i64) -> String {
        format!(
            "only {had} of {} replicas acknowledged it in {} ms, 2/5 of the response timeout: check that they are \
             online, or raise `response_timeout` if they are too far away",
            self.target.replica_acks,
            ack_limit(self.target.response_timeout).as_millis()
        )
    }
}

/// Returns the `WAIT` command for the replicas of a server.
pub(crate) fn wait_command(target: &ConnectTarget) -> Cmd {
    let limit = ack_limit(target.response_timeout).as_millis().to_string();
    let mut wait = redis::cmd("WAIT");
    wait.arg(target.replica_acks).arg(limit);
    wait
}

/// Returns how long replicas may take to acknowledge: 2/5 of the response timeout, so that the next
/// pipeline, which waits for this one, is not late as well.
pub(crate) fn ack_limit(response_timeout: Duration) -> Duration {
    (response_timeout * 2 / 5).max(MIN_WAIT)
}

impl Drop for ReplicaAckConnection {
    /// Completes the requests that were not sent: they did not run.
    fn drop(&mut self) {
        let text = format!("the connection to redis at {} was given up", self.target.shown);
        let refused = Reply::Refused(Failure::new(FailureKind::Passing, text));
        let (_generations, replies): (Vec<_>, Vec<_>) = self
            .take_unsent(|_| true)
            .into_iter()
            .map(|(generation, request)| (generation, (request, refused.clone())))
            .unzip();
        if !replies.is_empty() {
            self.sink.on_replies(replies, boot_time(), None);
        }
    }
}

impl Queue {
    fn intercept(&mut self, requests: Vec<Request>, generation: &GenerationGuard) -> Vec<Request> {
        let mut others = Vec::new();
        for request in requests {
            if !request.needs_acks() && !matches!(request.command, Command::SetTtl { .. }) {
                if let Some(change) = KeyChange::of(&request) {
                    self.busy.entry(Name::clone(&request.key)).or_default().start(change);
                }
                others.push(request);
            } else if let Some(busy) = self.busy.get_mut(&request.key) {
                busy.waiting.push_back((busy.next, (generation.clone(), request)));
            } else {
                self.ready.push((generation.clone(), request));
            }
        }
        others
    }

    fn on_reply(&mut self, change: &KeyChange) {
        let Some(busy) = self.busy.get_mut(&change.key) else { return };
        busy.end(change);
        self.ready.extend(std::iter::from_fn(|| busy.pop_ready()));
        if busy.in_flight.is_empty() {
            self.busy.remove(&change.key);
        }
    }

    fn take(&mut self) -> Vec<QueuedRequest> {
        let count = self.ready.len().min(MAX_BATCH);
        self.ready.drain(..count).collect()
    }

    /// Removes the requests for which `is_taken` returns `true`; those of one key in order.
    fn take_if(&mut self, is_taken: impl Fn(&Request) -> bool) -> Vec<QueuedRequest> {
        let mut taken: Vec<_> = self.ready.extract_if(.., |(_, request)| is_taken(request)).collect();
        for busy in self.busy.values_mut() {
            for (number, (generation, request)) in std::mem::take(&mut busy.waiting) {
                if is_taken(&request) {
                    taken.push((generation, request));
                } else {
                    busy.waiting.push_back((number, (generation, request)));
                }
            }
        }
        taken
    }
}

impl Busy {
    fn start(&mut self, change: KeyChange) {
        self.in_flight.push_back((self.next, change));
        self.next += 1;
    }

    fn end(&mut self, change: &KeyChange) {
        if let Some(place) = self.in_flight.iter().position(|(_, of)| of == change) {
            self.in_flight.remove(place);
        }
    }

    /// Removes the first waiting request if all earlier requests are answered.
    fn pop_ready(&mut self) -> Option<QueuedRequest> {
        let oldest = self.in_flight.front().map_or(self.next, |(number, _)| *number);
        let is_ready = self.waiting.front().is_some_and(|(behind, _)| *behind <= oldest);
        if is_ready { self.waiting.pop_front().map(|(_, request)| request) } else { None }
    }
}

/// Long enough that one `WAIT` serves many requests, and short enough that its reply is not late.
const MAX_BATCH: usize = 1_000;

/// The limit 0 would mean no limit.
const MIN_WAIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::backend::redis::node::generations::Generations;
    use crate::backend::redis::node::health::NodeConnection;
    use crate::backend::redis::node::test_node::TestNode;
    use crate::backend::redis::tests::resp;
    use crate::backend::redis::topology::discovery::Discovery;
    use crate::backend::tests::test_operation::TestOperation;
    use crate::token::TokenSource;

    const ACQUIRE: Command = Command::Acquire { lease: Duration::from_secs(30) };

    fn request(key: &str, command: Command) -> Request {
        Request::new(key.into(), TokenSource::of_process(1).next(), command)
    }

    fn on_reply(queue: &mut Queue, request: &Request) {
        queue.on_reply(&KeyChange::of(request).expect("it may change its key"));
    }

    fn keys(requests: &[Request]) -> Vec<&str> {
        requests.iter().map(|request| &*request.key).collect()
    }

    fn intercept(queue: &mut Queue, requests: Vec<Request>) -> Vec<Request> {
        queue.intercept(requests, &Arc::<Generations>::default().enter())
    }

    fn take(queue: &mut Queue) -> Vec<Request> {
        queue.take().into_iter().map(|(_, request)| request).collect()
    }

    #[test]
    fn an_acquire_waits_for_earlier_releases() {
        let mut queue = Queue::default();

        let others = intercept(
            &mut queue,
            vec![
                request("a", Command::RELEASE),
                request("a", Command::Withdraw),
                request("a", ACQUIRE),
                request("b", ACQUIRE),
            ],
        );
        assert_eq!((keys(&others), keys(&take(&mut queue))), (vec!["a", "a"], vec!["b"]));
        on_reply(&mut queue, &others[0]);
        assert!(take(&mut queue).is_empty());
        on_reply(&mut queue, &others[1]);

        assert_eq!(keys(&take(&mut queue)), ["a"]);
        assert!(queue.busy.is_empty());
    }

    #[test]
    fn a_request_behind_a_waiting_one_waits_too() {
        let mut queue = Queue::default();
        let others = intercept(&mut queue, vec![request("a", Command::RELEASE), request("a", ACQUIRE)]);

        intercept(&mut queue, vec![request("a", Command::Renew { lease: Duration::from_secs(9) })]);
        on_reply(&mut queue, &others[0]);

        assert!(matches!(
            take(&mut queue)[..],
            [Request { command: ACQUIRE, .. }, Request { command: Command::Renew { .. }, .. }]
        ));
    }

    #[test]
    fn overlapping_reads_do_not_starve_a_write() {
        let (mut queue, read) = (Queue::default(), || Arc::new(TestOperation::default()).request("a"));
        let write = Arc::new(TestOperation { needs_acks: true, ..TestOperation::default() }).request("a");
        let mut in_flight = intercept(&mut queue, vec![read()]);
        let token = write.token;
        assert!(intercept(&mut queue, vec![write]).is_empty());

        in_flight.extend(intercept(&mut queue, vec![read()]));
        on_reply(&mut queue, &in_flight.remove(0));

        assert_eq!(take(&mut queue).iter().map(|request| request.token).collect::<Vec<_>>(), [token]);
        on_reply(&mut queue, &in_flight.remove(0));
        assert!(queue.busy.is_empty());
    }

    #[test]
    fn a_reply_to_a_later_request_releases_nothing() {
        let mut queue = Queue::default();
        let mut in_flight = intercept(&mut queue, vec![request("a", Command::RELEASE)]);
        intercept(&mut queue, vec![request("a", ACQUIRE)]);
        in_flight.extend(intercept(&mut queue, vec![request("a", Command::Withdraw)]));

        on_reply(&mut queue, &in_flight.remove(1));
        assert!(take(&mut queue).is_empty());
        on_reply(&mut queue, &in_flight.remove(0));

        assert_eq!(keys(&take(&mut queue)), ["a"]);
        assert!(queue.busy.is_empty());
    }

    /// The renewal would extend the time to live that `SetTtl` shortens.
    #[test]
    fn set_ttl_follows_a_renewal() {
        let mut queue = Queue::default();
        let lease = Duration::from_secs(30);
        let (renew, set_ttl) = (Command::Renew { lease }, Command::SetTtl { ttl: lease });
        let in_flight = intercept(&mut queue, vec![request("a", Command::RELEASE)]);

        let others = intercept(&mut queue, vec![request("a", renew), request("a", set_ttl)]);
        on_reply(&mut queue, &in_flight[0]);

        let commands = take(&mut queue).iter().map(|request| request.command).collect::<Vec<_>>();
        assert_eq!((others.len(), commands), (0, vec![renew, set_ttl]));
    }

    #[test]
    fn read_only_requests_block_no_acquire() {
        let mut queue = Queue::default();
        let looks = || vec![request("a", Command::Inspect), request("a", Command::Verify)];

        let others = intercept(&mut queue, looks().into_iter().chain([request("a", ACQUIRE)]).collect());

        assert_eq!((others.len(), keys(&take(&mut queue))), (2, vec!["a"]));
        assert!(ReplicaAckConnection::changes(&looks()).is_empty());
    }

    #[test]
    fn a_verification_waits_for_no_replica() {
        let mut queue = Queue::default();

        let others = intercept(&mut queue, vec![request("a", Command::Verify)]);

        assert_eq!(keys(&others), ["a"]);
    }

    #[test]
    fn a_pipeline_has_a_bounded_number_of_requests() {
        let mut queue = Queue::default();
        intercept(&mut queue, (0..=MAX_BATCH).map(|_| request("a", ACQUIRE)).collect());

        let counts = [take(&mut queue).len(), take(&mut queue).len(), take(&mut queue).len()];

        assert_eq!(counts, [MAX_BATCH, 1, 0]);
    }

    #[test]
    fn each_reply_frees_one_key_only() {
        let mut queue = Queue::default();
        let others =
            intercept(&mut queue, vec![request("a", Command::RELEASE), request("b", Command::RELEASE)]);
        intercept(&mut queue, vec![request("a", ACQUIRE), request("b", ACQUIRE)]);

        on_reply(&mut queue, &request("unknown", Command::RELEASE));
        assert!(take(&mut queue).is_empty());
        on_reply(&mut queue, &others[1]);

        assert_eq!(keys(&take(&mut queue)), ["b"]);
    }

    /// Returns a connected node that uses replicas, after its own task has ended.
    async fn with_replicas() -> (TestNode, Arc<NodeConnection>) {
        let mut test = TestNode::down_with(Discovery::Fixed, |settings| settings.rules.replica_acks = 2);
        test.connect().await;
        let connection = test.connection();
        test.stop().await;
        (test, connection)
    }

    #[tokio::test]
    async fn too_few_replicas_are_a_failure_that_names_them() {
        let (_test, connection) = with_replicas().await;
        let acks = connection.acks.as_ref().expect("it uses replicas");
        let missing = |reply| acks.missing(reply).map(|failure| (failure.kind, failure.reason));
        let error = resp::error("NOPERM this user may not");

        assert!(missing(Some(&Value::Int(2))).is_none() && missing(Some(&Value::Int(3))).is_none());
        for (reply, kind, reason) in [
            (Some(&Value::Int(1)), FailureKind::Passing, "only 1 of 2 replicas acknowledged it in "),
            (Some(&Value::Int(1)), FailureKind::Passing, "raise `response_timeout`"),
            (Some(&Value::Okay), FailureKind::Passing, "the reply to `WAIT` is missing"),
            (None, FailureKind::Passing, "the reply to `WAIT` is missing"),
            (Some(&error), FailureKind::Lasting, "this user may not"),
        ] {
            let (missing_kind, text) = missing(reply).expect("it is a failure");
            assert_eq!(missing_kind, kind);
            assert!(text.contains(reason), "{text}");
        }
    }

    #[tokio::test]
    async fn unsent_requests_are_refused_with_their_connection() {
        let (test, connection) = with_replicas().await;
        let acks = connection.acks.as_ref().expect("it uses replicas");
        let generation = Arc::<Generations>::default().enter();
        let requests =
            vec![request("waits", Command::RELEASE), request("waits", ACQUIRE), request("ready", ACQUIRE)];
        let others = acks.intercept(requests, &generation);
        let take_unsent =
            || -> Vec<_> { acks.take_unsent(|_| true).into_iter().map(|(_, request)| request).collect() };
        assert_eq!(keys(&others), ["waits"]);
        assert_eq!(keys(&take_unsent()), ["ready", "waits"]);
        assert!(take_unsent().is_empty());
        let told = test.told().len();

        acks.intercept(vec![request("ready", ACQUIRE)], &generation);
        drop(connection);

        assert_eq!(test.told()[told..], [("ready".to_owned(), false)]);
    }

    #[tokio::test]
    async fn a_pipeline_waits_for_the_next_request() {
        let (_test, connection) = with_replicas().await;
        let acks = connection.acks.as_ref().expect("it uses replicas");
        let next = acks.next();
        tokio::pin!(next);
        assert!((&mut next).now_or_never().is_none());

        let requests = vec![request("a", Command::RELEASE), request("a", ACQUIRE)];
        let others = acks.intercept(requests, &Arc::<Generations>::default().enter());
        assert!((&mut next).now_or_never().is_none());
        acks.on_replies(&ReplicaAckConnection::changes(&others));

        assert_eq!(keys(&next.await.1), ["a"]);
    }
}
