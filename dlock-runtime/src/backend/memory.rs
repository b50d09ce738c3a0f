//! Locks in the memory of this process: the same contract as a server, under tokio's clock.
//!
//! A world is what a server would be: the values, their ends, and the managers that are connected to it. It has no thread. Whoever
//! asks it something first brings it up to date ([`Backend::advance`]): everything that came due in any of its managers is done, in
//! its order and at its time. Whoever waits keeps the time with a timer of his own, so paused time works.
//!
//! Not here: the rules of a value (`protocol::value`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use once_cell::sync::Lazy;

use crate::backend::{Backend, Request};
use crate::clock::{Clock, TokioClock};
use crate::config::Settings;
use crate::engine::{Engine, lock};
use crate::protocol::command::{Command, Enqueue, Reply};
use crate::protocol::deadline::BootTime;
use crate::protocol::fencing;
use crate::protocol::value::{LetGo, LockValue, Place};
use crate::token::{ProcessId, Token, TokenSource};

/// What a server would be.
pub(crate) struct World {
    clock: Arc<TokioClock>,
    locks: Mutex<HashMap<Arc<str>, Entry>>,
    counters: Mutex<HashMap<Arc<str>, u64>>,
    managers: Mutex<HashMap<ProcessId, Weak<Engine>>>,
    /// Held while what came due is done, so that it is done once.
    catching_up: Mutex<()>,
}

#[derive(Debug)]
struct Entry {
    value: LockValue,
    ends: BootTime,
}

/// The worlds that are shared by name.
static NAMED: Lazy<Mutex<HashMap<String, Weak<World>>>> = Lazy::new(Mutex::default);

impl World {
    /// Returns the world of that name, or one of its own.
    pub(crate) fn of_name(name: Option<&str>) -> Arc<Self> {
        let Some(name) = name else { return Arc::new(Self::new()) };
        let mut named = lock(&NAMED);
        if let Some(world) = named.get(name).and_then(Weak::upgrade) {
            return world;
        }
        let world = Arc::new(Self::new());
        named.insert(name.to_owned(), Arc::downgrade(&world));
        world
    }

    fn new() -> Self {
        Self {
            clock: Arc::new(TokioClock::new()),
            locks: Mutex::default(),
            counters: Mutex::default(),
            managers: Mutex::default(),
            catching_up: Mutex::default(),
        }
    }

    /// Connects a new manager.
    pub(crate) fn join(self: &Arc<Self>, settings: &Settings) -> Arc<Engine> {
        let tokens = TokenSource::new();
        let process = tokens.process();
        let backend = Memory { world: Arc::clone(self), process, outbox: Mutex::default() };
        let clock = Clock::Tokio(Arc::clone(&self.clock));
        let engine = Arc::new(Engine::new(Arc::new(backend), clock, tokens, settings.rules, settings.lease));
        lock(&self.managers).insert(process, Arc::downgrade(&engine));
        engine
    }

