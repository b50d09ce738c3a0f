//! Parses the command line.

use std::ffi::OsString;

/// A parsed command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Print the help.
    Help,
    /// Print the version.
    Version,
    /// Examine servers.
    Doctor { url: String, json: bool },
    /// Inspect a lock.
    Inspect { url: String, key: String },
    /// Release a lock, regardless of its holder.
    Release { url: String, key: String },
    /// Show the record of an idempotent call.
    IdemGet { url: String, key: String },
    /// Store the result of a call whose outcome is unknown.
    IdemDone { url: String, key: String, json: String },
    /// Delete the record of an idempotent call.
    IdemForget { url: String, key: String },
}

/// Parses the arguments after the program's name. `url` is the default URL.
pub(crate) fn read(words: impl Iterator<Item = OsString>, url: Option<OsString>) -> Result<Task, String> {
    let words: Vec<_> = words.map(|word| text(word, "an argument")).collect::<Result<_, _>>()?;
    let url = url.map(|url| text(url, "DLOCK_URL")).transpose()?;
    let (words, done) = take_value(words, "--done")?;
    // After `--`, a key may start with `-`.
    let mut words = words.into_iter();
    let before: Vec<_> = words.by_ref().take_while(|word| word != "--").collect();
    let (options, mut operands): (Vec<_>, Vec<_>) =
        before.into_iter().partition(|word| word.starts_with('-'));
    operands.extend(words);
    let mut words = operands;
    let has = |names: &[&str]| options.iter().any(|option| names.contains(&&**option));
    if has(&["-h", "--help"]) {
        return Ok(Task::Help);
    }
    if has(&["-V", "--version"]) {
        return Ok(Task::Version);
    }
    if words.is_empty() {
        return Err("a command is missing".to_owned());
    }
    let mut command = words.remove(0);
    if command == "idem" && !words.is_empty() {
        command = format!("idem {}", words.remove(0));
    }
    let allowed: &[&str] = match &*command {
        "doctor" => &["--json"],
        "inspect" | "idem get" => &[],
        "release" => &["--yes"],
        "idem resolve" => &["--forget"],
        "help" => return Ok(Task::Help),
        // It may be a URL with a password.
        _ => return Err("there is no such command".to_owned()),
    };
    if options.iter().any(|option| !allowed.contains(&&**option)) {
        return Err(format!("`{command}` has no such option; write `--` before a key that starts with `-`"));
    }
    if done.is_some() && command != "idem resolve" {
        return Err(format!("`{command}` has no option `--done`"));
    }
    let key = if command == "doctor" { None } else { words.pop() };
    let typed = words.pop();
    if !words.is_empty() {
        return Err(format!("`{command}` has too many arguments"));
    }
    let url = typed.or(url).ok_or_else(|| "a URL is missing, and DLOCK_URL is not set".to_owned())?;
    // A URL is not a key: the key is missing, and printing it would show the password.
    match (&*command, key.filter(|key| !is_url(key))) {
        ("doctor", _) => Ok(Task::Doctor { url, json: has(&["--json"]) }),
        (_, None) => Err("a key is missing".to_owned()),
        ("inspect", Some(key)) => Ok(Task::Inspect { url, key }),
        ("idem get", Some(key)) => Ok(Task::IdemGet { url, key }),
        ("idem resolve", Some(key)) => match (done, has(&["--forget"])) {
            (Some(json), false) => Ok(Task::IdemDone { url, key, json }),
            (None, true) => Ok(Task::IdemForget { url, key }),
            _ => Err(
                "say what the call has done: `--done JSON` stores its result, `--forget` lets it run again"
                    .to_owned(),
            ),
        },
        (_, Some(key)) if has(&["--yes"]) => Ok(Task::Release { url, key }),
        _ => Err("releasing a lock that is held lets a second holder start: confirm with `--yes`".to_owned()),
    }
}

/// Removes an option with a value, which may start with `-`. Options end at `--`.
fn take_value(mut words: Vec<String>, option: &str) -> Result<(Vec<String>, Option<String>), String> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let Some(at) = words.iter().take(end).position(|word| word == option) else { return Ok((words, None)) };
    if at + 1 >= end {
        return Err(format!("`{option}` has no value"));
    }
    words.remove(at);
    let value = words.remove(at);
    Ok((words, Some(value)))
}

/// Converts an argument to text. On failure, it is not shown: it may hold a password.
fn text(word: OsString, what: &str) -> Result<String, String> {
    word.into_string().map_err(|_| format!("{what} is not UTF-8"))
}

fn is_url(word: &str) -> bool {
    word.split_once("://")
        .is_some_and(|(scheme, _)| ["redis", "memory"].iter().any(|of| scheme.starts_with(of)))
}

/// The text of `--help`.
pub(crate) const HELP: &str = "\
dlock: a tool for operators of distributed locks in Redis

  dlock doctor [URL] [--json]      checks the servers for settings by which locks can be lost or refused
  dlock inspect [URL] KEY          shows the holder of a lock, its time to live, and the number of waiters
  dlock release [URL] KEY --yes    releases a lock whose holder is gone for good
  dlock idem get [URL] KEY         shows the record of an idempotent call: its state, attempts, steps, and result
  dlock idem resolve [URL] KEY --done JSON | --forget
                                   after a crash: stores the result that later calls get, or lets the call run again

