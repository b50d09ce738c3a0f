//! The simulation of one seed: its processes, its events, and its time.
//!
//! Time does not advance while a task is polled, unless the fault profile says so. If no task can
//! run, time advances to the next event.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use super::calls::{Caller, PlannedPanic, longest};
use super::executor::Tasks;
use super::fault_profile::{FaultProfile, Random};
use super::network::{LATEST_ARRIVAL, MS, Net, Packet, TIMEOUT};
use crate::LockManager;
use crate::backend::BackendEvents as _;
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::renewal_throttle::RenewalThrottle;
use crate::key::Name;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Reply};
use crate::protocol::foreign_clients::Grant;
use crate::sync::lock;
use crate::token::{Token, TokenSource};

/// An event, in addition to the polls of tasks.
#[derive(Debug)]
pub(super) enum Event {
    Timer { timer: u64 },
    Drive { process: usize, due: u64 },
    Send { process: usize },
    CleanUp { process: usize },
    Arrive { packet: Packet, answered: bool },
    Reply(Packet, Vec<Reply>),
    TimeOut { process: usize, id: u64 },
    Grant { process: usize, epoch: u64, key: Name, token: Token, offer: Grant },
    Invalidation { process: usize, key: Name },
    InvalidationsMissed { process: usize },
    Disconnect { process: usize, back_in: u64, moved: bool },
    Connect { process: usize, moved: bool },
    Down { wiped: bool },
    Promote,
    Replicate,
    Up,
    ForceRelease { key: Name },
    Stop { process: usize, what: Stopped, time: u64 },
    Jump { time: u64 },
    DropTask { task: usize },
    Shutdown { process: usize },
    Fork { process: usize },
    EndFaults,
}

/// The part of a process that is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    All,
    Tasks,
    Driver,
}

/// A simulation.
pub(super) struct EngineSimulation {
    pub(super) net: Arc<Net>,
    pub(super) tasks: Tasks,
    pub(super) managers: Vec<LockManager>,
    /// Until when the tasks and the driver of each process are stopped.
    stopped: Vec<(u64, u64)>,
    faults_have_ended: bool,
}

impl EngineSimulation {
    pub(super) fn new(seed: u64, profile: FaultProfile, traced: bool) -> Self {
        let net = Net::new(seed, profile, traced);
        let mut simulation = Self {
            net,
            tasks: Tasks::default(),
            managers: Vec::new(),
            stopped: Vec::new(),
            faults_have_ended: false,
        };
        let profile = lock(&simulation.net.state).profile.clone();
        for process in 0..profile.processes {
            let number = u64::try_from(process).unwrap_or_default() + 1;
            let tokens = TokenSource::of_process(number << 32 | (seed & 0xffff));
            let rules = ProtocolConfig {
                grant_lease: Duration::from_millis(profile.grant_lease),
                handoff_budget: Duration::from_millis(profile.handoff_budget),
                response_timeout: Duration::from_nanos(TIMEOUT),
                yield_to_foreign: profile.yields_to_foreign,
                wakeup_jitter: Duration::from_millis(profile.wakeup_jitter),
                replica_acks: profile.replica_acks,
                tracking: profile.tracking,
                grants_are_proof: profile.missed_subscribers == 0 && profile.promotions == 0,
                ..ProtocolConfig::DEFAULT
            };
            let backend = simulation.net.join(tokens.process());
            let clock = Clock::Set(Arc::clone(&simulation.net.clock));
            let lease = Duration::from_millis(profile.lease);
            let mut engine = Engine::new(backend, clock, tokens, rules, lease);
            engine.throttle = RenewalThrottle::new(profile.renewal_limit);
            engine.rules = rules; // also those that no backend has together
            let engine = Arc::new(engine);
            lock(&simulation.net.state).links[process].engine = Arc::downgrade(&engine);
            simulation.managers.push(LockManager::over(engine));
            simulation.stopped.push((0, 0));
        }
        simulation
    }