    /// Does one command. Grants that it led to are added to `grants`.
    fn run(&self, request: &Request, grants: &mut Vec<Grant>) -> Reply {
        let Request { key, token, command, .. } = request;
        let (token, now) = (*token, self.clock.now());
        let mut locks = lock(&self.locks);
        if locks.get(key).is_some_and(|entry| entry.ends <= now) {
            locks.remove(key);
        }
        let mut told = |next: Token| match lock(&self.managers).get(&next.process()).and_then(Weak::upgrade) {
            Some(engine) => {
                grants.push(Grant { engine, key: Arc::clone(key), token: next });
                true
            }
            None => false,
        };
        let Some(entry) = locks.get_mut(key) else {
            return match command {
                Command::Acquire { lease }
                | Command::Enqueue { lease, mode: Enqueue::First | Enqueue::Peek } => {
                    let entry = Entry { value: LockValue::held_by(token), ends: now.plus(*lease) };
                    locks.insert(Arc::clone(key), entry);
                    Reply::Ours
                }
                Command::Enqueue { .. } => Reply::Gone,
                _ => Reply::NotOurs,
            };
        };
        let ttl = Some(entry.ends.since(now));
        let let_go = match command {
            Command::Acquire { .. } => return Reply::Taken,
            Command::Enqueue { mode: Enqueue::Peek, .. } => return Reply::NotQueued { ttl },
            Command::Enqueue { lease, mode } => {
                let place = match mode {
                    Enqueue::First => entry.value.append(token),
                    _ => entry.value.place_of(token),
                };
                return match place {
                    Place::Holder => {
                        entry.ends = entry.ends.max(now.plus(*lease));
                        Reply::Ours
                    }
                    Place::Queued => Reply::Queued { ttl },
                    Place::Full => Reply::NotQueued { ttl },
                    Place::Gone => Reply::Gone,
                };
            }
            Command::Renew { .. } | Command::Fence if entry.value.holder() != token => return Reply::NotOurs,
            Command::Renew { lease } => {
                entry.ends = entry.ends.max(now.plus(*lease));
                return Reply::Ours;
            }
            Command::Fence => return Reply::Fenced(self.fence(key)),
            Command::Release => entry.value.release(token, &mut told),
            Command::ForceRelease => entry.value.force_release(&mut told),
            Command::Leave => entry.value.leave(token, &mut told),
            Command::Yield { next } => match entry.value.hand_on(token, *next, &mut told) {
                LetGo::Granted(_) => {
                    entry.ends = now.plus(self.grant_lease(grants));
                    return Reply::Yielded;
                }
                LetGo::Freed => return Reply::Ours,
                LetGo::NotOurs => return Reply::NotOurs,
            },
        };
        match let_go {
            LetGo::Freed => {
                locks.remove(key);
                Reply::Ours
            }
            LetGo::Granted(_) => {
                entry.ends = now.plus(self.grant_lease(grants));
                Reply::Ours
            }
            LetGo::NotOurs => Reply::NotOurs,
        }
    }

    /// The grant lease that the granted manager counts with.
    #[expect(clippy::unused_self, reason = "it reads as a property of the world beside `fence`")]
    fn grant_lease(&self, grants: &[Grant]) -> Duration {
        grants.last().map_or(Duration::ZERO, |grant| grant.engine.rules.grant_lease)
    }

    fn fence(&self, key: &Arc<str>) -> u64 {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        let mut counters = lock(&self.counters);
        let token = fencing::next(counters.get(key).copied(), micros);
        counters.insert(Arc::clone(key), token);
        token
    }

    fn engines(&self) -> Vec<Arc<Engine>> {
        let mut managers = lock(&self.managers);
        managers.retain(|_, engine| engine.strong_count() > 0);
        managers.values().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

/// Somebody is to be told that the lock is his.
struct Grant {
    engine: Arc<Engine>,
    key: Arc<str>,
    token: Token,
}

/// One manager's connection to a world.
#[derive(Debug)]
struct Memory {
    world: Arc<World>,
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

    fn flush(&self, engine: &Engine) {
        if std::mem::replace(&mut lock(&self.outbox).busy, true) {
            return;
        }
        while let Some(request) = self.next() {
            let mut grants = Vec::new();
            let sent = self.world.clock.now();
            let reply = self.world.run(&request, &mut grants);
            engine.reply(request, sent, reply);
            for Grant { engine, key, token } in grants {
                engine.granted(&key, token);
            }
        }
    }

    /// There is always an answer here; kept whole for the contract.
    fn abandon(&self, key: Arc<str>, token: Token) {
        self.push(Request { key, token, command: Command::Leave, answer: None });
    }

    fn advance(&self, now: BootTime) {
        let world = &*self.world;
        let _catching_up = lock(&world.catching_up);
        loop {
            let next =
                world.engines().into_iter().map(|engine| (engine.due(), engine)).min_by_key(|(due, _)| *due);
            let Some((due, engine)) = next.filter(|(due, _)| *due <= now) else { break };
            world.clock.pin(due);
            engine.tick(due);
        }
        world.clock.pin(BootTime::NEVER);
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(ready(()))
    }

    fn close(&self) {
        // What was pushed has been done: nobody is told of anything any more.
        lock(&self.world.managers).remove(&self.process);
    }
}
