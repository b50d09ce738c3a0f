//! A process that works under locks during faults, and records what it observes: a worker of
//! `tests/faults`.
//!
//! ```text
//!  in:   base            counts the resources that can leak, before the faults: counted
//!        end             ends the work, counts again: ended
//!        abort           panics in a process that aborts on panics
//!  out:  ready NANOS -   EVENT NANOS -
//! ```
//!
//! SIGTERM drains the process, and the end of its input ends it. The arguments are the URL, the
//! history file, the port of the resource, the name of the scene, the seed, and `current` or
//! `multi` for the runtime.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::future::{Future, poll_fn};
use std::io::{BufRead, Write};
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_runtime::{Error, Lock, LockGuard, LockManager};
use dlock_tests::Moment;
use dlock_tests::dice::Dice;
use dlock_tests::guarded::Guarded;
use dlock_tests::history::{Answered, Phase, What, Writer};
use dlock_tests::stalls::Stalls;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing_subscriber::fmt::MakeWriter;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, file, resource, scene, seed, flavor] = &arguments[..] else {
        panic!("the arguments are URL FILE PORT SCENE SEED RUNTIME")
    };
    let history = Arc::new(Writer::open(Path::new(file)).expect("the history can be written"));
    let recorder = Arc::clone(&history);
    std::panic::set_hook(Box::new(move |panic| {
        recorder.note(0, "", What::Said { text: format!("panic: {panic}") });
        if panic.payload().downcast_ref::<&str>() == Some(&ABORT) {
            std::process::abort();
        }
    }));
    let log = Log(Arc::clone(&history));
    tracing_subscriber::fmt().with_writer(log).with_ansi(false).init();

    let stalls = Stalls::noted_in(Arc::clone(&history));

    let port = resource.parse().expect("a port is a number");
    let seed = seed.parse().expect("a seed is a number");
    let mut builder = match flavor.as_str() {
        "current" => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let resource = Guarded::connect(port, scene).await.expect("the resource takes connections");
        let manager = connect(url).await;
        stalls.watch_threads();
        let counter = AtomicU64::new(0);
        let (stop, base) = (AtomicBool::new(false), Mutex::default());
        let worker = Worker { manager, history, resource, calls: counter, stop, base };
        Arc::new(worker).serve(seed).await;
    });
    // Dropping the runtime would wait for blocked threads.
    runtime.shutdown_background();
}

/// Connects with up to 10 s of retries, because many processes share few cores.
async fn connect(url: &str) -> LockManager {
    let began = Moment::now();
    loop {
        match LockManager::connect(url).await {
            Ok(manager) => return manager,
            Err(error) if error.is_unavailable() && began.elapsed() < CONNECTED => {}
            Err(error) => panic!("the server takes no managers: {error}"),
        }
    }
}

struct Worker {
    manager: LockManager,
    history: Arc<Writer>,
    resource: Guarded,
    calls: AtomicU64,
    stop: AtomicBool,
    base: Mutex<BTreeMap<String, u64>>,
}

impl Worker {
    async fn serve(self: Arc<Self>, seed: u64) {
        let mut terminated = signal(SignalKind::terminate()).expect("signals can be listened for");
        let (lines, mut commands) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let mut tasks = JoinSet::new();
        for (task, (key, longest)) in (1..).zip(TASKS) {
            let dice = Dice::new(seed.wrapping_mul(31).wrapping_add(u64::from(task)));
            tasks.spawn(Arc::clone(&self).work(task, key, *longest, dice));
        }
        say("ready");
        loop {
            tokio::select! {
                command = commands.recv() => match command.as_deref() {
                    None => return,
                    Some("base") => {
                        let counts = count_when_steady().await;
                        *self.base.lock().unwrap_or_else(PoisonError::into_inner) = counts.clone();
                        self.history.note(0, "", What::Resources { phase: Phase::Base, counts });
                        say("counted");
                    }
                    Some("abort") => {
                        // The process makes no progress from here on, although its end takes the
                        // system a while.
                        self.history.note(0, "", What::Stopped);
                        std::panic::panic_any(ABORT)
                    }
                    Some("end") => {
                        self.stop.store(true, Ordering::SeqCst);
                        while tasks.join_next().await.is_some() {}
                        self.settle().await;
                        say("ended");
                    }
                    Some(other) => panic!("no such command: {other}"),
                },
                _ = terminated.recv() => {
                    self.stop.store(true, Ordering::SeqCst);
                    self.manager.shutdown(DRAIN).await;
                    while tasks.join_next().await.is_some() {}
                    return;
                }
            }
        }
    }

