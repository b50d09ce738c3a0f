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

mod alarm;
mod answers;
mod driver;
mod examine;
mod home;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod layout;
mod namespaces;
mod node;
mod servers;
mod shared;
#[cfg(test)]
mod simulation;
mod undoing;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use once_cell::sync::OnceCell;
use tokio::sync::oneshot;

use crate::backend::redis::answers::ToEngine;
use crate::backend::redis::driver::Driver;
use crate::backend::redis::layout::Layout;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::link::Route;
#[cfg(feature = "tls")]
use crate::backend::redis::node::tls;
use crate::backend::redis::servers::Servers;
use crate::backend::redis::servers::cluster::Cluster;
use crate::backend::redis::servers::quorum::Quorum;
use crate::backend::redis::servers::sentinel::Sentinels;
use crate::backend::redis::servers::whereabouts::Whereabouts;
use crate::backend::redis::shared::Shared;
use crate::backend::{Backend, Request};
use crate::clock::Clock;
use crate::config::Settings;
use crate::config::cluster::Seeds;
use crate::config::quorum::Voters;
use crate::config::sentinel::Watched;
use crate::config::url::Server;
#[cfg(feature = "tls")]
use crate::config::url::Target;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::error::Result;
use crate::io::Io;
use crate::protocol::Rules;
use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::deadline::BootTime;
use crate::token::{ProcessId, TokenSource};

#[cfg(test)]
pub(crate) use crate::backend::redis::layout::codec::counter;
#[cfg(test)]
pub(crate) use crate::backend::redis::undoing::take_leaves;

pub(crate) use crate::backend::redis::examine::{examine, examine_by_sentinels, examine_cluster};

/// The engine's side.
struct Redis {
    shared: Arc<Shared>,
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
pub(crate) async fn check_certificates(target: &Target) -> Result<()> {
    if !target.place.uses_tls() {
        return Ok(());
    }
    let (certificates, limit) = (target.settings.certificates.clone(), target.settings.connect_timeout);
    examine::on_a_thread(async move { tls::check(&certificates, limit).await }).await?
}

/// Connects to a server.
pub(crate) async fn connect(server: Server, settings: &Settings) -> Result<Arc<Engine>> {
    let route = Route::new(server, settings)?;
    start_one(Whereabouts::Fixed(Arc::new(route)), settings).await
}

/// Connects to the master that sentinels name.
pub(crate) async fn connect_by_sentinels(watched: Watched, settings: &Settings) -> Result<Arc<Engine>> {
    let sentinels = Sentinels::new(watched, settings)?;
    start_one(Whereabouts::Sentinel(Box::new(sentinels)), settings).await
}

/// Connects to the masters of a cluster.
pub(crate) async fn connect_to_cluster(seeds: Seeds, settings: &Settings) -> Result<Arc<Engine>> {
    let shown = format!("the cluster of {seeds}");
    start(&shown, settings, rules_of(settings, true), |answers, process| {
        Ok(Servers::Cluster(Cluster::new(seeds, settings, answers, process)?))
    })
    .await
}

/// Connects to servers of which a majority decides.
pub(crate) async fn connect_to_quorum(voters: Voters, settings: &Settings) -> Result<Arc<Engine>> {
    let shown = format!("the quorum of {voters}");
    let rules = Rules { hold_back: layout::HOLD_BACK, ..settings.rules };
    start(&shown, settings, rules, |answers, process| {
        Ok(Servers::Quorum(Quorum::new(voters, settings, answers, process)?))
    })
    .await
}

/// Connects to one server, wherever it is.
async fn start_one(whereabouts: Whereabouts, settings: &Settings) -> Result<Arc<Engine>> {
    let shown = whereabouts.to_string();
    let moves = !matches!(whereabouts, Whereabouts::Fixed(_));
    start(&shown, settings, rules_of(settings, moves), |answers, process| {
        let (shared, engine) = (Arc::clone(&answers.shared), Weak::clone(&answers.engine));
        let answers = Arc::new(answers);
        Ok(Servers::One(Arc::new(Node::new(whereabouts, shared, engine, answers, process, settings))))
    })
    .await
}

/// Returns the rules where a key has one master at a time. Where that may become another one, servers hand messages on to each other, also
/// to whom the one that published them did not see, and passed over. Where the driver shares its threads with bodies it may not come to a
/// confirmation that is due later.
fn rules_of(settings: &Settings, moves: bool) -> Rules {
    let (hold_back, confirm_at_once) = (Layout::hold_back(settings.layout), settings.io == Io::Runtime);
    Rules { told_is_given: !moves, confirm_at_once, hold_back, ..settings.rules }
}

/// Starts a driver of what `serving` makes, and waits for its first connection.
async fn start(
    shown: &str,
    settings: &Settings,
    rules: Rules,
    serving: impl FnOnce(ToEngine, ProcessId) -> Result<Servers>,
) -> Result<Arc<Engine>> {
    let response_timeout = rules.response_timeout;
    let shared = Arc::new(Shared::new(&settings.namespace));
    let backend = Arc::new(Redis { shared: Arc::clone(&shared), driver: OnceCell::new(), response_timeout });
    let tokens = TokenSource::new();
    let process = tokens.process();
    let of_engine = Arc::clone(&backend);
    let engine = Arc::new(Engine::new(of_engine, Clock::Boot, tokens, rules, settings.lease));
    let answers = ToEngine { shared: Arc::clone(&shared), engine: Arc::downgrade(&engine) };
    let servers = serving(answers, process)?;
    let driver = Driver::new(shared, Arc::downgrade(&engine), servers, response_timeout, settings.io);
    let _ = backend.driver.set(Arc::clone(&driver));
    let (first, connected) = oneshot::channel();
    match settings.io {
        Io::Thread => home::on_a_thread(driver, Some(first)).map_err(Failure::of_the_server)?,
        Io::Runtime => home::on_the_runtime(driver, first)?,
    }
    match (connected.await, settings.io) {
        (Ok(Ok(())), _) => Ok(engine),
        (Ok(Err(failure)), _) => Err(failure.of_the_server()),
        (Err(_), Io::Thread) => {
            let text = format!("no connection to {shown}");
            Err(Failure::new(FailureKind::Passing, text).of_the_server())
        }
        // It panicked on its way: tokio tells in no other way that a runtime lacks something.
        (Err(_), Io::Runtime) => Err(home::unfit("cannot drive connections")),
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

    fn flush(&self, _engine: &Engine, _now: BootTime, _effects: &mut Effects) {
        if let Some(driver) = self.driver.get() {
            driver.flush();
        }
    }

    fn uses(&self, namespace: &str) {
        self.shared.namespaces.add(namespace);
    }

    fn due_earlier(&self, due: BootTime) {
        self.shared.wakes_by(due);
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Arc::clone(&self.shared).sleep(time))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            let patience = self.sleep(self.response_timeout);
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
                () = patience => {}
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

        assert!(rules_of(&settings, false).told_is_given);
        assert!(!rules_of(&settings, true).told_is_given);
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

        assert!(!rules_of(&settings, false).confirm_at_once);
        assert!(rules_of(&Settings { io: Io::Runtime, ..settings }, false).confirm_at_once);
    }
}
