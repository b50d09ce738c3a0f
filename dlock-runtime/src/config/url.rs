//! Parses the URL of a manager.
//!
//! ```text
//! url     := "redis://" | "rediss://"  [ user ":" password "@" ] host [ ":" port ] [ "/" database ] [ "?" options ]
//!          | "redis+unix://" path [ "?" options ]
//!          | "redis+sentinel://" ..     see `sentinel`
//!          | "redis+cluster://" ..      see `cluster`
//!          | "redis+quorum://" ..       see `quorum`
//!          | "memory://" [ name ] [ "?" options ]
//! options := option { "&" option }
//! option  := ( "namespace=" | "owner=" ) text | "layout=" ( "native" | "redisson" ) | "publish=" ( "auto" | "publish" | "spublish" | "both" ) | ( "lease" | "response_timeout" | "connect_timeout" | "grant_lease" | "handoff_budget" | "poll_interval" | "fence_ttl" ) "=" duration
//!          | "yield_to_foreign=" ( "on" | "off" )
//!          | "connect=" ( "eager" | "lazy" )
//!          | "replica_acks=" number      not of memory, nor of a quorum
//!          | "tracking=" ( "on" | "off" )
//!          | ( "tls_ca" | "tls_cert" | "tls_key" ) "=" path             of rediss
//!          | "tls_name=" ( host name | address )                        of rediss
//!          | "db=" database | ( "user" | "password" ) "=" text          of redis+unix
//! ```
//!
//! A scheme may be in upper case, and `valkey` may replace `redis`. White space around the URL is
//! ignored, and a control character within it is refused. There is no fragment. A `#`, `?`, `/`, or
//! `@` in the user, the password, or an option must be percent-encoded: an unencoded `#`, `?`, or
//! `/` ends the address and splits a password. No error shows the URL itself, nor a part of it that
//! could be a password.

use std::time::Duration;

use url::Url;

use crate::config::certificates::Pem;
use crate::config::endpoint::Endpoint;
use crate::config::node_spec::NodeSpec;
use crate::config::url_parts::{NOT_ENCODED, decoded, server, tls, url};
use crate::config::{Settings, cluster, config, duration, quorum, scheme, sentinel, unknown_option};
use crate::error::Result;
use crate::layout::{Layout, Publish};

/// A parsed URL.
#[derive(Debug)]
pub(crate) struct ConnectSpec {
    pub(crate) place: Endpoint,
    pub(crate) settings: Settings,
}

/// Parses a URL.
pub(crate) fn parse(text: &str) -> Result<ConnectSpec> {
    let text = text.trim(); // a variable that is read from a file ends with a line break
    if text.contains(char::is_control) {
        let problem =
            "it contains a line break or another control character: remove it, or percent-encode it (`%0A`)";
        return Err(config("url", problem));
    }
    let text = &*scheme::read(text)?;
    if is_cut_in_two(text) {
        let problem =
            "percent-encode `#`, `?`, `/` and `@` in user and password (`%23`, `%3F`, `%2F`, `%40`)";
        return Err(config("password", problem));
    }
    if text.contains(" #") {
        return Err(config("url", "it is followed by a comment: remove it; env files may keep comments"));
    }
    scheme::not_wrapped_inside(hosts(text))?;
    if has_placeholder(text) {
        let problem = "it has a `$`, `{`, or `<`: replace the placeholder, or have the variable expanded, as in `redis://127.0.0.1:6379`";
        return Err(config("host", problem));
    }
    // The parser of URLs would encode such a host, and remove such a part of a path.
    if !text.starts_with("memory") && hosts(text).contains(|c: char| !c.is_ascii() || c == '%') {
        let problem = "it has a character that no host has: write an international name in its ASCII form, as in `xn--caf-dma.example`";
        return Err(config("host", problem));
    }
    if has_dot_segment(text) {
        return Err(config("path", "it has a `.` or `..` between slashes: write the path that is meant"));
    }
    if hosts(text).contains(['&', '=']) {
        let problem = "options follow a `?`, and `&` separates them: write `redis://host:port?lease=10s&namespace=shop`";
        return Err(config("options", problem));
    }
    if let Some((watched, rest)) = sentinel::parse(text)? {
        return Ok(ConnectSpec {
            place: Endpoint::Sentinel(watched),
            settings: settings(&rest, sentinel::OPTIONS)?,
        });
    }
    if let Some((seeds, rest)) = cluster::parse(text)? {
        return Ok(ConnectSpec { place: Endpoint::Cluster(seeds), settings: settings(&rest, &[])? });
    }
    if let Some((voters, rest)) = quorum::parse(text)? {
        return Ok(ConnectSpec { place: Endpoint::Quorum(voters), settings: settings(&rest, &[])? });
    }
    if names_several(text) {
        let problem = "this scheme is for one server: for several, write `redis+cluster://host,host`, `redis+sentinel://host,host/name`, or \
                       `redis+quorum://host,host,host`";
        return Err(config("host", problem));
    }
    if has_bare_ipv6(text) {
        let problem = "the host has more than one `:`: write `host:port`, and an IPv6 address in brackets, as in `redis://[::1]:6379`";
        return Err(config("url", problem));
    }
    let url = url(text)?;
    let place = match url.scheme() {
        "memory" => memory(&url)?,
        "redis" => Endpoint::Redis(server(&url, false)?),
        "rediss" => Endpoint::Redis(server(&url, tls("rediss")?)?),
        "redis+unix" => Endpoint::Redis(unix(&url)?),
        scheme => return Err(scheme::unknown(scheme)),
    };
    let of_sockets: &[&str] = if url.scheme() == "redis+unix" { &["db", "user", "password"] } else { &[] };
    Ok(ConnectSpec { place, settings: settings(&url, of_sockets)? })
}