    /// Creates the simulation of a seed.
    pub(super) fn of_seed(seed: u64, traced: bool) -> Self {
        let mut random = Random::of_seed(seed);
        let mut forks = Random::of_seed(seed ^ 0xf0cc);
        let profile = FaultProfile::of(&mut random).with_forks(&mut forks);
        let mut simulation = Self::new(seed, profile.clone(), traced);
        for process in 0..profile.processes {
            for _ in 0..profile.tasks {
                let task = simulation.tasks.add(process, Box::pin(simulation.caller(process).task()));
                if random.chance(profile.cancelled) {
                    let polls = random.up_to(12);
                    simulation.tasks.get_mut(task).expect("it was added").drop_after_polls = Some(polls);
                }
                if random.chance(profile.gives_up) {
                    let time = random.millis(profile.fault_millis);
                    lock(&simulation.net.state).schedule(time, Event::DropTask { task });
                }
            }
        }
        simulation.schedule_faults(&profile, &mut random);
        for _ in 0..profile.forks {
            let process = forks.index(profile.processes);
            lock(&simulation.net.state).schedule(forks.millis(profile.fault_millis), Event::Fork { process });
        }
        simulation
    }

    pub(super) fn caller(&self, process: usize) -> Caller {
        Caller { net: Arc::clone(&self.net), process, manager: self.managers[process].clone() }
    }

    fn schedule_faults(&self, profile: &FaultProfile, random: &mut Random) {
        let mut state = lock(&self.net.state);
        let key =
            |random: &mut Random| -> Name { format!("dlock:key:{}", random.up_to(profile.keys - 1)).into() };
        for _ in 0..profile.invalidations {
            let (time, process, key) =
                (random.millis(profile.fault_millis), random.index(profile.processes), key(random));
            let is_missed = random.chance(20);
            state.schedule(
                time,
                if is_missed {
                    Event::InvalidationsMissed { process }
                } else {
                    Event::Invalidation { process, key }
                },
            );
        }
        for _ in 0..profile.disconnects {
            let (time, process) = (random.millis(profile.fault_millis), random.index(profile.processes));
            let back_in = random.millis(profile.lease);
            state.schedule(time, Event::Disconnect { process, back_in, moved: false });
        }
        for _ in 0..profile.restarts {
            state.schedule(random.millis(profile.fault_millis), Event::Down { wiped: false });
        }
        for _ in 0..profile.wipes {
            state.schedule(random.millis(profile.fault_millis), Event::Down { wiped: true });
        }
        for _ in 0..profile.promotions {
            let time = random.millis(profile.fault_millis);
            state.schedule(time.saturating_sub(random.millis(300)), Event::Replicate);
            state.schedule(time, Event::Promote);
        }
        for _ in 0..profile.forced {
            let key = key(random);
            state.schedule(random.millis(profile.fault_millis), Event::ForceRelease { key });
        }
        for _ in 0..profile.freezes {
            let (at, process) = (random.millis(profile.fault_millis), random.index(profile.processes));
            let what = random.pick(&[Stopped::All, Stopped::All, Stopped::Tasks, Stopped::Driver]);
            let time = random.millis(3 * profile.lease);
            state.schedule(at, Event::Stop { process, what, time });
        }
        for _ in 0..profile.jumps {
            let (at, time) = (random.millis(profile.fault_millis), random.millis(2 * profile.lease));
            state.schedule(at, Event::Jump { time });
        }
        for _ in 0..profile.shutdowns {
            let process = random.index(profile.processes);
            state.schedule(random.millis(profile.fault_millis), Event::Shutdown { process });
        }
        state.schedule(profile.fault_millis * MS, Event::EndFaults);
    }

    /// Runs until all tasks have ended and nothing is left.
    ///
    /// # Errors
    ///
    /// Returns the first violation, with a trace if it was requested.
    pub(super) fn run(mut self) -> Result<Self, String> {
        let profile = lock(&self.net.state).profile.clone();
        let latest = profile.fault_millis * MS + longest(&profile);
        self.run_until(latest, true)?;
        if self.tasks.count() > 0 {
            return Err(self.report(&format!("J5: {} tasks still wait", self.tasks.count())));
        }
        self.check_end(&profile)?;
        Ok(self)
    }

