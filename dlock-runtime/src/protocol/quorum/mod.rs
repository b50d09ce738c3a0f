//! One command over several servers, none of which knows of the others: what their answers come to. (Redlock.)
//!
//! Every command is asked of all servers at once, and each answer is a vote. A lock is ours when a majority says so: any two
//! majorities have a server in common, and no server says it to two. The time of the hold is counted from before the first server
//! was asked, by whoever is told the outcome, with the same margin as for one server.
//!
//! ```text
//!              ours           taken, or too few can be asked
//!  acquire -----------> held      what was taken is undone on every server, as each answers or does not
//!  renew   -----------> goes on   where the key is gone our own live hold is put again, never over anything
//! ```
//!
//! An outcome is known as soon as the votes that are missing cannot change it. What a late vote says still has consequences.
//!
//! Not here: which servers there are and how they are asked (`backend/redis/servers/quorum`), undoing (`abandon`).

pub(crate) mod pending_repairs;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::protocol::command::{Command, Failure, FailureKind, RecordInfo, Reply};

/// The votes on one command.
#[derive(Clone, Debug)]
pub(crate) struct VoteTally {
    command: Command,
    /// By server.
    votes: Vec<Option<Vote>>,
    outcome: Option<QuorumOutcome>,
    /// Whether the lock was let go of since: nothing is put again.
    let_go: bool,
}

/// What one server says.
#[derive(Clone, Debug)]
struct Vote {
    reply: Reply,
    /// Whether its "yes" counts: one that came up a moment ago may have forgotten who holds.
    counts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuorumOutcome {
    Ours,
    Other,
}

/// What is to be done at one server once the outcome is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowUp {
    /// The token is to leave: it took what it does not get.
    Leave,
    /// The same, where the server did not say whether it did: it is told until that is proved.
    Abandon,
    /// The token holds, and may or may not stand there too. That is to be thought of when it lets go.
    Unsure,
    /// The key is gone there while the lock is ours: it is put again, for that long, if nothing stands there.
    Repair(Duration),
}

impl VoteTally {
    /// Opens the ballot on `command` over so many servers.
    pub(crate) fn new(command: Command, servers: usize) -> Self {
        Self { command, votes: vec![None; servers], outcome: None, let_go: false }
    }

    /// Notes that the lock is let go of while the ballot is open.
    pub(crate) fn let_go(&mut self) {
        self.let_go = true;
    }

    pub(crate) fn servers(&self) -> usize {
        self.votes.len()
    }

    /// Returns whether every server has voted.
    pub(crate) fn is_over(&self) -> bool {
        self.votes.iter().all(Option::is_some)
    }

    /// A server votes; its "yes" to who wants the lock `counts` or does not. Returns the outcome, once, when it is known; what is to be
    /// done at the servers is added to `follows`.
    pub(crate) fn vote(
        &mut self,
        server: usize,
        reply: Reply,
        counts: bool,
        follows: &mut Vec<(usize, FollowUp)>,
    ) -> Option<Reply> {
        *self.votes.get_mut(server)? = Some(Vote { reply, counts });
        if self.outcome.is_some() {
            follows.extend(self.follow(server).map(|follow| (server, follow)));
            return None;
        }
        let outcome = self.outcome()?;
        let ours = matches!(outcome, Reply::Owner);
        self.outcome = Some(if ours { QuorumOutcome::Ours } else { QuorumOutcome::Other });
        for server in 0..self.votes.len() {
            follows.extend(self.follow(server).map(|follow| (server, follow)));
        }
        Some(outcome)
    }

    /// Returns what follows at a server from its vote and the outcome.
    fn follow(&self, server: usize) -> Option<FollowUp> {
        let vote = self.votes.get(server)?.as_ref()?;
        let ours = self.outcome? == QuorumOutcome::Ours;
        match (self.command, &vote.reply) {
            (Command::Acquire { .. }, Reply::Owner) if !ours => Some(FollowUp::Leave),
            (Command::Acquire { .. }, Reply::Unknown(_)) => {
                Some(if ours { FollowUp::Unsure } else { FollowUp::Abandon })
            }
            (Command::Renew { lease }, Reply::NotOwner) if ours && !self.let_go => {
                Some(FollowUp::Repair(lease))
            }
            (command, Reply::Unknown(_) | Reply::Refused(_))
                if command.is_release() || matches!(command, Command::Yield { .. }) =>
            {
                Some(FollowUp::Abandon)
            }
            _ => None,
        }
    }

