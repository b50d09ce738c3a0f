//! The rules against a world that loses, delays and freezes: whole schedules, each from a seed.
//!
//! Three processes with two tasks each want one key of one server. Requests and replies are delayed or lost, lost ones may still be
//! executed later, grants are delayed or lost, hints come that mean nothing, processes freeze and die, tasks give up. A connection keeps its order until an answer
//! is missed; after that a new one may overtake what is left in the old. Time is a number, so that a schedule costs microseconds.
//!
//! Judged: no two holds are believed at once, nor is anybody let in beside the body of a hold that was ours when it ended; nobody is
//! let in before the `at_least` of another turn is over; tasks of one process are admitted in their order; every task is told something;
//! in the end nothing is left.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use super::Rules;
use super::abandon::AbandonList;
use super::command::{Command, Failure, FailureKind, Reply};
use super::deadline::BootTime;
use super::hold::{Left, Released};
use super::lane::{Action, Cx, Lane};
use super::patience::{Limits, Patience};
use super::queue::Waiter;
use super::record::Record;
use super::share::{Offer, Share};
use super::terms::Terms;
use crate::retry::RetryPolicy;
use crate::token::{Token, TokenSource};

/// How rough a world is: what happens to one in a hundred, and how slow things are in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Weather {
    delay: u64,
    lost: u64,
    frozen: u64,
    killed: u64,
    gives_up: u64,
    lease: u64,
    grant_lease: u64,
    work: u64,
    renew: bool,
    /// None where 0.
    max_hold: u64,
    at_least: u64,
    /// How many processes leave turns to others.
    sharing: u64,
    hints: u64,
    /// Out of a hundred who are told of a grant, how many are told of one that they were passed over for.
    unseen: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Join {
        seat: u32,
    },
    GiveUp {
        seat: u32,
    },
    WorkEnds {
        seat: u32,
    },
    /// The body of a lost hold is gone.
    BodyGone {
        seat: u32,
        left: Option<Left>,
    },
    Executed {
        process: usize,
        epoch: u64,
        token: Token,
        command: Command,
        sent: u64,
        answered: bool,
    },
    Answered {
        process: usize,
        epoch: u64,
        token: Token,
        command: Command,
        sent: u64,
        reply: Reply,
    },
    Granted {
        process: usize,
        token: Token,
        offer: Offer,
    },
    /// Somebody says that the key was changed, truly or not.
    Hint {
        process: usize,
    },
    Tick {
        process: usize,
    },
}

struct Process {
    lane: Lane<u32>,
    tokens: TokenSource,
    abandoned: AbandonList,
    epoch: u64,
    last_arrival: u64,
    frozen_until: u64,
    /// When it looks at its timers next.
    tick_at: u64,
    alive: bool,
    joined: Vec<u32>,
    admitted: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    process: usize,
    until: BootTime,
    deadline: BootTime,
    ends: BootTime,
    lost: bool,
}

struct World {
    weather: Weather,
    rules: Rules,
    random: u64,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Event>,
    count: u64,
    server: Record,
    processes: Vec<Process>,
    holds: BTreeMap<u32, Hold>,
    /// Under which token and until when the server keeps the lock.
    kept: Option<(Token, u64)>,
    /// When somebody was let in under a token last.
    admitted_at: Vec<(Token, u64)>,
    outcomes: BTreeMap<u32, &'static str>,
    /// What happened, where somebody wants to read it.
    story: Option<Vec<String>>,
}

const TASKS: u32 = 6;
const PROCESSES: u32 = 3;
const TIMEOUT: u64 = 500;

