//! The primaries of a Redis Cluster: one node per primary in use, and a map of the slots.
//!
//! ```text
//!  requests --slot--> slot map --> node of its primary --MOVED, ASK--> node of another primary
//!                        ^
//!   MOVED: one slot -----+----- cluster view: all slots, if a majority of the queried servers agrees
//! ```
//!
//! Any thread may send requests. Routing decisions are made under one lock, and requests leave in
//! the order of the decisions (`send_queue`). The replies of one connection are processed in order.
//! So requests for one key keep their order, even if they are redirected.
//!
//! | module | contents |
//! |---|---|
//! | `slot_map` | the slot of a key, and the primary of a slot |
//! | `cluster_view` | parses what servers report about the slots |
//! | `refresh` | queries the servers |
//! | `primary` | one primary and its replies |
//! | `redirects` | requests that a server redirects |
//! | `slot_migration` | slots that move to another primary |

mod cluster_view;
mod primary;
pub(crate) mod probe;
pub(crate) mod redirects;
mod refresh;
mod slot_map;
mod slot_migration;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use crate::backend::Request;
use crate::backend::redis::encoding;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::reply_sink::{EngineSink, ReplySink as _};
use crate::backend::redis::topology::LoadHint;
use crate::backend::redis::topology::cluster::primary::{Primary, PrimaryReplySink};
use crate::backend::redis::topology::cluster::redirects::RedirectedRequest;
use crate::backend::redis::topology::cluster::slot_map::{Slot, SlotMap};
use crate::backend::redis::topology::cluster::slot_migration::MigrationBarrier;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::redis::topology::send_queue::{self, FanOut, SendQueue};
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::clock::boot_time;
use crate::config::Settings;
use crate::config::cluster::ClusterEndpoint;
use crate::config::node_spec::NodeSpec;
use crate::fork::in_one_process;
use crate::key::Name;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::sync::lock;
use crate::token::{Jitter, ProcessId};

/// The primaries of a cluster.
pub(crate) struct Cluster {
    /// A reference to itself for the objects that it creates.
    me: Weak<Self>,
    engine: EngineSink,
    jitter: Jitter,
    process: ProcessId,
    settings: Settings,
    /// The servers to query first.
    seeds: Vec<ConnectTarget>,
    /// How to connect to a server. The cluster supplies host and port.
    access: NodeSpec,
    state: Mutex<ClusterState>,
    /// Requests that were decided under the lock of `state` and are not sent yet.
    outgoing: SendQueue<QueuedSend>,
    /// Notified when the slot map may be out of date.
    map_stale: Notify,
    /// Notified when a request is parked.
    parked: Notify,
    /// Notified when there is a new server to connect to.
    joined: Notify,
    /// Held while `run` runs. If a runtime ends, the previous `run` must not create nodes on it any
    /// more.
    running: tokio::sync::Mutex<()>,
}

struct ClusterState {
    table: SlotMap<Arc<Primary>>,
    members: Vec<Arc<Primary>>,
    /// Servers to query if no primary can be queried.
    replicas: Vec<Address>,
    /// Redirected requests that cannot be sent yet, in order.
    parked: Vec<RedirectedRequest>,
    /// Requests that wait behind others, or for the first lookup, in order.
    deferred: Vec<Request>,
    /// Slots whose old primaries have unanswered requests, with the number of their barriers.
    migrating: HashMap<Slot, usize>,
    /// Slots with a redirect since the current refresh started. The result of the refresh is older.
    recently_redirected: HashSet<Slot>,
    /// Whether a server has reported that the cluster is down, and has not reported since that it
    /// is up.
    is_down: bool,
    lookup: InitialLookup,
}

/// The first lookup of the primaries, if the manager has started without it.
///
/// Requests wait for the first attempt, and are refused at once after it has failed, as for the
/// connection to one server. That attempt is shorter than a response timeout, so a call with a
/// single try gets its reason.
enum InitialLookup {
    /// The first attempt has not ended. All requests are deferred.
    InProgress,
    /// The last attempt has failed. Each later attempt follows a backoff, without end.
    Failed(Failure),
    Found,
}

