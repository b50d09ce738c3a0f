//! Replies and messages of a server, in RESP.

use redis::{ServerError, Value};

use crate::backend::redis::transport::address::Address;
use crate::backend::redis::transport::error_kind;

/// Returns the words of a command, separated by spaces.
pub(crate) fn words(command: &Value) -> String {
    let words = command.as_sequence().unwrap_or_default().iter();
    words.map(|word| error_kind::text(word).unwrap_or_default()).collect::<Vec<_>>().join(" ")
}

/// The reply to a command that succeeds.
pub(crate) const OK: &str = "+OK\r\n";

/// Returns the error reply with this line.
pub(crate) fn error(line: &str) -> Value {
    Value::ServerError(server_error(line))
}

/// Returns the error with this line.
pub(crate) fn server_error(line: &str) -> ServerError {
    match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
        Ok(Value::ServerError(error)) => error,
        other => panic!("{line} is not an error: {other:?}"),
    }
}

/// Encodes a text.
pub(crate) fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Encodes a list of texts.
pub(crate) fn list(texts: &[&str]) -> String {
    array(texts.iter().map(|text| bulk(text)))
}

/// Encodes a list of values that are encoded already.
pub(crate) fn array(values: impl IntoIterator<Item = String>) -> String {
    let values: Vec<_> = values.into_iter().collect();
    format!("*{}\r\n{}", values.len(), values.concat())
}

/// Encodes a list as a push message of RESP3.
pub(crate) fn push(values: impl IntoIterator<Item = String>) -> String {
    array(values).replacen('*', ">", 1)
}

/// Encodes the replies to `SUBSCRIBE`, one for each channel.
pub(crate) fn subscribed<'a>(channels: impl IntoIterator<Item = &'a str>) -> String {
    let confirmation = |channel| array([bulk("subscribe"), bulk(channel), ":1\r\n".to_owned()]);
    channels.into_iter().map(confirmation).collect()
}

/// Encodes a message on a channel.
pub(crate) fn message(channel: &str, text: &str) -> String {
    list(&["message", channel, text])
}

/// Encodes the view of a cluster: ranges of slots, each with its primary and its replicas.
pub(crate) fn slots(ranges: &[(u16, u16, &[&Address])]) -> String {
    let server = |at: &&Address| array([bulk(&at.host), format!(":{}\r\n", at.port)]);
    array(ranges.iter().map(|(first, last, servers)| {
        let range = [first, last].map(|slot| format!(":{slot}\r\n"));
        array(range.into_iter().chain(servers.iter().map(server)))
    }))
}

/// Returns the reply of a primary without keys.
pub(crate) fn primary(command: &str) -> String {
    match command.split(' ').next() {
        Some("SCRIPT") => bulk("hash"),
        Some("HELLO") => "%1\r\n+proto\r\n:3\r\n".to_owned(),
        Some("EVAL") => ":1\r\n".to_owned(),
        Some("ROLE") => list(&["master"]),
        Some("PING") => "+PONG\r\n".to_owned(),
        Some("SUBSCRIBE") => subscribed(command.split(' ').skip(1)),
        _ => OK.to_owned(),
    }
}

/// Returns the replies of a server of a cluster that reports this state and these ranges of slots.
pub(crate) fn reports(
    state: &str,
    ranges: &[(u16, u16, &[&Address])],
) -> impl Fn(&str) -> String + Send + Sync + use<> {
    let (info, slots) = (bulk(&format!("cluster_state:{state}\r\n")), slots(ranges));
    move |command| match command {
        "CLUSTER INFO" => info.clone(),
        "CLUSTER SLOTS" => slots.clone(),
        _ => primary(command),
    }
}
