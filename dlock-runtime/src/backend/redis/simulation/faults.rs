//! The faults of a run: kinds, schedule, and counts.
//!
//! See also `host`, which implements the faults on the server's side.

use std::collections::BTreeMap;
use std::time::Duration;

use turmoil::Sim;

use crate::backend::redis::simulation::floods::{Flood, Flooded};
use crate::backend::redis::simulation::host::{Cut, Host};
use crate::backend::redis::simulation::model::{FAULTS_END, SERVER, TICK, name, sim_time};
use crate::backend::redis::simulation::parameters::Parameters;
use crate::backend::redis::simulation::redis_stub::{ForeignData, NAMESPACE};
use crate::bounds::LONGEST_VALUE;
use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;

/// A fault, temporary or instantaneous.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Messages between a client and the server are lost.
    Partition {
        client: usize,
    },
    /// Messages in one direction are lost.
    OneWay {
        client: usize,
        from_server: bool,
    },
    /// Messages arrive when the fault ends.
    Hold {
        client: usize,
    },
    /// The server closes connections, and the clients are not notified.
    HalfOpen {
        client: usize,
    },
    /// The latency exceeds the response timeout.
    HighLatency {
        client: usize,
        latency: Duration,
    },
    ClientCrash {
        client: usize,
    },
    ServerCrash {
        keeps: bool,
    },
    /// The server does not respond.
    Stall,
    /// Each reply is delayed by `by`.
    Slow {
        by: Duration,
    },
    /// Replies arrive in small pieces.
    Split,
    /// The server accepts no connections; open ones remain.
    Refuse,
    /// The server accepts no connections, and open ones are cut.
    RefuseAll,
    /// The server replies with an error to all commands on locks.
    Err {
        with: &'static str,
    },
    CutAll,
    /// The connections that receive grants are cut.
    CutSubscriptions,
    /// The connection is cut before or after the next command runs.
    CutAt {
        at: Cut,
    },
    ForgetScripts,
    /// Another client writes data under the name of a lock.
    Foreign {
        key: u64,
        data: Foreign,
    },
    /// The server sends without end.
    Flood {
        flood: Flood,
        flooded: Flooded,
    },
}

/// The data that another client writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Foreign {
    /// The present value, with bytes appended up to this length.
    Appended(usize),
    /// A string of this length.
    Text(usize),
    OtherType,
}

/// How often each fault occurred, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(pub(super) BTreeMap<&'static str, u64>);

impl Counts {
    pub(super) fn add(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }
}

impl Fault {
    pub(super) const LOST_KEYS: &str = "the server crashed and lost its keys";
    pub(super) const CUT_BEFORE: &str = "cut off before a command ran";
    pub(super) const CUT_AFTER: &str = "cut off before a reply";
    pub(super) const ERR: &str = "rejected with an error";
    pub(super) const NO_SCRIPT: &str = "called a script that was not loaded";
    const APPENDED: &str = "a value longer than a queue: appended to a lock";
    const LONG_TEXT: &str = "a value longer than a queue";
    const SHORT_TEXT: &str = "a value of another client";
    const OTHER_TYPE: &str = "a key of another type";

    /// The names of all faults.
    pub(super) const NAMES: [&str; 24] = [
        "partition",
        "one way to the server",
        "one way from the server",
        "messages held",
        "half-open",
        "latency above the response timeout",
        "a client crashed",
        "the server crashed and kept its keys",
        Self::LOST_KEYS,
        "the server stalled",
        "slow replies",
        "replies in pieces",
        "no new connections",
        "no connections",
        "all connections cut",
        "subscriptions cut",
        Self::CUT_BEFORE,
        Self::CUT_AFTER,
        Self::ERR,
        Self::NO_SCRIPT,
        Self::APPENDED,
        Self::LONG_TEXT,
        Self::SHORT_TEXT,
        Self::OTHER_TYPE,
    ];

    /// The bit of the kind that leaves locks behind which cannot be cleaned up.
    pub(super) const CLIENT_CRASHES: u64 = 1 << 5;

    /// The number of kinds.
    const KINDS: u64 = 19;

