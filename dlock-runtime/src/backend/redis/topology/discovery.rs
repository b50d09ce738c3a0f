//! Where a node's server is: asked each time the node connects, and checked while it is connected.
//!
//! Not here: the connection itself (`link`), what sentinels say (`sentinel`).

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;

use crate::backend::redis::encoding::codec::{self, Redacted};
use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::node::connection::Connection;
use crate::backend::redis::topology::quorum::membership::MemberIndex;
use crate::backend::redis::topology::sentinel::Sentinels;
use crate::engine::Engine;
use crate::protocol::command::{Failure, FailureKind};

/// Where a node's server is.
pub(crate) enum Discovery {
    /// Always at one address.
    Fixed(Arc<ConnectTarget>),
    /// At one address, for as long as it is a master by its own word.
    Master(Arc<ConnectTarget>),
    /// Where the sentinels say that their master is.
    Sentinel(Box<Sentinels>),
    /// At one address, with a place among others.
    Quorum(Arc<ConnectTarget>, MemberIndex),
}

impl Discovery {
    /// Opens a connection by `open`, wherever the server is now.
    pub(crate) async fn find<T, F>(&self, open: impl Fn(Arc<ConnectTarget>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        match self {
            Self::Fixed(route) | Self::Master(route) | Self::Quorum(route, _) => {
                open(Arc::clone(route)).await
            }
            Self::Sentinel(sentinels) => sentinels.find(open).await,
        }
    }

    /// Returns when the server is said to be elsewhere: a connection to where it was must not be used any more.
    pub(crate) async fn primary_changed(&self) {
        match self {
            Self::Fixed(_) | Self::Master(_) | Self::Quorum(..) => std::future::pending().await,
            Self::Sentinel(sentinels) => sentinels.primary_changed().await,
        }
    }

    /// Listens to what is said of where the server is, without end. `engine` draws the jitter.
    pub(crate) async fn watch(&self, engine: &Weak<Engine>) {
        match self {
            Self::Fixed(_) | Self::Master(_) | Self::Quorum(..) => std::future::pending().await,
            Self::Sentinel(sentinels) => sentinels.watch(engine).await,
        }
    }

    /// Checks that a server which has just let us in is the one that is wanted.
    pub(crate) async fn check(
        &self,
        route: &ConnectTarget,
        connection: &mut Connection,
    ) -> Result<(), Failure> {
        match self {
            Self::Fixed(_) => Ok(()),
            Self::Master(_) | Self::Sentinel(_) => self.look(route, connection).await,
            Self::Quorum(_, place) => place.enter(route, connection).await,
        }
    }

    /// Looks whether a server still answers, and is what it was.
    pub(crate) async fn look(
        &self,
        route: &ConnectTarget,
        connection: &mut Connection,
    ) -> Result<(), Failure> {
        let question = match self {
            Self::Fixed(_) | Self::Quorum(..) => "PING",
            Self::Master(_) | Self::Sentinel(_) => "ROLE",
        };
        let answer = connection.send_packed_command(&redis::cmd(question)).await;
        let answer = answer.map_err(|error| route.lost(error, connection.inbound()))?;
        if codec::is_out_of_service(&answer) {
            let text = format!("redis at {} is out of service", route.shown);
            return Err(Failure::new(FailureKind::Passing, text));
        }
        match self {
            Self::Fixed(_) | Self::Quorum(..) => Ok(()),
            Self::Master(_) => role(&answer, format_args!("a master"), &route.shown),
            Self::Sentinel(sentinels) => {
                role(&answer, format_args!("the master `{}`", sentinels.name()), &route.shown)
            }
        }
    }

    /// How often to look, where that is more often than connections are pinged.
    pub(crate) fn look_every(&self) -> Option<Duration> {
        match self {
            Self::Fixed(_) | Self::Quorum(..) => None,
            Self::Master(_) | Self::Sentinel(_) => Some(ROLE_EVERY),
        }
    }
}

impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(route) | Self::Master(route) | Self::Quorum(route, _) => {
                write!(f, "redis at {}", route.shown)
            }
            Self::Sentinel(sentinels) => sentinels.fmt(f),
        }
    }
}

/// Checks a server's answer to `ROLE`: only a master may be written to.
fn role(answer: &Value, wanted: fmt::Arguments<'_>, server: &Redacted) -> Result<(), Failure> {
    let role = match answer {
        Value::ServerError(error) if error.code() == "NOPERM" => {
            let text = format!("redis at {server} does not let this user ask for its role: allow it `+role`");
            return Err(Failure::new(FailureKind::Lasting, text));
        }
        Value::ServerError(error) => return Err(server.failure(error)),
        Value::Array(words) => words.first().and_then(codec::text),
        _ => None,
    };
    if role == Some("master") {
        return Ok(());
    }
    let text = format!("redis at {server} is not {wanted}, by its own word");
    Err(Failure::new(FailureKind::Passing, text))
}

/// A master that was demoted while nobody could tell us takes no write of ours for longer than this.
const ROLE_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_says_so_is_a_master() {
        let server = Redacted::new("h:1");
        let said = |role: &str| Value::Array(vec![Value::BulkString(role.into()), Value::Int(0)]);
        let checked = |answer: &Value| role(answer, format_args!("a master"), &server);

        assert!(checked(&said("master")).is_ok());
        for answer in [said("slave"), said("sentinel"), Value::Nil, Value::Array(Vec::new()), Value::Okay] {
            assert!(checked(&answer).is_err(), "{answer:?}");
        }
    }
}
