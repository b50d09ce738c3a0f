//! The pending operations of a quorum, from the send of their commands to the last vote.
//!
//! See also `protocol::quorum`, which counts the votes.

use std::collections::HashMap;

use crate::backend::Request;
use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::quorum::pending_repairs::PendingRepairs;
use crate::protocol::quorum::{FollowUp, VoteTally, is_lost};
use crate::token::Token;

/// All pending operations.
#[derive(Debug, Default)]
pub(super) struct QuorumOperations {
    /// By operation number.
    open: Vec<Option<PendingOperation>>,
    /// Numbers that can be reused.
    free: Vec<usize>,
    /// The numbers of pending operations that may repair a key.
    repairing: HashMap<Token, Vec<usize>>,
    late: PendingRepairs,
}

#[derive(Debug)]
struct PendingOperation {
    tally: VoteTally,
    /// The original request; `None` after its outcome is reported.
    request: Option<Request>,
    /// Read before the first server was sent the command.
    sent: BootInstant,
    /// Whether another operation continues the request, or no request belongs to it.
    goes_on: bool,
}

/// An outcome to report.
#[derive(Debug)]
pub(super) struct OperationOutcome {
    pub(super) request: Request,
    pub(super) reply: Reply,
    pub(super) sent: BootInstant,
}

/// The effects of a vote.
#[derive(Debug, Default)]
pub(super) struct CountedVote {
    pub(super) outcome: Option<OperationOutcome>,
    /// Follow-up actions by server.
    pub(super) follows: Vec<(usize, FollowUp)>,
    /// The number of another operation, and its request to every server.
    pub(super) next: Option<(usize, Request)>,
    /// Whether the request is complete.
    pub(super) is_over: bool,
}

impl QuorumOperations {
    /// Starts an operation on `servers` servers for a request sent at `sent`, and returns its
    /// number.
    pub(super) fn open(&mut self, request: Request, sent: BootInstant, servers: usize) -> usize {
        let (token, command) = (request.token, request.command);
        if ends_hold(command) || matches!(command, Command::SetTtl { .. }) {
            self.cancel_repairs(token);
        }
        let number = self.open_on(command, Some(request), sent, servers);
        if may_repair(command) {
            self.repairing.entry(token).or_default().push(number);
        }
        number
    }

    fn open_on(
        &mut self,
        command: Command,
        request: Option<Request>,
        sent: BootInstant,
        servers: usize,
    ) -> usize {
        let goes_on = request.is_none();
        let open = PendingOperation { tally: VoteTally::new(command, servers), request, sent, goes_on };
        let number = self.free.pop().unwrap_or(self.open.len());
        match self.open.get_mut(number) {
            Some(place) => *place = Some(open),
            None => self.open.push(Some(open)),
        }
        number
    }

    /// Stops pending operations of `token` from repairing: a repair must not follow the release, or
    /// exceed the time to live of a retained hold.
    fn cancel_repairs(&mut self, token: Token) {
        for number in self.repairing.get(&token).into_iter().flatten() {
            if let Some(Some(open)) = self.open.get_mut(*number) {
                open.tally.mark_superseded();
            }
        }
    }

    /// Counts the vote of `server` in the operation `number` on the request `asked`. `counts`:
    /// whether its acceptance of an acquire counts.
    pub(super) fn vote(
        &mut self,
        server: usize,
        number: usize,
        asked: &Request,
        reply: Reply,
        counts: bool,
    ) -> CountedVote {
        let mut counted = CountedVote::default();
        let Some(Some(open)) = self.open.get_mut(number) else { return counted };
        let outcome = open.tally.vote(server, reply, counts, &mut counted.follows);
        let (sent, is_over, servers) = (open.sent, open.tally.is_over(), open.tally.servers());
        let request = outcome.is_some().then(|| open.request.take()).flatten();
        let mut goes_on = false;
        if let (Some(reply), Some(request)) = (outcome, request) {
            if is_lost(asked.command, &reply) {
                self.cancel_repairs(asked.token);
                let withdrawal = self.open_on(Command::Withdraw, None, sent, servers);
                counted.next =
                    Some((withdrawal, Request::new(Name::clone(&asked.key), asked.token, Command::Withdraw)));
            }
            match (asked.command, reply) {
                // A majority must know a fencing token before it is used, even if one server issued
                // it.
                (Command::Fence, Reply::Fenced(fence)) => {
                    let command = Command::RaiseFence { fence };
                    let raise = self.open_on(command, Some(request), sent, servers);
                    counted.next = Some((raise, Request::new(Name::clone(&asked.key), asked.token, command)));
                    goes_on = true;
                }
                (Command::RaiseFence { fence }, Reply::Fenced(_)) => {
                    counted.outcome = Some(OperationOutcome { request, reply: Reply::Fenced(fence), sent });
                }
                (_, reply) => counted.outcome = Some(OperationOutcome { request, reply, sent }),
            }
        }
        if let Some(Some(open)) = self.open.get_mut(number) {
            open.goes_on |= goes_on;
            counted.is_over = is_over && !open.goes_on;
        }
        self.late.remember(asked.token, &counted.follows);
        if ends_hold(asked.command) {
            self.late.on_end((asked.token, server), is_over, &mut counted.follows);
        }
        if is_over {
            self.close(number, asked);
        }
        counted
    }

