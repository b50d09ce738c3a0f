//! Where a server is, as other servers name it.
//!
//! Not here: how to reach it (`link`).

use std::fmt;

use crate::config::url;

/// Where a server is, as another one names it.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        url::show(&self.host, self.port, f)
    }
}
