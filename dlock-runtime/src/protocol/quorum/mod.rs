//! The outcome of one command on several independent servers (Redlock).
//!
//! A command goes to all servers at once, and each reply is a vote. A token owns the lock if a
//! majority of the servers says so. Any two majorities have a server in common, and no server
//! grants the lock to two tokens. The receiver of the outcome counts the lease from before the
//! first request was sent, with the same margin as for one server.
//!
//! ```text
//!            majority   otherwise
//!  acquire   held       the token is withdrawn from every server that granted the lock or may have
//!  renew     extended   the hold is lost, or the outcome is unknown
//! ```
//!
//! If a renewal succeeds but the key is missing on a server, the key is repaired there, and so is
//! that of a retained hold when its time to live is set. A repair never overwrites a value.
//!
//! The outcome is known as soon as the missing votes cannot change it. A later vote may still
//! require a follow-up at its server.
//!
//! See also `backend/redis/topology/quorum`, which sends the commands.

pub(crate) mod pending_repairs;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::protocol::command::{Command, Failure, FailureKind, RecordInfo, Reply};

/// The votes of the servers on one command.
#[derive(Clone, Debug)]
pub(crate) struct VoteTally {
    command: Command,
    /// By server.
    votes: Vec<Option<Vote>>,
    outcome: Option<QuorumOutcome>,
    /// Whether a later command of the token decides about its key: it is released, or kept for
    /// another time. So this one must not repair it.
    superseded: bool,
}

/// The vote of one server.
#[derive(Clone, Debug)]
struct Vote {
    reply: Reply,
    /// Whether a grant counts. A server that restarted recently may have lost a valid hold.
    counts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuorumOutcome {
    Owner,
    Other,
}

/// An action at one server that follows from its vote and the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowUp {
    /// The server granted a lock that the token does not own: withdraw the token.
    Withdraw,
    /// The server may have a token that does not own the lock: withdraw it until the server
    /// confirms.
    Orphan,
    /// The token owns the lock, and may be in the record of this server. The release must consider
    /// that.
    Unverified,
    /// The token owns the lock, but not on this server, which did not run the acquire. A release
    /// that fails here leaves nothing.
    Absent,
    /// The token owns the lock, but its key is missing here: create the key with this time to live,
    /// unless another value exists.
    Repair(Duration),
}

impl VoteTally {
    /// Starts the vote of `servers` servers on `command`.
    pub(crate) fn new(command: Command, servers: usize) -> Self {
        Self { command, votes: vec![None; servers], outcome: None, superseded: false }
    }

    /// Records that a later command decides about the key while votes are missing.
    pub(crate) fn mark_superseded(&mut self) {
        self.superseded = true;
    }

    pub(crate) fn servers(&self) -> usize {
        self.votes.len()
    }

    /// Returns `true` if every server has voted.
    pub(crate) fn is_over(&self) -> bool {
        self.votes.iter().all(Option::is_some)
    }

    /// Adds the vote of a server, and returns the outcome once, as soon as it is known.
    ///
    /// `counts` is `false` if a grant by this server does not count. Actions that are necessary at
    /// the servers are added to `follows`.
    pub(crate) fn vote(
        &mut self,
        server: usize,
        reply: Reply,
        counts: bool,
        follows: &mut Vec<(usize, FollowUp)>,
    ) -> Option<Reply> {
        *self.votes.get_mut(server)? = Some(Vote { reply, counts });
        if self.outcome.is_some() {
            follows.extend(self.follow_up(server).map(|follow| (server, follow)));
            return None;
        }
        let outcome = self.outcome()?;
        let is_owner = matches!(outcome, Reply::Owner);
        self.outcome = Some(if is_owner { QuorumOutcome::Owner } else { QuorumOutcome::Other });
        for server in 0..self.votes.len() {
            follows.extend(self.follow_up(server).map(|follow| (server, follow)));
        }
        Some(outcome)
    }

