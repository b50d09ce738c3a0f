//! One server, three processes with three tasks each, and what lies between them.
//!
//! A connection keeps its order until an answer is missed; after that a new one may overtake what is left in the old. The clock of the
//! server is the world's, in milliseconds; each process has one of its own, which may drift.

use std::collections::BTreeSet;
use std::time::Duration;

use super::judges::{Hold, Judges, Told};
use super::planted::Bug;
use super::process::Process;
use super::seen::Seen;
use super::server::Server;
use super::weather::{Beyond, PROCESSES, TASKS, Weather};
use super::words;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::hold::{ReleaseOutcome, ResidualHold};
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::{Action, EventContext, KeyPhase, KeyState};
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::simulation::agenda::Agenda;
use crate::protocol::simulation::chance::Chance;
use crate::protocol::simulation::story::Story;
use crate::protocol::simulation::tally::Tally;
use crate::protocol::simulation::{Wrong, wrong};
use crate::protocol::wait_queue::QueueEntry;
use crate::retry::RetryPolicy;
use crate::token::Token;

#[derive(Clone, Debug)]
pub(super) enum Event {
    Join {
        acquisition: u32,
    },
    GiveUp {
        acquisition: u32,
    },
    WorkEnds {
        acquisition: u32,
    },
    /// The body asks for a fencing token.
    Fences {
        acquisition: u32,
    },
    /// The body of a lost hold is gone.
    BodyGone {
        acquisition: u32,
        left: Option<ResidualHold>,
    },
    Executed {
        sent: Sent,
        answered: bool,
        /// How many milliseconds it came later than it could have.
        late: bool,
    },
    Answered {
        sent: Sent,
        reply: Reply,
    },
    Granted {
        process: usize,
        token: Token,
        offer: Grant,
        forged: bool,
    },
    /// Somebody says that the key was changed, truly or not.
    Hint {
        process: usize,
    },
    Tick {
        process: usize,
    },
    /// A new connection works.
    Reconnected {
        process: usize,
        moved: bool,
    },
    Freeze {
        process: usize,
        time: u64,
    },
    Kill {
        process: usize,
    },
    Forge {
        process: usize,
        number: u64,
    },
    Replicate,
    Restart {
        how: Beyond,
        down: u64,
    },
}

/// A command on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    process: usize,
    /// The task that is to have the answer, where it is not for the rules.
    asker: Option<u32>,
    epoch: u64,
    /// How often the server had been started.
    starts: u32,
    token: Token,
    command: Command,
    at: u64,
    /// The same by the clock of the process.
    local: BootInstant,
}

/// What is left to chance.
#[derive(Clone, Copy, Debug)]
enum Thing {
    Join,
    RequestDelay,
    RequestLost,
    RequestLate,
    RequestDoubled,
    ReplyDelay,
    ReplyLost,
    ReplyDoubled,
    GrantDelay,
    GrantLost,
    GrantDoubled,
    PassedOver,
    Work,
    Fenced,
    GivesUp,
    GivesUpAfter,
    Declined,
    BodyGone,
    Drift,
    Happens,
    When,
    Whose,
    HowLong,
    Hint,
}

pub(super) struct World<'a> {
    pub(super) weather: Weather,
    bug: Bug,
    rules: ProtocolConfig,
    now: u64,
    agenda: Agenda<Event>,
    server: Server,
    processes: Vec<Process>,
    judges: Judges,
    /// Whose command was executed when nobody could undo it any more, or whom a replica brought back.
    late: BTreeSet<Token>,
    tally: Tally,
    chance: &'a mut Chance,
    story: &'a mut Story,
    no_answer: Failure,
    actions: Vec<Action<u32>>,
}

/// The task that takes the first answer for its last.
const ONCE: u32 = 4;
/// The one that does not even ask when it might get the lock.
const ONLY_WHETHER: u32 = 5;
const TIMEOUT: u64 = 500;
/// What is executed so long after it was sent may come after the last leave of its token (`abandon`).
const LATEST: u64 = TIMEOUT + 1_000;
/// Faults end by then.
const CALM: u64 = 8_000;

type Done = Result<(), Box<Wrong>>;

