//! The invariants of a simulation.
//!
//! A check uses the time that the engine has read, the state of the server, and the bodies. The
//! engine's own state is no evidence.
//!
//! | invariant | |
//! |---|---|
//! | J1 | a valid hold is that of the server, and no other hold of the key is valid |
//! | J2 | before each poll of a body the clock is read, and the hold is valid; a loss is reported within 50 ms |
//! | J3 | fencing tokens increase in the order of holds |
//! | J5 | every wait ends after the fault period (`model`) |
//! | J6, J7 | nothing is left in the server and in the engine (`model`) |
//! | J8 | every call ends within its limit, with a permitted outcome |
//! | J9 | a forked process sends nothing, and runs no body except one that began before and must finish |
//!
//! In addition, nothing is released in the server while a body runs under it.

use std::collections::{BTreeMap, BTreeSet};

use super::network::{MS, Net, State};
use crate::LockGuard;
use crate::backend::Request;
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, SharedAcquisition};
use crate::error::LossCause;
use crate::key::Name;
use crate::protocol::command::Command;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;
use crate::token::Token;

/// The state that the checks need.
#[derive(Default)]
pub(super) struct Invariants {
    /// The first violation.
    pub(super) first_violation: Option<String>,
    live: BTreeMap<u64, Live>,
    ids: u64,
    /// The process that began to hold a key last, and its token.
    last: BTreeMap<Name, (usize, Option<Token>)>,
    /// Commands that were executed after their cleanup. Their effect ends with their time to live.
    pub(super) late: BTreeSet<(Name, Token)>,
    /// The last token of a process for which the guarantees do not cover a key.
    pub(super) tainted: BTreeMap<(Name, String), Option<Token>>,
    /// The fencing tokens of holds.
    fences: Vec<Fence>,
    /// When processes were stopped: process, begin, end.
    pub(super) stops: Vec<(usize, u64, u64)>,
    /// A task is being dropped, or panics.
    pub(super) is_dropping: bool,
    /// The number of clock reads at the start of the current poll.
    pub(super) polled_at: u64,
    /// When the current step began. Time does not advance within a step, unless the process is
    /// stopped in the middle of it.
    pub(super) step_began: u64,
    /// The processes that leaked a guard.
    pub(super) leaking_processes: BTreeSet<usize>,
    /// The processes that are shut down, and since when. Their holds may be released while a body
    /// runs.
    pub(super) shutdown_times: BTreeMap<usize, u64>,
    /// The processes that continue as a forked child.
    pub(super) forked: BTreeSet<usize>,
    /// The number of holds that began.
    pub(super) bodies: u64,
}

/// A body that runs, or a guard that is held.
struct Live {
    process: usize,
    key: Name,
    acquisition: SharedAcquisition,
    token: Option<Token>,
    began: u64,
    is_body: bool,
    finishes: bool,
    /// Whether it joined a hold of its call chain.
    is_joined: bool,
}

struct Fence {
    hold: u64,
    key: Name,
    number: u64,
    ended: Option<u64>,
}

impl Net {
    /// Records that a body or a guard begins to hold. Returns the number of the hold.
    pub(super) fn on_begin(&self, process: usize, guard: &LockGuard, is_body: bool, finishes: bool) -> u64 {
        let Some(held) = guard.held() else { unreachable!("no call of a simulation runs without its lock") };
        let root = held.root();
        let (now, _) = self.clock.shown();
        let token = token_of(&held.engine, root);
        let mut state = lock(&self.state);
        let key = Name::clone(root.key.name());
        if state.invariants.forked.contains(&process) {
            state.violation(format!("J9: a hold of {key} begins in process {process}, which is forked"));
        }
        let other = state.invariants.live.values().find(|live| {
            live.key == key
                && !SharedAcquisition::ptr_eq(&live.acquisition, root)
                && live.acquisition.check_valid(BootInstant::from_nanos(now)).is_ok()
                && !state.is_tainted(&key, live.token)
                && !state.is_tainted(&key, token)
        });
        if let Some(other) = other {
            let line = format!(
                "J1: {key}: {token:?} of process {process} begins while {:?} of process {} is valid",
                other.token, other.process
            );
            state.violation(line);
        }
        let invariants = &mut state.invariants;
        invariants.ids += 1;
        invariants.bodies += 1;
        let (id, acquisition) = (invariants.ids, SharedAcquisition::clone(root));
        let is_joined = held.depth() > 0;
        let live = Live { process, key, acquisition, token, began: now, is_body, finishes, is_joined };
        invariants.last.insert(Name::clone(&live.key), (process, token));
        invariants.live.insert(id, live);
        state.trace_line(|| format!("process {process}: hold {id} begins under {token:?}"));
        id
    }

