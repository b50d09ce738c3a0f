//! What is judged while a world goes on. A judge looks at the clock that the engine was shown, at the server, and at the bodies; what the
//! engine believes of itself is no proof.
//!
//! | | |
//! |---|---|
//! | J1 | who believes in a lock has it in the server, and nobody else believes in it |
//! | J2 | no poll of a body begins without a look at the clock that says it may; a loss is told within 50 ms |
//! | J3 | fencing tokens rise in the order of holding |
//! | J5 | every wait ends once the weather is fine (`world`) |
//! | J6, J7 | nothing is left in the server and in the engine (`world`) |
//! | J8 | every call ends within its limit, with one outcome that it may have |
//! | J9 | a forked process asks the server nothing, and runs no body but one that began before and is to finish |
//!
//! Beside them: nothing is let go of in the server while a body runs under it.
//!
//! Not here: what happens (`world`, `calls`).

use std::collections::{BTreeMap, BTreeSet};

use super::network::{MS, Net, State};
use crate::LockGuard;
use crate::backend::Request;
use crate::engine::Engine;
use crate::engine::acquisition::{Acquisition, AcquisitionRef, SharedAcquisition};
use crate::error::LossCause;
use crate::key::Name;
use crate::protocol::command::Command;
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::EventContext;
use crate::sync::lock;
use crate::token::Token;

/// What the judges know.
#[derive(Default)]
pub(super) struct Judges {
    /// The first that was wrong.
    pub(super) verdict: Option<String>,
    live: BTreeMap<u64, Live>,
    ids: u64,
    /// Who began to hold a key last, and under which token.
    last: BTreeMap<Name, (usize, Option<Token>)>,
    /// Commands that ran when nobody could undo them any more: they end with their time to live.
    pub(super) late: BTreeSet<(Name, Token)>,
    /// Up to which token of a process a key is not covered by the promises.
    pub(super) tainted: BTreeMap<(Name, String), Option<Token>>,
    /// Fencing tokens: of which hold, and when it was over.
    fences: Vec<Fence>,
    /// When a process was stopped.
    pub(super) stops: Vec<(usize, u64, u64)>,
    /// A task is being dropped from outside, or panics.
    pub(super) is_cutting: bool,
    /// At which look at the clock the present poll began.
    pub(super) polled_at: u64,
    /// When what happens now began: time does not go on meanwhile, but for a process that is stopped in the middle.
    pub(super) step_began: u64,
    /// The processes of forgotten guards.
    pub(super) forgotten: BTreeSet<usize>,
    /// Those that are shut down, and since when: what they hold may be released while a body is at work.
    pub(super) shut: BTreeMap<usize, u64>,
    /// Those that go on as a child of what they were.
    pub(super) forked: BTreeSet<usize>,
    /// How many bodies began, and how many losses were seen.
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
    /// Whether it has joined a hold of its call chain.
    is_joined: bool,
}

struct Fence {
    hold: u64,
    key: Name,
    number: u64,
    ended: Option<u64>,
}

impl Net {
    /// A body or a guard begins to hold. Returns its number.
    pub(super) fn begins(&self, process: usize, guard: &LockGuard, is_body: bool, finishes: bool) -> u64 {
        let Some(held) = guard.held() else { unreachable!("no call of a world runs without its lock") };
        let root = held.root();
        let (now, _) = self.clock.shown();
        let token = token_of(&held.engine, root);
        let mut state = lock(&self.state);
        let key = Name::clone(root.key.name());
        if state.judges.forked.contains(&process) {
            state.wrong(format!("J9: a hold of {key} begins in process {process}, which is forked"));
        }
        let other = state.judges.live.values().find(|live| {
            live.key == key
                && !SharedAcquisition::ptr_eq(&live.acquisition, root)
                && live.acquisition.check_valid(BootInstant::from_nanos(now)).is_ok()
                && !state.is_tainted(&key, live.token)
                && !state.is_tainted(&key, token)
        });
        if let Some(other) = other {
            let line = format!(
                "J1: {key}: {token:?} of process {process} begins while {:?} of process {} believes",
                other.token, other.process
            );
            state.wrong(line);
        }
        let judges = &mut state.judges;
        judges.ids += 1;
        judges.bodies += 1;
        let (id, acquisition) = (judges.ids, SharedAcquisition::clone(root));
        let is_joined = held.depth() > 0;
        let live = Live { process, key, acquisition, token, began: now, is_body, finishes, is_joined };
        judges.last.insert(Name::clone(&live.key), (process, token));
        judges.live.insert(id, live);
        state.note(|| format!("process {process}: hold {id} begins under {token:?}"));
        id
    }

