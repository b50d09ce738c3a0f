//! Describes what figures are measured on: machine, programs, and revision of the sources.

use std::process::Command;

use crate::Failure;
use crate::server::Server;

/// Returns the description in one line, without the parts that are not available.
pub(crate) async fn told(server: &Server, with_rivals: bool) -> Result<String, Failure> {
    let mut parts = vec![processors()];
    parts.extend(said(&["uname", "-sr"]));
    parts.push(of_the_server(server).await?);
    let rivals = if with_rivals { OF_RIVALS } else { &[] };
    for (name, command) in OF_OURS.iter().chain(rivals) {
        parts.extend(said(command).as_deref().and_then(version).map(|version| format!("{name} {version}")));
    }
    let sources =
        said(&["git", "-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--abbrev=12"]);
    parts.extend(sources.map(|commit| format!("sources {commit}")));
    Ok(parts.join(", "))
}

/// Returns the number and the model of the processors.
fn processors() -> String {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kind = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kind = kind.map(|(_, kind)| kind.trim().to_owned());
    let kind = kind.or_else(|| said(&["sysctl", "-n", "machdep.cpu.brand_string"]));
    format!("{count} x {}", kind.as_deref().unwrap_or(std::env::consts::ARCH))
}

async fn of_the_server(server: &Server) -> Result<String, Failure> {
    let mut connection = server.connect().await?;
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    let of = |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name));
    Ok(match (of("valkey_version:"), of("redis_version:")) {
        (Some(version), _) => format!("Valkey {version}"),
        (_, Some(version)) => format!("Redis {version}"),
        _ => "a server of an unknown kind".to_owned(),
    })
}

/// Returns the first line that a program prints, on standard output or standard error.
fn said(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let said = [output.stdout, output.stderr].into_iter().find(|said| !said.is_empty())?;
    Some(String::from_utf8_lossy(&said).lines().next()?.trim().to_owned())
}

/// Returns the first version number in the output of a program.
fn version(said: &str) -> Option<&str> {
    let is_edge = |character: char| !character.is_ascii_digit();
    said.split_whitespace().map(|word| word.trim_matches(is_edge)).find(|word| !word.is_empty())
}

const OF_OURS: &[(&str, &[&str])] = &[("Rust", &["rustc", "--version"])];

const OF_RIVALS: &[(&str, &[&str])] = &[
    ("Go", &["go", "version"]),
    ("Java", &["java", "-version"]),
    ("Node", &["node", "--version"]),
    ("Python", &["python3", "--version"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_first_number_of_the_output() {
        let said = [
            "go version go1.24.1 linux/amd64",
            r#"openjdk version "21.0.2" 2024-01-16"#,
            "v22.1.0",
            "Python 3",
        ];

        assert_eq!(said.map(version), ["1.24.1", "21.0.2", "22.1.0", "3"].map(Some));
        assert_eq!(version("no number"), None);
    }

    #[test]
    fn processors_are_counted_and_named() {
        let told = processors();

        let (count, kind) = told.split_once(" x ").expect("a number and a kind");
        assert!(count.parse::<usize>().is_ok_and(|count| count > 0) && !kind.is_empty(), "{told}");
    }
}