URL is the one that your services use, with its options: redis://user:password@host:port, redis+sentinel://.., redis+cluster://..,
redis+quorum://.., with rediss for TLS, and redis+unix:///path. Quote it if it contains a `?` or a `&`.
The default is DLOCK_URL, which keeps a password off the command line, where other users can see it.
KEY has no namespace: it is in the URL, `?namespace=shop`, and `dlock` by default. In Redis, `order:7` is `dlock:order:7`.
If it starts with `-`, write `--` before it: dlock inspect URL -- -7

--json prints one finding on each line.

Exit code   doctor                            inspect      release                    idem get            idem resolve
    0       nothing worse than a note         it is held   it was held, and is free   there is a record   it is resolved
    1       a warning or a danger was found   it is free   it was not held            there is none       nothing to resolve
    2       no server was reachable, or the arguments are invalid; idem resolve: the call is running
";

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(line: &str) -> Result<Task, String> {
        read(line.split_whitespace().map(OsString::from), None)
    }

    #[test]
    fn commands_are_parsed_with_options_in_any_place() {
        let url = || "redis://h".to_owned();
        let key = || "order:7".to_owned();

        assert_eq!(typed("doctor redis://h"), Ok(Task::Doctor { url: url(), json: false }));
        assert_eq!(typed("--json doctor redis://h"), Ok(Task::Doctor { url: url(), json: true }));
        assert_eq!(typed("inspect redis://h order:7"), Ok(Task::Inspect { url: url(), key: key() }));
        assert_eq!(typed("release --yes redis://h order:7"), Ok(Task::Release { url: url(), key: key() }));
        assert_eq!((typed("doctor --help"), typed("-V")), (Ok(Task::Help), Ok(Task::Version)));
    }

    #[test]
    fn a_record_is_shown_resolved_or_forgotten() {
        let (url, key) = (|| "redis://h".to_owned(), || "charge:7".to_owned());
        let done = |json: &str| Ok(Task::IdemDone { url: url(), key: key(), json: json.to_owned() });

        assert_eq!(typed("idem get redis://h charge:7"), Ok(Task::IdemGet { url: url(), key: key() }));
        assert_eq!(typed("idem resolve redis://h charge:7 --done -5"), done("-5"));
        assert_eq!(typed("idem resolve --done {} redis://h charge:7"), done("{}"));
        let forget = Ok(Task::IdemForget { url: url(), key: key() });
        assert_eq!(typed("idem resolve redis://h charge:7 --forget"), forget);
    }

    #[test]
    fn options_end_at_two_dashes() {
        let url = || "redis://h".to_owned();
        let inspect = |key: &str| Ok(Task::Inspect { url: url(), key: key.to_owned() });

        assert_eq!(typed("inspect redis://h -- -7"), inspect("-7"));
        assert_eq!(typed("inspect -- redis://h --yes"), inspect("--yes"));
        assert_eq!(typed("-- inspect redis://h -h"), inspect("-h"));
        assert_eq!(typed("inspect redis://h -- --"), inspect("--"));
        let release = |line| typed(line).map(|task| matches!(task, Task::Release { key, .. } if key == "-7"));
        assert_eq!(release("release --yes redis://h -- -7"), Ok(true));
        assert!(typed("release redis://h -- -7 --yes").is_err(), "`--yes` is a key there, not an option");
        assert!(typed("inspect redis://h -7").is_err_and(|problem| problem.contains("`--`")));
    }

    #[test]
    fn url_defaults_to_the_environment() {
        let read =
            |line: &str| read(line.split(' ').map(OsString::from), Some("redis://of-the-environment".into()));
        let url = || "redis://of-the-environment".to_owned();

        assert_eq!(read("doctor"), Ok(Task::Doctor { url: url(), json: false }));
        assert_eq!(read("inspect order:7"), Ok(Task::Inspect { url: url(), key: "order:7".to_owned() }));
        for without_key in
            ["inspect redis://:hunter2@h", "release rediss+cluster://h --yes", "inspect memory://"]
        {
            assert_eq!(read(without_key), Err("a key is missing".to_owned()));
        }
        assert!(matches!(read("doctor redis://h"), Ok(Task::Doctor { url, .. }) if url == "redis://h"));
    }

    #[test]
    fn invalid_arguments_are_refused_and_not_shown() {
        for (line, problem) in [
            ("", "command is missing"),
            ("redis://:hunter2@h", "no such command"),
            ("doctor", "URL is missing"),
            ("doctor redis://:hunter2@h redis://:hunter2@h", "too many arguments"),
            ("doctor --hunter2 redis://h", "no such option"),
            ("inspect --json redis://h key", "no such option"),
            ("inspect", "URL is missing"),
            ("inspect redis://:hunter2@h", "URL is missing"),
            ("release redis://h key", "`--yes`"),
            ("idem", "no such command"),
            ("idem hunter2 redis://h key", "no such command"),
            ("idem get redis://h", "URL is missing"),
            ("idem get redis://h key --done 1", "no option `--done`"),
            ("idem resolve redis://h key", "`--done JSON`"),
            ("idem resolve redis://h key --done", "no value"),
            ("idem resolve redis://h key --done 1 --forget", "`--done JSON`"),
        ] {
            let refused = typed(line).expect_err(line);
            assert!(refused.contains(problem) && !refused.contains("hunter2"), "{line}: {refused}");
        }
    }
}
