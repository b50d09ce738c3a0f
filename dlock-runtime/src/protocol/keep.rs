//! A lock whose turn is over before its `at_least` is: nobody runs under it, and nobody gets it.
//!
//! ```text
//!  taken          turn over                       at_least over          key expires
//!    |--- body ------>|--- kept: the server knows how long --->| release       |
//!                     |------------------ time to live ----------------------->|
//! ```
//!
//! The server is told once how long the key has to live, so the time is kept though this process may end. The release is sent when
//! the time has come, a little before the key would expire, so that it wakes whoever waits.
//!
//! Not here: turns that are not over (`hold`).

use std::time::Duration;

use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::BootTime;
use crate::protocol::lane::{Cx, Heard, Lane, Stage};
use crate::protocol::renew;
use crate::token::Token;

/// A lock that is kept from everybody.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(super) token: Token,
    until: BootTime,
    /// When the server is told again; never, while an answer is on its way and once it has come.
    tell_at: BootTime,
}

impl Kept {
    pub(super) fn due(&self) -> BootTime {
        self.until.min(self.tell_at)
    }

    fn command(&self, now: BootTime) -> Command {
        Command::Keep { ttl: self.until.since(now).saturating_add(RELEASE_COMES_FIRST) }
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// Keeps the lock of a turn that is over `until` then. Returns what the server is to be told.
    pub(super) fn keep(&mut self, token: Token, until: BootTime, now: BootTime) -> Command {
        let kept = Kept { token, until, tell_at: BootTime::NEVER };
        let command = kept.command(now);
        self.heard = Heard::Taken(Some(until.since(now)));
        self.stage = Stage::Kept(kept);
        command
    }

    /// An answer about the kept lock: to the keep, or to what was asked before it.
    pub(super) fn answered_while_kept(&mut self, command: Command, reply: &Reply, cx: &mut Cx<'_, S>) {
        let Stage::Kept(kept) = &mut self.stage else { return };
        match (command, reply) {
            (_, Reply::NotOurs) => self.ask(cx), // nothing is left to keep
            (Command::Keep { .. }, Reply::Refused(failure)) if failure.kind == FailureKind::WrongKind => {
                self.ask(cx);
            }
            (Command::Keep { .. }, Reply::Unknown(_) | Reply::Refused(_)) => {
                let left = kept.until.since(cx.now);
                kept.tell_at = renew::retry_at(cx.now, left, left);
            }
            _ => {}
        }
    }

    /// Lets go once the time has come, and tells the server again what it did not confirm.
    pub(super) fn watch_kept(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Kept(kept) = &mut self.stage else { return };
        if cx.now >= kept.until {
            cx.send(kept.token, Command::Release);
            self.ask(cx);
        } else if cx.now >= kept.tell_at {
            kept.tell_at = BootTime::NEVER;
            cx.send(kept.token, kept.command(cx.now));
        }
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
    use crate::protocol::lane::{Action, Refusal};
    use crate::protocol::patience::{Limits, Patience};
    use crate::protocol::queue::Waiter;
    use crate::protocol::scene::{TERMS, at, happen, held, waiter};
    use crate::protocol::terms::Terms;
    use crate::retry::RetryPolicy;

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

    #[test]
    fn a_turn_that_ends_early_is_kept_for_the_rest_of_its_at_least() {
        let (lane, _, command) = kept();

        assert_eq!(command, Command::Keep { ttl: Duration::from_millis(40_100) });
        assert_eq!(lane.due(), at(50_001));
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
    fn whoever_waits_here_gets_it_when_the_time_has_come_and_whoever_does_not_wait_is_told_when() {
        let (mut lane, token, keep) = kept();
        happen(&mut lane, 10_002, |lane, cx| lane.reply(token, keep, at(10_001), Reply::Ours, cx));
        let limits =
            Limits { retries: 0, wait: None, backoff: RetryPolicy::DEFAULT, response_timeout: TERMS.lease };
        let once = Waiter { patience: Patience::new(at(20_000), limits, 3), ..waiter(3, TERMS) };

        let refused = happen(&mut lane, 20_000, |lane, cx| lane.join(once, cx));
        let waits = happen(&mut lane, 20_000, |lane, cx| lane.join(waiter(2, TERMS), cx));
        let over = happen(&mut lane, 50_001, Lane::tick);

        assert!(
            matches!(
                &refused[..],
                [Action::Refuse { seat: 3, refusal: Refusal::Contended { ttl: Some(_), .. } }]
            ),
            "{refused:?}"
        );
        assert!(waits.is_empty(), "{waits:?}");
        let [Action::Send { token: released, command: Command::Release }, Action::Send { command, .. }] =
            over[..]
        else {
            panic!("{over:?}")
        };
        assert_eq!((released, command), (token, Command::Acquire { lease: TERMS.lease }));
    }

    #[test]
    fn a_server_that_did_not_answer_is_told_again_what_is_left() {
        let (mut lane, token, keep) = kept();
        let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));

        let then = happen(&mut lane, 10_501, |lane, cx| lane.reply(token, keep, at(10_001), unknown, cx));
        let again = happen(&mut lane, 11_501, Lane::tick);

        assert!(then.is_empty(), "it is not abandoned, which would release it: {then:?}");
        let left = Command::Keep { ttl: Duration::from_millis(38_600) };
        assert!(matches!(again[..], [Action::Send { command, .. }] if command == left), "{again:?}");
    }

    #[test]
    fn a_turn_that_is_stopped_is_kept_and_one_that_was_stolen_is_not() {
        let (mut stopped, token) = held(JOB);
        let (mut stolen, _) = held(JOB);

        let kept = happen(&mut stopped, 100, |lane, cx| lane.lose(LossCause::Shutdown, cx));
        let gone = happen(&mut stolen, 100, |lane, cx| lane.lose(LossCause::NotOurs, cx));

        assert!(
            matches!(kept[..], [Action::Lose { .. }, Action::Send { token: of, command: Command::Keep { .. } }] if of == token),
            "{kept:?}"
        );
        assert!(matches!(gone[..], [Action::Lose { .. }]), "{gone:?}");
        assert!(stolen.is_idle());
    }
}