impl World {
    fn new(seed: u64, told: bool) -> Self {
        let weather = weather(seed);
        let processes = (0..PROCESSES).map(|number| Process {
            lane: Lane::new(),
            tokens: TokenSource::of_process(seed ^ u64::from(number)),
            abandoned: AbandonList::default(),
            epoch: 1,
            last_arrival: 0,
            frozen_until: 0,
            tick_at: u64::MAX,
            alive: true,
            joined: Vec::new(),
            admitted: Vec::new(),
        });
        let hand_off = Duration::from_millis(if seed.is_multiple_of(3) { 0 } else { 20 });
        let mut world = Self {
            weather,
            rules: Rules {
                hand_off,
                grant_lease: Duration::from_millis(weather.grant_lease),
                told_is_given: weather.unseen == 0,
                ..Rules::DEFAULT
            },
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: 0,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            count: 0,
            server: Record::default(),
            processes: processes.collect(),
            holds: BTreeMap::new(),
            kept: None,
            admitted_at: Vec::new(),
            outcomes: BTreeMap::new(),
            story: told.then(Vec::new),
        };
        for seat in 0..TASKS {
            let at = world.up_to(600);
            world.at(at, Event::Join { seat });
        }
        for number in 0..weather.hints {
            let process = home(u32::try_from(number).unwrap_or_default());
            let at = world.up_to(3_000);
            world.at(at, Event::Hint { process });
        }
        world
    }

