//! The address of a server as reported by another server.

use std::fmt;

use crate::bounds::LONGEST_HOST;
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
        (1..=LONGEST_HOST).contains(&host.len()).then(|| Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        node_spec::show(&self.host, self.port, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_not_longer_than_a_name_can_be() {
        for (bytes, is_host) in [(LONGEST_HOST, true), (LONGEST_HOST + 1, false)] {
            assert_eq!(Address::parse(&"h".repeat(bytes), "6379").is_some(), is_host, "{bytes}");
        }
    }

    #[test]
    fn an_address_needs_a_host_and_a_port_other_than_zero() {
        for (host, port, shown) in [
            ("cache.example", "6379", Some("cache.example:6379")),
            ("::1", "65535", Some("[::1]:65535")),
            ("cache.example", "0", None),
            ("cache.example", "65536", None),
            ("cache.example", "", None),
            ("", "6379", None),
        ] {
            let parsed = Address::parse(host, port).map(|address| address.to_string());

            assert_eq!(parsed.as_deref(), shown, "{host} {port}");
        }
    }
}
