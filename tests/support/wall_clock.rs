//! The wall clock of one server, to be stepped while it runs.
//!
//! A library that is preloaded into the server adds what stands in a file to the time that the system says. It is compiled on first
//! use by the C compiler that Rust links with.
//!
//! Not here: who is given such a clock (`RedisServerBuilder::wall_clock`).

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tempfile::{NamedTempFile, TempDir};

use crate::server::RedisServer;

/// A clock that servers can be given, and that a test steps.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    offset: Mutex<NamedTempFile>,
    _dir: TempDir,
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
        let mut offset = NamedTempFile::new_in(&dir).map_err(|error| error.to_string())?;
        offset.write_all(&0_i64.to_ne_bytes()).map_err(|error| error.to_string())?;
        let clock = Arc::new(Self { library, offset: Mutex::new(offset), _dir: dir });
        if !clock.is_lived_by() {
            return Err("the server is linked statically, and preloads nothing".to_owned());
        }
        Ok(clock)
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

    /// Sets the clock to so many seconds before (less than zero) or after the system's.
    ///
    /// # Panics
    ///
    /// Panics if its file cannot be written.
    pub fn step_to(&self, seconds: i64) {
        let mut offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        let nanos = seconds * i64::try_from(Duration::from_secs(1).as_nanos()).expect("a second is short");
        offset.seek(SeekFrom::Start(0)).expect("the file is ours");
        offset.write_all(&nanos.to_ne_bytes()).expect("the file is ours");
    }

    /// Has a program that is about to be started live by this clock.
    pub(crate) fn give_to(&self, program: &mut Command) {
        let offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        program.env("LD_PRELOAD", &self.library).env("DLOCK_CLOCK_OFFSET", offset.path());
    }
}

const A_DAY: i64 = 24 * 3_600;
