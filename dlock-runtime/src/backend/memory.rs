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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt as _;
use smallvec::SmallVec;

use crate::backend::event_effects::EventEffects;
use crate::backend::memory::fence_counters::FenceCounters;
use crate::backend::store_call::{self, StoreOperation, StoreSlot};
use crate::backend::{Backend, BackendEvents, Capabilities, EventReceiver, OwnerSource, Request};
use crate::clock::{Clock, TokioClock};
use crate::fork::PerProcess;
use crate::key::Name;
use crate::protocol::command::{Command, RecordInfo, Reply, ScriptReply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::record::Record;
use crate::sync::lock;
#[cfg(feature = "testing")]
use crate::testing::recorder::Recorder;
use crate::timer::{self, Timer};
use crate::token::{ProcessId, Token};

mod fence_counters;

/// The keys and connected managers that replace a server.
pub(crate) struct MemoryStore {
    clock: Arc<TokioClock>,
    /// The wall clock at the start of `clock`, in milliseconds since the epoch.
    epoch: u64,
    records: Mutex<HashMap<Name, Record>>,
    fence_counters: Mutex<FenceCounters>,
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
            fence_counters: Mutex::default(),
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
    /// manager confirms. A fencing counter lives for `fence_ttl` after its last use.
    pub(crate) fn join(
        self: &Arc<Self>,
        process: ProcessId,
        (grant_lease, fence_ttl): (Duration, Duration),
        owner: &Arc<str>,
    ) -> Arc<Memory> {
        let memory = Arc::new(Memory {
            store: Arc::clone(self),
            process,
            grant_lease,
            fence_ttl,
            events: EventReceiver::default(),
            outbox: Mutex::default(),
        });
        let member = Member { memory: Arc::downgrade(&memory), owner: Arc::clone(owner) };
        lock(&self.managers).insert(process, member);
        memory
    }

    /// Runs one command of `sender`. Its reports to managers are added to `notices`.
    fn run(
        &self,
        request: &Request,
        now: BootInstant,
        sender: &Memory,
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
        let reply = record.run(*token, *command, now, sender.grant_lease, notify);
        if record.is_empty(now) {
            records.remove(key);
        }
        match (command, reply) {
            (Command::Fence, Reply::Owner) => {
                let micros = u64::try_from(since_epoch().as_micros()).unwrap_or(u64::MAX);
                lock(&self.fence_counters).issue(key, micros, now, sender.fence_ttl)
            }
            (Command::Inspect, Reply::Info(Some(info))) => {
                Reply::Info(Some(RecordInfo { fence: lock(&self.fence_counters).last(key), ..info }))
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
    fence_ttl: Duration,
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
    /// Runs the queued requests. Other managers that are notified are added to `notified`, since
    /// they may have submitted requests.
    fn run_queued(&self, now: BootInstant, effects: &mut EventEffects, notified: &mut Notified) {
        let Some(events) = self.events.get() else { return };
        let mut queue = QueueRun { memory: self, is_current: false };
        while let Some(request) = queue.next() {
            let key = Name::clone(&request.key);
            let mut notices = MemoryNotices::default();
            let reply = self.store.run(&request, now, self, &mut notices);
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

/// The call that processes the queue of a manager. If it panics, a later call processes the rest.
struct QueueRun<'a> {
    memory: &'a Memory,
    /// Whether this call processes the queue.
    is_current: bool,
}

impl QueueRun<'_> {
    /// Takes the next request, or records that no call processes the queue. Returns `None` if
    /// another call does.
    fn next(&mut self) -> Option<Request> {
        let mut outbox = lock(&self.memory.outbox);
        if outbox.busy && !self.is_current {
            return None;
        }
        let next = outbox.requests.pop_front();
        outbox.busy = next.is_some();
        self.is_current = outbox.busy;
        next
    }
}

impl Drop for QueueRun<'_> {
    fn drop(&mut self) {
        if self.is_current {
            lock(&self.memory.outbox).busy = false;
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

    /// Polls the task once in place: its requests are answered at once, also if no thread drives
    /// the current runtime any more, or if it has ended.
    fn spawn(&self, mut task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // The caller may be unwinding, and a subscriber of events may panic. The poll must not
        // depend on what the current task has done before.
        let poll = AssertUnwindSafe(|| tokio::task::unconstrained(task.as_mut()).now_or_never());
        if let Ok(None) = catch_unwind(poll) {
            timer::spawn(task);
        }
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::LockManager;
    use crate::backend::tests::recorded_events::RecordedEvents;
    use crate::backend::tests::test_operation::TestOperation;
    use crate::protocol::command::EnqueueMode;
    use crate::token::TokenSource;

    const GRANT_LEASE: Duration = Duration::from_secs(5);
    const FENCE_TTL: Duration = Duration::from_secs(60);
    const ENQUEUE: Command = Command::Enqueue { lease: Duration::from_secs(30), mode: EnqueueMode::Join };

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    /// A manager of a store, and its events.
    struct TestManager {
        memory: Arc<Memory>,
        events: Arc<RecordedEvents>,
        tokens: TokenSource,
    }

    impl TestManager {
        fn join(store: &Arc<MemoryStore>, number: u64) -> Self {
            let tokens = TokenSource::of_process(number);
            let owner = format!("web-{number}").into();
            let memory = store.join(tokens.process(), (GRANT_LEASE, FENCE_TTL), &owner);
            let events = RecordedEvents::attach(|events| memory.attach(events));
            Self { memory, events, tokens }
        }

        /// Sends requests, and returns the events of this manager.
        fn send(&self, requests: impl IntoIterator<Item = Request>, now: BootInstant) -> Vec<String> {
            requests.into_iter().for_each(|request| self.memory.submit(request));
            let mut effects = EventEffects::default();
            self.memory.flush(now, &mut effects);
            effects.run();
            self.events.take()
        }

        fn run(&self, token: Token, command: Command, now: BootInstant) -> Vec<String> {
            self.send([Request::new("a".into(), token, command)], now)
        }

        fn waiter(&self) -> String {
            store_call::waiter(&self.tokens.process().token_prefix())
        }
    }

    /// Panics when it is woken.
    struct PanickingWaker;

    impl Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            panic!("this panic is part of the test");
        }
    }

    #[test]
    fn a_waker_that_panics_blocks_no_later_request() {
        let (locks, key) = (LockManager::in_new_memory(), Name::from("a"));
        let engine = locks.engine();
        let watch = engine.calls.watch(&key);
        let mut changed = pin!(watch.notified());
        let waker = Waker::from(Arc::new(PanickingWaker));
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let waiter = store_call::waiter(&engine.tokens.process().token_prefix());
        let notifies = TestOperation::with_effect(move |slot, _| {
            slot.wake.push(waiter.clone());
            ScriptReply::Nil
        });

        for operation in [notifies, Arc::default()] {
            let operation: Arc<dyn StoreOperation> = operation;
            let reply = engine.call(&key, &operation).now_or_never();
            assert!(matches!(reply, Some(Ok(ScriptReply::Nil))), "{reply:?}");
        }
    }

    #[test]
    fn a_request_that_panics_blocks_no_later_one() {
        let manager = TestManager::join(&MemoryStore::of_name(None), 1);
        let panics = TestOperation::with_effect(|_, _| panic!("this panic is part of the test"));

        let panicked = catch_unwind(AssertUnwindSafe(|| manager.send([panics.request("a")], at(0))));
        let later = manager.send([Arc::<TestOperation>::default().request("a")], at(0));

        assert!(panicked.is_err());
        assert_eq!(later.len(), 1, "{later:?}");
    }

    #[test]
    fn a_name_leads_to_one_store_while_it_is_used() {
        let of = |name| MemoryStore::of_name(Some(name));
        let (kept, dropped) = (of("memory test: kept"), of("memory test: dropped"));
        drop(dropped);

        let other = of("memory test: other");

        assert!(Arc::ptr_eq(&kept, &of("memory test: kept")));
        assert!(!Arc::ptr_eq(&kept, &other));
        assert!(!lock(NAMED.get()).contains_key("memory test: dropped"));
        assert!(!Arc::ptr_eq(&MemoryStore::of_name(None), &MemoryStore::of_name(None)));
    }

    #[test]
    fn deadlines_run_in_order_and_each_at_its_own_time() {
        let store = MemoryStore::of_name(None);
        let (first, second) = (TestManager::join(&store, 1), TestManager::join(&store, 2));
        for (manager, due) in [(&first, 5), (&second, 3)] {
            manager.events.set_due(at(due));
            manager.memory.due_earlier(at(due));
        }

        first.memory.advance(at(2));
        assert!(first.events.take().is_empty() && second.events.take().is_empty());
        first.memory.advance(at(3));
        assert!(first.events.take().is_empty());
        assert_eq!(second.events.take(), ["timeout 3ms"]);
        second.events.set_due(at(8));
        second.memory.due_earlier(at(8));
        second.memory.advance(at(9));

        assert_eq!(first.events.take(), ["timeout 5ms"]);
        assert_eq!(second.events.take(), ["timeout 8ms"]);
    }

    #[test]
    fn a_dropped_manager_is_forgotten() {
        let store = MemoryStore::of_name(None);
        let (stays, leaves) = (TestManager::join(&store, 1), TestManager::join(&store, 2));

        drop(leaves.memory);

        assert_eq!(store.managers().len(), 1);
        assert_eq!(lock(&store.managers).len(), 1);
        assert!(matches!(store.managers()[..], [ConnectedManager { ref memory, .. }]
            if Arc::ptr_eq(memory, &stays.memory)));
    }

    #[test]
    fn the_owner_of_a_manager_is_known_until_it_is_closed() {
        let store = MemoryStore::of_name(None);
        let (asking, holder) = (TestManager::join(&store, 1), TestManager::join(&store, 2));
        let owner = || asking.memory.owner_of(holder.tokens.process(), "dlock");

        assert!(matches!(owner(), OwnerSource::Known(owner) if *owner == *"web-2"));
        holder.memory.close();
        assert!(matches!(owner(), OwnerSource::Unknown));
    }

    #[test]
    fn a_release_grants_the_lock_to_a_manager_that_is_connected() {
        let store = MemoryStore::of_name(None);
        let (holder, gone, waiter) =
            (TestManager::join(&store, 1), TestManager::join(&store, 2), TestManager::join(&store, 3));
        let token = holder.tokens.next();
        assert_eq!(holder.run(token, ENQUEUE, at(0)), ["reply a Owner"]);
        for manager in [&gone, &waiter] {
            let queued = manager.run(manager.tokens.next(), ENQUEUE, at(0));
            assert_eq!(queued, ["reply a Queued { ttl: Some(30s) }"]);
        }
        gone.memory.close();

        assert_eq!(holder.run(token, Command::RELEASE, at(1)), ["reply a Owner"]);

        assert_eq!(waiter.events.take(), ["grant a 5s"]);
        assert!(gone.events.take().is_empty());
    }

    #[test]
    fn a_released_key_leaves_no_record() {
        let store = MemoryStore::of_name(None);
        let manager = TestManager::join(&store, 1);
        let token = manager.tokens.next();
        manager.run(token, ENQUEUE, at(0));
        assert_eq!(lock(&store.records).len(), 1);

        manager.run(token, Command::RELEASE, at(0));

        assert!(lock(&store.records).is_empty());
    }

    #[test]
    fn requests_of_one_manager_are_processed_by_one_call_at_a_time() {
        let store = MemoryStore::of_name(None);
        let TestManager { memory, tokens, .. } = TestManager::join(&store, 1);
        let submit = |key: &str| memory.submit(Request::new(key.into(), tokens.next(), Command::Ping));
        let run = || QueueRun { memory: &memory, is_current: false };
        let next = |run: &mut QueueRun<'_>| run.next().map(|request| request.key.to_string());
        let (mut first, mut second) = (run(), run());
        submit("a");
        submit("b");

        assert_eq!(next(&mut first).as_deref(), Some("a"));
        assert_eq!(next(&mut second), None, "another call processes the queue");
        assert_eq!(next(&mut first).as_deref(), Some("b"));
        assert_eq!(next(&mut first), None);
        submit("c");
        assert_eq!(next(&mut second).as_deref(), Some("c"), "no call processes the queue any more");
        submit("d");
        drop(first);
        assert_eq!(next(&mut run()), None, "only the call that processes the queue ends that");
        drop(second);
        assert_eq!(next(&mut run()).as_deref(), Some("d"), "it has panicked");
    }

    #[test]
    fn fencing_tokens_begin_at_the_time_and_rise_by_one() {
        let store = MemoryStore::of_name(None);
        let manager = TestManager::join(&store, 1);
        let token = manager.tokens.next();
        manager.run(token, ENQUEUE, at(0));
        let fence = || {
            manager.run(token, Command::Fence, at(0));
            lock(&store.fence_counters).last(&"a".into()).expect("a token was issued")
        };

        let first = fence();

        let (start, now) = (u128::from(store.epoch) * 1_000, since_epoch().as_micros());
        assert!((start..=now).contains(&u128::from(first)), "{first} is not in {start}..={now}");
        let far = first * 2;
        let set = lock(&store.fence_counters).issue(&"a".into(), far, at(0), FENCE_TTL);
        assert!(matches!(set, Reply::Fenced(of) if of == far), "{set:?}");
        assert_eq!(fence(), far + 1);
        let info = manager.run(token, Command::Inspect, at(0));
        assert!(info[0].contains(&format!("fence: Some({})", far + 1)), "{info:?}");
    }

    /// Returns an operation that writes a value, and returns the one before.
    fn writes(value: i64, expires: u64, wake: Vec<String>) -> Arc<TestOperation> {
        TestOperation::with_effect(move |slot, _| {
            let before = slot.value.as_ref().and_then(|value| value.downcast_ref::<i64>()).copied();
            *slot = StoreSlot { value: Some(Box::new(value)), expires, wake: wake.clone() };
            before.map_or(ScriptReply::Nil, ScriptReply::Int)
        })
    }

    #[test]
    fn an_operation_runs_at_the_time_of_the_wall_clock() {
        let store = MemoryStore::of_name(None);
        let manager = TestManager::join(&store, 1);
        let (send, times) = mpsc::channel();
        let operation = TestOperation::with_effect(move |_, now| {
            send.send(now).expect("the test waits");
            ScriptReply::Nil
        });
        let run_at = |ms| {
            manager.send([operation.request("a")], at(ms));
            times.try_recv().expect("it has run")
        };

        let start = run_at(0);

        let day = Duration::from_secs(24 * 3_600).as_millis();
        let now = since_epoch().as_millis();
        assert!(u128::from(start) <= now && now - u128::from(start) < day, "{start} is not {now}");
        assert_eq!(run_at(1_500) - start, 1_500);
    }

    #[test]
    fn a_changed_key_notifies_the_managers_that_wait_for_it() {
        let store = MemoryStore::of_name(None);
        let (writer, waiting, other) =
            (TestManager::join(&store, 1), TestManager::join(&store, 2), TestManager::join(&store, 3));
        let written = writer.send([writes(7, u64::MAX, Vec::new()).request("a")], at(0));
        assert_eq!(written, ["reply a Called(Nil)"]);
        assert!(waiting.events.take().is_empty());

        let wake = vec![waiting.waiter()];
        let written = writer.send([writes(8, u64::MAX, wake).request("a")], at(0));

        assert_eq!(written, ["reply a Called(Int(7))"]);
        assert_eq!(waiting.events.take(), ["invalidation a"]);
        assert!(other.events.take().is_empty());
    }

    #[test]
    fn ended_values_are_dropped_and_others_are_kept() {
        const MANY: usize = 1_000;
        let store = MemoryStore::of_name(None);
        let manager = TestManager::join(&store, 1);
        let write = |key: &str, expires| manager.send([writes(0, expires, Vec::new()).request(key)], at(0));
        write("lasts", store.epoch + 1);

        for number in 0..MANY {
            write(&number.to_string(), store.epoch); // it ends at once
        }

        assert!(lock(&store.values).len() < MANY / 2);
        assert_eq!(write("lasts", u64::MAX), ["reply lasts Called(Int(0))"]);
    }

    #[test]
    fn callers_drive_the_time_of_a_store_in_memory() {
        let store = MemoryStore::of_name(None);

        let capabilities = TestManager::join(&store, 1).memory.capabilities();

        assert!(!capabilities.keeps_time && !capabilities.reports_changes && capabilities.store_calls);
        assert_eq!(capabilities.max_renewals_in_flight, usize::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_follows_the_time_of_the_callers_runtime() {
        let memory = TestManager::join(&MemoryStore::of_name(None), 1).memory;
        let begun = tokio::time::Instant::now();

        memory.sleep(Duration::from_secs(3_600)).await;
        assert_eq!(begun.elapsed().as_secs(), 3_600);
        memory.settle().await;

        assert_eq!(begun.elapsed().as_secs(), 3_600, "every request has its reply");
    }

    #[tokio::test]
    async fn a_task_is_spawned_on_the_callers_runtime() {
        let memory = TestManager::join(&MemoryStore::of_name(None), 1).memory;
        let (ran, runs) = tokio::sync::oneshot::channel();

        memory.spawn(Box::pin(async { ran.send(()).expect("the test waits") }));

        assert!(runs.await.is_ok());
    }
}
