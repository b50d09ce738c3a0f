//! Locks whose turn is over and that nobody gets yet: those whose `at_least` is not over, and those whose body is not gone.
//!
//! ```text
//!  taken          turn over                       at_least over          key expires
//!    |--- body ------>|--- kept: the server knows how long --->| release       |
//!                     |------------------ time to live ----------------------->|
//! ```
//!
//! A turn that is lost while the lock is ours (`max_hold`, shutdown) leaves it to its body: it is let go of when the body is gone, and
//! else the key expires.
//!
//! For `at_least` the server is told how long the key has to live, so the time is kept though this process may end. The release is
//! sent when the time has come, a little before the key would expire, so that it wakes whoever waits. Meanwhile the lane goes on as if
//! a stranger held the lock: who wants it asks the server, which knows best whether it is still kept.
//!
//! Not here: turns that are not over (`hold`).

use std::time::Duration;

use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::BootTime;
use crate::protocol::hold::Left;
use crate::protocol::lane::{Cx, Lane};
use crate::protocol::renew;
use crate::token::Token;

/// What a lane keeps. It takes next to no room while that is nothing, as it is for nearly every lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keeping(
    #[expect(clippy::box_collection, reason = "a third of the room in every lane that keeps nothing")]
    Option<Box<Vec<Kept>>>,
);

impl Keeping {
    pub(super) const NOTHING: Self = Self(None);

    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.0.iter().flat_map(|kept| kept.iter())
    }

    fn push(&mut self, kept: Kept) {
        self.0.get_or_insert_default().push(kept);
    }

    fn retain(&mut self, mut stays: impl FnMut(&mut Kept) -> bool) {
        if let Some(kept) = &mut self.0 {
            kept.retain_mut(&mut stays);
            if kept.is_empty() {
                self.0 = None;
            }
        }
    }
}

/// A lock that is kept from everybody.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    token: Token,
    until: BootTime,
    what_for: WhatFor,
    /// When the server is told again; never, while an answer is on its way and once it has come.
    tell_at: BootTime,
}

/// What a lock is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhatFor {
    /// The body of a turn that is lost, which lets go itself; after the deadline the key expires.
    Body { kept_until: BootTime },
    /// The rest of an `at_least`.
    AtLeast,
}

impl Kept {
    fn due(&self) -> BootTime {
        self.until.min(self.tell_at)
    }

    fn is_for_at_least(&self, now: BootTime) -> bool {
        match self.what_for {
            WhatFor::Body { kept_until } => now < kept_until,
            WhatFor::AtLeast => true,
        }
    }

    fn command(&self, now: BootTime) -> Command {
        Command::Keep { ttl: self.until.since(now).saturating_add(RELEASE_COMES_FIRST) }
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// Keeps the lock of a turn that is over `until` then. Returns what the server is to be told.
    pub(super) fn keep(&mut self, token: Token, until: BootTime, now: BootTime) -> Command {
        let kept = Kept { token, until, what_for: WhatFor::AtLeast, tell_at: BootTime::NEVER };
        let command = kept.command(now);
        self.kept.push(kept);
        command
    }

    /// Leaves the lock of a turn that is lost to its body, until `deadline` at most; where it is kept for longer, the server is told now,
    /// since the body may outlive the key.
    pub(super) fn leave_to_body(&mut self, left: Left, deadline: BootTime, cx: &mut Cx<'_, S>) {
        let Left { token, kept_until } = left;
        let until = deadline.max(kept_until);
        if cx.now >= until {
            return;
        }
        let kept = Kept { token, until, what_for: WhatFor::Body { kept_until }, tell_at: BootTime::NEVER };
        if cx.now < kept_until {
            cx.send(token, kept.command(cx.now));
        }
        self.kept.push(kept);
    }

    /// Another server has the lock, which may not have been told: what is kept for an `at_least` is told again.
    pub(super) fn tell_another_server(&mut self, cx: &mut Cx<'_, S>) {
        self.kept.retain(|kept| {
            if kept.is_for_at_least(cx.now) {
                cx.send(kept.token, kept.command(cx.now));
            }
            true
        });
    }

    /// Nobody waits any longer for the bodies of lost turns to go.
    pub(crate) fn let_go_of_all(&mut self, cx: &mut Cx<'_, S>) {
        let left = self.kept.iter().filter_map(|kept| match kept.what_for {
            WhatFor::Body { kept_until } => Some(Left { token: kept.token, kept_until }),
            WhatFor::AtLeast => None,
        });
        for left in left.collect::<Vec<_>>() {
            self.let_go_of(left, true, cx);
        }
    }

    /// The body of a lost turn is gone, and with it the last that could use what the turn has left. `ran`: there was one.
    pub(crate) fn let_go_of(&mut self, left: Left, ran: bool, cx: &mut Cx<'_, S>) {
        let Left { token, kept_until } = left;
        self.kept.retain(|kept| kept.token != token);
        let keeps = ran && cx.now < kept_until;
        let command = if keeps { self.keep(token, kept_until, cx.now) } else { Command::Release };
        cx.send(token, command);
    }

    /// Returns whether the lock is kept under this token.
    pub(super) fn keeps(&self, token: Token) -> bool {
        self.kept.iter().any(|kept| kept.token == token)
    }

    /// An answer about a kept lock. Only one to the keep tells how it stands: what was asked before may be older than the grant.
    pub(super) fn answered_while_kept(
        &mut self,
        token: Token,
        command: Command,
        reply: &Reply,
        cx: &Cx<'_, S>,
    ) {
        if !matches!(command, Command::Keep { .. }) {
            return;
        }
        self.kept.retain(|kept| {
            match reply {
                _ if kept.token != token => true,
                Reply::NotOurs => false, // nothing is left to keep
                Reply::Refused(failure) if failure.kind == FailureKind::WrongKind => false,
                Reply::Unknown(_) | Reply::Refused(_) => {
                    let left = kept.until.since(cx.now);
                    kept.tell_at = renew::retry_at(cx.now, left, left);
                    true
                }
                _ => true,
            }
        });
    }

    /// Lets go once the time has come, and tells the server again what it did not confirm.
    pub(super) fn watch_kept(&mut self, cx: &mut Cx<'_, S>) {
        self.kept.retain(|kept| {
            if cx.now >= kept.until {
                if kept.what_for == WhatFor::AtLeast {
                    cx.send(kept.token, Command::Release);
                }
                return false;
            }
            if cx.now >= kept.tell_at {
                kept.tell_at = BootTime::NEVER;
                cx.send(kept.token, kept.command(cx.now));
            }
            true
        });
    }

    pub(super) fn kept_due(&self) -> BootTime {
        self.kept.iter().map(Kept::due).min().unwrap_or(BootTime::NEVER)
    }
}

/// How much longer than asked the key lives where nobody releases it: the release of a process that lives comes first, and hands over.
const RELEASE_COMES_FIRST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LossCause;
    use crate::protocol::command::Failure;
    use crate::protocol::hold::Released;
    use crate::protocol::lane::{Action, Heard};
    use crate::protocol::scene::{RULES, TERMS, at, happen, held, waiter};
    use crate::protocol::share::{Offer, Streak};
    use crate::protocol::terms::Terms;