impl<'a> World<'a> {
    pub(super) fn new(weather: &Weather, bug: Bug, chance: &'a mut Chance, story: &'a mut Story) -> Self {
        let weather = *weather;
        let mut world = Self {
            weather,
            bug,
            rules: ProtocolConfig {
                handoff_budget: Duration::from_millis(weather.handoff_budget),
                grant_lease: Duration::from_millis(weather.grant_lease),
                grants_are_proof: weather.unseen == 0 || bug == Bug::EveryGrantIsBelieved,
                tracking: weather.tracking,
                confirm_grants_first: weather.confirm_grants_first,
                replica_acks: weather.acks,
                ..ProtocolConfig::DEFAULT
            },
            now: 0,
            agenda: Agenda::new(),
            server: Server::default(),
            processes: Vec::new(),
            judges: Judges::new(CALM),
            late: BTreeSet::new(),
            tally: Tally::new(),
            chance,
            story,
            no_answer: Failure::new(FailureKind::Passing, "no answer"),
            actions: Vec::new(),
        };
        for number in 0..PROCESSES {
            let drift = world.draw_drift(number as usize);
            world.processes.push(Process::new(number, drift));
        }
        for acquisition in (0..TASKS).filter(|acquisition| weather.has(*acquisition)) {
            let at = world.up_to(Thing::Join, acquisition as usize, weather.arrivals);
            world.at(at, Event::Join { acquisition });
        }
        world.plan_faults();
        world
    }

    /// How much faster than the server's a process's clock runs, in a thousand.
    fn draw_drift(&mut self, process: usize) -> i64 {
        let (most, kind) = match self.weather.beyond {
            Beyond::Drift => (300, Seen::BeyondDrift),
            _ => (self.weather.drift, Seen::Drift),
        };
        let drawn = i64::try_from(self.up_to(Thing::Drift, process, 2 * most)).unwrap_or_default();
        if drawn > 0 {
            self.saw(kind);
        }
        // 1, -1, 2, -2, ...
        if drawn % 2 == 1 { (drawn + 1) / 2 } else { -drawn / 2 }
    }

    fn plan_faults(&mut self) {
        let Weather { freezes, kills, hints, forged, restarts, beyond, lease, .. } = self.weather;
        for number in 0..freezes {
            if let Some((at, process)) = self.plan(0, number) {
                let time = self.up_to(Thing::HowLong, 0, 3 * lease);
                self.at(at, Event::Freeze { process, time });
            }
        }
        for number in 0..kills {
            if let Some((at, process)) = self.plan(1, number) {
                self.at(at, Event::Kill { process });
            }
        }
        for number in 0..hints {
            if let Some((at, process)) = self.plan(2, number) {
                self.at(at, Event::Hint { process });
            }
        }
        for number in 0..forged {
            if let Some((at, process)) = self.plan(3, number) {
                let number = self.up_to(Thing::HowLong, 3, 12);
                self.at(at, Event::Forge { process, number });
            }
        }
        for number in 0..restarts {
            if let Some((at, _)) = self.plan(4, number) {
                let down = self.up_to(Thing::HowLong, 4, 1_000);
                self.at(at, Event::Restart { how: Beyond::Nothing, down });
            }
        }
        let unheard = match beyond {
            Beyond::Empty => 0,
            Beyond::Promotion(unheard) => unheard,
            Beyond::Nothing | Beyond::Drift => return,
        };
        let at = unheard + self.up_to(Thing::When, 5, 2_500);
        let down = self.up_to(Thing::HowLong, 5, 300);
        self.at(at - unheard, Event::Replicate);
        self.at(at, Event::Restart { how: beyond, down });
    }

    /// When a fault happens, if it does, and to whom.
    fn plan(&mut self, kind: usize, number: u64) -> Option<(u64, usize)> {
        let soon = if number.is_multiple_of(2) { 1_500 } else { CALM - 2_000 };
        let (at, whose) =
            (self.up_to(Thing::When, kind, soon), self.up_to(Thing::Whose, kind, u64::from(PROCESSES) - 1));
        self.happens(Thing::Happens, kind, 70).then(|| (at, usize::try_from(whose).unwrap_or_default()))
    }

    fn up_to(&mut self, thing: Thing, subject: usize, bound: u64) -> u64 {
        self.chance.up_to(thing as usize, subject, bound)
    }

    fn happens(&mut self, thing: Thing, subject: usize, percent: u64) -> bool {
        self.chance.happens(thing as usize, subject, percent)
    }

    /// The same for a fault, of which there are none once the weather is calm.
    fn strikes(&mut self, thing: Thing, subject: usize, percent: u64) -> bool {
        self.now < CALM && self.happens(thing, subject, percent)
    }

