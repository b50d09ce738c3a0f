//! Queries servers for `doctor`, on a separate thread, as a manager would.
//!
//! | module | contents |
//! |---|---|
//! | `session` | one query at a time, within a time limit |
//! | `server` | the queries to one server |
//! | `command_check` | tries the commands that locks need |
//!
//! See also `sentinel::probe` and `cluster::probe`, which query sentinels and clusters, and
//! `doctor`, which evaluates the replies.

mod command_check;
mod server;
pub(super) mod session;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::backend::redis::probe::command_check::CommandCheck;
use crate::backend::redis::probe::session::ProbeTimeout;
use crate::backend::redis::topology::cluster;
use crate::backend::redis::topology::sentinel::Sentinels;
use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::config::Settings;
use crate::config::cluster::ClusterEndpoint;
use crate::config::node_spec::NodeSpec;
use crate::config::sentinel::SentinelEndpoint;
use crate::doctor::facts::{Deployment, Facts, Part, Terms};
use crate::error::Result;
use crate::protocol::command::{Failure, FailureKind};

/// Examines the given servers, each of which stores locks.
pub(crate) async fn examine(
    servers: Vec<NodeSpec>,
    topology: Deployment,
    settings: Settings,
) -> Result<Facts> {
    let usage = CommandCheck::new(topology, &settings);
    let terms = terms(&settings, topology, &usage);
    let routes: Vec<_> = servers.into_iter().map(|server| ConnectTarget::new(server, &settings)).collect();
    let ask = async move {
        let timeout = ProbeTimeout::new(LIMIT);
        join_all(routes.iter().map(|route| server::ask(route, Part::Master, &usage, timeout))).await
    };
    let servers = on_a_thread(ask).await?;
    Ok(Facts { servers, omitted: 0, sentinels: Vec::new(), seeds: Vec::new(), terms })
}

/// Examines sentinels, the primary that they report, and its replicas.
pub(crate) async fn examine_by_sentinels(watched: SentinelEndpoint, settings: Settings) -> Result<Facts> {
    let usage = CommandCheck::new(Deployment::Sentinels, &settings);
    let terms = terms(&settings, Deployment::Sentinels, &usage);
    let entry = watched.master.clone();
    let sentinels = Sentinels::new(watched, &settings);
    let ask = async move {
        // A sentinel that does not reply must leave time for the servers.
        let found = sentinels.examine(ProbeTimeout::new(TO_FIND_THEM)).await;
        let timeout = ProbeTimeout::new(ONCE_FOUND);
        let primaries = found.master.into_iter().map(|at| (at, Part::Master));
        let replicas = found.replicas.into_iter().map(|at| (at, Part::Replica));
        let mut addresses = primaries.chain(replicas);
        let routes = addresses.by_ref().take(MAX_SERVERS).map(|(Address { host, port }, part)| {
            (ConnectTarget::new(NodeSpec { host, port, ..entry.clone() }, &settings), part)
        });
        let routes: Vec<_> = routes.collect();
        let asked = routes.iter().map(|(route, part)| server::ask(route, *part, &usage, timeout));
        (join_all(asked).await, addresses.count(), found.sentinels)
    };
    let (servers, omitted, sentinels) = on_a_thread(ask).await?;
    Ok(Facts { servers, omitted, sentinels, seeds: Vec::new(), terms })
}

/// Examines a cluster through some of its servers, and each of its primaries and replicas.
pub(crate) async fn examine_cluster(seeds: ClusterEndpoint, settings: Settings) -> Result<Facts> {
    let usage = CommandCheck::new(Deployment::Cluster, &settings);
    let terms = terms(&settings, Deployment::Cluster, &usage);
    let ClusterEndpoint { servers, access } = seeds;
    let named: Vec<_> = servers.into_iter().map(|server| ConnectTarget::new(server, &settings)).collect();
    let ask = async move {
        let found = cluster::probe::look(&named, &usage.key, ProbeTimeout::new(TO_FIND_THEM)).await;
        let timeout = ProbeTimeout::new(ONCE_FOUND);
        let primaries = found.primaries.into_iter().map(|(at, key)| (at, Part::Master, key));
        let replicas = found.replicas.into_iter().map(|at| (at, Part::Replica, String::new()));
        let mut addresses = primaries.chain(replicas);
        let routes = addresses.by_ref().take(MAX_SERVERS).map(|(Address { host, port }, part, key)| {
            let route = ConnectTarget::new(NodeSpec { host, port, ..access.clone() }, &settings);
            (route, part, CommandCheck::new(Deployment::Cluster, &settings).on(key))
        });
        let routes: Vec<_> = routes.collect();
        let asked = routes.iter().map(|(route, part, usage)| server::ask(route, *part, usage, timeout));
        (join_all(asked).await, addresses.count(), found.seeds)
    };
    let (servers, omitted, seeds) = on_a_thread(ask).await?;
    Ok(Facts { servers, omitted, sentinels: Vec::new(), seeds, terms })
}

/// Returns how a manager with these settings would use its servers.
fn terms(settings: &Settings, topology: Deployment, usage: &CommandCheck) -> Terms {
    let (rules, namespaces) = (&settings.rules, &usage.namespaces);
    let channel = usage.encoding.release_channel(namespaces, "*");
    Terms {
        namespace: settings.namespace.clone(),
        channels: channel.unwrap_or_else(|| format!("{}*", namespaces.own().grants())),
        response_timeout: rules.response_timeout,
        grant_lease: rules.grant_lease,
        lease: settings.lease,
        poll_interval: rules.poll_interval,
        replica_acks: rules.replica_acks,
        topology,
    }
}

/// Runs `ask` on a thread with its own runtime, because the caller's may lack timers and sockets.
/// Dropping the future cancels it.
pub(super) async fn on_a_thread<T: Send + 'static>(
    ask: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let failed = |text: String| Failure::new(FailureKind::Passing, text).of_the_server();
    let (mut sender, receiver) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(format!("the examination has no runtime: {error}")))?;
    let thread = std::thread::Builder::new().name("dlock-doctor".to_owned()).spawn(move || {
        let asked = runtime.block_on(async {
            tokio::select! {
                asked = ask => Some(asked),
                () = sender.closed() => None,
            }
        });
        if let Some(asked) = asked {
            let _ = sender.send(asked);
        }
    });
    thread.map_err(|error| failed(format!("the examination has no thread: {error}")))?;
    receiver.await.map_err(|_| failed("the examination ended without a result".to_owned()))
}

/// How many servers that others name are examined. Each needs up to two connections at once.
const MAX_SERVERS: usize = 256;

/// The time limit of a whole examination.
const LIMIT: Duration = Duration::from_secs(5);
const TO_FIND_THEM: Duration = Duration::from_secs(2);
const ONCE_FOUND: Duration = LIMIT.saturating_sub(TO_FIND_THEM);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{assert_listed, written};

    #[test]
    fn the_guide_lists_the_number_of_examined_servers() {
        assert_listed("servers that `dlock doctor` examines", &written(MAX_SERVERS));
    }
}