    const JOB: Terms = Terms { at_least: Some(Duration::from_secs(50)), ..TERMS };

    /// A lane whose task has let go 10 s after it took the lock, its token, and what the server was told.
    fn kept() -> (Lane<u32>, Token, Command) {
        let (mut lane, token) = held(JOB);
        let mut told = None;
        happen(&mut lane, 10_001, |lane, cx| told = Some(lane.release(&1, cx)));
        let Some(Released::ToServer(told_of, command)) = told else { panic!("{told:?}") };
        assert_eq!(told_of, token);
        (lane, token, command)
    }

    fn passing() -> Failure {
        Failure::new(FailureKind::Passing, "timeout")
    }

    #[test]
    fn a_turn_that_ends_early_is_kept_for_the_rest_of_its_at_least() {
        let (mut lane, token, command) = kept();

        let over = happen(&mut lane, 50_001, Lane::tick);

        assert_eq!(command, Command::Keep { ttl: Duration::from_millis(40_100) });
        assert!(
            matches!(over[..], [Action::Send { token: released, command: Command::Release }] if released == token),
            "{over:?}"
        );
        assert!(lane.is_idle());
    }

    #[test]
    fn a_turn_that_ends_later_is_released() {
        let (mut lane, token) = held(JOB);
        let renewed = Command::Renew { lease: TERMS.lease };
        happen(&mut lane, 40_000, |lane, cx| lane.reply(token, renewed, at(40_000), Reply::Ours, cx));

        let mut told = None;
        happen(&mut lane, 50_001, |lane, cx| told = Some(lane.release(&1, cx)));

        assert_eq!(told, Some(Released::ToServer(token, Command::Release)));
    }

    #[test]
    fn a_turn_that_was_declined_is_released() {
        let (mut lane, token) = held(JOB);

        let mut told = None;
        happen(&mut lane, 10_001, |lane, cx| told = Some(lane.decline(&1, cx)));

        assert_eq!(told, Some(Released::ToServer(token, Command::Release)));
    }

    #[test]
    fn a_turn_that_was_handed_on_has_an_at_least_of_its_own() {
        let (mut lane, token) = held(TERMS);
        happen(&mut lane, 50, |lane, cx| lane.join(waiter(2, JOB), cx));
        let hand_off = |lane: &mut Lane<u32>, cx: &mut Cx<'_, u32>| {
            let rules = crate::protocol::Rules { hand_off: Duration::from_secs(1), ..RULES };
            let mut cx = Cx { rules: &rules, now: cx.now, tokens: cx.tokens, actions: &mut *cx.actions };
            lane.release(&1, &mut cx);
        };
        happen(&mut lane, 100, hand_off);

        let mut told = None;
        happen(&mut lane, 200, |lane, cx| told = Some(lane.release(&2, cx)));

