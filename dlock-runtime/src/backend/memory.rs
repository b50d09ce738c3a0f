//! Locks in the memory of this process: the same contract as a server, under tokio's clock.
//!
//! A world is what a server would be: the keys, and the managers that are connected to it. It has no thread. Whoever asks it
//! something first brings it up to date ([`Backend::advance`]): everything that came due in any of its managers is done, in its
//! order and at its time. Whoever waits keeps the time with a timer of his own, so paused time works.
//!
//! Not here: what a command does (`protocol::record`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::backend::{Backend, Request};
use crate::bounds::LAST_FENCE;
use crate::clock::{Clock, TokioClock};
use crate::config::Settings;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::fork::PerProcess;
use crate::key::Name;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::fencing;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::record::Record;
use crate::sync::lock;
#[cfg(feature = "testing")]
use crate::testing::ledger::Ledger;
use crate::timer::Timer;
use crate::token::{ProcessId, Token, TokenSource};

/// What a server would be.
pub(crate) struct MemoryStore {
    clock: Arc<TokioClock>,
    records: Mutex<HashMap<Name, Record>>,
    counters: Mutex<HashMap<Name, u64>>,
    managers: Mutex<HashMap<ProcessId, Weak<Engine>>>,
    /// What the test kit notes and decides.
    #[cfg(feature = "testing")]
    pub(crate) ledger: Ledger,
    /// Held while what came due is done, so that it is done once and in order. No task is woken meanwhile.
    catching_up: Mutex<()>,
    /// Nothing comes due in any manager before this time, in nanoseconds of the clock: whoever comes earlier need not look.
    next: AtomicU64,
    /// Held while `next` is changed. Who raises it reads under it when things are due, and who lowers it has noted that before he
    /// asks for it, so nothing is missed.
    changing_next: Mutex<()>,
}

/// The worlds that are shared by name.
static NAMED: PerProcess<Mutex<HashMap<String, Weak<MemoryStore>>>> = PerProcess::new();

impl MemoryStore {
    /// Returns the world of that name, or one of its own.
    pub(crate) fn of_name(name: Option<&str>) -> Arc<Self> {
        let Some(name) = name else { return Arc::new(Self::new()) };
        let mut named = lock(NAMED.get());
        if let Some(world) = named.get(name).and_then(Weak::upgrade) {
            return world;
        }
        named.retain(|_, world| world.strong_count() > 0);
        let world = Arc::new(Self::new());
        named.insert(name.to_owned(), Arc::downgrade(&world));
        world
    }

    fn new() -> Self {
        Self {
            clock: Arc::new(TokioClock::new()),
            records: Mutex::default(),
            counters: Mutex::default(),
            managers: Mutex::default(),
            #[cfg(feature = "testing")]
            ledger: Ledger::default(),
            catching_up: Mutex::default(),
            next: AtomicU64::new(BootInstant::NEVER.nanos()),
            changing_next: Mutex::default(),
        }
    }

    /// Connects a new manager.
    pub(crate) fn join(self: &Arc<Self>, settings: &Settings) -> Arc<Engine> {
        let tokens = TokenSource::new();
        let process = tokens.process();
        let backend = Memory { world: Arc::clone(self), process, outbox: Mutex::default() };
        let clock = Clock::Tokio(Arc::clone(&self.clock));
        let rules = ProtocolConfig { tracking: false, ..settings.rules }; // nobody changes a key here behind our back
        let engine = Arc::new(Engine::new(Arc::new(backend), clock, tokens, rules, settings.lease));
        lock(&self.managers).insert(process, Arc::downgrade(&engine));
        engine
    }

    /// Does one command. Whom it grants the lock is added to `granted`.
    fn run(
        &self,
        request: &Request,
        now: BootInstant,
        grant_lease: Duration,
        granted: &mut Vec<(Arc<Engine>, Token, Grant)>,
    ) -> Reply {
        let Request { key, token, command, .. } = request;
        #[cfg(feature = "testing")]
        if let Some(refused) = self.ledger.refusal(token.process()) {
            return refused;
        }
        let told = |next: Token, offer| {
            let engine = self.manager(next.process());
            #[cfg(feature = "testing")]
            let engine = engine.filter(|_| self.ledger.refusal(next.process()).is_none());
            granted.extend(engine.clone().map(|engine| (engine, next, offer)));
            engine.is_some()
        };
        let mut records = lock(&self.records);
        let record = records.entry(Name::clone(key)).or_default();
        let reply = record.run(*token, *command, now, grant_lease, told);
        if record.is_empty(now) {
            records.remove(key);
        }
        match (command, reply) {
            (Command::Fence, Reply::Owner) => self.fence(key),
            (_, reply) => reply,
        }
    }

