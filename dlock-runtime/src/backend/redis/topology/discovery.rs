//! Finds a node's server before each connect, and checks it while it is connected.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::backend::redis::topology::quorum::membership::MemberIndex;
use crate::backend::redis::topology::sentinel::Sentinels;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::error_kind;
use crate::backend::redis::transport::redacted::Redacted;
use crate::protocol::command::{Failure, FailureKind};
use crate::token::Jitter;

/// How to find a node's server.
pub(crate) enum Discovery {
    /// At a fixed address.
    Fixed(Arc<ConnectTarget>),
    /// At a fixed address, as long as the server reports the role of a primary.
    Primary(Arc<ConnectTarget>),
    /// At the address that Sentinel reports for the primary.
    Sentinel(Box<Sentinels>),
    /// At a fixed address, as one member of a quorum.
    Quorum(Arc<ConnectTarget>, MemberIndex),
}

/// Why a check of a connected server failed.
#[derive(Debug)]
pub(crate) struct FailedCheck {
    pub(crate) failure: Failure,
    /// Whether only the reply is missing, which may come later.
    pub(crate) is_late: bool,
}

impl Discovery {
    /// Opens a connection with `open` at the server's current address.
    pub(crate) async fn find<T, F>(&self, open: impl Fn(Arc<ConnectTarget>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        match self {
            Self::Fixed(route) | Self::Primary(route) | Self::Quorum(route, _) => {
                open(Arc::clone(route)).await
            }
            Self::Sentinel(sentinels) => sentinels.find(open).await,
        }
    }

    /// Returns when the server has moved. Connections to the old address must not be used
    /// afterwards.
    pub(crate) async fn primary_changed(&self) {
        match self {
            Self::Fixed(_) | Self::Primary(_) | Self::Quorum(..) => std::future::pending().await,
            Self::Sentinel(sentinels) => sentinels.primary_changed().await,
        }
    }

    /// Watches for moves of the server, forever.
    pub(crate) async fn watch(&self, jitter: &Jitter) {
        match self {
            Self::Fixed(_) | Self::Primary(_) | Self::Quorum(..) => std::future::pending().await,
            Self::Sentinel(sentinels) => sentinels.watch(jitter).await,
        }
    }

    /// Checks that a server that has just accepted a connection is the wanted one.
    pub(crate) async fn check(
        &self,
        route: &ConnectTarget,
        connection: &mut Connection,
    ) -> Result<(), Failure> {
        match self {
            Self::Fixed(_) => Ok(()),
            Self::Primary(_) | Self::Sentinel(_) => {
                self.look(route, connection).await.map_err(|failed| failed.failure)
            }
            Self::Quorum(_, place) => place.enter(route, connection).await,
        }
    }

    /// Checks that a server still replies and still has its role.
    pub(crate) async fn look(
        &self,
        route: &ConnectTarget,
        connection: &mut Connection,
    ) -> Result<(), FailedCheck> {
        let question = match self {
            Self::Fixed(_) | Self::Quorum(..) => "PING",
            Self::Primary(_) | Self::Sentinel(_) => "ROLE",
        };
        let reply = connection.send_packed_command(&redis::cmd(question)).await;
        let reply = reply.map_err(|error| FailedCheck {
            is_late: error.is_timeout(),
            failure: route.connection_failure(error, connection.inbound()),
        })?;
        self.evaluate(&reply, route).map_err(|failure| FailedCheck { failure, is_late: false })
    }

    /// Checks the reply of a server.
    fn evaluate(&self, reply: &Value, route: &ConnectTarget) -> Result<(), Failure> {
        if let Some(error) = error_kind::out_of_service(reply) {
            let text =
                format!("redis at {} is out of service: {}", route.shown, route.shown.advised_text(error));
            return Err(Failure::new(FailureKind::Passing, text));
        }
        match self {
            Self::Fixed(_) | Self::Quorum(..) => Ok(()),
            Self::Primary(_) => role(reply, format_args!("a primary"), &route.shown),
            Self::Sentinel(sentinels) => {
                role(reply, format_args!("the primary `{}`", sentinels.name()), &route.shown)
            }
        }
    }

    /// Returns `true` if writes succeed without the server, so that it lacks those made before a
    /// connection to it, or between two.
    pub(crate) fn misses_writes_while_away(&self) -> bool {
        matches!(self, Self::Quorum(..))
    }

    /// Returns the interval of the checks if it is shorter than the keepalive interval.
    pub(crate) fn look_every(&self) -> Option<Duration> {
        match self {
            Self::Fixed(_) | Self::Quorum(..) => None,
            Self::Primary(_) | Self::Sentinel(_) => Some(ROLE_CHECK_INTERVAL),
        }
    }
}

impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(route) | Self::Primary(route) | Self::Quorum(route, _) => {
                write!(f, "redis at {}", route.shown)
            }
            Self::Sentinel(sentinels) => sentinels.fmt(f),
        }
    }
}

/// Checks a reply to `ROLE`: only a primary accepts writes.
fn role(reply: &Value, wanted: fmt::Arguments<'_>, server: &Redacted) -> Result<(), Failure> {
    let role = match reply {
        Value::ServerError(error) if error.code() == "NOPERM" => {
            let text =
                format!("redis at {server} does not allow this user to read its role: allow it `+role`");
            return Err(Failure::new(FailureKind::Lasting, text));
        }
        Value::ServerError(error) => return Err(server.failure(error)),
        Value::Array(words) => words.first().and_then(error_kind::text),
        _ => None,
    };
    if role == Some("master") {
        return Ok(());
    }
    let text = format!("redis at {server} is not {wanted}: it reports another role");
    Err(Failure::new(FailureKind::Passing, text))
}

