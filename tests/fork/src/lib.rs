//! `fork` without `exec`, for tests.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A child process, which ends on its own.
#[derive(Debug)]
#[must_use = "a child that is not waited for stays a zombie"]
pub struct Child {
    id: i32,
    report: File,
}

/// The value that [`split`] returns in the child.
#[derive(Debug)]
pub struct Reporter {
    report: File,
}

/// Forks the current process.
///
/// Returns the child in the parent, and a [`Reporter`] in the child, which must call
/// [`Reporter::exit`]. The child is killed after [`LONGEST`] seconds.
///
/// # Errors
///
/// Returns the [`Reporter`] in the child. This is not a failure.
///
/// # Panics
///
/// Panics if no pipe or no process can be created.
pub fn split() -> Result<Child, Reporter> {
    let (read, write) = std::io::pipe().expect("a pipe can be made");
    match system::fork() {
        0 => {
            system::alarm(LONGEST);
            Err(Reporter { report: File::from(OwnedFd::from(write)) })
        }
        id => Ok(Child { id, report: File::from(OwnedFd::from(read)) }),
    }
}

/// Forks the current process, and runs `body` in the child.
///
/// The output of `body`, or the text of its panic, is the report of the child.
pub fn fork(body: impl FnOnce() -> String) -> Child {
    match split() {
        Ok(child) => child,
        Err(reporter) => {
            let done = catch_unwind(AssertUnwindSafe(body));
            reporter.exit(&done.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
                format!("panicked: {text}")
            }))
        }
    }
}

impl Child {
    /// Waits until the child has ended, and returns its report.
    ///
    /// If the child ended without a report, returns a description of its end.
    ///
    /// # Panics
    ///
    /// Panics if other code has already waited for the child.
    #[must_use]
    pub fn report(mut self) -> String {
        let status = system::wait(self.id);
        if status != 0 {
            return format!("ended with status {status}");
        }
        // The complete report is in the pipe. There may be no end of file, because children of
        // other tests may have inherited the write end.
        let mut report = vec![0; LONGEST_REPORT];
        let length = self.report.read(&mut report).expect("the report can be read");
        report.truncate(length);
        String::from_utf8_lossy(&report).into_owned()
    }
}

impl Reporter {
    /// Ends the child immediately, without destructors and handlers of the parent.
    pub fn exit(mut self, report: &str) -> ! {
        // The report is never empty, because the parent waits for at least one byte.
        let written = self.report.write_all(format!("{report}\n").as_bytes());
        system::exit(i32::from(written.is_err()))
    }

    /// Ends the child like a program that returns from `main`.
    pub fn exit_as_a_program(mut self, report: &str) -> ! {
        let written = self.report.write_all(format!("{report}\n").as_bytes());
        std::process::exit(i32::from(written.is_err()))
    }
}

/// The maximum lifetime of a child, in seconds.
pub const LONGEST: u32 = 30;

/// The capacity of a pipe.
const LONGEST_REPORT: usize = 4096;

#[allow(unsafe_code, reason = "the system calls that the standard library does not have")]
mod system {
    use std::time::{Duration, Instant};

    use super::LONGEST;

    pub(super) fn fork() -> i32 {
        // SAFETY: callers run nothing in the child that needs a lock which another thread may have
        // held.
        let id = unsafe { libc::fork() };
        assert!(id >= 0, "no process: {}", std::io::Error::last_os_error());
        id
    }

    pub(super) fn alarm(seconds: u32) {
        // SAFETY: `alarm` takes no pointers.
        unsafe { libc::alarm(seconds) };
    }

    /// Waits for the end of a child. Kills it if its alarm has not, since signals can be blocked.
    pub(super) fn wait(id: i32) -> i32 {
        let limit = Instant::now() + Duration::from_secs(u64::from(LONGEST) + 5);
        let mut status = 0;
        loop {
            // SAFETY: `status` is valid until `waitpid` returns.
            let waited = unsafe { libc::waitpid(id, &raw mut status, libc::WNOHANG) };
            if waited == id {
                return status;
            }
            assert_eq!(waited, 0, "no such child: {}", std::io::Error::last_os_error());
            if Instant::now() > limit {
                // SAFETY: `id` is that of a child that nothing has waited for.
                unsafe { libc::kill(id, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn exit(code: i32) -> ! {
        // SAFETY: no part of this process is used after this.
        unsafe { libc::_exit(code) }
    }
}
