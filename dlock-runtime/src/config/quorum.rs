//! Parses the URL of a quorum of independent servers.
//!
//! ```text
//! url := ( "redis+quorum://" | "rediss+quorum://" ) [ user ":" password "@" ] host [ ":" port ] { "," host [ ":" port ] }
//!        [ "/" database ] [ "?" options ]
//! ```
//!
//! User, password, and database apply to every server. Ports are 6379 unless given.
//!
//! See `url` and `hosts` for the common parts of URLs. `backend/redis/servers/quorum` checks that
//! no two hosts are one server.

use std::fmt;

use ::url::Url;

use crate::config::config;
use crate::config::deployment::Deployment;
use crate::config::hosts::{self, Hosts};
use crate::config::node_spec::NodeSpec;
use crate::config::url_parts;
use crate::error::Result;

/// The servers of a quorum.
#[derive(Debug)]
pub(crate) struct QuorumEndpoint(pub(crate) Vec<NodeSpec>);

impl fmt::Display for QuorumEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hosts::show(&self.0, f)
    }
}

/// Parses a URL; `None` if it has another scheme. Also returns the URL without the parts that are
/// parsed here.
pub(super) fn parse(text: &str) -> Result<Option<(QuorumEndpoint, Url)>> {
    let Some(Hosts { servers, tls, rest }) = hosts::parse(text, "quorum", 6379)? else { return Ok(None) };
    if servers.len() < FEWEST {
        let problem = match servers.len() {
            1 => "a quorum needs three servers: write `redis://host` for one server, or name three hosts",
            _ => "two servers tolerate no failure, since both must grant a lock: name three hosts, or five",
        };
        return Err(config("host", problem));
    }
    let access = NodeSpec { deployment: Deployment::Quorum, ..url_parts::server(&rest, tls)? };
    Ok(Some((QuorumEndpoint(hosts::entered_as(&access, servers)), rest)))
}

/// The minimum that tolerates the failure of one server.
const FEWEST: usize = 3;

#[cfg(test)]
mod tests {
    use crate::config::endpoint::Endpoint;
    use crate::config::url::{ConnectSpec, assert_refused, parse};

    #[test]
    fn every_part_is_read() {
        let target = parse("redis+quorum://shop:p%40ss@h1:7000,h2,[::1]:7001/3?lease=5s&namespace=n");
        let Ok(ConnectSpec { place: Endpoint::Quorum(voters), settings }) = target else {
            panic!("{target:?}")
        };

        let hosts: Vec<_> = voters.0.iter().map(|at| (&*at.host, at.port, at.database)).collect();
        assert_eq!(hosts, [("h1", 7000, 3), ("h2", 6379, 3), ("::1", 7001, 3)]);
        for server in &voters.0 {
            let access = (server.username.as_deref(), server.password.as_deref(), server.tls);
            assert_eq!(access, (Some("shop"), Some("p@ss"), false));
        }
        assert_eq!((&*settings.namespace, &*voters.to_string()), ("n", "h1:7000,h2:6379,[::1]:7001"));
    }

    #[test]
    fn a_wrong_url_names_the_part_and_never_a_password() {
        assert_refused(&[
            ("redis+quorum://", "host"),
            ("redis+quorum://:hunter2@h1", "name three hosts"),
            ("redis+quorum://:hunter2@h1,h2", "name three hosts"),
            ("redis+quorum://:hunter2@h1,,h2", "host"),
            ("redis+quorum://h1:hunter2,h2,h3", "host"),
            ("redis+quorum://:hunter2@h1:0,h2,h3", "port"),
            ("redis+quorum://:hunter2@h1,h2,h3/x", "database"),
            ("redis+quorum://u@h1,h2,h3", "password"),
            ("redis+quorum://h1,h2,h3?sentinel_password=hunter2", "options"),
            ("redis+quorum://h1,h2,h3#hunter2", "fragment"),
        ]);
    }
}
