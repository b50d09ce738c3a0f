//! The clocks of one server or helper process, to be stepped while it runs, or to be run at a rate of its own: its wall clock, and its
//! monotonic clock, which stands still while a machine sleeps.
//!
//! A library that is preloaded into the process adds what stands in a file to the time that the system says. It is compiled on first
//! use by the C compiler that Rust links with.
//!
//! Not here: who is given such a clock (`RedisServerBuilder::wall_clock`, `Worker::spawn_by`).

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::{NamedTempFile, TempDir};

use crate::clock::Moment;
use crate::server::RedisServer;

/// A clock that servers and helper processes can be given, and that a test steps.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    offset: Mutex<NamedTempFile>,
    dir: Arc<TempDir>,
}

impl WallClock {
    /// Makes a clock that goes with the system's until it is stepped; without a C compiler, or where libraries cannot be preloaded,
    /// it says why there is none.
    ///
    /// # Errors
    ///
    /// Fails with the reason.
    pub fn new() -> Result<Arc<Self>, String> {
        if !cfg!(target_os = "linux") {
            return Err("this system preloads no library as Linux does".to_owned());
        }
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let library = dir.path().join("clock_shim.so");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("support/clock_shim.c"))
            .output();
        match built {
            Ok(built) if built.status.success() => {}
            Ok(built) => return Err(format!("cc failed: {}", String::from_utf8_lossy(&built.stderr))),
            Err(error) => return Err(format!("there is no cc: {error}")),
        }
        let clock = Arc::new(Self::over(library, Arc::new(dir)).map_err(|error| error.to_string())?);
        if !clock.is_lived_by() {
            return Err("the server is linked statically, and preloads nothing".to_owned());
        }
        Ok(clock)
    }

    fn over(library: PathBuf, dir: Arc<TempDir>) -> std::io::Result<Self> {
        let mut offset = NamedTempFile::new_in(&*dir)?;
        offset.write_all(&[0; 16])?;
        Ok(Self { library, offset: Mutex::new(offset), dir })
    }

    /// Makes another clock, which is stepped on its own.
    ///
    /// # Panics
    ///
    /// Panics if its file cannot be made.
    #[must_use]
    pub fn another(&self) -> Arc<Self> {
        let another = Self::over(self.library.clone(), Arc::clone(&self.dir));
        Arc::new(another.expect("the folder is ours"))
    }

    /// Returns whether a server that is given the clock lives by it.
    fn is_lived_by(self: &Arc<Self>) -> bool {
        let server = RedisServer::builder().wall_clock(self).start();
        let seconds = || server.call(&["TIME"]).texts().first().and_then(|text| text.parse::<i64>().ok());
        let before = seconds();
        self.step_to(A_DAY);
        let after = seconds();
        self.step_to(0);
        before.zip(after).is_some_and(|(before, after)| after - before >= A_DAY)
    }

    /// Sets the wall clock to so many seconds before (less than zero) or after the system's.
    ///
    /// # Panics
    ///
    /// Panics if its file cannot be written.
    pub fn step_to(&self, seconds: i64) {
        self.step_to_nanos(seconds * NANOS);
    }

    /// Has the clock run faster (more than zero) or slower than the system's by so many thousandths, from where it stands, until the
    /// returned value is dropped. It is never further away than that, and behind it by a few milliseconds on a busy machine.
    #[must_use = "the clock drifts until this is dropped"]
    pub fn drift(self: &Arc<Self>, thousandths: i64) -> Drift {
        let (clock, (stop, stopped)) = (Arc::clone(self), mpsc::channel::<()>());
        let start = Moment::now();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_micros(500)) == Err(RecvTimeoutError::Timeout) {
                let elapsed = i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX);
                clock.step_to_nanos(elapsed / 1_000 * thousandths);
            }
        });
        Drift { stop: Some(stop), thread: Some(thread) }
    }

    /// Sets the wall clock to so many nanoseconds before (less than zero) or after the system's.
    ///
    /// # Panics
    ///
    /// Panics if its file cannot be written.
    pub fn step_to_nanos(&self, nanos: i64) {
        self.write(0, nanos);
    }

    /// Has the monotonic clock stand behind the system's by so much: for so long the machine has slept.
    ///
    /// # Panics
    ///
    /// Panics if its file cannot be written.
    pub fn sleep_to(&self, slept: Duration) {
        self.write(8, i64::try_from(slept.as_nanos()).expect("nobody sleeps for so long"));
    }

    fn write(&self, at: u64, nanos: i64) {
        let mut offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        offset.seek(SeekFrom::Start(at)).expect("the file is ours");
        offset.write_all(&nanos.to_ne_bytes()).expect("the file is ours");
    }

    /// Has a program that is about to be started live by this clock.
    pub fn give_to(&self, program: &mut Command) {
        let offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        program.env("LD_PRELOAD", &self.library).env("DLOCK_CLOCK_OFFSET", offset.path());
    }
}

/// A clock that goes at a rate of its own, until this is dropped.
#[derive(Debug)]
pub struct Drift {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Drift {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const NANOS: i64 = 1_000_000_000;
const A_DAY: i64 = 24 * 3_600;
