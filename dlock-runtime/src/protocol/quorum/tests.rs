//! Single ballots, and what must hold of any.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::token::TokenSource;

const LEASE: Duration = Duration::from_secs(30);
const ACQUIRE: Command = Command::Acquire { lease: LEASE };
const RENEW: Command = Command::Renew { lease: LEASE };

fn failed(kind: FailureKind) -> Failure {
    Failure::new(kind, "away")
}

fn unknown() -> Reply {
    Reply::Unknown(failed(FailureKind::Passing))
}

fn refused(kind: FailureKind) -> Reply {
    Reply::Refused(failed(kind))
}

/// Lets the servers vote in their order, and returns the outcome, how many votes it took, and what follows.
fn held(command: Command, votes: &[Reply]) -> (Option<Reply>, usize, Vec<(usize, Follow)>) {
    let (mut ballot, mut follows) = (Ballot::new(command, votes.len()), Vec::new());
    let (mut outcome, mut after) = (None, 0);
    for (server, reply) in votes.iter().enumerate() {
        let decided = ballot.vote(server, reply.clone(), true, &mut follows);
        assert!(decided.is_none() || outcome.is_none(), "{votes:?} are decided twice");
        if decided.is_some() {
            (outcome, after) = (decided, server + 1);
        }
    }
    assert!(ballot.is_over());
    (outcome, after, follows)
}

#[test]
fn a_majority_is_more_than_half() {
    assert_eq!([3, 4, 5, 6, 7].map(majority), [2, 3, 3, 4, 4]);
}

#[test]
fn a_lock_is_ours_as_soon_as_a_majority_says_so() {
    let (outcome, after, follows) = held(ACQUIRE, &[Reply::Ours, Reply::Ours, Reply::Taken]);

    assert!(matches!(outcome, Some(Reply::Ours)));
    assert_eq!((after, follows), (2, vec![]));
}

#[test]
fn a_lost_race_is_undone_wherever_it_was_won_or_may_have_been() {
    let votes = [Reply::Ours, Reply::Taken, Reply::Taken, unknown(), Reply::Taken];

    let (outcome, after, follows) = held(ACQUIRE, &votes);

    assert!(matches!(outcome, Some(Reply::Taken)));
    assert_eq!((after, follows), (4, vec![(0, Follow::Leave), (3, Follow::Abandon)]));
}

#[test]
fn a_late_yes_to_a_lost_race_is_undone() {
    let (_, after, follows) = held(ACQUIRE, &[Reply::Taken, Reply::Taken, Reply::Ours]);

    assert_eq!((after, follows), (2, vec![(2, Follow::Leave)]));
}

#[test]
fn a_late_silence_is_thought_of_when_the_lock_is_let_go_of() {
    let (_, _, follows) = held(ACQUIRE, &[Reply::Ours, Reply::Ours, unknown()]);

    assert_eq!(follows, [(2, Follow::Unsure)]);
}

#[test]
fn too_few_servers_are_a_failure_and_not_a_lost_race() {
    let (outcome, after, follows) = held(ACQUIRE, &[refused(FailureKind::Passing), unknown(), Reply::Ours]);

    let Some(Reply::Refused(failure)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, FailureKind::Passing);
    assert!(failure.reason.starts_with("a quorum needs 2 of 3 servers"), "{}", failure.reason);
    assert_eq!((after, follows), (2, vec![(1, Follow::Abandon), (2, Follow::Leave)]));
}

#[test]
fn what_lasts_is_said_only_where_no_majority_is_left_without_it() {
    let lasting = refused(FailureKind::Lasting);
    let (two, _, _) = held(ACQUIRE, &[lasting.clone(), Reply::Ours, lasting.clone()]);
    let (one, _, _) = held(ACQUIRE, &[lasting, Reply::Ours, unknown()]);

    assert!(matches!(two, Some(Reply::Refused(failure)) if failure.kind == FailureKind::Lasting));
    assert!(matches!(one, Some(Reply::Refused(failure)) if failure.kind == FailureKind::Passing));
}

