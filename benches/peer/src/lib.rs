//! Runs a lock library as a contender: a process that reads orders and writes answers.
//!
//! A program implements [`Library`] and calls [`serve()`]. Contenders in other languages implement
//! the same protocol.
//!
//! See also: `dlock-benches`, which sends the orders.
//!
//! # Protocol
//!
//! Orders arrive on standard input, answers leave on standard output, and logs on standard error.
//! The process ends when its input ends. Times are nanoseconds of `CLOCK_MONOTONIC`, which all
//! processes of a machine share. The arguments are the `host:port` of the servers: one, or several
//! that form a quorum (Redlock).
//!
//! ```text
//! out: ready                                 connected, scripts loaded
//! in:  pairs TASKS MILLIS                    each task locks and unlocks a different key, `bench:<id>`, for MILLIS
//! out: pairs COUNT NANOS CPU_NANOS           the number, the time, and the processor time of this process (user + kernel)
//! in:  enter KEY TASKS BODY_MICROS START END FILE      TASKS tasks contend for the key from START to END, repeatedly; the body sleeps
//!                                            (0: it is empty); a task that has waited for 10 s may try again, because some
//!                                            libraries fail to wake waiters
//! out: entered COUNT                         FILE has an [`Entry`] per hold
//! in:  take KEY                              locks KEY
//! out: taken NANOS                           the time at the start of the hold
//! in:  free                                  unlocks what `take` took
//! out: freed NANOS                           the time before the unlock; sent after it
//! in:  hold COUNT LEASE_MILLIS               locks `held:<id>` for COUNT ids, renewed if the library supports it
//! out: holding
//! in:  release                               unlocks them
//! out: released
//! in:  lose KEY LEASE_MILLIS                 locks KEY and watches for its loss
//! out: watching                              and later: lost NANOS, the time when the library reported the loss
//! in:  nest TIMES                            locks `nest`, and inside TIMES times again in the same chain of calls
//! out: nested NANOS                          the total time of the inner calls
//! in:  first NAME COUNT                      COUNT idempotent calls with different keys, `NAME:<id>`, one after the other; their bodies
//!                                            are empty
//! in:  replay NAME COUNT                     COUNT idempotent calls with the key `NAME:0`, one after the other
//! in:  duplicate NAME COUNT BODY_MICROS      COUNT idempotent calls with the key `NAME` at one time; a body that runs sleeps
//! out: called RAN REPLAYED REFUSED NANOS     for each of these: the number of calls by their end, see [`Called`], and the total time
//! in:  usage
//! out: usage CPU_NANOS
//! out: cannot WHY                            instead of any answer, also of `ready`: the library does not support it
//! out: failed WHY                            instead of any answer: an error
//! ```

mod calls;
mod library;
mod notes;
mod order;
mod serve;
pub mod usage;

pub use library::{Called, Cannot, Failure, LEASE, Library, Result, WAIT};
pub use notes::Entry;
pub use serve::{Threads, serve};
