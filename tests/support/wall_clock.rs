//! The clocks of one server or helper process, which can be stepped or run at another rate.
//!
//! These are its wall clock and its monotonic clock, which stops while the machine sleeps. A
//! library that is preloaded into the process adds the offset in a file to the system's time. It is
//! compiled on first use by the C compiler that Rust links with.
//!
//! See also `RedisServerBuilder::wall_clock` and `Worker::spawn_by` for the users of such a clock.

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

/// A clock of servers and helper processes that a test can step.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    offset: Mutex<NamedTempFile>,
    dir: Arc<TempDir>,
}

impl WallClock {
    /// Creates a clock that follows the system's clock until it is stepped.
    ///
    /// # Errors
    ///
    /// Fails with the reason if there is no C compiler, or if libraries cannot be preloaded.
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

    /// Creates another clock, which is stepped independently.
    ///
    /// # Panics
    ///
    /// Panics if its file cannot be created.
    #[must_use]
    pub fn another(&self) -> Arc<Self> {
        let another = Self::over(self.library.clone(), Arc::clone(&self.dir));
        Arc::new(another.expect("a file can be created"))
    }

    /// Returns `true` if a server uses a clock that it is given.
    fn is_lived_by(self: &Arc<Self>) -> bool {
        let server = RedisServer::builder().wall_clock(self).start();
        let seconds = || server.call(&["TIME"]).texts().first().and_then(|text| text.parse::<i64>().ok());
        let before = seconds();
        self.step_to(A_DAY);
        let after = seconds();
        self.step_to(0);
        before.zip(after).is_some_and(|(before, after)| after - before >= A_DAY)
    }

    /// Sets the wall clock to `seconds` after the system's, or before it if negative.
    ///
    /// # Panics
    ///
    /// Panics if its file cannot be written.
    pub fn step_to(&self, seconds: i64) {
        self.step_to_nanos(seconds * NANOS);
    }

    /// Runs the clock `thousandths` per thousand faster than the system's, or slower if negative.
    ///
    /// The drift starts at the system's time and lasts until the returned value is dropped. The
    /// clock never drifts further than that, but lags by a few milliseconds on a busy machine.
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

    /// Sets the wall clock to `nanos` nanoseconds after the system's, or before it if negative.
    ///
    /// # Panics
    ///
    /// Panics if its file cannot be written.
    pub fn step_to_nanos(&self, nanos: i64) {
        self.write(0, nanos);
    }

    /// Sets the monotonic clock back by `slept`, as if the machine had slept for that time.
    ///
    /// # Panics
    ///
    /// Panics if its file cannot be written.
    pub fn sleep_to(&self, slept: Duration) {
        self.write(8, i64::try_from(slept.as_nanos()).expect("the time fits in an `i64`"));
    }

    fn write(&self, at: u64, nanos: i64) {
        let mut offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        offset.seek(SeekFrom::Start(at)).expect("the file can be written to");
        offset.write_all(&nanos.to_ne_bytes()).expect("the file can be written to");
    }

    /// Makes a program that is about to be started use this clock.
    pub fn give_to(&self, program: &mut Command) {
        let offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        program.env("LD_PRELOAD", &self.library).env("DLOCK_CLOCK_OFFSET", offset.path());
    }
}

/// A clock that runs at another rate until this value is dropped.
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
