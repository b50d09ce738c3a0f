//! A child process of the test: signaled by its id only, and killed when the test process ends.
//!
//! A test process that is killed runs no destructor. Therefore each child has a watchdog: a shell
//! that reads a pipe whose other end is held only by the test process.
//!
//! ```text
//!  test process ---- spawns ----> child
//!       |                           ^
//!       +--- pipe ---> watchdog ----+  a line: the child was ended in order, exit
//!                                      end of file: the test process has died, kill -9 the child
//! ```
//!
//! (`PR_SET_PDEATHSIG` would need unsafe code, and kills at the end of the *thread* that spawned.)

use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A child process that is killed when this is dropped, or when the test process dies.
#[derive(Debug)]
pub struct OwnChild {
    child: Child,
    watchdog: Option<Child>,
}

impl OwnChild {
    /// Starts `command`. If the test process dies, the child is killed, and the folder `litter` is
    /// removed.
    ///
    /// # Errors
    ///
    /// Fails if the program or the shell of the watchdog cannot be started.
    pub fn spawn(command: &mut Command, litter: Option<&Path>) -> io::Result<Self> {
        let child = command.spawn()?;
        let mut own = Self { child, watchdog: None };
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(own.pid().to_string())
            .arg(litter.unwrap_or(Path::new("")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        own.watchdog = Some(watchdog);
        Ok(own)
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the handle of the standard library, for the pipes.
    pub fn inner(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns the exit status of the process, or `None` if it is running.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Freezes the process with SIGSTOP, and returns when it is stopped.
    ///
    /// # Panics
    ///
    /// Panics if the process has ended, or does not stop within 10 s.
    pub fn pause(&self) {
        // With NOWAIT, a child that is stopped already is reported again, and the standard library
        // waits for one that has ended. With NOHANG, another signal cannot make this wait forever.
        let options =
            WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let started = Instant::now();
        self.signal(Signal::STOP);
        loop {
            let state = waitid(WaitId::Pid(self.rustix_pid()), options).expect("it is a child");
            match state {
                Some(state) if state.stopped() => return,
                Some(state) => panic!("the child has ended: {state:?}"),
                None => assert!(started.elapsed() < STOP_LIMIT, "the child did not stop"),
            }
            std::thread::sleep(POLL);
        }
    }

    /// Resumes a frozen process with SIGCONT.
    ///
    /// # Panics
    ///
    /// Panics if the process has ended.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Requests the end of the process with SIGTERM.
    ///
    /// # Panics
    ///
    /// Panics if the process has ended.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the process with SIGKILL, frozen or not, and returns when it has ended.
    pub fn kill(&mut self) {
        // The watchdog ends before the child is reaped. Otherwise, its process id could belong to
        // another process.
        let _ = self.child.kill();
        if let Some(mut watchdog) = self.watchdog.take() {
            if let Some(mut pipe) = watchdog.stdin.take() {
                let _ = pipe.write_all(b"done\n");
            }
            let _ = watchdog.wait();
        }
        let _ = self.child.wait();
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.rustix_pid(), signal).expect("the child is alive");
    }

    fn rustix_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        self.kill();
    }
}

const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);

/// `$1` is the child, and `$2` is a folder or empty. A Ctrl-C reaches the whole terminal, and the
/// watchdog must survive it.
const WATCHDOG: &str = r#"
trap '' INT HUP TERM
if read -r _; then exit 0; fi
kill -9 "$1"
if [ -n "$2" ]; then rm -rf -- "$2"; fi
"#;