/// Returns `true` if an unencoded `@` follows the end of the address. Then the text before it is a
/// user or a password, of which a part would be parsed as a host, a database, or an option.
fn is_cut_in_two(text: &str) -> bool {
    let after = match text.split_once("://") {
        Some((_, rest)) => rest.split_once(['/', '?', '#']),
        None => text.split_once(['?', '#']),
    };
    after.is_some_and(|(_, after)| after.contains('@'))
}

/// Returns the part of a URL between its scheme, or its password, and its path.
fn hosts(text: &str) -> &str {
    let rest = text.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default()
}

/// Returns `true` if the hosts have a character of a variable or a placeholder, as in
/// `redis://${HOST}` and `redis://<host>`.
fn has_placeholder(text: &str) -> bool {
    hosts(text).contains(['$', '{', '}', '<', '>'])
}

/// Returns `true` if the path of a URL has a part that means this folder or the one above.
fn has_dot_segment(text: &str) -> bool {
    let path = text.split_once("://").map_or("", |(_, rest)| rest).split(['?', '#']).next();
    let mut segments = path.unwrap_or_default().split('/').skip(1);
    segments.any(|segment| matches!(&*segment.to_ascii_lowercase().replace("%2e", "."), "." | ".."))
}

/// Returns `true` if the URL of one server has several hosts.
fn names_several(text: &str) -> bool {
    is_for_one(text) && hosts(text).contains([',', ';', ' '])
}

/// Returns `true` if the host of one server has several `:`, and is not in brackets.
fn has_bare_ipv6(text: &str) -> bool {
    is_for_one(text) && !hosts(text).contains('[') && hosts(text).matches(':').count() > 1
}

fn is_for_one(text: &str) -> bool {
    ["redis://", "rediss://"].iter().any(|scheme| text.starts_with(scheme))
}

fn memory(url: &Url) -> Result<Endpoint> {
    let has_more = url.port().is_some()
        || !matches!(url.path(), "" | "/")
        || !url.username().is_empty()
        || url.password().is_some();
    if has_more {
        return Err(config("memory url", "only a name is allowed: `memory://` or `memory://name`"));
    }
    Ok(Endpoint::Memory { name: url.host_str().filter(|name| !name.is_empty()).map(str::to_owned) })
}

/// For a unix socket, the database, the user, and the password are options.
fn unix(url: &Url) -> Result<NodeSpec> {
    if cfg!(not(unix)) {
        return Err(config("scheme", "`redis+unix` is not available: this system has no unix sockets"));
    }
    if url.host_str().is_some_and(|host| !host.is_empty()) {
        return Err(config(
            "path",
            "it must start with a third slash: write `redis+unix:///path/to/redis.sock`",
        ));
    }
    let path = decoded(url.path()).ok_or_else(|| config("path", NOT_ENCODED))?;
    if path.len() < 2 {
        return Err(config("path", "it is missing: write `redis+unix:///path/to/redis.sock`"));
    }
    if let Some(problem) = socket_problem(&path) {
        return Err(config("path", problem));
    }
    let mut server = NodeSpec { socket: Some(path.into()), ..NodeSpec::default() };
    for (name, value) in pairs(url)? {
        match &*name {
            "db" => {
                server.database = value
                    .parse::<u32>()
                    .map(i64::from)
                    .map_err(|_| config("db", "it must be a database number, as in `db=2`"))?;
            }
            "user" => server.username = Some(value).filter(|text| !text.is_empty()),
            "password" => server.password = Some(value).filter(|text| !text.is_empty()),
            _ => {}
        }
    }
    if server.username.is_some() && server.password.is_none() {
        return Err(config("password", "a user needs a password: write `user=..&password=..`"));
    }
    Ok(server)
}

