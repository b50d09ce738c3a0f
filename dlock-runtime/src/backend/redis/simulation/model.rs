//! One run: a server and its clients on a simulated network, from one seed.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use tokio::runtime;
use turmoil::Sim;

use crate::backend::redis::simulation::clients::client;
use crate::backend::redis::simulation::disconnects::Reasons;
use crate::backend::redis::simulation::faults::{Counts, Fault};
use crate::backend::redis::simulation::host::{Host, PORT};
use crate::backend::redis::simulation::invariants::{self, Hold};
use crate::backend::redis::simulation::panics;
use crate::backend::redis::simulation::parameters::Parameters;
use crate::protocol::deadline::BootInstant;
use crate::simulated;

pub(super) const SERVER: &str = "server";

/// Returns the host name of a client.
pub(super) fn name(client: usize) -> &'static str {
    ["a", "b", "c"][client]
}

/// The parameters of a run: network, clocks, faults, and the behavior of the clients.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) url: String,
    pub(super) clients: usize,
    pub(super) tasks: usize,
    pub(super) keys: u64,
    pub(super) lease: Duration,
    /// The longest time that a lock is held.
    pub(super) work: Duration,
    /// The percentage of holds that continue until the lock is lost.
    pub(super) stays: u64,
    /// The percentage of holds that are renewed.
    pub(super) renewed: u64,
    pub(super) wait: Duration,
    pub(super) pause: Duration,
    pub(super) response_timeout: Duration,
    pub(super) connect_timeout: Duration,
    /// The clock drift of each client in parts per million.
    drift: [i32; 3],
    pub(super) latency: (Duration, Duration),
    /// The kinds of faults, one bit each.
    faults: u64,
    /// The longest time in ms between two faults, and the longest fault.
    between: u64,
    lasting: u64,
}

impl Profile {
    fn of(seed: u64) -> Self {
        let mut parameters = Parameters::new(seed, 0);
        let response_timeout = parameters.millis(80, 250);
        let connect_timeout = parameters.millis(100, 300);
        // A distant server: the round trip takes most of the response timeout, and a connect takes
        // several round trips.
        let is_far = Parameters::new(seed, FAR).chance(20);
        let connect_timeout = if is_far { connect_timeout + Duration::from_secs(1) } else { connect_timeout };
        let one_way = if is_far { response_timeout.mul_f64(0.35) } else { TICK };
        // With long leases and without crashes, waiters are granted the lock in time only if
        // unanswered commands are cleaned up.
        let is_long = parameters.chance(40);
        let lease = if is_long { Duration::from_secs(20) } else { parameters.millis(200, 900) };
        let mut url = format!("redis://{SERVER}:{PORT}/?namespace=dlock");
        let mut option = |name: &str, time: Duration| {
            let _ = write!(url, "&{name}={}ms", time.as_millis());
        };
        option("response_timeout", response_timeout);
        option("connect_timeout", connect_timeout);
        option("grant_lease", parameters.millis(100, 400));
        option("handoff_budget", Duration::from_millis(20 * parameters.below(3)));
        option("poll_interval", parameters.millis(20, 100));
        url.push_str(parameters.one_of(&["", "", "&tracking=off", "&yield_to_foreign=on"]));
        let most = parameters.one_of(&[0, 10, 40]);
        let drift = parameters.one_of(&[0, 4_000]);
        Self {
            url,
            clients: 2 + parameters.index(2),
            tasks: 1 + parameters.index(2),
            keys: parameters.one_of(&[1, 1, 2]),
            lease,
            work: lease.min(Duration::from_millis(400)).mul_f64(parameters.one_of(&[0.1, 0.4, 1.5])),
            stays: if is_long { 0 } else { 20 },
            renewed: parameters.one_of(&[0, 50, 100]),
            wait: parameters.millis(50, 800),
            pause: parameters.millis(1, 60),
            response_timeout,
            connect_timeout,
            drift: [drift, -drift, 0],
            latency: (one_way, one_way + Duration::from_millis(if is_far { most / 4 } else { most })),
            faults: match parameters.below(20) {
                0 => 0,
                _ if is_long => (parameters.next() | parameters.next()) & !Fault::CLIENT_CRASHES,
                _ => parameters.next() | parameters.next(),
            },
            between: parameters.one_of(&[60, 150, 400]),
            lasting: parameters.one_of(&[30, 200, 600]),
        }
    }
}