    /// Checks that all state disappears after the tasks have ended.
    ///
    /// It disappears soon if nothing prevents that, and with its time to live at the latest.
    pub(super) fn check_end(&mut self, profile: &FaultProfile) -> Result<(), String> {
        self.run_until(self.net.now().max(profile.fault_millis * MS), false)?;
        let stopped = self.stopped.iter().map(|(tasks, driver)| *tasks.max(driver)).max().unwrap_or_default();
        // The longest time without a connection.
        let cut = if profile.disconnects > 0 { profile.lease } else { 0 };
        let mut over = self.net.now().max(stopped).max(profile.fault_millis * MS);
        loop {
            let soon = over + TIMEOUT + (cut + 3_500) * MS;
            self.run_until(soon, false)?;
            if self.net.now() <= soon {
                break;
            }
            over = self.net.now(); // a jump of the clock left no time to act
        }
        let excused = {
            let state = lock(&self.net.state);
            !state.invariants.leaking_processes.is_empty()
                || !state.invariants.forked.is_empty()
                || profile.min_hold > 0
        };
        let left = {
            let state = lock(&self.net.state);
            let mut left = state.server.tokens(self.net.now());
            left.retain(|(key, token)| !state.is_tainted(key, Some(*token)));
            left.retain(|left| !state.invariants.late.contains(left));
            left
        };
        if !left.is_empty() && !excused {
            return Err(self.report(&format!("J6: after the cleanup the server still has {left:?}")));
        }
        let lease = profile.lease + profile.uneven + 2_200; // an `extend` may have requested more
        let longest = (lease + profile.max_hold).max(profile.min_hold) * 11 / 10 + 200;
        self.run_until(self.net.now() + longest * MS, false)?;
        let left = lock(&self.net.state).server.tokens(self.net.now());
        if !left.is_empty() {
            return Err(self.report(&format!("J6: 1.1 leases later the server still has {left:?}")));
        }
        self.check_engines()
    }

    fn check_engines(&mut self) -> Result<(), String> {
        for (process, manager) in std::mem::take(&mut self.managers).into_iter().enumerate() {
            let engine = Arc::clone(manager.engine());
            drop(manager);
            if engine.is_forked() {
                continue; // its state is that of the fork
            }
            let guard_leaks = lock(&self.net.state).invariants.leaking_processes.contains(&process);
            let left = (
                engine.shards.count(),
                lock(&engine.wait_graph).is_empty(),
                engine.background_releases.count(),
            );
            if left != ((0, 0), true, 0) {
                let line = format!(
                    "J7: process {process}: (keys, deadlines), no waits, background releases: {left:?}"
                );
                return Err(self.report(&line));
            }
            if engine.throttle.has_deferred() {
                lock(&self.net.state).cover("a renewal deferred");
            }
            if engine.throttle.in_flight() > 0 {
                return Err(self.report(&format!("J7: process {process}: renewals stay in flight")));
            }
            let held = engine.holders.load(std::sync::atomic::Ordering::Relaxed);
            let others = Arc::strong_count(&engine) - 1;
            if !guard_leaks && (held, others) != (0, 0) {
                return Err(self.report(&format!(
                    "J7: process {process}: {held} holders, {others} references to the engine"
                )));
            }
        }
        let timers = lock(&self.net.state).timers.len();
        if timers > 0 {
            return Err(self.report(&format!("J7: {timers} timers are left")));
        }
        Ok(())
    }