/// Returns why no unix socket can have this path.
#[cfg(unix)]
fn socket_problem(path: &str) -> Option<String> {
    std::os::unix::net::SocketAddr::from_pathname(path).err()?;
    if path.contains('\0') {
        return Some("it contains a NUL byte (`%00`): remove it".to_owned());
    }
    Some(format!(
        "it has {} bytes: the path of a unix socket has at most 107 on Linux, and 103 on most other systems",
        path.len()
    ))
}

#[cfg(not(unix))]
fn socket_problem(_: &str) -> Option<String> {
    None
}

/// Returns the options. A `+` is not decoded to a space: this is not a form.
fn pairs(url: &Url) -> Result<Vec<(String, String)>> {
    let query = url.query().unwrap_or_default();
    if query.contains('?') {
        let problem = "they are separated by `&`, not by a second `?`; a `?` in a value is written `%3F`";
        return Err(config("options", problem));
    }
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let problem = "each is written `name=value`, and `&` separates them";
        let (name, value) = pair.split_once('=').ok_or_else(|| config("options", problem))?;
        decoded(name).zip(decoded(value)).ok_or_else(|| config("options", NOT_ENCODED))
    });
    pairs.collect()
}

/// Parses the options of every URL. `others` are those of this scheme, which are parsed elsewhere.
fn settings(url: &Url, others: &[&str]) -> Result<Settings> {
    let mut settings = Settings::default();
    let mut seen: Vec<String> = Vec::new();
    for (name, text) in pairs(url)? {
        if seen.contains(&name) {
            return Err(config(&name, "it is given twice"));
        }
        if let Some((_, set)) = OPTIONS.iter().find(|(known, _)| *known == name) {
            set(&mut settings, &OptionValue { name: &name, text: &text })?;
        } else if !others.contains(&&*name) {
            let known: Vec<_> = OPTIONS.iter().map(|(known, _)| known).chain(others).copied().collect();
            return Err(config("options", unknown_option::problem(&name, &known)));
        }
        seen.push(name);
    }
    Ok(settings)
}

/// The name of an option, and how its value changes the settings.
pub(super) type UrlOption = (&'static str, fn(&mut Settings, &OptionValue<'_>) -> Result<()>);

/// The options of every URL.
pub(super) const OPTIONS: [UrlOption; 19] = [
    ("namespace", |to, value| value.text(&mut to.namespace)),
    ("owner", |to, value| value.text(&mut to.owner)),
    ("layout", |to, value| value.one_of(&Layout::ALL, &mut to.layout)),
    ("publish", |to, value| value.one_of(&Publish::ALL, &mut to.publish)),
    ("lease", |to, value| value.time(&mut to.lease)),
    ("response_timeout", |to, value| value.time(&mut to.rules.response_timeout)),
    ("connect_timeout", |to, value| value.time(&mut to.connect_timeout)),
    ("connect", |to, value| value.one_of(&CONNECT, &mut to.lazy)),
    ("fence_ttl", |to, value| value.time(&mut to.fence_ttl)),
    ("grant_lease", |to, value| value.time(&mut to.rules.grant_lease)),
    ("handoff_budget", |to, value| value.time(&mut to.rules.handoff_budget)),
    ("poll_interval", |to, value| value.time(&mut to.rules.poll_interval)),
    ("yield_to_foreign", |to, value| value.switch(&mut to.rules.yield_to_foreign)),
    ("replica_acks", |to, value| value.count(&mut to.rules.replica_acks)),
    ("tracking", |to, value| value.switch(&mut to.rules.tracking)),
    ("tls_ca", |to, value| value.file(&mut to.certificates.ca)),
    ("tls_cert", |to, value| value.file(&mut to.certificates.client)),
    ("tls_key", |to, value| value.file(&mut to.certificates.key)),
    ("tls_name", |to, value| value.text(to.certificates.name.get_or_insert_default())),
];

const CONNECT: [(&str, bool); 2] = [("eager", false), ("lazy", true)];

/// The value of an option as it is written. Each method sets it, or returns what to write.
pub(super) struct OptionValue<'a> {
    name: &'a str,
    text: &'a str,
}

