//! The address of a server as reported by another server.

use std::fmt;

use crate::config::node_spec;

/// A host and port that a server reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    pub(crate) fn parse(host: &str, port: &str) -> Option<Self> {
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        node_spec::show(&self.host, self.port, f)
    }
}