    /// Returns a random fault of the enabled kinds.
    pub(super) fn draw(
        parameters: &mut Parameters,
        chosen: u64,
        (clients, keys): (usize, u64),
    ) -> Option<Self> {
        let kind = parameters.below(Self::KINDS);
        if chosen & (1 << kind) == 0 {
            return None;
        }
        let client = parameters.index(clients);
        Some(match kind {
            0 => Self::Partition { client },
            1 => Self::OneWay { client, from_server: parameters.chance(50) },
            2 => Self::Hold { client },
            3 => Self::HalfOpen { client },
            4 => Self::HighLatency { client, latency: parameters.millis(60, 300) },
            5 => Self::ClientCrash { client },
            6 => Self::ServerCrash { keeps: parameters.chance(80) },
            7 => Self::Stall,
            8 => Self::Slow { by: parameters.millis(10, 150) },
            9 => Self::Split,
            10 => Self::Refuse,
            11 => Self::RefuseAll,
            12 => Self::Err {
                with: parameters.one_of(&[
                    "LOADING Redis is loading the dataset in memory",
                    "READONLY You can't write against a read only replica.",
                    "OOM command not allowed when used memory > 'maxmemory'.",
                    "BUSY Redis is busy running a script.",
                    "MISCONF Redis is configured to save RDB snapshots",
                    "ERR an unknown error of a proxy",
                ]),
            },
            13 => Self::CutAll,
            14 => Self::CutSubscriptions,
            15 => Self::CutAt { at: if parameters.chance(50) { Cut::Before } else { Cut::After } },
            16 => Self::ForgetScripts,
            17 => {
                let length = LONGEST_VALUE + parameters.one_of(&[1, 32, 6_000, 100_000, 1 << 20]);
                let data = match parameters.below(8) {
                    0..4 => Foreign::Appended(length),
                    4..6 => Foreign::Text(length),
                    6 => Foreign::Text(parameters.index(LONGEST_VALUE)),
                    _ => Foreign::OtherType,
                };
                Self::Foreign { key: parameters.below(keys), data }
            }
            _ => {
                let (flood, flooded) = Flood::draw(parameters);
                Self::Flood { flood, flooded }
            }
        })
    }

