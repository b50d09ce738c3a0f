//! What the tests stand on: real servers, a network that can be broken, servers that lie, processes that can be killed.
//!
//! Nothing here knows how a lock works. Everything listens on 127.0.0.1 only, is bounded, and ends with the test that started it.
//!
//! # Layout
//!
//! | module | owns |
//! |---|---|
//! | [`server`] | a real Redis or Valkey in a folder of its own, to be frozen, killed and started again |
//! | [`acl`] | the users that the guide on operating describes |
//! | [`wall_clock`] | the wall clock of a server or a process, to be stepped and to drift |
//! | [`authority`] | who signs certificates, and what it signs |
//! | [`quorum`] | servers that know nothing of each other |
//! | [`sentinel`] | a master, its replicas, and the sentinels that watch them |
//! | [`cluster`] | the masters of a cluster and their replicas, to be failed over and to have slots moved |
//! | [`work`], [`judge`] | tasks that hold locks meanwhile, and what must be true of what they saw |
//! | [`history`] | what processes and their tasks saw, one JSON line per event |
//! | [`stalls`] | when this process got no processor, noted in its history |
//! | [`judges`] | what must be true of every history |
//! | [`handover`] | how soon a released lock reaches a waiter, in each namespace |
//! | [`guarded`] | what locks are for: it keeps the highest fencing token |
//! | [`dice`] | random numbers that a seed gives again |
//! | [`proxy`] | a network in front of it that loses, holds, delays and cuts on demand |
//! | [`hostile`] | a server that answers what a test tells it to |
//! | [`process`] | helper processes driven over lines of text, to be frozen and killed |
//! | [`fleet`] | the real clients of other libraries and languages, installed once |
//! | `talk` | lines to and from a program of ours |
//! | [`redisson`] | a real Redisson in a Java of its own, driven over lines of text |
//! | [`maven`] | what that Java is built by |
//! | [`polls`] | futures that are polled a few times and dropped |
//! | [`child`] | a process that is ours: by its id, and gone when we are |
//! | [`resp`] | just enough of Redis's protocol to frame requests and to ask a server something |
//! | `resident` | how much memory this process has |
//! | [`clock`] | the clock that counts while the machine sleeps, and time limits for tests |
//! | [`io_thread`] | a thread with a runtime of its own, which a test cannot block |
//! | [`world`] | where a contract test runs: in memory or over a Redis of its own |

pub mod acl;
pub mod authority;
pub mod child;
pub mod clock;
pub mod cluster;
pub mod dice;
pub mod filter;
pub mod fleet;
pub mod guarded;
pub mod handover;
pub mod history;
pub mod hostile;
pub mod io;
pub mod io_thread;
pub mod judge;
pub mod judges;
pub mod maven;
pub mod polls;
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
pub mod world;

pub use authority::{Authority, Identity};
pub use clock::{Moment, thread_within, within};
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
