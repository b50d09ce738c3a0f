//! Decides which server is the primary if sentinels disagree.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::redis::transport::address::Address;

/// The known addresses of the primary.
#[derive(Debug, Default)]
pub(super) struct SentinelReport {
    /// Where the primary was found last.
    found: Option<Address>,
    /// The new address after the last switch, until the primary is found there.
    announced: Option<Address>,
    /// The server that the last switch demoted. It and some sentinels may still consider it the
    /// primary.
    demoted: Option<Address>,
    /// When the last switch was recorded.
    switched_at: Option<Instant>,
}

impl SentinelReport {
    /// Records a switch that a sentinel announced. Returns `true` if it is new.
    pub(super) fn switched(&mut self, from: Address, to: Address) -> bool {
        let latest = self.latest();
        // A sentinel that lags behind announces an older switch to a server that a later switch
        // demoted.
        let is_late = self.has_demoted(&to) && latest != Some(&from);
        if latest == Some(&to) {
            if self.demoted.is_none() {
                // The primary was found before the announcement.
                (self.demoted, self.switched_at) = (Some(from), Some(Instant::now()));
            }
            return false;
        }
        if is_late {
            return false;
        }
        (self.announced, self.demoted, self.switched_at) = (Some(to), Some(from), Some(Instant::now()));
        true
    }

    /// Records that the primary was found at an address.
    pub(super) fn found(&mut self, at: Address) {
        self.demoted.take_if(|demoted| *demoted == at);
        (self.announced, self.found) = (None, Some(at));
    }

    /// Returns `true` if the last switch demoted the server at an address.
    pub(super) fn has_demoted(&self, at: &Address) -> bool {
        self.demoted.as_ref() == Some(at)
    }

    /// Returns `true` if the last switch demoted the server at an address, and some sentinels may
    /// not know of it yet.
    pub(super) fn has_just_demoted(&self, at: &Address) -> bool {
        self.has_demoted(at) && self.switched_at.is_some_and(|since| since.elapsed() < LONGEST_LAG)
    }

    /// Returns the latest known address of the primary.
    pub(super) fn latest(&self) -> Option<&Address> {
        self.announced.as_ref().or(self.found.as_ref())
    }
}

/// How long sentinels report a demoted server at most. They tell each other every 2 s.
pub(super) const LONGEST_LAG: Duration = Duration::from_secs(10);

/// The primary that a sentinel reports, and the number of the failover that elected it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedPrimary {
    pub(super) at: Address,
    /// Sentinel numbers its failovers. 0 if the number is unknown.
    pub(super) epoch: u64,
}

/// Returns what the sentinels report that know of the last failover. If they disagree, more than
/// half of them must report the same server.
pub(super) fn newest(reports: &[ReportedPrimary]) -> Option<&ReportedPrimary> {
    let last = reports.iter().map(|report| report.epoch).max()?;
    let up_to_date = || reports.iter().filter(|report| report.epoch == last);
    let votes = |named: &Address| up_to_date().filter(|report| report.at == *named).count();
    up_to_date().find(|report| votes(&report.at) * 2 > up_to_date().count())
}

/// The servers that sentinels report in one lookup.
#[derive(Debug)]
pub(super) struct PrimaryVote {
    announced: Option<Address>,
    demoted: Option<Address>,
    tried: Vec<Address>,
    replies: usize,
    votes_for_demoted: usize,
}

impl PrimaryVote {
    pub(super) fn of(report: &SentinelReport) -> Self {
        let SentinelReport { announced, demoted, .. } = report;
        let (announced, demoted) = (announced.clone(), demoted.clone());
        Self { announced, demoted, tried: Vec::new(), replies: 0, votes_for_demoted: 0 }
    }

    /// Returns the server to try before a sentinel replies.
    pub(super) fn first(&mut self) -> Option<Address> {
        self.announced.take().and_then(|announced| self.untried(announced))
    }

    /// Counts the report of a sentinel. Returns the server if it must be tried.
    pub(super) fn named(&mut self, named: Address) -> Option<Address> {
        self.replies += 1;
        if self.demoted.as_ref() == Some(&named) {
            self.votes_for_demoted += 1;
            return None;
        }
        self.untried(named)
    }

    /// Returns the demoted server if more than half of the sentinels that reply report it. Called
    /// when no other server is the primary.
    pub(super) fn last_resort(&mut self) -> Option<Address> {
        let is_majority = self.votes_for_demoted * 2 > self.replies;
        self.demoted.take().filter(|_| is_majority)
    }

    fn untried(&mut self, address: Address) -> Option<Address> {
        if self.tried.contains(&address) {
            return None;
        }
        self.tried.push(address.clone());
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str) -> Address {
        Address { host: host.to_owned(), port: 6379 }
    }

