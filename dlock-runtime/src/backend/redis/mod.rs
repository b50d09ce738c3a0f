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
//! | `node` | one server: its connections, and the requests and messages on them |
//! | `encoding` | how locks are stored in a server: commands, scripts, and replies |
//! | `namespaces` | the names of channels |
//! | `reply_sink` | receives the replies and messages of a node |
//! | `cleanup` | cleans up after commands without a reply |
//! | `command_queue` | the state that the engine's side and the driver share |
//! | `probe` | the checks that `doctor` runs against the servers |
//! | `fuzz_invariants` | properties that hold for every possible reply |
//! | `simulation` | tests of this module on a simulated network |

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
mod probe;
mod reply_sink;
mod runtimes;
#[cfg(test)]
mod simulation;
mod topology;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use once_cell::sync::OnceCell;
use tokio::sync::oneshot;

use crate::backend::redis::command_queue::CommandQueue;
use crate::backend::redis::driver::Driver;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::connect_target::ConnectTarget;
#[cfg(feature = "tls")]
use crate::backend::redis::node::tls;
use crate::backend::redis::reply_sink::EngineSink;
use crate::backend::redis::topology::Topology;
use crate::backend::redis::topology::cluster::Cluster;
use crate::backend::redis::topology::discovery::Discovery;
use crate::backend::redis::topology::quorum::Quorum;
use crate::backend::redis::topology::sentinel::Sentinels;
use crate::backend::{Backend, Request};
use crate::clock::Clock;
use crate::config::Settings;
use crate::config::cluster::ClusterEndpoint;
use crate::config::node_spec::NodeSpec;
use crate::config::quorum::QuorumEndpoint;
use crate::config::sentinel::SentinelEndpoint;
#[cfg(feature = "tls")]
use crate::config::url::ConnectSpec;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::error::Result;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::deadline::BootInstant;
use crate::token::{ProcessId, TokenSource};

#[cfg(test)]
pub(crate) use crate::backend::redis::cleanup::take_leaves;
#[cfg(test)]
pub(crate) use crate::backend::redis::encoding::codec::counter;

pub(crate) use crate::backend::redis::probe::{examine, examine_by_sentinels, examine_cluster};