    /// Runs until `latest`, or until all tasks have ended.
    pub(super) fn run_until(&mut self, latest: u64, while_tasks: bool) -> Result<(), String> {
        for step in 0.. {
            let wrong = lock(&self.net.state).invariants.first_violation.clone();
            if let Some(wrong) = wrong {
                return Err(self.report(&wrong));
            }
            if step > MAX_STEPS {
                return Err(self.report("the simulation does not end"));
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
            self.handle(event);
            self.tasks.add_spawned();
            self.record_jump();
        }
        Ok(())
    }

    /// Returns the task to poll next, or `None` if an event comes first.
    fn next_task(&mut self) -> Option<usize> {
        let now = self.net.now();
        let stopped = &self.stopped;
        let ready = self.tasks.ready(|task| stopped[task.process].0 <= now);
        let mut state = lock(&self.net.state);
        let event_is_due = state.next_at().is_some_and(|time| time <= now);
        if ready.is_empty() {
            let spurious = state.profile.spurious;
            if event_is_due || !(spurious > 0 && state.random.chance(spurious)) {
                return None;
            }
            let waiting = self.tasks.waiting(|task| stopped[task.process].0 <= now);
            if waiting.is_empty() {
                return None;
            }
            state.cover("a poll without a wake-up");
            return Some(waiting[state.random.index(waiting.len())]);
        }
        if event_is_due && state.random.chance(30) {
            return None;
        }
        let at = if state.profile.in_order { 0 } else { state.random.index(ready.len()) };
        ready.get(at).copied()
    }

    fn poll(&mut self, task: usize) {
        self.begin_step();
        let polled = catch_unwind(AssertUnwindSafe(|| self.tasks.poll(task)));
        let job = match polled {
            Ok(job) => job,
            Err(panic) => {
                if !panic.is::<PlannedPanic>() {
                    let message = panic.downcast_ref::<String>().cloned();
                    let message =
                        message.or_else(|| panic.downcast_ref::<&str>().map(|message| (*message).to_owned()));
                    self.net.violation(format!("a panic: {}", message.unwrap_or_default()));
                }
                self.tasks.take(task)
            }
        };
        self.drop_job(job);
        self.tasks.add_spawned();
        self.record_jump();
        let mut state = lock(&self.net.state);
        let most = state.profile.poll_cost;
        if most > 0 {
            let cost = state.random.up_to(most) * 1_000;
            self.net.clock.set(self.net.now() + cost);
        }
    }

    fn begin_step(&self) {
        let invariants = &mut lock(&self.net.state).invariants;
        (invariants.polled_at, invariants.step_began) = (self.net.clock.shown().1, self.net.now());
    }

    /// Counts a clock that jumped within a step as a stop of all processes.
    fn record_jump(&self) {
        let now = self.net.now();
        let mut state = lock(&self.net.state);
        let before = std::mem::replace(&mut state.invariants.step_began, u64::MAX);
        if now > before {
            state.cover("the clock jumped within a step");
            for process in 0..self.stopped.len() {
                state.invariants.stops.push((process, before, now));
            }
        }
    }

    /// Drops a task that has ended or is cancelled.
    fn drop_job(&mut self, job: Option<super::executor::Job>) {
        let Some(job) = job else { return };
        lock(&self.net.state).invariants.is_dropping = true;
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(job)));
        lock(&self.net.state).invariants.is_dropping = false;
        if dropped.is_err() {
            self.net.violation("a panic in a drop".to_owned());
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.net.now();
        if let Some(process) = event.of_driver()
            && lock(&self.net.state).invariants.forked.contains(&process)
        {
            return; // a child has no driver
        }
        if let Some(process) = event.of_driver()
            && self.stopped[process].1 > now
        {
            return lock(&self.net.state).schedule(self.stopped[process].1, event);
        }
        let net = Arc::clone(&self.net);
        lock(&net.state).trace_line(|| format!("{:>9.3} {event:?}", to_ms(now)));
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
                if lock(&net.state).links[process].engine.strong_count() > 0 {
                    net.send(process);
                }
            }
            Event::CleanUp { process } => net.clean_up(process),
            Event::Arrive { packet, answered } => net.arrive(packet, answered),
            Event::Reply(packet, replies) => net.answer(&packet, replies),
            Event::TimeOut { process, id } => net.time_out(process, id),
            Event::Grant { process, epoch, key, token, offer } => {
                net.on_grant(process, epoch, (&key, token), offer);
            }
            Event::Invalidation { process, key } => {
                lock(&net.state).cover("an invalidation");
                net.report(process, |engine, now, effects| {
                    engine.on_invalidation(Some(&key), now, effects);
                });
            }
            Event::InvalidationsMissed { process } => {
                lock(&net.state).cover("invalidations missed");
                net.report(process, |engine, now, effects| engine.on_invalidation(None, now, effects));
            }
            Event::Disconnect { process, back_in, moved } => {
                lock(&net.state).cover("a connection cut");
                net.disconnect(process, back_in, moved);
            }
            Event::Connect { process, moved } => net.connect(process, moved),
            Event::Down { wiped } => self.restart(wiped, now),
            Event::Replicate => lock(&net.state).server.replicate(),
            Event::Promote => {
                let mut state = lock(&net.state);
                state.cover("a promotion");
                let keys = Self::keys(&state.profile);
                state.taint(&keys);
                state.server.promote();
                let away = state.random.millis(200);
                state.stop_server(now, away, true);
            }
            Event::Up => lock(&net.state).start_server(),
            Event::ForceRelease { key } => self.force(&key, now),
            Event::Stop { process, what, time } => self.stop(process, what, now, time),
            Event::Jump { time } => {
                let mut state = lock(&net.state);
                state.cover("a jump of the clock");
                let reads = 1 + state.random.up_to(6);
                net.clock.jump(reads, time);
            }
            Event::DropTask { task } => {
                let process = self.tasks.get_mut(task).map(|task| task.process);
                match process.map(|process| self.stopped[process].0) {
                    Some(until) if until > now => lock(&net.state).schedule(until, Event::DropTask { task }),
                    Some(_) => {
                        lock(&net.state).cover("a task dropped at a given time");
                        let job = self.tasks.take(task);
                        self.drop_job(job);
                    }
                    None => {}
                }
            }
            Event::Shutdown { process } => self.shut_down(process),
            Event::Fork { process } => self.fork(process),
            Event::EndFaults => {
                let mut state = lock(&net.state);
                state.profile.end_faults();
                self.faults_have_ended = true;
            }
        }
    }

    fn keys(profile: &FaultProfile) -> BTreeSet<Name> {
        (0..profile.keys).map(|key| format!("dlock:key:{key}").into()).collect()
    }

    fn restart(&self, wiped: bool, now: u64) {
        let mut state = lock(&self.net.state);
        let away = state.random.millis(400);
        if wiped {
            state.cover("a restart without data");
            let keys = Self::keys(&state.profile);
            state.taint(&keys);
            state.server.wipe();
        } else {
            state.cover("a restart with data");
        }
        state.stop_server(now, away, wiped);
    }

    /// Releases a lock regardless of its holder.
    fn force(&self, key: &Name, now: u64) {
        let mut invalidations = Vec::new();
        {
            let mut state = lock(&self.net.state);
            state.cover("a forced release");
            state.taint(&BTreeSet::from([Name::clone(key)]));
            let Some(token) = state.links[0].latest else { return };
            state.force(key, token, now);
            if state.profile.tracking {
                invalidations.extend(0..state.links.len());
            }
        }
        for process in invalidations {
            self.net.report(process, |engine, now, effects| {
                engine.on_invalidation(Some(key), now, effects);
            });
        }
    }

    fn stop(&mut self, process: usize, what: Stopped, now: u64, time: u64) {
        if self.faults_have_ended {
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
        state.cover(match what {
            Stopped::All => "a process stopped",
            Stopped::Tasks => "tasks stopped",
            Stopped::Driver => "a driver stopped",
        });
        state.invariants.stops.push((process, now, now + time));
        // An event at the time when the process continues.
        state.schedule(now + time, Event::Timer { timer: u64::MAX });
    }

    /// Continues a process as a forked child. Polls its tasks, since the child has no driver.
    fn fork(&mut self, process: usize) {
        let Some(manager) = self.managers.get(process).cloned() else { return };
        {
            let mut state = lock(&self.net.state);
            state.cover("a fork");
            state.invariants.forked.insert(process);
            state.links[process].engine = Weak::new(); // events do not reach a child
        }
        manager.engine().fork.simulate_fork();
        for task in self.tasks.waiting(|task| task.process == process) {
            self.poll(task);
        }
    }

    fn shut_down(&mut self, process: usize) {
        let Some(manager) = self.managers.get(process).cloned() else { return };
        let (grace, polls) = {
            let mut state = lock(&self.net.state);
            state.cover("a shutdown");
            state.invariants.shutdown_times.entry(process).or_insert(self.net.now());
            (
                state.random.millis(300),
                if state.random.chance(20) { Some(state.random.up_to(3)) } else { None },
            )
        };
        let net = Arc::clone(&self.net);
        let job = async move {
            let from = net.now();
            manager.shutdown(Duration::from_nanos(grace)).await;
            net.check_time(process, "a shutdown", from, grace + TIMEOUT + LATEST_ARRIVAL);
        };
        let task = self.tasks.add(process, Box::pin(job));
        self.tasks.get_mut(task).expect("it was added").drop_after_polls = polls;
    }

    pub(super) fn report(&self, what: &str) -> String {
        let state = lock(&self.net.state);
        let trace = state.trace.as_ref().map(|trace| trace.join("\n")).unwrap_or_default();
        format!("{what}\n{:?}\n{trace}", state.profile)
    }
}

impl Event {
    /// Returns the process whose driver handles the event, or `None` for events of the server.
    fn of_driver(&self) -> Option<usize> {
        match self {
            Self::Drive { process, .. }
            | Self::Send { process }
            | Self::CleanUp { process }
            | Self::TimeOut { process, .. }
            | Self::Grant { process, .. }
            | Self::Invalidation { process, .. }
            | Self::InvalidationsMissed { process }
            | Self::Disconnect { process, .. }
            | Self::Connect { process, .. } => Some(*process),
            Self::Reply(packet, _) => Some(packet.process),
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

/// More than any simulation needs.
const MAX_STEPS: u64 = 300_000;
