//! Locks in the memory of this process: the same contract as a server, on tokio's clock.
//!
//! A [`MemoryStore`] replaces the server: it contains the keys and the managers that are connected
//! to it. It has no thread. Each request first brings the store up to date ([`Backend::advance`]):
//! all deadlines of all managers that have passed run in order, each at its own time. Waiting tasks
//! use their own timers, so paused tokio time works.
//!
//! See also `protocol::record`, which implements the commands.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::backend::store_call::{self, StoreOperation, StoreSlot};
use crate::backend::{Backend, Request};
use crate::bounds::LAST_FENCE;
use crate::clock::{Clock, TokioClock};
use crate::config::Settings;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::fork::PerProcess;
use crate::key::Name;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Failure, FailureKind, RecordInfo, Reply, ScriptReply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::fencing;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::record::Record;
use crate::sync::lock;
#[cfg(all(feature = "idempotent", feature = "testing"))]
use crate::testing::crash_point::CrashPoint;
#[cfg(feature = "testing")]
use crate::testing::recorder::Recorder;
use crate::timer::Timer;
use crate::token::{ProcessId, Token, TokenSource};

/// The keys and connected managers that replace a server.
pub(crate) struct MemoryStore {
    clock: Arc<TokioClock>,
    /// The wall clock at the start of `clock`, in milliseconds since the epoch.
    epoch: u64,
    records: Mutex<HashMap<Name, Record>>,
    counters: Mutex<HashMap<Name, u64>>,
    /// The keys that are no locks.
    values: Mutex<HashMap<Name, StoreSlot>>,
    managers: Mutex<HashMap<ProcessId, Weak<Engine>>>,
    /// Records and decisions of the testing API.
    #[cfg(feature = "testing")]
    pub(crate) recorder: Recorder,
    /// Held while overdue deadlines run, so that each runs once and in order. No task is woken
    /// meanwhile.
    catching_up: Mutex<()>,
    /// The earliest deadline of all managers, in nanoseconds of the clock. Before it,
    /// [`Backend::advance`] has nothing to do.
    next: AtomicU64,
    /// Held while `next` changes. To raise `next`, the deadlines are read under this lock. A caller
    /// that lowers it has recorded its deadline before it locks, so no deadline is missed.
    changing_next: Mutex<()>,
}

/// The stores that are shared by name.
static NAMED: PerProcess<Mutex<HashMap<String, Weak<MemoryStore>>>> = PerProcess::new();

