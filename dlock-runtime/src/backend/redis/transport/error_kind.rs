//! The meaning of an error reply of a server, by its code and its text.

use redis::{ServerError, Value};

use crate::backend::redis::transport::url_advice::UrlAdvice;
use crate::config::deployment::Deployment;

/// Returns the text of a reply.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Returns `true` if the server does not know the script, so nothing ran.
pub(crate) fn is_unknown_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Returns `true` if the user may not run the command. Hosted services rename or remove commands;
/// such a command is unknown to the server.
pub(crate) fn is_forbidden(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if forbids(error))
}

pub(crate) fn forbids(error: &ServerError) -> bool {
    lacks_command(error) || lacks_permission(error)
}

/// Returns `true` if the server does not have the command.
pub(crate) fn lacks_command(error: &ServerError) -> bool {
    let words = ["nknown command", "nknown Redis command"];
    unknown_command(error).is_some() || contains_any(error, &words)
}

/// Returns `true` if the user lacks a permission, which an ACL rule may give.
pub(crate) fn lacks_permission(error: &ServerError) -> bool {
    let words = ["permission", "user executing the script", "ACL failure"];
    has_code(error, "NOPERM") || contains_any(error, &words)
}

fn contains_any(error: &ServerError, words: &[&str]) -> bool {
    error.details().is_some_and(|text| words.iter().any(|words| text.contains(words)))
}

/// Returns `true` if the server cannot be used at all now: another server is needed, or it must
/// recover.
pub(crate) fn is_out_of_service(value: &Value) -> bool {
    out_of_service(value).is_some()
}

/// Returns the error of a server that [is out of service](is_out_of_service).
pub(crate) fn out_of_service(value: &Value) -> Option<&ServerError> {
    let Value::ServerError(error) = value else { return None };
    let codes = ["READONLY", "LOADING", "MASTERDOWN", "NOAUTH"];
    codes.iter().any(|code| has_code(error, code)).then_some(error)
}

/// Returns what to do about an error, if the server's text does not say it. Empty if the cause is
/// unknown.
///
/// `shown`: the text without secrets, since an unknown command may be a mistyped password.
pub(super) fn hint(error: &ServerError, shown: &str, advice: UrlAdvice) -> String {
    if matches!(error.code(), "MOVED" | "ASK") {
        if advice.deployment() == Deployment::Cluster {
            return String::new(); // the manager follows redirects
        }
        format!("; it is part of a cluster: write `{}host:port`", advice.scheme_of(Deployment::Cluster))
    } else if has_code(error, "READONLY") {
        format!("; it is a replica: {}", advice.replica_of(advice.deployment()))
    } else if has_code(error, "NOAUTH") {
        advice.missing_credentials().to_owned()
    } else if let Some(command) = command_unknown_in(shown) {
        match &*command {
            "WAIT" => "; this service has no `WAIT`: leave out `replica_acks`".to_owned(),
            "ROLE" => format!(
                "; this service has no `ROLE`, which distinguishes a primary from a replica: write `{}host:port`, without \
                 sentinels and cluster",
                advice.scheme_of(Deployment::One)
            ),
            command => format!("; this service has no `{command}`, which locks need"),
        }
    } else if lacks_command(error) {
        "; this service lacks a command that locks need; `dlock doctor` names it".to_owned()
    } else if forbids(error) && error.details().is_some_and(|text| text.contains("'wait'")) {
        "; allow it `+wait`, or leave out `replica_acks`".to_owned()
    } else if forbids(error) {
        "; `dlock doctor` says what to allow".to_owned()
    } else {
        String::new()
    }
}

/// Returns the name, in capitals, of the command that the server does not know, if it names one.
fn unknown_command(error: &ServerError) -> Option<String> {
    command_unknown_in(&format!("{} {}", error.code(), error.details().unwrap_or_default()))
}