    /// Acquires one lock repeatedly.
    async fn work(self: Arc<Self>, task: u32, key: &'static str, longest: u64, mut dice: Dice) {
        while !self.stop.load(Ordering::SeqCst) {
            let wait = [0, 150, 2_000, 2_000][usize::try_from(dice.below(4)).unwrap_or_default()];
            let hold = dice.millis(1, longest);
            let lock = self.manager.lock(key);
            let lock = if wait == 0 { lock } else { lock.wait(Duration::from_millis(wait)) };
            let limit = wait.max(RESPONSE);
            let turn = Turn {
                worker: &self,
                task,
                key,
                call: self.calls.fetch_add(1, Ordering::SeqCst),
                hold,
                polls: AtomicU64::new(0),
                // If the hold ends before the first check, its deadline was later than the start of
                // the call.
                state: Mutex::new(State { deadline: Moment::now(), ..State::default() }),
            };
            turn.note(What::Try { call: turn.call, limit });
            if dice.percent(70) {
                turn.run(lock).await;
            } else {
                turn.acquire(lock).await;
            }
            let state = turn.state();
            let pause = if state.entered { dice.millis(0, 10) } else { dice.millis(5, 30) };
            tokio::time::sleep(pause).await;
            // Another process probably holds the lock already, so this write is stale.
            if let Some(token) = state.token.filter(|_| dice.percent(50)) {
                turn.write(token).await;
            }
        }
    }

    /// Waits up to 3 s until no count exceeds its initial value, and records the counts.
    async fn settle(&self) {
        let base = self.base.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let began = Moment::now();
        let mut counts = count();
        while began.elapsed() < SETTLED
            && counts.iter().any(|(what, count)| base.get(what).is_some_and(|base| count > base))
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
            counts = count();
        }
        self.history.note(0, "", What::Resources { phase: Phase::End, counts });
    }
}

/// Returns the highest counts, once none has risen for 500 ms.
///
/// On a busy machine, a process ends calls long before it is connected to every server of a quorum.
async fn count_when_steady() -> BTreeMap<String, u64> {
    let (began, mut grew) = (Moment::now(), Moment::now());
    let mut most = count();
    while grew.elapsed() < STEADY && began.elapsed() < SETTLED {
        tokio::time::sleep(Duration::from_millis(20)).await;
        for (what, count) in count() {
            let known = most.entry(what).or_default();
            if count > *known {
                (*known, grew) = (count, Moment::now());
            }
        }
    }
    most
}

/// Counts the resources of this process that can leak.
fn count() -> BTreeMap<String, u64> {
    let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, |entries| entries.count() as u64);
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks() as u64;
    let counts = [
        ("descriptors", entries("/proc/self/fd")),
        ("threads", entries("/proc/self/task")),
        ("tasks", tasks),
    ];
    counts.map(|(what, count)| (what.to_owned(), count)).into()
}

/// One call and its hold.
struct Turn<'a> {
    worker: &'a Worker,
    task: u32,
    key: &'static str,
    call: u64,
    hold: Duration,
    /// The number of times that the library has polled the body.
    polls: AtomicU64,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    entered: bool,
    exited: bool,
    token: Option<u64>,
    /// The deadline of the hold at the last check.
    deadline: Moment,
}

