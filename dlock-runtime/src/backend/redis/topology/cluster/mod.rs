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
//! | `initial_lookup` | finds the primaries after a lazy start |
//! | `primary` | one primary and its replies |
//! | `redirects` | requests that a server redirects |
//! | `slot_migration` | slots that move to another primary |

mod cluster_view;
mod initial_lookup;
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
use crate::backend::redis::topology::cluster::initial_lookup::InitialLookup;
use crate::backend::redis::topology::cluster::primary::{Primary, PrimaryReplySink, WaitingForConnection};
use crate::backend::redis::topology::cluster::redirects::RedirectedRequest;
use crate::backend::redis::topology::cluster::slot_map::{Slot, SlotMap};
use crate::backend::redis::topology::cluster::slot_migration::MigrationBarrier;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::redis::topology::send_queue::{FanOut, SendQueue};
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
    /// Notified when a request waits for the first attempt to connect to its primary.
    waiting: Notify,
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
    /// Requests that wait behind others, in order.
    deferred: Vec<Request>,
    /// Slots whose old primary has unanswered requests, with the epoch of their last migration.
    migrating: HashMap<Slot, u64>,
    migration_epoch: u64,
    /// Slots with a redirect since the current refresh started. The result of the refresh is older.
    recently_redirected: HashSet<Slot>,
    /// Whether a server has reported that the cluster is down, and has not reported since that it
    /// is up.
    is_down: bool,
    /// The lookup of the primaries, until it has succeeded, if the manager started without them.
    lookup: Option<InitialLookup>,
}

/// The next item to send.
enum QueuedSend {
    Requests(FanOut<Destination>),
    /// A barrier behind all requests to a server, and the slots that it has lost.
    Behind(Arc<Primary>, MigrationBarrier, HashSet<Slot>),
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
    /// Whether a request waits for a connection to its primary.
    waits: bool,
}

impl RoutingDecision {
    /// Sends a request to a primary, or queues it until the first attempt to connect has ended.
    fn ask(&mut self, member: &Arc<Primary>, history: RouteHistory, request: Request) {
        if member.is_open() {
            self.send(member, history, request);
        } else {
            member.start_connecting();
            member.enqueue(request, history);
            self.waits = true;
        }
    }

    fn send(&mut self, member: &Arc<Primary>, history: RouteHistory, request: Request) {
        let same_node = |destination: &Destination| Arc::ptr_eq(&destination.member, member);
        self.fan.add(Destination { member: Arc::clone(member), history }, same_node, request);
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
            migration_epoch: 0,
            recently_redirected: HashSet::new(),
            is_down: false,
            lookup: settings.lazy.then(|| InitialLookup::InProgress(Vec::new())),
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
            waiting: Notify::new(),
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
            if let Some(lookup) = &mut state.lookup {
                decided.refused.extend(lookup.take(requests));
                return;
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
                    Some(member) => decided.ask(member, RouteHistory::default(), request),
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
        if decided.waits {
            self.joined.notify_one();
            self.waiting.notify_one();
        }
        self.send();
        if !decided.refused.is_empty() {
            let refused = decided.refused.into_iter();
            let refused = refused.map(|(request, failure)| (request, Reply::Refused(failure))).collect();
            self.engine.on_replies(refused, boot_time(), None);
        }
        returned
    }

    /// Ends the first attempt to connect to a primary. Requests that waited for it are sent, or
    /// refused by the node.
    fn finish_connecting(&self, member: &Arc<Primary>) {
        if !member.is_open() {
            self.decide(|_state, decided| {
                for WaitingForConnection { request, history, .. } in member.finish_connecting() {
                    decided.send(member, history, request);
                }
            });
        }
    }

    /// Connects to a primary if it was unused.
    fn open(&self, member: &Primary) {
        if member.start_connecting() {
            self.joined.notify_one();
        }
    }

    /// Refuses requests that wait for the first connection to their primary for nearly the whole
    /// response timeout; runs forever.
    ///
    /// A call with a single try then returns this reason instead of only a timeout.
    async fn refuse_late(&self) {
        let response_timeout = self.settings.rules.response_timeout;
        let longest = response_timeout.saturating_sub(response_timeout / 16);
        loop {
            self.waiting.notified().await;
            loop {
                let oldest = self.decide(|state, decided| {
                    let now = boot_time();
                    let opening = state.members.iter().filter(|member| member.is_used() && !member.is_open());
                    for member in opening.clone() {
                        for late in member.take_waiting(|waiting| now.since(waiting.since) >= longest) {
                            let why = format!(
                                "the connection to redis at {} was not established after {} ms",
                                member.address,
                                longest.as_millis()
                            );
                            decided.refuse(late.request, FailureKind::Passing, &why);
                        }
                    }
                    opening.filter_map(|member| member.waiting_since()).min()
                });
                let Some(oldest) = oldest else { break };
                tokio::time::sleep(longest.saturating_sub(boot_time().since(oldest))).await;
            }
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
            QueuedSend::Behind(member, settles, slots) => {
                member.node.drop_behind(settles, |request| slots.contains(&Slot::of(&request.key)));
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
        } else if lock(&self.state).lookup.is_some() {
            self.look_up().await;
        } else {
            let mut state = lock(&self.state);
            let members = std::mem::take(&mut state.members); // the old nodes have ended
            let table = std::mem::replace(&mut state.table, SlotMap::new());
            drop(state);
            let waiting = members.iter().flat_map(|member| member.finish_connecting());
            let waiting: Vec<_> = waiting.map(|waiting| waiting.request).collect();
            drop((members, table)); // nothing is locked
            self.route(|_| waiting);
        }
        let forever = async { tokio::join!(self.watch(), self.send_parked(), self.refuse_late()) };
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
    use futures_util::FutureExt;

    use super::*;
    use crate::backend::EventReceiver;
    use crate::token::TokenSource;

    #[tokio::test]
    async fn primaries_of_an_ended_run_are_dropped_before_the_next() {
        let engine = EngineSink { shared: Arc::default(), events: EventReceiver::default() };
        let seeds = ClusterEndpoint { servers: Vec::new(), access: NodeSpec::default() };
        let process = TokenSource::of_process(1).process();
        let cluster = Cluster::new(seeds, &Settings::default(), engine, process);
        let old = Address { host: "10.0.0.1".to_owned(), port: 1 };
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
}
