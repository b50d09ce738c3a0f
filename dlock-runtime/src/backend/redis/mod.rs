//! Locks on Redis. The only folder that names the `redis` crate; its errors leave as failures in words.
//!
//! | room | owns |
//! |---|---|
//! | `driver` | the engine's time, and when something is sent |
//! | `alarm` | what wakes the driver when something is due |
//! | `home` | where the driver runs |
//! | `servers` | who serves the keys: one server, the masters of a cluster, servers that vote; and where each is |
//! | `node` | one server as far as we can reach it: its connections, and what goes over them |
//! | `layout` | how locks stand in a server: the commands and scripts, and what is answered |
//! | `namespaces` | the names of channels |
//! | `answers` | who is told what a node's server says |
//! | `undoing` | what commands without an answer may have done |
//! | `shared` | what the engine's side and the driver's both use |
//! | `examine` | what `doctor` asks the servers |
//! | `hostile` | what holds whatever a server says |
//! | `simulation` | the tests of all this on a simulated network |

mod boot_timer;
mod cleanup;
mod command_queue;
mod driver;
mod encoding;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz_invariants;
mod namespaces;
mod node;
mod probe;
mod reply_sink;
mod runtime;
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
use crate::backend::redis::node::connect::ConnectTarget;
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
use crate::config::quorum::QuorumEndpoint;
use crate::config::sentinel::SentinelEndpoint;
#[cfg(feature = "tls")]
use crate::config::url::ConnectSpec;
use crate::config::url::Server;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::error::Result;
use crate::io::Io;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::deadline::BootInstant;
use crate::token::{ProcessId, TokenSource};

#[cfg(test)]
pub(crate) use crate::backend::redis::cleanup::take_leaves;
#[cfg(test)]
pub(crate) use crate::backend::redis::encoding::codec::counter;

pub(crate) use crate::backend::redis::probe::{examine, examine_by_sentinels, examine_cluster};

/// The engine's side.
struct Redis {
    shared: Arc<CommandQueue>,
    /// Set before anybody can ask for anything.
    driver: OnceCell<Arc<Driver>>,
    response_timeout: Duration,
}

/// Checks that the certificates for servers over TLS can be read and used, on a thread that has timers whatever the caller's runtime has.
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

/// Connects to a server.
pub(crate) async fn connect(server: Server, settings: &Settings) -> Result<Arc<Engine>> {
    let route = ConnectTarget::new(server, settings)?;
    start_one(Discovery::Fixed(Arc::new(route)), settings).await
}

/// Connects to the master that sentinels name.
pub(crate) async fn connect_by_sentinels(
    watched: SentinelEndpoint,
    settings: &Settings,
) -> Result<Arc<Engine>> {
    let sentinels = Sentinels::new(watched, settings)?;
    start_one(Discovery::Sentinel(Box::new(sentinels)), settings).await
}

/// Connects to the masters of a cluster.
pub(crate) async fn connect_to_cluster(seeds: ClusterEndpoint, settings: &Settings) -> Result<Arc<Engine>> {
    let shown = format!("the cluster of {seeds}");
    start(&shown, settings, rules_of(settings, true), |answers, process| {
        Ok(Topology::Cluster(Cluster::new(seeds, settings, answers, process)?))
    })
    .await
}

/// Connects to servers of which a majority decides.
pub(crate) async fn connect_to_quorum(voters: QuorumEndpoint, settings: &Settings) -> Result<Arc<Engine>> {
    let shown = format!("the quorum of {voters}");
    let rules = ProtocolConfig { wakeup_jitter: encoding::HOLD_BACK, ..settings.rules };
    start(&shown, settings, rules, |answers, process| {
        Ok(Topology::Quorum(Quorum::new(voters, settings, answers, process)?))
    })
    .await
}

/// Connects to one server, wherever it is.
async fn start_one(whereabouts: Discovery, settings: &Settings) -> Result<Arc<Engine>> {
    let shown = whereabouts.to_string();
    let moves = !matches!(whereabouts, Discovery::Fixed(_));
    start(&shown, settings, rules_of(settings, moves), |answers, process| {
        let (shared, engine) = (Arc::clone(&answers.shared), Weak::clone(&answers.engine));
        let answers = Arc::new(answers);
        Ok(Topology::One(Arc::new(Node::new(whereabouts, shared, engine, answers, process, settings))))
    })
    .await
}

/// Returns the rules where a key has one master at a time. Where that may become another one, servers hand messages on to each other, also
/// to whom the one that published them did not see, and passed over. Where the driver shares its threads with bodies it may not come to a
/// confirmation that is due later.
fn rules_of(settings: &Settings, moves: bool) -> ProtocolConfig {
    let (wakeup_jitter, confirm_grants_first) =
        (LockEncoding::wakeup_jitter(settings.layout), settings.io == Io::Runtime);
    ProtocolConfig { grants_are_proof: !moves, confirm_grants_first, wakeup_jitter, ..settings.rules }
}

/// Starts a driver of what `serving` makes, and waits for its first connection.
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
    let answers = EngineSink { shared: Arc::clone(&shared), engine: Arc::downgrade(&engine) };
    let servers = serving(answers, process)?;
    let driver = Driver::new(shared, Arc::downgrade(&engine), servers, response_timeout, settings.io);
    let _ = backend.driver.set(Arc::clone(&driver));
    let (first, connected) = oneshot::channel();
    match settings.io {
        Io::Thread => runtime::on_a_thread(driver, Some(first)).map_err(Failure::of_the_server)?,
        Io::Runtime => runtime::on_the_runtime(driver, first)?,
    }
    match (connected.await, settings.io) {
        (Ok(Ok(())), _) => Ok(engine),
        (Ok(Err(failure)), _) => Err(failure.of_the_server()),
        (Err(_), Io::Thread) => {
            let text = format!("no connection to {shown}");
            Err(Failure::new(FailureKind::Passing, text).of_the_server())
        }
        // It panicked on its way: tokio tells in no other way that a runtime lacks something.
        (Err(_), Io::Runtime) => Err(runtime::unfit("cannot drive connections")),
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
        self.shared.wakes_by(due);
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Arc::clone(&self.shared).sleep(time))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let retry_state = self.sleep(self.response_timeout);
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
                () = retry_state => {}
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
    fn a_message_is_proof_of_a_grant_only_where_the_master_of_a_key_cannot_become_another() {
        let settings = Settings::default();

        assert!(rules_of(&settings, false).grants_are_proof);
        assert!(!rules_of(&settings, true).grants_are_proof);
    }

    #[test]
    fn it_is_asked_who_else_waits_only_where_that_is_known() {
        let (native, redisson) =
            (Settings::default(), Settings { layout: crate::Layout::Redisson, ..Settings::default() });

        assert!(rules_of(&native, false).has_queue() && rules_of(&native, true).has_queue());
        assert!(!rules_of(&redisson, false).has_queue() && !rules_of(&redisson, true).has_queue());
    }

    #[test]
    fn a_grant_is_confirmed_at_once_where_bodies_may_block_what_would_confirm_it_later() {
        let settings = Settings::default();

        assert!(!rules_of(&settings, false).confirm_grants_first);
        assert!(rules_of(&Settings { io: Io::Runtime, ..settings }, false).confirm_grants_first);
    }
}
