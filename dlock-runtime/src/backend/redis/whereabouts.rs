//! Where a node's server is: asked each time the node connects, and checked while it is connected.
//!
//! Not here: the connection itself (`link`), what sentinels say (`sentinel`).

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::backend::redis::codec;
use crate::backend::redis::hearing::PING_EVERY;
use crate::backend::redis::link::Route;
use crate::backend::redis::quorum::roll::Place;
use crate::backend::redis::sentinel::Sentinels;
use crate::engine::Engine;
use crate::protocol::command::{Failure, FailureKind};

/// Where a node's server is.
pub(super) enum Whereabouts {
    /// Always at one address.
    Fixed(Arc<Route>),
    /// Where the sentinels say that their master is.
    Sentinel(Box<Sentinels>),
    /// At one address, with a place among others.
    Quorum(Arc<Route>, Place),
}

impl Whereabouts {
    /// Opens a connection by `open`, wherever the server is now.
    pub(super) async fn find<T, F>(&self, open: impl Fn(Arc<Route>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        match self {
            Self::Fixed(route) | Self::Quorum(route, _) => open(Arc::clone(route)).await,
            Self::Sentinel(sentinels) => sentinels.find(open).await,
        }
    }

    /// Returns when the server is said to be elsewhere: a connection to where it was must not be used any more.
    pub(super) async fn news(&self) {
        match self {
            Self::Fixed(_) | Self::Quorum(..) => std::future::pending().await,
            Self::Sentinel(sentinels) => sentinels.news().await,
        }
    }

    /// Listens to what is said of where the server is, without end. `engine` draws the jitter.
    pub(super) async fn watch(&self, engine: &Weak<Engine>) {
        match self {
            Self::Fixed(_) | Self::Quorum(..) => std::future::pending().await,
            Self::Sentinel(sentinels) => sentinels.watch(engine).await,
        }
    }

    /// Checks that a server which has just let us in is the one that is wanted.
    pub(super) async fn check(
        &self,
        route: &Route,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), Failure> {
        match self {
            Self::Fixed(_) => Ok(()),
            Self::Sentinel(_) => self.look(route, connection).await,
            Self::Quorum(_, place) => place.enter(route, connection).await,
        }
    }

    /// Looks whether a server still answers, and is what it was.
    pub(super) async fn look(
        &self,
        route: &Route,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), Failure> {
        let question = match self {
            Self::Fixed(_) | Self::Quorum(..) => "PING",
            Self::Sentinel(_) => "ROLE",
        };
        let answer = connection.send_packed_command(&redis::cmd(question)).await;
        let answer = answer.map_err(|error| route.failure(error))?;
        if codec::is_out_of_service(&answer) {
            let text = format!("redis at {} is out of service", route.shown);
            return Err(Failure::new(FailureKind::Passing, text));
        }
        match self {
            Self::Fixed(_) | Self::Quorum(..) => Ok(()),
            Self::Sentinel(sentinels) => sentinels.check_role(route, &answer),
        }
    }

    /// How often to look.
    pub(super) fn look_every(&self) -> Duration {
        match self {
            Self::Fixed(_) | Self::Quorum(..) => PING_EVERY,
            Self::Sentinel(_) => ROLE_EVERY,
        }
    }
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(route) | Self::Quorum(route, _) => write!(f, "redis at {}", route.shown),
            Self::Sentinel(sentinels) => sentinels.fmt(f),
        }
    }
}

/// A master that was demoted while no sentinel could tell us takes no write of ours for longer than this.
const ROLE_EVERY: Duration = Duration::from_secs(1);
