//! The masters of a Redis Cluster: a node for each whose slots have a key in use, and a table that says who serves which slot.
//!
//! ```text
//!  requests --slot--> table --> the node of its master --MOVED, ASK--> the node of another
//!                       ^
//!   MOVED: one slot ----+---- the map: all slots, where more than half of the servers that are asked agree
//! ```
//!
//! Whoever has requests has them sent, on any thread. Who is asked what is decided with all of this locked, and leaves in the order in
//! which it was decided (`outgoing`); answers of one connection are dealt with in theirs (`node/line`). So requests on one key keep their
//! order, wherever they are sent on to.
//!
//! `slots` has the table, `map` reads what servers say of it and `watching` asks them; `members` are the masters, `redirects` has what
//! they send elsewhere, `moving` what it takes that a slot has another one. Not here: one server (`node`).

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
use crate::backend::redis::encoding::{codec, redisson};
use crate::backend::redis::node::Node;
use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::node::pipeline::RouteHistory;
use crate::backend::redis::reply_sink::{EngineSink, ReplySink as _};
use crate::backend::redis::topology::LoadHint;
use crate::backend::redis::topology::address::Address;
use crate::backend::redis::topology::cluster::primary::{Primary, PrimaryReplySink, WaitingForConnection};
use crate::backend::redis::topology::cluster::redirects::RedirectedRequest;
use crate::backend::redis::topology::cluster::slot_map::{Slot, SlotMap};
use crate::backend::redis::topology::cluster::slot_migration::MigrationBarrier;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::redis::topology::send_queue::{FanOut, SendQueue};
use crate::clock::boot_time;
use crate::config::Settings;
use crate::config::cluster::ClusterEndpoint;
use crate::config::url::Server;
use crate::error::Result as Outcome;
use crate::fork::in_one_process;
use crate::key::Name;
use crate::layout::Layout;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::sync::lock;
use crate::token::ProcessId;

/// The masters of a cluster.
pub(crate) struct Cluster {
    /// Itself, for those whom it makes.
    me: Weak<Self>,
    engine: EngineSink,
    process: ProcessId,
    settings: Settings,
    /// Who is asked first.
    seeds: Vec<ConnectTarget>,
    /// How to get into a server; its host and port are the cluster's to say.
    access: Server,
    state: Mutex<ClusterState>,
    /// What has been decided with the state locked, and is to be sent.
    outgoing: SendQueue<QueuedSend>,
    /// Told when the map may be another.
    doubt: Notify,
    /// Told when a request waits to be sent.
    parked: Notify,
    /// Told when there is a server to connect to.
    joined: Notify,
    /// Told when a request waits for the first attempt to connect to its master.
    waiting: Notify,
    /// Held by what runs it: what is left of one whose runtime ends must not have its servers join on that runtime.
    running: tokio::sync::Mutex<()>,
}

struct ClusterState {
    table: SlotMap<Arc<Primary>>,
    members: Vec<Arc<Primary>>,
    /// Who can be asked where no master can.
    replicas: Vec<Address>,
    /// Requests that were sent elsewhere and cannot be sent there yet, in their order.
    parked: Vec<RedirectedRequest>,
    /// Requests that wait behind others, in their order.
    held_back: Vec<Request>,
    /// Slots whose old master has not answered everything yet, with the number of their last move.
    settling: HashMap<Slot, u64>,
    moves: u64,
    /// Slots of which a server has said who serves them since the look at the map that is under way began: what that brings is older.
    just_told: HashSet<Slot>,
    /// Whether a server has said so, and it is not known yet to be up again.
    is_down: bool,
}

/// What leaves next.
enum QueuedSend {
    Requests(FanOut<Destination>),
    /// What is to come behind all that a server was asked.
    Behind(Arc<Primary>, MigrationBarrier),
}

/// Who is asked, and how what he is asked has come to him.
struct Destination {
    member: Arc<Primary>,
    passage: RouteHistory,
}

impl PartialEq for Destination {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.member, &other.member) && self.passage == other.passage
    }
}

