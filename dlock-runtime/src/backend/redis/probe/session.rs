//! One query at a time, within the time limit of the whole examination.
//!
//! A server that closes the connection on one query must not fail the others, so the next query
//! opens another connection.

use std::sync::Arc;
use std::time::Duration;

use redis::{Arg, Cmd, Pipeline, ServerError, Value};
use tokio::time::Instant;

use crate::backend::redis::probe::LIMIT;
use crate::backend::redis::transport::connect_target::ConnectTarget;
use crate::backend::redis::transport::connection::Connection;
use crate::backend::redis::transport::error_kind;
use crate::doctor::facts::{Read, Refusal, RefusalCause};
use crate::protocol::command::{Failure, FailureKind};

/// The deadline of an examination.
#[derive(Clone, Copy)]
pub(in crate::backend::redis) struct ProbeTimeout {
    until: Instant,
}

impl ProbeTimeout {
    pub(super) fn new(limit: Duration) -> Self {
        Self { until: Instant::now() + limit }
    }

    /// Extends the deadline for a server with this round-trip time, by 13 round trips and the time
    /// in which replicas must acknowledge, and at most by 5 s.
    pub(super) fn with_distance(self, round_trip: Duration, ack_limit: Duration) -> Self {
        Self { until: self.until + (round_trip * QUESTIONS).saturating_add(ack_limit).min(LIMIT) }
    }

    /// Waits for `what` until the deadline.
    pub(super) async fn wait<T>(self, what: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let is_over = |_| Failure::new(FailureKind::Passing, "the time for the examination was over");
        tokio::time::timeout_at(self.until, what).await.map_err(is_over)?
    }

    /// Returns why there is no reply after this failure. Past the deadline, the server is not the
    /// reason.
    pub(super) fn refusal(self, failure: Failure) -> Refusal {
        let is_over = Instant::now() >= self.until;
        let cause = if is_over { RefusalCause::NoTime } else { RefusalCause::Other };
        Refusal { cause, said: failure.reason }
    }
}

/// The round trips for which there is time: there are 11 sequential queries without pings, and more
/// after a closed connection.
const QUESTIONS: u32 = 13;

/// A connection for queries.
pub(in crate::backend::redis) struct ProbeSession<'a> {
    pub(super) route: &'a ConnectTarget,
    /// `None` if the server has closed it.
    connection: Option<Connection>,
    pub(super) timeout: ProbeTimeout,
}

impl<'a> ProbeSession<'a> {
    /// Connects. The server may reject the credentials only in its first reply.
    pub(in crate::backend::redis) async fn connect(
        route: &'a ConnectTarget,
        timeout: ProbeTimeout,
    ) -> Result<Self, Failure> {
        Ok(Self { route, connection: Some(open(route, timeout).await?), timeout })
    }

    /// Sends one query. An error reply is a reply.
    pub(in crate::backend::redis) async fn ask(&mut self, question: &Cmd) -> Result<Value, Refusal> {
        let mut questions = redis::pipe();
        questions.add_command(question.clone());
        Ok(self.send(&questions).await?.pop().unwrap_or(Value::Nil))
    }

    /// Sends several queries in one pipeline, as [`ask_each`](Self::ask_each) does.
    pub(in crate::backend::redis) async fn ask_all(
        &mut self,
        questions: &Pipeline,
    ) -> Vec<Result<Value, Refusal>> {
        let alone = |question: &Cmd| {
            let mut alone = redis::pipe();
            alone.add_command(question.clone());
            alone
        };
        self.ask_each(&questions.cmd_iter().map(alone).collect::<Vec<_>>()).await
    }

    /// Sends several queries in one pipeline. A query is a command and those that must follow it
    /// without a delay; its reply is that to its first command.
    ///
    /// If the server closes the connection, sends the queries again one by one, so that only those
    /// on which it closes it have no reply. After another failure, none has one.
    pub(super) async fn ask_each(&mut self, queries: &[Pipeline]) -> Vec<Result<Value, Refusal>> {
        let mut together = redis::pipe();
        for question in queries.iter().flat_map(Pipeline::cmd_iter) {
            together.add_command(question.clone());
        }
        match self.send(&together).await {
            Ok(replies) => {
                let mut replies = replies.into_iter();
                let first = |query: &Pipeline| {
                    let of_query: Vec<_> = replies.by_ref().take(query.len()).collect();
                    Ok(of_query.into_iter().next().unwrap_or(Value::Nil))
                };
                queries.iter().map(first).collect()
            }
            Err(refusal) if refusal.cause == RefusalCause::Closed => {
                let mut replies = Vec::with_capacity(queries.len());
                for query in queries {
                    let of_query = self.send(query).await;
                    replies.push(of_query.map(|replies| replies.into_iter().next().unwrap_or(Value::Nil)));
                }
                replies
            }
            Err(refusal) => vec![Err(refusal); queries.len()],
        }
    }

