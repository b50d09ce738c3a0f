//! Parses the hosts of a URL with several hosts.
//!
//! See `sentinel`, `cluster`, and `quorum` for their meaning.

use std::fmt;

use ::url::Url;

use crate::config::config;
use crate::config::node_spec::NodeSpec;
use crate::config::url_parts;
use crate::error::Result;

/// A URL whose hosts have been parsed.
pub(super) struct Hosts {
    pub(super) servers: Vec<NodeSpec>,
    /// Whether the servers use TLS.
    pub(super) tls: bool,
    /// The same URL with one host in their place.
    pub(super) rest: Url,
}

/// Parses a URL with the scheme `redis+kind` or `rediss+kind`; `None` if it has another scheme.
/// `port` is the default port.
pub(super) fn parse(text: &str, kind: &str, port: u16) -> Result<Option<Hosts>> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
    let tls = match scheme.split_once('+') {
        Some(("redis", of)) if of == kind => false,
        Some(("rediss", of)) if of == kind => url_parts::tls(scheme)?,
        _ => return Ok(None),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let (access, hosts) =
        authority.rsplit_once('@').map_or(("", authority), |(access, hosts)| (access, hosts));
    if hosts.ends_with(':') && rest.starts_with("//") {
        let problem = format!("one scheme precedes all hosts: write `{scheme}://host,host`");
        return Err(config("host", problem));
    }
    let servers = hosts.split(',').map(|host| server(host, tls, port)).collect::<Result<Vec<_>>>()?;
    let is_again = |(at, server): (usize, &NodeSpec)| {
        let is_it =
            |other: &NodeSpec| other.host.eq_ignore_ascii_case(&server.host) && other.port == server.port;
        servers.iter().take(at).any(is_it)
    };
    if servers.iter().enumerate().any(is_again) {
        return Err(config("host", "a host is named twice: name each once"));
    }
    let at = if access.is_empty() { "" } else { "@" };
    Ok(Some(Hosts { servers, tls, rest: url_parts::url(&format!("redis://{access}{at}host{rest}"))? }))
}

/// Returns the same servers, each with the credentials and TLS of `access`.
pub(super) fn entered_as(access: &NodeSpec, servers: Vec<NodeSpec>) -> Vec<NodeSpec> {
    let one = |NodeSpec { host, port, .. }| NodeSpec { host, port, ..access.clone() };
    servers.into_iter().map(one).collect()
}

/// Writes servers as in a URL.
pub(super) fn show(servers: &[NodeSpec], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, server) in servers.iter().enumerate() {
        write!(f, "{}{server}", if at == 0 { "" } else { "," })?;
    }
    Ok(())
}

fn server(host: &str, tls: bool, default: u16) -> Result<NodeSpec> {
    // Text that is not a host may be a part of a password, so the error does not repeat it.
    let is_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "@/?#".contains(c));
    let url = Url::parse(&format!("redis://{host}")).ok().filter(|_| is_host);
    let Some(url) = url else {
        let problem = format!(
            "write the hosts as `host:port,host:port`, where the port is optional (default: {default}), and IPv6 as `[::1]:port`"
        );
        return Err(config("host", problem));
    };
    let port = url.port().unwrap_or(default);
    if port == 0 {
        return Err(config("port", format!("0 is not a port: leave it out for {default}")));
    }
    Ok(NodeSpec { port, ..url_parts::server(&url, tls)? })
}
