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
    Inspect { url: String, key: String, json: bool },
    /// Release a lock, regardless of its holder.
    Release { url: String, key: String },
    /// Show the record of an idempotent call.
    IdemGet { url: String, key: String, json: bool },
    /// Store the result of a call that has none.
    IdemDone { url: String, key: String, json: String, replace: bool },
    /// Delete the record of an idempotent call; with `yes`, also if it has completed.
    IdemForget { url: String, key: String, yes: bool },
    /// Show a scheduled job and its last runs.
    JobGet { url: String, name: String, json: bool },
    /// Change a scheduled job; with `yes`, also if that ends its active run.
    JobChange { url: String, name: String, action: JobAction, yes: bool },
}

/// A change of a scheduled job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobAction {
    /// Skip its ticks.
    Pause,
    /// Run its ticks again.
    Resume,
    /// Request a run.
    Run,
    /// Forget which ticks have started.
    Reset,
}

impl JobAction {
    /// Returns the action of a command, such as `jobs pause`.
    fn of(command: &str) -> Option<Self> {
        Some(match command.strip_prefix("jobs ")? {
            "pause" => Self::Pause,
            "resume" => Self::Resume,
            "run" => Self::Run,
            "reset" => Self::Reset,
            _ => return None,
        })
    }
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
        return Err(format!("a command is missing: write {COMMANDS}"));
    }
    let mut command = words.remove(0);
    if (command == "idem" || command == "jobs") && !words.is_empty() {
        command = format!("{command} {}", words.remove(0));
    }
    let action = JobAction::of(&command);
    let allowed: &[&str] = match &*command {
        "doctor" | "inspect" | "idem get" | "jobs get" => &["--json"],
        "release" | "jobs reset" => &["--yes"],
        "idem resolve" => &["--forget", "--replace", "--yes"],
        _ if action.is_some() => &[],
        "help" => return Ok(Task::Help),
        other => return Err(no_command(other)),
    };
    if let Some(option) = options.iter().find(|option| !allowed.contains(&&***option)) {
        return Err(no_option(&command, option));
    }
    let json = has(&["--json"]);
    if command == "doctor" {
        let url = operands_of_doctor(words)?.or(url).ok_or_else(|| no_url("dlock doctor URL"))?;
        return Ok(Task::Doctor { url, json });
    }
    if done.is_some() && command != "idem resolve" {
        return Err(format!("`{command}` has no option `--done`"));
    }
    let (url, key) = url_and_key(&command, words, url)?;
    if let Some(action) = action {
        return Ok(Task::JobChange { url, name: key, action, yes: has(&["--yes"]) });
    }
    match &*command {
        "inspect" => Ok(Task::Inspect { url, key, json }),
        "idem get" => Ok(Task::IdemGet { url, key, json }),
        "jobs get" => Ok(Task::JobGet { url, name: key, json }),
        "idem resolve" => {
            resolution(url, key, done, [has(&["--forget"]), has(&["--replace"]), has(&["--yes"])])
        }
        _ if has(&["--yes"]) => Ok(Task::Release { url, key }),
        _ => Err("releasing a lock that is held lets a second holder start: confirm with `--yes`".to_owned()),
    }
}

/// Returns the task that resolves a call without a result.
fn resolution(
    url: String,
    key: String,
    done: Option<String>,
    [forget, replace, yes]: [bool; 3],
) -> Result<Task, String> {
    match (done, forget) {
        (Some(json), false) => Ok(Task::IdemDone { url, key, json, replace }),
        (None, true) if !replace => Ok(Task::IdemForget { url, key, yes }),
        (None, _) if replace => {
            Err("`--replace` needs the new result: write `--done JSON --replace`".to_owned())
        }
        _ => Err("say what the call has done: `--done JSON` stores its result, `--forget` lets it run again"
            .to_owned()),
    }
}

/// Returns the URL, if it was typed.
fn operands_of_doctor(mut words: Vec<String>) -> Result<Option<String>, String> {
    let url = words.pop();
    if !words.is_empty() {
        return Err("`doctor` has too many arguments: write `dlock doctor URL`".to_owned());
    }
    Ok(url)
}