        let keep = Command::Keep { ttl: Duration::from_secs(50) };
        assert_eq!(told, Some(Released::ToServer(token, keep)));
    }

    #[test]
    fn whoever_comes_meanwhile_asks_the_server() {
        let (mut lane, token, keep) = kept();
        happen(&mut lane, 10_002, |lane, cx| lane.reply(token, keep, at(10_001), Reply::Ours, cx));

        let asks = happen(&mut lane, 20_000, |lane, cx| lane.join(waiter(2, TERMS), cx));

        assert!(
            matches!(asks[..], [Action::Send { command: Command::Acquire { .. }, token: new }] if new != token),
            "{asks:?}"
        );
    }

    #[test]
    fn what_was_heard_of_a_kept_lock_is_no_answer_to_who_comes_later() {
        let (mut lane, _, _) = kept();

        happen(&mut lane, 20_000, |lane, cx| lane.join(waiter(2, TERMS), cx));

        assert!(matches!(lane.heard(), Heard::Nothing), "{:?}", lane.heard());
    }

    #[test]
    fn another_server_is_told_what_is_kept() {
        let (mut lane, token, keep) = kept();
        happen(&mut lane, 10_002, |lane, cx| lane.reply(token, keep, at(10_001), Reply::Ours, cx));

        let same = happen(&mut lane, 20_001, |lane, cx| lane.reconnected(false, cx));
        let other = happen(&mut lane, 20_001, |lane, cx| lane.reconnected(true, cx));

        let rest = Command::Keep { ttl: Duration::from_millis(30_100) };
        assert!(same.is_empty(), "{same:?}");
        assert!(
            matches!(other[..], [Action::Send { token: of, command }] if of == token && command == rest),
            "{other:?}"
        );
    }

    #[test]
    fn a_late_grant_of_a_kept_lock_is_no_strangers() {
        let (mut lane, token, _) = kept();

        let mut known = false;
        let actions = happen(&mut lane, 10_050, |lane, cx| {
            let offer = Offer { lease: TERMS.lease, streak: Streak::UNKNOWN };
            known = lane.granted(token, offer, cx);
        });

        assert!(known, "it would be answered by a leave, which releases");
        assert!(actions.is_empty(), "{actions:?}");
    }

    #[test]
    fn a_server_that_did_not_answer_is_told_again_what_is_left() {
        let (mut lane, token, keep) = kept();

        let then = happen(&mut lane, 10_501, |lane, cx| {
            lane.reply(token, keep, at(10_001), Reply::Unknown(passing()), cx);
        });
        let again = happen(&mut lane, 11_501, Lane::tick);

        assert!(then.is_empty(), "it is not abandoned, which would release it: {then:?}");
        let left = Command::Keep { ttl: Duration::from_millis(38_600) };
        assert!(matches!(again[..], [Action::Send { command, .. }] if command == left), "{again:?}");
    }

    #[test]
    fn what_is_not_ours_any_more_or_no_lock_is_not_kept() {
        let wrong_kind = Reply::Refused(Failure::new(FailureKind::WrongKind, "a list"));

        for reply in [Reply::NotOurs, wrong_kind] {
            let (mut lane, token, keep) = kept();
            happen(&mut lane, 10_002, |lane, cx| lane.reply(token, keep, at(10_001), reply, cx));
            assert!(lane.is_idle());
        }
    }

    #[test]
    fn an_answer_that_may_be_older_than_the_grant_does_not_end_what_is_kept() {
        let (mut lane, token, _) = kept();

        let renew = Command::Renew { lease: JOB.lease };
        happen(&mut lane, 10_002, |lane, cx| lane.reply(token, renew, at(0), Reply::NotOurs, cx));

        assert!(lane.keeps(token), "a late grant would be passed on, and the lock let go of");
    }

    #[test]
    fn a_turn_that_is_stopped_is_kept_once_its_body_is_gone_and_one_that_was_stolen_is_not() {
        let (mut stopped, token) = held(JOB);
        let (mut stolen, _) = held(JOB);

        let lost = happen(&mut stopped, 100, |lane, cx| lane.lose(LossCause::Shutdown, cx));
        let gone = happen(&mut stolen, 100, |lane, cx| lane.lose(LossCause::NotOurs, cx));

        // The server is told at once, since the body may outlive the key.
        let [Action::Lose { left: Some(left), .. }, Action::Send { command: Command::Keep { .. }, .. }] =
            lost[..]
        else {
            panic!("{lost:?}")
        };
        assert!(matches!(gone[..], [Action::Lose { left: None, .. }]), "{gone:?}");
        let ran = happen(&mut stopped, 200, |lane, cx| lane.let_go_of(left, true, cx));
        assert!(
            matches!(ran[..], [Action::Send { token: of, command: Command::Keep { .. } }] if of == token),
            "{ran:?}"
        );
        let never_ran = happen(&mut stolen, 200, |lane, cx| lane.let_go_of(left, false, cx));
        assert!(matches!(never_ran[..], [Action::Send { command: Command::Release, .. }]), "{never_ran:?}");
    }
}