    fn delay(&mut self, thing: Thing, subject: usize, times: u64) -> u64 {
        let most = if self.now < CALM { self.weather.delay } else { self.weather.delay.min(40) };
        self.up_to(thing, subject, times * most)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.agenda.put(time, event);
    }

    fn saw(&mut self, what: Seen) {
        self.tally.note(what as usize);
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        self.story.tell(self.now, what);
    }

    pub(super) fn run(mut self) -> Result<Tally, Box<Wrong>> {
        for _ in 0..40_000 {
            let Some((time, event)) = self.agenda.next() else {
                self.judge_the_end()?;
                return Ok(self.tally);
            };
            self.now = self.now.max(time);
            if let Some(process) = Self::process_of(&event) {
                let Process { frozen_until, alive, .. } = self.processes[process];
                if !alive {
                    continue;
                }
                if frozen_until > self.now {
                    self.at(frozen_until, event);
                    continue;
                }
            }
            self.happen(event)?;
        }
        wrong("end", "it never ends")
    }

    /// The process whose own doing the event is; a server does not mind whether a process is frozen.
    fn process_of(event: &Event) -> Option<usize> {
        match event {
            Event::Join { acquisition }
            | Event::GiveUp { acquisition }
            | Event::WorkEnds { acquisition }
            | Event::Fences { acquisition }
            | Event::BodyGone { acquisition, .. } => Some(home(*acquisition)),
            Event::Answered { sent, .. } => Some(sent.process),
            Event::Granted { process, .. }
            | Event::Hint { process }
            | Event::Tick { process }
            | Event::Reconnected { process, .. }
            | Event::Freeze { process, .. }
            | Event::Kill { process }
            | Event::Forge { process, .. } => Some(*process),
            Event::Executed { .. } | Event::Replicate | Event::Restart { .. } => None,
        }
    }

    fn happen(&mut self, event: Event) -> Done {
        match event {
            Event::Join { acquisition } => self.join(acquisition),
            Event::GiveUp { acquisition } => self.give_up(acquisition),
            Event::WorkEnds { acquisition } => self.work_ends(acquisition),
            Event::Fences { acquisition } => {
                if let Some(Hold { token, lost: false, .. }) = self.judges.holds[acquisition as usize] {
                    self.send_for(Some(acquisition), home(acquisition), token, Command::Fence);
                }
                Ok(())
            }
            Event::BodyGone { acquisition, left } => {
                self.judges.ends(acquisition, self.now);
                let Some(left) = left else { return Ok(()) };
                self.with_key(home(acquisition), |key_state, ctx| {
                    key_state.release_residual(&acquisition, left, true, ctx)
                })
            }
            Event::Executed { sent, answered, late } => self.executed(sent, answered, late),
            Event::Answered { sent, reply } => self.answered(sent, reply),
            Event::Granted { process, token, offer, forged } => {
                let mut known = true;
                self.with_key(process, |key_state, ctx| known = key_state.on_grant(token, offer, ctx))?;
                if !known && !forged {
                    self.send(process, token, Command::Withdraw);
                }
                Ok(())
            }
            Event::Hint { process } => {
                self.saw(Seen::Hint);
                self.with_key(process, KeyState::on_invalidation)
            }
            Event::Tick { process } => self.tick(process),
            Event::Reconnected { process, moved } => {
                self.processes[process].abandoned.retry_now(|_| true);
                self.schedule_cleanup(process);
                self.with_key(process, |key_state, ctx| key_state.on_reconnect(moved, ctx))
            }
            Event::Freeze { process, time } => {
                self.freeze(process, time);
                Ok(())
            }
            Event::Kill { process } => {
                self.kill(process);
                Ok(())
            }
            Event::Forge { process, number } => self.forge(process, number),
            Event::Replicate => {
                self.server.replicate();
                Ok(())
            }
            Event::Restart { how, down } => {
                self.restart(how, down);
                Ok(())
            }
        }
    }

    fn tick(&mut self, process: usize) -> Done {
        if self.now < self.processes[process].tick_at {
            return Ok(()); // an earlier one has taken its place
        }
        self.processes[process].tick_at = u64::MAX;
        self.undo(process);
        if self.bug == Bug::NobodyWatches && self.processes[process].is_held() {
            return Ok(());
        }
        self.with_key(process, KeyState::tick)
    }