/// What becomes of requests.
#[derive(Default)]
struct RoutingDecision {
    fan: FanOut<Destination>,
    refused: Vec<(Request, Failure)>,
    /// Whether a request waits for its master to be connected to.
    waits: bool,
}

impl RoutingDecision {
    /// Has a master asked, once the first attempt to connect to it has ended.
    fn ask(&mut self, member: &Arc<Primary>, passage: RouteHistory, request: Request) {
        if member.is_open() {
            self.send(member, passage, request);
        } else {
            member.start_connecting();
            member.enqueue(request, passage);
            self.waits = true;
        }
    }

    fn send(&mut self, member: &Arc<Primary>, passage: RouteHistory, request: Request) {
        let same_node = |leg: &Destination| Arc::ptr_eq(&leg.member, member);
        self.fan.ask(Destination { member: Arc::clone(member), passage }, same_node, request);
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
    ) -> Outcome<Arc<Self>> {
        let ClusterEndpoint { servers, access } = seeds;
        let seeds = servers.into_iter().map(|at| ConnectTarget::new(at, settings)).collect::<Outcome<_>>()?;
        let state = ClusterState {
            table: SlotMap::new(),
            members: Vec::new(),
            replicas: Vec::new(),
            parked: Vec::new(),
            held_back: Vec::new(),
            settling: HashMap::new(),
            moves: 0,
            just_told: HashSet::new(),
            is_down: false,
        };
        Ok(Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            engine,
            process,
            settings: settings.clone(),
            seeds,
            access,
            state: Mutex::new(state),
            outgoing: SendQueue::default(),
            doubt: Notify::new(),
            parked: Notify::new(),
            joined: Notify::new(),
            waiting: Notify::new(),
            running: tokio::sync::Mutex::default(),
        }))
    }

    /// Has requests sent to the masters of their slots, or answers them while they cannot be sent; and has sent what others have left.
    pub(crate) fn take(&self, requests: Vec<Request>) {
        if requests.is_empty() {
            self.send();
        } else {
            self.route(|_| requests);
        }
    }

    /// Has what is taken `out` sent to the masters of its slots.
    fn route(&self, out: impl FnOnce(&mut ClusterState) -> Vec<Request>) {
        self.decide(|state, decided| {
            let requests = out(state);
            let mut behind = state.parked_keys();
            behind.extend(state.held_back.iter().map(|request| Name::clone(&request.key)));
            for request in requests {
                let slot = Slot::of(&request.key);
                if let Some(problem) = self.splits_slots(&request, slot) {
                    decided.refuse(request, FailureKind::InvalidKey, problem);
                    continue;
                }
                let whom = if let Command::Ping = request.command {
                    let used = || state.serving().into_iter().filter(|member| member.is_used());
                    let down = used().find(|member| !member.node.is_ready());
                    down.or_else(|| used().next()).or_else(|| state.table.owner(slot))
                } else if state.settling.contains_key(&slot) || behind.contains(&request.key) {
                    behind.insert(Name::clone(&request.key));
                    state.held_back.push(request);
                    continue;
                } else {
                    state.table.owner(slot)
                };
                match whom {
                    Some(member) => decided.ask(member, RouteHistory::default(), request),
                    None => decided.refuse(request, FailureKind::Passing, UNSERVED),
                }
            }
        });
    }

    /// Decides what becomes of requests, and has it done. What is to be sent stands in the queue before anybody else decides.
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

    /// The first attempt to connect to a master has ended: what waits for it is sent, or refused by the node.
    fn finish_connecting(&self, member: &Arc<Primary>) {
        if !member.is_open() {
            self.decide(|_state, decided| {
                for WaitingForConnection { request, passage, .. } in member.finish_connecting() {
                    decided.send(member, passage, request);
                }
            });
        }
    }

    /// Has a master connected to.
    fn open(&self, member: &Primary) {
        if member.start_connecting() {
            self.joined.notify_one();
        }
    }

    /// Refuses requests that have waited for the first attempt to connect to their master for nearly as long as for an answer; without
    /// end. A call with a single try then returns the reason, and not only that its time is up.
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
                        for late in member.take_waiting(|waiting| waiting.waited(now) >= longest) {
                            let why = format!(
                                "the connection to redis at {} was not there after {} ms",
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

    /// Sends what was decided, or has it sent.
    fn send(&self) {
        self.outgoing.send(&self.engine.shared, |leaving| match leaving {
            QueuedSend::Requests(fan) => {
                for (Destination { member, passage }, requests) in fan {
                    member.node.take(requests, passage);
                }
            }
            QueuedSend::Behind(member, settles) => member.node.drop_behind(settles),
        });
    }

    /// Returns what is under way to the master that serves `key`.
    pub(crate) fn traffic(&self, key: Option<&str>) -> LoadHint {
        let Some(slot) = key.map(Slot::of) else { return LoadHint::OfTheDriver };
        let state = lock(&self.state);
        state.table.owner(slot).map_or(LoadHint::OfTheDriver, |master| master.node.traffic())
    }

    /// Returns what is wrong if what belongs to a lock would be in another slot than the lock, so that no script can have both.
    fn splits_slots(&self, request: &Request, slot: Slot) -> Option<&'static str> {
        if !request.key.contains(['{', '}']) {
            return None;
        }
        let (name, problem) = match (self.settings.layout, request.command) {
            (_, Command::Ping) => return None,
            (Layout::Redisson, _) => (redisson::channel(&request.key), TORN_CHANNEL),
            (Layout::Native, Command::Fence) => (codec::counter(&request.key), TORN_COUNTER),
            (Layout::Native, _) => return None,
        };
        (Slot::of(&name) != slot).then_some(problem)
    }

    /// Returns whether requests are sent, of some keys at least.
    pub(crate) fn is_ready(&self) -> bool {
        lock(&self.state).members.iter().any(|member| member.node.is_ready())
    }

    /// Has connections to all masters in use whenever they can be had, without end. `first` is told whether the masters were found;
    /// after a failure there is no second attempt.
    pub(crate) async fn run(self: Arc<Self>, first: Option<oneshot::Sender<Result<(), Failure>>>) {
        let _running = self.running.lock().await;
        let mut nodes = JoinSet::new(); // they end with it
        if let Some(first) = first {
            let started = self.find().await;
            let failed = started.is_err();
            if first.send(started).is_err() || failed {
                return;
            }
        } else {
            let mut state = lock(&self.state);
            let members = std::mem::take(&mut state.members); // what ran before has ended: all are made anew
            let table = std::mem::replace(&mut state.table, SlotMap::new());
            drop(state);
            let waiting = members.iter().flat_map(|member| member.finish_connecting());
            let waiting: Vec<_> = waiting.map(|waiting| waiting.request).collect();
            drop((members, table)); // with nothing locked
            self.route(|_| waiting);
        }
        let forever = async { tokio::join!(self.watch(), self.send_what_waits(), self.refuse_late()) };
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

    /// Returns the member at an address.
    fn known(&self, address: &Address) -> Option<Arc<Primary>> {
        lock(&self.state).known(address).cloned()
    }

    /// Returns the member at an address, a new one where there is none yet; `None` where there can be none.
    fn member_at(&self, state: &mut ClusterState, address: &Address) -> Option<Arc<Primary>> {
        if let Some(member) = state.known(address) {
            member.is_needed();
            return Some(Arc::clone(member));
        }
        let has_room = state.members.len() < MOST_MASTERS;
        let route = Arc::new(self.route_to(address).ok().filter(|_| has_room)?);
        let voice = Arc::new(PrimaryReplySink { cluster: Weak::clone(&self.me), address: address.clone() });
        let node = Node::new(
            Discovery::Master(Arc::clone(&route)),
            Arc::clone(&self.engine.shared),
            Weak::clone(&self.engine.engine),
            voice,
            self.process,
            &self.settings,
        );
        let member = Arc::new(Primary::new(address.clone(), route, Arc::new(node)));
        state.members.push(Arc::clone(&member));
        Some(member)
    }

    fn route_to(&self, at: &Address) -> Outcome<ConnectTarget> {
        let server = Server { host: at.host.clone(), port: at.port, ..self.access.clone() };
        ConnectTarget::new(server, &self.settings)
    }
}

impl ClusterState {
    fn known(&self, address: &Address) -> Option<&Arc<Primary>> {
        self.members.iter().find(|member| member.address == *address)
    }

    /// Returns the keys of requests that cannot be sent yet: what comes in for them waits behind.
    fn parked_keys(&self) -> HashSet<Name> {
        self.parked.iter().map(|errand| Name::clone(&errand.request.key)).collect()
    }

    /// Returns the masters that serve slots.
    fn serving(&self) -> Vec<&Arc<Primary>> {
        let mut last = std::ptr::null();
        // Slots in a row have one master, mostly: they are told apart before they are hashed.
        let others = |owner: &*const Primary| std::mem::replace(&mut last, *owner) != *owner;
        let owners: HashSet<_> = self.table.owners().map(Arc::as_ptr).filter(others).collect();
        self.members.iter().filter(|member| owners.contains(&Arc::as_ptr(member))).collect()
    }
}

/// Returns the failure to tell of several: what cannot pass comes first.
fn first_to_tell(mut failures: Vec<Failure>) -> Option<Failure> {
    let lasting = failures.iter().position(|failure| failure.kind != FailureKind::Passing);
    match lasting {
        Some(at) => Some(failures.swap_remove(at)),
        None => failures.pop(),
    }
}

/// What is wrong with a key whose slot has no master.
const UNSERVED: &str = "nobody serves the slot of the key in the cluster";

/// What is wrong with a name whose channel is in another slot.
const TORN_CHANNEL: &str = "in a cluster Redisson's channel of this name is in another slot than the lock; write braces in pairs, with text \
                    between the first, or none";

/// What is wrong with a name whose fencing counter is in another slot.
const TORN_COUNTER: &str = "in a cluster the fencing counter of this name is in another slot than the lock; write braces in pairs, with text \
                            between the first, or none";

/// The most masters that a cluster may have. Redis recommends at most 1,000 nodes. The bound keeps what answers in place of a cluster
/// from having us connect to the whole world.
const MOST_MASTERS: usize = 1_000;

/// Reads a value as where a request belongs, and as a map.
#[cfg(any(test, fuzzing))]
pub(super) fn read_value(value: &redis::Value) {
    let server = Server { host: "h".to_owned(), port: 1, ..Server::default() };
    let asked = ConnectTarget::new(server, &Settings::default()).expect("an address");
    let _ = redirects::Redirect::read(value, &asked.address());
    let info = redis::Value::BulkString(b"cluster_state:ok".to_vec());
    let _ = cluster_view::ClusterView::read(&[info, value.clone()], &asked);
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::token::TokenSource;

    #[tokio::test]
    async fn what_is_left_of_one_that_ends_is_gone_before_the_next_one_runs() {
        let engine = EngineSink { shared: Arc::default(), engine: Weak::new() };
        let seeds = ClusterEndpoint { servers: Vec::new(), access: Server::default() };
        let process = TokenSource::of_process(1).process();
        let cluster = Cluster::new(seeds, &Settings::default(), engine, process).expect("no server is wrong");
        let old = Address { host: "10.0.0.1".to_owned(), port: 1 };
        let mut left = Box::pin(Arc::clone(&cluster).run(None));
        assert_eq!((&mut left).now_or_never(), None);
        assert!(cluster.member_at(&mut lock(&cluster.state), &old).is_some());

        let mut next = Box::pin(Arc::clone(&cluster).run(None));
        assert_eq!((&mut next).now_or_never(), None);
        assert!(cluster.known(&old).is_some(), "they run side by side");
        drop(left);
        assert_eq!((&mut next).now_or_never(), None);

        assert!(cluster.known(&old).is_none(), "the next one begins anew");
    }
}