/// The next item to send.
enum QueuedSend {
    Requests(FanOut<Destination>),
    /// A barrier behind all requests to a server that has lost slots.
    Behind(Arc<Primary>, MigrationBarrier),
}

/// The receiver of a request and the route that the request has taken.
struct Destination {
    member: Arc<Primary>,
    history: RouteHistory,
}

impl PartialEq for Destination {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.member, &other.member) && self.history == other.history
    }
}

/// The decisions about requests.
#[derive(Default)]
struct RoutingDecision {
    fan: FanOut<Destination>,
    refused: Vec<(Request, Failure)>,
}

impl RoutingDecision {
    fn send(&mut self, member: &Arc<Primary>, history: RouteHistory, request: Request) {
        let same_node = |destination: &Destination| Arc::ptr_eq(&destination.member, member);
        let to = Destination { member: Arc::clone(member), history };
        send_queue::add(&mut self.fan, to, same_node, request);
    }

    fn refuse_all(&mut self, requests: Vec<Request>, failure: &Failure) {
        self.refused.extend(requests.into_iter().map(|request| (request, failure.clone())));
    }

    fn refuse(&mut self, request: Request, kind: FailureKind, why: &str) {
        self.refused.push((request, Failure::new(kind, why)));
    }
}

impl Cluster {
    pub(crate) fn new(
        seeds: ClusterEndpoint,
        settings: &Settings,
        engine: EngineSink,
        process: ProcessId,
    ) -> Arc<Self> {
        let ClusterEndpoint { servers, access } = seeds;
        let seeds = servers.into_iter().map(|at| ConnectTarget::new(at, settings)).collect();
        let state = ClusterState {
            table: SlotMap::new(),
            members: Vec::new(),
            replicas: Vec::new(),
            parked: Vec::new(),
            deferred: Vec::new(),
            migrating: HashMap::new(),
            recently_redirected: HashSet::new(),
            is_down: false,
            lookup: if settings.lazy { InitialLookup::InProgress } else { InitialLookup::Found },
        };
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            engine,
            jitter: Jitter::of(process),
            process,
            settings: settings.clone(),
            seeds,
            access,
            state: Mutex::new(state),
            outgoing: SendQueue::default(),
            map_stale: Notify::new(),
            parked: Notify::new(),
            joined: Notify::new(),
            running: tokio::sync::Mutex::default(),
        })
    }

    /// Routes requests to the primaries of their slots, or answers them if they cannot be sent.
    pub(crate) fn take(&self, requests: Vec<Request>) {
        self.route(|_| requests);
    }

    /// Routes the requests that `out` takes from the state to the primaries of their slots.
    fn route(&self, out: impl FnOnce(&mut ClusterState) -> Vec<Request>) {
        self.decide(|state, decided| {
            let requests = out(state);
            match &state.lookup {
                InitialLookup::InProgress => return state.deferred.extend(requests),
                InitialLookup::Failed(failure) => return decided.refuse_all(requests, failure),
                InitialLookup::Found => {}
            }
            let mut behind = state.parked_keys();
            behind.extend(state.deferred.iter().map(|request| Name::clone(&request.key)));
            for request in requests {
                let slot = Slot::of(&request.key);
                if let Some(problem) = self.splits_slots(&request, slot) {
                    decided.refuse(request, FailureKind::InvalidKey, problem);
                    continue;
                }
                let receiver = if let Command::Ping = request.command {
                    let used = || state.serving().into_iter().filter(|member| member.is_used());
                    let down = used().find(|member| !member.node.is_ready());
                    down.or_else(|| used().next()).or_else(|| state.table.owner(slot))
                } else if state.migrating.contains_key(&slot) || behind.contains(&request.key) {
                    behind.insert(Name::clone(&request.key));
                    state.deferred.push(request);
                    continue;
                } else {
                    state.table.owner(slot)
                };
                match receiver {
                    Some(member) => {
                        self.open(member);
                        decided.send(member, RouteHistory::default(), request);
                    }
                    None => decided.refuse(request, FailureKind::Passing, NO_PRIMARY),
                }
            }
        });
    }

    /// Decides about requests under the lock and executes the decisions. Requests are queued before
    /// another thread decides.
    fn decide<T>(&self, decide: impl FnOnce(&mut ClusterState, &mut RoutingDecision) -> T) -> T {
        let mut decided = RoutingDecision::default();
        let mut state = lock(&self.state);
        let returned = decide(&mut state, &mut decided);
        if !decided.fan.is_empty() {
            self.outgoing.push(QueuedSend::Requests(decided.fan));
        }
        drop(state);
        self.send();
        if !decided.refused.is_empty() {
            let refused = decided.refused.into_iter();
            let refused = refused.map(|(request, failure)| (request, Reply::Refused(failure))).collect();
            self.engine.on_replies(refused, boot_time(), None);
        }
        returned
    }

    /// Connects to a primary if it was unused.
    fn open(&self, member: &Primary) {
        if member.start_connecting() {
            self.joined.notify_one();
        }
    }

    /// Sends what is queued, unless another thread is sending.
    pub(crate) fn send(&self) {
        self.outgoing.send(&self.engine.shared, |leaving| match leaving {
            QueuedSend::Requests(fan) => {
                for (Destination { member, history }, requests) in fan {
                    member.node.take(requests, history);
                }
            }
            QueuedSend::Behind(member, barrier) => {
                // They are older than the deferred requests for their keys. No other thread sends
                // requests to the node before the barrier is placed.
                let has_moved = |request: &Request| barrier.slots.contains(&Slot::of(&request.key));
                let moved = member.node.take_unwritten(has_moved);
                lock(&self.state).deferred.splice(0..0, moved);
                member.node.drop_behind(barrier);
            }
        });
    }

    /// Returns the load of the primary that serves `key`.
    pub(crate) fn traffic(&self, key: Option<&str>) -> LoadHint {
        let Some(slot) = key.map(Slot::of) else { return LoadHint::DriverOnly };
        let state = lock(&self.state);
        state.table.owner(slot).map_or(LoadHint::DriverOnly, |primary| primary.node.traffic())
    }

    /// Finds out whether the writer, which has requests to write, is blocked.
    pub(crate) fn watch_writer(&self) {
        lock(&self.state).members.iter().for_each(|member| member.node.watch_writer());
    }

    /// Returns a problem if data of the lock would be in another slot than the lock, so that no
    /// script could access both.
    fn splits_slots(&self, request: &Request, slot: Slot) -> Option<&'static str> {
        if !request.key.contains(['{', '}']) {
            return None;
        }
        let (name, problem) = encoding::of_settings(&self.settings, true).other_data_and_problem(request)?;
        (Slot::of(&name) != slot).then_some(problem)
    }

    /// Returns `true` if requests for at least some keys can be sent.
    pub(crate) fn is_ready(&self) -> bool {
        lock(&self.state).members.iter().any(|member| member.node.is_ready())
    }

    /// Keeps connections to all primaries in use, forever.
    ///
    /// `first` receives whether the primaries were found. If that fails, there is no second
    /// attempt. Without `first`, a lazy start looks for them until they are found.
    pub(crate) async fn run(self: Arc<Self>, first: Option<oneshot::Sender<Result<(), Failure>>>) {
        let _running = self.running.lock().await;
        let mut nodes = JoinSet::new(); // aborts its tasks when dropped
        if let Some(first) = first {
            let started = self.find().await;
            let failed = started.is_err();
            if first.send(started).is_err() || failed {
                return;
            }
        } else if !matches!(lock(&self.state).lookup, InitialLookup::Found) {
            self.look_up().await;
        } else {
            let mut state = lock(&self.state);
            let members = std::mem::take(&mut state.members); // the old nodes have ended
            let table = std::mem::replace(&mut state.table, SlotMap::new());
            drop(state);
            for member in &members {
                member.node.end(); // a node that never ran may have waiting requests
            }
            drop((members, table)); // nothing is locked
        }
        let forever = async { tokio::join!(self.watch(), self.send_parked()) };
        tokio::pin!(forever);
        loop {
            for member in lock(&self.state).members.iter().filter(|member| member.is_used()) {
                member
                    .running
                    .get_or_init(|| nodes.spawn(in_one_process(Arc::clone(&member.node).run(None))));
            }
            tokio::select! {
                Some(ended) = nodes.join_next() => if let Err(error) = ended && error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                },
                () = self.joined.notified() => {}
                _ = &mut forever => {}
            }
        }
    }

    /// Returns the primary at an address.
    fn known(&self, address: &Address) -> Option<Arc<Primary>> {
        lock(&self.state).known(address).cloned()
    }

    /// Returns the primary at an address, and creates it if it is unknown. Returns `None` if there
    /// are too many primaries.
    fn member_at(&self, state: &mut ClusterState, address: &Address) -> Option<Arc<Primary>> {
        if let Some(member) = state.known(address) {
            member.mark_needed();
            return Some(Arc::clone(member));
        }
        if state.members.len() >= MAX_PRIMARIES {
            return None;
        }
        let route = Arc::new(self.route_to(address));
        let sink = Arc::new(PrimaryReplySink { cluster: Weak::clone(&self.me), address: address.clone() });
        let node = Node::new(
            Discovery::Primary(Arc::clone(&route)),
            Arc::clone(&self.engine.shared),
            self.engine.events.clone(),
            sink,
            self.process,
            &self.settings,
        );
        let member = Arc::new(Primary::new(address.clone(), route, Arc::new(node)));
        state.members.push(Arc::clone(&member));
        Some(member)
    }

    fn route_to(&self, at: &Address) -> ConnectTarget {
        let server = NodeSpec { host: at.host.clone(), port: at.port, ..self.access.clone() };
        ConnectTarget::new(server, &self.settings)
    }
}