#[test]
fn a_server_that_has_just_come_up_gives_no_yes_that_counts_and_is_undone_with_the_others() {
    let (mut ballot, mut follows) = (Ballot::new(ACQUIRE, 3), Vec::new());

    assert!(ballot.vote(0, Reply::Ours, true, &mut follows).is_none());
    assert!(ballot.vote(1, Reply::Ours, false, &mut follows).is_none());
    let outcome = ballot.vote(2, Reply::Taken, true, &mut follows);

    assert!(matches!(outcome, Some(Reply::Taken)), "{outcome:?}");
    assert_eq!(follows, [(0, Follow::Leave), (1, Follow::Leave)]);
}

#[test]
fn a_renewal_puts_the_key_again_where_it_is_gone_and_only_while_the_lock_is_ours() {
    let (outcome, _, follows) = held(RENEW, &[Reply::NotOurs, Reply::Ours, Reply::Ours]);
    assert!(matches!(outcome, Some(Reply::Ours)));
    assert_eq!(follows, [(0, Follow::Repair(LEASE))]);

    let (outcome, _, follows) = held(RENEW, &[Reply::NotOurs, Reply::NotOurs, Reply::Ours]);
    assert!(matches!(outcome, Some(Reply::NotOurs)));
    assert_eq!(follows, []);
    assert!(is_lost(RENEW, &Reply::NotOurs) && !is_lost(Command::Release, &Reply::NotOurs));
}

#[test]
fn nothing_is_put_again_after_the_lock_is_let_go_of() {
    let (mut ballot, mut follows) = (Ballot::new(RENEW, 3), Vec::new());
    ballot.vote(0, Reply::Ours, true, &mut follows);
    ballot.let_go();

    ballot.vote(1, Reply::Ours, true, &mut follows);
    ballot.vote(2, Reply::NotOurs, true, &mut follows);

    assert_eq!(follows, []);
}

#[test]
fn a_renewal_without_a_majority_either_way_is_unknown() {
    let (outcome, after, _) = held(RENEW, &[Reply::Ours, Reply::NotOurs, unknown()]);

    assert!(matches!(outcome, Some(Reply::Unknown(_))));
    assert_eq!(after, 3);
}

#[test]
fn a_look_says_when_a_majority_will_be_free() {
    let taken = |seconds| Reply::NotQueued { ttl: Some(Duration::from_secs(seconds)) };
    let look = Command::Enqueue { lease: LEASE, mode: crate::protocol::command::Enqueue::First };

    let (free, after, _) = held(look, &[taken(0), taken(9), taken(0)]);
    let (kept, _, _) = held(look, &[taken(9), taken(3), taken(5)]);

    assert!(matches!(free, Some(Reply::NotQueued { ttl: Some(Duration::ZERO) })));
    assert_eq!(after, 3);
    let Some(Reply::NotQueued { ttl: Some(ttl) }) = kept else { panic!("{kept:?}") };
    assert!(ttl >= Duration::from_secs(5), "{ttl:?}");
}

#[test]
fn a_fencing_token_is_the_greatest_of_a_majority() {
    let (outcome, after, _) = held(Command::Fence, &[Reply::Fenced(7), Reply::NotOurs, Reply::Fenced(9)]);

    assert!(matches!(outcome, Some(Reply::Fenced(9))));
    assert_eq!(after, 3);
}

#[test]
fn who_holds_is_whom_a_majority_sees() {
    let sight = |process, seconds| {
        let holder = Some(TokenSource::of_process(process).process());
        Reply::Seen(Some(Sight { holder, waiters: 0, ttl: Some(Duration::from_secs(seconds)) }))
    };

    let (held_by_one, _, _) = held(Command::Inspect, &[sight(1, 9), sight(2, 9), sight(1, 5)]);
    let (split, _, _) = held(Command::Inspect, &[sight(1, 9), sight(2, 9), Reply::Seen(None)]);

    let Some(Reply::Seen(Some(seen))) = held_by_one else { panic!("{held_by_one:?}") };
    assert_eq!(seen.holder, Some(TokenSource::of_process(1).process()));
    assert_eq!(seen.ttl, Some(Duration::from_secs(5)));
    assert!(matches!(split, Some(Reply::Seen(None))));
}

