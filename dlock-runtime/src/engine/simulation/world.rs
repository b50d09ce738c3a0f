//! One world: its processes, its weather and its time, from a seed.
//!
//! Time stands still while a task is polled, unless the weather says otherwise, and goes on to the next event when nobody can run.
//!
//! Not here: what is judged on the way (`judges`).

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use super::calls::{Caller, Planned, longest};
use super::executor::Tasks;
use super::network::{LATEST, MS, Net, Packet, TIMEOUT};
use super::weather::{Random, Weather};
use crate::LockManager;
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::renewal_throttle::{RenewalThrottle, ThrottleLimits};
use crate::key::Name;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Reply};
use crate::protocol::foreign_clients::Grant;
use crate::sync::lock;
use crate::token::{Token, TokenSource};

/// What happens in a world beside its tasks.
#[derive(Debug)]
pub(super) enum Event {
    Timer { timer: u64 },
    Drive { process: usize, due: u64 },
    Send { process: usize },
    Undo { process: usize },
    Arrive { packet: Packet, answered: bool },
    ReleaseCompletion(Packet, Vec<Reply>),
    TimeOut { process: usize, id: u64 },
    Grant { process: usize, epoch: u64, key: Name, token: Token, offer: Grant },
    Hint { process: usize, key: Name },
    Untold { process: usize },
    Cut { process: usize, back_in: u64, moved: bool },
    Connect { process: usize, moved: bool },
    Down { wiped: bool },
    Promote,
    Replicate,
    Up,
    Force { key: Name },
    Stop { process: usize, what: Stopped, time: u64 },
    Jump { time: u64 },
    GiveUp { task: usize },
    Shutdown { process: usize },
    Fork { process: usize },
    Heal,
}

/// What of a process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    All,
    Tasks,
    Driver,
}

/// A world.
pub(super) struct World {
    pub(super) net: Arc<Net>,
    pub(super) tasks: Tasks,
    pub(super) managers: Vec<LockManager>,
    /// AtomicDeadline when tasks and driver of each process are stopped.
    stopped: Vec<(u64, u64)>,
    is_healed: bool,
}

impl World {
    pub(super) fn new(seed: u64, weather: Weather, told: bool) -> Self {
        let net = Net::new(seed, weather, told);
        let mut world = Self {
            net,
            tasks: Tasks::default(),
            managers: Vec::new(),
            stopped: Vec::new(),
            is_healed: false,
        };
        let weather = lock(&world.net.state).weather.clone();
        for process in 0..weather.processes {
            let number = u64::try_from(process).unwrap_or_default() + 1;
            let tokens = TokenSource::of_process(number << 32 | (seed & 0xffff));
            let rules = ProtocolConfig {
                grant_lease: Duration::from_millis(weather.grant_lease),
                handoff_budget: Duration::from_millis(weather.handoff_budget),
                response_timeout: Duration::from_nanos(TIMEOUT),
                yield_to_foreign: weather.shares,
                wakeup_jitter: Duration::from_millis(weather.wakeup_jitter),
                replica_acks: weather.replica_acks,
                tracking: weather.tracking,
                confirm_grants_first: process < weather.confirming,
                grants_are_proof: weather.unseen == 0 && weather.promotions == 0,
                ..ProtocolConfig::DEFAULT
            };
            let backend = world.net.join(tokens.process());
            let clock = Clock::Set(Arc::clone(&world.net.clock));
            let lease = Duration::from_millis(weather.lease);
            let mut engine = Engine::new(backend, clock, tokens, rules, lease);
            let (beside_others, alone) = weather.at_once;
            engine.pace = RenewalThrottle::new(ThrottleLimits { beside_others, alone });
            let engine = Arc::new(engine);
            lock(&world.net.state).links[process].engine = Arc::downgrade(&engine);
            world.managers.push(LockManager::over(engine));
            world.stopped.push((0, 0));
        }
        world
    }

    /// A world in which everything is decided by its seed.
    pub(super) fn of_seed(seed: u64, told: bool) -> Self {
        let mut random = Random::of_seed(seed);
        let mut forks = Random::of_seed(seed ^ 0xf0cc);
        let weather = Weather::of(&mut random).with_forks(&mut forks);
        let mut world = Self::new(seed, weather.clone(), told);
        for process in 0..weather.processes {
            for _ in 0..weather.tasks {
                let task = world.tasks.add(process, Box::pin(world.caller(process).task()));
                if random.chance(weather.cancelled) {
                    let polls = random.up_to(12);
                    world.tasks.get_mut(task).expect("it was added").cut_after = Some(polls);
                }
                if random.chance(weather.gives_up) {
                    let time = random.millis(weather.lasts);
                    lock(&world.net.state).at(time, Event::GiveUp { task });
                }
            }
        }
        world.forecast(&weather, &mut random);
        for _ in 0..weather.forks {
            let process = forks.index(weather.processes);
            lock(&world.net.state).at(forks.millis(weather.lasts), Event::Fork { process });
        }
        world
    }

