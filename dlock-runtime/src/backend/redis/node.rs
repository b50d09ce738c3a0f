//! The actor of one Redis: it owns the connections, sends what is queued, and keeps the time.
//!
//! ```text
//!            opened: scripts loaded, subscribed                    broken, out of service, two timeouts
//!  Connecting ---------------------------------> Ready (an epoch) -------------------------------------> Backoff
//!      ^                                                                                                   |
//!      +--------------------------- 10 ms to 1 s, with jitter, without end --------------------------------+
//! ```
//!
//! It runs on a thread of its own, so that leases are renewed while the application's threads are busy and after the runtime that
//! made the manager has ended. While no connection is ready it refuses what is queued at once. When the engine is gone it sends what
//! is left, undoes what nobody can have any more, and ends.
//!
//! Not here: how to connect (`link`), what becomes of requests (`batch`), what an answer means (`protocol`).

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use crate::backend::Request;
use crate::backend::redis::Shared;
use crate::backend::redis::batch::Batch;
use crate::backend::redis::codec;
use crate::backend::redis::link::{Ear, Route};
use crate::backend::redis::scripts::Loaded;
use crate::clock::boot_time;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::protocol::command::{Command, Enqueue, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootTime;
use crate::sync::lock;
use crate::telemetry;
use crate::token::ProcessId;

/// The actor.
pub(super) struct Node {
    pub(super) route: Route,
    pub(super) shared: Arc<Shared>,
    pub(super) engine: Weak<Engine>,
    pub(super) grant_lease: Duration,
    /// Whose grants are listened for.
    pub(super) process: ProcessId,
}

/// A connection that works.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    pub(super) scripts: Loaded,
    /// Which connection of this node it is.
    pub(super) epoch: u64,
    /// What hears of grants, until it is taken to be listened to; `None` where the server does not let us subscribe.
    ear: Mutex<Option<Ear>>,
    /// Told when the connection is to be given up.
    broken: Notify,
    health: Mutex<Health>,
    /// Asks for a ping at once.
    doubt: Notify,
}

/// How many answers in a row were late, and why the connection is given up.
#[derive(Default)]
struct Health {
    late_in_a_row: u32,
    failure: Option<Failure>,
}

impl Link {
    /// Notes that an answer came.
    pub(super) fn answered(&self) {
        lock(&self.health).late_in_a_row = 0;
    }

    /// Notes that an answer did not come; after two in a row, or where the connection is gone, it is given up.
    pub(super) fn unanswered(&self, failure: &Failure, gone: bool) {
        let late_in_a_row = {
            let mut health = lock(&self.health);
            health.late_in_a_row += 1;
            health.late_in_a_row
        };
        if gone || late_in_a_row >= 2 {
            self.give_up(failure.clone());
        }
    }

    pub(super) fn give_up(&self, failure: Failure) {
        lock(&self.health).failure.get_or_insert(failure);
        self.broken.notify_one();
    }
}

/// Whether the engine is still there.
enum Drive<T> {
    Done(T),
    EngineGone,
}

impl Node {
    /// Runs until the engine is gone and what it left is dealt with. `first` is told how the first attempt to connect ended; after a failure there is no second.
    pub(super) async fn run(self: Arc<Self>, first: Option<oneshot::Sender<Result<(), Failure>>>) {
        self.shared.listening.store(false, Ordering::Release);
        self.run_for_the_engine(first).await;
        let _ = tokio::time::timeout(self.last_words(), self.run_for_nobody()).await;
    }

    async fn run_for_the_engine(self: &Arc<Self>, mut first: Option<oneshot::Sender<Result<(), Failure>>>) {
        let text = format!("not connected to redis at {} yet", self.route.shown);
        let mut down = Failure::new(FailureKind::Passing, text);
        let mut failures = 0;
        loop {
            let opened = match self.drive(self.open(), |node, requests| node.refuse(requests, &down)).await {
                Drive::Done(opened) => opened,
                Drive::EngineGone => return,
            };
            match (opened, first.take()) {
                (Ok(link), told) => {
                    if told.is_some_and(|told| told.send(Ok(())).is_err()) {
                        return;
                    }
                    let since = Instant::now();
                    telemetry::connected(&self.route.shown, &self.process.shown());
                    let Drive::Done(failure) = self.serve(&Arc::new(link)).await else { return };
                    telemetry::disconnected(&failure.reason);
                    down = failure;
                    // One that works for a while was a good one; a replica lets us in and refuses the first write.
                    failures = if since.elapsed() >= PROVEN { 0 } else { failures + 1 };
                }
                (Err(failure), Some(told)) => {
                    let _ = told.send(Err(failure));
                    return;
                }
                (Err(failure), None) => {
                    down = failure;
                    failures += 1;
                }
            }
            let pause = tokio::time::sleep(self.backoff(failures));
            if let Drive::EngineGone = self.drive(pause, |node, requests| node.refuse(requests, &down)).await
            {
                return;
            }
        }
    }

