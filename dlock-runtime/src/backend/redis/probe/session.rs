//! One question at a time, within the time that is left for the whole examination.
//!
//! Not here: what is asked (`server`, `probe`).

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use crate::backend::redis::node::connect::ConnectTarget;
use crate::backend::redis::node::connection::Connection;
use crate::backend::redis::probe::LIMIT;
use crate::doctor::facts::Read;
use crate::protocol::command::Failure;

/// When the examination must be over.
#[derive(Clone, Copy)]
pub(in crate::backend::redis) struct ProbeTimeout {
    until: Instant,
}

impl ProbeTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self { until: Instant::now() + limit }
    }

    /// Returns the patience with a server that answers, and takes `round_trip` for that: as much more as many questions take, and twice
    /// as long at most.
    pub(super) fn with_distance(self, round_trip: Duration) -> Self {
        Self { until: self.until + (round_trip * QUESTIONS).min(LIMIT) }
    }

    /// WaitGraph for what may fail, in words, for as long as there is time.
    pub(super) async fn wait<T>(self, what: impl Future<Output = Result<T, Failure>>) -> Read<T> {
        match tokio::time::timeout_at(self.until, what).await {
            Ok(answered) => answered.map_err(|failure| failure.reason),
            Err(_) => Err("the time for the examination was over".into()),
        }
    }
}

/// So many are asked one after the other, pings left out.
const QUESTIONS: u32 = 12;

/// A connection for questions.
pub(in crate::backend::redis) struct ProbeSession<'a> {
    pub(super) route: &'a ConnectTarget,
    connection: Connection,
    pub(super) retry_state: ProbeTimeout,
}

impl<'a> ProbeSession<'a> {
    /// Connects; what the server says against us may come only with the first answer.
    pub(in crate::backend::redis) async fn connect(
        route: &'a ConnectTarget,
        retry_state: ProbeTimeout,
    ) -> Read<Self> {
        let connection = retry_state.wait(route.open()).await?;
        connection.inbound().allow_descriptions(DESCRIPTIONS);
        Ok(Self { route, connection, retry_state })
    }

    /// Asks one question; an error that the server answers is an answer.
    pub(in crate::backend::redis) async fn ask(&mut self, question: &Cmd) -> Read<Value> {
        let route = self.route;
        let asked = async {
            let answer = self.connection.send_packed_command(question).await;
            answer.map_err(|error| route.lost(error, self.connection.inbound()))
        };
        self.retry_state.wait(asked).await
    }

    /// Asks several questions at once. Where the connection fails, each has that for an answer.
    pub(in crate::backend::redis) async fn ask_all(&mut self, questions: &Pipeline) -> Vec<Read<Value>> {
        let (route, count) = (self.route, questions.len());
        let asked = async {
            let answers = self.connection.send_packed_commands(questions, 0, count).await;
            answers.map_err(|error| route.lost(error, self.connection.inbound()))
        };
        match self.retry_state.wait(asked).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(why) => vec![Err(why); count],
        }
    }

    /// Reads an answer that must be text; what the server says against it is why it could not be read.
    pub(in crate::backend::redis) fn text(&self, answer: Read<Value>) -> Read<String> {
        match answer? {
            Value::BulkString(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text),
            Value::Okay => Ok("OK".to_owned()),
            other => Err(self.refusal(other)),
        }
    }

    /// Returns why an answer is not the one that was asked for.
    pub(in crate::backend::redis) fn refusal(&self, answer: Value) -> Arc<str> {
        match answer {
            Value::ServerError(error) => self.route.shown.said(&error).into(),
            _ => "it gave an answer that no redis gives".into(),
        }
    }
}

/// At most so many of the questions are answered by a description of servers.
const DESCRIPTIONS: u32 = 4;