    /// Returns the outcome if the votes that are missing cannot change it.
    fn outcome(&self) -> Option<Reply> {
        match self.command {
            Command::Acquire { .. } => self.acquired(),
            Command::Enqueue { .. } => self.looked(),
            Command::Renew { .. } | Command::Verify | Command::SetTtl { .. } => {
                self.confirmed(Reply::Unknown)
            }
            Command::Release
            | Command::ReleaseWithFleetHold { .. }
            | Command::ReleaseWithoutHandoff
            | Command::Withdraw
            | Command::ForceRelease => self.freed(),
            Command::Yield { .. } => self.on_yielded(),
            Command::Fence | Command::RaiseFence { .. } => self.fenced(),
            Command::Inspect => self.seen(),
            Command::Ping => self.confirmed(Reply::Refused),
        }
    }

    fn acquired(&self) -> Option<Reply> {
        let ours = self.count(|vote| vote.counts && matches!(vote.reply, Reply::Owner));
        if ours >= self.majority() {
            return Some(Reply::Owner);
        }
        let useless = |vote: &Vote| vote.is_missing() || (!vote.counts && matches!(vote.reply, Reply::Owner));
        self.too_few(useless)
            .or_else(|| (ours + self.outstanding() < self.majority()).then_some(Reply::Contended))
    }

    /// A look: free where a majority is, else for as long as the servers that are in the way keep it.
    fn looked(&self) -> Option<Reply> {
        let ttl = |vote: &Vote| match vote.reply {
            Reply::NotQueued { ttl } => Some(ttl),
            _ => None,
        };
        let is_free = |vote: &Vote| ttl(vote) == Some(Some(Duration::ZERO));
        let free = self.count(|vote| vote.counts && is_free(vote));
        if free >= self.majority() {
            return Some(Reply::NotQueued { ttl: Some(Duration::ZERO) });
        }
        let useless = |vote: &Vote| vote.is_missing() || (!vote.counts && is_free(vote));
        if let Some(refused) = self.too_few(useless) {
            return Some(refused);
        }
        if free + self.outstanding() >= self.majority() {
            return None;
        }
        let mut kept: Vec<_> = self.votes().filter_map(ttl).map(|ttl| ttl.unwrap_or(Duration::MAX)).collect();
        kept.sort_unstable();
        let last = kept.get(self.majority() - 1).or(kept.last()).copied().filter(|ttl| *ttl < Duration::MAX);
        Some(Reply::NotQueued { ttl: last })
    }

    /// A yes or a no of the majority. `failed` says how it is told that there is neither.
    fn confirmed(&self, failed: fn(Failure) -> Reply) -> Option<Reply> {
        let (ours, not_ours) = (self.ours(), self.not_ours());
        if ours >= self.majority() {
            return Some(Reply::Owner);
        }
        if not_ours >= self.majority() {
            return Some(Reply::NotOwner);
        }
        let open = ours.max(not_ours) + self.outstanding() >= self.majority();
        (!open).then(|| failed(self.failure()))
    }

    /// Where nobody can say more, one who was told that it was ours is proof enough.
    fn freed(&self) -> Option<Reply> {
        if let Some(refused) = self.too_few(Vote::is_missing) {
            return Some(refused);
        }
        self.confirmed(Reply::Unknown).map(|reply| match reply {
            Reply::Unknown(_) if self.ours() > 0 => Reply::Owner,
            Reply::Unknown(_) => Reply::NotOwner,
            reply => reply,
        })
    }

    /// Freed either way; if somebody heard it, he is given his moment.
    fn on_yielded(&self) -> Option<Reply> {
        if let Some(refused) = self.too_few(Vote::is_missing) {
            return Some(refused);
        }
        let answered = self.count(|vote| !vote.is_missing());
        let heard = self.votes().find(|vote| matches!(vote.reply, Reply::NotQueued { .. }));
        (answered >= self.majority()).then(|| heard.map_or(Reply::NotOwner, |vote| vote.reply.clone()))
    }

    /// The greatest of the majority's numbers.
    fn fenced(&self) -> Option<Reply> {
        let number = |vote: &Vote| match vote.reply {
            Reply::Fenced(number) => Some(number),
            _ => None,
        };
        let numbers = self.count(|vote| number(vote).is_some());
        if numbers >= self.majority() {
            return self.votes().filter_map(number).max().map(Reply::Fenced);
        }
        if self.not_ours() >= self.majority() {
            return Some(Reply::NotOwner);
        }
        let open = numbers.max(self.not_ours()) + self.outstanding() >= self.majority();
        (!open).then(|| Reply::Refused(self.failure()))
    }

