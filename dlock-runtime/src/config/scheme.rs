//! Parses the scheme of a URL, and suggests a known scheme for an unknown one.
//!
//! No error repeats a part of the URL, which may hold a password, except a scheme that consists of
//! known words.

use std::borrow::Cow;

use crate::config::config;
use crate::config::suggest::nearest;
use crate::error::{Error, Result};

/// The schemes, each with an example of what follows it.
pub(super) const SCHEMES: [(&str, &str); 10] = [
    ("redis", "redis://host:port"),
    ("rediss", "rediss://host:port"),
    ("redis+unix", "redis+unix:///path"),
    ("redis+sentinel", "redis+sentinel://host,host/name"),
    ("rediss+sentinel", "rediss+sentinel://host,host/name"),
    ("redis+cluster", "redis+cluster://host,host"),
    ("rediss+cluster", "rediss+cluster://host,host"),
    ("redis+quorum", "redis+quorum://host,host,host"),
    ("rediss+quorum", "rediss+quorum://host,host,host"),
    ("memory", "memory://"),
];

/// Returns a URL with its scheme in lower case, and `redis` instead of `valkey`.
///
/// # Errors
///
/// Fails if the URL does not begin with one of the schemes and `://`, and suggests a scheme.
pub(super) fn read(text: &str) -> Result<Cow<'_, str>> {
    not_wrapped(text)?;
    // A `://` after one of these characters is not that of the scheme.
    let Some((scheme, rest)) = text.split_once("://").filter(|(scheme, _)| !scheme.contains(OF_THE_REST))
    else {
        return Err(without_slashes(text));
    };
    let known = known(scheme).ok_or_else(|| unknown(scheme))?;
    Ok(if known == scheme { Cow::Borrowed(text) } else { Cow::Owned(format!("{known}://{rest}")) })
}

/// Checks that the URL is not enclosed in quotes or similar characters.
fn not_wrapped(text: &str) -> Result<()> {
    let (first, last) = (text.chars().next(), text.chars().next_back());
    if let Some(invisible) = first.filter(|first| INVISIBLE.contains(first)) {
        let code = u32::from(invisible);
        return Err(config(
            "url",
            format!("it begins with an invisible character (U+{code:04X}): remove it"),
        ));
    }
    // An option may end with a quote.
    let last = last.filter(|_| !text.contains('?'));
    let is_escaped = text.starts_with('\\');
    let first = if is_escaped { text.chars().nth(1) } else { first };
    if let Some(quote) = first.into_iter().chain(last).find(|end| QUOTES.contains(end)) {
        let problem = format!(
            "it is enclosed in quotes (`{quote}`): remove them; env files and container settings may keep them"
        );
        return Err(config("url", problem));
    }
    if first == Some('<') {
        return Err(config("url", "it is enclosed in angle brackets: remove them"));
    }
    Ok(())
}

/// Checks that no quote and no invisible character is in the hosts of a URL: both are left over
/// around the URL or its host.
pub(super) fn not_wrapped_inside(hosts: &str) -> Result<()> {
    if hosts.contains(QUOTES) {
        return Err(config(
            "host",
            "it has a quote in it: remove it; env files and container settings may keep quotes",
        ));
    }
    match hosts.chars().find(|c| INVISIBLE.contains(c)) {
        Some(invisible) => Err(config(
            "host",
            format!("it has an invisible character in it (U+{:04X}): remove it", u32::from(invisible)),
        )),
        None => Ok(()),
    }
}

/// Returns the known scheme that `scheme` is, in any case, and with Valkey's name for Redis.
fn known(scheme: &str) -> Option<&'static str> {
    let scheme = scheme.to_ascii_lowercase();
    let scheme = match scheme.strip_prefix("valkey") {
        Some(rest) => format!("redis{rest}"),
        None => scheme,
    };
    SCHEMES.iter().map(|(known, _)| *known).find(|known| *known == scheme)
}

/// Returns the error for a scheme that is not known.
pub(super) fn unknown(scheme: &str) -> Error {
    let from_name = scheme.rfind(|c: char| !is_of_a_scheme(c)).map_or(0, |at| at + 1);
    let (before, name) = scheme.split_at_checked(from_name).unwrap_or((scheme, ""));
    if !before.is_empty() {
        let problem = match known(name) {
            Some(known) => {
                format!("remove the text before `{known}://`, such as the name of a variable")
            }
            None => format!("it is not known: write `{USUAL}`"),
        };
        return config("scheme", problem);
    }
    let name = name.to_ascii_lowercase();
    let problem = if let Some(meant) = meant(&name) {
        format!("`{name}` is not known: did you mean `{meant}`")
    } else if let Some(near) = nearest(&name, SCHEMES.iter().map(|(known, _)| *known)) {
        format!("it is not known: did you mean `{}`", written(near))
    } else {
        format!("it is not known: write `{USUAL}`, or another that the guide on configuration lists")
    };
    config("scheme", problem)
}