    async fn open(&self) -> Result<Link, Failure> {
        let (commands, ear) = tokio::join!(self.route.connect(), self.route.listen(self.process));
        let (connection, scripts) = commands?;
        if let Err(failure) = &ear {
            telemetry::not_listening(&failure.reason);
        }
        Ok(Link {
            connection,
            scripts,
            epoch: self.shared.epochs.fetch_add(1, Ordering::AcqRel) + 1,
            ear: Mutex::new(ear.ok()),
            broken: Notify::new(),
            health: Mutex::default(),
            doubt: Notify::new(),
        })
    }

    /// Uses a connection until it is to be given up, and returns why.
    async fn serve(self: &Arc<Self>, link: &Arc<Link>) -> Drive<Failure> {
        // Dropped on the way out: what is under way then is answered "unknown", and the socket is closed with it.
        let mut batches = JoinSet::new();
        let used = async {
            tokio::select! {
                () = link.broken.notified() => {}
                () = self.hear(link) => {}
                () = self.undo() => {}
                () = self.ping(link) => {}
            }
        };
        let ended = self.drive(used, |_, requests| self.send(link, &mut batches, requests)).await;
        self.shared.listening.store(false, Ordering::Release);
        if let Drive::EngineGone = ended {
            let _ = tokio::time::timeout(self.last_words(), self.wind_up(link, &mut batches)).await;
            return Drive::EngineGone;
        }
        let failure = lock(&link.health).failure.take();
        Drive::Done(failure.unwrap_or_else(|| {
            let text = format!("the connection to redis at {} was given up", self.route.shown);
            Failure::new(FailureKind::Passing, text)
        }))
    }

    /// Connects for what is left, where the connection that the engine used was gone with it.
    async fn run_for_nobody(self: &Arc<Self>) {
        let mut failures = 0;
        while self.shared.has_more() {
            if let Ok(link) = self.open().await {
                self.wind_up(&Arc::new(link), &mut JoinSet::new()).await;
            }
            failures += 1;
            tokio::time::sleep(self.backoff(failures)).await;
        }
    }

    /// Sends what is left, and undoes what nobody can have any more, as long as the connection works.
    async fn wind_up(self: &Arc<Self>, link: &Arc<Link>, batches: &mut JoinSet<()>) {
        while self.shared.has_more() {
            self.shared.push_due_leaves();
            self.send(link, batches, self.shared.take());
            let due = lock(&self.shared.abandoned).due();
            let next = tokio::time::sleep(due.since(boot_time()).min(LONGEST_SLEEP));
            tokio::select! {
                Some(_) = batches.join_next() => {}
                () = link.broken.notified() => return,
                () = next => {}
            }
        }
    }

    /// Waits for `until`, and meanwhile gives what is queued to `handle` and does what comes due.
    async fn drive<T>(
        &self,
        until: impl Future<Output = T>,
        mut handle: impl FnMut(&Self, Vec<Request>),
    ) -> Drive<T> {
        let mut until = pin!(until);
        loop {
            let wake = self.shared.wake.notified();
            self.shared.asleep_until.store(0, Ordering::SeqCst);
            let now = boot_time();
            let due = match self.engine.upgrade() {
                Some(engine) => {
                    let mut effects = Effects::default();
                    let due = engine.tick(now, &mut effects);
                    effects.wake();
                    due
                }
                None => return Drive::EngineGone,
            };
            let requests = self.shared.take();
            if !requests.is_empty() {
                handle(self, requests);
            }
            self.shared.asleep_until.store(due.nanos(), Ordering::SeqCst);
            if self.engine.upgrade().is_some_and(|engine| engine.due() < due) {
                continue; // something came due earlier while we were not looking
            }
            let sleep = async {
                if due == BootTime::NEVER {
                    std::future::pending::<()>().await;
                } else {
                    tokio::time::sleep(due.since(now).min(LONGEST_SLEEP)).await;
                }
            };
            tokio::select! {
                biased;
                done = &mut until => return Drive::Done(done),
                () = wake => {}
                () = sleep => {}
            }
        }
    }

    /// Answers what cannot be sent. Nothing of it ran, so the next connection proves that it is undone.
    fn refuse(&self, requests: Vec<Request>, failure: &Failure) {
        // Whatever keeps us from connecting, what was asked for may be had once we are connected.
        let failure = Failure { kind: FailureKind::Passing, ..failure.clone() };
        let replies =
            requests.into_iter().map(|request| (request, Reply::Refused(failure.clone()))).collect();
        self.hand_on(replies, boot_time(), self.shared.epochs.load(Ordering::Acquire) + 1);
    }

