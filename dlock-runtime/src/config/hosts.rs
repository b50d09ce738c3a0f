//! Reads the hosts of a URL that names several.
//!
//! Not here: what they are for (`sentinel`, `cluster`, `quorum`).

use ::url::Url;

use crate::config::config;
use crate::config::url::{self, Server};
use crate::error::Result;

/// A URL whose hosts are read.
pub(super) struct Hosts {
    pub(super) servers: Vec<Server>,
    /// The same URL with one host in their place.
    pub(super) rest: Url,
}

/// Reads what follows the `://`. `port` is that of a host which names none.
pub(super) fn parse(rest: &str, tls: bool, port: u16) -> Result<Hosts> {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let (access, hosts) =
        authority.rsplit_once('@').map_or(("", authority), |(access, hosts)| (access, hosts));
    if hosts.ends_with(':') && rest.starts_with("//") {
        return Err(config(
            "host",
            "one scheme stands before all of them: write `redis+cluster://host,host`",
        ));
    }
    let servers = hosts.split(',').map(|host| server(host, tls, port)).collect::<Result<Vec<_>>>()?;
    let is_again = |(at, server): (usize, &Server)| {
        servers.iter().take(at).any(|other| (&other.host, other.port) == (&server.host, server.port))
    };
    if servers.iter().enumerate().any(is_again) {
        return Err(config("host", "one of them is named twice, and would count twice: name each once"));
    }
    let at = if access.is_empty() { "" } else { "@" };
    Ok(Hosts { servers, rest: url::url(&format!("redis://{access}{at}host{rest}"))? })
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
