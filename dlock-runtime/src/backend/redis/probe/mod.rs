//! Queries servers for `doctor`, on a separate thread, as a manager would.
//!
//! | module | contents |
//! |---|---|
//! | `session` | one query at a time, within a time limit |
//! | `server` | the queries to one server |
//! | `command_check` | tries the commands that locks need |
//! | `other_connections` | tries the connections other than the one for commands |
//!
//! See also `sentinel::probe` and `cluster::probe`, which query sentinels and clusters, and
//! `doctor`, which evaluates the replies.

mod command_check;
mod other_connections;
mod server;
pub(super) mod session;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::backend::redis::node::replica_acks;
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
    let tls = servers.iter().any(|server| server.tls);
    let terms = terms(&settings, topology, tls, &usage);
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
    let terms = terms(&settings, Deployment::Sentinels, watched.master.tls, &usage);
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
    let terms = terms(&settings, Deployment::Cluster, seeds.access.tls, &usage);
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
fn terms(settings: &Settings, topology: Deployment, tls: bool, usage: &CommandCheck) -> Terms {
    let (rules, namespaces) = (&settings.rules, &usage.namespaces);
    let channel = usage.encoding.release_channel(namespaces, "*");
    Terms {
        namespace: settings.namespace.clone(),
        channels: channel.unwrap_or_else(|| format!("{}*", namespaces.own().grants())),
        response_timeout: rules.response_timeout,
        grant_lease: rules.grant_lease,
        lease: settings.lease,
        replica_acks: rules.replica_acks,
        ack_limit: replica_acks::ack_limit(rules.response_timeout),
        topology,
        tls,
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
    use crate::backend::redis::tests::resp::{self, array, bulk, list, reports};
    use crate::backend::redis::tests::scripted_server::{LIMIT as LONG, ScriptedServer, patient};
    use crate::bounds::{assert_listed, written};
    use crate::doctor::facts::{Sentinel, Server};
    use crate::layout::Layout;

    /// A sentinel that reports the primary `h:port` with these replicas, and this about the quorum.
    fn sentinel(port: &'static str, replicas: &'static [&str], quorum: &'static str) -> ScriptedServer {
        ScriptedServer::start(move |command| match command {
            "SENTINEL GET-MASTER-ADDR-BY-NAME shop" => list(&["h", port]),
            "SENTINEL MASTER shop" => list(&["num-other-sentinels", "2"]),
            "SENTINEL CKQUORUM shop" => format!("{quorum}\r\n"),
            "SENTINEL REPLICAS shop" => array(replicas.iter().map(|port| list(&["ip", "r", "port", port]))),
            _ => resp::primary(command),
        })
    }

    /// Returns the primary, the replicas, and what each sentinel reports.
    async fn asked(sentinels: &[&ScriptedServer]) -> (Option<String>, Vec<String>, Vec<Sentinel>) {
        let sentinels = sentinels.iter().map(|sentinel| sentinel.spec()).collect();
        let watched = SentinelEndpoint { name: "shop".to_owned(), sentinels, master: NodeSpec::default() };
        let sentinels = Sentinels::new(watched, &patient());
        let replies = sentinels.examine(ProbeTimeout::new(LONG)).await;
        let replicas = replies.replicas.iter().map(ToString::to_string).collect();
        (replies.master.map(|master| master.to_string()), replicas, replies.sentinels)
    }

    #[tokio::test]
    async fn the_primary_and_replicas_of_most_sentinels_are_used() {
        let sentinels = [
            sentinel("1", &["11"], "+OK"),
            sentinel("2", &["21"], "+OK"),
            sentinel("2", &["21", "22"], "+OK"),
        ];

        let (primary, replicas, sentinels) = asked(&sentinels.each_ref()).await;

        assert_eq!(primary.as_deref(), Some("h:2"));
        assert_eq!(replicas, ["r:21", "r:22"]);
        let masters: Vec<_> = sentinels.iter().map(|one| one.master.clone().expect("it replies")).collect();
        assert_eq!(masters, ["h:1", "h:2", "h:2"]);
        assert!(sentinels.iter().all(|one| one.known == Ok(3)), "itself and two others");
    }

    #[tokio::test]
    async fn an_examined_sentinel_reports_its_quorum() {
        for (reply, expected) in [
            ("+OK", Ok(Ok(()))),
            ("-NOQUORUM 1 usable", Ok(Err("NOQUORUM 1 usable".to_owned()))),
            ("-NOPERM no", Err("NOPERM no".into())),
        ] {
            let server = sentinel("1", &[], reply);

            let (.., sentinels) = asked(&[&server]).await;

            assert_eq!(sentinels[0].quorum, expected);
        }
    }

    #[tokio::test]
    async fn a_sentinel_that_knows_no_primary_has_the_reason() {
        let server = ScriptedServer::start(|command| {
            if command.starts_with("SENTINEL") { "*-1\r\n".to_owned() } else { resp::primary(command) }
        });

        let (primary, _, sentinels) = asked(&[&server]).await;

        let one = &sentinels[0];
        let unreached = one.master.as_ref().expect_err("it knows none");
        assert!(unreached.is_lasting && unreached.why.contains("knows no master `shop`"), "{one:?}");
        assert!(one.known.is_err() && one.quorum.is_err() && primary.is_none(), "{one:?}");
        assert_eq!(one.address, server.address().to_string());
    }

    fn parts(servers: &[Server]) -> Vec<(String, Part)> {
        servers.iter().map(|server| (server.address.clone(), server.part)).collect()
    }

    #[tokio::test]
    async fn each_server_of_a_quorum_is_examined() {
        let servers: [_; 2] = std::array::from_fn(|_| ScriptedServer::start(resp::primary));
        let specs = servers.iter().map(ScriptedServer::spec).collect();

        let facts = examine(specs, Deployment::Quorum, patient()).await.expect("a thread");

        let expected: Vec<_> =
            servers.iter().map(|server| (server.address().to_string(), Part::Master)).collect();
        assert_eq!(parts(&facts.servers), expected);
        assert!(facts.servers.iter().all(|server| server.replies.is_ok()), "{facts:?}");
        assert_eq!((facts.omitted, facts.sentinels.len(), facts.seeds.len()), (0, 0, 0));
    }

    #[tokio::test]
    async fn the_terms_are_those_of_the_manager() {
        let mut settings = Settings { namespace: "n".to_owned(), ..Settings::default() };
        settings.rules.replica_acks = 2;
        let redisson = Settings { layout: Layout::Redisson, ..settings.clone() };
        let of = |settings: &Settings, topology| {
            terms(settings, topology, true, &CommandCheck::new(topology, settings))
        };

        let Terms { namespace, channels, lease, replica_acks, topology, tls, .. } =
            of(&settings, Deployment::One);

        assert_eq!((&*namespace, &*channels, replica_acks), ("n", "n:grant:*", 2));
        assert_eq!((lease, topology, tls), (settings.lease, Deployment::One, true));
        let releases = of(&redisson, Deployment::One).channels;
        assert!(releases.contains('*') && !releases.contains("grant"), "{releases}");
        assert_eq!(of(&redisson, Deployment::Quorum).channels, "n:free:*");
    }

    #[tokio::test]
    async fn the_servers_that_sentinels_report_are_examined() {
        let [primary, replica]: [_; 2] = std::array::from_fn(|_| ScriptedServer::start(resp::primary));
        let (at, replica_port) = (primary.address(), replica.port.to_string());
        let sentinel = ScriptedServer::start(move |command| match command {
            "SENTINEL GET-MASTER-ADDR-BY-NAME shop" => list(&[&at.host, &at.port.to_string()]),
            "SENTINEL MASTER shop" => list(&["name", "shop", "num-other-sentinels", "2"]),
            "SENTINEL REPLICAS shop" => array([list(&["ip", "127.0.0.1", "port", &replica_port])]),
            "SENTINEL CKQUORUM shop" => bulk("OK 3 usable Sentinels"),
            _ => resp::primary(command),
        });
        let watched = SentinelEndpoint {
            name: "shop".to_owned(),
            sentinels: vec![sentinel.spec()],
            master: NodeSpec::default(),
        };

        let facts = examine_by_sentinels(watched, patient()).await.expect("a thread");

        let expected = [(primary.address(), Part::Master), (replica.address(), Part::Replica)];
        assert_eq!(parts(&facts.servers), expected.map(|(at, part)| (at.to_string(), part)));
        assert!(facts.servers.iter().all(|server| server.replies.is_ok()), "{facts:?}");
        assert_eq!((facts.sentinels.len(), facts.omitted), (1, 0));
        assert_eq!(facts.sentinels[0].known, Ok(3));
    }

    #[tokio::test]
    async fn the_servers_of_a_cluster_are_examined() {
        let [low, high, replica]: [_; 3] = std::array::from_fn(|_| ScriptedServer::start(resp::primary));
        let at = [low.address(), high.address(), replica.address()];
        let ranges: &[(u16, u16, &[&Address])] = &[(0, 8_000, &[&at[0], &at[2]]), (8_001, 16_383, &[&at[1]])];
        let (seed, lost) = (
            ScriptedServer::start(reports("ok", ranges)),
            ScriptedServer::start(reports("fail", &[(0, 16_383, &[&at[0]])])),
        );
        let seeds = ClusterEndpoint { servers: vec![lost.spec(), seed.spec()], access: NodeSpec::default() };

        let facts = examine_cluster(seeds, patient()).await.expect("a thread");

        let mut primaries = [&low, &high].map(|server| (server.address().to_string(), Part::Master));
        primaries.sort_by(|a, b| a.0.cmp(&b.0));
        let mut examined = parts(&facts.servers);
        assert_eq!(examined.pop(), Some((replica.address().to_string(), Part::Replica)));
        examined.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(examined, primaries);
        assert!(facts.servers.iter().all(|server| server.replies.is_ok()), "{facts:?}");
        let whole: Vec<_> = facts.seeds.iter().map(|seed| seed.whole.is_ok()).collect();
        assert_eq!(whole, [false, true], "{facts:?}");
        // Each primary is tried on a key of its own slots.
        let keys = [&low, &high].map(|server| {
            let received = server.received();
            let (set, _) =
                received.iter().find(|(command, _)| command.starts_with("SET ")).expect("it is tried");
            set.split(' ').nth(1).map(str::to_owned)
        });
        assert_ne!(keys[0], keys[1]);
    }

    #[test]
    fn the_guide_lists_the_number_of_examined_servers() {
        assert_listed("servers that `dlock doctor` examines", &written(MAX_SERVERS));
    }
}