    /// What a majority sees; where they differ nobody holds, whatever stands on a few.
    fn seen(&self) -> Option<Reply> {
        if let Some(refused) = self.too_few(Vote::is_missing) {
            return Some(refused);
        }
        let holder = |vote: &Vote| match vote.reply {
            Reply::Info(seen) => Some(seen.map(|sight| sight.holder)),
            _ => None,
        };
        let most =
            self.votes().filter_map(holder).map(|seen| (self.count(|vote| holder(vote) == Some(seen)), seen));
        let (count, seen) = most.max_by_key(|(count, _)| *count)?;
        if count < self.majority() {
            return (count + self.outstanding() < self.majority()).then_some(Reply::Info(None));
        }
        let ttls =
            self.votes().filter(|vote| holder(vote) == Some(seen)).filter_map(|vote| match vote.reply {
                Reply::Info(Some(sight)) => Some(sight.ttl.unwrap_or(Duration::MAX)),
                _ => None,
            });
        let ttl = ttls.min().filter(|ttl| *ttl < Duration::MAX);
        Some(Reply::Info(seen.map(|holder| RecordInfo { holder, waiters: 0, ttl })))
    }

    /// Refuses if a majority cannot be had because of servers that are of no use.
    fn too_few(&self, useless: impl Fn(&Vote) -> bool) -> Option<Reply> {
        let useful = self.votes.len() - self.count(useless);
        (useful < self.majority()).then(|| Reply::Refused(self.failure()))
    }

    /// Why there is no majority: what so many say alike that no majority is left without them, or else that it may pass.
    fn failure(&self) -> Failure {
        let failures: Vec<_> = self
            .votes()
            .filter_map(|vote| match &vote.reply {
                Reply::Unknown(failure) | Reply::Refused(failure) => Some(failure),
                _ => None,
            })
            .collect();
        let (servers, majority) = (self.votes.len(), self.majority());
        for is_one in [
            |kind: FailureKind| kind == FailureKind::WrongKind,
            |kind| kind == FailureKind::FencingCounter,
            |kind| matches!(kind, FailureKind::Lasting | FailureKind::Untrusted),
        ] {
            let mut alike = failures.iter().filter(|failure| is_one(failure.kind));
            if alike.clone().count() > servers - majority
                && let Some(first) = alike.next()
            {
                return Failure::clone(first);
            }
        }
        let young = self.count(|vote| !vote.counts && !vote.is_missing());
        let why = match failures.first() {
            Some(failure) => failure.reason.to_string(),
            None if young > 0 => {
                format!("{young} came up less than a lease ago, and may have forgotten who holds")
            }
            None => "they are not of one mind".to_owned(),
        };
        let text = format!("a quorum needs {majority} of {servers} servers: {why}");
        let connection_lost = failures.iter().any(|failure| failure.connection_lost);
        Failure { connection_lost, ..Failure::new(FailureKind::Passing, text) }
    }

    fn votes(&self) -> impl Iterator<Item = &Vote> {
        self.votes.iter().flatten()
    }

    fn count(&self, is: impl Fn(&Vote) -> bool) -> usize {
        self.votes().filter(|vote| is(vote)).count()
    }

    fn ours(&self) -> usize {
        self.count(|vote| matches!(vote.reply, Reply::Owner))
    }

    /// Where something else stands, ours does not.
    fn not_ours(&self) -> usize {
        self.count(|vote| match &vote.reply {
            Reply::NotOwner => true,
            Reply::Refused(failure) => failure.kind == FailureKind::WrongKind,
            _ => false,
        })
    }

    fn outstanding(&self) -> usize {
        self.votes.iter().filter(|vote| vote.is_none()).count()
    }

    fn majority(&self) -> usize {
        majority(self.votes.len())
    }
}

impl Vote {
    /// Whether the server could not be asked, or did not answer.
    fn is_missing(&self) -> bool {
        matches!(self.reply, Reply::Unknown(_) | Reply::Refused(_))
    }
}

/// Returns whether an outcome says that a hold is lost. A few servers may still have it, and repairs may be on their way: the token is to
/// leave them all.
pub(crate) fn is_lost(command: Command, outcome: &Reply) -> bool {
    let of_holder = matches!(
        command,
        Command::Renew { .. }
            | Command::Verify
            | Command::SetTtl { .. }
            | Command::Fence
            | Command::RaiseFence { .. }
    );
    of_holder && matches!(outcome, Reply::NotOwner)
}

/// Returns how many of so many servers any two of which must have one in common.
pub(crate) const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}
