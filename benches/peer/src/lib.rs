//! Makes a contender of a lock library: a process that is told by lines what to lock, and answers by lines how it went.
//!
//! A program implements [`Library`] and calls [`serve`]. Contenders in other languages speak the same lines by themselves. What is
//! locked when, and what is made of the answers, is not here: that is `dlock-benches`.
//!
//! # The lines
//!
//! Orders come in at standard input, answers go out at standard output, and what is logged goes to standard error. The process ends
//! when its input ends. Times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share. Its arguments are the
//! `host:port` of its servers: of one, or of several that vote (Redlock).
//!
//! ```text
//! out: ready                                 connected, scripts loaded
//! in:  pairs TASKS MILLIS                    each task locks and unlocks a key of its own, `bench:<id>`, for so long
//! out: pairs COUNT NANOS CPU_NANOS           how many, in what time, with how much processor time of this process (user + kernel)
//! in:  enter KEY TASKS BODY_MICROS START END FILE      so many tasks want the key from START to END, each again and again; the body
//!                                            sleeps (0: it is empty); who waits for ten seconds may try anew, as one of
//!                                            a library that forgets to wake some
//! out: entered COUNT                         FILE has an [`Entry`] for each time a task was inside
//! in:  take KEY                              locks it
//! out: taken NANOS                           read first thing inside
//! in:  free                                  unlocks what `take` took
//! out: freed NANOS                           read before the unlock begins; said after it
//! in:  hold COUNT LEASE_MILLIS               locks `held:<id>` for so many ids, and keeps them renewed where the library can
//! out: holding
//! in:  let go                                unlocks them
//! out: gone
//! in:  lose KEY LEASE_MILLIS                 locks it and watches
//! out: watching                              and later: lost NANOS, when the user of the library was told
//! in:  nest TIMES                            locks `nest`, and inside so many times again in the same chain of calls
//! out: nested NANOS                          what the inner ones took together
//! in:  usage
//! out: usage CPU_NANOS
//! out: cannot WHY                            in place of any answer, of `ready` too: the library has no such thing
//! out: failed WHY                            in place of any answer: an error
//! ```

mod library;
mod notes;
mod order;
mod serve;
pub mod usage;

pub use library::{Cannot, Failure, LEASE, Library, Result, WAIT};
pub use notes::Entry;
pub use serve::{Threads, serve};
