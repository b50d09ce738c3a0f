//! The report of an examination, for people and for programs.

use std::fmt;

use crate::printable::is_unprintable;

/// The severity of a finding. [`Ok`](Self::Ok) is the lowest, [`Danger`](Self::Danger) the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// No problem.
    Ok,
    /// Information, or a value that could not be read.
    Note,
    /// A fault that makes another failure lose a lock or make one unusable.
    Warning,
    /// Locks cannot be acquired, or can be lost without another failure.
    Danger,
}

impl Severity {
    /// Returns the name: `ok`, `note`, `warning`, or `danger`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Danger => "danger",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The result of one check. Its texts contain no password and no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    severity: Severity,
    check: &'static str,
    server: Option<String>,
    found: String,
    meaning: String,
    advice: Option<String>,
}

impl Finding {
    pub(super) fn new(
        severity: Severity,
        check: &'static str,
        found: impl Into<String>,
        meaning: impl Into<String>,
    ) -> Self {
        let (found, meaning) = (plain(found.into()), plain(meaning.into()));
        Self { severity, check, server: None, found, meaning, advice: None }
    }

    /// Returns a finding for a value that could not be read, with how to read it by hand.
    pub(super) fn unread(check: &'static str, what: &str, why: &str, by_hand: &str) -> Self {
        let found = format!("{what} could not be read: {why}");
        let meaning = "its state is unknown";
        Self::new(Severity::Note, check, found, meaning).advice(format!("check by hand: {by_hand}"))
    }

    /// Adds the advice for a server that is reachable, and cannot be used as the URL says.
    pub(super) fn correct_it(self) -> Self {
        self.advice("the address is reachable: correct what is named above, and run this again")
    }

    pub(super) fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(plain(advice.into())), ..self }
    }

    pub(super) fn of(self, server: &str) -> Self {
        Self { server: Some(plain(server.to_owned())), ..self }
    }

    /// Returns the severity.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// Returns the stable name of the check, such as `eviction` or `clock`.
    ///
    /// The guide on operating lists all names.
    #[must_use]
    pub fn check(&self) -> &str {
        self.check
    }

    /// Returns the address of the server that the finding is about; `None` if it is about all
    /// servers or none.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// Returns what was found.
    #[must_use]
    pub fn found(&self) -> &str {
        &self.found
    }

    /// Returns what the finding means for locks.
    #[must_use]
    pub fn meaning(&self) -> &str {
        &self.meaning
    }

    /// Returns what to do; `None` if nothing is to be done.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.advice.as_deref()
    }
}

/// Removes unprintable characters: a server could send commands for the terminal that shows the
/// text.
fn plain(mut text: String) -> String {
    text.retain(|c| !is_unprintable(c));
    text
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8} {}: {}", self.severity, self.check, self.found)?;
        if self.severity > Severity::Ok {
            write!(f, "\n         meaning: {}", self.meaning)?;
        }
        match &self.advice {
            Some(advice) => write!(f, "\n         do: {advice}"),
            None => Ok(()),
        }
    }
}

/// The report of [`doctor`](fn@crate::doctor).
///
/// `Display` prints it for people, server by server. For programs, use the getters of its
/// [findings](Self::findings), or `dlock doctor --json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    findings: Vec<Finding>,
    is_reachable: bool,
}

impl Report {
    pub(super) fn new(findings: Vec<Finding>, is_reachable: bool) -> Self {
        Self { findings, is_reachable }
    }

    /// Returns all findings, including those of severity [`Ok`](Severity::Ok), server by server.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the severity of the worst finding.
    #[must_use]
    pub fn worst(&self) -> Severity {
        self.findings.iter().map(Finding::severity).max().unwrap_or(Severity::Ok)
    }

    /// Returns `true` if at least one server that stores locks could be examined. If none could,
    /// the findings only say why.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.is_reachable
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for finding in &self.findings {
            if last != Some(finding.server()) {
                let gap = if last.is_some() { "\n" } else { "" };
                writeln!(f, "{gap}{}", finding.server().unwrap_or("all together"))?;
                last = Some(finding.server());
            }
            writeln!(f, "{finding}")?;
        }
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        let [ok, note, warning, danger] =
            [Severity::Ok, Severity::Note, Severity::Warning, Severity::Danger].map(count);
        write!(f, "\ndanger: {danger}, warnings: {warning}, notes: {note}, ok: {ok}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_text_cannot_command_a_terminal() {
        let finding =
            Finding::new(Severity::Ok, "version", "Redis \u{1b}[2J7\u{9b}1m\r\nok", "new").of("h\u{7}:1");

        assert_eq!((finding.found(), finding.server()), ("Redis [2J71mok", Some("h:1")));
    }

    #[test]
    fn a_report_reads_as_a_list_of_servers_with_the_sum_at_its_end() {
        let fine = Finding::new(Severity::Ok, "version", "Redis 7.0.15", "new enough").of("h:1");
        let bad =
            Finding::new(Severity::Danger, "eviction", "`allkeys-lru`", "locks vanish").advice("change it");
        let unread = Finding::unread("clock", "the time", "NOPERM", "`TIME`");

        let report = Report::new(vec![fine, bad.of("h:1"), unread], true);

        assert_eq!(report.worst(), Severity::Danger);
        let text = "h:1\nok       version: Redis 7.0.15\ndanger   eviction: `allkeys-lru`\n         meaning: locks vanish\n         do: change it\n\n\
                    all together\nnote     clock: the time could not be read: NOPERM\n         meaning: its state is unknown\n         \
                    do: check by hand: `TIME`\n\ndanger: 1, warnings: 0, notes: 1, ok: 1";
        assert_eq!(report.to_string(), text);
    }
}