impl MemoryStore {
    /// Returns the shared store of that name, or a new private store if there is no name.
    pub(crate) fn of_name(name: Option<&str>) -> Arc<Self> {
        let Some(name) = name else { return Arc::new(Self::new()) };
        let mut named = lock(NAMED.get());
        if let Some(store) = named.get(name).and_then(Weak::upgrade) {
            return store;
        }
        named.retain(|_, store| store.strong_count() > 0);
        let store = Arc::new(Self::new());
        named.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    fn new() -> Self {
        Self {
            clock: Arc::new(TokioClock::new()),
            epoch: u64::try_from(since_epoch().as_millis()).unwrap_or_default(),
            records: Mutex::default(),
            counters: Mutex::default(),
            values: Mutex::default(),
            managers: Mutex::default(),
            #[cfg(feature = "testing")]
            recorder: Recorder::default(),
            catching_up: Mutex::default(),
            next: AtomicU64::new(BootInstant::NEVER.nanos()),
            changing_next: Mutex::default(),
        }
    }

    /// Connects a new manager.
    pub(crate) fn join(self: &Arc<Self>, settings: &Settings) -> Arc<Engine> {
        let tokens = TokenSource::new();
        let process = tokens.process();
        let backend = Memory { store: Arc::clone(self), process, outbox: Mutex::default() };
        let clock = Clock::Tokio(Arc::clone(&self.clock));
        // Without tracking: only this crate changes the keys of the store.
        let rules = ProtocolConfig { tracking: false, ..settings.rules };
        let engine = Arc::new(Engine::new(Arc::new(backend), clock, tokens, rules, settings.lease));
        lock(&self.managers).insert(process, Arc::downgrade(&engine));
        engine
    }

    /// Runs one command. Tokens that are granted the lock are added to `granted`.
    fn run(
        &self,
        request: &Request,
        now: BootInstant,
        grant_lease: Duration,
        granted: &mut Vec<(Arc<Engine>, Token, Grant)>,
    ) -> Reply {
        let Request { key, token, command, .. } = request;
        #[cfg(feature = "testing")]
        if let Some(refused) = self.recorder.refusal(token.process()) {
            return refused;
        }
        let notify = |next: Token, offer| {
            let engine = self.manager(next.process());
            #[cfg(feature = "testing")]
            let engine = engine.filter(|_| self.recorder.refusal(next.process()).is_none());
            granted.extend(engine.clone().map(|engine| (engine, next, offer)));
            engine.is_some()
        };
        if let Some(call) = &request.call {
            return Reply::Called(self.call(key, &**call, now));
        }
        let mut records = lock(&self.records);
        let record = records.entry(Name::clone(key)).or_default();
        let reply = record.run(*token, *command, now, grant_lease, notify);
        if record.is_empty(now) {
            records.remove(key);
        }
        match (command, reply) {
            (Command::Fence, Reply::Owner) => self.fence(key),
            (Command::Inspect, Reply::Info(Some(info))) => {
                Reply::Info(Some(RecordInfo { fence: lock(&self.counters).get(key).copied(), ..info }))
            }
            (_, reply) => reply,
        }
    }

    /// Runs an operation on a key that is no lock, and notifies the managers that wait for it.
    fn call(&self, key: &Name, operation: &dyn StoreOperation, now: BootInstant) -> ScriptReply {
        let now = self.wall_clock_at(now);
        let mut values = lock(&self.values);
        if values.len() >= values.capacity() {
            values.retain(|_, slot| slot.expires > now); // before the map grows
        }
        let slot = values.entry(Name::clone(key)).or_default();
        let reply = operation.apply(slot, now);
        let wake = std::mem::take(&mut slot.wake);
        if slot.value.is_none() {
            values.remove(key);
        }
        drop(values);
        if !wake.is_empty() {
            for engine in self.managers() {
                if wake.contains(&store_call::waiter(&engine.tokens.process().token_prefix())) {
                    engine.calls.on_changed(key);
                }
            }
        }
        reply
    }

    /// Returns the time of the store's wall clock, in milliseconds since the epoch.
    fn wall_clock_at(&self, now: BootInstant) -> u64 {
        self.epoch + now.nanos() / 1_000_000
    }

    fn fence(&self, key: &Name) -> Reply {
        let micros = u64::try_from(since_epoch().as_micros()).unwrap_or(u64::MAX);
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

    /// Returns every connected manager.
    pub(crate) fn managers(&self) -> Vec<Arc<Engine>> {
        let mut managers = lock(&self.managers);
        managers.retain(|_, engine| engine.strong_count() > 0);
        managers.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the manager with the earliest deadline if that is at most `now`, and stores the
    /// earliest deadline.
    fn first_due(&self, now: BootInstant) -> Option<(BootInstant, Arc<Engine>)> {
        let changing = lock(&self.changing_next);
        let managers = self.managers();
        let first = managers.iter().map(|engine| (engine.due(), engine)).min_by_key(|(due, _)| *due);
        let due = first.map_or(BootInstant::NEVER, |(due, _)| due);
        self.next.store(due.nanos(), Ordering::SeqCst);
        let first = first.filter(|(due, _)| *due <= now).map(|(due, engine)| (due, Arc::clone(engine)));
        // These may be the last references to an engine, and dropping an engine acquires locks.
        drop(changing);
        drop(managers);
        first
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Access for the testing API.
#[cfg(feature = "testing")]
impl MemoryStore {
    /// Returns the time of the store's wall clock, in milliseconds since the epoch.
    pub(crate) fn wall_clock(&self) -> u64 {
        self.wall_clock_at(self.clock.now())
    }

    /// Returns `true` if the lock of `key` is held.
    pub(crate) fn is_held(&self, key: &Name, now: BootInstant) -> bool {
        lock(&self.records).get(key).is_some_and(|record| !record.is_empty(now))
    }

    /// Deletes the record of `key` and notifies its holder immediately.
    pub(crate) fn delete(&self, key: &Name, now: BootInstant) -> bool {
        let deleted = lock(&self.records).remove(key);
        let holder = deleted.and_then(|record| record.tokens(now).into_iter().next());
        let Some(token) = holder else { return false };
        if let Some(engine) = self.manager(token.process()) {
            let mut effects = Effects::default();
            // As if the holder had just requested a fencing token.
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

/// The connection of one manager to a store.
#[derive(Debug)]
struct Memory {
    store: Arc<MemoryStore>,
    process: ProcessId,
    outbox: Mutex<Outbox>,
}

#[derive(Debug, Default)]
struct Outbox {
    requests: VecDeque<Request>,
    /// Whether a call is processing the queue. It also processes what is added meanwhile, which
    /// keeps the order.
    busy: bool,
}

impl Memory {
    /// Takes the next request, or records that no call processes the queue.
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
            let reply = self.store.run(&request, now, engine.rules.grant_lease, &mut granted);
            let abandoned = engine.on_replies(now, now, [(request, reply)], effects);
            #[cfg(feature = "testing")]
            let abandoned = self.store.recorder.abandon(abandoned);
            // Every command is answered here, so there is almost never anything to clean up.
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
        if now.nanos() < self.store.next.load(Ordering::SeqCst) {
            return; // the usual case
        }
        let mut effects = Effects::default();
        let catching_up = lock(&self.store.catching_up);
        while let Some((due, engine)) = self.store.first_due(now) {
            engine.tick(due, &mut effects);
        }
        drop(catching_up);
        effects.wake();
    }

    fn due_earlier(&self, due: BootInstant) {
        let _changing = lock(&self.store.changing_next);
        self.store.next.fetch_min(due.nanos(), Ordering::SeqCst);
    }

    #[cfg(feature = "testing")]
    fn on_acquired(&self, key: &Name) {
        self.store.recorder.on_acquired(key, self.process);
    }

    #[cfg(all(feature = "idempotent", feature = "testing"))]
    fn takes_crash(&self, record: &Name, point: &CrashPoint) -> bool {
        self.store.recorder.takes_crash(record, point)
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Timer::new(time))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {
        // Every pushed request has run. Later events are not delivered to this manager.
        lock(&self.store.managers).remove(&self.process);
    }
}
