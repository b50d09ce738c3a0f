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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::tests::test_operation::TestOperation;

    #[test]
    fn an_operation_is_sent_by_name_only_if_the_server_knows_it() {
        let operation =
            TestOperation { arguments: vec![b"7".to_vec(), b"second".to_vec()], ..TestOperation::default() };
        let namespaces = Namespaces::new("dlock");
        for (is_known, script) in
            [(true, "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db"), (false, "EVAL return 1")]
        {
            let mut pipeline = Pipeline::new();

            encode(&operation, &"dlock:k".into(), &namespaces, is_known, &mut pipeline);

            let words: Vec<_> = pipeline
                .cmd_iter()
                .flat_map(Cmd::args_iter)
                .map(|word| match word {
                    redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
                    _ => "?".to_owned(),
                })
                .collect();
            assert_eq!(words.join(" "), format!("{script} 1 dlock:k dlock:grant: 7 second"));
        }
    }

    #[test]
    fn replies_of_scripts_are_read() {
        let text = |text: &str| Value::BulkString(text.into());
        for (value, expected) in [
            (Value::Nil, Some(ScriptReply::Nil)),
            (Value::Int(-7), Some(ScriptReply::Int(-7))),
            (text("a"), Some(ScriptReply::text("a"))),
            (Value::SimpleString("PONG".into()), Some(ScriptReply::text("PONG"))),
            (Value::Okay, Some(ScriptReply::text("OK"))),
            (
                Value::Array(vec![Value::Int(1), text("b")]),
                Some(ScriptReply::Array(vec![ScriptReply::Int(1), ScriptReply::text("b")])),
            ),
            (Value::Array(vec![Value::Int(1), Value::Boolean(true)]), None),
            (Value::Double(1.5), None),
        ] {
            assert_eq!(decode(&value), expected, "{value:?}");
        }
    }
}