/// Returns the error for a URL without `://`.
fn without_slashes(text: &str) -> Error {
    let end = text.find(|c: char| !is_of_a_scheme(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at_checked(end).unwrap_or(("", text));
    let name = name.to_ascii_lowercase();
    // The bare word `memory` has no rest.
    let is_scheme = rest.is_empty() || rest.starts_with([':', '/', '\\']);
    let problem = if text.starts_with('/') {
        format!("it is missing: did you mean `{}`", written("redis+unix"))
    } else if let Some(meant) = known(&name).map(written).or_else(|| meant(&name)).filter(|_| is_scheme) {
        format!("it is not followed by `://`: did you mean `{meant}`")
    } else {
        format!("it is missing: write `{USUAL}`")
    };
    config("scheme", problem)
}

/// Returns the scheme, with an example, that has the same words as `name`, such as `redis-cluster`
/// or `tls`.
fn meant(name: &str) -> Option<&'static str> {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let plain = plain.replace("valkey", "redis");
    let kind = KINDS.iter().find(|(word, _)| plain.contains(word));
    let (rest, kind) = match kind {
        Some((word, kind)) => (plain.replacen(word, "", 1), Some(*kind)),
        None => (plain, None),
    };
    let tls = match &*rest {
        "" if kind.is_some() => false,
        "redis" | "redisdb" | "tcp" | "redistcp" | "http" | "redishttp" | "ws" => false,
        "rediss" | "tls" | "ssl" | "redistls" | "redisssl" | "rediswithtls" | "https" | "tcps" | "wss" => {
            true
        }
        "in" if kind == Some("memory") => false,
        _ => return None,
    };
    let scheme = match (kind, tls) {
        (None, false) => "redis",
        (None, true) => "rediss",
        (Some("cluster"), false) => "redis+cluster",
        (Some("cluster"), true) => "rediss+cluster",
        (Some("sentinel"), false) => "redis+sentinel",
        (Some("sentinel"), true) => "rediss+sentinel",
        (Some("quorum"), false) => "redis+quorum",
        (Some("quorum"), true) => "rediss+quorum",
        (Some("unix"), _) => "redis+unix",
        (Some(_), _) => "memory",
    };
    Some(written(scheme))
}

/// Returns a scheme with an example of what follows it.
fn written(scheme: &str) -> &'static str {
    SCHEMES.iter().find(|(known, _)| *known == scheme).map_or(USUAL, |(_, written)| written)
}

fn is_of_a_scheme(c: char) -> bool {
    c.is_ascii_alphanumeric() || "+-._".contains(c)
}

/// Words in names of schemes, and their meanings; a word precedes the words that it contains.
const KINDS: [(&str, &str); 11] = [
    ("clusters", "cluster"),
    ("cluster", "cluster"),
    ("sentinels", "sentinel"),
    ("sentinel", "sentinel"),
    ("quorum", "quorum"),
    ("redlock", "quorum"),
    ("unixsocket", "unix"),
    ("unix", "unix"),
    ("socket", "unix"),
    ("memory", "memory"),
    ("mem", "memory"),
];