    /// Checks a hold before a poll of its body, or after its guard reported it as valid.
    pub(super) fn check_hold(&self, id: u64, guard: &LockGuard, is_poll: bool) {
        let Some(held) = guard.held() else { return };
        let root = held.root();
        let (shown, reads) = self.clock.shown();
        let token = token_of(&held.engine, root);
        let mut state = lock(&self.state);
        let Some(live) = state.invariants.live.get_mut(&id) else { return };
        if is_poll && live.finishes {
            return;
        }
        let process = live.process;
        if state.invariants.forked.contains(&process) {
            return state.violation(format!("J9: hold {id} continues in process {process}, which is forked"));
        }
        let Some(live) = state.invariants.live.get_mut(&id) else { return };
        live.token = token;
        let key = Name::clone(&live.key);
        if is_poll && reads <= state.invariants.polled_at {
            state.violation(format!("J2: hold {id} of {key}: a body is polled without reading the clock"));
        }
        if BootInstant::from_nanos(shown) >= root.deadline() {
            state.violation(format!(
                "J2: hold {id} of {key}: a body runs at {shown}, its deadline is {:?}",
                root.deadline()
            ));
        }
        let holder = state.server.holder(&key, shown);
        if (token.is_none() || holder != token) && !state.is_tainted(&key, token) {
            state.violation(format!(
                "J1: hold {id} of {key} considers {token:?} valid, and the server has {holder:?}"
            ));
        }
    }

    /// Returns `true` if a body that ends now may have overlapped with another holder. Does not
    /// read the clock.
    pub(super) fn may_overlap(&self, guard: &LockGuard) -> bool {
        let (now, _) = self.clock.shown();
        let lost = guard.held().map(|held| held.root().check_valid(BootInstant::from_nanos(now)));
        matches!(lost, Some(Err((cause, _))) if cause != LossCause::MaxHold)
    }

    /// Records that a body has ended, or that a guard is about to be released. `completed`: it was
    /// not stopped.
    pub(super) fn on_end(&self, id: u64, completed: bool) {
        let mut state = lock(&self.state);
        let now = self.now();
        let Some(live) = state.invariants.live.remove(&id) else { return };
        state.trace_line(|| format!("process {}: hold {id} of {} is over", live.process, live.key));
        for fence in state.invariants.fences.iter_mut().filter(|fence| fence.hold == id) {
            fence.ended = Some(now);
        }
        let began = live.began;
        // A body that must finish is stopped only by the body around it, which may have been lost
        // later.
        if !completed && live.is_body && !live.finishes && !state.invariants.is_dropping {
            state.cover("a body stopped");
            drop(state);
            self.check_loss_report(live.process, &live.acquisition, began);
        }
    }

    /// Checks that a task that listens since `since` receives the loss in time.
    pub(super) fn check_loss_report(&self, process: usize, acquisition: &Acquisition, since: u64) {
        let (now, until) = (self.now(), acquisition.deadline().nanos().max(since));
        let mut state = lock(&self.state);
        let late = now.saturating_sub(until);
        let slow = 50 * MS + state.profile.poll_cost * 20_000;
        if late > slow && state.stopped(process, until, now) == 0 {
            state.violation(format!("J2: {}: a loss is reported after {} ms", acquisition.key, late / MS));
        }
    }

