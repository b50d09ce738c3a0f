//! A process that runs lock commands of `dlock_tests::process`, which lists them.
//!
//! The argument is the URL. Commands run concurrently, so that waiting for one key does not delay
//! others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use dlock_runtime::scheduled::{CatchUp, CrashedRun, Jobs, Schedule, Tick};
use dlock_runtime::{Error, Lock, LockGuard, LockManager, Term};
use dlock_tests::Moment;
use dlock_tests::worker::{fail, millis, obey_commands, say, say_at};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let url = std::env::args().nth(1).expect("the first argument is the URL");
    let manager = LockManager::connect(&url).await.expect("the server takes managers");
    let mut terminated = signal(SignalKind::terminate()).expect("a handler can be installed");
    let (held, bodies) = (Mutex::default(), Mutex::default());
    let worker = Arc::new(Worker { manager, held, bodies, leads: watch::Sender::new(0) });

    let commands = obey_commands(|line| {
        let worker = Arc::clone(&worker);
        async move { worker.obey(&line).await }
    });
    tokio::select! {
        () = commands => {}
        _ = terminated.recv() => {
            worker.manager.shutdown(GRACE).await;
            // Each of them ends with the shutdown, and reports that.
            let _ = worker.leads.subscribe().wait_for(|leads| *leads == 0).await;
            say("shutdown", "-", "");
        }
    }
}

struct Worker {
    manager: LockManager,
    held: Mutex<BTreeMap<String, LockGuard>>,
    bodies: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// The number of `lead` commands that have not ended.
    leads: watch::Sender<usize>,
}

/// Counts a `lead` command until it ends, also by a panic.
struct RunningLead<'a>(&'a watch::Sender<usize>);

impl<'a> RunningLead<'a> {
    fn start(leads: &'a watch::Sender<usize>) -> Self {
        leads.send_modify(|leads| *leads += 1);
        Self(leads)
    }
}

impl Drop for RunningLead<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|leads| *leads -= 1);
    }
}

