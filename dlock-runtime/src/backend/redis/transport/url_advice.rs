//! [`UrlAdvice`], what to change in the URL of a server.

use crate::config::deployment::Deployment;
use crate::config::node_spec::NodeSpec;

/// The facts about the URL of a server that decide which change of it an error can advise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UrlAdvice {
    deployment: Deployment,
    tls: bool,
    credentials: &'static CredentialsAdvice,
}

/// The advice about the user and the password of a server. It depends on where they are given.
#[derive(Debug)]
struct CredentialsAdvice {
    /// If the server requires credentials.
    missing: &'static str,
    /// If the server requires no password.
    unneeded: &'static str,
    wrong: &'static str,
}

/// For credentials before the host.
static URL: CredentialsAdvice = CredentialsAdvice {
    missing: "; write `:password@` or `user:password@` before the host",
    unneeded: "; it needs no password: leave out `:password@` before the host, or write the user as well, as in \
               `user:password@`",
    wrong: "; correct `user:password@` or `:password@` before the host, with `#`, `?`, `/`, `%`, and `@` percent-encoded",
};

/// For credentials in the options of a URL of a unix socket.
static SOCKET_OPTIONS: CredentialsAdvice = CredentialsAdvice {
    missing: "; write `?password=..`, or `?user=..&password=..`",
    unneeded: "; it needs no password: leave out `password`, or write the user as well, as in `user=..&password=..`",
    wrong: "; correct `password`, or `user` and `password`, with `#`, `?`, `&`, `%`, and `@` percent-encoded",
};

/// For credentials in the options for sentinels.
static SENTINEL_OPTIONS: CredentialsAdvice = CredentialsAdvice {
    missing: "; write `?sentinel_password=..`, or `?sentinel_user=..&sentinel_password=..`",
    unneeded: "; it needs no password: leave out `sentinel_password`, or write `sentinel_user` as well",
    wrong: "; correct `sentinel_password`, or `sentinel_user` and `sentinel_password`, with `#`, `?`, `&`, `%`, and `@` \
            percent-encoded",
};

/// For credentials that the callback of the builder returns.
static CALLBACK: CredentialsAdvice = CredentialsAdvice {
    missing: "; the callback `credentials` must return a password",
    unneeded: "; it needs no password: leave out the callback `credentials`, or let it return the user as well",
    wrong: "; correct what the callback `credentials` returns",
};

impl UrlAdvice {
    /// Describes the URL of `server`, whose credentials a callback returns if `has_callback`.
    pub(super) fn new(server: &NodeSpec, has_callback: bool) -> Self {
        let credentials = if has_callback {
            &CALLBACK
        } else if server.socket.is_some() {
            &SOCKET_OPTIONS
        } else if server.is_sentinel() {
            &SENTINEL_OPTIONS
        } else {
            &URL
        };
        Self { deployment: server.deployment, tls: server.tls, credentials }
    }

    /// Returns the kind of deployment that the URL is for.
    pub(crate) fn deployment(self) -> Deployment {
        self.deployment
    }