    /// Returns the action at a server that follows from its vote and the outcome.
    fn follow_up(&self, server: usize) -> Option<FollowUp> {
        let vote = self.votes.get(server)?.as_ref()?;
        let is_owner = self.outcome? == QuorumOutcome::Owner;
        match (self.command, &vote.reply) {
            (Command::Acquire { .. }, Reply::Owner) if !is_owner => Some(FollowUp::Withdraw),
            (Command::Acquire { .. }, Reply::Unknown(_)) => {
                Some(if is_owner { FollowUp::Unverified } else { FollowUp::Orphan })
            }
            (Command::Acquire { .. }, Reply::Refused(_)) if is_owner => Some(FollowUp::Absent),
            (Command::Renew { lease: ttl } | Command::SetTtl { ttl }, Reply::NotOwner)
                if is_owner && !self.superseded =>
            {
                Some(FollowUp::Repair(ttl))
            }
            (command, Reply::Unknown(_) | Reply::Refused(_))
                if command.is_release() || matches!(command, Command::Yield { .. }) =>
            {
                Some(FollowUp::Orphan)
            }
            _ => None,
        }
    }

    /// Returns the outcome if the missing votes cannot change it.
    fn outcome(&self) -> Option<Reply> {
        match self.command {
            Command::Acquire { .. } => self.acquire_outcome(),
            Command::Enqueue { .. } => self.enqueue_outcome(),
            Command::Renew { .. } | Command::Verify | Command::SetTtl { .. } => {
                self.ownership_outcome(Reply::Unknown)
            }
            Command::Release { .. }
            | Command::ReleaseWithoutHandoff
            | Command::Withdraw
            | Command::ForceRelease => self.release_outcome(),
            Command::Yield { .. } => self.yield_outcome(),
            Command::Fence | Command::RaiseFence { .. } => self.fence_outcome(),
            Command::Inspect => self.inspect_outcome(),
            Command::Ping | Command::Call => self.ownership_outcome(Reply::Refused),
        }
    }

    fn acquire_outcome(&self) -> Option<Reply> {
        let granted = self.count(|vote| vote.counts && matches!(vote.reply, Reply::Owner));
        if granted >= self.majority() {
            return Some(Reply::Owner);
        }
        let useless = |vote: &Vote| vote.is_missing() || (!vote.counts && matches!(vote.reply, Reply::Owner));
        self.too_few(useless)
            .or_else(|| (granted + self.outstanding() < self.majority()).then_some(Reply::Contended))
    }

    /// Returns a TTL of zero if the key is free on a majority, and otherwise the time until it can
    /// be.
    fn enqueue_outcome(&self) -> Option<Reply> {
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
        let mut ttls: Vec<_> = self.votes().filter_map(ttl).map(|ttl| ttl.unwrap_or(Duration::MAX)).collect();
        ttls.sort_unstable();
        let last = ttls.get(self.majority() - 1).or(ttls.last()).copied().filter(|ttl| *ttl < Duration::MAX);
        Some(Reply::NotQueued { ttl: last })
    }

    /// Returns the reply of a majority, owner or not. `failed` wraps the failure if neither has
    /// one.
    fn ownership_outcome(&self, failed: fn(Failure) -> Reply) -> Option<Reply> {
        let (owner, not_owner) = (self.owner_votes(), self.not_owner_votes());
        if owner >= self.majority() {
            return Some(Reply::Owner);
        }
        if not_owner >= self.majority() {
            return Some(Reply::NotOwner);
        }
        let is_open = owner.max(not_owner) + self.outstanding() >= self.majority();
        (!is_open).then(|| failed(self.failure()))
    }

    /// Without a majority, one server that confirms the release suffices as proof that the token
    /// held.
    fn release_outcome(&self) -> Option<Reply> {
        if let Some(refused) = self.too_few(Vote::is_missing) {
            return Some(refused);
        }
        self.ownership_outcome(Reply::Unknown).map(|reply| match reply {
            Reply::Unknown(_) if self.owner_votes() > 0 => Reply::Owner,
            Reply::Unknown(_) => Reply::NotOwner,
            reply => reply,
        })
    }

    /// The lock is free in any case. If a server reports that another client received the release
    /// message, the outcome contains the time for which other clients may take the lock.
    fn yield_outcome(&self) -> Option<Reply> {
        if let Some(refused) = self.too_few(Vote::is_missing) {
            return Some(refused);
        }
        let replied = self.count(|vote| !vote.is_missing());
        let announced = self.votes().find(|vote| matches!(vote.reply, Reply::NotQueued { .. }));
        (replied >= self.majority()).then(|| announced.map_or(Reply::NotOwner, |vote| vote.reply.clone()))
    }