/// The parameter stream for the distance of the server.
const FAR: u64 = 1_000;

/// The state that all parts of a run share.
pub(super) struct RedisSimulation {
    pub(super) seed: u64,
    pub(super) profile: Profile,
    pub(super) host: Rc<Host>,
    pub(super) holds: RefCell<Vec<Hold>>,
    pub(super) violations: RefCell<Vec<String>>,
    /// How often each client was started.
    pub(super) starts: RefCell<[u64; 3]>,
    pub(super) done: Cell<usize>,
}

impl RedisSimulation {
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        Self {
            seed,
            profile: Profile::of(seed),
            host: Rc::new(Host::new(traced)),
            holds: RefCell::default(),
            violations: RefCell::default(),
            starts: RefCell::default(),
            done: Cell::new(0),
        }
    }

    /// Records an event if the run is traced.
    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        self.host.note(what);
    }

    pub(super) fn violated(&self, what: String) {
        self.note(|| format!("VIOLATED {what}"));
        self.violations.borrow_mut().push(what);
    }

    /// Awaits a call that must end within `limit`.
    pub(super) async fn within<F: Future>(&self, what: &str, limit: Duration, call: F) -> Option<F::Output> {
        let limit = limit.mul_f64(1.005) + SLACK; // its clock may drift
        let ended = tokio::time::timeout(limit, call).await.ok();
        if ended.is_none() {
            self.violated(format!("J8: {what} had not ended after {limit:?}"));
        }
        ended
    }
}

/// The result of a run.
pub(super) struct Outcome {
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
    pub(super) trace: Vec<String>,
    pub(super) holds: usize,
    pub(super) lasted: Duration,
}

thread_local! {
    /// The start of the current step.
    static STEP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// The clock drift of each runtime in parts per million.
    static DRIFTS: RefCell<HashMap<runtime::Id, i32>> = RefCell::default();
}

/// Returns how long the run has lasted.
pub(super) fn sim_time() -> Duration {
    let step = STEP.get();
    // During the drop of a crashed host there is no simulated clock.
    turmoil::sim_elapsed().map_or(step, |time| time.clamp(step, step + TICK))
}

/// Sets the drift of the current host's boot clock.
pub(super) fn drifts(simulation: &RedisSimulation, client: usize) {
    let here = runtime::Handle::current().id();
    DRIFTS.with_borrow_mut(|drifts| drifts.insert(here, simulation.profile.drift[client]));
}

/// Returns the true time in which the clock of the current host counts `time`.
pub(super) fn in_true_time(time: Duration) -> Duration {
    time.mul_f64(1.0 / (1.0 + f64::from(drift()) / 1e6))
}

fn drift() -> i32 {
    let here = runtime::Handle::try_current().ok().map(|handle| handle.id());
    here.and_then(|here| DRIFTS.with_borrow(|drifts| drifts.get(&here).copied())).unwrap_or_default()
}

fn clock() -> BootInstant {
    let time = START + i64::try_from(sim_time().as_nanos()).unwrap_or(i64::MAX);
    BootInstant::from_nanos((time + time / 1_000_000 * i64::from(drift())).unsigned_abs())
}

/// Runs a seed.
pub(super) fn run(seed: u64, traced: bool) -> Outcome {
    STEP.set(Duration::ZERO);
    DRIFTS.take();
    let _simulated = simulated::begin(clock);
    let _watch = panics::watch();
    let reasons = Reasons::record();
    let simulation = Rc::new(RedisSimulation::new(seed, traced));
    simulation.note(|| format!("{:?}", simulation.profile));
    steps(&simulation);
    let reasons = reasons.taken();
    for reason in &reasons {
        simulation.note(|| format!("a client reported: {reason}"));
    }
    simulation.host.note_effects(&reasons);
    let holds = std::mem::take(&mut *simulation.holds.borrow_mut());
    let had_holds = holds.len();
    invariants::check(&simulation, &holds);
    let mut violations = simulation.violations.take();
    violations.extend(panics::seen().into_iter().map(|panic| format!("P5: panicked: {panic}")));
    let trace = simulation.host.trace.as_ref().map(RefCell::take).unwrap_or_default();
    Outcome {
        violations,
        counts: simulation.host.counts.borrow().clone(),
        trace,
        holds: had_holds,
        lasted: sim_time(),
    }
}