impl OptionValue<'_> {
    #[expect(clippy::unnecessary_wraps, reason = "it is called as the methods that may fail")]
    fn text<T: for<'a> From<&'a str>>(&self, to: &mut T) -> Result<()> {
        *to = self.text.into();
        Ok(())
    }

    fn time(&self, to: &mut Duration) -> Result<()> {
        *to = duration::parse(self.text).map_err(|problem| config(self.name, problem))?;
        Ok(())
    }

    fn count(&self, to: &mut u8) -> Result<()> {
        let problem = "it is a number of replicas, from 0 to 255, as in `replica_acks=2`";
        *to = self.text.parse().map_err(|_| config(self.name, problem))?;
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is called as the methods that may fail")]
    fn file(&self, to: &mut Option<Pem>) -> Result<()> {
        // Each connection reads the file, and a process that becomes a daemon changes its
        // directory.
        *to = Some(Pem::File(std::path::absolute(self.text).unwrap_or_else(|_| self.text.into())));
        Ok(())
    }

    fn switch(&self, to: &mut bool) -> Result<()> {
        *to = match self.text {
            "on" => true,
            "off" => false,
            _ => return Err(config(self.name, "it is `on` or `off`")),
        };
        Ok(())
    }

    fn one_of<T: Copy>(&self, all: &[(&str, T)], to: &mut T) -> Result<()> {
        let known = all.iter().find(|(known, _)| *known == self.text).ok_or_else(|| {
            let allowed: Vec<_> = all.iter().map(|(known, _)| format!("`{known}`")).collect();
            config(self.name, format!("this value is not known; allowed are {}", allowed.join(", ")))
        });
        *to = known?.1;
        Ok(())
    }
}

