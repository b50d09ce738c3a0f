//! Whom to believe when sentinels differ.
//!
//! Not here: asking them.

use crate::backend::redis::topology::address::Address;

/// What is known of where the master is.
#[derive(Debug, Default)]
pub(super) struct SentinelReport {
    /// Where it was found last.
    found: Option<Address>,
    /// Where it is by the last switch, until it has been found again.
    announced: Option<Address>,
    /// Whom the last switch has replaced. It may believe itself that it is the master, and some sentinels may, too.
    fallen: Option<Address>,
}

impl SentinelReport {
    /// A sentinel says that the master was switched. Returns whether that is news.
    pub(super) fn switched(&mut self, from: Address, to: Address) -> bool {
        let latest = self.latest();
        // A sentinel that lags behind tells of an older switch: it names whom a later one has replaced.
        let is_late = self.fallen.as_ref() == Some(&to) && latest != Some(&from);
        if latest == Some(&to) || is_late {
            return false;
        }
        (self.announced, self.fallen) = (Some(to), Some(from));
        true
    }

    /// The master was found there.
    pub(super) fn found(&mut self, at: Address) {
        self.fallen.take_if(|fallen| *fallen == at);
        (self.announced, self.found) = (None, Some(at));
    }

    /// Returns where the master is by what was heard last.
    pub(super) fn latest(&self) -> Option<&Address> {
        self.announced.as_ref().or(self.found.as_ref())
    }
}

/// Who is named by the sentinels in one lookup.
#[derive(Debug)]
pub(super) struct PrimaryVote {
    announced: Option<Address>,
    fallen: Option<Address>,
    tried: Vec<Address>,
    answers: usize,
    for_the_fallen: usize,
}

impl PrimaryVote {
    pub(super) fn of(said: &SentinelReport) -> Self {
        let SentinelReport { announced, fallen, .. } = said;
        let (announced, fallen) = (announced.clone(), fallen.clone());
        Self { announced, fallen, tried: Vec::new(), answers: 0, for_the_fallen: 0 }
    }

    /// Returns whom to try before anybody has answered.
    pub(super) fn first(&mut self) -> Option<Address> {
        self.announced.take().and_then(|announced| self.once(announced))
    }

    /// A sentinel names a server: returns it where it is to be tried.
    pub(super) fn named(&mut self, named: Address) -> Option<Address> {
        self.answers += 1;
        if self.fallen.as_ref() == Some(&named) {
            self.for_the_fallen += 1;
            return None;
        }
        self.once(named)
    }

    /// All have answered and nobody was the master: the one that was replaced may be it again, where more than half say so.
    pub(super) fn last_resort(&mut self) -> Option<Address> {
        let believed = self.for_the_fallen * 2 > self.answers;
        self.fallen.take().filter(|_| believed)
    }

    fn once(&mut self, address: Address) -> Option<Address> {
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

    /// The master was found at `a`, and then switched to `b`.
    fn switched() -> SentinelReport {
        let mut said = SentinelReport::default();
        said.found(at("a"));
        assert!(said.switched(at("a"), at("b")));
        said
    }

    #[test]
    fn a_switch_is_news_once() {
        let mut said = switched();

        assert!(!said.switched(at("a"), at("b")), "said by a second sentinel");
        said.found(at("b"));
        assert!(!said.switched(at("a"), at("b")), "said by a third, late");
        assert!(said.switched(at("b"), at("a")), "back again");
    }

    #[test]
    fn an_older_switch_that_is_told_late_is_no_news() {
        let mut said = switched();
        said.found(at("b"));
        assert!(said.switched(at("b"), at("c")));
        said.found(at("c"));

        assert!(!said.switched(at("a"), at("b")), "b is replaced");
        assert!(said.switched(at("c"), at("b")), "b is back");
    }

    #[test]
    fn a_switch_is_news_also_where_the_one_before_was_missed() {
        let mut said = SentinelReport::default();
        said.found(at("a"));

        assert!(said.switched(at("b"), at("c")));
    }

    #[test]
    fn whom_a_switch_announces_is_tried_before_anybody_is_asked_and_only_once() {
        let mut tally = PrimaryVote::of(&switched());

        assert_eq!(tally.first(), Some(at("b")));
        assert_eq!(tally.named(at("b")), None);
    }

    #[test]
    fn whom_a_switch_has_replaced_is_not_tried_on_the_word_of_one_in_three() {
        let mut tally = PrimaryVote::of(&switched());

        let tried = [at("a"), at("b"), at("c")].map(|named| tally.named(named));

        assert_eq!(tried, [None, Some(at("b")), Some(at("c"))]);
        assert_eq!(tally.last_resort(), None);
    }

    #[test]
    fn whom_a_switch_has_replaced_is_tried_last_where_most_name_it() {
        let mut tally = PrimaryVote::of(&switched());

        let tried = [at("a"), at("b"), at("a")].map(|named| tally.named(named));

        assert_eq!(tried, [None, Some(at("b")), None]);
        assert_eq!((tally.last_resort(), tally.last_resort()), (Some(at("a")), None));
    }

    #[test]
    fn whoever_was_found_is_no_longer_the_one_that_was_replaced() {
        let mut said = switched();

        said.found(at("a"));

        assert_eq!(PrimaryVote::of(&said).named(at("a")), Some(at("a")));
    }
}