    #[test]
    fn a_primary_that_is_found_before_its_announcement_demotes_the_old_one() {
        let mut report = SentinelReport::default();
        report.found(at("b"));

        assert!(!report.switched(at("a"), at("b")), "it is known");
        assert!(report.has_demoted(&at("a")));
        assert!(!report.switched(at("c"), at("b")) && report.has_demoted(&at("a")), "that one is older");
    }

    #[test]
    fn the_last_failover_decides_and_then_the_majority() {
        for (reports, expected) in [
            (&[("a", 4), ("a", 4), ("b", 5)][..], Some("b")),
            (&[("b", 5), ("a", 4)], Some("b")),
            (&[("a", 0), ("b", 0), ("b", 0)], Some("b")),
            (&[("a", 0), ("b", 0)], None),
            (&[("a", 7), ("b", 7), ("c", 9), ("c", 9), ("d", 9)], Some("c")),
            (&[], None),
        ] {
            let report = |&(host, epoch): &(&str, u64)| ReportedPrimary { at: at(host), epoch };
            let reported: Vec<_> = reports.iter().map(report).collect();

            assert_eq!(newest(&reported).map(|of| &*of.at.host), expected, "{reports:?}");
        }
    }

    /// The primary was found at `a`, and then switched to `b`.
    fn switched() -> SentinelReport {
        let mut report = SentinelReport::default();
        report.found(at("a"));
        assert!(report.switched(at("a"), at("b")));
        report
    }

    #[test]
    fn a_switch_is_reported_once() {
        let mut report = switched();

        assert!(!report.switched(at("a"), at("b")), "announced by a second sentinel");
        report.found(at("b"));
        assert!(!report.switched(at("a"), at("b")), "announced late by a third");
        assert!(report.switched(at("b"), at("a")), "switched back");
    }

    #[test]
    fn an_older_switch_that_arrives_late_is_ignored() {
        let mut report = switched();
        report.found(at("b"));
        assert!(report.switched(at("b"), at("c")));
        report.found(at("c"));

        assert!(!report.switched(at("a"), at("b")), "b is replaced");
        assert!(report.switched(at("c"), at("b")), "b is back");
    }

    #[test]
    fn a_switch_is_reported_after_a_missed_one() {
        let mut report = SentinelReport::default();
        report.found(at("a"));

        assert!(report.switched(at("b"), at("c")));
    }

    #[test]
    fn the_announced_primary_is_tried_first_and_once() {
        let mut vote = PrimaryVote::of(&switched());

        assert_eq!(vote.first(), Some(at("b")));
        assert_eq!(vote.named(at("b")), None);
    }

    #[test]
    fn a_demoted_server_is_not_tried_for_one_vote_of_three() {
        let mut vote = PrimaryVote::of(&switched());

        let tried = [at("a"), at("b"), at("c")].map(|named| vote.named(named));

        assert_eq!(tried, [None, Some(at("b")), Some(at("c"))]);
        assert_eq!(vote.last_resort(), None);
    }

    #[test]
    fn a_demoted_server_with_a_majority_is_tried_last() {
        let mut vote = PrimaryVote::of(&switched());

        let tried = [at("a"), at("b"), at("a")].map(|named| vote.named(named));

        assert_eq!(tried, [None, Some(at("b")), None]);
        assert_eq!((vote.last_resort(), vote.last_resort()), (Some(at("a")), None));
    }

    #[test]
    fn a_server_that_was_found_is_not_demoted() {
        let mut report = switched();

        report.found(at("a"));

        assert_eq!(PrimaryVote::of(&report).named(at("a")), Some(at("a")));
    }

    #[test]
    fn a_demoted_server_needs_more_than_half_of_the_replies() {
        for (replies, is_tried) in [
            (&["a"][..], true),
            (&["a", "b"], false),
            (&["a", "b", "a"], true),
            (&["a", "b", "a", "b"], false),
            (&["a", "b", "a", "b", "a"], true),
            (&["a", "b", "b", "b", "a"], false),
        ] {
            let mut vote = PrimaryVote::of(&switched());
            for named in replies {
                vote.named(at(named));
            }

            assert_eq!(vote.last_resort().is_some(), is_tried, "{replies:?}");
        }
    }

    #[test]
    fn an_announced_primary_is_the_latest_until_one_is_found() {
        let mut report = SentinelReport::default();
        assert_eq!(report.latest(), None);
        report.found(at("a"));
        assert!(report.switched(at("a"), at("b")));
        assert_eq!(report.latest(), Some(&at("b")));

        report.found(at("c"));

        assert_eq!(report.latest(), Some(&at("c")));
        assert_eq!(PrimaryVote::of(&report).first(), None, "nothing is announced");
        assert_eq!(PrimaryVote::of(&report).named(at("a")), None, "it is still demoted");
    }
}
