//! Properties that hold for every possible reply of a server; see `crate::hostile`.

use std::time::Duration;

use redis::Value;

use crate::backend::Request;
use crate::backend::redis::encoding::LockEncoding;
use crate::backend::redis::encoding::native::NativeEncoding;
use crate::backend::redis::encoding::plain::PlainEncoding;
use crate::backend::redis::encoding::redisson::RedissonEncoding;
use crate::backend::redis::node::grant_message::GrantMessage;
use crate::backend::redis::topology;
use crate::backend::redis::transport::redacted::Redacted;
use crate::layout::Publish;
use crate::protocol::command::{Command, EnqueueMode, FailureKind, Reply};
use crate::protocol::foreign_clients::FleetHold;
use crate::token::{PREFIX, Token};

const SECRET: &str = "Sesame7f3a";

/// Decodes a value as the reply to each command in each encoding.
pub(crate) fn read_value(value: &Value) {
    let server = Redacted::new("h:1");
    server.hide(SECRET);
    let token = Token::of_numbers(1, 1).expect("a small number");
    let redisson = RedissonEncoding::with_publish(Publish::Auto, true);
    let encodings: [(&dyn LockEncoding, bool); 3] =
        [(&NativeEncoding, true), (&PlainEncoding, true), (redisson, false)];
    for (encoding, is_string) in encodings {
        for command in commands(token) {
            let request = Request::new("k".into(), token, command);
            let reply = encoding.decode(&request, value, &server);
            let succeeded = matches!(
                reply,
                Reply::Owner
                    | Reply::Queued { .. }
                    | Reply::Yielded
                    | Reply::Fenced(_)
                    | Reply::Info(Some(_))
            );
            assert!(
                !succeeded || is_good(is_string, &request, value),
                "{command:?} is {reply:?} by {value:?} in {encoding:?}"
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
    topology::read_value(value);
}

/// Returns `true` if `value` is a valid success reply to the request.
///
/// These are `OK`, a number of at least 1, a list that starts with one, or text. If locks are
/// strings (`is_string`), the value of a hold must start with the token of the holder.
fn is_good(is_string: bool, request: &Request, value: &Value) -> bool {
    match (request.command, value) {
        (Command::Acquire { .. }, Value::Okay) | (Command::Ping, Value::SimpleString(_)) => true,
        (Command::Fence | Command::RaiseFence { .. }, Value::BulkString(text)) => !text.is_empty(),
        (Command::Verify, Value::BulkString(text)) => is_string && text.starts_with(&request.token.written()),
        (Command::Verify, value) => !is_string && *value == Value::Int(1),
        (Command::Inspect, Value::Array(parts)) => matches!(parts.first(), Some(Value::BulkString(_))),
        (_, Value::Array(parts)) => matches!(parts.first(), Some(Value::Int(1..))),
        (_, Value::Int(number)) => *number > 0,
        _ => false,
    }
}

/// Returns `true` if the text contains no secret, no token, and no control character.
fn is_clean(shown: &str) -> bool {
    let tokens = shown
        .match_indices(PREFIX)
        .any(|(at, _)| shown.get(at..at + Token::WIDTH).and_then(Token::parse).is_some());
    !tokens && !shown.contains(SECRET) && !shown.contains(char::is_control)
}

fn commands(next: Token) -> Vec<Command> {
    let time = Duration::from_secs(1);
    let enqueue = |mode| Command::Enqueue { lease: time, mode };
    let fleet_hold = FleetHold::NEW;
    vec![
        Command::Acquire { lease: time },
        enqueue(EnqueueMode::Join),
        enqueue(EnqueueMode::Recheck),
        enqueue(EnqueueMode::TryOnly),
        Command::Renew { lease: time },
        Command::Verify,
        Command::SetTtl { ttl: time },
        Command::RELEASE,
        Command::Release { fleet_hold },
        Command::ReleaseWithoutHandoff,
        Command::Withdraw,
        Command::ForceRelease,
        Command::Fence,
        Command::RaiseFence { fence: 1 },
        Command::Inspect,
        Command::Ping,
        Command::Yield { next, fleet_hold },
    ]
}

/// Parses a published message.
pub(crate) fn read_message(message: &[u8]) {
    topology::read_message(message);
    let Some(GrantMessage { token, offer, key }) = GrantMessage::parse(message) else { return };
    let fleet_hold = offer.fleet_hold.millis().map(|held| format!("+{held}")).unwrap_or_default();
    let written = format!("{token}{}{fleet_hold}|{key}", offer.lease.as_millis());
    let again = GrantMessage::parse(written.as_bytes()).expect("what is written is read");
    assert_eq!((again.token, again.offer, again.key), (token, offer, key), "{written}");
}