impl Turn<'_> {
    /// Runs a body, which the library stops when the lock is lost.
    async fn run(&self, lock: Lock) {
        let outcome = lock
            .run(async |guard| {
                let mut body = pin!(self.body(guard, false));
                poll_fn(|cx| {
                    self.polls.fetch_add(1, Ordering::Relaxed);
                    body.as_mut().poll(cx)
                })
                .await;
            })
            .await;
        let state = self.state();
        match outcome {
            Err(error) if !state.entered => self.refused(&error),
            Err(error) if !state.exited => self.lost(&error),
            _ => {}
        }
    }

    /// Holds a guard, and checks whether the lock is still held.
    async fn acquire(&self, lock: Lock) {
        match lock.acquire().await {
            Ok(guard) => {
                tokio::select! {
                    biased;
                    cause = guard.lost() => self.lost(&cause),
                    () = self.body(&guard, true) => {}
                }
                if self.state().exited {
                    // The later events of the history show a failed release.
                    let _ = guard.release().await;
                }
            }
            Err(error) => self.refused(&error),
        }
    }

    async fn body(&self, guard: &LockGuard, looks: bool) {
        let (enter, deadline) = self.look(guard);
        self.change(|state| (state.entered, state.deadline) = (true, deadline));
        let (call, mut seen) = (self.call, self.polls.load(Ordering::Relaxed));
        self.note_at(enter, What::Outcome { call, answer: Answered::Granted, text: String::new() });
        self.note_at(enter, What::Enter { call, deadline });
        // The resource learns of the new holder before it is used.
        if let Ok(token) = guard.fencing_token().await {
            let token = token.get();
            self.change(|state| state.token = Some(token));
            self.note(What::Token { call, token });
            self.write(token).await;
        }
        loop {
            if looks && let Err(error) = guard.check() {
                self.lost(&error);
                return;
            }
            let (at, deadline) = self.look(guard);
            self.change(|state| state.deadline = deadline);
            // Steps without an await are in the same poll, for which the library has checked the
            // clock once.
            let polls = self.polls.load(Ordering::Relaxed);
            if looks || polls > seen {
                seen = polls;
                self.note_at(at, What::Poll { call, deadline });
            }
            if at.since(enter) >= self.hold || self.worker.stop.load(Ordering::SeqCst) {
                break;
            }
            tokio::time::sleep(TICK.min(self.hold)).await;
        }
        if let Some(token) = self.state().token {
            self.write(token).await;
        }
        self.change(|state| state.exited = true);
        self.note(What::Exit { call });
    }

    /// Returns the current time and the deadline of the hold.
    fn look(&self, guard: &LockGuard) -> (Moment, Moment) {
        let first = Moment::now();
        let mut before = first;
        loop {
            let remaining = guard.remaining();
            let after = Moment::now();
            if remaining.is_zero() {
                // The hold ended before or during this check, so the last known deadline applies.
                return (first, self.state().deadline);
            }
            // Otherwise, this thread was delayed between the two readings, and their sum is
            // meaningless.
            if after.since(before) < Duration::from_millis(1) {
                return (first, before + remaining);
            }
            before = after;
        }
    }

    async fn write(&self, token: u64) {
        // A resource that does not reply is not under test.
        let Ok(written) = self.worker.resource.write(self.key, token).await else { return };
        let (call, turn, accepted, highest) = (self.call, written.turn, written.accepted, written.highest);
        self.note(What::Write { call, token, turn, accepted, highest });
    }

    fn refused(&self, error: &Error) {
        let (call, answer) = (self.call, Answered::of(error));
        self.note(What::Outcome { call, answer, text: format!("{error} / {error:?}") });
    }

    /// Records a loss. If the body has not begun, it is the result of the call.
    fn lost<C: Display + Debug>(&self, cause: &C) {
        let (call, text) = (self.call, format!("{cause} / {cause:?}"));
        self.note(if self.state().entered {
            What::Lost { call, cause: text }
        } else {
            What::Outcome { call, answer: Answered::Lost, text }
        });
    }

    fn note(&self, what: What) {
        self.note_at(Moment::now(), what);
    }

    fn note_at(&self, at: Moment, what: What) {
        self.worker.history.note_at(at, self.task, self.key, what);
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Writes the log of the library to the history.
struct Log(Arc<Writer>);

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(&self.0)
    }
}

struct Line<'a>(&'a Writer);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes).trim_end().to_owned();
        self.0.note(0, "", What::Said { text });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn say(event: &str) {
    let mut out = std::io::stdout().lock();
    // When the test has ended, nothing reads the output, and this process ends, too.
    let _ = writeln!(out, "{event} {} -", Moment::now().nanos()).and_then(|()| out.flush());
}

/// The locks of all processes, and the maximum hold time of each in milliseconds.
///
/// One lock changes hands often, and the other is renewed.
const TASKS: &[(&str, u64)] = &[("often", 40), ("long", 700)];
/// The limit of a call that does not wait: the response timeout of the URLs, in milliseconds.
const RESPONSE: u64 = 200;
const CONNECTED: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(10);
/// How long bodies may continue after a SIGTERM.
const DRAIN: Duration = Duration::from_millis(300);
/// Connections are established one after the other, at most this far apart unless a server is down.
const STEADY: Duration = Duration::from_millis(500);
/// Background work ends after about a second and a response timeout.
const SETTLED: Duration = Duration::from_secs(3);
/// The panic payload that makes the process abort.
const ABORT: &str = "a panic that aborts";