    /// Sends queries in one pipeline, over a new connection if the server has closed the previous
    /// one.
    async fn send(&mut self, questions: &Pipeline) -> Result<Vec<Value>, Refusal> {
        let (route, timeout) = (self.route, self.timeout);
        let failed = |failure| timeout.refusal(failure);
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => open(route, timeout).await.map_err(failed)?,
        };
        let asked = async { Ok(connection.send_packed_commands(questions, 0, questions.len()).await) };
        let replies = timeout.wait(asked).await.map_err(failed)?;
        if let Err(error) = &replies
            && let Some(failure) = route.closed_on_command(error, connection.inbound(), &name(questions))
        {
            return Err(Refusal { cause: RefusalCause::Closed, said: failure.reason });
        }
        let replies = route.reply_or_failure(replies, &connection).map_err(failed);
        self.connection = Some(connection);
        replies
    }

    /// Returns the text of a reply. An error reply becomes the reason why there is none.
    pub(in crate::backend::redis) fn text(&self, reply: Result<Value, Refusal>) -> Read<String> {
        match reply? {
            Value::BulkString(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text),
            Value::Okay => Ok("OK".to_owned()),
            other => Err(self.refusal(other)),
        }
    }

    /// Sends one query whose refusal has advice, and returns the text of the reply.
    pub(super) async fn ask_text(&mut self, question: &Cmd) -> Result<String, Refusal> {
        match self.ask(question).await? {
            Value::ServerError(error) => Err(refusal(self.route, &error)),
            reply => self.text(Ok(reply)).map_err(Refusal::other),
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

async fn open(route: &ConnectTarget, timeout: ProbeTimeout) -> Result<Connection, Failure> {
    let connection = timeout.wait(route.open(route.attempt())).await?;
    connection.inbound().allow_descriptions(DESCRIPTIONS);
    Ok(connection)
}

/// Returns the name of the first command, such as `CONFIG GET`: its words in upper case.
fn name(commands: &Pipeline) -> String {
    let words = commands.cmd_iter().next().into_iter().flat_map(Cmd::args_iter);
    let words = words.map_while(|word| match word {
        Arg::Simple(word) if word.iter().all(u8::is_ascii_uppercase) => std::str::from_utf8(word).ok(),
        _ => None,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns why the server of `route` refused a command.
pub(super) fn refusal(route: &ConnectTarget, error: &ServerError) -> Refusal {
    let cause = if error_kind::lacks_command(error) {
        RefusalCause::NoCommand
    } else if error_kind::lacks_permission(error) {
        RefusalCause::NotPermitted
    } else if error_kind::has_code(error, "READONLY") {
        RefusalCause::ReadOnly
    } else if matches!(error.code(), "MOVED" | "ASK") {
        RefusalCause::OtherNode
    } else {
        RefusalCause::Other
    };
    Refusal { cause, said: route.shown.error_text(error).into() }
}

/// At most this many replies are large descriptions of a server.
const DESCRIPTIONS: u32 = 4;

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::backend::redis::tests::resp::{OK, server_error};
    use crate::backend::redis::tests::scripted_server::{ScriptedServer, patient};
    use crate::config::node_spec::NodeSpec;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_distant_server_has_more_time_up_to_a_limit() {
        let timeout = ProbeTimeout::new(LIMIT);

        for (round_trip, ack_limit, more) in [
            (Duration::ZERO, Duration::ZERO, Duration::ZERO),
            (SECOND / 10, Duration::ZERO, SECOND * 13 / 10),
            (SECOND / 10, SECOND, SECOND * 23 / 10),
            (SECOND, Duration::ZERO, LIMIT),
            (Duration::ZERO, Duration::MAX, LIMIT),
        ] {
            let extended = timeout.with_distance(round_trip, ack_limit);
            assert_eq!(extended.until - timeout.until, more, "{round_trip:?}, {ack_limit:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_ends_at_the_deadline() {
        let (timeout, begun) = (ProbeTimeout::new(2 * SECOND), Instant::now());

        assert_eq!(timeout.wait(async { Ok(7) }).await.ok(), Some(7));
        let late = timeout.wait(pending::<Result<(), Failure>>()).await.expect_err("it is pending");

        assert_eq!(&*late.reason, "the time for the examination was over");
        assert_eq!(begun.elapsed(), 2 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_past_the_deadline_is_not_the_fault_of_the_server() {
        let timeout = ProbeTimeout::new(SECOND);
        let cause = || timeout.refusal(Failure::new(FailureKind::Passing, "no reply")).cause;

        assert_eq!(cause(), RefusalCause::Other);
        tokio::time::advance(SECOND).await;
        assert_eq!(cause(), RefusalCause::NoTime);
    }

    #[tokio::test]
    async fn queries_after_the_deadline_have_no_time() {
        let server = ScriptedServer::start(|command| match command {
            "WAIT 0 1" => Some(String::new()), // it does not reply
            _ => Some(OK.to_owned()),
        });
        let route = ConnectTarget::new(server.spec(), &patient());
        let mut session =
            ProbeSession::connect(&route, ProbeTimeout::new(SECOND / 2)).await.expect("it accepts");
        let mut questions = redis::pipe();
        questions.cmd("WAIT").arg(0).arg(1).cmd("PING");

        let replies = session.ask_all(&questions).await;

        let causes: Vec<_> =
            replies.into_iter().map(|reply| reply.map_err(|refusal| refusal.cause)).collect();
        assert_eq!(causes, [Err(RefusalCause::NoTime), Err(RefusalCause::NoTime)]);
    }

    #[tokio::test]
    async fn a_reply_is_read_as_text_or_as_the_reason_why_not() {
        let server = ScriptedServer::start(|_| OK.to_owned());
        let route = ConnectTarget::new(server.spec(), &patient());
        let session = ProbeSession::connect(&route, ProbeTimeout::new(LIMIT)).await.expect("it accepts");

        for (reply, text) in [
            ("$1\r\na\r\n", Ok("a")),
            ("+b\r\n", Ok("b")),
            ("+OK\r\n", Ok("OK")),
            ("=5\r\ntxt:c\r\n", Ok("c")),
            ("-NOPERM not for you\r\n", Err("NOPERM not for you")),
            (":1\r\n", Err("it gave an unexpected reply")),
        ] {
            let value = redis::parse_redis_value(reply.as_bytes()).expect("it is RESP");
            let read = session.text(Ok(value));
            assert_eq!(read.as_deref().map_err(|why| &**why), text, "{reply}");
        }
        assert_eq!(session.text(Err(Refusal::other("away"))), Err("away".into()));
    }

    #[test]
    fn the_cause_of_a_refusal_is_that_of_the_error() {
        let route = ConnectTarget::new(NodeSpec::default(), &patient());
        for (line, cause) in [
            ("NOPERM no permissions to run the 'set' command", RefusalCause::NotPermitted),
            ("ERR unknown command 'set'", RefusalCause::NoCommand),
            ("READONLY You can't write against a read only replica.", RefusalCause::ReadOnly),
            ("MOVED 7 h:1", RefusalCause::OtherNode),
            ("LOADING Redis is loading the dataset in memory", RefusalCause::Other),
        ] {
            let expected = Refusal { cause, said: line.into() };
            assert_eq!(refusal(&route, &server_error(line)), expected);
        }
    }

    #[tokio::test]
    async fn each_query_on_a_lost_connection_has_a_reason() {
        let server = ScriptedServer::start(|_| OK.to_owned());
        let route = ConnectTarget::new(server.spec(), &patient());
        let mut session = ProbeSession::connect(&route, ProbeTimeout::new(LIMIT)).await.expect("it accepts");
        let mut questions = redis::pipe();
        questions.cmd("PING").cmd("PING");
        assert_eq!(session.ask_all(&questions).await, [Ok(Value::Okay), Ok(Value::Okay)]);

        drop(server);

        let replies = session.ask_all(&questions).await;
        assert!(replies.len() == 2 && replies.iter().all(Result::is_err), "{replies:?}");
    }

    #[tokio::test]
    async fn only_the_query_that_closes_the_connection_has_no_reply() {
        let server = ScriptedServer::start(|command| match command {
            "CONFIG GET save" | "WAIT 0 1" => None,
            _ => Some(OK.to_owned()),
        });
        let route = ConnectTarget::new(server.spec(), &patient());
        let mut session = ProbeSession::connect(&route, ProbeTimeout::new(LIMIT)).await.expect("it accepts");
        let mut questions = redis::pipe();
        questions.cmd("PING").cmd("CONFIG").arg("GET").arg("save");
        questions.cmd("DEL").arg("key").cmd("WAIT").arg(0).arg(1).cmd("TIME");

        let replies = session.ask_all(&questions).await;

        let closed = |command| {
            let said = format!("redis at {} closed the connection on `{command}`", server.address());
            Err(Refusal { cause: RefusalCause::Closed, said: said.into() })
        };
        let ok = || Ok(Value::Okay);
        assert_eq!(replies, [ok(), closed("CONFIG GET"), ok(), closed("WAIT"), ok()]);
        assert_eq!(session.ask(&redis::cmd("PING")).await, ok());
    }
}
