//! Models of what the threads of one process do concurrently with the engine.
//!
//! | module | threads | schedules |
//! |---|---|---|
//! | `small_models` | two or three, each with one acquisition | all (loom), random (shuttle) |
//! | `large_models` | up to seven, with several acquisitions each, timers, losses, and another process | random (shuttle) |
//! | `seeded_bugs` | large models with a fault that must be found | random (shuttle) |
//!
//! The engine uses the locks and atomics of loom or shuttle (`sync::shared`). All other code is the
//! shipped code, and tokio's channels and `Notify` are assumed to be correct. `server` is the
//! backend of the large models, `invariants` has their checks, and `coverage` counts what must
//! happen.

#[cfg(dlock_shuttle)]
mod coverage;
#[cfg(dlock_shuttle)]
mod invariants;
#[cfg(dlock_shuttle)]
mod large_models;
#[cfg(dlock_shuttle)]
mod seeded_bugs;
#[cfg(dlock_shuttle)]
mod server;
mod small_models;

#[cfg(dlock_shuttle)]
pub use coverage::coverage;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

#[cfg(dlock_loom)]
use loom::{future::block_on, thread};
#[cfg(dlock_shuttle)]
use shuttle::{future::block_on, thread};

use crate::backend::event_effects::EventEffects;
use crate::backend::{Backend, BackendEvents, Capabilities, EventReceiver, Request};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::acquire_future::AcquireFuture;
use crate::engine::hold_guard::HoldGuard;
use crate::key::LockKey;
use crate::options::Options;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::token::TokenSource;

/// A model to run in many schedules.
#[derive(Debug)]
pub struct Model {
    /// The property that the model shows.
    pub name: &'static str,
    /// Runs the model in one schedule.
    pub run: fn(),
    /// Part of the panic message that shows that the seeded fault was found. `None` if the model
    /// has no fault.
    pub fault: Option<&'static str>,
}

impl Model {
    const fn sound(name: &'static str, run: fn()) -> Self {
        Self { name, run, fault: None }
    }

    const fn faulty(name: &'static str, fault: &'static str, run: fn()) -> Self {
        Self { name, run, fault: Some(fault) }
    }

    /// Returns the panic message of a run, and whether it is as expected: none, or that of the
    /// seeded fault.
    #[must_use]
    pub fn check(&self, ran: std::thread::Result<()>) -> (Option<String>, bool) {
        let message = ran.err().map(|panic| {
            let message = panic.downcast_ref::<String>().cloned();
            message.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
        });
        let is_expected = match (&message, self.fault) {
            (Some(message), Some(fault)) => message.contains(fault),
            (message, fault) => message.is_none() && fault.is_none(),
        };
        (message, is_expected)
    }
}

/// Returns all models.
#[must_use]
pub fn models() -> Vec<Model> {
    #[cfg(dlock_loom)]
    let large = [];
    #[cfg(dlock_shuttle)]
    let large = large_models::models().into_iter().chain(seeded_bugs::models());
    small_models::models().into_iter().chain(large).collect()
}

/// A server that grants every request immediately.
#[derive(Debug, Default)]
struct Grants {
    events: EventReceiver,
    outbox: Mutex<Vec<Request>>,
    released: Mutex<usize>,
}

impl Backend for Grants {
    fn capabilities(&self) -> Capabilities {
        Capabilities::SERVER
    }

    fn attach(&self, events: Weak<dyn BackendEvents>) {
        self.events.attach(events);
    }

    fn submit(&self, request: Request) {
        lock(&self.outbox).push(request);
    }

    fn flush(&self, now: BootInstant, effects: &mut EventEffects) {
        let events = self.events.get().expect("the caller has the engine");
        loop {
            let requests = std::mem::take(&mut *lock(&self.outbox));
            if requests.is_empty() {
                return;
            }
            *lock(&self.released) += requests.iter().filter(|request| request.command.is_release()).count();
            for request in requests {
                drop(events.on_reply(request, Reply::Owner, now, now, effects));
            }
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
    Engine::over(backend, Clock::Boot, TokenSource::new(), rules, LONG)
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
    AcquireFuture::join(engine, key(), &options, None, None)
}

fn hold(engine: &Arc<Engine>) -> HoldGuard {
    block_on(wait(engine)).expect("no other task holds it")
}

fn is_empty(engine: &Engine) -> bool {
    engine.shards.keys().next().is_none()
}

const LONG: Duration = Duration::from_secs(30);
