//! Helper processes driven by text lines, which can be frozen and killed.
//!
//! Each input line is a command, and each output line is an event. Events carry the boot clock in
//! nanoseconds, so that the events of several processes can be ordered:
//!
//! ```text
//!  in:   acquire KEY LEASE_MS WAIT_MS     waits for the lock and holds it: acquired | failed
//!        run KEY LEASE_MS WAIT_MS         runs a body under the lock until `finish`: entered, then left | failed
//!        finish KEY                       ends that body
//!        release KEY                      releases the lock of `acquire`: released | failed
//!        token KEY                        requests the fencing token: token N | failed
//!        remaining KEY                    the remaining lease of the guard: remaining MS | failed
//!        check KEY                        held | failed
//!        wall KEY                         the wall clock of this process: wall SECONDS
//!        lead NAME LEASE_MS               leads until the shutdown: leading TERM and deposed LAST_POLL for each term, then left | failed
//!        resign NAME                      ends the term of this process: resigned | failed
//!        timer NAME TICKS                 calls a job of 1 s, and tries a lock, TICKS times: started SLOT, locked, stopped
//!        runner NAME LEASE_MS rerun|skip  runs a job of 60 s whose body never ends: started SLOT ATTEMPT and dropped LAST_POLL for each run | failed
//!        shutdown MS                      shuts the manager down: shutdown
//!  out:  ready NANOS -                    the process is connected
//!        EVENT NANOS KEY [DETAIL]         the detail of a failure is the variant and the text of the error
//! ```
//!
//! The process ends when its input ends. After SIGTERM it shuts its manager down, as a service
//! does, reports `shutdown`, and ends.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use crate::clock::{Moment, within};
use crate::talk::Talk;
use crate::wall_clock::WallClock;

/// A helper process. It is killed on drop.
#[derive(Debug)]
pub struct Worker {
    talk: Talk,
    unclaimed: Vec<WorkerEvent>,
}

impl Worker {
    /// Starts `program` with `arguments`, and waits until it reports that it is ready.
    ///
    /// # Panics
    ///
    /// Panics if the process does not report that within [`EVENT_LIMIT`].
    pub async fn spawn<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Self {
        Self::spawn_as(Command::new(program).args(arguments)).await
    }

    /// Starts `program` like [`spawn`](Self::spawn), with a wall clock that the test can step.
    ///
    /// # Panics
    ///
    /// Panics under the same conditions as [`spawn`](Self::spawn).
    pub async fn spawn_by<S: AsRef<OsStr>>(
        clock: &WallClock,
        program: impl AsRef<OsStr>,
        arguments: &[S],
    ) -> Self {
        let mut command = Command::new(program);
        clock.give_to(&mut command);
        Self::spawn_as(command.args(arguments)).await
    }

    /// Starts `command` like [`spawn`](Self::spawn).
    ///
    /// # Panics
    ///
    /// Panics under the same conditions as [`spawn`](Self::spawn).
    pub async fn spawn_as(command: &mut Command) -> Self {
        let mut worker = Self { talk: Talk::with(command), unclaimed: Vec::new() };
        worker.event("ready", "-").await;
        worker
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.talk.child.pid()
    }

    /// Sends one command.
    ///
    /// # Panics
    ///
    /// Panics if the process has ended.
    pub fn send(&mut self, command: &str) {
        self.talk.send(command);
    }

    /// Waits for the event `name` of `key` and returns it. Other events are kept for later calls.
    ///
    /// # Panics
    ///
    /// Panics if there is no event within [`EVENT_LIMIT`], if the process ends, or if the command
    /// fails.
    pub async fn event(&mut self, name: &str, key: &str) -> WorkerEvent {
        let event = self.event_or_failure(name, key).await;
        assert_eq!(event.name, name, "awaited {name} of {key}, got {event:?}");
        event
    }

    /// Waits for the event `name` of `key`, or for the failure of the command for that key.
    ///
    /// # Panics
    ///
    /// Panics if there is neither within [`EVENT_LIMIT`], or if the process ends.
    pub async fn event_or_failure(&mut self, name: &str, key: &str) -> WorkerEvent {
        let wanted = |event: &WorkerEvent| event.key == key && (event.name == name || event.name == "failed");
        loop {
            if let Some(position) = self.unclaimed.iter().position(wanted) {
                return self.unclaimed.remove(position);
            }
            let line = within(EVENT_LIMIT, &format!("{name} of {key}"), self.talk.line()).await;
            let line = line.unwrap_or_else(|| panic!("the helper process ended before {name} of {key}"));
            self.unclaimed.push(WorkerEvent::parse(&line));
        }
    }

    /// Waits for the event `name` of `key`. Returns the names and details of all events of `key`
    /// before it.
    ///
    /// # Panics
    ///
    /// Panics if no event arrives for [`EVENT_LIMIT`], or if the process ends.
    pub async fn events_until(&mut self, name: &str, key: &str) -> Vec<(String, String)> {
        loop {
            if self.unclaimed.iter().any(|event| event.key == key && event.name == name) {
                let events = std::mem::take(&mut self.unclaimed).into_iter();
                return events
                    .filter(|event| event.name != name)
                    .map(|event| (event.name, event.detail))
                    .collect();
            }
            let line = within(EVENT_LIMIT, &format!("{name} of {key}"), self.talk.line()).await;
            let line = line.unwrap_or_else(|| panic!("the helper process ended before {name} of {key}"));
            self.unclaimed.push(WorkerEvent::parse(&line));
        }
    }

    /// Returns the events of a process that has ended which no call has returned, the oldest first.
    pub async fn last_events(&mut self) -> Vec<WorkerEvent> {
        let mut events = std::mem::take(&mut self.unclaimed);
        while let Some(line) = within(EVENT_LIMIT, "the end of the helper process", self.talk.line()).await {
            events.push(WorkerEvent::parse(&line));
        }
        events
    }

    /// Freezes the process with SIGSTOP, and returns when it is stopped.
    pub fn pause(&self) {
        self.talk.child.pause();
    }

    /// Resumes a frozen process with SIGCONT.
    pub fn resume(&self) {
        self.talk.child.resume();
    }

    /// Requests the end of the process with SIGTERM.
    pub fn terminate(&self) {
        self.talk.child.terminate();
    }

    /// Returns `true` if the process has ended on its own.
    pub fn has_ended(&mut self) -> bool {
        self.talk.child.ended().is_some()
    }

    /// Kills the process with SIGKILL, and returns when it has ended.
    pub fn kill(&mut self) {
        self.talk.child.kill();
    }
}

/// An event that a helper process reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerEvent {
    /// The name of the event.
    pub name: String,
    /// The time of the event.
    pub at: Moment,
    /// The lock, or `-` if the event is not about a lock.
    pub key: String,
    /// Further details.
    pub detail: String,
}

impl WorkerEvent {
    fn parse(line: &str) -> Self {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (name, nanos, key, detail) = (word(), word(), word(), word());
        let nanos = nanos.parse().unwrap_or_else(|_| panic!("the helper process wrote {line:?}"));
        Self { name, at: Moment::from_nanos(nanos), key, detail }
    }
}

/// The time limit for an event, on tokio's clock.
pub const EVENT_LIMIT: Duration = Duration::from_secs(20);