    /// Checks the fencing token that the server issued to a hold.
    pub(super) fn on_fenced(&self, id: u64, fence: u64) {
        let mut state = lock(&self.state);
        let Some(live) = state.invariants.live.get(&id) else { return };
        let (key, began) = (Name::clone(&live.key), live.began);
        let before = state.invariants.fences.iter().find(|other| {
            other.key == key && other.ended.is_some_and(|ended| ended <= began) && other.number >= fence
        });
        if let Some(before) = before {
            let wrong =
                format!("J3: hold {id} of {key} has {fence}, and one before it had {}", before.number);
            state.violation(wrong);
        }
        state.invariants.fences.push(Fence { hold: id, key, number: fence, ended: None });
    }

    /// Checks the duration of a call since `from`, without the time for which its process was
    /// stopped.
    pub(super) fn check_time(&self, process: usize, what: &str, from: u64, limit: u64) {
        let now = self.now();
        let mut state = lock(&self.state);
        let stopped = state.stopped(process, from, now);
        // A process that was stopped waits for one more reply, and each poll takes time.
        let more = if stopped > 0 { stopped + 700 * MS } else { 0 };
        let most = limit.saturating_add(more + 100 * MS + state.profile.poll_cost * 60_000);
        if now - from > most {
            state.violation(format!(
                "J8: process {process}: {what} took {} ms and not {}",
                (now - from) / MS,
                limit / MS
            ));
        }
    }

    pub(super) fn violation(&self, what: String) {
        lock(&self.state).violation(what);
    }
}

impl State {
    pub(super) fn violation(&mut self, what: String) {
        self.trace_line(|| format!("VIOLATION: {what}"));
        self.invariants.first_violation.get_or_insert(what);
    }

    pub(super) fn is_tainted(&self, key: &Name, token: Option<Token>) -> bool {
        let Some(token) = token else { return false };
        let tainted = self.invariants.tainted.get(&(Name::clone(key), token.process().shown()));
        tainted.is_some_and(|latest| latest.is_some_and(|latest| token <= latest))
    }

    /// Returns how long a process was stopped between these times.
    pub(super) fn stopped(&self, process: usize, from: u64, to: u64) -> u64 {
        let of = self.invariants.stops.iter().filter(|(of, ..)| *of == process);
        let before: u64 =
            of.map(|(_, begun, ended)| (*ended).min(to).saturating_sub((*begun).max(from))).sum();
        // Add a stop in the current step.
        before + to.saturating_sub(from.max(self.invariants.step_began))
    }

    /// Checks a request of a process.
    pub(super) fn check_push(&mut self, process: usize, request: &Request, now: u64) {
        if self.invariants.forked.contains(&process) {
            let line = format!("J9: process {process}, which is forked, sends {:?}", request.command);
            return self.violation(line);
        }
        let ends = match request.command {
            Command::Yield { .. } => true,
            command => command.is_release(),
        };
        // A hold that is lost to time or at the server has ended on both sides. A hold that reached
        // its `max_hold` stays with its body. A call that joined from another task is not polled
        // again, and may exist a little longer. If its key has expired and another process has held
        // the lock, a late request of the first holder may restore its token, which must then be
        // released.
        let last = &self.invariants.last;
        let is_running = |live: &Live| match live.acquisition.check_valid(BootInstant::from_nanos(now)) {
            Err((LossCause::MaxHold, _)) => {
                !live.is_joined && last.get(&live.key) == Some(&(live.process, live.token))
            }
            Err(_) => false,
            Ok(()) => true,
        };
        let under =
            |live: &&Live| live.process == process && live.token == Some(request.token) && is_running(live);
        if ends
            && !self.invariants.shutdown_times.contains_key(&process)
            && let Some(live) = self.invariants.live.values().find(under)
        {
            let line =
                format!("{}: {:?} {:?} while a body of it runs", live.key, request.token, request.command);
            self.violation(line);
        }
    }
}

/// Returns the token of an acquisition, without reading the clock.
pub(super) fn token_of(engine: &Engine, acquisition: &SharedAcquisition) -> Option<Token> {
    let name = acquisition.key.name();
    let (shard, hash) = engine.shards.of_key(name);
    shard.read(|slots| slots.table.get(name, hash)?.token_of(acquisition))
}
