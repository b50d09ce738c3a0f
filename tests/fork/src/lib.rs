//! `fork` without `exec`, for tests.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A child process, which ends by itself.
#[derive(Debug)]
#[must_use = "a child that is not waited for stays a zombie"]
pub struct Child {
    id: i32,
    report: File,
}

/// What [`split`] returns in the child.
#[derive(Debug)]
pub struct Reporter {
    report: File,
}

/// Forks the current process. Returns the child in the parent, and a [`Reporter`] in the child, which must call
/// [`Reporter::exit`]. The child is killed after [`LONGEST`] seconds.
///
/// # Errors
///
/// Returns the [`Reporter`] in the child: it is no failure.
///
/// # Panics
///
/// Panics if there can be no pipe or no process.
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

/// Forks the current process, and runs `body` in the child. What it returns, or the text of its panic, is the child's report.
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
    /// Waits until the child has ended, and returns its report; a child that ended in another way than by a report is described.
    ///
    /// # Panics
    ///
    /// Panics if the child was waited for elsewhere.
    #[must_use]
    pub fn report(mut self) -> String {
        let status = system::wait(self.id);
        if status != 0 {
            return format!("ended with status {status}");
        }
        // All that it wrote is in the pipe. Children of other tests may have its other end open, so there is no end of file.
        let mut report = vec![0; LONGEST_REPORT];
        let length = self.report.read(&mut report).expect("the report can be read");
        report.truncate(length);
        String::from_utf8_lossy(&report).into_owned()
    }
}

impl Reporter {
    /// Ends the child without running anything more of it: no destructors, and no handlers of the parent's.
    pub fn exit(mut self, report: &str) -> ! {
        // A report is never empty: the parent would wait for more.
        let written = self.report.write_all(format!("{report}\n").as_bytes());
        system::exit(i32::from(written.is_err()))
    }

    /// Ends the child as a program ends that has nothing more to do.
    pub fn exit_as_a_program(mut self, report: &str) -> ! {
        let written = self.report.write_all(format!("{report}\n").as_bytes());
        std::process::exit(i32::from(written.is_err()))
    }
}

/// For how many seconds a child runs at most.
pub const LONGEST: u32 = 30;

/// What a pipe has room for.
const LONGEST_REPORT: usize = 4096;

#[allow(unsafe_code, reason = "the system calls that the standard library does not have")]
mod system {
    pub(super) fn fork() -> i32 {
        // SAFETY: the callers of this package run nothing in the child that needs a lock which another thread may have held.
        let id = unsafe { libc::fork() };
        assert!(id >= 0, "no process: {}", std::io::Error::last_os_error());
        id
    }

    pub(super) fn alarm(seconds: u32) {
        // SAFETY: it takes no pointers.
        unsafe { libc::alarm(seconds) };
    }

    pub(super) fn wait(id: i32) -> i32 {
        let mut status = 0;
        // SAFETY: `status` lives until it returns.
        let waited = unsafe { libc::waitpid(id, &raw mut status, 0) };
        assert_eq!(waited, id, "no such child: {}", std::io::Error::last_os_error());
        status
    }

    pub(super) fn exit(code: i32) -> ! {
        // SAFETY: nothing of this process is used any more.
        unsafe { libc::_exit(code) }
    }
}