#[test]
fn a_release_that_one_confirms_was_one() {
    let (outcome, _, follows) = held(Command::Release, &[Reply::Ours, Reply::NotOurs, unknown()]);

    assert!(matches!(outcome, Some(Reply::Ours)));
    assert_eq!(follows, [(2, Follow::Abandon)]);
}

fn any_reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        4 => Just(Reply::Ours),
        3 => Just(Reply::Taken),
        1 => Just(unknown()),
        1 => Just(refused(FailureKind::Passing)),
        1 => Just(refused(FailureKind::WrongKind)),
    ]
}

#[test]
fn a_check_puts_no_key_again() {
    let check = Command::Renew { lease: crate::protocol::hint::NOTHING };
    let (mut ballot, mut follows) = (Ballot::new(check, 3), Vec::new());

    for (server, reply) in [Reply::NotOurs, Reply::Ours, Reply::Ours].into_iter().enumerate() {
        ballot.vote(server, reply, true, &mut follows);
    }

    assert!(follows.is_empty(), "{follows:?}");
}

proptest! {
    /// Each server gives the lock to whom it hears first, if to anybody; whatever else is lost or late, one of the two loses.
    #[test]
    fn no_two_tokens_are_granted_one_lock(
        heard_first in prop::collection::vec(0..3_usize, 3..=7),
        lost in prop::collection::vec((any::<bool>(), any::<bool>()), 7),
        order in prop::collection::vec(any::<prop::sample::Index>(), 14),
    ) {
        let servers = heard_first.len();
        let mut ballots = [Ballot::new(ACQUIRE, servers), Ballot::new(ACQUIRE, servers)];
        let mut granted = [false; 2];
        let mut left: Vec<_> = (0..servers).flat_map(|server| [(server, 0), (server, 1)]).collect();
        let mut order = order.iter();
        while !left.is_empty() {
            let at = order.next().map_or(0, |index| index.index(left.len()));
            let (server, token) = left.swap_remove(at);
            let silent = if token == 0 { lost[server].0 } else { lost[server].1 };
            let reply = if silent {
                unknown()
            } else if heard_first[server] == token {
                Reply::Ours
            } else {
                Reply::Taken
            };
            let outcome = ballots[token].vote(server, reply, true, &mut Vec::new());
            granted[token] |= matches!(outcome, Some(Reply::Ours));
        }
        prop_assert!(!(granted[0] && granted[1]), "{heard_first:?}");
    }

    /// Whatever the servers say, in whatever order: there is one outcome, and what a failed attempt took is undone exactly once.
    #[test]
    fn every_ballot_has_one_outcome_and_leaves_nothing(
        votes in prop::collection::vec((any_reply(), any::<bool>()), 3..=7),
    ) {
        let (mut ballot, mut follows) = (Ballot::new(ACQUIRE, votes.len()), Vec::new());
        let mut outcomes = Vec::new();
        for (server, (reply, counts)) in votes.iter().enumerate() {
            outcomes.extend(ballot.vote(server, reply.clone(), *counts, &mut follows));
        }

        prop_assert_eq!(outcomes.len(), 1);
        let granted = matches!(outcomes[0], Reply::Ours);
        let counted = votes.iter().filter(|(reply, counts)| *counts && matches!(reply, Reply::Ours)).count();
        prop_assert_eq!(granted, counted >= majority(votes.len()));
        for (server, (reply, _)) in votes.iter().enumerate() {
            let follow: Vec<_> = follows.iter().filter(|(of, _)| *of == server).map(|(_, follow)| *follow).collect();
            let wanted = match reply {
                Reply::Ours if !granted => vec![Follow::Leave],
                Reply::Unknown(_) if granted => vec![Follow::Unsure],
                Reply::Unknown(_) => vec![Follow::Abandon],
                _ => vec![],
            };
            prop_assert_eq!(follow, wanted, "{:?}", reply);
        }
    }
}