/// Checks that each URL is refused, that the error names the part, and that it shows no `hunter2`.
#[cfg(test)]
pub(super) fn assert_refused(urls: &[(&str, &str)]) {
    for (url, part) in urls {
        let Err(error) = parse(url) else { panic!("{url} was taken") };
        let text = format!("{error} {error:?}");
        assert!(text.contains(part), "{url}: {text}");
        assert!(!text.contains("hunter2"), "{url}: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::config::certificates::Certificates;

    fn redis(text: &str) -> NodeSpec {
        match parse(text).map(|target| target.place) {
            Ok(Endpoint::Redis(server)) => server,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn every_part_of_an_address_is_read() {
        let server = redis("redis://shop:p%40ss%2F@[::1]:7000/3?namespace=n&lease=5s");

        assert_eq!((&*server.host, server.port, server.database), ("::1", 7000, 3));
        assert_eq!((server.username.as_deref(), server.password.as_deref()), (Some("shop"), Some("p@ss/")));
    }

    #[test]
    fn a_scheme_may_be_written_in_capitals_and_a_line_may_end_the_url() {
        for url in ["REDIS://h1\n", " Redis+Sentinel://h1/m", "redis+CLUSTER://h1\r\n", "MEMORY://"] {
            assert!(parse(url).is_ok(), "{url:?}: {:?}", parse(url));
        }
    }

    /// The URL parser would remove control characters: `redis\n://` would become a scheme that no
    /// check here knows, and a password would change.
    #[test]
    fn a_line_break_within_a_url_is_refused_with_advice() {
        for url in ["redi\ns://h1,h2", "redis://h1\t/2", "redis://:pass\nword@h1", "redis://h1\0"] {
            let refused = parse(url).expect_err("it has a control character in it").to_string();
            assert!(
                refused.contains("control character") && !refused.contains("word@"),
                "{url:?}: {refused}"
            );
        }
    }

    #[test]
    fn an_ipv6_address_is_shown_apart_from_its_port() {
        assert_eq!(redis("redis://[::1]:7000").to_string(), "[::1]:7000");
    }

    #[test]
    fn omitted_parts_have_defaults() {
        let server = redis("redis://:secret@cache");

        assert_eq!((&*server.host, server.port, server.database, server.tls), ("cache", 6379, 0, false));
        assert_eq!((server.username.as_deref(), server.password.as_deref()), (None, Some("secret")));
    }

    #[cfg(unix)]
    #[test]
    fn a_unix_socket_has_its_database_and_its_user_among_the_options() {
        let server = redis("redis+unix:///run/my%20redis.sock?db=3&user=shop&password=a+b%26c&lease=5s");

        assert_eq!(server.socket.as_deref(), Some(std::path::Path::new("/run/my redis.sock")));
        assert_eq!((server.database, server.username.as_deref()), (3, Some("shop")));
        assert_eq!(server.password.as_deref(), Some("a+b&c"));
    }

    #[cfg(unix)]
    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        let longest = "x".repeat(106);
        assert!(!cfg!(target_os = "linux") || parse(&format!("redis+unix:///{longest}")).is_ok());

        assert_refused(&[
            (
                &format!("redis+unix:///{longest}x"),
                "path: it has 108 bytes: the path of a unix socket has at most 107",
            ),
            ("redis+unix:///run/redis%00.sock", "path: it contains a NUL byte"),
        ]);
    }

    #[test]
    fn a_relative_path_is_that_of_the_current_folder() {
        let here = std::env::current_dir().expect("a folder");
        let certificates = |url: &str| parse(url).expect("it is valid").settings.certificates;

        let Certificates { ca, client, key, .. } =
            certificates("redis://h?tls_ca=ca.pem&tls_cert=tls/client.pem&tls_key=/etc/key.pem");

        let paths = [ca, client, key].map(|file| match file {
            Some(Pem::File(path)) => path,
            other => panic!("{other:?}"),
        });
        assert_eq!(paths, [here.join("ca.pem"), here.join("tls/client.pem"), "/etc/key.pem".into()]);
        assert!(
            matches!(certificates("redis://h?tls_ca=").ca, Some(Pem::File(path)) if path.as_os_str().is_empty())
        );
    }

    #[test]
    fn options_are_read() {
        let settings =
            parse("redis://host?namespace=&layout=redisson&publish=both&handoff_budget=0ms&poll_interval=1s")
                .map(|target| target.settings);

        let settings = settings.unwrap_or_default();
        assert_eq!(
            (
                &*settings.namespace,
                settings.layout,
                settings.publish,
                settings.rules.handoff_budget,
                settings.rules.poll_interval
            ),
            ("", Layout::Redisson, Publish::Both, Duration::ZERO, Duration::from_secs(1))
        );
    }

    #[test]
    fn a_wrong_value_of_an_option_says_what_to_write() {
        for (option, part) in [
            ("lease=30", "`30ms` or `30s`"),
            ("lease=30sec", "`30s`"),
            ("lease=30000", "`30000ms`"),
            ("lease=1.5s", "`500ms`"),
            ("lease=1d", "`1h`"),
            ("lease=", "`30s`"),
            ("lease", "`name=value`"),
            ("connect_timeout=2 s", "`500ms`"),
            ("tracking=true", "`on` or `off`"),
            ("tracking=1", "`on` or `off`"),
            ("yield_to_foreign=yes", "`on` or `off`"),
            ("replica_acks=all", "`replica_acks=2`"),
            ("replica_acks=-1", "`replica_acks=2`"),
            ("layout=Redisson", "`redisson`"),
            ("layout=hash", "`redisson`"),
            ("publish=sharded", "`spublish`"),
            ("lease=5s,namespace=shop", "`500ms`"),
            ("lease=5s;namespace=shop", "`500ms`"),
            ("namespace=shop?lease=5s", "separated by `&`"),
            ("lease=5s&lease=6s", "given twice"),
        ] {
            let problem = parse(&format!("redis://host?{option}")).expect_err(option).to_string();
            assert!(problem.contains(part), "{option}: {problem}");
        }
    }

    #[test]
    fn a_url_that_a_new_user_types_says_what_to_write() {
        let refused = |url: &str| match parse(url).and_then(|target| target.settings.checked()) {
            Err(error) => error.to_string(),
            Ok(_) => "it is accepted".to_owned(),
        };
        let typed = [
            ("localhost", "write `redis://host:port`"),
            ("localhost:6379", "write `redis://host:port`"),
            ("redis:localhost", "did you mean `redis://host:port`"),
            ("redis:/localhost:6379", "did you mean `redis://host:port`"),
            ("redis//localhost", "did you mean `redis://host:port`"),
            ("$REDIS_URL", "write `redis://host:port`"),
            ("'redis://localhost'", "remove them"),
            ("/run/redis.sock", "did you mean `redis+unix:///path`"),
            ("tcp://localhost:6379", "did you mean `redis://host:port`"),
            ("redis+tls://h", "did you mean `rediss://host:port`"),
            ("redis+ssl://h", "did you mean `rediss://host:port`"),
            ("redis-sentinel://h1/m", "did you mean `redis+sentinel://host,host/name`"),
            ("sentinel://h1/m", "did you mean `redis+sentinel://host,host/name`"),
            ("cluster://h1,h2", "did you mean `redis+cluster://host,host`"),
            ("redlock://h1,h2,h3", "did you mean `redis+quorum://host,host,host`"),
            ("memory", "did you mean `memory://`"),
            ("in-memory://", "did you mean `memory://`"),
            ("postgres://h", "write `redis://host:port`"),
            ("redis://localhost:6379:6380", "write `host:port`"),
            ("redis://::1:6379", "as in `redis://[::1]:6379`"),
            ("redis://[::1", "write `redis://host:port`"),
            ("redis://localhost:port", "write `redis://host:port`"),
            ("redis://h1;h2", "write `redis+cluster://host,host`"),
            ("redis://h1 h2", "write `redis+cluster://host,host`"),
            ("redis://\"localhost\":6379/0", "host: it has a quote in it: remove it"),
            ("redis://localhost'?lease=5s", "host: it has a quote in it: remove it"),
            ("redis+cluster://'h1',h2", "host: it has a quote in it: remove it"),
            ("redis://localhost\u{200b}", "invisible character in it (U+200B)"),
            ("redis+sentinel://h1,\u{feff}h2/m", "invisible character in it (U+FEFF)"),
            ("redis://localhost # the cache", "followed by a comment: remove it"),
            ("redis://localhost?lease=5s # the cache", "followed by a comment: remove it"),
            ("redis+cluster://h1,h2 # the cache", "followed by a comment: remove it"),
            ("redis://localhost/mydb", "as in `redis://host:6379/2`"),
            ("redis://localhost/0/1", "as in `redis://host:6379/2`"),
            ("redis://user@localhost", "write `redis://:password@host`"),
            ("redis://localhost&lease=5s", "write `redis://host:port?lease=10s"),
            ("redis://localhost?lease:5s", "each is written `name=value`"),
            ("redis://localhost?lease=5s&owner", "each is written `name=value`"),
            ("redis://localhost?lease=30 s", "write `500ms`, `30s`"),
            ("redis://localhost?lease=5s;owner=web", "write `500ms`, `30s`"),
            ("redis://localhost?response_timeout=5", "write `5ms` or `5s`"),
            ("redis://localhost?lease=0s", "lease: 0s is not between 100 ms and 365 days"),
            ("redis://localhost?grant_lease=2m", "2m is not between 100 ms and 60 s"),
            ("redis://localhost?namespace=shop:", "write `shop`"),
            ("redis://localhost?owner=", "write a name such as `web-1`"),
            ("redis://localhost?owner=web 1", "write a name such as `web-1`"),
            ("redis://localhost?clientName=web", "dlock calls it `owner`"),
            ("redis://localhost?tracking=yes", "it is `on` or `off`"),
            ("redis://localhost?db=1", "as in `redis://host:port/2`"),
            ("redis://localhost?ssl=true", "write `rediss://`"),
            ("redis://localhost?retry=3", "write it in `#[distributed_lock(..)]`"),
            ("redis+sentinel://h1,h2", "as in `redis+sentinel://host1,host2,host3/mymaster`"),
            ("redis+quorum://h1,h2", "name three hosts"),
            ("redis+cluster://h1,h2/1", "write `redis+cluster://host,host`"),
            ("redis+unix://localhost/run/redis.sock", "write `redis+unix:///path/to/redis.sock`"),
        ];

        let unhelpful: Vec<_> = typed
            .into_iter()
            .map(|(url, part)| (url, part, refused(url)))
            .filter(|(_, part, text)| !text.contains(part))
            .collect();

        assert!(unhelpful.is_empty(), "{unhelpful:#?}");
    }

    #[test]
    fn an_old_option_name_is_refused_with_the_new_one() {
        for (option, new) in [
            ("hand_off=0ms", "`handoff_budget`"),
            ("poll=20ms", "`poll_interval`"),
            ("share=setnx", "`yield_to_foreign=on`"),
        ] {
            let refused = parse(&format!("redis://host?{option}")).expect_err("the name is old").to_string();
            assert!(refused.contains(new), "{option}: {refused}");
        }
    }

    #[test]
    fn the_way_to_connect_is_read() {
        let lazy = |url| parse(url).map(|target| target.settings.lazy).ok();

        assert_eq!(lazy("redis://host"), Some(false));
        assert_eq!(lazy("redis+cluster://h1,h2?connect=eager"), Some(false));
        assert_eq!(lazy("redis://host?connect=lazy"), Some(true));
        let refused = parse("redis://host?connect=later").expect_err("it is neither").to_string();
        assert!(refused.contains("`eager`, `lazy`"), "{refused}");
    }

    #[test]
    fn yield_to_foreign_is_read() {
        for (url, expected) in [
            ("memory://", false),
            ("memory://?yield_to_foreign=off", false),
            ("redis://host?yield_to_foreign=on", true),
        ] {
            assert_eq!(
                parse(url).map(|target| target.settings.rules.yield_to_foreign).ok(),
                Some(expected),
                "{url}"
            );
        }
    }

    #[test]
    fn a_path_or_a_host_that_would_be_read_as_another_is_refused() {
        assert_refused(&[
            ("redis://u:hunter2@host//3", "database"),
            ("redis://u:hunter2@host/3/..", "path: it has a `.` or `..`"),
            ("redis+cluster://u:hunter2@h1,h2/%2E%2e/0", "path: it has a `.` or `..`"),
            ("redis+unix:///run/../hunter2", "path: it has a `.` or `..`"),
            ("redis://u:hunter2@caf\u{e9}.example", "host: it has a character that no host has"),
            ("redis+quorum://u:hunter2@h1,caf%C3%A9.example,h3", "host: it has a character that no host has"),
        ]);
        assert!(parse("redis://host?tls_ca=a/../ca.pem").is_ok(), "an option may have a path");
        assert!(parse("memory://caf\u{e9}").is_ok(), "it is only a name");
    }

    #[test]
    fn an_empty_password_is_none() {
        for url in ["redis://:@host", "redis+unix:///run/redis.sock?user=&password="] {
            let server = redis(url);
            assert_eq!((server.username, server.password), (None, None), "{url}");
        }
    }

    #[test]
    fn an_address_is_shown_without_user_and_password() {
        let server = redis("redis://shop:hunter2@host:7/3");

        assert_eq!(
            (server.to_string().as_str(), format!("{server:?}").as_str()),
            ("host:7", "NodeSpec(host:7/3, tls: false)")
        );
    }

    #[test]
    fn a_wrong_url_names_the_part_and_never_the_password() {
        assert_refused(&[
            ("127.0.0.1:6379", "scheme: it is missing"),
            ("", "scheme"),
            ("http://u:hunter2@host", "scheme"),
            ("redis://", "host"),
            ("redis://u:hunter2@host:99999", "url"),
            ("redis://u:hunter2@host:0", "port"),
            ("redis://u:hunter2@host/one", "database"),
            ("redis://u:hunter2@host/-1", "database"),
            ("redis+unix:///run/redis.sock?user=shop&password=", "password"),
            ("redis://u:%ff@host", "password"),
            ("redis://u:hunter2@host?leas=3s", "options"),
            ("redis://host?hunter2!=1", "options"),
            ("redis://u:hunter2@host?lease=30", "lease"),
            ("redis://u:hunter2@host?lease=3s&lease=4s", "lease"),
            ("memory://u:hunter2@name", "memory url"),
            ("memory://name/path", "memory url"),
            ("redis://u:hunter2@host#hunter2", "fragment"),
            ("redis+unix://", "path"),
            ("redis+unix:///", "path"),
            ("redis+unix://run/redis.sock", "path"),
            ("redis+unix:///run/%ff", "path"),
            ("redis+unix:///run/redis.sock?db=hunter2", "db"),
            ("redis+unix:///run/redis.sock?user=shop", "password"),
            ("redis+unix:///run/redis.sock?password=hunter2&password=hunter2", "password"),
            ("redis+unix:///run/redis.sock?passwort=hunter2", "did you mean `password`"),
            ("redis+unix:///run/redis.sock?sekret=hunter2", "`tls_name`, `db`, `user`, `password`"),
            ("redis://u:hunter2@host?leas=3s", "did you mean `lease`"),
            ("redis+unix:user:hunter2@/path", "`redis+unix:///path`"),
            ("redis+unix:/user:hunter2@/path", "`redis+unix:///path`"),
            ("redis+unix://user:hunter2@/path", "url"),
            ("redis+unix://:hunter2@/path", "url"),
            ("redis+unix:///user:hunter2@/path", "password"),
            ("unix:user:hunter2@/path", "`redis+unix:///path`"),
            ("unix://user:hunter2@/path", "`redis+unix:///path`"),
            ("redis:user:hunter2@host", "`redis://host:port`"),
            ("redis:/user:hunter2@host", "`redis://host:port`"),
            ("redis//user:hunter2@host", "`redis://host:port`"),
            ("redis/user:hunter2@host", "`redis://host:port`"),
            ("redis;//user:hunter2@host", "scheme"),
            ("user:hunter2@host", "scheme"),
            (":hunter2@host", "scheme"),
            ("hunter2@host", "scheme"),
            ("hunter2://host", "scheme"),
            ("hunter2@host://x", "scheme"),
            ("user:hunter2@host?x=redis://y", "scheme"),
            ("REDIS_PASSWORD=hunter2 redis://host", "scheme"),
            ("hunter2=redis://host", "scheme"),
            ("\"redis://user:hunter2@host\"", "url"),
            ("redis-cluster://user:hunter2@host", "`redis+cluster://host,host`"),
            ("redis-hunter2://host", "scheme"),
            ("redis+cluster:user:hunter2@h1,h2", "`redis+cluster://host,host`"),
            ("redis+sentinel://user:hunter2@", "host"),
            ("rediss:user:hunter2@host", "`rediss://host:port`"),
            ("memory:hunter2@x", "`memory://`"),
            ("redis+quorum://user:hunter2,h2,h3", "host"),
            ("redis://user:hunter2", "url"),
            ("redis://user:hunter2:6379", "url"),
            ("redis://user@hunter2@host", "password"),
            ("redis://[hunter2]@host:x", "url"),
            ("redis+unix:///run/redis.sock?password=%ffhunter2", "options"),
            ("redis://user:'hunter2'", "quotes"),
            ("redis://user:'hunter2':6379", "host: it has a quote"),
            ("redis://:hunter2 #x@host", "password"),
            ("redis+unix:///run/redis.sock?password=hunter2@x", "password"),
            (
                "redis://host?password=hunter2",
                "options: `password` is not an option: write user and password before the host, as in \
                 `redis://user:password@host",
            ),
            ("redis+sentinel://h1,h2/m?db=2", "options: `db` is not an option: write the database after"),
            ("redis://:hunter2@${REDIS_HOST}:6379", "host: it has a `$`"),
            ("redis://:hunter2@$HOST", "host: it has a `$`"),
            ("redis://{{ .Values.host }}", "host: it has a `$`"),
            ("redis://:hunter2@<host>:6379", "host: it has a `$`"),
            ("redis+cluster://<host>,<host>", "host: it has a `$`"),
            ("redis://host?hunter2", "options: each is written `name=value`"),
            ("redis://host?lease=5s?namespace=hunter2", "options: they are separated by `&`"),
            ("redis://h1?wait=5s", "options: `wait` is an option of a call, not of a manager: write it in"),
            ("redis://:hunter2%+1@host", "password"),
            ("redis+cluster://h1,h2:7000,h1:6379", "twice"),
            ("redis+sentinel://:hunter2@h1,h2,h1/m", "twice"),
            ("redis+quorum://:hunter2@[::1],h2,[0:0::1]", "twice"),
            ("redis+quorum://cache,CACHE,h3", "twice"),
            ("redis+cluster://::1:7000,::1:7001", "`[::1]:port`"),
            ("redis+quorum://redis://h1,redis://h2,redis://h3", "one scheme"),
            ("redis+cluster://h1:6379,redis://h2:6379", "one scheme"),
            ("unix:///run/redis.sock?password=hunter2", "redis+unix:///path"),
            ("redis+socket:///run/redis.sock", "redis+unix:///path"),
            ("redis://host?tls_ca=a&tls_ca=b", "tls_ca"),
            ("redis://host?yield_to_foreign=hunter2", "yield_to_foreign"),
            ("redis://host?yield_to_foreign=ON", "yield_to_foreign"),
            ("redis://host?layout=hunter2", "`redisson`"),
            ("redis://host?publish=hunter2", "`spublish`"),
            ("redis://host?io=hunter2", "leave it out"),
            ("memory://name#hunter2", "fragment"),
        ]);
    }

    #[test]
    fn a_password_that_is_not_encoded_is_refused_and_no_piece_of_it_is_printed() {
        for separator in ["#", "?", "/"] {
            for user in ["", "shop"] {
                for pieces in [["hunter", "two"], ["1234", "two"], ["hunter", "lease=two"], ["", "two"]] {
                    let url = format!("redis://{user}:{}@host:6379/0", pieces.join(separator));
                    let Err(error) = parse(&url) else { panic!("{url} was taken") };
                    let text = format!("{error} {error:?}");
                    assert!(text.contains("password") && text.contains("`%23`"), "{url}: {text}");
                    assert!(
                        ["hunter", "1234", "two", "shop", "host"].iter().all(|piece| !text.contains(piece)),
                        "{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_password_that_is_encoded_is_taken() {
        let server = redis("redis://shop:a%23b%3Fc%2Fd%40e@host?namespace=x%40y");

        assert_eq!(server.password.as_deref(), Some("a#b?c/d@e"));
    }

    #[test]
    fn the_guide_has_every_option_and_every_scheme() {
        let text = include_str!("../docs/configuration.md");
        let options = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        let options: Vec<_> = options.flat_map(|cell| cell.split(", ")).collect();
        for (option, _) in OPTIONS {
            assert!(options.contains(&&*format!("`{option}`")), "{option} is not in the guide");
        }
        for (scheme, _) in scheme::SCHEMES {
            assert!(text.contains(&format!("\n{scheme}://")), "{scheme} is not in the guide");
        }
    }
}
