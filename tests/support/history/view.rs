//! The calls, holds, faults, and processes of a history, as the judges use them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::{Answered, What};
use super::reader::History;
use crate::clock::Moment;

/// A history, grouped by calls, holds, and faults.
#[derive(Debug)]
pub struct View<'a> {
    /// The events.
    pub history: &'a History,
    /// All calls, in the order of their starts.
    pub calls: Vec<Call>,
    /// All holds, in the order of their entries.
    pub holds: Vec<Hold>,
    /// All faults, in the order of their starts.
    pub faults: Vec<FaultSpan>,
    /// The times for which each process was stopped. A process that was not resumed is stopped
    /// until the end of the history.
    stops: Vec<(u32, Moment, Moment)>,
    /// The times for which a runnable process was not scheduled because the machine was too busy.
    stalls: Vec<(Moment, Moment)>,
    gone: BTreeMap<u32, (Moment, bool)>,
}

/// One call for a lock.
#[derive(Clone, Debug)]
pub struct Call {
    /// The process of the call.
    pub process: u32,
    /// The number of the call within its process.
    pub call: u64,
    /// The lock.
    pub key: String,
    /// The start of the call.
    pub began: Moment,
    /// The limit of the call.
    pub limit: Duration,
    /// All results. There should be exactly one.
    pub answers: Vec<(Moment, Answered)>,
}

/// A hold, as its holder sees it.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The process of the hold.
    pub process: u32,
    /// The number of the call.
    pub call: u64,
    /// The lock.
    pub key: String,
    /// The start of the body.
    pub enter: Moment,
    /// The deadline at the entry.
    pub first_deadline: Moment,
    /// The last known deadline.
    pub deadline: Moment,
    /// The end of the hold for its holder: its exit, its loss, or the end of its process.
    pub over: Option<Moment>,
    /// The time at which the body completed.
    pub exit: Option<Moment>,
    /// The time at which the loss was reported to the holder.
    pub lost: Option<Moment>,
    /// The fencing token, if the holder requested one.
    pub token: Option<u64>,
    /// The polls of the body, each with the deadline at that time.
    pub polls: Vec<(Moment, Moment)>,
}

impl Hold {
    /// Returns the end of the valid hold: the end of its body or its deadline, whichever is
    /// earlier.
    #[must_use]
    pub fn until(&self) -> Moment {
        self.over.map_or(self.deadline, |over| over.min(self.deadline))
    }

    /// Returns a description of the hold.
    #[must_use]
    pub fn told(&self) -> String {
        let Self { process, call, key, token, .. } = self;
        let token = token.map(|token| format!(" with token {token}")).unwrap_or_default();
        format!("call {call} of process {process} holds `{key}`{token}")
    }
}

/// A fault, from its start to its end.
#[derive(Clone, Debug)]
pub struct FaultSpan {
    /// The row of the fault list.
    pub row: String,
    /// The start of the fault.
    pub from: Moment,
    /// The end of the fault, or the end of the history.
    pub until: Moment,
    /// The target of the fault.
    pub to: String,
}

impl FaultSpan {
    /// Returns `true` if the safety guide says that this fault may lose locks.
    #[must_use]
    pub fn may_lose(&self) -> bool {
        self.row.ends_with('c')
    }
}

impl<'a> View<'a> {
    /// Groups the events of a history.
    #[must_use]
    pub fn of(history: &'a History) -> Self {
        let mut view = Self {
            history,
            calls: Vec::new(),
            holds: Vec::new(),
            faults: Vec::new(),
            stops: Vec::new(),
            stalls: Vec::new(),
            gone: BTreeMap::new(),
        };
        let end = history.end();
        let mut calls = BTreeMap::new();
        let mut holds = BTreeMap::new();
        for event in history.events() {
            let (at, process) = (event.at, event.process);
            match &event.what {
                What::Try { call, limit } => {
                    calls.insert((process, *call), view.calls.len());
                    let (limit, key) = (Duration::from_millis(*limit), event.key.clone());
                    view.calls.push(Call {
                        process,
                        call: *call,
                        key,
                        began: at,
                        limit,
                        answers: Vec::new(),
                    });
                }
                What::Outcome { call, answer, .. } => {
                    if let Some(call) = calls.get(&(process, *call)) {
                        view.calls[*call].answers.push((at, *answer));
                    }
                }
                What::Enter { call, deadline } => {
                    holds.insert((process, *call), view.holds.len());
                    view.holds.push(Hold {
                        process,
                        call: *call,
                        key: event.key.clone(),
                        enter: at,
                        first_deadline: *deadline,
                        deadline: *deadline,
                        over: None,
                        exit: None,
                        lost: None,
                        token: None,
                        polls: Vec::new(),
                    });
                }
                What::Fault { row, to, .. } => {
                    view.faults.push(FaultSpan { row: row.clone(), from: at, until: end, to: to.clone() });
                }
                What::Heal { row } => {
                    let open = |fault: &&mut FaultSpan| fault.row == *row && fault.until == end;
                    if let Some(fault) = view.faults.iter_mut().find(open) {
                        fault.until = at;
                    }
                }
                What::Stopped => view.stops.push((process, at, end)),
                What::Continued => {
                    if let Some(stop) = view.stops.iter_mut().rev().find(|stop| stop.0 == process) {
                        stop.2 = at;
                    }
                }
                What::Stalled { since } => view.stalls.push((*since, at)),
                What::Gone { killed } => {
                    if let Some(stop) = view.stops.iter_mut().find(|stop| stop.0 == process && stop.2 == end)
                    {
                        stop.2 = at;
                    }
                    view.gone.insert(process, (at, *killed));
                    for hold in view.holds.iter_mut().filter(|hold| hold.process == process) {
                        hold.over.get_or_insert(at);
                    }
                }
                what => {
                    let Some((call, change)) = of_hold(what) else { continue };
                    if let Some(hold) = holds.get(&(process, call)) {
                        change_hold(&mut view.holds[*hold], at, change);
                    }
                }
            }
        }
        view
    }

