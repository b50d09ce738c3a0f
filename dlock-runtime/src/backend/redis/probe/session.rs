//! One query at a time, within the time limit of the whole examination.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use crate::backend::redis::probe::LIMIT;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::connection::Connection;
use crate::doctor::facts::Read;
use crate::protocol::command::Failure;

/// The deadline of an examination.
#[derive(Clone, Copy)]
pub(in crate::backend::redis) struct ProbeTimeout {
    until: Instant,
}

impl ProbeTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self { until: Instant::now() + limit }
    }

    /// Extends the deadline for a server with this round-trip time, by 12 round trips and at most
    /// by 5 s.
    pub(super) fn with_distance(self, round_trip: Duration) -> Self {
        Self { until: self.until + (round_trip * QUESTIONS).min(LIMIT) }
    }

    /// Waits for `what` until the deadline, and returns failures as text.
    pub(super) async fn wait<T>(self, what: impl Future<Output = Result<T, Failure>>) -> Read<T> {
        match tokio::time::timeout_at(self.until, what).await {
            Ok(replied) => replied.map_err(|failure| failure.reason),
            Err(_) => Err("the time for the examination was over".into()),
        }
    }
}

/// The number of sequential queries, without pings.
const QUESTIONS: u32 = 12;

/// A connection for queries.
pub(in crate::backend::redis) struct ProbeSession<'a> {
    pub(super) route: &'a ConnectTarget,
    connection: Connection,
    pub(super) timeout: ProbeTimeout,
}

impl<'a> ProbeSession<'a> {
    /// Connects. The server may reject the credentials only in its first reply.
    pub(in crate::backend::redis) async fn connect(
        route: &'a ConnectTarget,
        timeout: ProbeTimeout,
    ) -> Read<Self> {
        let connection = timeout.wait(route.open(route.attempt())).await?;
        connection.inbound().allow_descriptions(DESCRIPTIONS);
        Ok(Self { route, connection, timeout })
    }

    /// Sends one query. An error reply is a reply.
    pub(in crate::backend::redis) async fn ask(&mut self, question: &Cmd) -> Read<Value> {
        let route = self.route;
        let asked = async {
            let reply = self.connection.send_packed_command(question).await;
            reply.map_err(|error| route.connection_failure(error, self.connection.inbound()))
        };
        self.timeout.wait(asked).await
    }

    /// Sends several queries in one pipeline. If the connection fails, each query has this failure.
    pub(in crate::backend::redis) async fn ask_all(&mut self, questions: &Pipeline) -> Vec<Read<Value>> {
        let (route, count) = (self.route, questions.len());
        let asked = async {
            let replies = self.connection.send_packed_commands(questions, 0, count).await;
            replies.map_err(|error| route.connection_failure(error, self.connection.inbound()))
        };
        match self.timeout.wait(asked).await {
            Ok(replies) => replies.into_iter().map(Ok).collect(),
            Err(why) => vec![Err(why); count],
        }
    }

    /// Returns the text of a reply. An error reply becomes the reason why there is none.
    pub(in crate::backend::redis) fn text(&self, reply: Read<Value>) -> Read<String> {
        match reply? {
            Value::BulkString(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text),
            Value::Okay => Ok("OK".to_owned()),
            other => Err(self.refusal(other)),
        }
    }

    /// Returns why a reply is not the expected one.
    pub(in crate::backend::redis) fn refusal(&self, reply: Value) -> Arc<str> {
        match reply {
            Value::ServerError(error) => self.route.shown.error_text(&error).into(),
            _ => "it gave an unexpected reply".into(),
        }
    }
}

/// At most this many replies are large descriptions of a server.
const DESCRIPTIONS: u32 = 4;