impl ClusterState {
    fn known(&self, address: &Address) -> Option<&Arc<Primary>> {
        self.members.iter().find(|member| member.address == *address)
    }

    /// Returns the keys of parked requests. New requests for these keys must wait.
    fn parked_keys(&self) -> HashSet<Name> {
        self.parked.iter().map(|redirected| Name::clone(&redirected.request.key)).collect()
    }

    /// Returns the primaries that serve slots.
    fn serving(&self) -> Vec<&Arc<Primary>> {
        let mut last = std::ptr::null();
        // Adjacent slots mostly have one primary, so repeats are skipped before hashing.
        let others = |owner: &*const Primary| std::mem::replace(&mut last, *owner) != *owner;
        let owners: HashSet<_> = self.table.owners().map(Arc::as_ptr).filter(others).collect();
        self.members.iter().filter(|member| owners.contains(&Arc::as_ptr(member))).collect()
    }
}

/// Returns the failure to report: lasting failures take precedence.
fn first_to_report(mut failures: Vec<Failure>) -> Option<Failure> {
    let lasting = failures.iter().position(|failure| failure.kind != FailureKind::Passing);
    match lasting {
        Some(at) => Some(failures.swap_remove(at)),
        None => failures.pop(),
    }
}

/// The problem of a key whose slot has no primary.
const NO_PRIMARY: &str = "no primary serves the slot of the key in the cluster";

