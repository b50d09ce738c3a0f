//! What holds whatever a server says: see `crate::hostile`.

use std::time::Duration;

use redis::Value;

use crate::backend::Request;
use crate::backend::redis::layout::Layout;
use crate::backend::redis::layout::codec::Redacted;
use crate::backend::redis::node::link::Grant;
use crate::backend::redis::servers;
use crate::layout::Publish;
use crate::protocol::command::{Command, Enqueue, FailureKind, Reply};
use crate::protocol::share::Streak;
use crate::token::{PREFIX, Token};

const SECRET: &str = "Sesame7f3a";

/// Reads a value as the answer to each command of each layout.
pub(crate) fn read_value(value: &Value) {
    let server = Redacted::new("h:1");
    server.hide(SECRET);
    let token = Token::of_numbers(1, 1).expect("a small number");
    for layout in [Layout::Native, Layout::Plain, Layout::Redisson(Publish::Auto)] {
        for command in commands(token) {
            let request = Request::new("k".into(), token, command);
            let reply = layout.decode(&request, value, &server);
            let is_had = matches!(
                reply,
                Reply::Ours | Reply::Queued { .. } | Reply::Yielded | Reply::Fenced(_) | Reply::Seen(Some(_))
            );
            assert!(
                !is_had || is_good(layout, &request, value),
                "{command:?} is {reply:?} by {value:?} in {layout:?}"
            );
            if let Reply::Refused(failure) | Reply::Unknown(failure) = &reply {
                assert!(is_clean(&failure.reason), "{:?}", failure.reason);
                let is_error = matches!(value, Value::ServerError(_));
                let is_spent = failure.kind == FailureKind::FencingCounter && *value == Value::Int(-1);
                assert!(
                    is_error || is_spent || failure.kind == FailureKind::Passing,
                    "{value:?} is {failure:?}"
                );
            }
        }
    }
    servers::read_value(value);
}

/// Returns whether a server that has done a command may say so: by `OK`, by a number from 1 on or one first in a list, or by text;
/// whether a hold is ours, by the holder's token where locks are strings.
fn is_good(layout: Layout, request: &Request, value: &Value) -> bool {
    match (request.command, value) {
        (Command::Acquire { .. }, Value::Okay) | (Command::Ping, Value::SimpleString(_)) => true,
        (Command::Fence | Command::Register { .. }, Value::BulkString(text)) => !text.is_empty(),
        (Command::Check, Value::BulkString(text)) => {
            !matches!(layout, Layout::Redisson(_)) && text.starts_with(&request.token.written())
        }
        (Command::Check, value) => matches!((layout, value), (Layout::Redisson(_), Value::Int(1))),
        (Command::Inspect, Value::Array(parts)) => matches!(parts.first(), Some(Value::BulkString(_))),
        (_, Value::Array(parts)) => matches!(parts.first(), Some(Value::Int(1..))),
        (_, Value::Int(number)) => *number > 0,
        _ => false,
    }
}

/// Returns whether what is shown has no secret, no token and nothing that a terminal obeys.
fn is_clean(shown: &str) -> bool {
    let tokens = shown
        .match_indices(PREFIX)
        .any(|(at, _)| shown.get(at..at + Token::WIDTH).and_then(Token::parse).is_some());
    !tokens && !shown.contains(SECRET) && !shown.contains(char::is_control)
}

fn commands(next: Token) -> Vec<Command> {
    let time = Duration::from_secs(1);
    let enqueue = |mode| Command::Enqueue { lease: time, mode };
    let streak = Streak::NEW;
    vec![
        Command::Acquire { lease: time },
        enqueue(Enqueue::First),
        enqueue(Enqueue::Again),
        enqueue(Enqueue::Peek),
        Command::Renew { lease: time },
        Command::Check,
        Command::Keep { ttl: time },
        Command::Release,
        Command::PassOn { streak },
        Command::Free,
        Command::Leave,
        Command::ForceRelease,
        Command::Fence,
        Command::Register { fence: 1 },
        Command::Inspect,
        Command::Ping,
        Command::Yield { next, streak },
    ]
}

/// Reads what was published.
pub(crate) fn read_message(message: &[u8]) {
    servers::read_message(message);
    let Some(Grant { token, offer, key }) = Grant::parse(message) else { return };
    let streak = offer.streak.millis().map(|held| format!("+{held}")).unwrap_or_default();
    let written = format!("{token}{}{streak}|{key}", offer.lease.as_millis());
    let again = Grant::parse(written.as_bytes()).expect("what is written is read");
    assert_eq!((again.token, again.offer, again.key), (token, offer, key), "{written}");
}