    fn up_to(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % (bound + 1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.up_to(99) < percent
    }

    fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count)));
        self.what.insert(self.count, event);
    }

    fn run(mut self) -> Result<(), String> {
        for _ in 0..40_000 {
            let Some(Reverse((time, id))) = self.events.pop() else { return self.judge_the_end() };
            let Some(event) = self.what.remove(&id) else { continue };
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
        Err(self.tell("it never ends"))
    }

    /// The process whose own doing the event is; a server does not mind whether a process is frozen.
    fn process_of(event: &Event) -> Option<usize> {
        match event {
            Event::Join { seat }
            | Event::GiveUp { seat }
            | Event::WorkEnds { seat }
            | Event::BodyGone { seat, .. } => Some(home(*seat)),
            Event::Answered { process, .. }
            | Event::Granted { process, .. }
            | Event::Hint { process }
            | Event::Tick { process } => Some(*process),
            Event::Executed { .. } => None,
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        self.note(|now| format!("{now:>6} {event:?}"));
        match event {
            Event::Join { seat } => self.join(seat),
            Event::GiveUp { seat } => self.on_lane(home(seat), |lane, cx| {
                lane.leave(&seat, cx);
            }),
            Event::WorkEnds { seat } => self.work_ends(seat),
            Event::BodyGone { seat, left } => {
                self.holds.remove(&seat);
                let Some(left) = left else { return Ok(()) };
                self.on_lane(home(seat), |lane, cx| lane.let_go_of(left, true, cx))
            }
            Event::Executed { process, epoch, token, command, sent, answered } => {
                let reply = self.execute(token, command);
                if let (Command::Keep { ttl }, Reply::Ours) = (command, &reply) {
                    // It may be asked for longer, for a body that is not gone.
                    let asked = sent + u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX) - 100;
                    let admitted = self.admitted_at.iter().rfind(|(of, _)| *of == token);
                    let until = admitted.map_or(0, |(_, at)| at + self.weather.at_least);
                    self.kept = Some((token, until.min(asked)));
                }
                if answered {
                    let delay = self.up_to(self.weather.delay);
                    self.at(
                        self.now + delay,
                        Event::Answered { process, epoch, token, command, sent, reply },
                    );
                }
                Ok(())
            }
            Event::Answered { process, epoch, token, command, sent, reply } => {
                self.answered(process, epoch, token, command, sent, reply)
            }
            Event::Granted { process, token, offer } => {
                let mut known = true;
                self.on_lane(process, |lane, cx| known = lane.granted(token, offer, cx))?;
                if !known {
                    self.send(process, token, Command::Leave);
                }
                Ok(())
            }
            Event::Hint { process } => self.on_lane(process, Lane::touched),
            Event::Tick { process } => {
                if self.now < self.processes[process].tick_at {
                    return Ok(()); // an earlier one has taken its place
                }
                self.processes[process].tick_at = u64::MAX;
                self.undo(process);
                self.on_lane(process, Lane::tick)
            }
        }
    }

    fn join(&mut self, seat: u32) -> Result<(), String> {
        if self.chance(self.weather.killed) {
            self.processes[home(seat)].alive = false;
            // What dies with it is not judged: its holds end, its tasks are gone.
            self.holds.retain(|_, hold| hold.process != home(seat));
            (0..TASKS).filter(|other| home(*other) == home(seat)).for_each(|other| {
                self.outcomes.insert(other, "dead");
            });
            return Ok(());
        }
        if self.chance(self.weather.frozen) {
            self.processes[home(seat)].frozen_until = self.now + self.up_to(3 * self.weather.lease);
        }
        if self.chance(self.weather.gives_up) {
            let at = self.now + self.up_to(1_000);
            self.at(at, Event::GiveUp { seat });
        }
        let (wait, retries) =
            if seat.is_multiple_of(2) { (Some(Duration::from_secs(60)), 0) } else { (None, 40) };
        let policy = RetryPolicy::exponential(Duration::from_millis(50), Duration::from_millis(400));
        let response_timeout = Duration::from_millis(TIMEOUT);
        let limits = Limits { retries, wait, backoff: policy, response_timeout };
        let patience = Patience::new(at(self.now), limits, seat);
        let some = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
        let terms = Terms {
            lease: Duration::from_millis(self.weather.lease + 50 * u64::from(seat % 2)),
            renew: self.weather.renew,
            max_hold: some(self.weather.max_hold),
            at_least: some(self.weather.at_least),
        };
        let waiter = Waiter { seat, terms, patience };
        self.processes[home(seat)].joined.push(seat);
        self.on_lane(home(seat), |lane, cx| lane.join(waiter, cx))
    }

    fn work_ends(&mut self, seat: u32) -> Result<(), String> {
        if self.holds.get(&seat).is_none_or(|hold| hold.lost) {
            return Ok(());
        }
        self.holds.remove(&seat);
        let mut told = None;
        self.on_lane(home(seat), |lane, cx| {
            if let Released::ToServer(token, command) = lane.release(&seat, cx) {
                told = Some((token, command));
            }
        })?;
        if let Some((token, command)) = told {
            self.send(home(seat), token, command);
        }
        Ok(())
    }

    fn on_lane(
        &mut self,
        process: usize,
        event: impl FnOnce(&mut Lane<u32>, &mut Cx<'_, u32>),
    ) -> Result<(), String> {
        let mut actions = Vec::new();
        let Process { lane, tokens, .. } = &mut self.processes[process];
        let shares = u64::try_from(process).is_ok_and(|number| number < self.weather.sharing);
        let rules = Rules { share: if shares { Share::SetNx } else { Share::Ours }, ..self.rules };
        let mut cx = Cx { now: at(self.now), rules: &rules, tokens, actions: &mut actions };
        event(lane, &mut cx);
        for action in actions {
            self.act(process, &action)?;
        }
        self.arm(process, self.processes[process].lane.due());
        Ok(())
    }

    fn arm(&mut self, process: usize, due: BootTime) {
        let due = due.nanos().div_ceil(1_000_000).max(self.now);
        if due < self.processes[process].tick_at && due < BootTime::NEVER.nanos() / 1_000_000 {
            self.processes[process].tick_at = due;
            self.at(due, Event::Tick { process });
        }
    }

    fn act(&mut self, process: usize, action: &Action<u32>) -> Result<(), String> {
        self.note(|now| format!("{now:>6}   {process}: {action:?}"));
        match *action {
            Action::Send { token, command } => self.send(process, token, command),
            Action::Abandon { token } => {
                let Process { abandoned, epoch, .. } = &mut self.processes[process];
                abandoned.add("k".into(), token, *epoch - 1);
                self.undo_later(process);
            }
            Action::Admit { seat, token: admitted, deadline, ends, .. } => {
                if self.kept.is_some_and(|(token, until)| token != admitted && self.now < until) {
                    return Err(self.tell("somebody is let in before `at_least` is over"));
                }
                self.admitted_at.push((admitted, self.now));
                self.outcomes.insert(seat, "admitted");
                self.processes[process].admitted.push(seat);
                let deadline = deadline.at();
                let hold = Hold { process, until: deadline.min(ends), deadline, ends, lost: false };
                self.believe(seat, hold)?;
                let work = self.up_to(self.weather.work);
                self.at(self.now + work, Event::WorkEnds { seat });
            }
            Action::Prolong { seat, deadline } => {
                if let Some(hold) = self.holds.get(&seat).copied() {
                    let deadline = deadline.at();
                    self.believe(seat, Hold { until: deadline.min(hold.ends), deadline, ..hold })?;
                }
            }
            Action::Lose { seat, left, .. } => {
                // What is lost to the server or to time is over; what was ours to the end is ours until its body is gone.
                if let Some(hold) = self.holds.remove(&seat).filter(|hold| at(self.now) >= hold.ends) {
                    self.holds.insert(seat, Hold { until: hold.deadline, lost: true, ..hold });
                }
                let gone = self.now + self.up_to(50);
                self.at(gone, Event::BodyGone { seat, left });
            }
            Action::Refuse { seat, .. } => {
                self.outcomes.insert(seat, "refused");
            }
            Action::Join { .. } => {}
        }
        Ok(())
    }

    /// Judges that nobody else believes in the lock at this time.
    fn believe(&mut self, seat: u32, hold: Hold) -> Result<(), String> {
        self.holds.insert(seat, hold);
        let believing: Vec<_> = self.holds.iter().filter(|(_, hold)| at(self.now) < hold.until).collect();
        if believing.len() > 1 {
            return Err(self.tell(&format!("two believe in the lock: {believing:?}")));
        }
        Ok(())
    }

    fn send(&mut self, process: usize, token: Token, command: Command) {
        let delay = 1 + self.up_to(self.weather.delay);
        let request_lost = self.chance(self.weather.lost);
        let reply_lost = self.chance(self.weather.lost);
        let sent = self.now;
        let Process { epoch, last_arrival, .. } = self.processes[process];
        let mut arrival = (sent + delay).max(last_arrival);
        let answered = !request_lost && !reply_lost && arrival < sent + TIMEOUT;
        if !answered && !request_lost {
            // A request without an answer may be executed much later, and what was sent behind it on its connection after it.
            arrival += self.up_to(2 * TIMEOUT);
        }
        self.processes[process].last_arrival = arrival;
        if !answered {
            let failure = Failure::new(FailureKind::Passing, "no answer");
            let reply = Reply::Unknown(failure);
            let event = Event::Answered { process, epoch, token, command, sent, reply };
            self.at(sent + TIMEOUT, event);
        }
        if !request_lost {
            self.at(arrival, Event::Executed { process, epoch, token, command, sent, answered });
        }
    }

    fn answered(
        &mut self,
        process: usize,
        epoch: u64,
        token: Token,
        command: Command,
        sent: u64,
        reply: Reply,
    ) -> Result<(), String> {
        let unknown = matches!(reply, Reply::Unknown(_));
        let current = &mut self.processes[process];
        if unknown && current.epoch == epoch {
            current.epoch += 1;
            current.last_arrival = self.now;
        }
        match command {
            _ if command.lets_go() => {
                if !current.abandoned.left(token, &reply, epoch, at(self.now)) && unknown {
                    current.abandoned.add("k".into(), token, epoch);
                }
                self.undo_later(process);
                Ok(())
            }
            _ => self.on_lane(process, |lane, cx| lane.reply(token, command, at(sent), reply, cx)),
        }
    }

    fn undo(&mut self, process: usize) {
        let now = at(self.now);
        for (_, token) in self.processes[process].abandoned.due_now(now) {
            self.send(process, token, Command::Leave);
        }
        self.undo_later(process);
    }

    fn undo_later(&mut self, process: usize) {
        self.arm(process, self.processes[process].abandoned.due());
    }

    /// What the server makes of a command.
    fn execute(&mut self, token: Token, command: Command) -> Reply {
        let seen: Vec<_> = (0..self.processes.len())
            .map(|at| {
                self.processes[at].alive && !(self.weather.unseen > 0 && self.chance(self.weather.unseen))
            })
            .collect();
        let seen: Vec<_> = self.processes.iter().map(|p| p.tokens.process()).zip(seen).collect();
        let mut granted = Vec::new();
        let told = |token: Token, offer| {
            granted.push((token, offer)); // whom the server does not see may hear of it all the same
            seen.iter().any(|(id, seen)| *id == token.process() && *seen)
        };
        let reply = self.server.run(token, command, at(self.now), self.rules.grant_lease, told);
        for (token, offer) in granted {
            let process = self.processes.iter().position(|p| p.tokens.process() == token.process());
            if !self.chance(self.weather.lost) {
                let delay = self.up_to(3 * self.weather.delay);
                let process = process.unwrap_or_default();
                self.at(self.now + delay, Event::Granted { process, token, offer });
            }
        }
        reply
    }

    fn judge_the_end(&self) -> Result<(), String> {
        for process in &self.processes {
            if process.alive && !process.lane.is_idle() {
                return Err(self.tell("a lane is not idle at the end"));
            }
            let order: Vec<_> =
                process.joined.iter().filter(|seat| process.admitted.contains(seat)).collect();
            if order != process.admitted.iter().collect::<Vec<_>>() {
                return Err(self.tell("tasks of one process were not admitted in their order"));
            }
        }
        if (0..TASKS).any(|seat| !self.outcomes.contains_key(&seat)) && self.weather.gives_up == 0 {
            return Err(self.tell("a task was told nothing"));
        }
        let left = self.server.tokens(at(self.now));
        let mut alive = self.processes.iter().filter(|process| process.alive);
        if alive.any(|process| left.iter().any(|token| token.process() == process.tokens.process())) {
            return Err(self.tell("something of a living process is left in the server"));
        }
        Ok(())
    }

    fn tell(&self, what: &str) -> String {
        let story = self.story.as_ref().map(|story| story.join("\n")).unwrap_or_default();
        format!("{what}\n{:?}\n{story}", self.weather)
    }

    fn note(&mut self, line: impl FnOnce(u64) -> String) {
        if let Some(story) = &mut self.story {
            story.push(line(self.now));
        }
    }
}

fn at(ms: u64) -> BootTime {
    BootTime::from_nanos(ms * 1_000_000)
}

fn home(seat: u32) -> usize {
    usize::try_from(seat % PROCESSES).unwrap_or_default()
}

/// Each seed has a weather of its own: schedules that are all alike find little.
fn weather(seed: u64) -> Weather {
    let pick = |by: u64, from: &[u64]| {
        let draw = seed.wrapping_mul(0xd134_2543_de82_ef95) >> by;
        from[usize::try_from(draw % 60).unwrap_or_default() % from.len()]
    };
    Weather {
        delay: pick(3, &[1, 5, 40, 250, 700]),
        lost: pick(9, &[0, 0, 3, 15]),
        frozen: pick(15, &[0, 0, 20, 60]),
        killed: pick(21, &[0, 0, 0, 10]),
        gives_up: pick(27, &[0, 0, 30]),
        lease: pick(33, &[200, 600, 1_500, 5_000]),
        grant_lease: pick(48, &[100, 300, 1_000]),
        work: pick(39, &[1, 50, 400, 3_000]),
        renew: pick(45, &[0, 1, 1]) == 1,
        max_hold: pick(51, &[0, 0, 0, 150, 900]),
        at_least: pick(54, &[0, 0, 0, 100, 1_200]),
        sharing: pick(57, &[0, 1, u64::from(PROCESSES)]),
        hints: pick(57, &[0, 0, 5, 50]),
        unseen: pick(36, &[0, 0, 20]),
    }
}

#[test]
fn no_schedule_lets_two_believe_in_the_lock() {
    let seeds = match std::env::var("DLOCK_SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..=seed,
        None => 0..=19_999,
    };
    for seed in seeds {
        if World::new(seed, false).run().is_err() {
            let story = World::new(seed, true).run().err().unwrap_or_default();
            panic!("DLOCK_SIM_SEED={seed}: {story}");
        }
    }
}