/// Returns the URL and the key. `default` is the URL if none was typed.
fn url_and_key(
    command: &str,
    mut words: Vec<String>,
    default: Option<String>,
) -> Result<(String, String), String> {
    let options = match command {
        "release" => " --yes",
        "idem resolve" => " --done JSON",
        _ => "",
    };
    let name = if command.starts_with("jobs ") { "name" } else { "key" };
    let usage = format!("dlock {command} URL {}{options}", name.to_uppercase());
    // A URL is not a key: the key is missing, and printing it would show the password.
    let (key, typed) = match (words.pop(), words.pop()) {
        _ if !words.is_empty() => {
            return Err(format!("`{command}` has too many arguments: write `{usage}`, for one {name}"));
        }
        (None, _) => return Err(format!("a {name} is missing: write `{usage}`")),
        (Some(url), None) if is_url(&url) => return Err(format!("a {name} is missing: write `{usage}`")),
        (Some(url), Some(_)) if is_url(&url) => {
            return Err(format!("the URL comes before the {name}: write `{usage}`"));
        }
        (Some(key), typed) => (key, typed),
    };
    let url = typed.or(default).ok_or_else(|| no_url(&usage))?;
    Ok((url, key))
}

fn no_url(usage: &str) -> String {
    format!("a URL is missing, and DLOCK_URL is not set: write `{usage}`")
}

/// Returns the problem with an unknown command. It is not shown: it may be a URL with a password.
fn no_command(word: &str) -> String {
    let meant = match word.to_ascii_lowercase().as_str() {
        "check" | "examine" | "diagnose" | "ping" | "health" | "doctors" | "docter" => "doctor URL",
        "show" | "get" | "info" | "status" | "list" | "who" | "holder" | "ttl" | "inpsect" => {
            "inspect URL KEY"
        }
        "unlock" | "delete" | "del" | "rm" | "remove" | "free" | "force-release" | "clear" => {
            "release URL KEY --yes"
        }
        "version" => "--version",
        word if word.starts_with("job") => {
            return format!("there is no such command: write {JOB_COMMANDS}");
        }
        word if word.starts_with("idem") => "idem get URL KEY` or `dlock idem resolve URL KEY --done JSON",
        _ if is_url(word) => return format!("the command comes before the URL: write {COMMANDS}"),
        _ => return format!("there is no such command: write {COMMANDS}"),
    };
    format!("there is no such command: did you mean `dlock {meant}`")
}

/// Returns the problem with an unknown option. It is not shown: it may be a part of a password.
fn no_option(command: &str, option: &str) -> String {
    let hint = match (command, option) {
        ("release", "-y" | "-f" | "--force") => "write `--yes`",
        ("release", "--json") => "leave out `--json`: `dlock inspect URL KEY --json` shows the lock",
        ("idem resolve", "--json") => "leave out `--json`: `dlock idem get URL KEY --json` shows the record",
        (_, "--json") => "leave out `--json`: `dlock jobs get URL NAME --json` shows the job",
        (
            "doctor" | "inspect" | "idem get" | "jobs get",
            "-j" | "-o" | "-ojson" | "--output" | "--output=json" | "--format" | "--format=json",
        ) => "write `--json`",
        (_, "-u" | "--url" | "--host" | "--redis") => {
            "write the URL without an option's name, after the command"
        }
        (_, "-k" | "--key") => "write the key without an option's name, after the URL",
        (_, "-n" | "--namespace" | "--prefix") => {
            "write the namespace in the URL: `redis://host:port?namespace=shop`"
        }
        _ => "write `--` before a key that starts with `-`",
    };
    format!("`{command}` has no such option; {hint}")
}

const COMMANDS: &str = "`dlock doctor URL`, `dlock inspect URL KEY`, `dlock release URL KEY --yes`, `dlock idem get URL KEY`, \
     `dlock idem resolve URL KEY --done JSON`, or `dlock jobs get URL NAME`";

const JOB_COMMANDS: &str =
    "`dlock jobs get URL NAME`, or `pause`, `resume`, `run`, or `reset` instead of `get`";

/// Removes an option with a value, which may start with `-`. Options end at `--`.
fn take_value(mut words: Vec<String>, option: &str) -> Result<(Vec<String>, Option<String>), String> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let Some(at) = words.iter().take(end).position(|word| word == option) else { return Ok((words, None)) };
    if at + 1 >= end {
        return Err(format!("`{option}` has no value: write `{option} JSON`"));
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
        .is_some_and(|(scheme, _)| ["redis", "valkey", "memory"].iter().any(|of| scheme.starts_with(of)))
}

/// The text of `--help`.
pub(crate) const HELP: &str = "\
dlock: a tool for operators of distributed locks in Redis

  dlock doctor [URL] [--json]         checks the servers for settings by which locks can be lost or refused
  dlock inspect [URL] KEY [--json]    shows the holder of a lock and its owner, its time to live, and the number of waiters
  dlock release [URL] KEY --yes       releases a lock whose holder is gone for good
  dlock idem get [URL] KEY [--json]   shows the record of an idempotent call: its state, attempts, steps, and result
  dlock idem resolve [URL] KEY --done JSON [--replace] | --forget [--yes]
                                      for a call that crashed, failed after a step, or whose result was not stored:
                                      stores the result that later calls get, or lets the call run again;
                                      --replace also replaces a result that an earlier --done has stored,
                                      and --yes also deletes the record of a completed call
  dlock jobs get [URL] NAME [--json]  shows a scheduled job and its last runs
  dlock jobs pause | resume | run | reset [URL] NAME
                                      skips its ticks, runs them again, requests a run, or forgets which ticks have started;
                                      `reset --yes` also ends an active run, and another one can start at the same time

