//! The ballots that are open, from the sending of their commands to the last vote, and what must be remembered between them.
//!
//! Not here: what votes come to (`protocol::quorum`), who sends (`quorum`).

use std::collections::HashMap;

use crate::backend::Request;
use crate::key::Name;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::quorum::pending_repairs::PendingRepairs;
use crate::protocol::quorum::{FollowUp, VoteTally, is_lost};
use crate::token::Token;

/// All open ballots.
#[derive(Debug, Default)]
pub(super) struct QuorumOperations {
    /// By their numbers.
    open: Vec<Option<PendingOperation>>,
    /// Numbers that can be used again.
    free: Vec<usize>,
    /// The renewals among them.
    renewing: HashMap<Token, Vec<usize>>,
    late: PendingRepairs,
}

#[derive(Debug)]
struct PendingOperation {
    ballot: VoteTally,
    /// What was asked for; none once the outcome is told.
    request: Option<Request>,
    /// When the first server was asked, or a moment before.
    sent: BootInstant,
    /// Whether another ballot goes on with the request, or nobody asked for it.
    goes_on: bool,
}

/// An outcome that is to be told.
#[derive(Debug)]
pub(super) struct OperationOutcome {
    pub(super) request: Request,
    pub(super) reply: Reply,
    pub(super) sent: BootInstant,
}

/// What a vote led to.
#[derive(Debug, Default)]
pub(super) struct CountedVote {
    pub(super) outcome: Option<OperationOutcome>,
    /// What is to be done, and at which servers.
    pub(super) follows: Vec<(usize, FollowUp)>,
    /// What every server is to be asked next.
    pub(super) next: Option<Request>,
    /// Whether nothing more will come of the request.
    pub(super) is_over: bool,
}