/// Runs the simulation to its end.
fn steps(simulation: &Rc<RedisSimulation>) {
    let mut sim = network(simulation);
    let (mut faults, mut begun) = (schedule(simulation), Vec::<(Duration, Fault)>::new());
    let mut has_ended = false;
    while simulation.done.get() < simulation.profile.clients {
        let now = sim.elapsed();
        STEP.set(now);
        begun.retain(|(end, fault)| {
            let lasts = now < *end;
            if !lasts {
                simulation.note(|| format!("ended: {fault:?}"));
                fault.end(&mut sim);
            }
            lasts
        });
        while let Some((_, length, fault)) = faults.pop_if(|(at, ..)| *at <= now) {
            simulation.note(|| format!("for {length:?}: {fault:?}"));
            fault.begin(&mut sim, &simulation.host, length);
            begun.push((now + length, fault));
        }
        if now >= FAULTS_END && !has_ended {
            has_ended = true;
            simulation.note(|| "faults ended".to_owned());
            simulation.host.active_faults.end();
            for client in 0..simulation.profile.clients {
                sim.release(name(client), SERVER);
            }
        }
        if now > LIMIT {
            return simulation.violated("J5: the clients do not finish".to_owned());
        }
        if let Err(error) = sim.step() {
            return simulation.violated(format!("P5: a host failed: {error}"));
        }
    }
    STEP.set(sim.elapsed());
}

fn network<'a>(simulation: &Rc<RedisSimulation>) -> Sim<'a> {
    let Profile { latency: (least, most), clients, .. } = simulation.profile;
    let mut builder = turmoil::Builder::new();
    builder.rng_seed(simulation.seed).epoch(SystemTime::UNIX_EPOCH).tick_duration(TICK);
    builder.min_message_latency(least).max_message_latency(most).tcp_capacity(1 << 12);
    builder.simulation_duration(LIMIT * 2).enable_random_order();
    let mut sim = builder.build();
    let host = Rc::clone(&simulation.host);
    sim.host(SERVER, move || Rc::clone(&host).serve());
    for number in 0..clients {
        let simulation = Rc::clone(simulation);
        sim.host(name(number), move || client(Rc::clone(&simulation), number));
    }
    sim
}

/// Returns the start, duration, and kind of each fault, in reverse order.
fn schedule(simulation: &RedisSimulation) -> Vec<(Duration, Duration, Fault)> {
    let Profile { clients, keys, faults: chosen, between, lasting, .. } = simulation.profile;
    let mut parameters = Parameters::new(simulation.seed, 1);
    let (mut schedule, mut at) = (Vec::new(), parameters.millis(20, 150));
    while at < FAULTS_END {
        let length = parameters.millis(10, lasting).min(FAULTS_END.saturating_sub(at));
        let fault = Fault::draw(&mut parameters, chosen, (clients, keys));
        schedule.extend(fault.map(|fault| (at, length, fault)));
        at += parameters.millis(1, between);
    }
    schedule.reverse();
    schedule
}

/// The duration of a step. Hosts exchange messages only between steps, so no latency is below it.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// When the last fault has ended.
pub(super) const FAULTS_END: Duration = Duration::from_millis(1_500);

/// The limit of a run; without progress, it never ends.
const LIMIT: Duration = Duration::from_secs(30);

/// How much longer than its limit a call may take.
const SLACK: Duration = Duration::from_millis(100);

/// The boot clocks at the start of a run, in nanoseconds.
const START: i64 = 1_000_000_000;
