//! What a crowd has for a backend: a server in memory, which answers at once or by a thread of its own, in the order in which it is
//! asked.
//!
//! It notes which tokens have a lock. What is locked here is no business of the schedules: nothing waits while it is.
//!
//! Not here: what a command does (`protocol::record`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use shuttle::sync::mpsc;
use tokio::sync::oneshot;

use super::tally::happened;
use crate::backend::{Backend, Request};
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::key::Name;
use crate::protocol::command::{Command, EnqueueMode, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::record::Record;
use crate::sync::lock;
use crate::token::{ProcessId, Token, TokenSource};

/// A server, and the way to it.
#[derive(Debug)]
pub(super) struct Server {
    /// Rung where a thread answers that is none of the callers'.
    bell: Mutex<Option<mpsc::Sender<()>>>,
    /// How many releases it drops without a word.
    pub(super) drops: Mutex<usize>,
    /// Another process that wants the locks.
    rival: TokenSource,
    grant_lease: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    outbox: VecDeque<Request>,
    /// Whether somebody is at it: he does what is added meanwhile.
    busy: bool,
    records: BTreeMap<Name, Record>,
    /// Tokens of ours that have a lock.
    has: BTreeSet<Token>,
    /// How often a token of ours was let in, and how often one let go of what it had.
    counts: (usize, usize),
    /// Releases of what the token did not have.
    vain: usize,
    /// Who of the rival's waits for its turn.
    waits: BTreeMap<Token, oneshot::Sender<()>>,
}

/// What a grant is told with.
type GrantNotice = (Name, Token, Grant);

impl Server {
    /// A server that answers who asks, or, where there is a `bell`, who listens to it.
    pub(super) fn new(grant_lease: Duration, bell: Option<mpsc::Sender<()>>) -> Self {
        Self {
            bell: Mutex::new(bell),
            drops: Mutex::new(0),
            rival: TokenSource::new(),
            grant_lease,
            state: Mutex::default(),
        }
    }

    /// Answers what has been asked so far, and what is asked because of it.
    pub(super) fn answer_all(&self, engine: &Engine, effects: &mut Effects) {
        if std::mem::replace(&mut lock(&self.state).busy, true) {
            return;
        }
        while let Some(request) = self.next() {
            let now = engine.clock.now();
            let (reply, granted) = self.run(&request, now);
            let abandoned = engine.on_replies(now, now, [(request, reply)], effects);
            for (key, token) in abandoned {
                self.push(Request::new(key, token, Command::Withdraw));
            }
            self.tell(engine, granted, effects);
        }
    }

    /// Takes the next request, or notes that nobody is at it any more.
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
        let takes = matches!(command, Command::Acquire { .. } | Command::Enqueue { .. });
        if takes && matches!(reply, Reply::Owner) {
            state.is_let_in(token, self.rival.process());
        }
        match (command, &reply) {
            (Command::Yield { .. }, Reply::Yielded) => {
                happened("the budget was used up, and another process took the offer", 1);
            }
            (Command::Inspect, _) => {
                happened("the budget was half used up, and it was asked who else waits", 1);
            }
            (Command::Yield { .. }, Reply::Owner) => {
                happened("the budget was used up, and nobody took the offer", 1);
            }
            _ => {}
        }
        let lets_go =
            command.is_release() || matches!((command, &reply), (Command::Yield { .. }, Reply::Yielded));
        if lets_go && state.has.remove(&token) {
            state.counts.1 += 1;
        } else if lets_go && command != Command::Withdraw && token.process() != self.rival.process() {
            state.vain += 1;
        }
        for (_, next, _) in &granted {
            state.is_let_in(*next, self.rival.process());
        }
        (reply, granted)
    }

    fn tell(&self, engine: &Engine, granted: Vec<GrantNotice>, effects: &mut Effects) {
        for (key, token, offer) in granted {
            if token.process() == self.rival.process() {
                let waits = lock(&self.state).waits.remove(&token);
                if let Some(waits) = waits {
                    let _is_gone = waits.send(());
                }
            } else {
                engine.on_grant(&key, token, offer, engine.clock.now(), effects);
            }
        }
    }

    /// The rival wants the lock. Returns its token and, where it has to wait, what tells it of its turn.
    pub(super) fn rival_asks(&self, key: &Name, now: BootInstant) -> (Token, Option<oneshot::Receiver<()>>) {
        let token = self.rival.next();
        let (told, acquisition) = oneshot::channel();
        lock(&self.state).waits.insert(token, told);
        let command = Command::Enqueue { lease: super::LONG, mode: EnqueueMode::Join };
        let (reply, _) = self.run_command(key, token, command, now);
        (token, matches!(reply, Reply::Queued { .. }).then_some(acquisition))
    }

    /// The rival lets go.
    pub(super) fn rival_releases(&self, engine: &Engine, key: &Name, token: Token) {
        let mut effects = Effects::default();
        let (_, granted) = self.run_command(key, token, Command::Release, engine.clock.now());
        self.tell(engine, granted, &mut effects);
        effects.wake();
    }

    /// Somebody deletes the key, and the server tells of it.
    pub(super) fn forget(&self, engine: &Engine, key: &Name) {
        let mut state = lock(&self.state);
        state.records.remove(key);
        state.has.clear();
        state.waits.clear(); // who waited there waits in vain
        drop(state);
        engine.on_invalidation(key);
    }

    /// Nobody is answered by the thread any more but those who have asked.
    pub(super) fn hang_up(&self) {
        let bell = lock(&self.bell).take();
        drop(bell);
    }

    /// Returns how often a token of ours was let in, how often one let go, and how many releases were in vain.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let state = lock(&self.state);
        (state.counts.0, state.counts.1, state.vain)
    }

    /// Returns whether nothing stands there, and nothing is asked.
    pub(super) fn is_empty(&self, now: BootInstant) -> bool {
        let state = lock(&self.state);
        state.outbox.is_empty() && state.records.values().all(|record| record.is_empty(now))
    }
}

impl State {
    /// A token has a lock from now on.
    fn is_let_in(&mut self, token: Token, rival: ProcessId) {
        if token.process() != rival && self.has.insert(token) {
            self.counts.0 += 1;
        }
    }
}

impl Backend for Server {
    fn push(&self, request: Request) {
        lock(&self.state).outbox.push_back(request);
    }

    fn flush(&self, engine: &Engine, _: BootInstant, effects: &mut Effects) {
        let bell = lock(&self.bell).clone();
        match bell {
            Some(bell) => drop(bell.send(())),
            None => self.answer_all(engine, effects),
        }
    }

    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }

    fn close(&self) {
        self.hang_up();
    }
}
