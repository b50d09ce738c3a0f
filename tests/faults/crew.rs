//! The processes of a scene. Each has its own proxies to the servers, runtime, and kind of
//! connections.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use dlock_tests::history::{What, Writer};
use dlock_tests::{Moment, Proxy, RedisServer, WallClock, Worker};
use tokio::runtime::Runtime;

use super::ground::Ground;

/// A running worker process.
pub(crate) struct Member {
    /// The proxies between the process and the servers.
    pub(crate) ways: Vec<Proxy>,
    /// The clocks of the process, if the C compiler for their library is available.
    pub(crate) clock: Option<Arc<WallClock>>,
    worker: Worker,
    number: usize,
    lives: u32,
    slept: Duration,
}

/// The data that all processes of a scene share.
pub(crate) struct Common {
    pub(crate) ground: Ground,
    pub(crate) folder: PathBuf,
    pub(crate) resource: u16,
    pub(crate) seed: u64,
    pub(crate) clocks: Option<Arc<WallClock>>,
    pub(crate) runtime: Runtime,
    pub(crate) history: Writer,
}

impl Member {
    /// Starts the process with the number `number`.
    pub(crate) fn start(common: &Common, servers: &[RedisServer], number: usize) -> Self {
        let ways: Vec<_> = servers.iter().map(Proxy::in_front_of).collect();
        let clock = common.clocks.as_ref().map(|clock| clock.another());
        let worker = launch(common, &ways, clock.as_deref(), number, 0);
        Self { ways, clock, worker, number, lives: 0, slept: Duration::ZERO }
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.worker.pid()
    }

    /// Stops the process and records that.
    pub(crate) fn stop(&self, common: &Common) {
        // Recorded first: until it is stopped, the process may still act.
        common.history.note_of(self.pid(), What::Stopped);
        self.worker.pause();
    }

    /// Resumes the process and records that.
    pub(crate) fn go_on(&self, common: &Common) {
        self.worker.resume();
        common.history.note_of(self.pid(), What::Continued);
    }

    /// Moves the monotonic clock as if the process had slept for `time`.
    ///
    /// Returns `false` if the process has no clock that can be moved.
    pub(crate) fn has_slept(&mut self, time: Duration) -> bool {
        let Some(clock) = &self.clock else { return false };
        self.slept += time;
        clock.sleep_to(self.slept);
        true
    }

    /// Kills the process and records that.
    pub(crate) fn kill(&mut self, common: &Common) {
        let pid = self.pid();
        // The process is dead before `kill` returns.
        common.history.note_of(pid, What::Stopped);
        self.worker.kill();
        common.history.note_of(pid, What::Gone { killed: true });
    }

    /// Makes the process abort, and waits until it has ended.
    pub(crate) fn abort(&mut self, common: &Common) {
        self.worker.send("abort");
        self.until_ended();
        common.history.note_of(self.pid(), What::Gone { killed: true });
    }

    /// Requests the end of the process, and waits for it. Returns how long that took.
    pub(crate) fn drain(&mut self, common: &Common) -> Duration {
        let asked = Moment::now();
        self.worker.terminate();
        self.until_ended();
        common.history.note_of(self.pid(), What::Gone { killed: false });
        asked.elapsed()
    }

    /// Starts a new process with the same number.
    pub(crate) fn replace(&mut self, common: &Common) {
        self.lives += 1;
        self.worker = launch(common, &self.ways, self.clock.as_deref(), self.number, self.lives);
    }

    /// Makes the process count its resources before the faults.
    pub(crate) fn base(&mut self, common: &Common) {
        self.worker.send("base");
        common.runtime.block_on(self.worker.event("counted", "-"));
    }

    /// Requests the end of the work.
    pub(crate) fn ask_to_end(&mut self) {
        self.worker.send("end");
    }

    /// Waits until the work has ended.
    pub(crate) fn until_work_ended(&mut self, common: &Common) {
        common.runtime.block_on(self.worker.event("ended", "-"));
    }

    fn until_ended(&mut self) {
        let asked = Moment::now();
        while !self.worker.has_ended() {
            assert!(asked.elapsed() < Duration::from_secs(20), "process {} does not end", self.pid());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn launch(common: &Common, ways: &[Proxy], clock: Option<&WallClock>, number: usize, life: u32) -> Worker {
    let Common { ground, folder, resource, seed, runtime, .. } = common;
    // Most scenes have every kind of runtime.
    let flavor = if (number as u64 + seed / 2).is_multiple_of(2) { "current" } else { "multi" };
    let mut command = Command::new(env!("CARGO_BIN_EXE_fault-worker"));
    command.arg(ground.url(ways));
    command.arg(file(folder, number, life));
    command.args([
        &resource.to_string(),
        &format!("scene:{seed}"),
        &format!("{}", seed * 97 + number as u64),
        flavor,
    ]);
    // A process that panics must end at once, and the symbols of a backtrace take it a second.
    command.env("RUST_BACKTRACE", "0");
    if let Some(clock) = clock {
        clock.give_to(&mut command);
    }
    runtime.block_on(async {
        // Faults may be active, but this process only waits for its own connection.
        Worker::spawn_as(&mut command).await
    })
}

fn file(folder: &Path, number: usize, life: u32) -> PathBuf {
    folder.join(format!("worker-{number}-{life}.jsonl"))
}
