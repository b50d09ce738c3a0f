//! A server behind a slow network that counts requests, and the cost of an operation there.

use std::collections::BTreeMap;
use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::world::{ids_in, name};
use dlock_tests::{Moment, Proxy, RedisServer, within};

/// A server and the network in front of it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) server: RedisServer,
    pub(crate) proxy: Proxy,
}

impl Wire {
    pub(crate) fn start() -> Self {
        Self::to(RedisServer::start())
    }

    pub(crate) fn to(server: RedisServer) -> Self {
        let proxy = Proxy::in_front_of(&server);
        Self { server, proxy }
    }

    /// Connects a new manager with options that prevent all timed commands.
    pub(crate) async fn manager(&self) -> LockManager {
        self.manager_with(STEADY).await
    }

    pub(crate) async fn manager_with(&self, options: &str) -> LockManager {
        LockManager::connect(&self.proxy.url_with(options)).await.expect("the server takes managers")
    }

    /// Returns the cost of `operation`.
    pub(crate) async fn cost(&self, operation: impl Future<Output = ()>) -> Cost {
        cost(&[self], operation).await
    }

    /// Waits until `count` waiters are queued behind the holder of `key`.
    pub(crate) async fn until_waiting(&self, key: &str, count: usize) {
        let come = async {
            while ids_in(self.server.call(&["GET", &name(key)]).text().unwrap_or_default()) <= count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        within(Duration::from_secs(10), &format!("{count} waiting for {key}"), come).await;
    }
}

/// The cost of an operation, in a format such as `1 EVALSHA, 1 SET`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// The commands that clients send.
    pub(crate) sent: String,
    /// The commands that servers run, including those of scripts.
    pub(crate) ran: String,
}

impl Cost {
    /// Checks the cost.
    pub(crate) fn is(&self, sent: &str, ran: &str) {
        let wanted = Self { sent: sent.to_owned(), ran: ran.to_owned() };
        assert_eq!(*self, wanted, "the cost differs from the performance guide");
    }
}

/// Returns the total cost of `operation` on several servers.
pub(crate) async fn cost(wires: &[&Wire], operation: impl Future<Output = ()>) -> Cost {
    let ran_so_far = || wires.iter().map(|wire| wire.server.commands()).collect::<Vec<_>>();
    for wire in wires {
        wire.proxy.note_requests();
    }
    let before = ran_so_far();
    within(LIMIT, "the operation", operation).await;
    let mut counted = BTreeMap::new();
    for (before, after) in before.iter().zip(ran_so_far()) {
        for (name, calls) in after {
            let calls = calls - before.get(&name).copied().unwrap_or_default();
            *counted.entry(name).or_default() += calls;
        }
    }
    let mut sent = BTreeMap::new();
    for noted in wires.iter().flat_map(|wire| wire.proxy.noted()) {
        *sent.entry(noted.name).or_default() += 1;
    }
    counted.retain(|name, _| !BESIDES.contains(&&*name.to_uppercase()));
    // Sentinels send `PUBLISH`; dlock publishes only from scripts.
    sent.retain(|name, _| !BESIDES.contains(&&**name) && name != "PUBLISH");
    Cost { sent: in_words(&sent), ran: in_words(&counted) }
}

fn in_words(counted: &BTreeMap<String, u64>) -> String {
    let parts: Vec<_> = counted
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    parts.join(", ")
}

/// Checks that `operation` takes exactly this number of round trips.
///
/// It must never take less, and at least one of several attempts must take less than one round trip
/// more. A busy machine delays only some attempts, but an additional round trip delays all.
///
/// # Panics
///
/// Panics if the number of round trips differs.
pub(crate) async fn assert_takes(trips: u32, what: &str, mut operation: impl AsyncFnMut() -> Duration) {
    let mut taken = Vec::new();
    for _ in 0..TRIES {
        let time = within(LIMIT, what, operation()).await;
        assert!(time >= ROUND_TRIP * trips, "{what} does not wait for its {trips} round trips: {time:?}");
        if time < ROUND_TRIP * (trips + 1) {
            return;
        }
        taken.push(time);
    }
    panic!("{what} takes more than {trips} round trips of {ROUND_TRIP:?}: {taken:?}");
}

/// Returns the duration of `operation`.
pub(crate) async fn time(operation: impl Future) -> Duration {
    let started = Moment::now();
    operation.await;
    started.elapsed()
}

/// Options with which, on a busy machine, no hold is checked and no waiter polls during a test.
pub(crate) const STEADY: &str = "?tracking=off&grant_lease=60s&response_timeout=5s";

/// A distance around the world: longer than a busy machine takes for a few wake-ups.
pub(crate) const ROUND_TRIP: Duration = Duration::from_millis(120);

/// Commands that maintain connections, channels, and topologies, or that tests send.
const BESIDES: [&str; 12] = [
    "PING",
    "INFO",
    "AUTH",
    "ROLE",
    "REPLCONF",
    "CLUSTER",
    "CLUSTER|INFO",
    "CLUSTER|SLOTS",
    "SENTINEL",
    "PUBSUB|NUMSUB",
    "UNSUBSCRIBE",
    "GET",
];

const TRIES: usize = 8;
const LIMIT: Duration = Duration::from_secs(30);