    /// Returns the greatest fencing token of a majority.
    fn fence_outcome(&self) -> Option<Reply> {
        let number = |vote: &Vote| match vote.reply {
            Reply::Fenced(number) => Some(number),
            _ => None,
        };
        let numbers = self.count(|vote| number(vote).is_some());
        if numbers >= self.majority() {
            return self.votes().filter_map(number).max().map(Reply::Fenced);
        }
        if self.not_owner_votes() >= self.majority() {
            return Some(Reply::NotOwner);
        }
        let is_open = numbers.max(self.not_owner_votes()) + self.outstanding() >= self.majority();
        (!is_open).then(|| Reply::Refused(self.failure()))
    }

    /// Returns the holder on a majority of servers, or no holder if the servers disagree.
    fn inspect_outcome(&self) -> Option<Reply> {
        if let Some(refused) = self.too_few(Vote::is_missing) {
            return Some(refused);
        }
        let holder = |vote: &Vote| match vote.reply {
            Reply::Info(seen) => Some(seen.map(|info| info.holder)),
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
                Reply::Info(Some(info)) => Some(info.ttl.unwrap_or(Duration::MAX)),
                _ => None,
            });
        let ttl = ttls.min().filter(|ttl| *ttl < Duration::MAX);
        // The servers outside the majority that issued a fencing token may have a higher one.
        let fence = |vote: &Vote| match vote.reply {
            Reply::Info(Some(info)) => Some(info.fence),
            _ => None,
        };
        let agreed = self.votes().filter_map(fence).find(|of_one| {
            let equal = self.count(|vote| fence(vote) == Some(*of_one));
            equal >= self.majority()
        });
        if seen.is_some() && agreed.is_none() && self.outstanding() > 0 {
            return None;
        }
        let fence = agreed.flatten();
        Some(Reply::Info(seen.map(|holder| RecordInfo { holder, waiters: 0, ttl, fence })))
    }

    /// Returns a failure if too few servers can contribute to a majority.
    fn too_few(&self, useless: impl Fn(&Vote) -> bool) -> Option<Reply> {
        let useful = self.votes.len() - self.count(useless);
        (useful < self.majority()).then(|| Reply::Refused(self.failure()))
    }

    /// Returns why there is no majority.
    ///
    /// A lasting failure counts only if so many servers report it that the others are no majority.
    /// Otherwise the failure may pass.
    fn failure(&self) -> Failure {
        let failures: Vec<_> = self
            .votes()
            .filter_map(|vote| match &vote.reply {
                Reply::Unknown(failure) | Reply::Refused(failure) => Some(failure),
                _ => None,
            })
            .collect();
        let (servers, majority) = (self.votes.len(), self.majority());
        for is_kind in [
            |kind: FailureKind| kind == FailureKind::WrongKind,
            |kind| kind == FailureKind::FencingCounter,
            |kind| matches!(kind, FailureKind::Lasting | FailureKind::Untrusted),
        ] {
            let mut alike = failures.iter().filter(|failure| is_kind(failure.kind));
            if alike.clone().count() > servers - majority
                && let Some(first) = alike.next()
            {
                return Failure::clone(first);
            }
        }
        let restarted = self.count(|vote| !vote.counts && !vote.is_missing());
        let why = match failures.first() {
            Some(failure) => failure.reason.to_string(),
            None if restarted > 0 => {
                format!("{restarted} restarted less than a lease ago and may have lost a valid hold")
            }
            None => "the servers disagree".to_owned(),
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

    fn owner_votes(&self) -> usize {
        self.count(|vote| matches!(vote.reply, Reply::Owner))
    }

    /// Counts the servers on which the token is not the owner. A foreign value proves that, too.
    fn not_owner_votes(&self) -> usize {
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
    /// Returns `true` if the server could not be reached, or did not reply.
    fn is_missing(&self) -> bool {
        matches!(self.reply, Reply::Unknown(_) | Reply::Refused(_))
    }
}

/// Returns `true` if the outcome of a command means that its hold is lost.
///
/// A minority of the servers may still have the token, and repairs may be in flight, so the token
/// must be withdrawn from all servers.
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

/// Returns the smallest number of servers such that any two groups of that size share a server.
pub(crate) const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}