    /// A body is about to be polled, or code has asked its guard and was told that it holds.
    pub(super) fn believes(&self, id: u64, guard: &LockGuard, is_poll: bool) {
        let Some(held) = guard.held() else { return };
        let root = held.root();
        let (shown, looks) = self.clock.shown();
        let token = token_of(&held.engine, root);
        let mut state = lock(&self.state);
        let Some(live) = state.judges.live.get_mut(&id) else { return };
        if is_poll && live.finishes {
            return;
        }
        let process = live.process;
        if state.judges.forked.contains(&process) {
            return state.wrong(format!("J9: hold {id} goes on in process {process}, which is forked"));
        }
        let Some(live) = state.judges.live.get_mut(&id) else { return };
        live.token = token;
        let key = Name::clone(&live.key);
        if is_poll && looks <= state.judges.polled_at {
            state.wrong(format!("J2: hold {id} of {key}: a body is polled without a look at the clock"));
        }
        if BootInstant::from_nanos(shown) >= root.until() {
            state.wrong(format!(
                "J2: hold {id} of {key}: a body goes on at {shown} though its deadline is {:?}",
                root.until()
            ));
        }
        let holder = state.server.holder(&key, shown);
        if (token.is_none() || holder != token) && !state.is_tainted(&key, token) {
            state.wrong(format!(
                "J1: hold {id} of {key} believes in {token:?}, and the server has {holder:?}"
            ));
        }
    }

    /// Returns whether a body that ends now may have run beside another holder, without a look at the clock.
    pub(super) fn may_overlap(&self, guard: &LockGuard) -> bool {
        let (now, _) = self.clock.shown();
        let lost = guard.held().map(|held| held.root().check_valid(BootInstant::from_nanos(now)));
        matches!(lost, Some(Err((cause, _))) if cause != LossCause::MaxHold)
    }

    /// A body is over, or a guard is about to be let go of. `told`: it has come to its end by itself.
    pub(super) fn ends(&self, id: u64, told: bool) {
        let mut state = lock(&self.state);
        let now = self.now();
        let Some(live) = state.judges.live.remove(&id) else { return };
        state.note(|| format!("process {}: hold {id} of {} is over", live.process, live.key));
        for fence in state.judges.fences.iter_mut().filter(|fence| fence.hold == id) {
            fence.ended = Some(now);
        }
        let began = live.began;
        // A body that finishes is stopped by nobody but the body around it, which may have been lost later.
        if !told && live.is_body && !live.finishes && !state.judges.is_cutting {
            state.happens("a body stopped");
            drop(state);
            self.told_of_loss(live.process, &live.acquisition, began);
        }
    }

    /// Who has listened since then is told now that the hold is over.
    pub(super) fn told_of_loss(&self, process: usize, acquisition: &Acquisition, since: u64) {
        let (now, until) = (self.now(), acquisition.until().nanos().max(since));
        let mut state = lock(&self.state);
        let late = now.saturating_sub(until);
        let slow = 50 * MS + state.weather.poll_cost * 20_000;
        if late > slow && state.stopped(process, until, now) == 0 {
            state.wrong(format!("J2: {}: a loss is told after {} ms", acquisition.key, late / MS));
        }
    }

    /// The server has issued a fencing token to a hold.
    pub(super) fn fenced(&self, id: u64, fence: u64) {
        let mut state = lock(&self.state);
        let Some(live) = state.judges.live.get(&id) else { return };
        let (key, began) = (Name::clone(&live.key), live.began);
        let before = state.judges.fences.iter().find(|other| {
            other.key == key && other.ended.is_some_and(|ended| ended <= began) && other.number >= fence
        });
        if let Some(before) = before {
            let wrong =
                format!("J3: hold {id} of {key} has {fence}, and one before it had {}", before.number);
            state.wrong(wrong);
        }
        state.judges.fences.push(Fence { hold: id, key, number: fence, ended: None });
    }

