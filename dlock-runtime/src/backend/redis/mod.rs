//! Locks on Redis. The only folder that names the `redis` crate; its errors leave as failures in words.
//!
//! | room | owns |
//! |---|---|
//! | `driver` | the engine's time, and when something is sent |
//! | `servers` | who serves the keys: one server, the masters of a cluster, servers that vote; and where each is |
//! | `node` | one server as far as we can reach it: its connections, and what goes over them |
//! | `layout` | how locks stand in a server: the commands and scripts, and what is answered |
//! | `answers` | who is told what a node's server says |
//! | `undoing` | what commands without an answer may have done |
//! | `shared` | what the engine's side and the driver's both use |
//! | `examine` | what `doctor` asks the servers |

mod answers;
mod driver;
mod examine;
mod layout;
mod node;
mod servers;
mod shared;
mod undoing;

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::redis::answers::ToEngine;
use crate::backend::redis::driver::Driver;
use crate::backend::redis::layout::Layout;
use crate::backend::redis::node::Node;
use crate::backend::redis::node::link::Route;
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
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::error::Result;
use crate::protocol::Rules;
use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::deadline::BootTime;
use crate::telemetry;
use crate::token::{ProcessId, TokenSource};

pub(crate) use crate::backend::redis::examine::{examine, examine_by_sentinels, examine_cluster};

/// The engine's side.
#[derive(Debug)]
struct Redis {
    shared: Arc<Shared>,
    response_timeout: Duration,
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
    let place = format!("the cluster of {seeds}");
    start(place, settings, rules_of(settings, true), |answers, process| {
        Ok(Servers::Cluster(Cluster::new(seeds, settings, answers, process)?))
    })
    .await
}

/// Connects to servers of which a majority decides.
pub(crate) async fn connect_to_quorum(voters: Voters, settings: &Settings) -> Result<Arc<Engine>> {
    let place = format!("the quorum of {voters}");
    let rules = Rules { hold_back: layout::HOLD_BACK, ..settings.rules };
    start(place, settings, rules, |answers, process| {
        Ok(Servers::Quorum(Quorum::new(voters, settings, answers, process)?))
    })
    .await
}

/// Connects to one server, wherever it is.
async fn start_one(whereabouts: Whereabouts, settings: &Settings) -> Result<Arc<Engine>> {
    let (place, moves) = (whereabouts.to_string(), !matches!(whereabouts, Whereabouts::Fixed(_)));
    start(place, settings, rules_of(settings, moves), |answers, process| {
        let (shared, engine) = (Arc::clone(&answers.shared), Weak::clone(&answers.engine));
        let answers = Arc::new(answers);
        Ok(Servers::One(Arc::new(Node::new(whereabouts, shared, engine, answers, process, settings))))
    })
    .await
}

/// Returns the rules where a key has one master at a time. Where that may become another one, servers hand messages on to each other, also
/// to whom the one that published them did not see, and passed over.
fn rules_of(settings: &Settings, moves: bool) -> Rules {
    Rules { told_is_given: !moves, hold_back: Layout::hold_back(settings.layout), ..settings.rules }
}

/// Starts a driver of what `serving` makes on a thread of its own, and waits for its first connection.
async fn start(
    place: String,
    settings: &Settings,
    rules: Rules,
    serving: impl FnOnce(ToEngine, ProcessId) -> Result<Servers>,
) -> Result<Arc<Engine>> {
    let response_timeout = rules.response_timeout;
    let shared = Arc::new(Shared::default());
    let backend = Redis { shared: Arc::clone(&shared), response_timeout };
    let tokens = TokenSource::new();
    let process = tokens.process();
    let engine = Engine::new(Arc::new(backend), Clock::Boot, tokens, rules, settings.lease);
    let engine = Arc::new(engine);
    let of_thread = Arc::downgrade(&engine);
    let answers = ToEngine { shared: Arc::clone(&shared), engine: Weak::clone(&of_thread) };
    let servers = serving(answers, process)?;
    let (first, connected) = oneshot::channel();
    let thread = std::thread::Builder::new().name("dlock-io".to_owned()).spawn(move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let text = format!("the i/o thread has no runtime: {error}");
                let _ = first.send(Err(Failure::new(FailureKind::Passing, text)));
                return;
            }
        };
        let _ = shared.runtime.set(runtime.handle().clone());
        let driver = Arc::new(Driver { shared, engine: of_thread, servers, response_timeout });
        let mut first = Some(first);
        // A task of its own: what runs inside `block_on` is woken by a system call even from its own thread. One that panics is started
        // again: a lock manager that hangs is worse.
        while let Err(error) =
            runtime.block_on(runtime.spawn(Arc::clone(&driver).run(first.take()))).and_then(|ended| ended)
        {
            telemetry::actor_failed(&error);
            std::thread::sleep(BEFORE_A_RESTART);
        }
    });
    thread.map_err(|error| {
        Failure::new(FailureKind::Passing, format!("no i/o thread: {error}")).of_the_server()
    })?;
    match connected.await {
        Ok(Ok(())) => Ok(engine),
        Ok(Err(failure)) => Err(failure.of_the_server()),
        Err(_) => {
            let text = format!("no connection to {place}");
            Err(Failure::new(FailureKind::Passing, text).of_the_server())
        }
    }
}

/// An actor that fails at once each time must not become a busy loop.
const BEFORE_A_RESTART: Duration = Duration::from_millis(100);

impl Backend for Redis {
    fn push(&self, request: Request) {
        self.shared.push(request);
    }

    fn flush(&self, _engine: &Engine, _now: BootTime, _effects: &mut Effects) {
        self.shared.wake.notify_one();
    }

    fn due_earlier(&self, due: BootTime) {
        if due.nanos() < self.shared.asleep_until.load(Ordering::SeqCst) {
            self.shared.wake.notify_one();
        }
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let slept = self
            .shared
            .runtime
            .get()
            .map(|runtime| runtime.spawn(async move { tokio::time::sleep(time).await }));
        Box::pin(async {
            if let Some(slept) = slept {
                let _ = slept.await;
            }
        })
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
}
