//! Asks servers what `doctor` wants to know of them, on a thread of its own, as the manager would.
//!
//! | file | owns |
//! |---|---|
//! | `asking` | one question at a time, within the time that is left |
//! | `server` | what is asked of one server |
//! | `probe` | the commands that locks need, tried |
//!
//! What sentinels are asked, and clusters about themselves, is with them (`sentinel::probe`, `cluster::probe`). Not here: what the
//! answers mean (`doctor`).

mod probe;
mod server;
pub(super) mod session;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::probe::probe::CommandCheck;
use crate::backend::redis::probe::session::ProbeTimeout;
use crate::backend::redis::topology::address::Address;
use crate::backend::redis::topology::cluster;
use crate::backend::redis::topology::sentinel::Sentinels;
use crate::config::Settings;
use crate::config::cluster::ClusterEndpoint;
use crate::config::sentinel::SentinelEndpoint;
use crate::config::url;
use crate::doctor::facts::{Facts, Part, Terms, Topology};
use crate::error::Result;
use crate::protocol::command::{Failure, FailureKind};

/// Reads what there is to know of servers that are named, each of which keeps locks.
pub(crate) async fn examine(
    servers: Vec<url::Server>,
    topology: Topology,
    settings: Settings,
) -> Result<Facts> {
    let usage = CommandCheck::new(topology, &settings);
    let terms = terms(&settings, topology, &usage);
    let routes = servers.into_iter().map(|server| ConnectTarget::new(server, &settings));
    let routes = routes.collect::<Result<Vec<_>>>()?;
    let ask = async move {
        let retry_state = ProbeTimeout::new(LIMIT);
        join_all(routes.iter().map(|route| server::ask(route, Part::Master, &usage, retry_state))).await
    };
    let servers = on_a_thread(ask).await?;
    Ok(Facts { servers, sentinels: Vec::new(), seeds: Vec::new(), terms })
}

/// Reads what there is to know of sentinels, of the master that they name, and of its replicas.
pub(crate) async fn examine_by_sentinels(watched: SentinelEndpoint, settings: Settings) -> Result<Facts> {
    let usage = CommandCheck::new(Topology::Sentinels, &settings);
    let terms = terms(&settings, Topology::Sentinels, &usage);
    let entry = watched.master.clone();
    let sentinels = Sentinels::new(watched, &settings)?;
    let ask = async move {
        // One that does not answer must leave time for the servers.
        let said = sentinels.examine(ProbeTimeout::new(TO_FIND_THEM)).await;
        let retry_state = ProbeTimeout::new(ONCE_FOUND);
        let masters = said.master.into_iter().map(|at| (at, Part::Master));
        let replicas = said.replicas.into_iter().map(|at| (at, Part::Replica));
        let routes = masters.chain(replicas).filter_map(|((host, port), part)| {
            Some((ConnectTarget::new(url::Server { host, port, ..entry.clone() }, &settings).ok()?, part))
        });
        let routes: Vec<_> = routes.collect();
        let asked = routes.iter().map(|(route, part)| server::ask(route, *part, &usage, retry_state));
        (join_all(asked).await, said.sentinels)
    };
    let (servers, sentinels) = on_a_thread(ask).await?;
    Ok(Facts { servers, sentinels, seeds: Vec::new(), terms })
}

/// Reads what there is to know of a cluster, by some of its servers, and of each of its masters and replicas.
pub(crate) async fn examine_cluster(seeds: ClusterEndpoint, settings: Settings) -> Result<Facts> {
    let usage = CommandCheck::new(Topology::Cluster, &settings);
    let terms = terms(&settings, Topology::Cluster, &usage);
    let ClusterEndpoint { servers, access } = seeds;
    let named = servers.into_iter().map(|server| ConnectTarget::new(server, &settings));
    let named = named.collect::<Result<Vec<_>>>()?;
    let ask = async move {
        let said = cluster::probe::look(&named, &usage.key, ProbeTimeout::new(TO_FIND_THEM)).await;
        let retry_state = ProbeTimeout::new(ONCE_FOUND);
        let masters = said.masters.into_iter().map(|(at, key)| (at, Part::Master, key));
        let replicas = said.replicas.into_iter().map(|at| (at, Part::Replica, String::new()));
        let routes = masters.chain(replicas).filter_map(|(Address { host, port }, part, key)| {
            let route = ConnectTarget::new(url::Server { host, port, ..access.clone() }, &settings).ok()?;
            Some((route, part, CommandCheck::new(Topology::Cluster, &settings).on(key)))
        });
        let routes: Vec<_> = routes.collect();
        let asked = routes.iter().map(|(route, part, usage)| server::ask(route, *part, usage, retry_state));
        (join_all(asked).await, said.seeds)
    };
    let (servers, seeds) = on_a_thread(ask).await?;
    Ok(Facts { servers, sentinels: Vec::new(), seeds, terms })
}

/// Says how a manager with these settings is going to use its servers.
fn terms(settings: &Settings, topology: Topology, usage: &CommandCheck) -> Terms {
    let (rules, namespaces) = (&settings.rules, &usage.namespaces);
    let bells = usage.layout.bell(namespaces, "*");
    Terms {
        namespace: settings.namespace.clone(),
        channels: bells.unwrap_or_else(|| format!("{}*", namespaces.own().grants())),
        response_timeout: rules.response_timeout,
        grant_lease: rules.grant_lease,
        lease: settings.lease,
        poll_interval: rules.poll_interval,
        replica_acks: rules.replica_acks,
        topology,
    }
}

/// Runs questions where there are timers and sockets, whatever the caller's runtime has. Who stops waiting ends them.
pub(super) async fn on_a_thread<T: Send + 'static>(
    ask: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let failed = |text: String| Failure::new(FailureKind::Passing, text).of_the_server();
    let (mut tell, told) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(format!("the examination has no runtime: {error}")))?;
    let thread = std::thread::Builder::new().name("dlock-doctor".to_owned()).spawn(move || {
        let asked = runtime.block_on(async {
            tokio::select! {
                asked = ask => Some(asked),
                () = tell.closed() => None,
            }
        });
        if let Some(asked) = asked {
            let _ = tell.send(asked);
        }
    });
    thread.map_err(|error| failed(format!("the examination has no thread: {error}")))?;
    told.await.map_err(|_| failed("the examination ended without an answer".to_owned()))
}

/// What an examination may take in all.
const LIMIT: Duration = Duration::from_secs(5);
const TO_FIND_THEM: Duration = Duration::from_secs(2);
const ONCE_FOUND: Duration = LIMIT.saturating_sub(TO_FIND_THEM);
