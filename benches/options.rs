//! The command line.

use std::path::PathBuf;

use crate::Failure;
use crate::scenarios::SCENARIOS;

/// The scenarios and libraries to measure.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Fewer rounds and shorter slices: figures may be coarse.
    pub(crate) short: bool,
    /// Also hold a million locks, which takes some gigabytes of memory.
    pub(crate) large: bool,
    /// The other libraries to measure; all of them if empty. If `None`, none of them is built.
    pub(crate) rivals: Option<Vec<String>>,
    /// The file for the lines of JSON.
    pub(crate) json: Option<PathBuf>,
    /// The scenarios to run; all of them if empty.
    pub(crate) only: Vec<String>,
    pub(crate) rounds: usize,
}

impl Options {
    pub(crate) fn read(arguments: &[String]) -> Result<Self, Failure> {
        let short = arguments.iter().any(|argument| argument == "--short");
        let mut options = Self { short, rounds: if short { 1 } else { 5 }, ..Self::default() };
        let mut rest = arguments.iter().peekable();
        while let Some(argument) = rest.next() {
            if argument == "--rivals" {
                let names = options.rivals.get_or_insert_default();
                while let Some(name) = rest.next_if(|next| !next.starts_with("--")) {
                    names.push(name.clone());
                }
                continue;
            }
            let mut value = || rest.next().ok_or_else(|| format!("`{argument}` needs a value"));
            match &**argument {
                "--short" => {}
                "--large" => options.large = true,
                "--json" => options.json = Some(value()?.into()),
                "--rounds" => {
                    let rounds = value()?;
                    let number = rounds.parse().ok().filter(|rounds| *rounds > 0);
                    options.rounds =
                        number.ok_or_else(|| format!("`--rounds {rounds}`: write a number from 1"))?;
                }
                "--only" => {
                    let name = value()?;
                    if !SCENARIOS.iter().any(|(known, _)| known == name) {
                        let known = SCENARIOS.map(|(name, _)| name).join(", ");
                        return Err(format!("unknown scenario `{name}`; the scenarios are {known}").into());
                    }
                    options.only.push(name.clone());
                }
                other => return Err(format!("unknown argument `{other}`: {USAGE}, or --help").into()),
            }
        }
        Ok(options)
    }
}

const USAGE: &str =
    "write [--short] [--large] [--rivals [NAME]..] [--json FILE] [--only SCENARIO].. [--rounds N]";

/// Returns the text of `--help`.
pub(crate) fn help() -> String {
    let scenarios = SCENARIOS.map(|(name, _)| name).join(", ");
    format!(
        "\
Measures locks over Redis servers that it starts on free ports of 127.0.0.1.

--only SCENARIO    measures this scenario; may be repeated; default: all of {scenarios}
--rivals [NAME]..  also measures other libraries, all or those named. They are built or installed once, which takes minutes and the
                   tools of their languages; a library that cannot be built is printed as skipped
--rounds N         the number of rounds; figures are their medians; default: 5, with --short 1
--short            shorter slices and fewer locks: checks that everything runs, not how fast
--large            also holds a million locks, which takes some gigabytes of memory
--json FILE        writes the figures as lines of JSON, for `plot`

The published figures are those of three runs with `--rivals --rounds 1`.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, Failure> {
        Options::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn help_lists_every_option_and_scenario() {
        let (help, words) = (help(), USAGE.split(|of: char| !of.is_alphabetic() && of != '-'));

        let says = |option: &str| help.lines().any(|line| line.split(' ').next() == Some(option));
        assert!(words.filter(|word| word.starts_with("--")).all(says), "{help}");
        assert!(SCENARIOS.iter().all(|(name, _)| help.contains(name)), "{help}");
    }

    #[test]
    fn no_other_library_is_measured_by_default() {
        assert!(read("--short").expect("options").rivals.is_none());
        assert_eq!(read("--rivals --short").expect("options").rivals, Some(Vec::new()));
        let named = read("--rivals rslock redsync --rounds 3").expect("options");
        assert_eq!(named.rivals, Some(vec!["rslock".to_owned(), "redsync".to_owned()]));
        assert_eq!(named.rounds, 3);
    }

    #[test]
    fn unknown_arguments_are_rejected() {
        for line in ["--fast", "--only nothing", "--json", "--rounds few", "rslock"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
