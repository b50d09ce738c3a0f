//! The test environment: real servers, networks that can fail, hostile servers, and helper
//! processes.
//!
//! Nothing here knows how a lock works. Everything listens on 127.0.0.1 only, is bounded, and ends
//! with the test that started it.
//!
//! # Layout
//!
//! | module | owns |
//! |---|---|
//! | [`server`] | a real Redis or Valkey with its own folder, which can be frozen, killed, and restarted |
//! | `port` | the ports of these servers, which stay theirs while they are down |
//! | [`acl`] | the users that the operating guide describes |
//! | [`wall_clock`] | the wall clock of a server or a process, which can step and drift |
//! | [`authority`] | certificate authorities and the certificates that they sign |
//! | [`quorum`] | independent servers for a quorum |
//! | [`sentinel`] | a primary, its replicas, and the sentinels that monitor them |
//! | [`cluster`] | the primaries of a cluster and their replicas, with failovers and slot migrations |
//! | [`work`], [`judge`] | tasks that hold locks meanwhile, and the checks of what they observed |
//! | [`history`] | the events that processes and tasks record, one JSON line per event |
//! | [`stalls`] | the times at which this process was not scheduled, recorded in its history |
//! | [`judges`] | the invariants of every history |
//! | [`handoff`] | the time from a release to the grant to a waiter, in each namespace |
//! | [`guarded`] | a resource that keeps the highest fencing token |
//! | [`dice`] | random numbers that are reproducible with a seed |
//! | [`proxy`] | a network in front of a server that loses, holds, delays, and cuts on demand |
//! | [`filter`] | a proxy that lacks commands |
//! | [`hostile`] | a server that replies with whatever a test specifies |
//! | [`process`] | helper processes driven by text lines, which can be frozen and killed |
//! | [`worker`] | the side of such a process: reads commands, reports events |
//! | [`fleet`] | the real clients of other libraries and languages, installed once |
//! | `talk` | text lines to and from a helper program |
//! | [`redisson`] | a real Redisson in a Java process, driven by text lines |
//! | [`maven`] | the build of that Java program |
//! | [`polls`] | futures that are polled a few times and dropped |
//! | [`child`] | a child process that ends with the test process |
//! | [`resp`] | a minimal Redis protocol: framing of requests, and queries to a server |
//! | `resident` | the resident memory of this process |
//! | [`clock`] | the boot clock, which counts while the machine sleeps, and time limits for tests |
//! | [`io_thread`] | a thread with its own runtime, which a test cannot block |
//! | [`world`] | the backend of a contract test: in memory, or a separate Redis |

pub mod acl;
pub mod authority;
pub mod child;
pub mod clock;
pub mod cluster;
pub mod dice;
pub mod filter;
pub mod fleet;
pub mod guarded;
pub mod handoff;
pub mod history;
pub mod hostile;
pub mod io_thread;
pub mod judge;
pub mod judges;
pub mod maven;
pub mod polls;
mod port;
pub mod process;
pub mod proxy;
pub mod quorum;
pub mod redisson;
#[cfg(target_os = "linux")]
pub mod resident;
pub mod resp;
pub mod sentinel;
pub mod server;
pub mod stalls;
mod talk;
pub mod wall_clock;
pub mod work;
pub mod worker;
pub mod world;

pub use authority::{Authority, Identity};
pub use clock::{Moment, overrun, thread_within, until, within};
pub use cluster::ClusterFleet;
pub use fleet::{Client, Fleet};
pub use hostile::{Answer, HostileServer, Request};
pub use process::Worker;
pub use proxy::{Proxy, ProxyHandle, Sent};
pub use quorum::QuorumFleet;
pub use redisson::Redisson;
pub use sentinel::SentinelFleet;
pub use server::RedisServer;
pub use wall_clock::WallClock;