    pub(super) fn caller(&self, process: usize) -> Caller {
        Caller { net: Arc::clone(&self.net), process, manager: self.managers[process].clone() }
    }

    fn forecast(&self, weather: &Weather, random: &mut Random) {
        let mut state = lock(&self.net.state);
        let key =
            |random: &mut Random| -> Name { format!("dlock:key:{}", random.up_to(weather.keys - 1)).into() };
        for _ in 0..weather.hints {
            let (time, process, key) =
                (random.millis(weather.lasts), random.index(weather.processes), key(random));
            let untold = random.chance(20);
            state.at(time, if untold { Event::Untold { process } } else { Event::Hint { process, key } });
        }
        for _ in 0..weather.cuts {
            let (time, process) = (random.millis(weather.lasts), random.index(weather.processes));
            let back_in = random.millis(weather.lease);
            state.at(time, Event::Cut { process, back_in, moved: false });
        }
        for _ in 0..weather.restarts {
            state.at(random.millis(weather.lasts), Event::Down { wiped: false });
        }
        for _ in 0..weather.wipes {
            state.at(random.millis(weather.lasts), Event::Down { wiped: true });
        }
        for _ in 0..weather.promotions {
            let time = random.millis(weather.lasts);
            state.at(time.saturating_sub(random.millis(300)), Event::Replicate);
            state.at(time, Event::Promote);
        }
        for _ in 0..weather.forced {
            let key = key(random);
            state.at(random.millis(weather.lasts), Event::Force { key });
        }
        for _ in 0..weather.freezes {
            let (at, process) = (random.millis(weather.lasts), random.index(weather.processes));
            let what = random.pick(&[Stopped::All, Stopped::All, Stopped::Tasks, Stopped::Driver]);
            let time = random.millis(3 * weather.lease);
            state.at(at, Event::Stop { process, what, time });
        }
        for _ in 0..weather.jumps {
            let (at, time) = (random.millis(weather.lasts), random.millis(2 * weather.lease));
            state.at(at, Event::Jump { time });
        }
        for _ in 0..weather.shutdowns {
            let process = random.index(weather.processes);
            state.at(random.millis(weather.lasts), Event::Shutdown { process });
        }
        state.at(weather.lasts * MS, Event::Heal);
    }

    /// Goes on until all tasks have ended and nothing is left.
    ///
    /// # Errors
    ///
    /// Fails with what was wrong first, and the story where it is told.
    pub(super) fn run(mut self) -> Result<Self, String> {
        let weather = lock(&self.net.state).weather.clone();
        let latest = weather.lasts * MS + longest(&weather);
        self.run_until(latest, true)?;
        if self.tasks.count() > 0 {
            return Err(self.tell(&format!("J5: {} tasks wait in vain", self.tasks.count())));
        }
        self.judge_the_end(&weather)?;
        Ok(self)
    }

    /// Nobody works any more: what is left goes away, soon where nothing was in its way, and with its time to live at the latest.
    pub(super) fn judge_the_end(&mut self, weather: &Weather) -> Result<(), String> {
        self.run_until(self.net.now().max(weather.lasts * MS), false)?;
        let stopped = self.stopped.iter().map(|(tasks, driver)| *tasks.max(driver)).max().unwrap_or_default();
        let cut = if weather.cuts > 0 { weather.lease } else { 0 }; // for as long as a connection is away
        let mut over = self.net.now().max(stopped).max(weather.lasts * MS);
        loop {
            let soon = over + TIMEOUT + (cut + 3_500) * MS;
            self.run_until(soon, false)?;
            if self.net.now() <= soon {
                break;
            }
            over = self.net.now(); // A jump of the clock took that while away: nobody could do anything in it.
        }
        let excused = {
            let state = lock(&self.net.state);
            !state.judges.forgotten.is_empty() || !state.judges.forked.is_empty() || weather.min_hold > 0
        };
        let left = {
            let state = lock(&self.net.state);
            let mut left = state.server.tokens(self.net.now());
            left.retain(|(key, token)| !state.is_tainted(key, Some(*token)));
            left.retain(|left| !state.judges.late.contains(left));
            left
        };
        if !left.is_empty() && !excused {
            return Err(self.tell(&format!("J6: a while later the server still has {left:?}")));
        }
        let lease = weather.lease + weather.uneven + 2_200; // an `extend` may have asked for more
        let longest = (lease + weather.max_hold).max(weather.min_hold) * 11 / 10 + 200;
        self.run_until(self.net.now() + longest * MS, false)?;
        let left = lock(&self.net.state).server.tokens(self.net.now());
        if !left.is_empty() {
            return Err(self.tell(&format!("J6: 1.1 leases later the server still has {left:?}")));
        }
        self.judge_engines()
    }