/// The maximum number of primaries; Redis recommends at most 1,000 nodes. Without it, a server that
/// pretends to be a cluster could cause connections to any number of hosts.
const MAX_PRIMARIES: usize = 1_000;

/// Parses a value as a redirect and as a cluster view.
#[cfg(any(test, fuzzing))]
pub(super) fn read_value(value: &redis::Value) {
    let server = NodeSpec { host: "h".to_owned(), port: 1, ..NodeSpec::default() };
    let asked = ConnectTarget::new(server, &Settings::default());
    let _ = redirects::Redirect::read(value, &asked.address());
    let info = redis::Value::BulkString(b"cluster_state:ok".to_vec());
    let _ = cluster_view::ClusterView::read(&[info, value.clone()], &asked);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::*;
    use crate::backend::EventReceiver;
    use crate::backend::redis::command_queue::CommandQueue;
    use crate::backend::redis::node::test_node::{TestPrimary, acquire};
    use crate::backend::redis::tests::resp::reports;
    use crate::backend::redis::tests::scripted_server::{LIMIT, ScriptedServer, patient};
    use crate::backend::redis::topology::Topology;
    use crate::backend::redis::topology::cluster::redirects::Redirect;
    use crate::backend::redis::topology::cluster::slot_migration::OwnershipSource;
    use crate::backend::tests::recorded_events::RecordedEvents;
    use crate::token::TokenSource;

    pub(super) fn cluster_with(settings: &Settings, seeds: &[&ScriptedServer]) -> Arc<Cluster> {
        let servers = seeds.iter().map(|seed| seed.spec()).collect();
        let seeds = ClusterEndpoint { servers, access: NodeSpec::default() };
        let sink = EngineSink { shared: Arc::new(CommandQueue::default()), events: EventReceiver::default() };
        let process = TokenSource::of_process(1).process();
        sink.shared.runtimes.set_own(tokio::runtime::Handle::current());
        Cluster::new(seeds, settings, sink, process)
    }

    pub(super) fn cluster(seeds: &[&ScriptedServer]) -> Arc<Cluster> {
        cluster_with(&patient(), seeds)
    }

    /// Records the events of a cluster while these keys are in use.
    pub(super) fn recorded(cluster: &Cluster, keys: &[&str]) -> Arc<RecordedEvents> {
        let events = RecordedEvents::attach(|events| cluster.engine.events.attach(events));
        for key in keys {
            events.set_in_use(key);
        }
        events
    }

    pub(super) fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    pub(super) fn assign(cluster: &Cluster, slot: Slot, to: &Address, source: OwnershipSource) -> usize {
        cluster.decide(|state, _| cluster.assign_slots(state, vec![(slot, to.clone())], source)).len()
    }

    /// Adds a primary, which is not connected.
    pub(super) fn member(cluster: &Cluster, address: &Address) -> Arc<Primary> {
        cluster.member_at(&mut lock(&cluster.state), address).expect("there is room")
    }

    /// Removes the requests that wait for a connection to a primary, and returns their keys.
    pub(super) fn waiting_keys(cluster: &Cluster, address: &Address) -> Vec<String> {
        let waiting = member(cluster, address).node.take_unwritten(|_| true);
        waiting.iter().map(|request| request.key.to_string()).collect()
    }

    /// Adds a primary that was used, and is not reachable.
    pub(super) fn lost_member(cluster: &Cluster, address: &Address) -> Arc<Primary> {
        let member = member(cluster, address);
        member.start_connecting();
        member.node.end();
        member
    }

    /// Adds a primary, and connects it.
    pub(super) async fn connected_member(
        cluster: &Cluster,
        address: &Address,
        running: &mut JoinSet<()>,
    ) -> Arc<Primary> {
        let member = member(cluster, address);
        let (first, connected) = oneshot::channel();
        running.spawn(Arc::clone(&member.node).run(Some(first)));
        connected.await.expect("the attempt ends").expect("the server takes connections");
        member.start_connecting();
        member.finish_connecting();
        member
    }

    /// Waits until `is_true` returns `true`.
    pub(super) async fn until(is_true: impl Fn() -> bool) {
        let wait = async {
            while !is_true() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(LIMIT, wait).await.expect("it happens in time");
    }

    /// A cluster with connected primaries.
    pub(super) struct Primaries {
        pub(super) cluster: Arc<Cluster>,
        pub(super) addresses: Vec<Address>,
        pub(super) servers: Vec<TestPrimary>,
        /// The keys of the acquires that the servers received.
        asked: mpsc::UnboundedReceiver<String>,
        pub(super) running: JoinSet<()>,
    }

    impl Primaries {
        pub(super) async fn start(count: usize) -> Self {
            let (cluster, mut running) = (cluster(&[]), JoinSet::new());
            let (ask, asked) = mpsc::unbounded_channel();
            let servers: Vec<_> = (0..count).map(|_| TestPrimary::start(ask.clone())).collect();
            let addresses: Vec<_> = servers.iter().map(TestPrimary::address).collect();
            for address in &addresses {
                connected_member(&cluster, address, &mut running).await;
            }
            let driven = Arc::clone(&cluster);
            running.spawn(async move {
                loop {
                    driven.engine.shared.wake.notified().await;
                    driven.send(); // like the driver, for a long queue
                }
            });
            Self { cluster, addresses, servers, asked, running }
        }

        pub(super) async fn asked(&mut self) -> String {
            tokio::time::timeout(LIMIT, self.asked.recv()).await.expect("it is asked").expect("servers run")
        }
    }

    #[tokio::test]
    async fn primaries_of_an_ended_run_are_dropped_before_the_next() {
        let (cluster, old) = (cluster(&[]), at("10.0.0.1", 1));
        let mut old_run = Box::pin(Arc::clone(&cluster).run(None));
        assert_eq!((&mut old_run).now_or_never(), None);
        assert!(cluster.member_at(&mut lock(&cluster.state), &old).is_some());

        let mut next = Box::pin(Arc::clone(&cluster).run(None));
        assert_eq!((&mut next).now_or_never(), None);
        assert!(cluster.known(&old).is_some(), "both runs are active");
        drop(old_run);
        assert_eq!((&mut next).now_or_never(), None);

        assert!(cluster.known(&old).is_none(), "the next run starts without primaries");
    }

    #[tokio::test]
    async fn requests_to_a_primary_that_never_ran_are_refused_at_the_next_run() {
        let cluster = cluster(&[]);
        let events = recorded(&cluster, &[]);
        assign(&cluster, Slot::of("{7}"), &at("10.0.0.1", 1), OwnershipSource::Map);
        cluster.take(vec![acquire("{7}")]);
        assert!(events.refused().is_empty());

        assert_eq!(Box::pin(Arc::clone(&cluster).run(None)).now_or_never(), None);

        let [(key, reason)] = &events.refused()[..] else { panic!("it is one request") };
        assert_eq!((&**key, reason.contains("is being replaced")), ("{7}", true), "{reason}");
    }

    #[tokio::test]
    async fn only_requests_by_the_same_route_are_sent_together() {
        let cluster = cluster(&[]);
        let [a, b] = [1, 2].map(|port| member(&cluster, &at("10.0.0.1", port)));
        let asking = RouteHistory { asking: true, ..RouteHistory::default() };
        let to = |member: &Arc<Primary>, history| Destination { member: Arc::clone(member), history };

        assert!(to(&a, asking) == to(&a, asking));
        assert!(to(&a, asking) != to(&a, RouteHistory::default()));
        assert!(to(&a, asking) != to(&b, asking));
    }

    #[tokio::test]
    async fn a_ping_finds_a_primary_in_use_that_is_away() {
        let primaries = Primaries::start(1).await;
        let (cluster, events) = (&primaries.cluster, recorded(&primaries.cluster, &[]));
        let away = at("127.0.0.1", 1);
        lost_member(cluster, &away);
        assign(cluster, Slot::of("{7}"), &primaries.addresses[0], OwnershipSource::Map);
        assign(cluster, Slot::of("{8}"), &away, OwnershipSource::Map);

        cluster.take(vec![Request { command: Command::Ping, ..acquire("{7}") }]);

        assert_eq!(events.refused().len(), 1);
    }

    #[tokio::test]
    async fn a_key_whose_counter_is_in_another_slot_is_refused() {
        let (cluster, no_primary) = (cluster(&[]), FailureKind::Passing);
        let events = recorded(&cluster, &[]);
        for (key, command, kind) in [
            ("a}b", Command::Fence, FailureKind::InvalidKey),
            ("{a}b", Command::Fence, no_primary),
            ("ab", Command::Fence, no_primary),
            ("a}b", Command::Verify, no_primary),
        ] {
            cluster.take(vec![Request { command, ..acquire(key) }]);

            let replied = lock(&events.replies).pop();
            let Some((_, Reply::Refused(failure))) = replied else { panic!("{key}: {replied:?}") };
            assert_eq!(failure.kind, kind, "{key}: {}", failure.reason);
            assert!(!failure.reason.is_empty());
        }
    }

    #[test]
    fn a_lasting_failure_is_reported_first() {
        let failure = |kind, text: &str| Failure::new(kind, text.to_owned());
        let passing = |text| failure(FailureKind::Passing, text);
        let reported = |failures| first_to_report(failures).map(|failure| failure.reason.to_string());

        assert_eq!(reported(vec![]), None);
        assert_eq!(reported(vec![passing("a"), passing("b")]).as_deref(), Some("b"));
        let lasting = failure(FailureKind::Lasting, "wrong");
        assert_eq!(reported(vec![passing("a"), lasting, passing("b")]).as_deref(), Some("wrong"));
    }

    #[tokio::test]
    async fn a_run_ends_if_its_first_lookup_fails_or_does_not_matter() {
        let lookup =
            |cluster: &Arc<Cluster>, first| tokio::time::timeout(LIMIT, Arc::clone(cluster).run(Some(first)));
        let (first, outcome) = oneshot::channel();
        lookup(&cluster(&[]), first).await.expect("it ends");
        let failure = outcome.await.expect("it tells").expect_err("there is no server");
        assert!(failure.reason.contains("names no server"), "{}", failure.reason);

        let primary = at("10.0.0.1", 1);
        let seed = ScriptedServer::start(reports("ok", &[(0, 16_383, &[&primary])]));
        let (first, outcome) = oneshot::channel();
        drop(outcome);
        lookup(&cluster(&[&seed]), first).await.expect("it ends");
    }

    #[tokio::test]
    async fn a_cluster_is_ready_with_one_primary() {
        let disconnected = cluster(&[]);
        assert!(!disconnected.is_ready());
        member(&disconnected, &at("10.0.0.1", 1));
        assert!(!disconnected.is_ready());

        let primaries = Primaries::start(1).await;
        member(&primaries.cluster, &at("10.0.0.1", 1));

        assert!(primaries.cluster.is_ready());
    }

    #[tokio::test]
    async fn a_primary_with_a_slot_serves() {
        let cluster = cluster(&[]);
        let [a, b, c] = [1, 2, 3].map(|port| at("10.0.0.1", port));
        let serving = || -> Vec<_> {
            lock(&cluster.state).serving().iter().map(|member| member.address.port).collect()
        };
        for address in [&a, &b, &c] {
            member(&cluster, address);
        }
        assert!(serving().is_empty());

        assign(&cluster, Slot::of("{7}"), &a, OwnershipSource::Map);
        for slot in Slot::all().take(3) {
            assign(&cluster, slot, &c, OwnershipSource::Map);
        }

        assert_eq!(serving(), [1, 3]);
    }

    #[tokio::test]
    async fn later_requests_for_a_key_wait_behind_a_parked_one() {
        let mut primaries = Primaries::start(1).await;
        let (cluster, at) = (Arc::clone(&primaries.cluster), primaries.addresses[0].clone());
        assign(&cluster, Slot::of("{7}"), &at, OwnershipSource::Map);
        cluster.follow(&at, vec![(acquire("{7}a"), Redirect::TryAgain)], RouteHistory::default());

        cluster.take(vec![acquire("{7}a"), acquire("{7}b")]);
        let moved = Redirect::Moved(Slot::of("{7}"), at.clone());
        cluster.follow(&at, vec![(acquire("{7}a"), moved)], RouteHistory::default());

        assert_eq!(primaries.asked().await, "{7}b");
        let waiting = cluster.decide(|state, _| (state.parked.len(), state.deferred.len()));
        assert_eq!(waiting, (2, 1));
        let parked = tokio::spawn(async move { cluster.send_parked().await });
        for _ in 0..3 {
            assert_eq!(primaries.asked().await, "{7}a");
        }
        parked.abort();
    }

    #[tokio::test]
    async fn requests_are_collected_while_others_are_in_flight() {
        let primaries = Primaries::start(1).await;
        let (cluster, at) = (Arc::clone(&primaries.cluster), &primaries.addresses[0]);
        let topology = Topology::Cluster(Arc::clone(&cluster));
        assign(&cluster, Slot::of("{7}"), at, OwnershipSource::Map);
        let in_flight = |count: usize, queued: usize| {
            let shared = CommandQueue::default();
            (0..count).for_each(|_| shared.push(acquire("{7}")));
            shared.take();
            (0..queued).for_each(|_| shared.push(acquire("{7}")));
            topology.traffic(&shared)
        };

        assert_eq!(in_flight(0, 1), LoadHint::Idle);
        assert_eq!(in_flight(16, 1), LoadHint::DriverOnly, "they would not be sent now");
        assert_eq!(in_flight(16, 3), LoadHint::Idle, "they are a batch");
        assert_eq!(in_flight(0, 0), LoadHint::DriverOnly, "there is no request");
    }

    #[tokio::test]
    async fn a_writer_that_is_blocked_is_noticed() {
        let primaries = Primaries::start(1).await;
        let shared = &primaries.cluster.engine.shared;
        let blocked = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        {
            let _entered = blocked.enter();
            shared.runtimes.set_callers();
        }
        shared.push(acquire("{7}"));

        Topology::Cluster(Arc::clone(&primaries.cluster)).watch_writer();

        let left = shared.runtimes.has_left_callers.notified();
        tokio::time::timeout(LIMIT, left).await.expect("the writer is blocked");
        blocked.shutdown_background();
    }

    #[tokio::test]
    async fn the_driver_sends_the_rest_of_a_long_queue() {
        let cluster = cluster(&[]);
        cluster.outgoing.push(QueuedSend::Requests(FanOut::default()));

        Topology::Cluster(Arc::clone(&cluster)).send_rest();

        cluster.outgoing.send(&cluster.engine.shared, |_| panic!("nothing is left"));
    }

    #[tokio::test]
    async fn a_request_is_refused_before_its_caller_gives_up() {
        let mut settings = patient();
        settings.rules.response_timeout = Duration::from_millis(160);
        let longest = Duration::from_millis(150);
        let cluster = cluster_with(&settings, &[]);
        let events = recorded(&cluster, &[]);
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let silent = at("127.0.0.1", silent.local_addr().expect("it is bound").port());
        assign(&cluster, Slot::of("{7}"), &silent, OwnershipSource::Map);
        let connecting = tokio::spawn(Arc::clone(&member(&cluster, &silent).node).run(None));

        let begun = boot_time();
        cluster.take(vec![acquire("{7}")]);
        until(|| !events.refused().is_empty()).await;

        assert!(boot_time().since(begun) >= longest);
        let [(key, reason)] = &events.refused()[..] else { panic!("it is one request") };
        assert_eq!(key, "{7}");
        let why = format!("the connection to redis at {silent} was not established after 150 ms");
        assert_eq!(*reason, why);
        connecting.abort();
    }
}
