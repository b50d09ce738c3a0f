//! Parses the URL of a primary that sentinels monitor.
//!
//! ```text
//! url     := ( "redis+sentinel://" | "rediss+sentinel://" ) [ user ":" password "@" ] host [ ":" port ] { "," host [ ":" port ] }
//!            "/" name [ "/" database ] [ "?" options ]
//! options := those of every URL, and "sentinel_user=" text | "sentinel_password=" text
//! ```
//!
//! User and password are those of the primary; the sentinels have their own. Ports are 26379 unless
//! given.
//!
//! See `url` and `hosts` for the common parts of URLs.

use std::fmt;

use ::url::Url;

use crate::config::config;
use crate::config::deployment::Deployment;
use crate::config::hosts::{self, Hosts};
use crate::config::node_spec::{Announced, Announcer, NodeSpec};
use crate::config::url_parts::{self, decoded};
use crate::error::Result;

/// A primary that sentinels monitor.
#[derive(Debug)]
pub(crate) struct SentinelEndpoint {
    /// The sentinels' name of the primary.
    pub(crate) name: String,
    pub(crate) sentinels: Vec<NodeSpec>,
    /// The credentials and TLS of the primary. The sentinels report its host and port.
    pub(crate) master: NodeSpec,
}

impl fmt::Display for SentinelEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.name)?;
        hosts::show(&self.sentinels, f)
    }
}

/// Parses a URL; `None` if it has another scheme. Also returns the URL without the parts that are
/// parsed here.
pub(super) fn parse(text: &str) -> Result<Option<(SentinelEndpoint, Url)>> {
    let Some(Hosts { servers: sentinels, tls, rest: mut whole }) = hosts::parse(text, "sentinel", 26379)?
    else {
        return Ok(None);
    };
    let (name, database) = path(whole.path())?;
    whole.set_path(&database);
    let announced = Some(Announced::new(Announcer::Sentinel, &sentinels));
    let deployment = Deployment::Sentinels;
    let master = NodeSpec { deployment, announced, ..url_parts::server(&whole, tls)? };

    let (username, password) = take_access(&mut whole)?;
    let access = NodeSpec { tls, username, password, deployment, ..NodeSpec::default() };
    let sentinels = hosts::entered_as(&access, sentinels);
    Ok(Some((SentinelEndpoint { name, sentinels, master }, whole)))
}

/// Parses the text after the hosts: the name, and the path of the database.
fn path(path: &str) -> Result<(String, String)> {
    let mut parts = path.strip_prefix('/').unwrap_or(path).splitn(2, '/');
    let name = decoded(parts.next().unwrap_or_default());
    let name = name.filter(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()));
    let problem = "write it after the hosts, as in `redis+sentinel://host1,host2,host3/mymaster`: the name in the sentinels' line \
                   `sentinel monitor mymaster ..`";
    let name = name.ok_or_else(|| config("master name", problem))?;
    Ok((name, format!("/{}", parts.next().unwrap_or_default())))
}

/// The options that only this scheme has.
pub(super) const OPTIONS: &[&str] = &["sentinel_user", "sentinel_password"];