    /// Records the reply of a server to a repair, or that there will be none.
    pub(super) fn repaired(&mut self, server: usize, token: Token, reply: &Reply) {
        self.late.on_repaired(token, server, reply);
    }

    fn close(&mut self, number: usize, asked: &Request) {
        if let Some(place) = self.open.get_mut(number) {
            *place = None;
            self.free.push(number);
        }
        if may_repair(asked.command)
            && let Some(numbers) = self.repairing.get_mut(&asked.token)
        {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.repairing.remove(&asked.token);
            }
        }
    }
}

/// Returns `true` if the command may lead to a [`FollowUp::Repair`].
fn may_repair(command: Command) -> bool {
    matches!(command, Command::Renew { .. } | Command::SetTtl { .. })
}

/// Returns `true` if the hold of the token ends with this command.
fn ends_hold(command: Command) -> bool {
    command.is_release() || matches!(command, Command::Yield { .. })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::redis::tests::unknown;
    use crate::protocol::command::{Failure, FailureKind};
    use crate::protocol::foreign_clients::FleetHold;
    use crate::token::TokenSource;

    const LEASE: Duration = Duration::from_secs(30);

    /// Lets three servers vote on a command of `token`, and returns the effects.
    fn votes_on(
        operations: &mut QuorumOperations,
        token: Token,
        command: Command,
        votes: [Reply; 3],
    ) -> Vec<CountedVote> {
        let request = Request::new("k".into(), token, command);
        let number = operations.open(request, BootInstant::START, 3);
        let asked = Request::new("k".into(), token, command);
        let votes = votes.into_iter().enumerate();
        votes.map(|(server, reply)| operations.vote(server, number, &asked, reply, true)).collect()
    }

    #[test]
    fn operation_numbers_are_reused_after_the_last_vote() {
        let (mut operations, tokens) = (QuorumOperations::default(), TokenSource::of_process(1));
        for _ in 0..3 {
            let votes = [Reply::Owner, Reply::Owner, Reply::Owner];
            let counted = votes_on(&mut operations, tokens.next(), Command::Acquire { lease: LEASE }, votes);

            assert!(counted[1].outcome.is_some() && !counted[1].is_over && counted[2].is_over);
        }
        assert_eq!(operations.open.len(), 1);
    }

    #[test]
    fn a_fencing_token_is_reported_after_a_majority_knows_it() {
        let (mut operations, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
        let votes = [Reply::Fenced(7), Reply::Fenced(9), Reply::NotOwner];

        let mut counted = votes_on(&mut operations, token, Command::Fence, votes);

        assert!(counted.iter().all(|counted| counted.outcome.is_none() && !counted.is_over));
        let (number, next) = counted[1].next.take().expect("a majority has issued");
        assert_eq!(next.command, Command::RaiseFence { fence: 9 });
        assert!(operations.vote(0, number, &next, Reply::Fenced(9), true).outcome.is_none());
        let outcome =
            operations.vote(1, number, &next, Reply::Fenced(12), true).outcome.expect("a majority knows it");
        assert!(matches!((outcome.request.command, outcome.reply), (Command::Fence, Reply::Fenced(9))));
        assert!(operations.vote(2, number, &next, unknown(), true).is_over);
    }

    #[test]
    fn release_cleans_up_unanswered_acquire() {
        let (mut operations, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
        let acquire = Command::Acquire { lease: LEASE };
        let acquired = votes_on(&mut operations, token, acquire, [Reply::Owner, Reply::Owner, unknown()]);
        assert_eq!(acquired[2].follows, [(2, FollowUp::Unverified)]);

        let votes = [Reply::Owner, Reply::Owner, Reply::NotOwner];
        let released = votes_on(&mut operations, token, Command::RELEASE, votes);

        assert_eq!(released[2].follows, [(2, FollowUp::Orphan)]);
        assert!(operations.late.is_empty());
    }

    /// Its vote is the first: it is refused while the request is sent to the others.
    #[test]
    fn holds_of_a_quorum_with_a_server_down_leave_nothing() {
        let refused = || Reply::Refused(Failure::new(FailureKind::Passing, "it is down"));
        let (mut operations, tokens) = (QuorumOperations::default(), TokenSource::of_process(1));
        for _ in 0..3 {
            let (token, acquire) = (tokens.next(), Command::Acquire { lease: LEASE });
            for command in [acquire, Command::Renew { lease: LEASE }, Command::RELEASE] {
                let votes = [refused(), Reply::Owner, Reply::Owner];
                let counted = votes_on(&mut operations, token, command, votes);

                let mut follows = counted.iter().flat_map(|counted| &counted.follows);
                assert!(follows.all(|(_, follow)| *follow != FollowUp::Orphan), "{command:?}");
            }
        }
        assert!(operations.late.is_empty());
    }

    #[test]
    fn a_hold_lost_by_a_majority_is_withdrawn_everywhere() {
        let (mut operations, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
        let votes = [Reply::NotOwner, Reply::Owner, Reply::NotOwner];

        let mut counted = votes_on(&mut operations, token, Command::Renew { lease: LEASE }, votes);

        assert!(counted[2].outcome.is_some() && counted[2].is_over);
        let (number, leave) = counted[2].next.take().expect("a majority has lost it");
        assert_eq!(leave.command, Command::Withdraw);
        for server in 0..3 {
            let counted = operations.vote(server, number, &leave, Reply::NotOwner, true);
            assert!(counted.outcome.is_none() && !counted.is_over, "no request belongs to it");
        }
        assert!(operations.open.iter().all(Option::is_none));
    }

    #[test]
    fn an_overtaken_command_repairs_nothing() {
        let (renew, set_ttl) = (Command::Renew { lease: LEASE }, Command::SetTtl { ttl: LEASE });
        for (command, overtaken_by) in
            [(renew, Command::RELEASE), (renew, set_ttl), (set_ttl, Command::RELEASE), (set_ttl, set_ttl)]
        {
            let (mut operations, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
            let number = operations.open(Request::new("k".into(), token, command), BootInstant::START, 3);
            let asked = Request::new("k".into(), token, command);
            operations.vote(0, number, &asked, Reply::NotOwner, true);

            let next = operations.open(Request::new("k".into(), token, overtaken_by), BootInstant::START, 3);
            operations.vote(1, number, &asked, Reply::Owner, true);
            let counted = operations.vote(2, number, &asked, Reply::Owner, true);

            assert!(counted.outcome.is_some() && counted.follows.is_empty(), "{command:?} {overtaken_by:?}");
            let pending: &[usize] = if may_repair(overtaken_by) { &[next] } else { &[] };
            assert_eq!(operations.repairing.get(&token).map_or(&[][..], |numbers| numbers), pending);
        }
    }

    #[test]
    fn the_reply_to_a_repair_settles_it() {
        for (reply, follows) in [
            (None, &[(2, FollowUp::Orphan)][..]),
            (Some(Reply::Owner), &[]),
            (Some(unknown()), &[(2, FollowUp::Orphan)]),
        ] {
            let (mut operations, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
            let votes = [Reply::Owner, Reply::Owner, Reply::NotOwner];
            let renewed = votes_on(&mut operations, token, Command::Renew { lease: LEASE }, votes);
            assert_eq!(renewed[2].follows, [(2, FollowUp::Repair(LEASE))]);
            if let Some(reply) = reply {
                operations.repaired(2, token, &reply);
            }

            let votes = [Reply::Owner, Reply::Owner, Reply::Owner];
            let released = votes_on(&mut operations, token, Command::RELEASE, votes);

            assert_eq!(released[2].follows, follows);
            assert!(operations.late.is_empty());
        }
    }

    #[test]
    fn only_the_end_of_a_hold_cleans_up_after_it() {
        let tokens = TokenSource::of_process(1);
        let fleet_hold = FleetHold::UNKNOWN;
        for (command, ends) in [
            (Command::Renew { lease: LEASE }, false),
            (Command::Verify, false),
            (Command::Yield { next: tokens.next(), fleet_hold }, true),
            (Command::ReleaseWithoutHandoff, true),
        ] {
            let (mut operations, token) = (QuorumOperations::default(), tokens.next());
            let acquire = Command::Acquire { lease: LEASE };
            votes_on(&mut operations, token, acquire, [Reply::Owner, Reply::Owner, unknown()]);

            let votes = [Reply::Owner, Reply::Owner, Reply::Owner];
            let counted = votes_on(&mut operations, token, command, votes);

            let follows: &[_] = if ends { &[(2, FollowUp::Orphan)] } else { &[] };
            assert_eq!(counted[2].follows, follows, "{command:?}");
            assert_eq!(operations.late.is_empty(), ends, "{command:?}");
        }
    }

    #[test]
    fn a_renewal_behind_another_still_repairs() {
        let (mut operations, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
        let renew = Command::Renew { lease: LEASE };
        let asked = || Request::new("k".into(), token, renew);
        let first = operations.open(asked(), BootInstant::START, 3);
        let second = operations.open(asked(), BootInstant::START, 3);
        assert_ne!(first, second);

        for number in [first, second] {
            operations.vote(0, number, &asked(), Reply::Owner, true);
            operations.vote(1, number, &asked(), Reply::Owner, true);
            let counted = operations.vote(2, number, &asked(), Reply::NotOwner, true);

            assert_eq!(counted.follows, [(2, FollowUp::Repair(LEASE))]);
            let pending = operations.repairing.get(&token).map_or(0, Vec::len);
            assert_eq!(pending, usize::from(number == first), "the other one is pending");
        }
    }
}
