//! A real Redisson in a Java process, driven by text lines, which can be frozen and killed.
//!
//! The program is in `interop/java`. Each input line is a command, and each thread runs its
//! commands in order. Each output line is an event, whose time is that of its arrival:
//!
//! ```text
//!  in:   CLIENT/THREAD COMMAND
//!        connect WATCHDOG_MS single|sentinel|cluster MASTER|- ADDRESS,ADDRESS       connected
//!        lock KEY LEASE_MS              0: until unlock, by the watchdog            acquired
//!        trylock KEY WAIT_MS LEASE_MS                                               acquired | refused
//!        fence KEY                      acquires an RFencedLock, by the watchdog    token N
//!        write KEY                      acquires the write lock of RReadWriteLock   acquired
//!        unlock KEY                                                                 released
//!        state KEY                                                                  state LOCKED OURS TTL_MS
//!        count KEY COUNTER MS           reads and writes a counter under the lock   counted TIMES
//!        close                                                                      closed
//!  out:  EVENT CLIENT/THREAD [DETAIL]   or `failed`, with Java's exception
//! ```
//!
//! Java takes a second to start. Therefore the clients of one test binary share one process, except
//! those that are [alone](Redisson::alone) to be killed. If there is no Java, a test prints that
//! and passes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::child::OwnChild;
use crate::clock::{Moment, within};
use crate::maven;
use crate::process::WorkerEvent;

/// A connected Redisson, which a server treats like a client of another process.
#[derive(Debug)]
pub struct Redisson {
    java: Arc<Java>,
    name: String,
    events: mpsc::UnboundedReceiver<WorkerEvent>,
    unclaimed: Vec<WorkerEvent>,
}

impl Redisson {
    /// Connects a Redisson to the servers of `url`, with a watchdog that renews every third of
    /// `watchdog`.
    ///
    /// If that is not possible, prints the reason and returns `None`.
    pub async fn connect(url: &str, watchdog: Duration) -> Option<Self> {
        static SHARED: OnceLock<Result<Arc<Java>, String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Java::start().map(Arc::new)).clone();
        Self::of(shared, url, watchdog).await
    }

    /// Connects like [`connect`](Self::connect), in a Java process that no other test uses.
    pub async fn alone(url: &str, watchdog: Duration) -> Option<Self> {
        Self::of(Java::start().map(Arc::new), url, watchdog).await
    }

    async fn of(java: Result<Arc<Java>, String>, url: &str, watchdog: Duration) -> Option<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let java = java.map_err(|why| println!("SKIPPED: no Redisson: {why}")).ok()?;
        let name = format!("c{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let events = java.listen(&name);
        let mut redisson = Self { java, name, events, unclaimed: Vec::new() };
        redisson.does("main", &format!("connect {} {}", watchdog.as_millis(), place(url)), "connected").await;
        Some(redisson)
    }

    /// Sends `command` to `thread`.
    pub fn tell(&self, thread: &str, command: &str) {
        self.java.write(&format!("{}/{thread} {command}", self.name));
    }

    /// Waits for the next event of `thread`. Events of other threads are kept for later calls.
    ///
    /// # Panics
    ///
    /// Panics if there is no event within [`ANSWER_LIMIT`], or if the process ends.
    pub async fn answer(&mut self, thread: &str) -> WorkerEvent {
        self.first_of(&[thread]).await
    }

    /// Waits for the next event of one of `threads`. The key of the event is the name of the
    /// thread.
    ///
    /// # Panics
    ///
    /// Panics under the same conditions as [`answer`](Self::answer).
    pub async fn first_of(&mut self, threads: &[&str]) -> WorkerEvent {
        loop {
            if let Some(position) = self.unclaimed.iter().position(|event| threads.contains(&&*event.key)) {
                return self.unclaimed.remove(position);
            }
            let event = within(ANSWER_LIMIT, &format!("an event of {threads:?}"), self.events.recv()).await;
            self.unclaimed.push(
                event.unwrap_or_else(|| panic!("Java ended before one of {threads:?} reported an event")),
            );
        }
    }

    /// Waits for the event `event` of `thread`.
    ///
    /// # Panics
    ///
    /// Panics if the next event is another one, and under the same conditions as
    /// [`answer`](Self::answer).
    pub async fn says(&mut self, thread: &str, event: &str) -> WorkerEvent {
        let answer = self.answer(thread).await;
        assert_eq!(answer.name, event, "awaited {event} of {thread}, got {answer:?}");
        answer
    }

    /// Sends `command` to `thread`, and waits for `event`.
    ///
    /// # Panics
    ///
    /// Panics under the same conditions as [`says`](Self::says).
    pub async fn does(&mut self, thread: &str, command: &str, event: &str) -> WorkerEvent {
        self.tell(thread, command);
        self.says(thread, event).await
    }

    /// Kills the process with SIGKILL, including all its clients, and returns when it has ended.
    pub fn kill(&self) {
        locked(&self.java.process).kill();
    }

    /// Freezes the process with SIGSTOP, including all its clients, and returns when it is stopped.
    pub fn pause(&self) {
        locked(&self.java.process).pause();
    }

    /// Resumes a frozen process with SIGCONT.
    pub fn resume(&self) {
        locked(&self.java.process).resume();
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        self.tell("closing", "close"); // on a separate thread: another may wait for a lock
        locked(&self.java.listeners).remove(&self.name);
    }
}