/// Removes the sentinels' user and password from the options, and returns them.
fn take_access(url: &mut Url) -> Result<(Option<String>, Option<String>)> {
    let (mut username, mut password) = (None, None);
    let mut others = Vec::new();
    for option in url.query().unwrap_or_default().split('&').filter(|option| !option.is_empty()) {
        let (part, value) = option.split_once('=').unwrap_or((option, ""));
        let place = match part {
            "sentinel_user" => &mut username,
            "sentinel_password" => &mut password,
            _ if part.starts_with("sentinel_") => {
                let problem = "the only options for sentinels are `sentinel_user` and `sentinel_password`";
                return Err(config("options", problem));
            }
            _ => {
                others.push(option);
                continue;
            }
        };
        let text = decoded(value).ok_or_else(|| config(part, "it is not percent-encoded UTF-8"))?;
        if place.replace(text).is_some() {
            return Err(config(part, "it is given twice"));
        }
    }
    let [username, password] = [username, password].map(|text| text.filter(|text| !text.is_empty()));
    let others = others.join("&");
    url.set_query(Some(&*others).filter(|others| !others.is_empty()));
    if username.is_some() && password.is_none() {
        return Err(config(
            "sentinel_password",
            "a user needs a password: write `?sentinel_user=..&sentinel_password=..`",
        ));
    }
    Ok((username, password))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::endpoint::Endpoint;
    use crate::config::url::{ConnectSpec, assert_refused, parse};

    fn read(text: &str) -> (SentinelEndpoint, ConnectSpec) {
        let target = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let ConnectSpec { place: Endpoint::Sentinel(watched), settings } = target else {
            panic!("{text}: {target:?}")
        };
        (watched, ConnectSpec { place: Endpoint::Memory { name: None }, settings })
    }

    #[test]
    fn every_part_is_read() {
        let url = "redis+sentinel://shop:p%40ss@h1:7000,h2,[::1]:7001/my-master/3?lease=5s&sentinel_user=watch&sentinel_password=a%2Bb&namespace=n";

        let (SentinelEndpoint { name, sentinels, master }, target) = read(url);

        let hosts: Vec<_> = sentinels.iter().map(|at| (&*at.host, at.port, at.database)).collect();
        assert_eq!(hosts, [("h1", 7000, 0), ("h2", 26379, 0), ("::1", 7001, 0)]);
        let access = |server: &NodeSpec| (server.username.clone(), server.password.clone());
        assert_eq!(access(&sentinels[1]), (Some("watch".to_owned()), Some("a+b".to_owned())));
        assert_eq!(
            (access(&master), master.database),
            ((Some("shop".to_owned()), Some("p@ss".to_owned())), 3)
        );
        assert_eq!((&*name, &*target.settings.namespace), ("my-master", "n"));
    }

    #[test]
    fn omitted_parts_have_defaults() {
        let (empty, _) = read("redis+sentinel://h1/m?sentinel_user=&sentinel_password=");
        assert_eq!((&empty.sentinels[0].username, &empty.sentinels[0].password), (&None, &None));

        let (SentinelEndpoint { sentinels, master, .. }, _) = read("redis+sentinel://h1/m");

        assert_eq!((sentinels[0].port, master.database, master.tls), (26379, 0, false));
        assert_eq!((&sentinels[0].password, &master.password), (&None, &None));
    }

    #[test]
    fn a_wrong_url_names_the_part_and_never_a_password() {
        assert_refused(&[
            ("redis+sentinel://:hunter2@h1,h2", "master name"),
            ("redis+sentinel://:hunter2@h1,h2/", "master name"),
            ("redis+sentinel://:hunter2@h1,h2//3", "master name"),
            ("redis+sentinel://:hunter2@/m", "host"),
            ("redis+sentinel://:hunter2@h1,,h2/m", "host"),
            ("redis+sentinel://:hunter2@h1:x,h2/m", "host"),
            ("redis+sentinel://h1:hunter2,h2/m", "host"),
            ("redis+sentinel://:hunter2@h1:0/m", "port"),
            ("redis+sentinel://:hunter2@h1/m/x", "database"),
            ("redis+sentinel://u@h1/m", "password"),
            ("redis+sentinel://h1/m?sentinel_user=hunter2", "sentinel_password"),
            ("redis+sentinel://h1/m?sentinel_user=hunter2&sentinel_password=", "sentinel_password"),
            (
                "redis+sentinel://h1/m?sentinel_password=hunter2&sentinel_password=hunter2",
                "sentinel_password",
            ),
            ("redis+sentinel://h1/m?sentinel_password=%ff", "sentinel_password"),
            ("redis+sentinel://h1/m?sentinel_pasword=hunter2", "options"),
            ("redis+sentinel://h1/m#hunter2", "fragment"),
            ("redis://h1/0?sentinel_password=hunter2", "options"),
            ("redis+sentinel://h1/m?sekret=hunter2", "`tls_name`, `sentinel_user`, `sentinel_password`"),
        ]);
    }
}