    /// Returns the holds of each lock, in the order of their entries.
    #[must_use]
    pub fn by_key(&self) -> BTreeMap<&str, Vec<&Hold>> {
        let mut keys: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for hold in &self.holds {
            keys.entry(&hold.key).or_default().push(hold);
        }
        keys
    }

    /// Returns when a process ended, or `None` if it is alive.
    #[must_use]
    pub fn gone(&self, process: u32) -> Option<Moment> {
        self.gone.get(&process).map(|(at, _)| *at)
    }

    /// Returns the processes that were killed, and when.
    pub fn killed(&self) -> impl Iterator<Item = (u32, Moment)> {
        self.gone.iter().filter(|(_, (_, killed))| *killed).map(|(process, (at, _))| (*process, *at))
    }

    /// Returns for how long a process was not running between two points in time.
    ///
    /// That is the time for which the process was stopped, or the machine was too busy for some
    /// process.
    #[must_use]
    pub fn stood_still(&self, process: u32, from: Moment, until: Moment) -> Duration {
        let stops =
            self.stops.iter().filter(|stop| stop.0 == process).map(|(_, began, ended)| (*began, *ended));
        let all = stops.chain(self.stalls.iter().copied());
        let mut times: Vec<_> = all.map(|(began, ended)| (began.max(from), ended.min(until))).collect();
        times.sort();
        // An overlap of two such times counts once.
        let mut counted = from;
        let mut sum = Duration::ZERO;
        for (began, ended) in times {
            sum += ended.since(began.max(counted));
            counted = counted.max(ended);
        }
        sum
    }

    /// Returns for how long the machine was too busy for some process between two points in time.
    #[must_use]
    pub fn stalled(&self, from: Moment, until: Moment) -> Duration {
        self.stood_still(NOBODY, from, until)
    }

    /// Returns `true` if a process was stopped at any time between two points in time.
    #[must_use]
    pub fn was_stopped(&self, process: u32, from: Moment, until: Moment) -> bool {
        self.stops.iter().any(|stop| stop.0 == process && stop.1 <= until && stop.2 >= from)
    }

    /// Counts the stops that took longer than `time`.
    #[must_use]
    pub fn long_stops(&self, time: Duration) -> usize {
        self.stops.iter().filter(|(_, began, ended)| ended.since(*began) > time).count()
    }

    /// Returns a fault between two points in time that may have lost a lock.
    #[must_use]
    pub fn may_have_lost(&self, from: Moment, until: Moment) -> Option<&FaultSpan> {
        self.faults.iter().find(|fault| fault.may_lose() && fault.from <= until && fault.until >= from)
    }

    /// Returns `true` if a fault was active between two points in time, or ended within `rest`
    /// before.
    #[must_use]
    pub fn was_broken(&self, from: Moment, until: Moment, rest: Duration) -> bool {
        self.faults.iter().any(|fault| fault.from <= until && fault.until + rest >= from)
    }
}

/// An id that no process has.
const NOBODY: u32 = 0;

/// A change of a hold.
#[derive(Clone, Copy)]
enum Change {
    Token(u64),
    Poll(Moment),
    Renewed(Moment),
    Exit,
    Lost,
}

fn of_hold(what: &What) -> Option<(u64, Change)> {
    match what {
        What::Token { call, token } => Some((*call, Change::Token(*token))),
        What::Poll { call, deadline } => Some((*call, Change::Poll(*deadline))),
        What::Renewed { call, deadline } => Some((*call, Change::Renewed(*deadline))),
        What::Exit { call } => Some((*call, Change::Exit)),
        What::Lost { call, .. } => Some((*call, Change::Lost)),
        _ => None,
    }
}

fn change_hold(hold: &mut Hold, at: Moment, change: Change) {
    match change {
        Change::Token(token) => hold.token = Some(token),
        Change::Poll(deadline) => {
            hold.polls.push((at, deadline));
            hold.deadline = deadline;
        }
        Change::Renewed(deadline) => hold.deadline = deadline,
        Change::Exit => {
            hold.exit = Some(at);
            hold.over.get_or_insert(at);
        }
        Change::Lost => {
            hold.lost = Some(at);
            hold.over.get_or_insert(at);
        }
    }
}