    /// A call has taken since `from`, and has this long at most, beside the time for which its process was stopped.
    pub(super) fn judge_time(&self, process: usize, what: &str, from: u64, limit: u64) {
        let now = self.now();
        let mut state = lock(&self.state);
        let stopped = state.stopped(process, from, now);
        // Who was stopped waits for one more answer; and each poll takes its time.
        let more = if stopped > 0 { stopped + 700 * MS } else { 0 };
        let most = limit.saturating_add(more + 100 * MS + state.weather.poll_cost * 60_000);
        if now - from > most {
            state.wrong(format!(
                "J8: process {process}: {what} took {} ms and not {}",
                (now - from) / MS,
                limit / MS
            ));
        }
    }

    pub(super) fn wrong(&self, what: String) {
        lock(&self.state).wrong(what);
    }
}

impl State {
    pub(super) fn wrong(&mut self, what: String) {
        self.note(|| format!("WRONG: {what}"));
        self.judges.verdict.get_or_insert(what);
    }

    pub(super) fn is_tainted(&self, key: &Name, token: Option<Token>) -> bool {
        let Some(token) = token else { return false };
        let tainted = self.judges.tainted.get(&(Name::clone(key), token.process().shown()));
        tainted.is_some_and(|latest| latest.is_some_and(|latest| token <= latest))
    }

    /// For how long a process was stopped between these times.
    pub(super) fn stopped(&self, process: usize, from: u64, to: u64) -> u64 {
        let of = self.judges.stops.iter().filter(|(of, ..)| *of == process);
        let before: u64 =
            of.map(|(_, begun, ended)| (*ended).min(to).saturating_sub((*begun).max(from))).sum();
        // And in the middle of what happens now.
        before + to.saturating_sub(from.max(self.judges.step_began))
    }

    /// Something is asked of the server.
    pub(super) fn judge_push(&mut self, process: usize, request: &Request, now: u64) {
        if self.judges.forked.contains(&process) {
            let line = format!("J9: process {process}, which is forked, asks {:?}", request.command);
            return self.wrong(line);
        }
        let ends = match request.command {
            Command::Yield { .. } => true,
            command => command.is_release(),
        };
        // What is lost to time or to the server is over for both. What was ours to its end is nobody's until its body is gone; a call
        // that has joined from another task is not polled any more, and may be there a little longer. Once its key has expired and somebody
        // else has had the lock, a late request of its own may bring its token back: that is to be given up.
        let last = &self.judges.last;
        let goes_on = |live: &Live| match live.acquisition.check_valid(BootInstant::from_nanos(now)) {
            Err((LossCause::MaxHold, _)) => {
                !live.is_joined && last.get(&live.key) == Some(&(live.process, live.token))
            }
            Err(_) => false,
            Ok(()) => true,
        };
        let under =
            |live: &&Live| live.process == process && live.token == Some(request.token) && goes_on(live);
        if ends
            && !self.judges.shut.contains_key(&process)
            && let Some(live) = self.judges.live.values().find(under)
        {
            let line =
                format!("{}: {:?} {:?} while a body of it runs", live.key, request.token, request.command);
            self.wrong(line);
        }
    }
}

/// Returns the token under which a turn holds, without a look at the clock.
pub(super) fn token_of(engine: &Engine, acquisition: &SharedAcquisition) -> Option<Token> {
    let name = acquisition.key.name();
    let (shard, hash) = engine.shards.of_key(name);
    shard.poll_state(|slots| {
        let at = slots.lanes.find(name, hash)?;
        let mut actions = Vec::new();
        let cx = EventContext {
            now: BootInstant::START,
            rules: &engine.rules,
            tokens: &engine.tokens,
            actions: &mut actions,
            contended: &mut false,
        };
        slots.lanes.key_state(at)?.0.token_of(&AcquisitionRef(SharedAcquisition::clone(acquisition)), &cx)
    })
}