fn command_unknown_in(text: &str) -> Option<String> {
    let (_, rest) =
        ["nknown command ", "nsupported command "].iter().find_map(|words| text.split_once(words))?;
    let quote = rest.chars().next().filter(|first| matches!(first, '\'' | '`' | '"'))?;
    let name = rest.get(1..)?.split(quote).next()?;
    let is_name = !name.is_empty() && name.len() <= 20 && name.chars().all(|c| c.is_ascii_alphabetic());
    is_name.then(|| name.to_ascii_uppercase())
}

/// Returns `true` if `EVALSHA` is missing or forbidden: nothing ran, and `EVAL` may work.
pub(crate) fn lacks_evalsha(value: &Value) -> bool {
    let Value::ServerError(error) = value else { return false };
    let is_not_allowed = || {
        error.code() == "NOPERM"
            && error.details().is_some_and(|text| text.to_ascii_lowercase().contains("'evalsha'"))
    };
    unknown_command(error).is_some_and(|name| name == "EVALSHA") || is_not_allowed()
}

/// Returns `true` if an error has this code. Older servers put the code of an error inside a script
/// after another code.
pub(crate) fn has_code(error: &ServerError, code: &str) -> bool {
    error.code() == code
        || error.details().is_some_and(|text| text.split([' ', '-']).any(|word| word == code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::tests::resp::{self, server_error};
    use crate::config::node_spec::NodeSpec;

    #[test]
    fn a_missing_permission_or_command_is_enough_to_forbid() {
        for (line, is_it) in [
            ("NOPERM not for this user", true),
            ("ERR unknown command 'EVAL', with args beginning with: 'a'", true),
            ("ERR This instance has no permission for it", true),
            ("ERR wrong number of arguments for 'eval' command", false),
        ] {
            assert_eq!(is_forbidden(&resp::error(line)), is_it, "{line}");
        }
    }

    #[test]
    fn a_missing_command_is_not_a_missing_permission() {
        for (line, has_no_command, has_no_permission) in [
            ("NOPERM User x has no permissions to run the 'eval' command", false, true),
            ("ERR The user executing the script can't run this command", false, true),
            ("ERR unknown command 'EVAL', with args beginning with: 'a'", true, false),
            ("ERR unsupported command 'memory'", true, false),
            ("ERR Unknown Redis command called from script", true, false),
            ("READONLY You can't write against a read only replica.", false, false),
            ("MOVED 7 h:1", false, false),
        ] {
            let error = server_error(line);
            let found = (lacks_command(&error), lacks_permission(&error));
            assert_eq!(found, (has_no_command, has_no_permission), "{line}");
        }
    }

    #[test]
    fn only_a_server_that_names_evalsha_lacks_it() {
        for (line, lacks) in [
            ("ERR unknown command 'EVALSHA', with args beginning with: 'a'", true),
            ("ERR unknown command `evalsha`, with args beginning with: `a`", true),
            ("NOPERM User x has no permissions to run the 'evalsha' command", true),
            ("NOPERM User x has no permissions to run the 'eval' command", false),
            ("ERR unknown command 'EVAL', with args beginning with: 'EVALSHA'", false),
            ("NOSCRIPT No matching script. Please use EVAL.", false),
        ] {
            assert_eq!(lacks_evalsha(&resp::error(line)), lacks, "{line}");
        }
    }

    #[test]
    fn only_strings_have_a_text() {
        for (value, expected) in [
            (Value::BulkString(b"order".to_vec()), Some("order")),
            (Value::SimpleString("order".to_owned()), Some("order")),
            (Value::BulkString(vec![0xff]), None),
            (Value::Int(7), None),
            (Value::Nil, None),
        ] {
            assert_eq!(text(&value), expected, "{value:?}");
        }
    }

    #[test]
    fn a_server_is_out_of_service_only_if_another_one_is_needed() {
        for (line, is_it) in [
            ("READONLY You can't write against a read only replica.", true),
            ("LOADING Redis is loading the dataset in memory", true),
            ("MASTERDOWN Link with MASTER is down", true),
            ("NOAUTH Authentication required.", true),
            ("ERR Error running script: @user_script:1: -READONLY You can't write", true),
            ("ERR unknown command 'EVAL'", false),
            ("NOSCRIPT No matching script. Please use EVAL.", false),
        ] {
            assert_eq!(is_out_of_service(&resp::error(line)), is_it, "{line}");
        }
        assert!(!is_out_of_service(&Value::Okay));
    }

    #[test]
    fn a_script_is_unknown_only_if_the_server_reports_it() {
        for (line, is_it) in [
            ("NOSCRIPT No matching script. Please use EVAL.", true),
            ("ERR NOSCRIPT in the text", false),
            ("ERR unknown command 'EVALSHA'", false),
        ] {
            assert_eq!(is_unknown_script(&resp::error(line)), is_it, "{line}");
        }
        assert!(!is_unknown_script(&Value::Okay));
    }

    #[test]
    fn a_code_is_found_in_front_and_as_a_word_of_the_text() {
        for (line, has_it) in [
            ("READONLY You can't write", true),
            ("ERR user_script:1: -READONLY You can't write", true),
            ("ERR the replica is READONLY", true),
            ("ERR the option READONLYX is unknown", false),
            ("READONLYX You can't write", false),
        ] {
            assert_eq!(has_code(&server_error(line), "READONLY"), has_it, "{line}");
        }
    }

    #[test]
    fn the_name_of_an_unknown_command_is_a_quoted_word() {
        for (line, name) in [
            ("ERR unknown command 'wait', with args beginning with: '0'", Some("WAIT")),
            ("ERR Unknown command `role`", Some("ROLE")),
            ("ERR unsupported command \"Eval\"", Some("EVAL")),
            ("ERR unknown command 'abcdefghijklmnopqrst'", Some("ABCDEFGHIJKLMNOPQRST")),
            ("ERR unknown command 'abcdefghijklmnopqrstu'", None),
            ("ERR unknown command ''", None),
            ("ERR unknown command 'a b'", None),
            ("ERR unknown command 'client|setname'", None),
            ("ERR unknown command wait", None),
            ("ERR wrong number of arguments for 'wait' command", None),
        ] {
            assert_eq!(unknown_command(&server_error(line)).as_deref(), name, "{line}");
        }
    }

    #[test]
    fn an_error_of_unknown_cause_has_no_hint() {
        for line in [
            "ERR wrong number of arguments for 'wait' command",
            "LOADING Redis is loading the dataset in memory",
            "ERR syntax error",
        ] {
            assert_eq!(hint(&server_error(line), line, advice(Deployment::One, false)), "", "{line}");
        }
    }

    fn advice(deployment: Deployment, tls: bool) -> UrlAdvice {
        UrlAdvice::new(&NodeSpec { tls, deployment, ..NodeSpec::default() }, false)
    }

    #[test]
    fn another_deployment_is_named_only_if_it_may_help() {
        use Deployment::{Cluster, One, Quorum, Sentinels};
        const READONLY: &str = "READONLY You can't write against a read only replica.";
        const MOVED: &str = "MOVED 7 h:2";
        for (line, deployment, tls, expected) in [
            (READONLY, One, false, "or its sentinels with `redis+sentinel://host"),
            (READONLY, One, true, "or its sentinels with `rediss+sentinel://host"),
            (READONLY, Sentinels, false, "the manager looks for the new primary"),
            (READONLY, Cluster, false, "the manager looks for the new primary"),
            (READONLY, Quorum, false, "name independent primaries"),
            (MOVED, One, false, "write `redis+cluster://host:port`"),
            (MOVED, Sentinels, true, "write `rediss+cluster://host:port`"),
            (MOVED, Cluster, false, ""),
            ("NOAUTH Authentication required.", One, false, "; write `:password@` or `user:password@`"),
        ] {
            let hint = hint(&server_error(line), line, advice(deployment, tls));

            let schemes = usize::from(expected.contains("://"));
            assert!(hint.contains(expected) && hint.matches("://").count() == schemes, "{line}: {hint}");
            assert_eq!(hint.is_empty(), expected.is_empty(), "{line}: {hint}");
        }
    }
}