    fn fence(&self, key: &Name) -> Reply {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        let mut counters = lock(&self.counters);
        let Some(token) = fencing::next(counters.get(key).copied(), micros) else {
            let reason = format!("its counter in memory has reached {LAST_FENCE}; a new process restarts it");
            return Reply::Refused(Failure::new(FailureKind::FencingCounter, reason));
        };
        counters.insert(Name::clone(key), token);
        Reply::Fenced(token)
    }

    fn manager(&self, process: ProcessId) -> Option<Arc<Engine>> {
        lock(&self.managers).get(&process).and_then(Weak::upgrade)
    }

    /// Returns every manager that is connected.
    pub(crate) fn managers(&self) -> Vec<Arc<Engine>> {
        let mut managers = lock(&self.managers);
        managers.retain(|_, engine| engine.strong_count() > 0);
        managers.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the manager in which something comes due first, if that is by `now`, and notes when that is.
    fn first_due(&self, now: BootInstant) -> Option<(BootInstant, Arc<Engine>)> {
        let changing = lock(&self.changing_next);
        let managers = self.managers();
        let first = managers.iter().map(|engine| (engine.due(), engine)).min_by_key(|(due, _)| *due);
        let due = first.map_or(BootInstant::NEVER, |(due, _)| due);
        self.next.store(due.nanos(), Ordering::SeqCst);
        let first = first.filter(|(due, _)| *due <= now).map(|(due, engine)| (due, Arc::clone(engine)));
        // The last of an engine's references may be one of these, and its end takes locks.
        drop(changing);
        drop(managers);
        first
    }
}

/// What the test kit looks at and does.
#[cfg(feature = "testing")]
impl MemoryStore {
    /// Returns whether somebody holds the lock of `key`.
    pub(crate) fn is_held(&self, key: &Name, now: BootInstant) -> bool {
        lock(&self.records).get(key).is_some_and(|record| !record.is_empty(now))
    }

    /// Deletes what stands under `key`, and tells who held it at once.
    pub(crate) fn delete(&self, key: &Name, now: BootInstant) -> bool {
        let deleted = lock(&self.records).remove(key);
        let holder = deleted.and_then(|record| record.tokens(now).into_iter().next());
        let Some(token) = holder else { return false };
        if let Some(engine) = self.manager(token.process()) {
            let mut effects = Effects::default();
            // As if he had just asked.
            let asked = Request::new(Name::clone(key), token, Command::Fence);
            engine.on_replies(now, now, [(asked, Reply::NotOwner)], &mut effects);
            effects.wake();
        }
        true
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

/// One manager's connection to a world.
#[derive(Debug)]
struct Memory {
    world: Arc<MemoryStore>,
    process: ProcessId,
    outbox: Mutex<Outbox>,
}

#[derive(Debug, Default)]
struct Outbox {
    requests: VecDeque<Request>,
    /// Whether somebody is at it: he does what is added meanwhile, so that requests are done in their order.
    busy: bool,
}

impl Memory {
    /// Takes the next request, or notes that nobody is at it any more.
    fn next(&self) -> Option<Request> {
        let mut outbox = lock(&self.outbox);
        let next = outbox.requests.pop_front();
        outbox.busy = next.is_some();
        next
    }
}

impl Backend for Memory {
    fn push(&self, request: Request) {
        lock(&self.outbox).requests.push_back(request);
    }

    fn flush(&self, engine: &Engine, now: BootInstant, effects: &mut Effects) {
        if std::mem::replace(&mut lock(&self.outbox).busy, true) {
            return;
        }
        while let Some(request) = self.next() {
            let key = Name::clone(&request.key);
            let mut granted = Vec::new();
            let reply = self.world.run(&request, now, engine.rules.grant_lease, &mut granted);
            let abandoned = engine.on_replies(now, now, [(request, reply)], effects);
            #[cfg(feature = "testing")]
            let abandoned = self.world.ledger.abandon(abandoned);
            // There is always an answer here, so there is hardly ever anything to undo, and nothing in its way.
            for (key, token) in abandoned {
                self.push(Request::new(key, token, Command::Withdraw));
            }
            for (other, token, offer) in granted {
                other.on_grant(&key, token, offer, now, effects);
                other.backend.flush(&other, now, effects);
            }
        }
    }

    fn advance(&self, now: BootInstant) {
        if now.nanos() < self.world.next.load(Ordering::SeqCst) {
            return; // nearly always
        }
        let mut effects = Effects::default();
        let catching_up = lock(&self.world.catching_up);
        while let Some((due, engine)) = self.world.first_due(now) {
            engine.tick(due, &mut effects);
        }
        drop(catching_up);
        effects.wake();
    }

    fn due_earlier(&self, due: BootInstant) {
        let _changing = lock(&self.world.changing_next);
        self.world.next.fetch_min(due.nanos(), Ordering::SeqCst);
    }

    #[cfg(feature = "testing")]
    fn admitted(&self, key: &Name) {
        self.world.ledger.admitted(key, self.process);
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Timer::new(time))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {
        // What was pushed has been done: nobody is told of anything any more.
        lock(&self.world.managers).remove(&self.process);
    }
}
