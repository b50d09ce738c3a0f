//! The parts that the URLs of all deployments have in common.

use url::{Host, Url};

use crate::config::config;
use crate::config::node_spec::NodeSpec;
use crate::error::Result;

/// Parses the parts that all URLs have in common.
pub(super) fn url(text: &str) -> Result<Url> {
    let url = Url::parse(text).map_err(|error| {
        config("url", format!("{error}; write `redis://host:port` with a port up to 65535, and percent-encode user and password"))
    })?;
    if url.fragment().is_some() {
        return Err(config("fragment", "these URLs have none: write a `#` as `%23`"));
    }
    Ok(url)
}

/// Returns `true`, or an error if this build has no TLS.
pub(super) fn tls(scheme: &str) -> Result<bool> {
    if cfg!(feature = "tls") {
        return Ok(true);
    }
    let problem = format!(
        "`{scheme}` needs the feature `tls`: `dlock-runtime = {{ version = \"..\", features = [\"tls\"] }}`"
    );
    Err(config("scheme", problem))
}

/// Parses the address, the credentials, and the database of one server.
pub(super) fn server(url: &Url, tls: bool) -> Result<NodeSpec> {
    let host = match url.host() {
        Some(Host::Ipv6(address)) => address.to_string(),
        Some(host) if !host.to_string().is_empty() => host.to_string(),
        _ => return Err(config("host", "it is missing: write `redis://host:port`")),
    };
    let port = url.port().unwrap_or(6379);
    if port == 0 {
        return Err(config("port", "0 is not a port: leave it out for 6379"));
    }
    let database = match url.path().strip_prefix('/').unwrap_or_default() {
        "" => 0,
        path => path.parse::<u32>().map(i64::from).map_err(|_| {
            config(
                "database",
                "the path after the host must be a database number, as in `redis://host:6379/2`",
            )
        })?,
    };
    let text = |part: &str, value: &str| match decoded(value) {
        Some(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        None => Err(config(part, NOT_ENCODED)),
    };
    let username = text("user", url.username())?;
    let password = text("password", url.password().unwrap_or_default())?;
    if username.is_some() && password.is_none() {
        let problem = "a user needs a password: write `redis://user:password@host`; for only a password, write `redis://:password@host`";
        return Err(config("password", problem));
    }
    Ok(NodeSpec { host, port, tls, username, password, database, ..NodeSpec::default() })
}

/// Decodes percent-encoding; `None` if the result is not UTF-8.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit =
                || char::from(rest.next()?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            bytes.push(digit()? << 4 | digit()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

pub(super) const NOT_ENCODED: &str = "it is not percent-encoded UTF-8";

#[cfg(all(test, not(feature = "tls")))]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_without_its_feature_names_the_dependency() {
        let error = tls("rediss").expect_err("this build has no TLS").to_string();

        assert!(error.contains("`dlock-runtime = { version = \"..\", features = [\"tls\"] }`"), "{error}");
    }
}
