//! What was asked for on the command line.

use std::path::PathBuf;

use crate::Failure;
use crate::scenarios::SCENARIOS;

/// What to measure, and of whom.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Fewer rounds and shorter slices: figures may be coarse.
    pub(crate) short: bool,
    /// Hold a million locks, too: some gigabytes of memory.
    pub(crate) large: bool,
    /// The rivals to measure, all where there is no name; none of them is even built where it is not asked for.
    pub(crate) rivals: Option<Vec<String>>,
    /// Where the lines of JSON go.
    pub(crate) json: Option<PathBuf>,
    /// The scenarios to run; all where empty.
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
                        return Err(format!("no scenario is called `{name}`; there are {known}").into());
                    }
                    options.only.push(name.clone());
                }
                other => return Err(format!("`{other}` is not known; {USAGE}, or --help").into()),
            }
        }
        Ok(options)
    }
}

const USAGE: &str =
    "write [--short] [--large] [--rivals [NAME]..] [--json FILE] [--only SCENARIO].. [--rounds N]";

/// Returns what `--help` says.
pub(crate) fn help() -> String {
    let scenarios = SCENARIOS.map(|(name, _)| name).join(", ");
    format!(
        "\
Measures locks over Redis servers that it starts on free ports of 127.0.0.1.

--only SCENARIO    measures that one, and may be said again; else all: {scenarios}
--rivals [NAME]..  beside other libraries, all or those named: they are built or installed once, which takes minutes and the tools of
                   their languages; one that cannot be had is printed as skipped
--rounds N         so many rounds, of which figures are the medians: 5, with --short 1
--short            shorter slices and fewer locks: whether all runs, not how fast it is
--large            a million locks, too, which takes some gigabytes of memory
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
    fn the_help_says_what_each_option_is_for_and_which_scenarios_there_are() {
        let (help, words) = (help(), USAGE.split(|of: char| !of.is_alphabetic() && of != '-'));

        let says = |option: &str| help.lines().any(|line| line.split(' ').next() == Some(option));
        assert!(words.filter(|word| word.starts_with("--")).all(says), "{help}");
        assert!(SCENARIOS.iter().all(|(name, _)| help.contains(name)), "{help}");
    }

    #[test]
    fn no_rival_is_asked_for_unless_it_is_said() {
        assert!(read("--short").expect("options").rivals.is_none());
        assert_eq!(read("--rivals --short").expect("options").rivals, Some(Vec::new()));
        let named = read("--rivals rslock redsync --rounds 3").expect("options");
        assert_eq!(named.rivals, Some(vec!["rslock".to_owned(), "redsync".to_owned()]));
        assert_eq!(named.rounds, 3);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for line in ["--fast", "--only nothing", "--json", "--rounds few", "rslock"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