    fn judge_engines(&mut self) -> Result<(), String> {
        for (process, manager) in std::mem::take(&mut self.managers).into_iter().enumerate() {
            let engine = Arc::clone(manager.engine());
            drop(manager);
            if engine.is_forked() {
                continue; // it is as it was at the fork
            }
            let forgets = lock(&self.net.state).judges.forgotten.contains(&process);
            let left = (engine.shards.count(), lock(&engine.waits).is_empty(), engine.unanswered.count());
            if left != ((0, 0), true, 0) {
                let line = format!("J7: process {process}: (lanes, due), no waits, unanswered: {left:?}");
                return Err(self.tell(&line));
            }
            if engine.pace.has_deferred() {
                lock(&self.net.state).happens("a renewal put off");
            }
            if engine.pace.unanswered() > 0 {
                return Err(self.tell(&format!("J7: process {process}: its pace waits for answers")));
            }
            let held = engine.held.load(std::sync::atomic::Ordering::Relaxed);
            let others = Arc::strong_count(&engine) - 1;
            if !forgets && (held, others) != (0, 0) {
                return Err(
                    self.tell(&format!("J7: process {process}: {held} hold, {others} keep the engine"))
                );
            }
        }
        let timers = lock(&self.net.state).timers.len();
        if timers > 0 {
            return Err(self.tell(&format!("J7: {timers} timers are left")));
        }
        Ok(())
    }

    /// Lets time pass until `latest`, or until all tasks have ended.
    pub(super) fn run_until(&mut self, latest: u64, while_tasks: bool) -> Result<(), String> {
        for step in 0.. {
            let wrong = lock(&self.net.state).judges.verdict.clone();
            if let Some(wrong) = wrong {
                return Err(self.tell(&wrong));
            }
            if step > MOST_STEPS {
                return Err(self.tell("it never ends"));
            }
            if while_tasks && self.tasks.count() == 0 {
                return Ok(());
            }
            if let Some(task) = self.next_task() {
                self.poll(task);
                continue;
            }
            let next = lock(&self.net.state).next_at();
            let Some(time) = next.filter(|time| *time <= latest) else {
                self.net.clock.set(latest.min(if while_tasks { self.net.now() } else { latest }));
                return Ok(());
            };
            let Some((_, event)) = lock(&self.net.state).next() else { continue };
            self.net.clock.set(time);
            self.begin_step();
            self.happen(event);
            self.tasks.add_spawned();
            self.note_jump();
        }
        Ok(())
    }

    /// Returns the task that is polled next, if one is before the next event.
    fn next_task(&mut self) -> Option<usize> {
        let now = self.net.now();
        let stopped = &self.stopped;
        let ready = self.tasks.ready(|task| stopped[task.process].0 <= now);
        let mut state = lock(&self.net.state);
        let event_is_due = state.next_at().is_some_and(|time| time <= now);
        if ready.is_empty() {
            let spurious = state.weather.spurious;
            if event_is_due || !(spurious > 0 && state.random.chance(spurious)) {
                return None;
            }
            let waiting = self.tasks.waiting(|task| stopped[task.process].0 <= now);
            if waiting.is_empty() {
                return None;
            }
            state.happens("a poll without a wake-up");
            return Some(waiting[state.random.index(waiting.len())]);
        }
        if event_is_due && state.random.chance(30) {
            return None;
        }
        let at = if state.weather.in_order { 0 } else { state.random.index(ready.len()) };
        ready.get(at).copied()
    }

    fn poll(&mut self, task: usize) {
        self.begin_step();
        let polled = catch_unwind(AssertUnwindSafe(|| self.tasks.poll(task)));
        let job = match polled {
            Ok(job) => job,
            Err(panic) => {
                if !panic.is::<Planned>() {
                    let said = panic.downcast_ref::<String>().cloned();
                    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
                    self.net.wrong(format!("a panic: {}", said.unwrap_or_default()));
                }
                self.tasks.take(task)
            }
        };
        self.drop_job(job);
        self.tasks.add_spawned();
        self.note_jump();
        let mut state = lock(&self.net.state);
        let most = state.weather.poll_cost;
        if most > 0 {
            let cost = state.random.up_to(most) * 1_000;
            self.net.clock.set(self.net.now() + cost);
        }
    }

