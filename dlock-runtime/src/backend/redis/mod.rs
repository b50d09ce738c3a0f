//! Locks on Redis.
//!
//! This is the only module that uses the `redis` crate. Its errors leave the module as
//! [`Failure`]s.
//!
//! | module | contents |
//! |---|---|
//! | `driver` | runs the engine's timers and decides when requests are sent |
//! | `boot_timer` | wakes the driver at a deadline |
//! | `driver_thread` | the thread that the driver runs on |
//! | `runtimes` | the manager's own thread, the callers' runtime, and which of them reads replies |
//! | `topology` | finds the server of a key: one server, the primaries of a cluster, or a quorum |
//! | `node` | one server: which connection a request uses, and the messages about locks |
//! | `transport` | connections, bytes, and replies; knows no locks |
//! | `encoding` | how locks are stored in a server: commands, scripts, and replies |
//! | `namespaces` | the names of channels |
//! | `owner_lookup` | finds the owner of a manager |
//! | `reply_sink` | receives the replies and messages of a node |
//! | `cleanup` | cleans up after commands without a reply |
//! | `batch_size` | how many queued requests justify a write of their own |
//! | `command_queue` | the state that the engine's side and the driver share |
//! | `probe` | the checks that `doctor` runs against the servers |
//! | `fuzz_invariants` | properties that hold for every possible reply |
//! | `simulation` | tests of this module on a simulated network |

mod batch_size;
mod boot_timer;
mod cleanup;
mod command_queue;
mod driver;
mod driver_thread;
mod encoding;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz_invariants;
mod namespaces;
mod node;
pub(crate) mod owner_lookup;
mod probe;
mod reply_sink;
mod runtimes;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod topology;
mod transport;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::event_effects::EventEffects;
use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::command_queue::RequestSender as _;
use crate::backend::redis::driver::Driver;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::encoding::plain::PlainEncoding;
use crate::backend::redis::node::Node;
use crate::backend::redis::owner_lookup::OwnerLookup;
use crate::backend::redis::reply_sink::EngineSink;
use crate::backend::redis::topology::Topology;
use crate::backend::redis::topology::cluster::Cluster;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::redis::topology::quorum::Quorum;
use crate::backend::redis::topology::sentinel::Sentinels;
use crate::backend::redis::transport::connect_target::ConnectTarget;
#[cfg(feature = "tls")]
use crate::backend::redis::transport::tls;
use crate::backend::{
    Backend, BackendEvents, Capabilities, EventReceiver, OwnerSource, ReleaseNotice, Request,
};
use crate::config::Settings;
use crate::config::cluster::ClusterEndpoint;
use crate::config::node_spec::NodeSpec;
use crate::config::quorum::QuorumEndpoint;
use crate::config::sentinel::SentinelEndpoint;
#[cfg(feature = "tls")]
use crate::config::url::ConnectSpec;
use crate::error::Result;
use crate::fork::in_one_process;
use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::deadline::BootInstant;
use crate::token::ProcessId;

#[cfg(test)]
pub(crate) use crate::backend::redis::cleanup::take_leaves;
#[cfg(test)]
pub(crate) use crate::backend::redis::encoding::codec::counter;

pub(crate) use crate::backend::redis::probe::{examine, examine_by_sentinels, examine_cluster};

/// A backend over Redis servers.
pub(crate) struct Redis {
    shared: Arc<CommandQueue>,
    driver: Arc<Driver>,
    events: EventReceiver,
    capabilities: Capabilities,
    /// The servers, for messages.
    shown: String,
    lazy: bool,
}

/// Checks that the certificates for TLS can be read and used.
///
/// Runs on its own thread, because the caller's runtime may have no timers.
///
/// # Errors
///
/// [`Error::Config`](crate::Error::Config) with the option that cannot be used.
#[cfg(feature = "tls")]
pub(crate) async fn check_certificates(target: &ConnectSpec) -> Result<()> {
    if !target.place.uses_tls() {
        return Ok(());
    }
    let (certificates, limit) = (target.settings.certificates.clone(), target.settings.connect_timeout);
    probe::on_a_thread(async move { tls::check(&certificates, limit).await }).await?
}

impl Redis {
    /// Creates the backend of one server.
    pub(crate) fn of_server(server: NodeSpec, settings: &Settings, process: ProcessId) -> Arc<Self> {
        let route = ConnectTarget::new(server, settings);
        Self::of_one(Discovery::Fixed(Arc::new(route)), settings, process)
    }

    /// Creates the backend of the primary that Sentinel reports.
    pub(crate) fn of_sentinels(
        watched: SentinelEndpoint,
        settings: &Settings,
        process: ProcessId,
    ) -> Arc<Self> {
        let sentinels = Sentinels::new(watched, settings);
        Self::of_one(Discovery::Sentinel(Box::new(sentinels)), settings, process)
    }

    /// Creates the backend of the primaries of a cluster.
    pub(crate) fn of_cluster(seeds: ClusterEndpoint, settings: &Settings, process: ProcessId) -> Arc<Self> {
        let shown = format!("the cluster of {seeds}");
        let capabilities = capabilities_of(encoding::of_settings(settings, true), true);
        Self::new(shown, settings, capabilities, |sink| {
            Topology::Cluster(Cluster::new(seeds, settings, sink, process))
        })
    }

