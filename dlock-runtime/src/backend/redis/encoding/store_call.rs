//! Encodes [`StoreOperation`]s for Redis and decodes the replies of their scripts.

use redis::{Cmd, Pipeline, Value};

use crate::backend::redis::encoding::codec::{Redacted, no_answer};
use crate::backend::redis::namespaces::Namespaces;
use crate::backend::store_call::StoreOperation;
use crate::key::Name;
use crate::protocol::command::{Reply, ScriptReply};

/// Adds an operation to a pipeline: as `EVALSHA` if the script `is_known` to the server, otherwise
/// as `EVAL`, which also loads it.
pub(crate) fn encode(
    operation: &dyn StoreOperation,
    key: &Name,
    namespaces: &Namespaces,
    is_known: bool,
    pipeline: &mut Pipeline,
) {
    let script = operation.script();
    let mut call = Cmd::new();
    if is_known {
        call.arg("EVALSHA").arg(script.hash());
    } else {
        call.arg("EVAL").arg(script.source());
    }
    call.arg(1).arg(&**key).arg(namespaces.of_key(key).grants());
    for argument in operation.arguments() {
        call.arg(&*argument);
    }
    pipeline.add_command(call);
}

/// Decodes the reply of a script.
pub(crate) fn decode(value: &Value, server: &Redacted) -> Reply {
    match value {
        Value::ServerError(error) => server.reply(error),
        value => read(value).map_or_else(|| no_answer(server), Reply::Called),
    }
}

fn read(value: &Value) -> Option<ScriptReply> {
    Some(match value {
        Value::Nil => ScriptReply::Nil,
        Value::Int(number) => ScriptReply::Int(*number),
        Value::BulkString(bytes) => ScriptReply::Bytes(bytes.clone()),
        Value::SimpleString(text) => ScriptReply::text(text),
        Value::Okay => ScriptReply::text("OK"),
        Value::Array(values) => ScriptReply::Array(values.iter().map(read).collect::<Option<_>>()?),
        _ => return None,
    })
}
