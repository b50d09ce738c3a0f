//! Locks on one Redis. The only folder that names the `redis` crate; its errors leave as failures in words.
//!
//! `node` is the actor that owns the connections, `link` makes them, `codec` and `scripts` say what goes over them.

mod codec;
mod link;
mod node;
mod scripts;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, oneshot};

use crate::backend::redis::link::Route;
use crate::backend::redis::node::Node;
use crate::backend::{Backend, Request};
use crate::clock::Clock;
use crate::config::url::Server;
use crate::config::{Settings, config};
use crate::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::protocol::abandon::AbandonList;
use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::deadline::BootTime;
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
    /// The connection whose answers are being delivered.
    answering: AtomicU64,
    /// Whether we can be told of grants.
    listening: AtomicBool,
    /// How many requests have not been answered.
    pending: AtomicUsize,
    settled: Notify,
}

impl Shared {
    fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *lock(&self.outbox))
    }

    /// So many requests less are pending.
    fn answered(&self, count: usize) {
        if count > 0 && self.pending.fetch_sub(count, Ordering::AcqRel) == count {
            self.settled.notify_waiters();
        }
    }
}

/// The engine's side of one Redis.
#[derive(Debug)]
struct Redis {
    shared: Arc<Shared>,
    response_timeout: std::time::Duration,
}

/// Connects to a server, on a thread of its own.
pub(crate) async fn connect(server: Server, settings: &Settings) -> Result<Arc<Engine>> {
    let address = server.to_string();
    let route = Route::new(server, settings.rules.response_timeout, settings.connect_timeout)?;
    let shared = Arc::new(Shared::default());
    let backend = Redis { shared: Arc::clone(&shared), response_timeout: settings.rules.response_timeout };
    let tokens = TokenSource::new();
    let process = tokens.process();
    let engine = Engine::new(Arc::new(backend), Clock::Boot, tokens, settings.rules, settings.lease);
    let engine = Arc::new(engine);
    let (first, connected) = oneshot::channel();
    let (of_thread, grant_lease) = (Arc::downgrade(&engine), settings.rules.grant_lease);
    let thread = std::thread::Builder::new().name("dlock-io".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => {
                let node = Arc::new(Node { route, shared, engine: of_thread, grant_lease, process });
                // A task of its own: what runs inside `block_on` is woken by a system call even from its own thread.
                let _ = runtime.block_on(runtime.spawn(node.run(first)));
            }
            Err(error) => {
                let text = format!("the i/o thread has no runtime: {error}");
                let _ = first.send(Err(Failure::new(FailureKind::Passing, text)));
            }
        }
    });
    thread.map_err(|error| {
        unavailable(Failure::new(FailureKind::Passing, format!("no i/o thread: {error}")))
    })?;
    match connected.await {
        Ok(Ok(())) => Ok(engine),
        Ok(Err(failure)) if failure.kind == FailureKind::Lasting => Err(config("server", &*failure.reason)),
        Ok(Err(failure)) => Err(unavailable(failure)),
        Err(_) => Err(unavailable(Failure::new(
            FailureKind::Passing,
            format!("no connection to redis at {address}"),
        ))),
    }
}

fn unavailable(Failure { reason, source, .. }: Failure) -> Error {
    Error::Unavailable { key: None, reason, source }
}

impl Backend for Redis {
    fn push(&self, request: Request) {
        self.shared.pending.fetch_add(1, Ordering::AcqRel);
        lock(&self.shared.outbox).push(request);
    }

    fn flush(&self, _engine: &Engine) {
        self.shared.wake.notify_one();
    }

    fn abandon(&self, key: Arc<str>, token: Token) {
        let epoch = self.shared.answering.load(Ordering::Acquire);
        lock(&self.shared.abandoned).add(key, token, epoch);
        self.shared.abandoned_more.notify_one();
    }

    fn due_earlier(&self, due: BootTime) {
        if due.nanos() < self.shared.asleep_until.load(Ordering::SeqCst) {
            self.shared.wake.notify_one();
        }
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let settled = async {
            loop {
                let settled = self.shared.settled.notified();
                if self.shared.pending.load(Ordering::Acquire) == 0 {
                    break;
                }
                settled.await;
            }
        };
        Box::pin(async {
            let _ = tokio::time::timeout(self.response_timeout, settled).await;
        })
    }

    fn close(&self) {
        self.shared.wake.notify_one();
    }
}
