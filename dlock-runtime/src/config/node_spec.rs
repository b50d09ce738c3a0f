//! [`NodeSpec`]: the address of one server, and the credentials for it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::deployment::Deployment;

/// The address of a Redis server, and the credentials for it.
#[derive(Clone, Default)]
pub(crate) struct NodeSpec {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The server's unix socket. If it is set, host and port have no meaning.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) tls: bool,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    /// The kind of deployment that the URL is for.
    pub(crate) deployment: Deployment,
    /// Set if the address was announced by other servers and is not from the URL.
    pub(crate) announced: Option<Announced>,
}

/// How the certificate of a server is checked whose address is not in the URL.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(any(feature = "tls", test)),
    expect(dead_code, reason = "only the certificates of servers are for names")
)]
pub(crate) struct Announced {
    pub(crate) by: Announcer,
    /// The hosts of the URL that are names: the user trusts these names for all servers behind the
    /// URL.
    pub(crate) url_names: Arc<[String]>,
}

/// The kind of servers that announce the addresses of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announcer {
    Cluster,
    Sentinel,
}

impl Announced {
    /// Describes servers that the servers of a URL announce.
    pub(super) fn new(by: Announcer, servers: &[NodeSpec]) -> Self {
        let names = servers.iter().map(|server| &server.host).filter(|host| !is_address(host));
        Self { by, url_names: names.cloned().collect() }
    }
}

impl NodeSpec {
    /// Returns `true` if it is a sentinel, and not a server that stores locks.
    pub(crate) fn is_sentinel(&self) -> bool {
        self.deployment == Deployment::Sentinels && self.announced.is_none()
    }
}

/// Returns `true` if a host is an IP address and not a name.
pub(crate) fn is_address(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}

impl fmt::Display for NodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(path) => write!(f, "{}", path.display()),
            None => show(&self.host, self.port, f),
        }
    }
}

/// Writes host and port as in a URL.
pub(crate) fn show(host: &str, port: u16, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
}

impl fmt::Debug for NodeSpec {
    /// Prints neither user nor password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeSpec({self}/{}, tls: {})", self.database, self.tls)
    }
}