    fn begin_step(&self) {
        let judges = &mut lock(&self.net.state).judges;
        (judges.polled_at, judges.step_began) = (self.net.clock.shown().1, self.net.now());
    }

    /// A clock that goes on in the middle of something is one of processes that were stopped there.
    fn note_jump(&self) {
        let now = self.net.now();
        let mut state = lock(&self.net.state);
        let before = std::mem::replace(&mut state.judges.step_began, u64::MAX);
        if now > before {
            state.happens("the clock jumped in the middle");
            for process in 0..self.stopped.len() {
                state.judges.stops.push((process, before, now));
            }
        }
    }

    /// Drops a task that has ended, or is to.
    fn drop_job(&mut self, job: Option<super::executor::Job>) {
        let Some(job) = job else { return };
        lock(&self.net.state).judges.is_cutting = true;
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(job)));
        lock(&self.net.state).judges.is_cutting = false;
        if dropped.is_err() {
            self.net.wrong("a panic in a drop".to_owned());
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.net.now();
        if let Some(process) = event.of_driver()
            && lock(&self.net.state).judges.forked.contains(&process)
        {
            return; // a child has no driver
        }
        if let Some(process) = event.of_driver()
            && self.stopped[process].1 > now
        {
            return lock(&self.net.state).at(self.stopped[process].1, event);
        }
        let net = Arc::clone(&self.net);
        lock(&net.state).note(|| format!("{:>9.3} {event:?}", to_ms(now)));
        match event {
            Event::Timer { timer } => {
                let waker = lock(&net.state).timers.get(&timer).cloned();
                waker.into_iter().for_each(Waker::wake);
            }
            Event::Drive { process, due } => {
                let is_latest = lock(&net.state).links[process].drive_at == due;
                if is_latest {
                    net.drive(process);
                }
            }
            Event::Send { process } => {
                let engine = lock(&net.state).links[process].engine.upgrade();
                if let Some(engine) = engine {
                    net.send(process, &engine);
                }
            }
            Event::Undo { process } => net.undo(process),
            Event::Arrive { packet, answered } => net.arrive(packet, answered),
            Event::ReleaseCompletion(packet, replies) => net.answer(&packet, replies),
            Event::TimeOut { process, id } => net.time_out(process, id),
            Event::Grant { process, epoch, key, token, offer } => {
                net.on_grant(process, epoch, (&key, token), offer);
            }
            Event::Hint { process, key } => {
                if let Some(engine) = self.engine(process, "a hint") {
                    engine.on_invalidation(&key);
                }
            }
            Event::Untold { process } => {
                if let Some(engine) = self.engine(process, "hints missed") {
                    engine.on_invalidations_missed();
                }
            }
            Event::Cut { process, back_in, moved } => {
                lock(&net.state).happens("a connection cut");
                net.cut(process, back_in, moved);
            }
            Event::Connect { process, moved } => net.connect(process, moved),
            Event::Down { wiped } => self.restart(wiped, now),
            Event::Replicate => lock(&net.state).server.replicate(),
            Event::Promote => {
                let mut state = lock(&net.state);
                state.happens("a promotion");
                let keys = Self::keys(&state.weather);
                state.taint(&keys);
                state.server.promote();
                let away = state.random.millis(200);
                state.goes_down(now, away, true);
            }
            Event::Up => lock(&net.state).comes_up(),
            Event::Force { key } => self.force(&key, now),
            Event::Stop { process, what, time } => self.stop(process, what, now, time),
            Event::Jump { time } => {
                let mut state = lock(&net.state);
                state.happens("a jump of the clock");
                let looks = 1 + state.random.up_to(6);
                net.clock.jump(looks, time);
            }
            Event::GiveUp { task } => {
                let process = self.tasks.get_mut(task).map(|task| task.process);
                match process.map(|process| self.stopped[process].0) {
                    Some(until) if until > now => lock(&net.state).at(until, Event::GiveUp { task }),
                    Some(_) => {
                        lock(&net.state).happens("a task dropped at a time");
                        let job = self.tasks.take(task);
                        self.drop_job(job);
                    }
                    None => {}
                }
            }
            Event::Shutdown { process } => self.shut_down(process),
            Event::Fork { process } => self.fork(process),
            Event::Heal => {
                let mut state = lock(&net.state);
                state.weather.heal();
                self.is_healed = true;
            }
        }
    }

    fn engine(&self, process: usize, happens: &'static str) -> Option<Arc<Engine>> {
        let mut state = lock(&self.net.state);
        state.happens(happens);
        state.links[process].engine.upgrade()
    }

    fn keys(weather: &Weather) -> BTreeSet<Name> {
        (0..weather.keys).map(|key| format!("dlock:key:{key}").into()).collect()
    }

    fn restart(&self, wiped: bool, now: u64) {
        let mut state = lock(&self.net.state);
        let away = state.random.millis(400);
        if wiped {
            state.happens("a restart without data");
            let keys = Self::keys(&state.weather);
            state.taint(&keys);
            state.server.wipe();
        } else {
            state.happens("a restart with data");
        }
        state.goes_down(now, away, wiped);
    }

    /// Somebody takes a lock from whoever holds it.
    fn force(&self, key: &Name, now: u64) {
        let mut hints = Vec::new();
        {
            let mut state = lock(&self.net.state);
            state.happens("a lock forced");
            state.taint(&BTreeSet::from([Name::clone(key)]));
            let Some(token) = state.links[0].latest else { return };
            state.force(key, token, now);
            if state.weather.tracking {
                hints.extend(state.links.iter().filter_map(|link| link.engine.upgrade()));
            }
        }
        for engine in hints {
            engine.on_invalidation(key);
        }
    }

    fn stop(&mut self, process: usize, what: Stopped, now: u64, time: u64) {
        if self.is_healed {
            return;
        }
        let (tasks, driver) = &mut self.stopped[process];
        if what != Stopped::Driver {
            *tasks = (*tasks).max(now + time);
        }
        if what != Stopped::Tasks {
            *driver = (*driver).max(now + time);
        }
        let mut state = lock(&self.net.state);
        state.happens(match what {
            Stopped::All => "a process stopped",
            Stopped::Tasks => "tasks stopped",
            Stopped::Driver => "a driver stopped",
        });
        state.judges.stops.push((process, now, now + time));
        // Something happens when it goes on.
        state.at(now + time, Event::Timer { timer: u64::MAX });
    }

    /// What goes on of a process is a child of it from now on. Its tasks are polled, which no driver has them be.
    fn fork(&mut self, process: usize) {
        let Some(manager) = self.managers.get(process).cloned() else { return };
        {
            let mut state = lock(&self.net.state);
            state.happens("a fork");
            state.judges.forked.insert(process);
            state.links[process].engine = Weak::new(); // nothing reaches it any more
        }
        manager.engine().fork.simulate_fork();
        for task in self.tasks.waiting(|task| task.process == process) {
            self.poll(task);
        }
    }

    fn shut_down(&mut self, process: usize) {
        let Some(manager) = self.managers.get(process).cloned() else { return };
        let (retry_state, polls) = {
            let mut state = lock(&self.net.state);
            state.happens("a shutdown");
            state.judges.shut.entry(process).or_insert(self.net.now());
            (
                state.random.millis(300),
                if state.random.chance(20) { Some(state.random.up_to(3)) } else { None },
            )
        };
        let net = Arc::clone(&self.net);
        let job = async move {
            let from = net.now();
            manager.shutdown(Duration::from_nanos(retry_state)).await;
            net.judge_time(process, "a shutdown", from, retry_state + TIMEOUT + LATEST);
        };
        let task = self.tasks.add(process, Box::pin(job));
        self.tasks.get_mut(task).expect("it was added").cut_after = polls;
    }

    pub(super) fn tell(&self, what: &str) -> String {
        let state = lock(&self.net.state);
        let story = state.story.as_ref().map(|story| story.join("\n")).unwrap_or_default();
        format!("{what}\n{:?}\n{story}", state.weather)
    }
}

impl Event {
    /// The process whose driver does it; a server does not mind whether a process is stopped.
    fn of_driver(&self) -> Option<usize> {
        match self {
            Self::Drive { process, .. }
            | Self::Send { process }
            | Self::Undo { process }
            | Self::TimeOut { process, .. }
            | Self::Grant { process, .. }
            | Self::Hint { process, .. }
            | Self::Untold { process }
            | Self::Cut { process, .. }
            | Self::Connect { process, .. } => Some(*process),
            Self::ReleaseCompletion(packet, _) => Some(packet.process),
            _ => None,
        }
    }
}

impl super::network::State {
    fn force(&mut self, key: &Name, token: Token, now: u64) {
        self.run(key, token, Command::ForceRelease, now);
    }
}

fn to_ms(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1_000.0
}

/// No world needs as many.
const MOST_STEPS: u64 = 300_000;