    fn join(&mut self, acquisition: u32) -> Done {
        if self.strikes(Thing::GivesUp, acquisition as usize, self.weather.gives_up) {
            let after = self.up_to(Thing::GivesUpAfter, acquisition as usize, 1_000);
            self.at(self.now + after, Event::GiveUp { acquisition });
        }
        let (wait, retries) = match acquisition {
            ONCE | ONLY_WHETHER => (None, 0),
            _ if acquisition.is_multiple_of(2) => (Some(Duration::from_secs(60)), 0),
            _ => (None, 40),
        };
        let last = Duration::from_millis(self.weather.back_off);
        let limits = RetryLimits {
            retries,
            wait,
            backoff: RetryPolicy::exponential(last / 8, last),
            response_timeout: Duration::from_millis(TIMEOUT),
            try_only: acquisition == ONLY_WHETHER,
        };
        let process = home(acquisition);
        let retry_state = RetryState::new(self.processes[process].clock(self.now), limits, acquisition);
        let some = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
        let terms = HoldTerms::of_lease(Duration::from_millis(self.weather.lease_of(acquisition)))
            .renew(self.weather.renew)
            .max_hold(some(self.weather.max_hold))
            .min_hold(some(self.weather.min_hold));
        let waiter = QueueEntry { acquisition, terms, retry_state };
        self.tell(|| format!("task {acquisition} of process {process} wants the lock"));
        self.judges.joins(acquisition, process, self.now);
        if self.bug == Bug::JoinsTwice {
            let twice = waiter.clone();
            self.with_key(process, |key_state, ctx| key_state.join(twice, ctx))?;
        }
        self.with_key(process, |key_state, ctx| key_state.join(waiter, ctx))
    }

    fn give_up(&mut self, acquisition: u32) -> Done {
        let process = home(acquisition);
        if let Some(hold) = self.judges.holds[acquisition as usize] {
            if !hold.lost {
                self.saw(Seen::LeftHolding);
                self.tell(|| format!("task {acquisition} of process {process} is cancelled while it holds"));
            }
            return self.work_ends(acquisition);
        }
        if !matches!(self.judges.told[acquisition as usize], Told::WaitGraph { .. }) {
            return Ok(());
        }
        let phase = self.processes[process].stage_of(acquisition);
        self.saw(phase);
        self.tell(|| format!("task {acquisition} of process {process} gives up"));
        self.judges.told[acquisition as usize] = Told::ResidualHold;
        if self.bug == Bug::StaysThoughGone {
            return Ok(());
        }
        self.with_key(process, |key_state, ctx| {
            key_state.leave(&acquisition, ctx);
        })
    }

    fn work_ends(&mut self, acquisition: u32) -> Done {
        let process = home(acquisition);
        let Some(hold) = self.judges.holds[acquisition as usize].filter(|hold| !hold.lost) else {
            return Ok(());
        };
        let over = self.processes[process].when(hold.until).unwrap_or(u64::MAX);
        let late = self.now.saturating_sub(over.max(self.processes[process].frozen_until));
        Judges::judge_the_body(acquisition, &hold, late)?;
        self.judges.ends(acquisition, self.now);
        self.tell(|| format!("task {acquisition} of process {process} is done"));
        let mut released = ReleaseOutcome::HandedOff;
        self.with_key(process, |key_state, ctx| released = key_state.release(&acquisition, ctx))?;
        if let ReleaseOutcome::Send(token, command) = released {
            self.send(process, token, command);
        }
        Ok(())
    }

    fn freeze(&mut self, process: usize, time: u64) {
        if time == 0 {
            return;
        }
        let until = self.now + time;
        self.processes[process].frozen_until = until;
        self.processes[process].slept += time;
        self.judges.calm_from = self.judges.calm_from.max(until);
        self.saw(Seen::Froze);
        if self.judges.holds.iter().flatten().any(|hold| hold.process == process) {
            self.saw(Seen::FrozeHolding);
        }
        self.tell(|| format!("process {process} freezes until {until} ms"));
    }

    /// What dies with a process is not judged: its holds end, its tasks are gone.
    fn kill(&mut self, process: usize) {
        self.saw(Seen::Killed);
        self.processes[process].alive = false;
        for acquisition in (0..TASKS).filter(|acquisition| home(*acquisition) == process) {
            if self.judges.ends(acquisition, self.now).is_some() {
                self.saw(Seen::KilledHolding);
            }
            self.judges.told[acquisition as usize] = Told::Dead;
        }
        self.tell(|| format!("process {process} is killed"));
    }