impl Worker {
    async fn obey(&self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["acquire", key, lease, wait] => self.acquire(key, millis(lease), millis(wait)).await,
            ["run", key, lease, wait] => self.run(key, millis(lease), millis(wait)).await,
            ["finish", key] => self.body(key).notify_one(),
            ["release", key] => match self.take(key) {
                Some(guard) => tell("released", key, guard.release().await.map(|()| String::new())),
                None => say("failed", key, "NotHeld"),
            },
            ["token", key] => {
                let token =
                    async |guard: &LockGuard| guard.fencing_token().await.map(|token| token.to_string());
                self.with_guard("token", key, token).await;
            }
            ["remaining", key] => {
                let remaining = async |guard: &LockGuard| Ok(guard.remaining().as_millis().to_string());
                self.with_guard("remaining", key, remaining).await;
            }
            ["check", key] => {
                let check = async |guard: &LockGuard| guard.check().map(|()| String::new());
                self.with_guard("held", key, check).await;
            }
            ["wall", key] => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                say("wall", key, &now.unwrap_or_default().as_secs().to_string());
            }
            ["lead", name, lease] => self.lead(name, millis(lease)).await,
            ["resign", name] => {
                tell("resigned", name, self.manager.leader(name).resign().await.map(|()| String::new()));
            }
            ["timer", name, jobs, ticks] => {
                self.timer(name, jobs.parse().expect("a number"), ticks.parse().expect("a number")).await;
            }
            ["runner", name, lease, on_crash] => self.runner(name, millis(lease), on_crash).await,
            ["shutdown", limit] => {
                self.manager.shutdown(millis(limit)).await;
                say("shutdown", "-", "");
            }
            _ => say("failed", "-", &format!("no such command: {line}")),
        }
    }

    fn lock(&self, key: &str, lease: Duration, wait: Duration) -> Lock {
        let lock = self.manager.lock(key).lease(lease);
        if wait.is_zero() { lock } else { lock.wait(wait) }
    }

    async fn acquire(&self, key: &str, lease: Duration, wait: Duration) {
        match self.lock(key, lease, wait).acquire().await {
            Ok(guard) => {
                // The timestamp is taken first, because tests measure the hand-off. The event is
                // sent last, because the next command needs the map.
                let at = Moment::now();
                locked(&self.held).insert(key.to_owned(), guard);
                say_at(at, "acquired", key, "");
            }
            Err(error) => fail(key, &error, ""),
        }
    }

    /// Runs a body that records the time of every poll.
    ///
    /// The details of a failure end with the time of the last poll, in nanoseconds.
    async fn run(&self, key: &str, lease: Duration, wait: Duration) {
        let end = self.body(key);
        let last_poll = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&last_poll);
        let body = async move |_guard: &LockGuard| {
            let note = || noted.store(Moment::now().nanos(), Ordering::SeqCst);
            // Recorded first: the test may freeze this process during this poll, which began in
            // time.
            note();
            say("entered", key, "");
            loop {
                tokio::select! {
                    () = end.notified() => return,
                    () = tokio::time::sleep(TICK) => note(),
                }
            }
        };
        match self.lock(key, lease, wait).run(body).await {
            Ok(()) => say("left", key, ""),
            Err(error) => fail(key, &error, &format!(" last_poll={}", last_poll.load(Ordering::SeqCst))),
        }
    }

    /// Leads until the manager is shut down, with a body that records the time of every poll.
    async fn lead(&self, name: &str, lease: Duration) {
        let body = async |term: Term| {
            // Recorded first: the test may freeze this process during this poll.
            let mut last_poll = LastPoll::of("deposed", name);
            say("leading", name, &term.number().to_string());
            last_poll.poll_forever().await;
        };
        let _lead = RunningLead::start(&self.leads);
        let ended = self.manager.leader(name).lease(lease).lead(body).await;
        tell("left", name, ended.map(|()| String::new()));
    }

    /// Calls a job with a body of 1 ms at each second of this process's wall clock, and so often
    /// tries to lock a key of the same name for 1 ms.
    async fn timer(&self, name: &str, jobs: u64, ticks: u64) {
        for _ in 0..ticks {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            tokio::time::sleep(Duration::from_millis(1_000 - u64::from(now.subsec_millis()))).await;
            let at_once = (0..jobs).map(|job| self.call_of_timer(name, job));
            futures_util::future::join_all(at_once).await;
        }
        say("stopped", name, "");
    }

    /// Calls one job, and tries to acquire a lock, both with a body of 1 ms.
    async fn call_of_timer(&self, name: &str, job: u64) {
        let (own, schedule) = (format!("{name}-{job}"), Schedule::every(Duration::from_secs(1)));
        let body = async |tick: Tick| {
            say("started", name, &format!("{job} {}", tick.slot()));
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok::<_, Error>(())
        };
        if let Err(error) = self.manager.job(&own).run(&schedule.expect("a valid period"), body).await {
            fail(name, &error, "");
        }
        if let Ok(Some(_guard)) = self.manager.lock(&own).try_acquire().await {
            say("locked", name, "");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Runs a job every 60 s, and at the slot of this minute at once, with a body that never ends
    /// and records the time of every poll.
    async fn runner(&self, name: &str, lease: Duration, on_crash: &str) {
        let on_crash = if on_crash == "rerun" { CrashedRun::Rerun } else { CrashedRun::Skip };
        let schedule = Schedule::every(Duration::from_secs(60)).expect("a valid period");
        let schedule = schedule.lease(lease).on_crash(on_crash).catch_up(CatchUp::Latest);
        let own = name.to_owned();
        let runner = Jobs::new(self.manager.clone()).add(name, schedule.clone(), move |tick| {
            let name = own.clone();
            async move {
                let mut last_poll = LastPoll::of("dropped", &name);
                say("started", &name, &format!("{} {}", tick.slot(), tick.attempt()));
                last_poll.poll_forever().await;
                Ok::<_, Error>(())
            }
        });
        // The first call begins the current tick, as a timer that fires late does.
        let body = async |tick: Tick| {
            let mut last_poll = LastPoll::of("dropped", name);
            say("started", name, &format!("{} {}", tick.slot(), tick.attempt()));
            last_poll.poll_forever().await;
            Ok::<_, Error>(())
        };
        let job = self.manager.job(name);
        let (ran, ended) = tokio::join!(job.run(&schedule, body), runner.run_until(std::future::pending()));
        if let Err(error) = ran.map(drop).and(ended) {
            fail(name, &error, "");
        }
    }

    fn body(&self, key: &str) -> Arc<Notify> {
        Arc::clone(locked(&self.bodies).entry(key.to_owned()).or_default())
    }

    fn take(&self, key: &str) -> Option<LockGuard> {
        locked(&self.held).remove(key)
    }

    async fn with_guard(
        &self,
        event: &str,
        key: &str,
        act: impl AsyncFnOnce(&LockGuard) -> Result<String, Error>,
    ) {
        match self.take(key) {
            Some(guard) => {
                let outcome = act(&guard).await;
                // The event is sent last, because the next command needs the map.
                locked(&self.held).insert(key.to_owned(), guard);
                tell(event, key, outcome);
            }
            None => say("failed", key, "NotHeld"),
        }
    }
}

/// Reports when a body was last polled, once the body is dropped.
struct LastPoll<'a> {
    event: &'static str,
    name: &'a str,
    at: Moment,
}

impl<'a> LastPoll<'a> {
    fn of(event: &'static str, name: &'a str) -> Self {
        Self { event, name, at: Moment::now() }
    }

    async fn poll_forever(&mut self) {
        loop {
            tokio::time::sleep(TICK).await;
            self.at = Moment::now();
        }
    }
}

impl Drop for LastPoll<'_> {
    fn drop(&mut self) {
        say(self.event, self.name, &self.at.nanos().to_string());
    }
}

fn tell(event: &str, key: &str, outcome: Result<String, Error>) {
    match outcome {
        Ok(detail) => say(event, key, &detail),
        Err(error) => fail(key, &error, ""),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a shutdown after SIGTERM waits for bodies.
const GRACE: Duration = Duration::from_secs(5);

const TICK: Duration = Duration::from_millis(5);