    /// Returns the scheme of this URL with TLS, or without.
    pub(super) fn own_scheme(self, tls: bool) -> &'static str {
        self.deployment.scheme(tls)
    }

    /// Returns the scheme of another deployment of the same servers.
    pub(crate) fn scheme_of(self, deployment: Deployment) -> &'static str {
        deployment.scheme(self.tls)
    }

    /// Returns what to do if a server of this deployment is a replica and must accept writes.
    pub(crate) fn replica_of(self, deployment: Deployment) -> String {
        deployment.replica_advice(self.tls)
    }

    /// Returns what to change if the server requires credentials.
    pub(super) fn missing_credentials(self) -> &'static str {
        self.credentials.missing
    }

    /// Returns what to change if the server refuses credentials with this text.
    pub(super) fn refused_credentials(self, text: &str) -> &'static str {
        // Redis says so if its default user needs no password.
        if text.contains("without any password configured") || text.contains("no password is set") {
            self.credentials.unneeded
        } else if text.starts_with("WRONGPASS") {
            self.credentials.wrong
        } else {
            ""
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::endpoint::Endpoint;
    use crate::config::url;

    /// Returns the first server that a URL names, which is a sentinel if it names sentinels.
    fn server(text: &str) -> NodeSpec {
        match url::parse(text).expect("it is valid").place {
            Endpoint::Redis(server) => server,
            Endpoint::Sentinel(watched) => watched.sentinels[0].clone(),
            Endpoint::Cluster(seeds) => seeds.servers[0].clone(),
            Endpoint::Quorum(servers) => servers.0[0].clone(),
            Endpoint::Memory { .. } => panic!("{text}"),
        }
    }

    #[test]
    fn a_scheme_is_that_of_the_url() {
        for (url, scheme) in [
            ("redis://h", "redis"),
            ("redis+unix:///s", "redis"),
            ("redis+sentinel://h/shop", "redis+sentinel"),
            ("redis+cluster://h", "redis+cluster"),
            ("redis+quorum://h,i,j", "redis+quorum"),
        ] {
            let advice = UrlAdvice::new(&server(url), false);
            let with_tls = format!("{}://", scheme.replacen("redis", "rediss", 1));

            assert_eq!(
                [advice.own_scheme(false), advice.own_scheme(true)],
                [&format!("{scheme}://"), &with_tls]
            );
        }
    }

    #[test]
    fn another_deployment_keeps_tls() {
        let mut server = server("redis://h");
        for (tls, scheme) in [(false, "redis+cluster://"), (true, "rediss+cluster://")] {
            server.tls = tls;
            assert_eq!(UrlAdvice::new(&server, false).scheme_of(Deployment::Cluster), scheme);
        }
    }

    #[test]
    fn credentials_are_named_where_they_are_given() {
        let watched = url::parse("redis+sentinel://h/shop").expect("it is valid").place;
        let Endpoint::Sentinel(watched) = watched else { panic!("{watched:?}") };
        for (server, has_callback, words) in [
            (
                server("redis://h"),
                false,
                ["`:password@` or", "leave out `:password@`", "correct `user:password@`"],
            ),
            (
                server("redis+cluster://h"),
                false,
                ["`:password@` or", "leave out `:password@`", "before the host"],
            ),
            (watched.master, false, ["`:password@` or", "leave out `:password@`", "before the host"]),
            (
                server("redis+unix:///s"),
                false,
                ["`?password=..`", "leave out `password`", "correct `password`"],
            ),
            (
                watched.sentinels[0].clone(),
                false,
                ["`?sentinel_password=..`", "leave out `sentinel_password`", "correct `sentinel_password`"],
            ),
            (server("redis+unix:///s"), true, ["callback `credentials`"; 3]),
            (server("redis://h"), true, ["callback `credentials`"; 3]),
        ] {
            let advice = UrlAdvice::new(&server, has_callback);
            let texts = [
                advice.missing_credentials(),
                advice.refused_credentials("ERR Client sent AUTH, but no password is set"),
                advice.refused_credentials("WRONGPASS invalid username-password pair"),
            ];
            for (text, words) in texts.iter().zip(words) {
                assert!(text.starts_with("; ") && text.contains(words), "{server:?}: {text}");
            }
        }
    }

    #[test]
    fn refused_credentials_have_a_hint_by_their_text() {
        let advice = UrlAdvice::new(&server("redis://h"), false);
        for (text, hint) in [
            ("ERR AUTH <password> called without any password configured", "; it needs no password"),
            ("ERR Client sent AUTH, but no password is set", "; it needs no password"),
            ("WRONGPASS invalid username-password pair", "; correct `user:password@`"),
            ("WRONGPASS without any password configured", "; it needs no password"),
        ] {
            assert!(advice.refused_credentials(text).starts_with(hint), "{text}");
        }
        assert_eq!(advice.refused_credentials("ERR invalid password"), "");
    }
}