/// The engine's side of the backend.
struct Redis {
    shared: Arc<CommandQueue>,
    /// Set before the first request.
    driver: OnceCell<Arc<Driver>>,
    response_timeout: Duration,
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

/// Connects to one server.
pub(crate) async fn connect(server: NodeSpec, settings: &Settings) -> Result<Arc<Engine>> {
    let route = ConnectTarget::new(server, settings)?;
    start_one(Discovery::Fixed(Arc::new(route)), settings).await
}

/// Connects to the primary that Sentinel reports.
pub(crate) async fn connect_by_sentinels(
    watched: SentinelEndpoint,
    settings: &Settings,
) -> Result<Arc<Engine>> {
    let sentinels = Sentinels::new(watched, settings)?;
    start_one(Discovery::Sentinel(Box::new(sentinels)), settings).await
}

/// Connects to the primaries of a cluster.
pub(crate) async fn connect_to_cluster(seeds: ClusterEndpoint, settings: &Settings) -> Result<Arc<Engine>> {
    let shown = format!("the cluster of {seeds}");
    start(&shown, settings, rules_of(settings, true), |sink, process| {
        Ok(Topology::Cluster(Cluster::new(seeds, settings, sink, process)?))
    })
    .await
}

/// Connects to the servers of a quorum.
pub(crate) async fn connect_to_quorum(voters: QuorumEndpoint, settings: &Settings) -> Result<Arc<Engine>> {
    let shown = format!("the quorum of {voters}");
    let rules = ProtocolConfig { wakeup_jitter: encoding::WAKEUP_JITTER, ..settings.rules };
    start(&shown, settings, rules, |sink, process| {
        Ok(Topology::Quorum(Quorum::new(voters, settings, sink, process)?))
    })
    .await
}

/// Connects to the server that `discovery` finds.
async fn start_one(discovery: Discovery, settings: &Settings) -> Result<Arc<Engine>> {
    let shown = discovery.to_string();
    let moves = !matches!(discovery, Discovery::Fixed(_));
    start(&shown, settings, rules_of(settings, moves), |sink, process| {
        let (shared, engine) = (Arc::clone(&sink.shared), Weak::clone(&sink.engine));
        let sink = Arc::new(sink);
        Ok(Topology::One(Arc::new(Node::new(discovery, shared, engine, sink, process, settings))))
    })
    .await
}

/// Returns the protocol configuration for keys that have one primary at a time.
///
/// If the primary can change (`moves`), servers forward messages to each other, so a waiter that
/// the publishing server passed over may still receive a grant. Such a grant is no proof.
fn rules_of(settings: &Settings, moves: bool) -> ProtocolConfig {
    let wakeup_jitter = LockEncoding::wakeup_jitter(settings.layout);
    ProtocolConfig { grants_are_proof: !moves, wakeup_jitter, ..settings.rules }
}

/// Starts a driver for the topology that `serving` creates, and waits for its first connection,
/// unless the settings are `lazy`.
async fn start(
    shown: &str,
    settings: &Settings,
    rules: ProtocolConfig,
    serving: impl FnOnce(EngineSink, ProcessId) -> Result<Topology>,
) -> Result<Arc<Engine>> {
    let response_timeout = rules.response_timeout;
    let shared = Arc::new(CommandQueue::new(&settings.namespace));
    let backend = Arc::new(Redis { shared: Arc::clone(&shared), driver: OnceCell::new(), response_timeout });
    let tokens = TokenSource::new();
    let process = tokens.process();
    let of_engine = Arc::clone(&backend);
    let engine = Arc::new(Engine::new(of_engine, Clock::Boot, tokens, rules, settings.lease));
    let sink = EngineSink { shared: Arc::clone(&shared), engine: Arc::downgrade(&engine) };
    let topology = serving(sink, process)?;
    let driver = Driver::new(Arc::clone(&shared), Arc::downgrade(&engine), topology, response_timeout);
    let _ = backend.driver.set(Arc::clone(&driver));
    let (first, connected) = oneshot::channel();
    #[cfg(test)]
    if crate::simulated::is_on() {
        driver_thread::on_the_runtime(driver, first, settings.lazy);
        return connected
            .await
            .unwrap_or_else(|_| unreachable!())
            .map(|()| engine)
            .map_err(Failure::of_the_server);
    }
    // A caller that has not read the end of a connection yet writes to it. With one server for each
    // key, the call tries again. With a quorum, it would lose a vote.
    if !matches!(driver.topology, Topology::Quorum(_)) {
        shared.runtimes.set_callers();
    }
    let writer = Driver::run_writer(Arc::downgrade(&driver), Arc::clone(&shared));
    driver_thread::on_a_thread(driver, first, settings.lazy).map_err(Failure::of_the_server)?;
    match connected.await {
        Ok(Ok(())) => {
            shared.runtimes.spawn_on_callers(writer);
            Ok(engine)
        }
        Ok(Err(failure)) => Err(failure.of_the_server()),
        Err(_) => {
            let text = format!("no connection to {shown}");
            Err(Failure::new(FailureKind::Passing, text).of_the_server())
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Backend for Redis {
    fn push(&self, request: Request) {
        self.shared.push(request);
    }

    fn flush(&self, _engine: &Engine, _now: BootInstant, _effects: &mut Effects) {
        if let Some(driver) = self.driver.get() {
            driver.flush();
        }
    }

    fn uses(&self, namespace: &str) {
        self.shared.namespaces.add(namespace);
    }

    fn due_earlier(&self, due: BootInstant) {
        self.shared.wake_by(due);
    }

    #[cfg(any(feature = "idempotent", feature = "scheduled"))]
    fn runs_calls(&self) -> bool {
        !self.driver.get().is_some_and(|driver| matches!(driver.topology, Topology::Quorum(_)))
    }

    #[cfg(any(feature = "idempotent", feature = "scheduled"))]
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.shared.runtimes.spawn(task);
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.runtimes.sleep(time).await })
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let time_limit = self.sleep(self.response_timeout);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_proof_only_if_the_primary_cannot_change() {
        let settings = Settings::default();

        assert!(rules_of(&settings, false).grants_are_proof);
        assert!(!rules_of(&settings, true).grants_are_proof);
    }

    #[test]
    fn waiters_are_probed_only_if_the_encoding_has_a_queue() {
        let (native, redisson) =
            (Settings::default(), Settings { layout: crate::Layout::Redisson, ..Settings::default() });

        assert!(rules_of(&native, false).has_queue() && rules_of(&native, true).has_queue());
        assert!(!rules_of(&redisson, false).has_queue() && !rules_of(&redisson, true).has_queue());
    }
}