URL is the one that your services use, with its options: redis://user:password@host:port, redis+sentinel://.., redis+cluster://..,
redis+quorum://.., with rediss for TLS, and redis+unix:///path. Quote it if it contains a `?` or a `&`.
The default is DLOCK_URL, which keeps a password off the command line, where other users can see it.
KEY has no namespace: it is in the URL, `?namespace=shop`, and `dlock` by default. In Redis, `order:7` is `dlock:order:7`.
If it starts with `-`, write `--` before it: dlock inspect URL -- -7

--json prints one line: an object, or `null` with exit code 1. `doctor` prints an object for each finding.

Exit code   doctor                            inspect      release                    idem get            idem resolve
    0       nothing worse than a note         it is held   it was held, and is free   there is a record   it is resolved
    1       a warning or a danger was found   it is free   it was not held            there is none       nothing to resolve
    2       it could not be done: the message on stderr, or the report, says why
  jobs: 0 if the job has a record, 1 if it has none
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
        assert_eq!(
            typed("inspect redis://h order:7"),
            Ok(Task::Inspect { url: url(), key: key(), json: false })
        );
        assert_eq!(typed("release --yes redis://h order:7"), Ok(Task::Release { url: url(), key: key() }));
        assert_eq!((typed("doctor --help"), typed("-V")), (Ok(Task::Help), Ok(Task::Version)));
    }

    #[test]
    fn json_is_an_option_of_each_command_that_reads() {
        let (url, key) = (|| "redis://h".to_owned(), || "a".to_owned());

        for (command, task) in [
            ("doctor redis://h", Task::Doctor { url: url(), json: true }),
            ("inspect redis://h a", Task::Inspect { url: url(), key: key(), json: true }),
            ("idem get redis://h a", Task::IdemGet { url: url(), key: key(), json: true }),
            ("jobs get redis://h a", Task::JobGet { url: url(), name: key(), json: true }),
        ] {
            for line in [
                format!("{command} --json"),
                format!("--json {command}"),
                format!("--json {command} --json"),
                command.replace(" redis", " --json redis"),
            ] {
                assert_eq!(typed(&line).as_ref(), Ok(&task), "{line}");
            }
        }
        for (line, instead) in [
            ("release --json redis://h a --yes", "`dlock inspect URL KEY --json`"),
            ("idem resolve redis://h a --done 1 --json", "`dlock idem get URL KEY --json`"),
            ("jobs pause --json redis://h a", "`dlock jobs get URL NAME --json`"),
            ("jobs reset --yes --json redis://h a", "`dlock jobs get URL NAME --json`"),
        ] {
            let refused = typed(line).expect_err(line);
            assert!(refused.contains("leave out `--json`") && refused.contains(instead), "{line}: {refused}");
        }
        assert_eq!(
            typed("inspect redis://h -- --json"),
            Ok(Task::Inspect { url: url(), key: "--json".to_owned(), json: false })
        );
    }

    #[test]
    fn a_job_is_shown_or_changed() {
        let (url, name) = (|| "redis://h".to_owned(), || "nightly".to_owned());
        let of = |action, yes| Ok(Task::JobChange { url: url(), name: name(), action, yes });
        let job = |action| of(action, false);

        assert_eq!(
            typed("jobs get redis://h nightly"),
            Ok(Task::JobGet { url: url(), name: name(), json: false })
        );
        assert_eq!(typed("jobs pause redis://h nightly"), job(JobAction::Pause));
        assert_eq!(typed("jobs resume redis://h nightly"), job(JobAction::Resume));
        assert_eq!(typed("jobs run redis://h nightly"), job(JobAction::Run));
        assert_eq!(typed("jobs reset redis://h nightly"), job(JobAction::Reset));
        assert_eq!(typed("jobs reset redis://h nightly --yes"), of(JobAction::Reset, true));
        for wrong in
            ["jobs", "jobs list redis://h nightly", "jobs get redis://h", "jobs run --yes redis://h nightly"]
        {
            assert!(typed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_record_is_shown_resolved_or_forgotten() {
        let (url, key) = (|| "redis://h".to_owned(), || "charge:7".to_owned());
        let done_with = |json: &str, replace| {
            Ok(Task::IdemDone { url: url(), key: key(), json: json.to_owned(), replace })
        };
        let done = |json: &str| done_with(json, false);

        assert_eq!(
            typed("idem get redis://h charge:7"),
            Ok(Task::IdemGet { url: url(), key: key(), json: false })
        );
        assert_eq!(typed("idem resolve redis://h charge:7 --done -5"), done("-5"));
        assert_eq!(typed("idem resolve --done {} redis://h charge:7"), done("{}"));
        assert_eq!(typed("idem resolve redis://h charge:7 --replace --done 1"), done_with("1", true));
        let forget = |yes| Ok(Task::IdemForget { url: url(), key: key(), yes });
        assert_eq!(typed("idem resolve redis://h charge:7 --forget"), forget(false));
        assert_eq!(typed("idem resolve redis://h charge:7 --yes --forget"), forget(true));
    }

    #[test]
    fn options_end_at_two_dashes() {
        let url = || "redis://h".to_owned();
        let inspect = |key: &str| Ok(Task::Inspect { url: url(), key: key.to_owned(), json: false });

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
        assert_eq!(
            read("inspect order:7"),
            Ok(Task::Inspect { url: url(), key: "order:7".to_owned(), json: false })
        );
        for without_key in
            ["inspect redis://:hunter2@h", "release rediss+cluster://h --yes", "inspect memory://"]
        {
            assert!(
                read(without_key).is_err_and(|problem| problem.contains("a key is missing: write `dlock "))
            );
        }
        assert!(matches!(read("doctor redis://h"), Ok(Task::Doctor { url, .. }) if url == "redis://h"));
    }

    #[test]
    fn invalid_arguments_are_refused_and_not_shown() {
        for (line, problem) in [
            ("", "command is missing"),
            ("redis://:hunter2@h", "command comes before the URL"),
            ("hunter2", "there is no such command: write `dlock doctor URL`"),
            ("unlock redis://:hunter2@h key", "did you mean `dlock release URL KEY --yes`"),
            ("status redis://:hunter2@h", "did you mean `dlock inspect URL KEY`"),
            ("check redis://:hunter2@h", "did you mean `dlock doctor URL`"),
            ("doctor", "URL is missing"),
            ("doctor redis://:hunter2@h redis://:hunter2@h", "too many arguments"),
            ("doctor --hunter2 redis://h", "no such option"),
            ("inspect --yes redis://h key", "no such option"),
            ("jobs get -o json redis://h key", "write `--json`"),
            ("inspect --output=json redis://:hunter2@h key", "write `--json`"),
            ("inspect", "a key is missing: write `dlock inspect URL KEY`"),
            ("inspect redis://:hunter2@h", "a key is missing: write `dlock inspect URL KEY`"),
            ("release valkey://:hunter2@h --yes", "a key is missing: write `dlock release URL KEY --yes`"),
            ("inspect key redis://:hunter2@h", "URL comes before the key"),
            ("inspect key", "URL is missing, and DLOCK_URL is not set: write `dlock inspect URL KEY`"),
            ("inspect redis://:hunter2@h a b", "too many arguments"),
            ("release redis://h key --force", "write `--yes`"),
            ("inspect --namespace=hunter2 redis://h key", "no such option"),
            ("inspect --namespace shop redis://h key", "`redis://host:port?namespace=shop`"),
            ("release redis://h key", "`--yes`"),
            ("jobs", "`dlock jobs get URL NAME`, or `pause`"),
            ("job pause redis://:hunter2@h nightly", "`dlock jobs get URL NAME`, or `pause`"),
            ("jobs pause redis://:hunter2@h", "a name is missing: write `dlock jobs pause URL NAME`"),
            ("jobs run nightly redis://:hunter2@h", "the URL comes before the name"),
            ("idem", "no such command"),
            ("idem hunter2 redis://h key", "no such command"),
            ("idem resolv redis://h key", "`dlock idem resolve URL KEY --done JSON`"),
            ("idem get redis://h", "a key is missing: write `dlock idem get URL KEY`"),
            ("idem get key", "URL is missing"),
            ("idem get redis://h key --done 1", "no option `--done`"),
            ("idem resolve redis://h key", "`--done JSON`"),
            ("idem resolve redis://h key --done", "no value"),
            ("idem resolve redis://h key --done 1 --forget", "`--done JSON`"),
            ("idem resolve redis://h key --replace", "`--done JSON --replace`"),
            ("idem resolve redis://h key --forget --replace", "`--done JSON --replace`"),
            ("idem get redis://h key --replace", "no such option"),
        ] {
            let refused = typed(line).expect_err(line);
            assert!(refused.contains(problem) && !refused.contains("hunter2"), "{line}: {refused}");
        }
    }
}
