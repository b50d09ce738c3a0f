//! Locks on one Redis. The only folder that names the `redis` crate; its errors leave as failures in words.
//!
//! `node` is the actor that owns the connections, `link` makes them, `batch` sends and answers, `codec` and `scripts` say what goes over
//! them, `tls` whom we trust.

mod batch;
mod codec;
mod link;
mod node;
mod scripts;
#[cfg(feature = "tls")]
mod tls;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use once_cell::sync::OnceCell;
use tokio::sync::{Notify, oneshot};

use crate::backend::redis::link::Route;
use crate::backend::redis::node::Node;
use crate::backend::{Backend, Request};
use crate::clock::{Clock, boot_time};
use crate::config::Settings;
use crate::config::url::Server;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::error::Result;
use crate::protocol::abandon::AbandonList;
use crate::protocol::command::{Command, Failure, FailureKind};
use crate::protocol::deadline::BootTime;
use crate::sync::lock;
use crate::telemetry;
use crate::token::{Token, TokenSource};

/// What the engine's side and the actor's share.
#[derive(Debug, Default)]
struct Shared {
    outbox: Mutex<Vec<Request>>,
    /// Tells the actor that something is in the outbox, or due.
    wake: Notify,
    /// Until when the actor sleeps; 0 while it is awake.
    asleep_until: AtomicU64,
    abandoned: Mutex<AbandonList>,
    abandoned_more: Notify,
    /// How many connections there were.
    epochs: AtomicU64,
    /// Whether we can be told of grants.
    listening: AtomicBool,
    /// How many requests have not been answered.
    pending: AtomicUsize,
    settled: Notify,
    /// Where timers can be had that do not need the caller's runtime.
    runtime: OnceCell<tokio::runtime::Handle>,
}

impl Shared {
    fn push(&self, request: Request) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        lock(&self.outbox).push(request);
    }

    fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *lock(&self.outbox))
    }

    /// So many requests less are pending.
    fn answered(&self, count: usize) {
        if count > 0 && self.pending.fetch_sub(count, Ordering::AcqRel) == count {
            self.settled.notify_waiters();
        }
    }

    /// Notes what is to be undone, of commands that went out on the connection of `epoch`.
    fn abandon(&self, abandoned: Vec<(Arc<str>, Token)>, epoch: u64) {
        if abandoned.is_empty() {
            return;
        }
        let mut list = lock(&self.abandoned);
        for (key, token) in abandoned {
            list.add(key, token, epoch);
        }
        drop(list);
        self.abandoned_more.notify_one();
    }

    /// Queues the leaves that are due.
    fn push_due_leaves(&self) {
        let due = lock(&self.abandoned).due_now(boot_time());
        if due.is_empty() {
            return;
        }
        for (key, token) in due {
            self.push(Request { key, token, command: Command::Leave, answer: None });
        }
        self.wake.notify_one();
    }

    /// Returns whether something is not answered or not undone yet.
    fn has_more(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0 || !lock(&self.abandoned).is_empty()
    }
}

/// The engine's side of one Redis.
#[derive(Debug)]
struct Redis {
    shared: Arc<Shared>,
    response_timeout: Duration,
}

/// Connects to a server, on a thread of its own.
pub(crate) async fn connect(server: Server, settings: &Settings) -> Result<Arc<Engine>> {
    let address = server.to_string();
    let route = Route::new(server, settings)?;
    let shared = Arc::new(Shared::default());
    let backend = Redis { shared: Arc::clone(&shared), response_timeout: settings.rules.response_timeout };
    let tokens = TokenSource::new();
    let process = tokens.process();
    let engine = Engine::new(Arc::new(backend), Clock::Boot, tokens, settings.rules, settings.lease);
    let engine = Arc::new(engine);
    let (first, connected) = oneshot::channel();
    let (of_thread, grant_lease) = (Arc::downgrade(&engine), settings.rules.grant_lease);
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
        let node = Arc::new(Node { route, shared, engine: of_thread, grant_lease, process });
        let mut first = Some(first);
        // A task of its own: what runs inside `block_on` is woken by a system call even from its own thread. One that panics is started
        // again: a lock manager that hangs is worse.
        while let Err(error) = runtime.block_on(runtime.spawn(Arc::clone(&node).run(first.take()))) {
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
            let text = format!("no connection to redis at {address}");
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