    /// Somebody who may publish says that a token is granted the lock: one that the process has given, or will. What stands in the
    /// server's queue at this time is a secret, where being told counts as proof.
    fn forge(&mut self, process: usize, number: u64) -> Done {
        let token = self.processes[process].tokens.at(number);
        if self.processes[process].is_about(token, self.rules.grants_are_proof) {
            return Ok(());
        }
        self.saw(Seen::ForgedGrant);
        self.tell(|| format!("somebody lies to process {process} that it has the lock"));
        let lease = if number.is_multiple_of(2) { Duration::ZERO } else { Duration::MAX };
        let offer = Grant { lease, ..Grant::NONE };
        self.happen(Event::Granted { process, token, offer, forged: true })
    }

    fn restart(&mut self, how: Beyond, down: u64) {
        self.server.down_until = self.now + down;
        self.judges.calm_from = self.judges.calm_from.max(self.now + down);
        let said = match how {
            Beyond::Empty => {
                self.saw(Seen::EmptyRestart);
                self.server.restart(false, self.now);
                "is started again with nothing"
            }
            Beyond::Promotion(_) => {
                self.saw(Seen::Promotion);
                let known = self.server.promote(self.now);
                self.late.extend(known);
                "gives way to one that has not heard all"
            }
            Beyond::Nothing | Beyond::Drift => {
                self.saw(Seen::Restart);
                self.server.restart(true, self.now);
                "is started again with all that it had"
            }
        };
        self.tell(|| format!("the server {said}"));
        for process in 0..self.processes.len() {
            self.processes[process].connects_anew(self.now);
            let at = self.now + down + 1 + self.delay(Thing::ReplyDelay, process, 1);
            self.at(at, Event::Reconnected { process, moved: matches!(how, Beyond::Promotion(_)) });
        }
    }

