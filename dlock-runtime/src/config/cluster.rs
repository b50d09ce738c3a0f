//! Parses the URL of a Redis Cluster.
//!
//! ```text
//! url := ( "redis+cluster://" | "rediss+cluster://" ) [ user ":" password "@" ] host [ ":" port ] { "," host [ ":" port ] }
//!        [ "/" [ "0" ] ] [ "?" options ]
//! ```
//!
//! The hosts are used to discover the other servers. User and password apply to every server. Ports
//! are 6379 unless given. A cluster has only database 0.
//!
//! See `url` and `hosts` for the common parts of URLs.

use std::fmt;

use ::url::Url;

use crate::config::config;
use crate::config::deployment::Deployment;
use crate::config::hosts::{self, Hosts};
use crate::config::node_spec::{Announced, Announcer, NodeSpec};
use crate::config::url_parts;
use crate::error::Result;

/// A cluster, by some of its servers.
#[derive(Debug)]
pub(crate) struct ClusterEndpoint {
    pub(crate) servers: Vec<NodeSpec>,
    /// The credentials and TLS of every server. The cluster announces hosts and ports.
    pub(crate) access: NodeSpec,
}

impl fmt::Display for ClusterEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hosts::show(&self.servers, f)
    }
}

/// Parses a URL; `None` if it has another scheme. Also returns the URL without the parts that are
/// parsed here.
pub(super) fn parse(text: &str) -> Result<Option<(ClusterEndpoint, Url)>> {
    let Some(Hosts { servers, tls, mut rest }) = hosts::parse(text, "cluster", 6379)? else {
        return Ok(None);
    };
    if !matches!(rest.path(), "" | "/" | "/0") {
        let problem = "a cluster has only database 0: write `redis+cluster://host,host` without one; for a primary that sentinels monitor, \
                       `redis+sentinel://host,host/name`";
        return Err(config("database", problem));
    }
    rest.set_path("");
    let access = NodeSpec { deployment: Deployment::Cluster, ..url_parts::server(&rest, tls)? };
    let servers = hosts::entered_as(&access, servers);
    let announced = Some(Announced::new(Announcer::Cluster, &servers));
    Ok(Some((ClusterEndpoint { servers, access: NodeSpec { announced, ..access } }, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::endpoint::Endpoint;
    use crate::config::url::{ConnectSpec, assert_refused, parse};

    fn read(text: &str) -> (ClusterEndpoint, ConnectSpec) {
        let target = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let ConnectSpec { place: Endpoint::Cluster(seeds), settings } = target else {
            panic!("{text}: {target:?}")
        };
        (seeds, ConnectSpec { place: Endpoint::Memory { name: None }, settings })
    }

    #[test]
    fn every_part_is_read() {
        let (seeds, target) =
            read("redis+cluster://shop:p%40ss@h1:7000,h2,[::1]:7001/0?lease=5s&namespace=n");

        let hosts: Vec<_> = seeds.servers.iter().map(|at| (&*at.host, at.port, at.database)).collect();
        assert_eq!(hosts, [("h1", 7000, 0), ("h2", 6379, 0), ("::1", 7001, 0)]);
        for server in seeds.servers.iter().chain([&seeds.access]) {
            let access = (server.username.as_deref(), server.password.as_deref(), server.tls);
            assert_eq!(access, (Some("shop"), Some("p@ss"), false));
        }
        assert_eq!(
            (&*target.settings.namespace, seeds.to_string().as_str()),
            ("n", "h1:7000,h2:6379,[::1]:7001")
        );
        let announced = seeds.access.announced.expect("a cluster announces its servers");
        assert_eq!(
            (announced.by, &*announced.url_names),
            (Announcer::Cluster, &["h1".to_owned(), "h2".to_owned()][..])
        );
    }

    #[test]
    fn a_database_may_be_left_out() {
        for url in [
            "redis+cluster://h1",
            "redis+cluster://h1/",
            "redis+cluster://h1/0",
            "redis+cluster://h1?lease=5s",
        ] {
            assert_eq!(read(url).0.access.database, 0, "{url}");
        }
    }

    #[test]
    fn a_wrong_url_names_the_part_and_never_a_password() {
        assert_refused(&[
            ("redis+cluster://", "host"),
            ("redis+cluster://:hunter2@", "host"),
            ("redis+cluster://:hunter2@h1,,h2", "host"),
            ("redis+cluster://:hunter2@h1:x,h2", "host"),
            ("redis+cluster://h1:hunter2,h2", "host"),
            ("redis+cluster://:hunter2@h1:0", "port"),
            ("redis+cluster://:hunter2@h1,h2/1", "database"),
            ("redis+cluster://:hunter2@h1,h2/hunter2", "redis+sentinel://"),
            ("redis+cluster://u@h1", "password"),
            ("redis+cluster://h1?sentinel_password=hunter2", "options"),
            ("redis+cluster://h1?db=1", "options"),
            ("redis+cluster://h1#hunter2", "fragment"),
            ("redis+cluster+sentinel://h1", "scheme"),
            ("redis+sentinel+cluster://h1", "scheme"),
            ("redis://:hunter2@h1,h2", "redis+cluster://"),
            ("redis://:hunter2@h1:1,h2:2", "redis+cluster://"),
        ]);
    }
}
