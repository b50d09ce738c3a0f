//! Helper processes driven over lines of text, to be frozen and killed.
//!
//! One command a line goes in; one event a line comes out, stamped by the boot clock in nanoseconds, so that the events of several
//! processes stand on one axis:
//!
//! ```text
//!  in:   acquire KEY LEASE_MS WAIT_MS     waits for the lock and holds it: acquired | failed
//!        run KEY LEASE_MS WAIT_MS         runs a body under the lock until `finish`: entered, then left | failed
//!        finish KEY                       ends that body
//!        release KEY                      lets go of what acquire took: released | failed
//!        token KEY                        asks for the fencing token: token N | failed
//!        remaining KEY                    how long this process believes in the lease: remaining MS | failed
//!        check KEY                        held | failed
//!        wall KEY                         the wall clock of this process: wall SECONDS
//!        shutdown MS                      shuts the manager down: shutdown
//!  out:  ready NANOS -                    the process is connected
//!        EVENT NANOS KEY [DETAIL]         a failure's detail is the error's variant and its text
//! ```
//!
//! The end of its input ends the process, in order.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use crate::clock::{Moment, within};
use crate::talk::Talk;
use crate::wall_clock::WallClock;

/// A helper process; killed when dropped.
#[derive(Debug)]
pub struct Worker {
    talk: Talk,
    unclaimed: Vec<WorkerEvent>,
}

impl Worker {
    /// Starts `program` with `arguments`, and waits until it says that it is ready.
    ///
    /// # Panics
    ///
    /// Panics if it does not start, or does not say so within [`EVENT_LIMIT`].
    pub async fn spawn<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Self {
        Self::spawn_as(Command::new(program).args(arguments)).await
    }

    /// Starts `program` as [`spawn`](Self::spawn) does, to live by a wall clock that the test can step.
    ///
    /// # Panics
    ///
    /// Panics as `spawn` does.
    pub async fn spawn_by<S: AsRef<OsStr>>(
        clock: &WallClock,
        program: impl AsRef<OsStr>,
        arguments: &[S],
    ) -> Self {
        let mut command = Command::new(program);
        clock.give_to(&mut command);
        Self::spawn_as(command.args(arguments)).await
    }

    /// Starts a `command` as [`spawn`](Self::spawn) does.
    ///
    /// # Panics
    ///
    /// As [`spawn`](Self::spawn).
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
    /// Panics if it does not come within [`EVENT_LIMIT`], if the process ends, or if the key's command fails instead.
    pub async fn event(&mut self, name: &str, key: &str) -> WorkerEvent {
        let event = self.event_or_failure(name, key).await;
        assert_eq!(event.name, name, "awaited {name} of {key}, got {event:?}");
        event
    }

    /// Waits for the event `name` of `key`, or for the failure of that key's command.
    ///
    /// # Panics
    ///
    /// Panics if neither comes within [`EVENT_LIMIT`], or if the process ends.
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

    /// Freezes the process (SIGSTOP) and returns when it stands still.
    pub fn pause(&self) {
        self.talk.child.pause();
    }

    /// Lets a frozen process go on (SIGCONT).
    pub fn resume(&self) {
        self.talk.child.resume();
    }

    /// Asks the process to end (SIGTERM).
    pub fn terminate(&self) {
        self.talk.child.terminate();
    }

    /// Returns whether the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.talk.child.ended().is_some()
    }

    /// Kills the process (SIGKILL) and returns when it is gone.
    pub fn kill(&mut self) {
        self.talk.child.kill();
    }
}

/// Something that a helper process said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerEvent {
    /// What happened.
    pub name: String,
    /// When.
    pub at: Moment,
    /// Which lock it is about; `-` for none.
    pub key: String,
    /// What else there is to say.
    pub detail: String,
}

impl WorkerEvent {
    fn parse(line: &str) -> Self {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (name, nanos, key, detail) = (word(), word(), word(), word());
        let nanos = nanos.parse().unwrap_or_else(|_| panic!("the helper process said {line:?}"));
        Self { name, at: Moment::from_nanos(nanos), key, detail }
    }
}

/// How long an event is waited for, by tokio's clock.
pub const EVENT_LIMIT: Duration = Duration::from_secs(20);