    /// Returns the name under which it is counted at its start. Some are counted when they take
    /// effect.
    fn name(&self) -> Option<&'static str> {
        Some(match self {
            Self::Partition { .. } => "partition",
            Self::OneWay { from_server: false, .. } => "one way to the server",
            Self::OneWay { .. } => "one way from the server",
            Self::Hold { .. } => "messages held",
            Self::HalfOpen { .. } => "half-open",
            Self::HighLatency { .. } => "latency above the response timeout",
            Self::ClientCrash { .. } => "a client crashed",
            Self::ServerCrash { keeps: true } => "the server crashed and kept its keys",
            Self::ServerCrash { keeps: false } => Self::LOST_KEYS,
            Self::Stall => "the server stalled",
            Self::Slow { .. } => "slow replies",
            Self::Split => "replies in pieces",
            Self::Refuse => "no new connections",
            Self::RefuseAll => "no connections",
            Self::CutAll => "all connections cut",
            Self::CutSubscriptions => "subscriptions cut",
            Self::Foreign { data: Foreign::Text(length), .. } if *length <= LONGEST_VALUE => Self::SHORT_TEXT,
            Self::Foreign { data: Foreign::Text(_), .. } => Self::LONG_TEXT,
            Self::Foreign { data: Foreign::OtherType, .. } => Self::OTHER_TYPE,
            Self::Foreign { data: Foreign::Appended(_), .. } => Self::APPENDED,
            Self::Err { .. } | Self::CutAt { .. } | Self::ForgetScripts | Self::Flood { .. } => return None,
        })
    }

    /// Returns how long after its end a fault may delay the end of a connection, if it does.
    fn disturbance(&self) -> Option<Duration> {
        match self {
            Self::Partition { .. }
            | Self::OneWay { .. }
            | Self::Hold { .. }
            | Self::HalfOpen { .. }
            | Self::ClientCrash { .. }
            | Self::ServerCrash { .. }
            | Self::Stall => Some(TICK * 2),
            Self::HighLatency { latency: late, .. } | Self::Slow { by: late } => Some(*late + TICK * 2),
            _ => None,
        }
    }

    /// Starts the fault. A temporary fault lasts for `length`.
    pub(super) fn begin(&self, sim: &mut Sim<'_>, host: &Host, length: Duration) {
        let until = boot_time().plus(length);
        let mut happened = true;
        if let Some(late) = self.disturbance() {
            host.disturbances.borrow_mut().push((boot_time(), until.plus(late)));
        }
        match self {
            Self::Partition { client } => sim.partition(name(*client), SERVER),
            Self::OneWay { client, from_server: true } => sim.partition_oneway(SERVER, name(*client)),
            Self::OneWay { client, .. } => sim.partition_oneway(name(*client), SERVER),
            Self::Hold { client } => sim.hold(name(*client), SERVER),
            Self::HalfOpen { client } => {
                sim.partition(name(*client), SERVER);
                host.cut(|_| true); // the other clients are notified
            }
            Self::HighLatency { client, latency } => sim.set_link_latency(name(*client), SERVER, *latency),
            Self::ClientCrash { client } => {
                happened = sim.is_host_running(name(*client));
                sim.crash(name(*client));
            }
            Self::ServerCrash { keeps } => {
                sim.crash(SERVER);
                host.restarts(*keeps);
            }
            Self::Stall => host.active_faults.stalls.set(until),
            Self::Slow { by } => host.active_faults.is_slow.set((until, *by)),
            Self::Split => host.active_faults.splits.set(until),
            Self::Refuse => host.refuse_until(until),
            Self::RefuseAll => {
                host.refuse_until(until);
                host.cut(|_| true);
            }
            Self::Err { with } => {
                host.errors.borrow_mut().push((boot_time(), until.plus(LONGEST_WAY)));
                host.active_faults.errs.set((until, with));
            }
            Self::CutAll => happened = host.cut(|_| true) > 0,
            Self::CutSubscriptions => happened = host.cut_subscriptions() > 0,
            Self::CutAt { at } => host.active_faults.cuts.set(Some(*at)),
            Self::ForgetScripts => host.redis.borrow_mut().forget_scripts(),
            Self::Foreign { key, data } => happened = data.write(&format!("{NAMESPACE}:k{key}"), host, until),
            Self::Flood { flood, flooded } => host.flood(*flood, *flooded, until),
        }
        if let Some(name) = self.name().filter(|_| happened) {
            host.counts.borrow_mut().add(name);
        }
    }

    /// Ends the fault. Faults of the host end by themselves.
    pub(super) fn end(&self, sim: &mut Sim<'_>) {
        match self {
            Self::Partition { client } | Self::HalfOpen { client } => sim.repair(name(*client), SERVER),
            Self::OneWay { client, from_server: true } => sim.repair_oneway(SERVER, name(*client)),
            Self::OneWay { client, .. } => sim.repair_oneway(name(*client), SERVER),
            Self::Hold { client } => sim.release(name(*client), SERVER),
            Self::HighLatency { client, .. } => {
                sim.set_link_latency(name(*client), SERVER, TICK);
            }
            Self::ClientCrash { client } if !sim.is_host_running(name(*client)) => sim.bounce(name(*client)),
            Self::ServerCrash { .. } if !sim.is_host_running(SERVER) => sim.bounce(SERVER),
            _ => {}
        }
    }
}

impl Foreign {
    /// Writes the data until `until`. Returns `false` if nothing was written.
    fn write(self, key: &str, host: &Host, until: BootInstant) -> bool {
        let (now, mut redis) = (boot_time(), host.redis.borrow_mut());
        let data = match self {
            Self::OtherType => ForeignData::OtherType,
            Self::Text(length) => ForeignData::Text("x".repeat(length)),
            Self::Appended(length) => {
                let mut text = redis.text(key, now);
                if text.is_empty() {
                    return false;
                }
                text.push_str(&"x".repeat(length.saturating_sub(text.len())));
                ForeignData::Text(text)
            }
        };
        // In the last round, every name is free.
        let latest = now.plus(FAULTS_END.saturating_sub(sim_time()));
        redis.write_foreign(key, data, until, (now, latest)).is_some()
    }
}

/// By then the last reply has arrived.
const LONGEST_WAY: Duration = Duration::from_millis(150);
