//! Reads the hosts of a URL that names several.
//!
//! Not here: what they are for (`sentinel`, `cluster`, `quorum`).

use std::fmt;

use ::url::Url;

use crate::config::config;
use crate::config::url::{self, Server};
use crate::error::Result;

/// A URL whose hosts are read.
pub(super) struct Hosts {
    pub(super) servers: Vec<Server>,
    /// Whether they are spoken to over TLS.
    pub(super) tls: bool,
    /// The same URL with one host in their place.
    pub(super) rest: Url,
}

/// Reads a URL that says by its scheme, `redis+kind` or `rediss+kind`, what its hosts are; `None` where it says something else. `port`
/// is that of a host which names none.
pub(super) fn parse(text: &str, kind: &str, port: u16) -> Result<Option<Hosts>> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
    let tls = match scheme.split_once('+') {
        Some(("redis", of)) if of == kind => false,
        Some(("rediss", of)) if of == kind => url::tls(scheme)?,
        _ => return Ok(None),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let (access, hosts) =
        authority.rsplit_once('@').map_or(("", authority), |(access, hosts)| (access, hosts));
    if hosts.ends_with(':') && rest.starts_with("//") {
        let problem = format!("one scheme stands before all of them: write `{scheme}://host,host`");
        return Err(config("host", problem));
    }
    let servers = hosts.split(',').map(|host| server(host, tls, port)).collect::<Result<Vec<_>>>()?;
    let is_again = |(at, server): (usize, &Server)| {
        servers.iter().take(at).any(|other| (&other.host, other.port) == (&server.host, server.port))
    };
    if servers.iter().enumerate().any(is_again) {
        return Err(config("host", "one of them is named twice, and would count twice: name each once"));
    }
    let at = if access.is_empty() { "" } else { "@" };
    Ok(Some(Hosts { servers, tls, rest: url::url(&format!("redis://{access}{at}host{rest}"))? }))
}

/// Returns the same servers, each to be got into as `access` is.
pub(super) fn entered_as(access: &Server, servers: Vec<Server>) -> Vec<Server> {
    let one = |Server { host, port, .. }| Server { host, port, ..access.clone() };
    servers.into_iter().map(one).collect()
}

/// Shows servers as they are written in a URL.
pub(super) fn show(servers: &[Server], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, server) in servers.iter().enumerate() {
        write!(f, "{}{server}", if at == 0 { "" } else { "," })?;
    }
    Ok(())
}

fn server(host: &str, tls: bool, default: u16) -> Result<Server> {
    // What does not look like a host may be a piece of a password: it is not repeated.
    let is_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "@/?#".contains(c));
    let url = Url::parse(&format!("redis://{host}")).ok().filter(|_| is_host);
    let Some(url) = url else {
        let problem = format!(
            "write them as `host:port,host:port`, each with a port or without for {default}, and IPv6 as `[::1]:port`"
        );
        return Err(config("host", problem));
    };
    let port = url.port().unwrap_or(default);
    if port == 0 {
        return Err(config("port", format!("0 is no port: leave it out for {default}")));
    }
    Ok(Server { port, ..url::server(&url, tls)? })
}