    /// Creates the backend of the servers of a quorum.
    pub(crate) fn of_quorum(voters: QuorumEndpoint, settings: &Settings, process: ProcessId) -> Arc<Self> {
        let shown = format!("the quorum of {voters}");
        let capabilities = Capabilities { store_calls: false, ..capabilities_of(&PlainEncoding, true) };
        Self::new(shown, settings, capabilities, |sink| {
            Topology::Quorum(Quorum::new(voters, settings, sink, process))
        })
    }

    /// Creates the backend of the server that `discovery` finds.
    fn of_one(discovery: Discovery, settings: &Settings, process: ProcessId) -> Arc<Self> {
        let shown = discovery.to_string();
        let moves = !matches!(discovery, Discovery::Fixed(_));
        let capabilities = capabilities_of(encoding::of_settings(settings, false), moves);
        Self::new(shown, settings, capabilities, |sink| {
            let (shared, events) = (Arc::clone(&sink.shared), sink.events.clone());
            let node = Node::new(discovery, shared, events, Arc::new(sink), process, settings);
            Topology::One(Arc::new(node))
        })
    }

    /// Creates the backend of a topology.
    fn new(
        shown: String,
        settings: &Settings,
        capabilities: Capabilities,
        topology: impl FnOnce(EngineSink) -> Topology,
    ) -> Arc<Self> {
        let (shared, events) = (Arc::new(CommandQueue::new(&settings.namespace)), EventReceiver::default());
        let topology = topology(EngineSink { shared: Arc::clone(&shared), events: events.clone() });
        let response_timeout = settings.rules.response_timeout;
        let driver = Driver::new(Arc::clone(&shared), events.clone(), topology, response_timeout);
        Arc::new(Self { shared, driver, events, capabilities, shown, lazy: settings.lazy })
    }

    /// Starts the driver, and waits for its first connection, unless the settings are `lazy`.
    /// Called once, after [`attach`](Backend::attach).
    pub(crate) async fn connect(&self) -> Result<()> {
        let (first, connected) = oneshot::channel();
        let driver = Arc::clone(&self.driver);
        #[cfg(test)]
        if crate::simulated::is_on() {
            driver_thread::on_the_runtime(driver, first, self.lazy);
            return connected.await.unwrap_or_else(|_| unreachable!()).map_err(Failure::of_the_server);
        }
        // A caller that has not read the end of a connection yet writes to it. With one server for
        // each key, the call tries again. With a quorum, it would lose a vote.
        if !matches!(driver.topology, Topology::Quorum(_)) {
            self.shared.runtimes.set_callers();
        }
        let writer = Driver::run_writer(Arc::downgrade(&driver), Arc::clone(&self.shared));
        driver_thread::on_a_thread(driver, first, self.lazy).map_err(Failure::of_the_server)?;
        match connected.await {
            Ok(Ok(())) => {
                self.shared.runtimes.spawn_on_callers(writer);
                Ok(())
            }
            Ok(Err(failure)) => Err(failure.of_the_server()),
            Err(_) => {
                let text = format!("no connection to {}", self.shown);
                Err(Failure::new(FailureKind::Passing, text).of_the_server())
            }
        }
    }
}

/// Returns the capabilities of servers with this encoding.
///
/// If the primary can change (`moves`), servers forward messages to each other, so a waiter that
/// the publishing server passed over may still receive a grant. Such a grant is no proof.
fn capabilities_of(encoding: &dyn LockEncoding, moves: bool) -> Capabilities {
    let release_notice = match encoding.wakeup_jitter() {
        None => ReleaseNotice::Grant { is_proof: !moves },
        Some(jitter) => ReleaseNotice::Retry { jitter },
    };
    Capabilities { release_notice, ..Capabilities::SERVER }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

impl Backend for Redis {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn attach(&self, events: Weak<dyn BackendEvents>) {
        self.events.attach(events);
    }

    fn submit(&self, request: Request) {
        self.shared.push(request);
    }

    fn flush(&self, _now: BootInstant, _effects: &mut EventEffects) {
        self.driver.flush();
    }

    fn use_namespace(&self, namespace: &str) {
        self.shared.namespaces.add(namespace);
    }

    fn owner_of(&self, manager: ProcessId, namespace: &str) -> OwnerSource {
        if !self.capabilities.store_calls {
            return OwnerSource::Unknown;
        }
        let lookup = Arc::new(OwnerLookup::new(manager, namespace));
        OwnerSource::Server(Arc::clone(&lookup) as _, Box::new(move |reply| lookup.owner_in(reply)))
    }

    fn due_earlier(&self, due: BootInstant) {
        self.shared.wake_by(due);
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.shared.runtimes.spawn(task);
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        // Its drop locks the queue of the manager's thread, which the child does not have.
        let shared = Arc::clone(&self.shared);
        Box::pin(in_one_process(async move { shared.runtimes.sleep(time).await }))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let time_limit = self.sleep(self.driver.response_timeout);
            let settled = async {
                loop {
                    let settled = self.shared.settled.notified();
                    if !self.shared.has_more() {
                        break;
                    }
                    settled.await;
                }
            };
            tokio::select! {
                () = settled => {}
                () = time_limit => {}
            }
        })
    }

    fn close(&self) {
        self.shared.wake.notify_one();
    }
}
