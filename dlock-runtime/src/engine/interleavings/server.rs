//! The backend of the large models: a server in memory, which replies immediately or from its own
//! thread, in the order of requests.
//!
//! It records which tokens hold a lock. Its mutexes are not part of the schedules, since no thread
//! waits while one is locked. See `protocol::record` for the commands.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use shuttle::sync::mpsc;
use tokio::sync::oneshot;

use super::coverage::cover;
use crate::backend::event_effects::EventEffects;
use crate::backend::{Backend, BackendEvents, Capabilities, EventReceiver, Request};
use crate::clock::boot_time;
use crate::key::Name;
use crate::protocol::command::{Command, EnqueueMode, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::record::Record;
use crate::sync::lock;
use crate::token::{ProcessId, Token, TokenSource};

/// A server and the connection to it.
#[derive(Debug)]
pub(super) struct Server {
    events: EventReceiver,
    /// Notifies the thread that replies, if there is one.
    notify: Mutex<Option<mpsc::Sender<()>>>,
    /// The number of releases that it still has to drop.
    pub(super) drops: Mutex<usize>,
    /// The tokens of another process that contends for the locks.
    competitor: TokenSource,
    grant_lease: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    outbox: VecDeque<Request>,
    /// Whether a thread replies. It also handles requests that are added meanwhile.
    busy: bool,
    records: BTreeMap<Name, Record>,
    /// Tokens of this process that hold a lock.
    holders: BTreeSet<Token>,
    /// The number of grants to this process, and of their releases.
    counts: (usize, usize),
    /// Releases of tokens that did not hold the lock.
    spurious: usize,
    /// Tokens of the other process that wait for a grant.
    waiting: BTreeMap<Token, oneshot::Sender<()>>,
}

/// A grant to deliver.
type GrantNotice = (Name, Token, Grant);

impl Server {
    /// Creates a server that replies immediately, or notifies a thread with `notify`.
    pub(super) fn new(grant_lease: Duration, notify: Option<mpsc::Sender<()>>) -> Self {
        Self {
            events: EventReceiver::default(),
            notify: Mutex::new(notify),
            drops: Mutex::new(0),
            competitor: TokenSource::new(),
            grant_lease,
            state: Mutex::default(),
        }
    }

    /// Replies to all requests so far, and to those that the replies cause.
    pub(super) fn reply_all(&self, effects: &mut EventEffects) {
        let Some(events) = self.events.get() else { return };
        if std::mem::replace(&mut lock(&self.state).busy, true) {
            return;
        }
        while let Some(request) = self.next() {
            let now = boot_time();
            let (reply, granted) = self.run(&request, now);
            let orphaned = events.on_reply(request, reply, now, now, effects);
            for (key, token) in orphaned {
                self.submit(Request::new(key, token, Command::Withdraw));
            }
            self.deliver(&*events, granted, effects);
        }
    }

    /// Takes the next request, or records that no thread replies.
    fn next(&self) -> Option<Request> {
        let mut state = lock(&self.state);
        let next = state.outbox.pop_front();
        state.busy = next.is_some();
        next
    }

    fn run(&self, request: &Request, now: BootInstant) -> (Reply, Vec<GrantNotice>) {
        let Request { key, token, command, .. } = request;
        if command.is_release() && self.is_dropped() {
            return (Reply::Owner, Vec::new());
        }
        self.run_command(key, *token, *command, now)
    }

    fn is_dropped(&self) -> bool {
        let mut drops = lock(&self.drops);
        let is_dropped = *drops > 0;
        *drops = drops.saturating_sub(1);
        is_dropped
    }

    fn run_command(
        &self,
        key: &Name,
        token: Token,
        command: Command,
        now: BootInstant,
    ) -> (Reply, Vec<GrantNotice>) {
        let mut granted: Vec<GrantNotice> = Vec::new();
        let mut state = lock(&self.state);
        let record = state.records.entry(Name::clone(key)).or_default();
        let reply = record.run(token, command, now, self.grant_lease, |next, offer| {
            granted.push((Name::clone(key), next, offer));
            true
        });
        let acquires = matches!(command, Command::Acquire { .. } | Command::Enqueue { .. });
        if acquires && matches!(reply, Reply::Owner) {
            state.on_granted(token, self.competitor.process());
        }
        match (command, &reply) {
            (Command::Yield { .. }, Reply::Yielded) => {
                cover("the hand-off budget was used, and another process acquired", 1);
            }
            (Command::Inspect, _) => {
                cover("half of the hand-off budget was used, and waiters were probed", 1);
            }
            (Command::Yield { .. }, Reply::Owner) => {
                cover("the hand-off budget was used, and no other process acquired", 1);
            }
            _ => {}
        }
        let releases =
            command.is_release() || matches!((command, &reply), (Command::Yield { .. }, Reply::Yielded));
        if releases && state.holders.remove(&token) {
            state.counts.1 += 1;
        } else if releases && command != Command::Withdraw && token.process() != self.competitor.process() {
            state.spurious += 1;
        }
        for (_, next, _) in &granted {
            state.on_granted(*next, self.competitor.process());
        }
        (reply, granted)
    }

    fn deliver(&self, events: &dyn BackendEvents, granted: Vec<GrantNotice>, effects: &mut EventEffects) {
        for (key, token, offer) in granted {
            if token.process() == self.competitor.process() {
                let sender = lock(&self.state).waiting.remove(&token);
                if let Some(sender) = sender {
                    let _is_gone = sender.send(());
                }
            } else {
                events.on_grant(&key, token, offer, boot_time(), effects);
            }
        }
    }

    /// The other process contends for the lock. Returns its token and, if it has to wait, the
    /// receiver of its grant.
    pub(super) fn competitor_acquires(
        &self,
        key: &Name,
        now: BootInstant,
    ) -> (Token, Option<oneshot::Receiver<()>>) {
        let token = self.competitor.next();
        let (granted, receiver) = oneshot::channel();
        lock(&self.state).waiting.insert(token, granted);
        let command = Command::Enqueue { lease: super::LONG, mode: EnqueueMode::Join };
        let (reply, _) = self.run_command(key, token, command, now);
        (token, matches!(reply, Reply::Queued { .. }).then_some(receiver))
    }

    /// The other process releases the lock.
    pub(super) fn competitor_releases(&self, key: &Name, token: Token) {
        let (_, granted) = self.run_command(key, token, Command::RELEASE, boot_time());
        self.report(|events, effects| self.deliver(events, granted, effects));
    }

    /// Reports an event to the engine, flushes what it submits, and runs its effects.
    pub(super) fn report(&self, event: impl FnOnce(&dyn BackendEvents, &mut EventEffects)) {
        let Some(events) = self.events.get() else { return };
        let mut effects = EventEffects::default();
        event(&*events, &mut effects);
        if effects.take_has_requests() {
            self.flush(boot_time(), &mut effects);
        }
        effects.run();
    }

    /// Deletes the key, and sends an invalidation.
    pub(super) fn delete(&self, key: &Name) {
        let mut state = lock(&self.state);
        state.records.remove(key);
        state.holders.clear();
        state.waiting.clear(); // its waiters get no grant
        drop(state);
        self.report(|events, effects| events.on_invalidation(Some(key), boot_time(), effects));
    }

    /// Stops the thread after its last reply.
    pub(super) fn stop_thread(&self) {
        let notify = lock(&self.notify).take();
        drop(notify);
    }

    /// Returns the number of grants, of their releases, and of releases of locks that were not
    /// held.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let state = lock(&self.state);
        (state.counts.0, state.counts.1, state.spurious)
    }

    /// Returns `true` if there is no lock and no request.
    pub(super) fn is_empty(&self, now: BootInstant) -> bool {
        let state = lock(&self.state);
        state.outbox.is_empty() && state.records.values().all(|record| record.is_empty(now))
    }
}

impl State {
    /// Records that a token holds a lock.
    fn on_granted(&mut self, token: Token, competitor: ProcessId) {
        if token.process() != competitor && self.holders.insert(token) {
            self.counts.0 += 1;
        }
    }
}

impl Backend for Server {
    fn capabilities(&self) -> Capabilities {
        Capabilities::SERVER
    }

    fn attach(&self, events: Weak<dyn BackendEvents>) {
        self.events.attach(events);
    }

    fn submit(&self, request: Request) {
        lock(&self.state).outbox.push_back(request);
    }

    fn flush(&self, _: BootInstant, effects: &mut EventEffects) {
        let notify = lock(&self.notify).clone();
        match notify {
            Some(notify) => drop(notify.send(())),
            None => self.reply_all(effects),
        }
    }

    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {
        self.stop_thread();
    }
}