const OF_THE_REST: [char; 6] = [':', '/', '?', '#', '@', '\\'];
const QUOTES: [char; 9] = ['"', '\'', '`', '“', '”', '‘', '’', '«', '»'];
/// A byte order mark, and zero-width spaces.
const INVISIBLE: [char; 5] = ['\u{feff}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{2060}'];
const USUAL: &str = "redis://host:port";

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        read(text).expect_err(text).to_string()
    }

    #[test]
    fn valkey_is_read_as_redis() {
        for (url, same) in [
            ("valkey://h", "redis://h"),
            ("valkeys://h:1/2?lease=5s", "rediss://h:1/2?lease=5s"),
            ("VALKEY+Unix:///s", "redis+unix:///s"),
            ("valkey+sentinel://h/m", "redis+sentinel://h/m"),
            ("valkeys+cluster://h", "rediss+cluster://h"),
            ("valkey+quorum://a,b,c", "redis+quorum://a,b,c"),
        ] {
            assert_eq!(read(url).ok().as_deref(), Some(same), "{url}");
        }
    }

    #[test]
    fn a_misspelled_scheme_has_one_suggestion() {
        for (url, meant) in [
            ("redis-cluster://h", "redis+cluster://host,host"),
            ("redis+clusters://h", "redis+cluster://host,host"),
            ("rediss+clusters://h", "rediss+cluster://host,host"),
            ("rediss-cluster://h", "rediss+cluster://host,host"),
            ("redis_cluster://h", "redis+cluster://host,host"),
            ("rediscluster://h", "redis+cluster://host,host"),
            ("valkey-cluster://h", "redis+cluster://host,host"),
            ("redis-sentinel://h/m", "redis+sentinel://host,host/name"),
            ("redissentinel://h/m", "redis+sentinel://host,host/name"),
            ("rediss-sentinel://h/m", "rediss+sentinel://host,host/name"),
            ("sentinel://h/m", "redis+sentinel://host,host/name"),
            ("redlock://a,b,c", "redis+quorum://host,host,host"),
            ("tls://h", "rediss://host:port"),
            ("redis+tls://h", "rediss://host:port"),
            ("redis+ssl://h", "rediss://host:port"),
            ("https://h", "rediss://host:port"),
            ("http://h", "redis://host:port"),
            ("tcp://h", "redis://host:port"),
            ("unix:///s", "redis+unix:///path"),
            ("redis-socket:///s", "redis+unix:///path"),
            ("rediss+unix:///s", "redis+unix:///path"),
            ("redsi://h", "redis://host:port"),
            ("rediis://h", "redis://host:port"),
            ("reddiss://h", "rediss://host:port"),
            ("redis+centinel://h", "redis+sentinel://host,host/name"),
            ("mem://", "memory://"),
            ("in-memory://", "memory://"),
        ] {
            let refused = refused(url);
            assert!(refused.contains(&format!("did you mean `{meant}`")), "{url}: {refused}");
            assert_eq!(refused.matches("://").count(), 1, "{url}: {refused}");
        }
        for url in ["postgres://h", "amqp://h", "x://h", "://h", "redis+cluster+sentinel://h"] {
            let refused = refused(url);
            assert!(refused.contains("write `redis://host:port`"), "{url}: {refused}");
        }
    }

    #[test]
    fn missing_slashes_are_named() {
        for (url, meant) in [
            ("redis:/h", "redis://host:port"),
            ("redis:h:6379", "redis://host:port"),
            ("redis//h", "redis://host:port"),
            ("redis/h", "redis://host:port"),
            ("redis:\\\\h", "redis://host:port"),
            ("REDISS:/h", "rediss://host:port"),
            ("redis+cluster:/h", "redis+cluster://host,host"),
            ("unix:/run/redis.sock", "redis+unix:///path"),
            ("redis+unix:/run/redis.sock", "redis+unix:///path"),
            ("/run/redis.sock", "redis+unix:///path"),
            ("redis:/h?namespace=a://b", "redis://host:port"),
            ("memory", "memory://"),
            ("memory:", "memory://"),
            ("in-memory", "memory://"),
            ("redis", "redis://host:port"),
            ("tls", "rediss://host:port"),
        ] {
            assert!(refused(url).contains(&format!("did you mean `{meant}`")), "{url}: {}", refused(url));
        }
        for url in ["", "localhost", "cache.example:6379", "127.0.0.1:6379", "[::1]:6379", "h/2", ":6379"] {
            assert!(
                refused(url).contains("it is missing: write `redis://host:port`"),
                "{url}: {}",
                refused(url)
            );
        }
    }

    #[test]
    fn quotes_and_other_things_around_a_url_are_named() {
        for url in [
            "\"redis://h\"",
            "'redis://h'",
            "`redis://h`",
            "“redis://h”",
            "\"redis://h",
            "redis://h'",
            "\\\"redis://h\\\"",
            "\"redis://h?lease=5s\"",
        ] {
            assert!(refused(url).contains("enclosed in quotes"), "{url}: {}", refused(url));
        }
        for (url, words) in [
            ("REDIS_URL=redis://h", "before `redis://`"),
            ("export REDIS_URL=\"valkeys://h\"", "quotes"),
            ("url: redis+cluster://h", "it is missing"),
            ("REDIS_URL=\"redis://h", "before `redis://`"),
            ("<redis://h>", "angle brackets"),
            ("\u{feff}redis://h", "U+FEFF"),
            ("\u{200b}redis://h", "U+200B"),
        ] {
            assert!(refused(url).contains(words), "{url}: {}", refused(url));
        }
        assert!(read("redis://h?namespace=it's'").is_ok(), "an option may end with a quote");
    }
}