/// A Java process that runs the driver.
#[derive(Debug)]
struct Java {
    process: Mutex<OwnChild>,
    input: Mutex<ChildStdin>,
    listeners: Arc<Mutex<Listeners>>,
}

type Listeners = HashMap<String, mpsc::UnboundedSender<WorkerEvent>>;

impl Java {
    fn start() -> Result<Self, String> {
        static CLASS_PATH: OnceLock<Result<String, String>> = OnceLock::new();
        let class_path =
            CLASS_PATH.get_or_init(|| maven::class_path("interop/java", "src/main/java/Driver.java"));
        let mut command = Command::new("java");
        // The process runs for seconds on a busy machine.
        command.args([
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Xmx256m",
            "-cp",
            class_path.as_ref()?,
            "Driver",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = OwnChild::spawn(&mut command, None).map_err(|error| format!("`java`: {error}"))?;
        let input = process.inner().stdin.take().expect("the input is piped");
        let output = process.inner().stdout.take().expect("the output is piped");
        let listeners = Arc::new(Mutex::new(Listeners::new()));
        let told = Arc::clone(&listeners);
        // The thread ends with the pipe, which ends with the process. No events arrive after that.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                tell(&locked(&told), &line);
            }
            locked(&told).clear();
        });
        Ok(Self { process: Mutex::new(process), input: Mutex::new(input), listeners })
    }

    fn listen(&self, client: &str) -> mpsc::UnboundedReceiver<WorkerEvent> {
        let (send, events) = mpsc::unbounded_channel();
        locked(&self.listeners).insert(client.to_owned(), send);
        events
    }

    /// Writes a line. If Java was killed, nothing reads it, and the caller's wait for a reply
    /// reports that.
    fn write(&self, line: &str) {
        let mut input = locked(&self.input);
        let _ = writeln!(input, "{line}").and_then(|()| input.flush());
    }
}

/// Sends an event with the current time to the listener of its client.
fn tell(listeners: &Listeners, line: &str) {
    let at = Moment::now();
    let mut words = line.splitn(3, ' ').map(str::to_owned);
    let mut word = || words.next().unwrap_or_default();
    let (name, whose, detail) = (word(), word(), word());
    let (client, key) = whose.split_once('/').unwrap_or((&whose, ""));
    if let Some(listener) = listeners.get(client) {
        let _ = listener.send(WorkerEvent { name, at, key: key.to_owned(), detail });
    }
}

/// Converts a dlock URL to the arguments of `connect`.
///
/// Java uses the default user, which has all permissions.
fn place(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL has a scheme");
    let rest = rest.split('?').next().unwrap_or_default();
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let addresses: Vec<_> = hosts.split(',').map(|host| format!("redis://{host}")).collect();
    let addresses = addresses.join(",");
    match scheme {
        "redis+sentinel" => format!("sentinel {path} {addresses}"),
        "redis+cluster" => format!("cluster - {addresses}"),
        _ => format!("single - {addresses}"),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time limit for an event, on tokio's clock.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(30);
