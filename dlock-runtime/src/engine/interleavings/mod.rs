//! What threads of one process may do to each other over the engine.
//!
//! | | | |
//! |---|---|---|
//! | `few` | two or three threads, each with a turn | in every order by loom, in drawn ones by shuttle |
//! | `crowd` | up to seven threads with several turns each, timers, losses and others who want the lock | in orders that shuttle draws |
//! | `planted` | crowds with a fault that is to be found | the same |
//!
//! The locks and atomics of the engine are loom's or shuttle's (`sync::shared`); all else is the code that ships. What it uses of
//! tokio, channels and `Notify`, is taken for correct. `server` is what a crowd has for a backend, `judges` says what must never be,
//! `tally` counts what must happen.
//! Not here: what threads may do to each other in a backend.

#[cfg(dlock_shuttle)]
mod crowd;
mod few;
#[cfg(dlock_shuttle)]
mod judges;
#[cfg(dlock_shuttle)]
mod planted;
#[cfg(dlock_shuttle)]
mod server;
#[cfg(dlock_shuttle)]
mod tally;

#[cfg(dlock_shuttle)]
pub use tally::tally;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(dlock_loom)]
use loom::{future::block_on, thread};
#[cfg(dlock_shuttle)]
use shuttle::{future::block_on, thread};

use crate::backend::{Backend, Request};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::acquire_future::AcquireFuture;
use crate::engine::effects::Effects;
use crate::engine::hold_guard::HoldGuard;
use crate::key::LockKey;
use crate::options::Options;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::token::TokenSource;

/// What is run in many orders.
#[derive(Debug)]
pub struct Model {
    /// What it shows.
    pub name: &'static str,
    /// Runs it in one order.
    pub run: fn(),
    /// What is said where the fault that it has is found; nothing for one that is right.
    pub fault: Option<&'static str>,
}

impl Model {
    const fn right(name: &'static str, run: fn()) -> Self {
        Self { name, run, fault: None }
    }

    const fn faulty(name: &'static str, fault: &'static str, run: fn()) -> Self {
        Self { name, run, fault: Some(fault) }
    }

    /// Returns what is said of a run, and whether that is what should be: nothing, or that the fault was found.
    #[must_use]
    pub fn judge(&self, ran: std::thread::Result<()>) -> (Option<String>, bool) {
        let said = ran.err().map(|panic| {
            let said = panic.downcast_ref::<String>().cloned();
            said.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
        });
        let is_right = match (&said, self.fault) {
            (Some(said), Some(fault)) => said.contains(fault),
            (said, fault) => said.is_none() && fault.is_none(),
        };
        (said, is_right)
    }
}

/// Returns all models.
#[must_use]
pub fn models() -> Vec<Model> {
    #[cfg(dlock_loom)]
    let crowds = [];
    #[cfg(dlock_shuttle)]
    let crowds = crowd::models().into_iter().chain(planted::models());
    few::models().into_iter().chain(crowds).collect()
}

/// A server that grants all that is asked for, at once.
#[derive(Debug, Default)]
struct Grants {
    outbox: Mutex<Vec<Request>>,
    released: Mutex<usize>,
}

impl Backend for Grants {
    fn push(&self, request: Request) {
        lock(&self.outbox).push(request);
    }

    fn flush(&self, engine: &Engine, now: BootInstant, effects: &mut Effects) {
        loop {
            let requests = std::mem::take(&mut *lock(&self.outbox));
            if requests.is_empty() {
                return;
            }
            *lock(&self.released) += requests.iter().filter(|request| request.command.is_release()).count();
            let replies = requests.into_iter().map(|request| (request, Reply::Owner));
            drop(engine.on_replies(now, now, replies, effects));
        }
    }

    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {}
}

fn engine_over(backend: Arc<dyn Backend>, rules: ProtocolConfig) -> Arc<Engine> {
    Arc::new(Engine::new(backend, Clock::Boot, TokenSource::new(), rules, LONG))
}

fn engine() -> (Arc<Engine>, Arc<Grants>) {
    let grants = Arc::<Grants>::default();
    let rules = ProtocolConfig { handoff_budget: LONG, ..ProtocolConfig::DEFAULT };
    (engine_over(Arc::<Grants>::clone(&grants), rules), grants)
}

fn key() -> LockKey {
    LockKey::new("order:7").expect("a key")
}

fn wait(engine: &Arc<Engine>) -> AcquireFuture {
    let options = Options { wait: Some(LONG), ..Options::new() };
    AcquireFuture::join(engine, key(), &options, None)
}

fn hold(engine: &Arc<Engine>) -> HoldGuard {
    block_on(wait(engine)).expect("nobody else has it")
}

fn is_empty(engine: &Engine) -> bool {
    engine.shards.keys().next().is_none()
}

const LONG: Duration = Duration::from_secs(30);
