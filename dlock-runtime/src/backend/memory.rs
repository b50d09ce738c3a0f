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

use smallvec::SmallVec;

use crate::backend::event_effects::EventEffects;
use crate::backend::store_call::{self, StoreOperation, StoreSlot};
use crate::backend::{Backend, BackendEvents, Capabilities, EventReceiver, OwnerSource, Request};
use crate::bounds::LAST_FENCE;
use crate::clock::{Clock, TokioClock};
use crate::fork::PerProcess;
use crate::key::Name;
use crate::protocol::command::{Command, Failure, FailureKind, RecordInfo, Reply, ScriptReply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::fencing;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::record::Record;
use crate::sync::lock;
#[cfg(feature = "testing")]
use crate::testing::recorder::Recorder;
use crate::timer::Timer;
use crate::token::{ProcessId, Token};

/// The keys and connected managers that replace a server.
pub(crate) struct MemoryStore {
    clock: Arc<TokioClock>,
    /// The wall clock at the start of `clock`, in milliseconds since the epoch.
    epoch: u64,
    records: Mutex<HashMap<Name, Record>>,
    counters: Mutex<HashMap<Name, u64>>,
    /// The keys that are no locks.
    values: Mutex<HashMap<Name, StoreSlot>>,
    managers: Mutex<HashMap<ProcessId, Member>>,
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

/// A connected manager.
struct Member {
    memory: Weak<Memory>,
    owner: Arc<str>,
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

    /// Returns the clock of the store.
    pub(crate) fn clock(&self) -> Clock {
        Clock::Tokio(Arc::clone(&self.clock))
    }

    /// Connects a new manager. A token that is granted a lock holds it for `grant_lease` unless the
    /// manager confirms.
    pub(crate) fn join(
        self: &Arc<Self>,
        process: ProcessId,
        grant_lease: Duration,
        owner: &Arc<str>,
    ) -> Arc<Memory> {
        let memory = Arc::new(Memory {
            store: Arc::clone(self),
            process,
            grant_lease,
            events: EventReceiver::default(),
            outbox: Mutex::default(),
        });
        let member = Member { memory: Arc::downgrade(&memory), owner: Arc::clone(owner) };
        lock(&self.managers).insert(process, member);
        memory
    }

    /// Runs one command. Its reports to managers are added to `notices`.
    fn run(
        &self,
        request: &Request,
        now: BootInstant,
        grant_lease: Duration,
        notices: &mut MemoryNotices,
    ) -> Reply {
        let Request { key, token, command, .. } = request;
        #[cfg(feature = "testing")]
        if let Some(refused) = self.recorder.refusal(token.process()) {
            return refused;
        }
        let notify = |next: Token, offer| {
            let manager = self.manager(next.process());
            #[cfg(feature = "testing")]
            let manager = manager.filter(|_| self.recorder.refusal(next.process()).is_none());
            let is_connected = manager.is_some();
            notices.granted.extend(manager.map(|manager| (manager, next, offer)));
            is_connected
        };
        if let Some(call) = &request.call {
            return Reply::Called(self.call(key, &**call, now, &mut notices.changed));
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

    /// Runs an operation on a key that is no lock. The managers that wait for it are added to
    /// `changed`.
    fn call(
        &self,
        key: &Name,
        operation: &dyn StoreOperation,
        now: BootInstant,
        changed: &mut Vec<ConnectedManager>,
    ) -> ScriptReply {
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
            let waits = |manager: &ConnectedManager| {
                wake.contains(&store_call::waiter(&manager.memory.process.token_prefix()))
            };
            changed.extend(self.managers().into_iter().filter(waits));
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

    fn manager(&self, process: ProcessId) -> Option<ConnectedManager> {
        lock(&self.managers).get(&process).and_then(|member| ConnectedManager::of(&member.memory))
    }

    /// Returns every connected manager.
    fn managers(&self) -> Vec<ConnectedManager> {
        let mut managers = lock(&self.managers);
        managers.retain(|_, member| member.memory.strong_count() > 0);
        managers.values().filter_map(|member| ConnectedManager::of(&member.memory)).collect()
    }

    /// Returns the manager with the earliest deadline if that is at most `now`, and stores the
    /// earliest deadline.
    fn first_due(&self, now: BootInstant) -> Option<(BootInstant, ConnectedManager)> {
        let changing = lock(&self.changing_next);
        let managers = self.managers();
        let dues = managers.iter().map(|manager| (manager.events.due(), manager));
        let first = dues.min_by_key(|(due, _)| *due);
        let due = first.map_or(BootInstant::NEVER, |(due, _)| due);
        self.next.store(due.nanos(), Ordering::SeqCst);
        let first = first.filter(|(due, _)| *due <= now).map(|(due, manager)| (due, manager.clone()));
        // These may be the last references to an engine, and dropping an engine acquires locks.
        drop(changing);
        drop(managers);
        first
    }

    /// Runs all deadlines of all managers that have passed at `now`.
    fn catch_up(&self, now: BootInstant) {
        if now.nanos() < self.next.load(Ordering::SeqCst) {
            return; // the usual case
        }
        let mut effects = EventEffects::default();
        let catching_up = lock(&self.catching_up);
        while let Some((due, manager)) = self.first_due(now) {
            manager.events.on_timeout(due, &mut effects);
            manager.memory.flush(due, &mut effects);
        }
        drop(catching_up);
        effects.run();
    }
}

/// A manager that has not been dropped.
#[derive(Clone, Debug)]
struct ConnectedManager {
    memory: Arc<Memory>,
    events: Arc<dyn BackendEvents>,
}

impl ConnectedManager {
    fn of(memory: &Weak<Memory>) -> Option<Self> {
        let memory = memory.upgrade()?;
        let events = memory.events.get()?;
        Some(Self { memory, events })
    }
}

/// The reports of a command to managers.
#[derive(Debug, Default)]
struct MemoryNotices {
    /// Inline for the usual case, in which a release grants the lock to one waiter.
    granted: SmallVec<[(ConnectedManager, Token, Grant); 1]>,
    /// The managers that wait for a change of the key.
    changed: Vec<ConnectedManager>,
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
        if let Some(ConnectedManager { memory, events }) = self.manager(token.process()) {
            let mut effects = EventEffects::default();
            // As if the holder had just requested a fencing token.
            let asked = Request::new(Name::clone(key), token, Command::Fence);
            events.on_reply(asked, Reply::NotOwner, now, now, &mut effects);
            memory.flush(now, &mut effects);
            effects.run();
        }
        true
    }

    /// Returns the number of calls that wait for the lock of `key`, in all managers.
    pub(crate) fn waiting(&self, key: &Name) -> usize {
        self.managers().iter().map(|manager| manager.events.waiting(key)).sum()
    }

    /// Reports the end of an outage to every manager.
    pub(crate) fn reconnect(&self, now: BootInstant) {
        for ConnectedManager { memory, events } in self.managers() {
            let mut effects = EventEffects::default();
            events.on_reconnect(false, &|_| true, now, &mut effects);
            memory.flush(now, &mut effects);
            effects.run();
        }
        self.catch_up(now);
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

/// The connection of one manager to a store.
#[derive(Debug)]
pub(crate) struct Memory {
    store: Arc<MemoryStore>,
    process: ProcessId,
    grant_lease: Duration,
    events: EventReceiver,
    outbox: Mutex<Outbox>,
}

#[derive(Debug, Default)]
struct Outbox {
    requests: VecDeque<Request>,
    /// Whether a call is processing the queue. It also processes what is added meanwhile, which
    /// keeps the order.
    busy: bool,
}

/// Managers that may have submitted requests.
type Notified = SmallVec<[Arc<Memory>; 1]>;

impl Memory {
    /// Takes the next request, or records that no call processes the queue. `continues`: this call
    /// processes it. Returns `None` if another call does.
    fn next(&self, continues: bool) -> Option<Request> {
        let mut outbox = lock(&self.outbox);
        if outbox.busy && !continues {
            return None;
        }
        let next = outbox.requests.pop_front();
        outbox.busy = next.is_some();
        next
    }

    /// Runs the queued requests. Other managers that are notified are added to `notified`, since
    /// they may have submitted requests.
    fn run_queued(&self, now: BootInstant, effects: &mut EventEffects, notified: &mut Notified) {
        let Some(events) = self.events.get() else { return };
        let mut continues = false;
        while let Some(request) = self.next(continues) {
            continues = true;
            let key = Name::clone(&request.key);
            let mut notices = MemoryNotices::default();
            let reply = self.store.run(&request, now, self.grant_lease, &mut notices);
            let abandoned = events.on_reply(request, reply, now, now, effects);
            #[cfg(feature = "testing")]
            let abandoned = self.store.recorder.abandon(abandoned);
            // Every command is answered here, so there is almost never anything to clean up.
            for (key, token) in abandoned {
                self.submit(Request::new(key, token, Command::Withdraw));
            }
            for (ConnectedManager { memory, events }, token, offer) in notices.granted {
                events.on_grant(&key, token, offer, now, effects);
                notified.push(memory);
            }
            for ConnectedManager { memory, events } in notices.changed {
                events.on_invalidation(Some(&key), now, effects);
                notified.push(memory);
            }
        }
    }
}

impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // Only this crate changes the keys of the store.
            reports_changes: false,
            keeps_time: false,
            max_renewals_in_flight: usize::MAX,
            ..Capabilities::SERVER
        }
    }

    fn attach(&self, events: Weak<dyn BackendEvents>) {
        self.events.attach(events);
    }

    fn submit(&self, request: Request) {
        lock(&self.outbox).requests.push_back(request);
    }

    fn flush(&self, now: BootInstant, effects: &mut EventEffects) {
        let mut notified = Notified::new();
        self.run_queued(now, effects, &mut notified);
        while let Some(other) = notified.pop() {
            other.run_queued(now, effects, &mut notified);
        }
    }

    fn advance(&self, now: BootInstant) {
        self.store.catch_up(now);
    }

    fn due_earlier(&self, due: BootInstant) {
        let _changing = lock(&self.store.changing_next);
        self.store.next.fetch_min(due.nanos(), Ordering::SeqCst);
    }

    fn owner_of(&self, manager: ProcessId, _namespace: &str) -> OwnerSource {
        let managers = lock(&self.store.managers);
        let owner = managers.get(&manager).map(|member| Arc::clone(&member.owner));
        owner.map_or(OwnerSource::Unknown, OwnerSource::Known)
    }

    #[cfg(feature = "testing")]
    fn recorder(&self) -> Option<&Recorder> {
        Some(&self.store.recorder)
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Timer::new(time))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {
        // Every submitted request has run. Later events are not delivered to this manager.
        lock(&self.store.managers).remove(&self.process);
    }
}
