//! The processes of a scene: each over ways of its own to the servers, with a runtime and a place for its connections of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use dlock_tests::history::{What, Writer};
use dlock_tests::{Moment, Proxy, RedisServer, WallClock, Worker};
use tokio::runtime::Runtime;

use super::ground::Ground;

/// One process at work.
pub(crate) struct Member {
    /// Its ways to the servers.
    pub(crate) ways: Vec<Proxy>,
    /// Its clocks, where there is a compiler for what moves them.
    pub(crate) clock: Option<Arc<WallClock>>,
    worker: Worker,
    number: usize,
    lives: u32,
    slept: Duration,
}

/// What all processes of a scene share.
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
    /// Starts the process with this number.
    pub(crate) fn start(common: &Common, servers: &[RedisServer], number: usize) -> Self {
        let ways: Vec<_> = servers.iter().map(Proxy::in_front_of).collect();
        let clock = common.clocks.as_ref().map(|clock| clock.another());
        let worker = launch(common, &ways, clock.as_deref(), number, 0);
        Self { ways, clock, worker, number, lives: 0, slept: Duration::ZERO }
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.worker.pid()
    }

    /// Stops it for as long as `during` takes, and notes both ends.
    pub(crate) fn stop(&self, common: &Common) {
        // Noted before: what it does until it stands still is within the stop.
        common.history.note_of(self.pid(), What::Stopped);
        self.worker.pause();
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self, common: &Common) {
        self.worker.resume();
        common.history.note_of(self.pid(), What::Continued);
    }

    /// Moves its monotonic clock, as if it had slept for so long; whether it can be moved.
    pub(crate) fn has_slept(&mut self, time: Duration) -> bool {
        let Some(clock) = &self.clock else { return false };
        self.slept += time;
        clock.sleep_to(self.slept);
        true
    }

    /// Kills it.
    pub(crate) fn kill(&mut self, common: &Common) {
        let pid = self.pid();
        // It is dead before that is known to us.
        common.history.note_of(pid, What::Stopped);
        self.worker.kill();
        common.history.note_of(pid, What::Gone { killed: true });
    }

    /// Has it abort, and waits until it has.
    pub(crate) fn abort(&mut self, common: &Common) {
        self.worker.send("abort");
        self.until_ended();
        common.history.note_of(self.pid(), What::Gone { killed: true });
    }

    /// Asks it to end, and waits until it has; how long that took.
    pub(crate) fn drain(&mut self, common: &Common) -> Duration {
        let asked = Moment::now();
        self.worker.terminate();
        self.until_ended();
        common.history.note_of(self.pid(), What::Gone { killed: false });
        asked.elapsed()
    }

    /// Starts another process in its place.
    pub(crate) fn replace(&mut self, common: &Common) {
        self.lives += 1;
        self.worker = launch(common, &self.ways, self.clock.as_deref(), self.number, self.lives);
    }

    /// Has it count what can leak, before the faults.
    pub(crate) fn base(&mut self, common: &Common) {
        self.worker.send("base");
        common.runtime.block_on(self.worker.event("counted", "-"));
    }

    /// Asks it to end its work.
    pub(crate) fn ask_to_end(&mut self) {
        self.worker.send("end");
    }

    /// Waits until its work has ended.
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
    // Every kind of runtime, and every place for connections, is in most scenes.
    let io = if (number as u64 + seed).is_multiple_of(2) { "thread" } else { "runtime" };
    let flavor = if (number as u64 + seed / 2).is_multiple_of(2) { "current" } else { "multi" };
    let mut command = Command::new(env!("CARGO_BIN_EXE_fault-worker"));
    command.arg(ground.url(ways, io));
    command.arg(file(folder, number, life));
    command.args([
        &resource.to_string(),
        &format!("scene:{seed}"),
        &format!("{}", seed * 97 + number as u64),
        flavor,
    ]);
    // A process that panics is to end at once: looking up the names of a backtrace takes it a second.
    command.env("RUST_BACKTRACE", "0");
    if let Some(clock) = clock {
        clock.give_to(&mut command);
    }
    runtime.block_on(async {
        // A process starts while things may be broken for others; it waits for its own connection only.
        Worker::spawn_as(&mut command).await
    })
}

fn file(folder: &Path, number: usize, life: u32) -> PathBuf {
    folder.join(format!("worker-{number}-{life}.jsonl"))
}
