//! A quorum: independent servers of which a majority decides (Redlock).
//!
//! ```text
//!             +--> node --> server 0 --+
//!  requests --+--> node --> server 1 --+--> votes --> operations --outcome, once--> engine
//!             +--> node --> server 2 --+                  +---- withdraw, repair ---> nodes
//! ```
//!
//! Each command is sent to all servers at once, through the pipelines of the nodes. Its outcome is
//! reported when a majority has decided it, so the latency is that of the median server. Each
//! server has its own cleanup queue for commands that may have run while it was unreachable.
//!
//! | module | contents |
//! |---|---|
//! | `operations` | the pending operations and the effects of their votes |
//! | `outcome` | reports outcomes to the engine |
//! | `connect` | the first connections: whether a majority is reachable |
//! | `membership` | the identity and uptime of each server |
//!
//! See also `protocol::quorum`, which counts the votes.

mod connect;
pub(crate) mod membership;
mod operations;
mod outcome;

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};

use crate::backend::Request;
use crate::backend::redis::cleanup::CleanupQueue;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::grant_message::GrantMessage;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::reply_sink::{EngineSink, ReplySink};
use crate::backend::redis::topology::LoadHint;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::redis::topology::quorum::membership::{MemberIndex, Membership};
use crate::backend::redis::topology::quorum::operations::QuorumOperations;
use crate::backend::redis::topology::send_queue::{self, SendQueue};
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::reply_recipient::ReplyRecipient;
use crate::clock::boot_time;
use crate::config::Settings;
use crate::config::quorum::QuorumEndpoint;
use crate::fork::in_one_process;
use crate::key::Name;
use crate::protocol::command::{Command, Failure, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::quorum::{FollowUp, majority};
use crate::sync::lock;
use crate::token::{Jitter, ProcessId, Token};

/// The servers of a quorum.
pub(crate) struct Quorum {
    sink: EngineSink,
    voters: Vec<QuorumNode>,
    membership: Arc<Membership>,
    operations: Mutex<QuorumOperations>,
    /// Requests that were decided under the lock of `operations` and are not sent yet.
    outgoing: SendQueue<QuorumFanOut>,
    jitter: Jitter,
}

/// Requests by server index.
type QuorumFanOut = send_queue::FanOut<usize>;

/// One server of the quorum.
struct QuorumNode {
    node: Arc<Node>,
    cleanup: Arc<CleanupQueue>,
}

impl Quorum {
    pub(crate) fn new(
        voters: QuorumEndpoint,
        settings: &Settings,
        sink: EngineSink,
        process: ProcessId,
    ) -> Arc<Self> {
        let mut of_server = settings.clone();
        // An unreachable server must not use up the lease that a majority grants.
        of_server.rules.response_timeout = settings.rules.response_timeout.min(settings.lease / 4);
        let membership = Arc::new(Membership::new(voters.0.len(), settings.lease));
        let shared = Arc::clone(&sink.shared);
        let quorum = Arc::new_cyclic(|quorum| {
            let voter = |(server, at)| {
                let route = Arc::new(ConnectTarget::new(at, &of_server));
                let place = MemberIndex { membership: Arc::clone(&membership), server };
                let replies = Votes { quorum: Weak::clone(quorum), server };
                let node = Node::new(
                    Discovery::Quorum(route, place),
                    Arc::clone(&shared),
                    sink.events.clone(),
                    Arc::new(replies),
                    process,
                    &of_server,
                );
                QuorumNode { node: Arc::new(node), cleanup: Arc::default() }
            };
            let voters: Vec<_> = voters.0.into_iter().enumerate().map(voter).collect();
            let (membership, operations, outgoing) =
                (Arc::clone(&membership), Mutex::default(), SendQueue::default());
            let jitter = Jitter::of(process);
            Self { sink, voters, membership, operations, outgoing, jitter }
        });
        let _ = shared
            .cleanup_of_servers
            .set(quorum.voters.iter().map(|voter| Arc::clone(&voter.cleanup)).collect());
        quorum
    }

    /// Sends requests to every server.
    pub(crate) fn take(&self, requests: Vec<Request>) {
        let sent = boot_time();
        self.decide(|operations, fan| {
            for request in requests {
                self.membership.record_lease(request.command, sent);
                let asked = request.for_one_of_many();
                let number = operations.open(request, sent, self.voters.len());
                self.ask_all(number, &asked, fan);
            }
        });
        self.send();
    }

    /// Returns `Idle` if a majority of the servers is idle. Otherwise only the driver sends: a
    /// request costs one write per server, so each write should carry many requests.
    pub(crate) fn traffic(&self) -> LoadHint {
        let idle = self.voters.iter().filter(|voter| voter.node.under_way() == LoadHint::Idle).count();
        if idle >= majority(self.voters.len()) { LoadHint::Idle } else { LoadHint::DriverOnly }
    }

    /// Queues the withdrawals that are due at reachable servers, and returns the time until the
    /// next, at most `longest`.
    pub(crate) fn clean_up(&self, longest: Duration) -> Duration {
        let ready = self.voters.iter().enumerate().filter(|(_, voter)| voter.node.is_ready());
        let next = ready.map(|(server, QuorumNode { cleanup, .. })| {
            let mut fan = QuorumFanOut::default();
            cleanup
                .due_withdrawals()
                .into_iter()
                .for_each(|leave| send_queue::add(&mut fan, server, |of| *of == server, leave));
            self.push(fan);
            cleanup.due_in()
        });
        let next = next.min().unwrap_or(longest).min(longest);
        self.send();
        next
    }

    /// Keeps connections open, forever. `first` receives whether a majority was reachable at the
    /// start.
    pub(crate) async fn run(
        &self,
        first: Option<oneshot::Sender<Result<(), Failure>>>,
    ) -> Result<(), JoinError> {
        let mut nodes = JoinSet::new(); // aborts its tasks when dropped
        let mut outcomes = FuturesUnordered::new();
        for QuorumNode { node, .. } in &self.voters {
            let (sender, outcome) = first.is_some().then(oneshot::channel).unzip();
            outcomes.extend(outcome);
            let node = Arc::clone(node);
            nodes.spawn(in_one_process(async move {
                if sender.is_some() {
                    Arc::clone(&node).run(sender).await;
                }
                node.run(None).await; // the server may become reachable later
            }));
        }
        let first_outcome = async {
            let Some(first) = first else { return std::future::pending().await };
            let outcome = connect::connect_majority(&mut outcomes).await;
            let enough = outcome.is_ok();
            if first.send(outcome).is_ok() && enough {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = first_outcome => Ok(()),
            ended = nodes.join_next() => ended.unwrap_or(Ok(())),
        }
    }

    /// Decides what to send, and queues it before another thread decides: a repair must not follow
    /// the release that would remove it.
    fn decide(&self, decide: impl FnOnce(&mut QuorumOperations, &mut QuorumFanOut)) {
        let (mut operations, mut fan) = (lock(&self.operations), QuorumFanOut::default());
        decide(&mut operations, &mut fan);
        self.push(fan);
    }

    fn push(&self, fan: QuorumFanOut) {
        if !fan.is_empty() {
            self.outgoing.push(fan);
        }
    }

    /// Adds the request of an operation for every server.
    fn ask_all(&self, number: usize, asked: &Request, fan: &mut QuorumFanOut) {
        for server in 0..self.voters.len() {
            let recipient = Some(ReplyRecipient::Operation(number));
            let asked = Request { recipient, ..asked.for_one_of_many() };
            send_queue::add(fan, server, |of| *of == server, asked);
        }
    }

    /// Sends the queued requests, unless another thread is sending.
    pub(crate) fn send(&self) {
        self.outgoing.send(&self.sink.shared, |fan| {
            for (server, asked) in fan {
                if let Some(voter) = self.voters.get(server) {
                    voter.node.take(asked, RouteHistory::default());
                }
            }
        });
    }

    /// Counts replies of a server to requests that were sent at `sent` on the connection `epoch`.
    fn on_votes(&self, server: usize, votes: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>) {
        let now = boot_time();
        let counts = self.membership.counts(server, sent);
        let (mut outcomes, mut own, mut over) = (Vec::new(), Vec::new(), 0);
        self.decide(|operations, fan| {
            for (request, reply) in votes {
                let Some(number) = request.recipient.as_ref().and_then(ReplyRecipient::operation) else {
                    if let Command::Acquire { .. } = request.command {
                        operations.repaired(server, request.token, &reply);
                    } else {
                        own.push((request, reply));
                    }
                    continue;
                };
                let counted = operations.vote(server, number, &request, reply, counts);
                for (server, follow) in counted.follows {
                    self.follow(server, follow, &request, fan);
                }
                if let Some((number, next)) = counted.next {
                    self.ask_all(number, &next, fan);
                }
                outcomes.extend(counted.outcome);
                over += usize::from(counted.is_over);
            }
        });
        self.on_withdrawal_replies(server, own, epoch, now);
        self.send();
        self.report(outcomes, now);
        self.sink.shared.answered(over);
    }

    /// Adds the request that a vote leads to at a server.
    fn follow(&self, server: usize, follow: FollowUp, asked: &Request, fan: &mut QuorumFanOut) {
        let (key, token) = (Name::clone(&asked.key), asked.token);
        let command = match follow {
            FollowUp::Withdraw => Command::Withdraw,
            FollowUp::Repair(lease) => Command::Acquire { lease },
            FollowUp::Orphan => return self.schedule_cleanup(server, vec![(key, token)]),
            FollowUp::Unverified | FollowUp::Absent => return,
        };
        send_queue::add(fan, server, |of| *of == server, Request::new(key, token, command));
    }

    /// Queues tokens for cleanup at a server.
    fn schedule_cleanup(&self, server: usize, orphaned: Vec<(Name, Token)>) {
        if let Some(voter) = self.voters.get(server) {
            voter.cleanup.add(orphaned, Some(NO_CONNECTION));
            self.sink.shared.cleanup.more.notify_one();
        }
    }

    /// Handles the replies of a server to withdrawals of its cleanup queue.
    fn on_withdrawal_replies(
        &self,
        server: usize,
        mut own: Vec<(Request, Reply)>,
        epoch: Option<u64>,
        now: BootInstant,
    ) {
        let Some(voter) = self.voters.get(server).filter(|_| !own.is_empty()) else { return };
        voter.cleanup.on_withdrawal_replies(&mut own, epoch, now);
        let failed =
            own.into_iter().filter(|(_, reply)| matches!(reply, Reply::Unknown(_) | Reply::Refused(_)));
        self.schedule_cleanup(server, failed.map(|(request, _)| (request.key, request.token)).collect());
        self.sink.shared.cleanup.more.notify_one();
        self.sink.shared.settled.notify_waiters();
    }
}

/// Delivers the replies of one server as votes.
struct Votes {
    quorum: Weak<Quorum>,
    server: usize,
}

impl ReplySink for Votes {
    fn on_replies(&self, replies: Vec<(Request, Reply)>, sent: BootInstant, epoch: Option<u64>) {
        if let Some(quorum) = self.quorum.upgrade() {
            quorum.on_votes(self.server, replies, sent, epoch);
        }
    }

    /// A grant of one server proves nothing.
    fn on_grant(&self, _grant: GrantMessage) {}

    fn on_key_event(&self, key: Option<&Name>) {
        if let Some(quorum) = self.quorum.upgrade() {
            quorum.sink.on_key_event(key);
        }
    }

    fn connected(&self, moved: bool) {
        if let Some(quorum) = self.quorum.upgrade() {
            if let Some(voter) = quorum.voters.get(self.server) {
                voter.cleanup.retry_now(|_| true);
            }
            quorum.sink.connected(moved); // wakes the cleanup
        }
    }
}

/// An epoch that no connection has: a withdrawal must be answered twice to count as proof.
const NO_CONNECTION: u64 = 0;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::backend::EventReceiver;
    use crate::backend::redis::node::test_node::acquire;
    use crate::backend::redis::tests::scripted_server::{LIMIT, ScriptedServer, patient};
    use crate::backend::redis::tests::{is_notified, resp, unknown, within_limit};
    use crate::backend::redis::topology::quorum::operations::OperationOutcome;
    use crate::backend::tests::recorded_events::RecordedEvents;
    use crate::config::node_spec::NodeSpec;
    use crate::protocol::command::FailureKind;
    use crate::token::TokenSource;

    /// A quorum of three servers that are not reachable.
    fn quorum() -> (Arc<Quorum>, EventReceiver) {
        quorum_at([1, 2, 3], &Settings::default())
    }

    fn quorum_at(ports: [u16; 3], settings: &Settings) -> (Arc<Quorum>, EventReceiver) {
        let spec = |port| NodeSpec { host: "127.0.0.1".to_owned(), port, ..NodeSpec::default() };
        let events = EventReceiver::default();
        let sink = EngineSink { shared: Arc::default(), events: events.clone() };
        let process = TokenSource::of_process(1).process();
        let servers = QuorumEndpoint(ports.map(spec).to_vec());
        (Quorum::new(servers, settings, sink, process), events)
    }

    fn recorded(events: &EventReceiver) -> Arc<RecordedEvents> {
        let recorded = RecordedEvents::attach(|receiver| events.attach(receiver));
        recorded.set_in_use("k");
        recorded
    }

    /// Returns the reply to `INFO` of a server with this `run_id`.
    fn described(run_id: &str) -> String {
        resp::bulk(&format!("run_id:{run_id}\r\nuptime_in_seconds:9\r\n"))
    }

    fn withdraw() -> Request {
        Request { command: Command::Withdraw, ..acquire("k") }
    }

    /// Returns the servers at which a token must be cleaned up.
    fn cleaned_up(quorum: &Quorum) -> Vec<usize> {
        let voters = quorum.voters.iter().enumerate();
        voters.filter(|(_, voter)| !voter.cleanup.is_empty()).map(|(server, _)| server).collect()
    }

    #[tokio::test]
    async fn a_request_is_refused_once_while_no_server_is_reachable() {
        let (quorum, events) = quorum();
        let (events, shared) = (recorded(&events), Arc::clone(&quorum.sink.shared));
        shared.push(acquire("k"));

        quorum.take(shared.take());

        assert_eq!(events.refused().len(), 1);
        assert!(!shared.has_more(), "it is answered by each server");
        assert_eq!(quorum.traffic(), LoadHint::DriverOnly);
        assert_eq!(quorum.clean_up(LIMIT), LIMIT);
    }

    #[tokio::test]
    async fn a_request_waits_for_the_first_connections_for_a_quarter_of_the_lease() {
        let silent = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
        let ports = silent.each_ref().map(|server| server.local_addr().expect("it listens").port());
        let mut settings = Settings { lazy: true, lease: Duration::from_millis(80), ..Settings::default() };
        settings.rules.response_timeout = LIMIT * 2;
        settings.connect_timeout = LIMIT * 2;
        let (quorum, events) = quorum_at(ports, &settings);
        let events = recorded(&events);

        quorum.take(vec![acquire("k")]);
        let refused = async {
            while events.refused().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        let ended = tokio::select! {
            _ = quorum.run(None) => unreachable!("it runs forever"),
            ended = tokio::time::timeout(LIMIT, refused) => ended,
        };

        assert_eq!(ended, Ok(()));
    }

    #[tokio::test]
    async fn a_token_without_an_owner_is_cleaned_up_at_every_server() {
        for (reply, servers) in [(unknown(), vec![0, 1, 2]), (Reply::Contended, vec![])] {
            let (quorum, _no_engine) = quorum();
            let outcome =
                |key: &str, sent| OperationOutcome { request: acquire(key), reply: reply.clone(), sent };
            let now = boot_time();

            quorum.report(vec![outcome("a", BootInstant::START), outcome("b", now)], now);

            assert_eq!(cleaned_up(&quorum), servers, "{reply:?}");
        }
    }

    #[tokio::test]
    async fn a_withdrawal_that_failed_is_repeated_at_its_server() {
        let refused = Reply::Refused(Failure::new(FailureKind::Passing, "out of memory"));
        for (reply, servers) in [(unknown(), vec![1]), (refused, vec![1]), (Reply::NotOwner, vec![])] {
            let (quorum, _no_engine) = quorum();

            quorum.on_votes(1, vec![(withdraw(), reply.clone())], boot_time(), Some(7));

            assert_eq!(cleaned_up(&quorum), servers, "{reply:?}");
        }
    }

    #[tokio::test]
    async fn unanswered_withdrawals_are_retried_when_their_server_is_back() {
        let (quorum, _no_engine) = quorum();
        for server in [0, 1] {
            quorum.on_votes(server, vec![(withdraw(), unknown())], boot_time(), Some(7));
            let withdrawals = quorum.voters[server].cleanup.due_withdrawals().into_iter();
            let replies = withdrawals.map(|withdrawal| (withdrawal, unknown())).collect();
            quorum.on_votes(server, replies, boot_time(), Some(7));
        }
        let is_due = |server: usize| quorum.voters[server].cleanup.due_in().is_zero();
        assert!(!is_due(0) && !is_due(1));
        is_notified(&quorum.sink.shared.cleanup.more);

        Votes { quorum: Arc::downgrade(&quorum), server: 1 }.connected(false);

        assert!(!is_due(0) && is_due(1) && is_notified(&quorum.sink.shared.cleanup.more));
    }

    #[tokio::test]
    async fn an_empty_vote_changes_nothing() {
        let (quorum, _no_engine) = quorum();

        quorum.on_votes(1, Vec::new(), boot_time(), None);

        assert!(!is_notified(&quorum.sink.shared.cleanup.more));
    }

    #[tokio::test]
    async fn spread_retries_are_random_and_others_are_not() {
        let (quorum, events) = quorum();
        let events = recorded(&events);
        let ttl = |ttl, round_trip| {
            let (request, sent) = (acquire("k"), BootInstant::START);
            let reply = Reply::NotQueued { ttl };
            quorum.report(vec![OperationOutcome { request, reply, sent }], sent.plus(round_trip));
            match lock(&events.replies).pop() {
                Some((_, Reply::NotQueued { ttl })) => ttl,
                other => panic!("it is still not queued: {other:?}"),
            }
        };
        let (second, slow) = (Duration::from_secs(1), Duration::from_secs(10));

        assert_eq!((ttl(Some(second), slow), ttl(None, slow)), (Some(second), None));
        for (round_trip, longest) in [(Duration::ZERO, 8), (Duration::from_millis(10), 40), (slow, 200)] {
            let longest = Duration::from_millis(longest);
            let all: Vec<_> = (0..200).filter_map(|_| ttl(Some(Duration::ZERO), round_trip)).collect();
            assert!(all.iter().all(|ttl| *ttl <= longest) && all.iter().any(|ttl| *ttl > longest / 2));
        }
    }

    #[tokio::test]
    async fn events_of_each_server_reach_the_engine_except_grants() {
        let (quorum, events) = quorum();
        let events = recorded(&events);
        let votes = Votes { quorum: Arc::downgrade(&quorum), server: 0 };

        votes.on_key_event(Some(&"k".into()));
        votes.connected(true);
        votes.connected(false);

        let reconnects = [true, false].map(|moved| format!(r#"reconnect moved={moved} ["k"]"#));
        assert_eq!(events.take(), ["invalidation k", &reconnects[0], &reconnects[1]]);
    }

    #[tokio::test]
    async fn each_connection_reports_once_that_writes_may_be_missing() {
        let cut = AtomicBool::new(false);
        let closing = ScriptedServer::start(move |command| match command.split(' ').next() {
            Some("INFO") => Some(described("a")),
            Some("SET") if !cut.swap(true, Ordering::SeqCst) => None,
            _ => Some(resp::primary(command)),
        });
        let other = |run_id: &'static str| {
            ScriptedServer::start(move |command| match command {
                "INFO" => described(run_id),
                _ => resp::primary(command),
            })
        };
        let servers = [closing, other("b"), other("c")];
        let (quorum, events) = quorum_at(servers.each_ref().map(|server| server.port), &patient());
        let events = recorded(&events);
        let missing = async |connections| {
            let mut reported = Vec::new();
            while reported.len() < 2 * connections {
                reported.extend(events.take().into_iter().filter(|event| event.starts_with("reconnect")));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            reported.into_iter().filter(|event| event.contains("moved=true")).count()
        };
        let connected = async {
            let first = missing(servers.len()).await; // each also reports its subscription
            quorum.take(vec![acquire("k")]);
            [first, missing(1).await]
        };

        let reported = tokio::select! {
            _ = quorum.run(None) => unreachable!("it runs forever"),
            reported = within_limit("a reconnect", connected) => reported,
        };

        assert_eq!(reported, [servers.len(), 1]);
    }

    #[tokio::test]
    async fn a_server_that_connects_after_the_majority_keeps_its_connection() {
        let server = |delay| {
            let run_id = format!("{delay:?}");
            ScriptedServer::start(move |command| match command {
                "INFO" => {
                    std::thread::sleep(delay);
                    described(&run_id)
                }
                _ => resp::primary(command),
            })
        };
        let servers = [1, 2, 200].map(|delay| server(Duration::from_millis(delay)));
        let (quorum, _no_engine) = quorum_at(servers.each_ref().map(|server| server.port), &patient());
        let (first, outcome) = oneshot::channel::<Result<(), Failure>>();
        let connected = async {
            outcome.await.expect("it tells").expect("a majority is reachable");
            while !quorum.voters.iter().all(|voter| voter.node.is_ready()) {
                tokio::task::yield_now().await;
            }
        };

        tokio::select! {
            _ = quorum.run(Some(first)) => unreachable!("it runs forever"),
            () = within_limit("connections", connected) => {}
        }

        assert_eq!(servers.map(|server| server.count("INFO")), [1; 3]);
    }

    #[tokio::test]
    async fn a_run_ends_if_no_majority_can_be_reached() {
        let (quorum, _no_engine) = quorum();
        let (first, outcome) = oneshot::channel();

        let ended = tokio::time::timeout(LIMIT, quorum.run(Some(first))).await;

        assert!(ended.is_ok_and(|ended| ended.is_ok()));
        let failure = outcome.await.expect("it tells").expect_err("none is reachable");
        assert!(failure.reason.contains("a quorum needs 2 of 3 servers"), "{}", failure.reason);
    }

    #[tokio::test]
    async fn requests_for_a_server_are_sent_together() {
        let ((quorum, _no_engine), mut fan) = (quorum(), QuorumFanOut::default());

        for (number, key) in ["a", "b"].into_iter().enumerate() {
            quorum.ask_all(number, &acquire(key), &mut fan);
        }

        let operation = |request: Request| request.recipient.as_ref().and_then(ReplyRecipient::operation);
        let sent: Vec<_> = fan
            .into_iter()
            .map(|(server, requests)| (server, requests.into_iter().map(operation).collect::<Vec<_>>()))
            .collect();
        assert_eq!(sent, [0, 1, 2].map(|server| (server, vec![Some(0), Some(1)])));
    }

    #[tokio::test]
    async fn a_vote_leads_to_requests_or_a_cleanup_at_its_server() {
        let lease = Duration::from_secs(7);
        for (follow, command, cleaned) in [
            (FollowUp::Withdraw, Some(Command::Withdraw), vec![]),
            (FollowUp::Repair(lease), Some(Command::Acquire { lease }), vec![]),
            (FollowUp::Orphan, None, vec![1]),
            (FollowUp::Unverified, None, vec![]),
            (FollowUp::Absent, None, vec![]),
        ] {
            let ((quorum, _no_engine), mut fan) = (quorum(), QuorumFanOut::default());
            let asked = [acquire("a"), acquire("b")];

            for asked in &asked {
                quorum.follow(1, follow, asked, &mut fan);
            }

            let sent: Vec<_> = fan.into_iter().collect();
            assert_eq!(sent.len(), usize::from(command.is_some()), "{follow:?}");
            for (server, requests) in sent {
                let requests: Vec<_> = requests.into_iter().map(|of| (of.token, Some(of.command))).collect();
                let expected = asked.each_ref().map(|asked| (asked.token, command));
                assert_eq!((server, &requests[..]), (1, &expected[..]), "{follow:?}");
            }
            assert_eq!(cleaned_up(&quorum), cleaned, "{follow:?}");
        }
    }
}