    /// Sends requests in pipelines that are short enough not to hold up others.
    fn send(self: &Arc<Self>, link: &Arc<Link>, batches: &mut JoinSet<()>, requests: Vec<Request>) {
        let mut requests = requests.into_iter().map(|request| self.without_an_ear(request)).peekable();
        while requests.peek().is_some() {
            let batch = Batch::new(self, link, requests.by_ref().take(LONGEST_BATCH), false);
            batches.spawn(batch.exchange());
        }
        while batches.try_join_next().is_some() {}
    }

    /// Where nobody can tell us of a grant we queue nowhere: the next release would take us for dead.
    fn without_an_ear(&self, mut request: Request) -> Request {
        if let Command::Enqueue { mode: mode @ Enqueue::First, .. } = &mut request.command
            && !self.shared.listening.load(Ordering::Acquire)
        {
            *mode = Enqueue::Peek;
        }
        request
    }

    /// Hears of grants as long as the connection is used, over a connection of its own that is made anew when it breaks. After each
    /// subscription everything that waits is looked at again: messages were missed meanwhile.
    async fn hear(&self, link: &Link) {
        let mut ear = lock(&link.ear).take();
        self.look_again();
        let mut failures = 0;
        loop {
            let since = Instant::now();
            if let Some(mut ear) = ear.take() {
                self.shared.listening.store(true, Ordering::Release);
                self.look_again();
                self.tell_grants(&mut ear).await;
                self.shared.listening.store(false, Ordering::Release);
                link.doubt.notify_one(); // what cut this connection may have cut the other
            }
            failures = if since.elapsed() >= PROVEN { 0 } else { failures + 1 };
            tokio::time::sleep(self.backoff(failures)).await;
            ear = self.route.listen(self.process).await.ok();
        }
    }

    fn look_again(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.reconnected();
        }
    }

    async fn tell_grants(&self, ear: &mut Ear) {
        while let Some(grant) = ear.next(PING_EVERY).await {
            let Some(engine) = self.engine.upgrade() else { return };
            let mut effects = Effects::default();
            engine.granted(&grant.key, grant.token, grant.lease, boot_time(), &mut effects);
            effects.wake();
        }
    }

    /// Undoes the effect of commands without an answer, as soon as they are known.
    async fn undo(&self) {
        loop {
            let more = self.shared.abandoned_more.notified();
            self.shared.push_due_leaves();
            let due = lock(&self.shared.abandoned).due();
            tokio::select! {
                () = more => {}
                () = tokio::time::sleep(due.since(boot_time()).min(LONGEST_IDLE)) => {}
            }
        }
    }

    /// Finds out that a connection is dead before somebody needs it.
    async fn ping(&self, link: &Link) {
        let ping = redis::cmd("PING");
        loop {
            let _ = tokio::time::timeout(PING_EVERY, link.doubt.notified()).await;
            match link.connection.clone().send_packed_command(&ping).await {
                Ok(value) if codec::is_out_of_service(&value) => {
                    let text = format!("redis at {} is out of service", self.route.shown);
                    link.give_up(Failure::new(FailureKind::Passing, text));
                }
                Ok(_) => {}
                Err(error) => link.unanswered(&self.route.failure(error), true),
            }
        }
    }

    /// How long an actor whose engine is gone goes on.
    fn last_words(&self) -> Duration {
        self.route.response_timeout + LAST_WORDS
    }

    /// From 10 ms doubling to 1 s, spread by half so that a fleet does not come back in step.
    fn backoff(&self, failures: u32) -> Duration {
        let longest =
            Duration::from_millis(10).saturating_mul(1 << failures.min(7)).min(Duration::from_secs(1));
        let draw = self.engine.upgrade().map_or(0, |engine| engine.tokens.draw());
        longest.mul_f64(0.5 + 0.5 * f64::from(draw) / f64::from(u32::MAX))
    }
}

/// Ten thousand renewals in pipelines of this length leave other calls their place between them.
const LONGEST_BATCH: usize = 100;

/// How often a connection that may be idle is asked whether it is alive.
const PING_EVERY: Duration = Duration::from_secs(5);

/// How long a connection must have worked for the next failure to count as the first.
const PROVEN: Duration = Duration::from_secs(1);

/// The timers of the runtime do not count the time that the machine is suspended; the boot clock, which leases are measured by,
/// does. So no sleep is longer while something is due: after a resume a loss is told within this, and a body is not polled before.
/// Shorter would be dear: a virtual machine that wakes up from idling pays more than a renewal costs.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// With nothing to undo, and nothing that would tell of it otherwise.
const LONGEST_IDLE: Duration = Duration::from_secs(3600);

/// How much longer than an answer takes an actor whose engine is gone goes on: there is a second leave after a second.
const LAST_WORDS: Duration = Duration::from_millis(2_500);