/// The longest time in which a demoted primary still accepts writes if no notification arrives.
const ROLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::backend::redis::tests::resp::{self, OK};
    use crate::backend::redis::tests::scripted_server::{ScriptedServer, patient};
    use crate::config::node_spec::NodeSpec;
    use crate::config::sentinel::SentinelEndpoint;

    #[test]
    fn only_a_server_with_role_master_is_a_primary() {
        let server = Redacted::new("h:1");
        let reply = |role: &str| Value::Array(vec![Value::BulkString(role.into()), Value::Int(0)]);
        let check = |reply: &Value| role(reply, format_args!("a primary"), &server);

        assert!(check(&reply("master")).is_ok());
        for reply in [reply("slave"), reply("sentinel"), Value::Nil, Value::Array(Vec::new()), Value::Okay] {
            assert!(check(&reply).is_err(), "{reply:?}");
        }
    }

    /// Checks a server with these replies to `PING` and `ROLE` when it is connected, and later.
    async fn checked(
        discovery: &Discovery,
        ping: &'static str,
        role: &'static str,
    ) -> [Result<(), Failure>; 2] {
        let server = ScriptedServer::start(move |command| match command {
            "PING" => format!("{ping}\r\n"),
            "ROLE" => format!("{role}\r\n"),
            _ => OK.to_owned(),
        });
        let route = ConnectTarget::new(server.spec(), &patient());
        let mut connection = route.open(route.attempt()).await.expect("it accepts");
        let first = discovery.check(&route, &mut connection).await;
        let later = discovery.look(&route, &mut connection).await;
        [first, later.map_err(|failed| failed.failure)]
    }

    fn discoveries() -> [Discovery; 3] {
        let spec = NodeSpec { host: "h".to_owned(), port: 1, ..NodeSpec::default() };
        let route = || Arc::new(ConnectTarget::new(spec.clone(), &patient()));
        let watched = SentinelEndpoint {
            name: "shop".to_owned(),
            sentinels: vec![spec.clone(), NodeSpec { port: 2, ..spec.clone() }],
            master: NodeSpec::default(),
        };
        let sentinels = Sentinels::new(watched, &patient());
        [Discovery::Fixed(route()), Discovery::Primary(route()), Discovery::Sentinel(Box::new(sentinels))]
    }

    #[tokio::test]
    async fn only_a_server_that_may_move_is_checked_for_its_role() {
        const PRIMARY: &str = "*1\r\n$6\r\nmaster";
        const REPLICA: &str = "*1\r\n$5\r\nslave";
        let [fixed, primary, sentinel] = discoveries();

        for discovery in [&fixed, &primary, &sentinel] {
            assert_eq!(checked(discovery, "+PONG", PRIMARY).await.map(|checked| checked.is_ok()), [true; 2]);
        }
        assert_eq!(checked(&fixed, "+PONG", REPLICA).await.map(|checked| checked.is_ok()), [true; 2]);
        for (discovery, text) in [(&primary, "is not a primary"), (&sentinel, "is not the primary `shop`")] {
            for checked in checked(discovery, "+PONG", REPLICA).await {
                let failure = checked.expect_err("it is a replica");
                assert!(failure.reason.contains(text), "{}", failure.reason);
                assert_eq!(failure.kind, FailureKind::Passing);
            }
        }
    }

    #[tokio::test]
    async fn a_server_out_of_service_is_noticed() {
        const LOADING: &str = "-LOADING Redis is loading the dataset in memory";
        let [fixed, primary, _] = discoveries();

        for checked in [checked(&fixed, LOADING, LOADING).await, checked(&primary, "+PONG", LOADING).await] {
            let [_, looked] = checked;
            let failure = looked.expect_err("it loads");
            let words = format!("is out of service: {}", &LOADING[1..]);
            assert!(failure.reason.ends_with(&words), "{}", failure.reason);
        }
    }

    #[test]
    fn a_role_that_cannot_be_read_is_an_error() {
        let server = Redacted::new("h:1");
        for (line, kind, text) in [
            ("NOPERM no", FailureKind::Lasting, "allow it `+role`"),
            ("ERR busy", FailureKind::Passing, "ERR busy"),
        ] {
            let reply = resp::error(line);

            let failure = role(&reply, format_args!("a primary"), &server).expect_err("there is no role");

            assert!(failure.kind == kind && failure.reason.contains(text), "{failure:?}");
        }
    }

    #[tokio::test]
    async fn only_a_server_that_may_move_is_looked_at_every_second() {
        let [fixed, primary, sentinel] = discoveries();

        assert_eq!(fixed.look_every(), None);
        assert_eq!([primary.look_every(), sentinel.look_every()], [Some(Duration::from_secs(1)); 2]);
        assert!(fixed.primary_changed().now_or_never().is_none());
        assert!(primary.primary_changed().now_or_never().is_none());
        assert_eq!(fixed.to_string(), "redis at h:1");
        assert_eq!(sentinel.to_string(), "the primary `shop` of sentinels h:1, h:2");
    }
}