impl QuorumOperations {
    /// Opens a ballot on what so many servers are asked at `sent`, and returns its number.
    pub(super) fn open(&mut self, request: Request, sent: BootInstant, servers: usize) -> usize {
        let (token, command) = (request.token, request.command);
        if lets_go(command) {
            self.let_go(token);
        }
        let number = self.open_on(command, Some(request), sent, servers);
        if let Command::Renew { .. } = command {
            self.renewing.entry(token).or_default().push(number);
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
        let open = PendingOperation { ballot: VoteTally::new(command, servers), request, sent, goes_on };
        let number = self.free.pop().unwrap_or(self.open.len());
        match self.open.get_mut(number) {
            Some(place) => *place = Some(open),
            None => self.open.push(Some(open)),
        }
        number
    }

    /// What a renewal on its way would put again is let go of before that could come.
    fn let_go(&mut self, token: Token) {
        for number in self.renewing.get(&token).into_iter().flatten() {
            if let Some(Some(open)) = self.open.get_mut(*number) {
                open.ballot.let_go();
            }
        }
    }

    /// Counts the vote of `server` on what it was `asked`; its "yes" to who wants the lock `counts` or does not.
    pub(super) fn vote(&mut self, server: usize, asked: &Request, reply: Reply, counts: bool) -> CountedVote {
        let mut counted = CountedVote::default();
        let number = asked.ballot.unwrap_or(usize::MAX);
        let Some(Some(open)) = self.open.get_mut(number) else { return counted };
        let outcome = open.ballot.vote(server, reply, counts, &mut counted.follows);
        let (sent, is_over, servers) = (open.sent, open.ballot.is_over(), open.ballot.servers());
        let request = outcome.is_some().then(|| open.request.take()).flatten();
        let mut goes_on = false;
        if let (Some(reply), Some(request)) = (outcome, request) {
            if is_lost(asked.command, &reply) {
                self.let_go(asked.token);
                let ballot = Some(self.open_on(Command::Withdraw, None, sent, servers));
                let leave = Request::new(Name::clone(&asked.key), asked.token, Command::Withdraw);
                counted.next = Some(Request { ballot, ..leave });
            }
            match (asked.command, reply) {
                // A number that one server issued is known to a majority before it is used.
                (Command::Fence, Reply::Fenced(fence)) => {
                    let command = Command::RaiseFence { fence };
                    let ballot = Some(self.open_on(command, Some(request), sent, servers));
                    let again = Request::new(Name::clone(&asked.key), asked.token, command);
                    counted.next = Some(Request { ballot, ..again });
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
        self.remember(server, asked, &mut counted.follows);
        if is_over {
            self.close(number, asked);
        }
        counted
    }

    /// A server has answered to a repair, or will not.
    pub(super) fn repaired(&mut self, server: usize, token: Token, reply: &Reply) {
        self.late.repaired(token, server, reply);
    }

    /// Remembers where a token that holds may stand, and has it undone there once it lets go.
    fn remember(&mut self, server: usize, asked: &Request, follows: &mut Vec<(usize, FollowUp)>) {
        self.late.remember(asked.token, follows);
        if lets_go(asked.command) && self.late.let_go(asked.token, server) {
            follows.push((server, FollowUp::Abandon));
        }
    }

    fn close(&mut self, number: usize, asked: &Request) {
        if let Some(place) = self.open.get_mut(number) {
            *place = None;
            self.free.push(number);
        }
        if let Command::Renew { .. } = asked.command
            && let Some(numbers) = self.renewing.get_mut(&asked.token)
        {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.renewing.remove(&asked.token);
            }
        }
    }
}

/// Returns whether the token is done for once this is sent.
fn lets_go(command: Command) -> bool {
    command.is_release() || matches!(command, Command::Yield { .. })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::command::{Failure, FailureKind};
    use crate::token::TokenSource;

    const LEASE: Duration = Duration::from_secs(30);

    fn unknown() -> Reply {
        Reply::Unknown(Failure::new(FailureKind::Passing, "no answer"))
    }

    /// Has three servers vote on a command of `token`, and returns what that led to.
    fn ballot(
        ballots: &mut QuorumOperations,
        token: Token,
        command: Command,
        votes: [Reply; 3],
    ) -> Vec<CountedVote> {
        let request = Request::new("k".into(), token, command);
        let number = ballots.open(request, BootInstant::START, 3);
        let asked = Request { ballot: Some(number), ..Request::new("k".into(), token, command) };
        let votes = votes.into_iter().enumerate();
        votes.map(|(server, reply)| ballots.vote(server, &asked, reply, true)).collect()
    }

    #[test]
    fn a_number_is_used_again_once_every_server_has_voted() {
        let (mut ballots, tokens) = (QuorumOperations::default(), TokenSource::of_process(1));
        for _ in 0..3 {
            let votes = [Reply::Owner, Reply::Owner, Reply::Owner];
            let counted = ballot(&mut ballots, tokens.next(), Command::Acquire { lease: LEASE }, votes);

            assert!(counted[1].outcome.is_some() && !counted[1].is_over && counted[2].is_over);
        }
        assert_eq!(ballots.open.len(), 1);
    }

    #[test]
    fn a_fencing_token_is_known_to_a_majority_before_it_is_told() {
        let (mut ballots, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
        let votes = [Reply::Fenced(7), Reply::Fenced(9), Reply::NotOwner];

        let mut counted = ballot(&mut ballots, token, Command::Fence, votes);

        assert!(counted.iter().all(|counted| counted.outcome.is_none() && !counted.is_over));
        let next = counted[1].next.take().expect("a majority has issued");
        assert_eq!(next.command, Command::RaiseFence { fence: 9 });
        assert!(ballots.vote(0, &next, Reply::Fenced(9), true).outcome.is_none());
        let told = ballots.vote(1, &next, Reply::Fenced(12), true).outcome.expect("a majority knows it");
        assert!(matches!((told.request.command, told.reply), (Command::Fence, Reply::Fenced(9))));
        assert!(ballots.vote(2, &next, unknown(), true).is_over);
    }

    #[test]
    fn what_an_unanswered_acquire_may_have_left_is_undone_when_the_lock_is_let_go_of() {
        let (mut ballots, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
        let acquire = Command::Acquire { lease: LEASE };
        let acquired = ballot(&mut ballots, token, acquire, [Reply::Owner, Reply::Owner, unknown()]);
        assert_eq!(acquired[2].follows, [(2, FollowUp::Unsure)]);

        let votes = [Reply::Owner, Reply::Owner, Reply::NotOwner];
        let released = ballot(&mut ballots, token, Command::Release, votes);

        assert_eq!(released[2].follows, [(2, FollowUp::Abandon)]);
        assert!(ballots.late.is_empty());
    }

    #[test]
    fn a_hold_that_a_majority_has_lost_leaves_all_servers() {
        let (mut ballots, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
        let votes = [Reply::NotOwner, Reply::Owner, Reply::NotOwner];

        let mut counted = ballot(&mut ballots, token, Command::Renew { lease: LEASE }, votes);

        assert!(counted[2].outcome.is_some() && counted[2].is_over);
        let leave = counted[2].next.take().expect("a majority has lost it");
        assert_eq!(leave.command, Command::Withdraw);
        for server in 0..3 {
            let counted = ballots.vote(server, &leave, Reply::NotOwner, true);
            assert!(counted.outcome.is_none() && !counted.is_over, "nobody asked for it");
        }
        assert!(ballots.open.iter().all(Option::is_none));
    }

    #[test]
    fn a_renewal_that_a_release_overtakes_puts_nothing_again() {
        let (mut ballots, token) = (QuorumOperations::default(), TokenSource::of_process(1).next());
        let renew = Command::Renew { lease: LEASE };
        let number = ballots.open(Request::new("k".into(), token, renew), BootInstant::START, 3);
        let asked = Request { ballot: Some(number), ..Request::new("k".into(), token, renew) };
        ballots.vote(0, &asked, Reply::NotOwner, true);

        ballots.open(Request::new("k".into(), token, Command::Release), BootInstant::START, 3);
        ballots.vote(1, &asked, Reply::Owner, true);
        let counted = ballots.vote(2, &asked, Reply::Owner, true);

        assert!(counted.outcome.is_some() && counted.follows.is_empty());
        assert!(ballots.renewing.is_empty());
    }
}