    fn with_key(
        &mut self,
        process: usize,
        event: impl FnOnce(&mut KeyState<u32>, &mut EventContext<'_, u32>),
    ) -> Done {
        let mut actions = std::mem::take(&mut self.actions);
        let current = &mut self.processes[process];
        let slept = if self.bug == Bug::ClockStopsInSleep { current.slept } else { 0 };
        let now = current.clock(self.now - slept);
        let shares = (process as u64) < self.weather.sharing;
        let rules = ProtocolConfig { yield_to_foreign: shares, ..self.rules };
        let contended = &mut current.contended;
        let mut ctx =
            EventContext { now, rules: &rules, tokens: &current.tokens, actions: &mut actions, contended };
        event(&mut current.key_state, &mut ctx);
        let due = current.key_state.due();
        for action in actions.drain(..) {
            self.act(process, &action)?;
        }
        self.actions = actions;
        self.arm(process, due);
        Ok(())
    }

    fn arm(&mut self, process: usize, due: BootInstant) {
        let current = &mut self.processes[process];
        let slept = if self.bug == Bug::ClockStopsInSleep { current.slept } else { 0 };
        let Some(due) = current.when(due) else { return };
        let due = (due + slept).max(self.now);
        if due < current.tick_at {
            current.tick_at = due;
            self.at(due, Event::Tick { process });
        }
    }

    fn act(&mut self, process: usize, action: &Action<u32>) -> Done {
        match *action {
            Action::Send { command: Command::Enqueue { mode: EnqueueMode::Recheck, .. }, .. }
                if self.bug == Bug::NobodyAsksAgain => {}
            Action::Send { command: Command::Renew { .. }, .. }
                if self.bug == Bug::NobodyRenews && self.processes[process].is_held() => {}
            Action::Send { token, command } => {
                self.note_spare(process, token, command);
                self.send(process, token, command);
            }
            Action::Orphan { token } => {
                let Process { abandoned, epoch, key, .. } = &mut self.processes[process];
                if self.bug != Bug::NothingIsUndone {
                    abandoned.add(key.clone(), token, *epoch - 1);
                    self.schedule_cleanup(process);
                }
            }
            Action::Grant { acquisition, token, deadline, ends, .. } => {
                let deadline = deadline.at();
                let until = deadline.min(ends);
                return self.admit(
                    acquisition,
                    Hold { process, token, until, deadline, ends, lost: false, turn: 0 },
                );
            }
            Action::Extend { acquisition, deadline, .. } => {
                if let Some(hold) = &mut self.judges.holds[acquisition as usize] {
                    hold.deadline = deadline.at();
                    hold.until = hold.deadline.min(hold.ends);
                    return self.believe(acquisition);
                }
            }
            Action::Revoke { acquisition, cause, left } => {
                self.saw(Seen::Lost);
                // A broken rule is for the judge of that rule to notice.
                if let Bug::None | Bug::NobodyRenews = self.bug {
                    Judges::judge_the_loss(acquisition, cause, &self.weather)?;
                }
                self.tell(|| {
                    format!("task {acquisition} of process {process} is told that its lock is lost")
                });
                let local = self.processes[process].clock(self.now);
                // What is lost to the server or to time is over; what was ours to the end is ours until its body is gone.
                if let Some(hold) = self.judges.ends(acquisition, self.now).filter(|hold| local >= hold.ends)
                {
                    self.judges.holds[acquisition as usize] =
                        Some(Hold { until: hold.deadline, lost: true, ..hold });
                }
                let gone = self.now + self.up_to(Thing::BodyGone, acquisition as usize, 50);
                self.at(gone, Event::BodyGone { acquisition, left });
            }
            Action::Reject { acquisition, .. } => {
                self.saw(Seen::Refused);
                self.tell(|| format!("task {acquisition} of process {process} is refused"));
                return self.judges.refused(acquisition, self.now, &self.weather);
            }
            Action::JoinNested { .. } => {}
        }
        Ok(())
    }

    fn admit(&mut self, acquisition: u32, hold: Hold) -> Done {
        self.saw(Seen::Admitted);
        if self.weather.keeps_holds_of(acquisition) {
            self.saw(Seen::LetInFarAway);
        }
        if self.processes[hold.process].spare == Some(hold.token) {
            self.saw(Seen::SpareIsLetIn);
        }
        let process = hold.process;
        let local = self.processes[process].clock(self.now);
        let until = self.processes[process].when(hold.until);
        self.tell(|| {
            let until = until.map(|until| format!(" until {until} ms")).unwrap_or_default();
            format!("task {acquisition} of process {process} is let in{until}")
        });
        self.judges.admitted(acquisition, hold, (self.now, local, self.server.life), &self.weather)?;
        self.believe(acquisition)?;
        if self.happens(Thing::Declined, acquisition as usize, self.weather.declines) {
            self.saw(Seen::Declined);
            self.at(self.now, Event::WorkEnds { acquisition });
            return Ok(());
        }
        let work = self.up_to(Thing::Work, acquisition as usize, self.weather.work);
        if self.happens(Thing::Fenced, acquisition as usize, self.weather.fenced) {
            self.at(self.now + work / 2, Event::Fences { acquisition });
        }
        self.at(self.now + work, Event::WorkEnds { acquisition });
        Ok(())
    }

    fn note_spare(&mut self, process: usize, token: Token, command: Command) {
        let Process { key_state, spare, .. } = &mut self.processes[process];
        if let (KeyPhase::Contending(contender), Command::Acquire { .. }) = (&key_state.phase, command)
            && contender.is_spare(token)
        {
            *spare = Some(token);
            self.saw(Seen::Spare);
        }
    }

    fn believe(&mut self, acquisition: u32) -> Done {
        let Self { judges, processes, tally, now, server, weather, .. } = self;
        let clocks = |process: usize| processes[process].clock(*now);
        judges.believes(acquisition, clocks, (server.life, weather.beyond), tally)
    }

    fn send(&mut self, process: usize, token: Token, command: Command) {
        self.send_for(None, process, token, command);
    }

    fn send_for(&mut self, asker: Option<u32>, process: usize, token: Token, command: Command) {
        let delay = 1 + self.weather.distance + self.delay(Thing::RequestDelay, process, 1);
        let request_lost = self.strikes(Thing::RequestLost, process, self.weather.lost_requests);
        let reply_lost = self.strikes(Thing::ReplyLost, process, self.weather.lost_replies);
        let doubled = self.strikes(Thing::RequestDoubled, process, self.weather.doubled);
        let now = self.now;
        let slept = if self.bug == Bug::ClockStopsInSleep { self.processes[process].slept } else { 0 };
        let Process { epoch, last_arrival, .. } = self.processes[process];
        let local = self.processes[process].clock(now - slept);
        let sent = Sent { process, asker, epoch, starts: self.server.starts, token, command, at: now, local };
        let mut arrival = (now + delay).max(last_arrival);
        let answered = !request_lost && !reply_lost && arrival < now + TIMEOUT;
        let late = !answered && !request_lost;
        if late {
            // A request without an answer may be executed much later, and what was sent behind it on its connection after it.
            arrival += self.up_to(Thing::RequestLate, process, 2 * TIMEOUT);
        }
        self.processes[process].last_arrival = arrival;
        if !answered {
            let reply = Reply::Unknown(self.no_answer.clone());
            self.at(now + TIMEOUT, Event::Answered { sent, reply });
        }
        if request_lost {
            self.saw(Seen::LostRequest);
            self.tell(|| format!("process {process} {}; the request is lost", words::asks(command)));
            return;
        }
        if reply_lost {
            self.saw(Seen::LostReply);
        }
        if delay > 1 {
            self.saw(Seen::DelayedRequest);
        }
        self.at(arrival, Event::Executed { sent, answered, late });
        if doubled {
            self.saw(Seen::DoubledRequest);
            self.at(arrival, Event::Executed { sent, answered: false, late: false });
        }
    }

    fn executed(&mut self, sent: Sent, answered: bool, late: bool) -> Done {
        let Sent { process, token, command, starts, at, .. } = sent;
        if starts != self.server.starts {
            // Its connection ended with the server.
            self.saw(Seen::Broken);
            if answered {
                let reply = Reply::Unknown(self.no_answer.clone().with_connection_lost());
                self.at(self.now + 1, Event::Answered { sent, reply });
            }
            return Ok(());
        }
        let reply = if self.now < self.server.down_until {
            self.saw(Seen::Down);
            Reply::Refused(self.no_answer.clone())
        } else {
            if self.now > at + LATEST {
                self.late.insert(token);
            }
            if late && self.now >= at + TIMEOUT {
                self.saw(Seen::LateRequest);
                self.judges.calm_from = self.judges.calm_from.max(self.now); // a fault, whenever its request was sent
            }
            self.execute(token, command)?
        };
        if self.story.is_listened_to() {
            let (now, until) = (self.now, self.server.until(self.now));
            let since = if at + 1 < now { format!(" (sent at {at} ms)") } else { String::new() };
            let lost = if answered { "" } else { "; the answer is lost" };
            let (asks, answers) = (words::asks(command), words::answers(command, &reply, until));
            self.tell(|| format!("process {process} {asks}{since}; the server {answers}{lost}"));
        }
        if let (Command::Inspect, Reply::Info(sight)) = (command, &reply) {
            let waits = sight.is_none_or(|sight| sight.waiters > 0);
            self.saw(if waits { Seen::SomebodyElse } else { Seen::NobodyElse });
        }
        if let (Command::SetTtl { ttl }, Reply::Owner) = (command, &reply) {
            // It may be asked for longer, for a body that is not gone; and a fast clock has it over a little earlier.
            let asked = at + self.processes[process].span(millis(ttl)).saturating_sub(100);
            let min_hold = self.processes[process].span(self.weather.min_hold);
            self.judges.keeps(token, asked, min_hold, self.server.life);
        }
        if answered {
            let delay = self.weather.distance + self.delay(Thing::ReplyDelay, process, 1);
            if delay > 0 {
                self.saw(Seen::DelayedReply);
            }
            if self.strikes(Thing::ReplyDoubled, process, self.weather.doubled) {
                self.saw(Seen::DoubledReply);
                let later = delay + self.delay(Thing::ReplyDelay, process, 5);
                self.at(self.now + later, Event::Answered { sent, reply: reply.clone() });
            }
            self.at(self.now + delay, Event::Answered { sent, reply });
        }
        Ok(())
    }

    /// What the server makes of a command.
    fn execute(&mut self, token: Token, command: Command) -> Result<Reply, Box<Wrong>> {
        let mut granted = Vec::new();
        let Self { processes, server, chance, weather, tally, .. } = self;
        let told = |token: Token, offer| {
            let process = processes.iter().position(|p| p.tokens.process() == token.process());
            let Some(process) = process else { return false };
            let passed_over = weather.unseen > 0
                && processes[process].alive
                && chance.happens(Thing::PassedOver as usize, process, weather.unseen);
            if passed_over {
                tally.note(Seen::PassedOver as usize);
            }
            let seen = processes[process].alive && !passed_over;
            granted.push((process, token, offer, seen)); // whom the server does not see may hear of it all the same
            seen
        };
        let reply = server.run(token, command, self.now, self.rules.grant_lease, self.bug, told)?;
        if self.bug == Bug::NothingIsKept
            && matches!((command, &reply), (Command::SetTtl { .. }, Reply::Owner))
            && !self.judges.holds.iter().flatten().any(|hold| hold.token == token)
        {
            server.run(
                token,
                Command::ReleaseWithoutHandoff,
                self.now,
                self.rules.grant_lease,
                self.bug,
                |_, _| false,
            )?;
        }
        if matches!(reply, Reply::Owner) && weather.beyond != Beyond::Nothing {
            self.judges.granted_in.entry(token).or_insert(self.server.life);
        }
        for (process, token, offer, seen) in granted {
            if seen && self.weather.beyond != Beyond::Nothing {
                self.judges.granted_in.entry(token).or_insert(self.server.life);
            }
            self.grant(process, token, offer);
        }
        if self.weather.tracking && command.is_release() {
            for process in 0..self.processes.len() {
                let delay = self.up_to(Thing::Hint, process, 3 * self.weather.delay);
                self.at(self.now + delay, Event::Hint { process });
            }
        }
        Ok(reply)
    }

    /// A message tells a token that it is granted the lock.
    fn grant(&mut self, process: usize, token: Token, offer: Grant) {
        self.tell(|| format!("the server hands the lock on to process {process}"));
        if self.strikes(Thing::GrantLost, process, self.weather.lost_grants) {
            self.saw(Seen::LostGrant);
            self.tell(|| format!("the message about it to process {process} is lost"));
            return;
        }
        let delay = self.weather.distance + self.delay(Thing::GrantDelay, process, 3);
        if delay > 0 {
            self.saw(Seen::DelayedGrant);
        }
        self.at(self.now + delay, Event::Granted { process, token, offer, forged: false });
        if self.strikes(Thing::GrantDoubled, process, self.weather.doubled) {
            self.saw(Seen::DoubledGrant);
            let later = delay + self.delay(Thing::GrantDelay, process, 10);
            self.at(self.now + later, Event::Granted { process, token, offer, forged: false });
        }
    }

    fn answered(&mut self, sent: Sent, reply: Reply) -> Done {
        let Sent { process, asker, epoch, token, command, local, .. } = sent;
        let unknown = matches!(reply, Reply::Unknown(_));
        if let (Reply::Fenced(number), Some(acquisition)) = (&reply, asker) {
            self.saw(Seen::Fenced);
            self.judges.fenced(acquisition, *number)?;
        }
        let now = self.processes[process].clock(self.now);
        let current = &mut self.processes[process];
        if unknown && current.epoch == epoch {
            current.connects_anew(self.now);
            let at = self.now + 1 + self.delay(Thing::ReplyDelay, process, 1);
            self.at(at, Event::Reconnected { process, moved: false });
        }
        if command.is_release() {
            let Process { abandoned, key, .. } = &mut self.processes[process];
            if !abandoned.left(token, &reply, epoch, now) && self.bug != Bug::NothingIsUndone {
                match reply {
                    Reply::Unknown(_) => abandoned.add(key.clone(), token, epoch),
                    Reply::Refused(_) => abandoned.add_unsent(key.clone(), token),
                    _ => {}
                }
            }
            self.schedule_cleanup(process);
            return Ok(());
        }
        let sent = if self.bug == Bug::DeadlineFromTheReply { now } else { local };
        self.with_key(process, |key_state, ctx| key_state.reply(token, command, sent, reply, ctx))
    }

    fn undo(&mut self, process: usize) {
        let now = self.processes[process].clock(self.now);
        for (_, token) in self.processes[process].abandoned.due_now(now) {
            self.send(process, token, Command::Withdraw);
        }
        self.schedule_cleanup(process);
    }

    fn schedule_cleanup(&mut self, process: usize) {
        self.arm(process, self.processes[process].abandoned.due());
    }

    fn judge_the_end(&mut self) -> Done {
        let alive = std::array::from_fn(|process| self.processes[process].alive);
        if self.processes.iter().any(|process| process.alive && !process.key_state.is_idle()) {
            return wrong("J6 nothing left", "a process goes on minding the lock though nobody wants it");
        }
        self.judges.judge_the_end(alive)?;
        let mut left = self.server.tokens(self.now);
        left.retain(|token| !self.late.contains(token)); // they end with their time to live
        let mut alive = self.processes.iter().filter(|process| process.alive);
        if alive.any(|process| left.iter().any(|token| token.process() == process.tokens.process())) {
            return wrong("J6 nothing left", "something of a living process is left in the server");
        }
        let longest = self.weather.lease + self.weather.uneven + self.weather.min_hold + 100;
        match self.server.until(self.now) {
            Some(until) if until > self.now + longest.max(self.weather.grant_lease) => {
                wrong("P4 a key has a time to live", format!("the key lives until {until} ms"))
            }
            _ => Ok(()),
        }
    }
}

fn home(acquisition: u32) -> usize {
    (acquisition % PROCESSES) as usize
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
