//! Encodes [`StoreOperation`]s for Redis, and decodes the replies of their scripts.

use redis::{Cmd, Pipeline, Value};

use crate::backend::redis::namespaces::Namespaces;
use crate::backend::store_call::StoreOperation;
use crate::key::Name;
use crate::protocol::script_reply::ScriptReply;

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

/// Decodes the reply of a script. Returns `None` if no script gives it.
pub(crate) fn decode(value: &Value) -> Option<ScriptReply> {
    Some(match value {
        Value::Nil => ScriptReply::Nil,
        Value::Int(number) => ScriptReply::Int(*number),
        Value::BulkString(bytes) => ScriptReply::Bytes(bytes.clone()),
        Value::SimpleString(text) => ScriptReply::text(text),
        Value::Okay => ScriptReply::text("OK"),
        Value::Array(values) => ScriptReply::Array(values.iter().map(decode).collect::<Option<_>>()?),
        _ => return None,
    })
}
