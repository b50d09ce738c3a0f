//! Unit tests and property tests of the vote tally.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::protocol::command::EnqueueMode;
use crate::protocol::foreign_clients::FleetHold;
use crate::token::TokenSource;

const LEASE: Duration = Duration::from_secs(30);
const ACQUIRE: Command = Command::Acquire { lease: LEASE };
const RENEW: Command = Command::Renew { lease: LEASE };
const ENQUEUE: Command = Command::Enqueue { lease: LEASE, mode: EnqueueMode::Join };

fn failed(kind: FailureKind) -> Failure {
    Failure::new(kind, "unreachable")
}

fn unknown() -> Reply {
    Reply::Unknown(failed(FailureKind::Passing))
}

fn refused(kind: FailureKind) -> Reply {
    Reply::Refused(failed(kind))
}

/// Returns the reply to an enqueue if the key is held for `seconds` seconds, or free if 0.
fn held_for(seconds: u64) -> Reply {
    Reply::NotQueued { ttl: Some(Duration::from_secs(seconds)) }
}

/// The reply to an enqueue if the key has no TTL.
const HELD_FOREVER: Reply = Reply::NotQueued { ttl: None };

/// Adds the votes in order. Returns the outcome, the number of votes it took, and the follow-ups.
fn vote_all(command: Command, votes: &[Reply]) -> (Option<Reply>, usize, Vec<(usize, FollowUp)>) {
    let (mut tally, mut follows) = (VoteTally::new(command, votes.len()), Vec::new());
    let (mut outcome, mut decided_after) = (None, 0);
    for (server, reply) in votes.iter().enumerate() {
        let decided = tally.vote(server, reply.clone(), true, &mut follows);
        assert!(decided.is_none() || outcome.is_none(), "{votes:?} are decided twice");
        if decided.is_some() {
            (outcome, decided_after) = (decided, server + 1);
        }
    }
    assert!(tally.is_over());
    (outcome, decided_after, follows)
}

#[test]
fn a_majority_is_more_than_half() {
    assert_eq!([3, 4, 5, 6, 7].map(majority), [2, 3, 3, 4, 4]);
}

#[test]
fn a_lock_is_acquired_as_soon_as_a_majority_grants_it() {
    let (outcome, decided_after, follows) =
        vote_all(ACQUIRE, &[Reply::Owner, Reply::Owner, Reply::Contended]);

    assert!(matches!(outcome, Some(Reply::Owner)));
    assert_eq!((decided_after, follows), (2, vec![]));
}

#[test]
fn a_failed_acquire_is_withdrawn_where_it_may_hold() {
    let votes = [Reply::Owner, Reply::Contended, Reply::Contended, unknown(), Reply::Contended];

    let (outcome, decided_after, follows) = vote_all(ACQUIRE, &votes);

    assert!(matches!(outcome, Some(Reply::Contended)));
    assert_eq!((decided_after, follows), (4, vec![(0, FollowUp::Withdraw), (3, FollowUp::Orphan)]));
}

#[test]
fn a_late_grant_of_a_failed_acquire_is_withdrawn() {
    let (_, decided_after, follows) = vote_all(ACQUIRE, &[Reply::Contended, Reply::Contended, Reply::Owner]);

    assert_eq!((decided_after, follows), (2, vec![(2, FollowUp::Withdraw)]));
}

#[test]
fn a_missing_vote_leaves_an_acquired_server_unverified() {
    let (_, _, follows) = vote_all(ACQUIRE, &[Reply::Owner, Reply::Owner, unknown()]);

    assert_eq!(follows, [(2, FollowUp::Unverified)]);
}

#[test]
fn a_server_that_refuses_an_acquired_token_does_not_have_it() {
    let (_, _, follows) = vote_all(ACQUIRE, &[refused(FailureKind::Passing), Reply::Owner, Reply::Owner]);

    assert_eq!(follows, [(0, FollowUp::Absent)]);
}

#[test]
fn too_few_replies_are_a_failure_and_not_contention() {
    let (outcome, decided_after, follows) =
        vote_all(ACQUIRE, &[refused(FailureKind::Passing), unknown(), Reply::Owner]);

    let Some(Reply::Refused(failure)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, FailureKind::Passing);
    assert!(failure.reason.starts_with("a quorum needs 2 of 3 servers"), "{}", failure.reason);
    assert_eq!((decided_after, follows), (2, vec![(1, FollowUp::Orphan), (2, FollowUp::Withdraw)]));
}

/// The caller tries once more if a connection was lost.
#[test]
fn failure_of_a_majority_says_whether_a_connection_was_lost() {
    let lost = || Reply::Unknown(failed(FailureKind::Passing).with_connection_lost());
    for (votes, is_lost) in
        [([Reply::Owner, unknown(), unknown()], false), ([Reply::Owner, unknown(), lost()], true)]
    {
        let (outcome, ..) = vote_all(ACQUIRE, &votes);
        let Some(Reply::Refused(failure)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(failure.connection_lost, is_lost);
    }
}

#[test]
fn a_lasting_failure_needs_enough_servers_to_block_a_majority() {
    let lasting = refused(FailureKind::Lasting);
    let (two, _, _) = vote_all(ACQUIRE, &[lasting.clone(), Reply::Owner, lasting.clone()]);
    let (one, _, _) = vote_all(ACQUIRE, &[lasting, Reply::Owner, unknown()]);

    assert!(matches!(two, Some(Reply::Refused(failure)) if failure.kind == FailureKind::Lasting));
    assert!(matches!(one, Some(Reply::Refused(failure)) if failure.kind == FailureKind::Passing));
}

#[test]
fn the_grant_of_a_restarted_server_does_not_count() {
    let (mut tally, mut follows) = (VoteTally::new(ACQUIRE, 3), Vec::new());

    assert!(tally.vote(0, Reply::Owner, true, &mut follows).is_none());
    assert!(tally.vote(1, Reply::Owner, false, &mut follows).is_none());
    let outcome = tally.vote(2, Reply::Contended, true, &mut follows);

    assert!(matches!(outcome, Some(Reply::Contended)), "{outcome:?}");
    assert_eq!(follows, [(0, FollowUp::Withdraw), (1, FollowUp::Withdraw)]);
}

#[test]
fn a_renewal_repairs_missing_keys_only_while_it_owns_the_lock() {
    let (outcome, _, follows) = vote_all(RENEW, &[Reply::NotOwner, Reply::Owner, Reply::Owner]);
    assert!(matches!(outcome, Some(Reply::Owner)));
    assert_eq!(follows, [(0, FollowUp::Repair(LEASE))]);

    let set_ttl = Command::SetTtl { ttl: LEASE * 9 };
    let (_, _, follows) = vote_all(set_ttl, &[Reply::Owner, Reply::Owner, Reply::NotOwner]);
    assert_eq!(follows, [(2, FollowUp::Repair(LEASE * 9))], "the key of a retained hold");

    let (outcome, _, follows) = vote_all(RENEW, &[Reply::NotOwner, Reply::NotOwner, Reply::Owner]);
    assert!(matches!(outcome, Some(Reply::NotOwner)));
    assert_eq!(follows, []);
    assert!(is_lost(RENEW, &Reply::NotOwner) && !is_lost(Command::RELEASE, &Reply::NotOwner));
}

#[test]
fn a_released_lock_is_not_repaired() {
    let (mut tally, mut follows) = (VoteTally::new(RENEW, 3), Vec::new());
    tally.vote(0, Reply::Owner, true, &mut follows);
    tally.mark_superseded();

    tally.vote(1, Reply::Owner, true, &mut follows);
    tally.vote(2, Reply::NotOwner, true, &mut follows);

    assert_eq!(follows, []);
}

#[test]
fn a_renewal_without_a_majority_either_way_is_unknown() {
    let (outcome, decided_after, _) = vote_all(RENEW, &[Reply::Owner, Reply::NotOwner, unknown()]);

    assert!(matches!(outcome, Some(Reply::Unknown(_))));
    assert_eq!(decided_after, 3);
}

#[test]
fn an_enqueue_returns_when_a_majority_will_be_free() {
    let (free, decided_after, _) = vote_all(ENQUEUE, &[held_for(0), held_for(9), held_for(0)]);
    let (kept, _, _) = vote_all(ENQUEUE, &[held_for(9), held_for(3), held_for(5)]);

    assert!(matches!(free, Some(Reply::NotQueued { ttl: Some(Duration::ZERO) })));
    assert_eq!(decided_after, 3);
    let Some(Reply::NotQueued { ttl: Some(ttl) }) = kept else { panic!("{kept:?}") };
    assert!(ttl >= Duration::from_secs(5), "{ttl:?}");
}

#[test]
fn a_fencing_token_is_the_greatest_of_a_majority() {
    let (outcome, decided_after, _) =
        vote_all(Command::Fence, &[Reply::Fenced(7), Reply::NotOwner, Reply::Fenced(9)]);

    assert!(matches!(outcome, Some(Reply::Fenced(9))));
    assert_eq!(decided_after, 3);
}

#[test]
fn inspect_returns_the_holder_on_a_majority() {
    let info = |process, seconds| {
        let holder = Some(TokenSource::of_process(process).process());
        Reply::Info(Some(RecordInfo {
            holder,
            waiters: 0,
            ttl: Some(Duration::from_secs(seconds)),
            fence: None,
        }))
    };

    let (held_by_one, _, _) = vote_all(Command::Inspect, &[info(1, 9), info(2, 9), info(1, 5)]);
    let (split, _, _) = vote_all(Command::Inspect, &[info(1, 9), info(2, 9), Reply::Info(None)]);

    let Some(Reply::Info(Some(seen))) = held_by_one else { panic!("{held_by_one:?}") };
    assert_eq!(seen.holder, Some(TokenSource::of_process(1).process()));
    assert_eq!(seen.ttl, Some(Duration::from_secs(5)));
    assert!(matches!(split, Some(Reply::Info(None))));
}

/// A server outside the majority that issued the token may have a higher one.
#[test]
fn inspect_returns_the_fencing_token_of_a_majority() {
    let holder = Some(TokenSource::of_process(1).process());
    let info = |fence| Reply::Info(Some(RecordInfo { holder, waiters: 0, ttl: None, fence }));
    let seven = || info(Some(7));
    for (votes, wanted, expected) in [
        ([seven(), seven(), info(Some(9))], Some(7), 2),
        ([seven(), info(Some(9)), seven()], Some(7), 3),
        ([info(None), info(None), seven()], None, 2),
        ([seven(), info(Some(9)), unknown()], None, 3),
        ([seven(), info(Some(9)), info(None)], None, 3),
    ] {
        let (outcome, decided_after, _) = vote_all(Command::Inspect, &votes);

        let Some(Reply::Info(Some(found))) = outcome else { panic!("{outcome:?}") };
        assert_eq!((found.fence, decided_after), (wanted, expected), "{votes:?}");
    }
}

#[test]
fn one_confirmation_proves_a_release() {
    let (outcome, _, follows) = vote_all(Command::RELEASE, &[Reply::Owner, Reply::NotOwner, unknown()]);

    assert!(matches!(outcome, Some(Reply::Owner)));
    assert_eq!(follows, [(2, FollowUp::Orphan)]);
}

/// Adds votes in order, each with a flag that says whether a grant counts, and returns the outcome.
fn outcome_of(command: Command, votes: &[(Reply, bool)]) -> Option<Reply> {
    let mut tally = VoteTally::new(command, votes.len());
    let vote = |(server, (reply, counts)): (usize, &(Reply, bool))| {
        tally.vote(server, reply.clone(), *counts, &mut Vec::new())
    };
    votes.iter().enumerate().find_map(vote)
}

const TRUSTED: bool = true;
const RESTARTED: bool = false;

#[test]
fn a_tally_is_over_when_every_server_has_voted() {
    let mut tally = VoteTally::new(ACQUIRE, 5);
    assert_eq!(tally.servers(), 5);

    for server in 0..5 {
        assert!(!tally.is_over(), "{server} servers have voted");
        tally.vote(server, Reply::Owner, true, &mut Vec::new());
    }

    assert!(tally.is_over());
    assert_eq!(tally.servers(), 5);
}

#[test]
fn the_ttl_is_that_of_the_last_server_of_a_majority() {
    let cases: [(&[Reply], Option<u64>); 5] = [
        (&[held_for(0), held_for(5), held_for(9)], Some(5)),
        (&[held_for(0), held_for(9), held_for(5)], Some(5)),
        (&[held_for(0), held_for(0), held_for(7), held_for(3), held_for(9)], Some(3)),
        (&[held_for(0), HELD_FOREVER, held_for(5)], Some(5)),
        (&[HELD_FOREVER, held_for(5), HELD_FOREVER], None),
    ];
    for (votes, seconds) in cases {
        let (outcome, ..) = vote_all(ENQUEUE, votes);

        let Some(Reply::NotQueued { ttl }) = outcome else { panic!("{votes:?}: {outcome:?}") };
        assert_eq!(ttl, seconds.map(Duration::from_secs), "{votes:?}");
    }
}

#[test]
fn an_enqueue_with_too_few_replies_is_refused() {
    let (outcome, decided_after, _) =
        vote_all(ENQUEUE, &[unknown(), refused(FailureKind::Passing), held_for(9)]);

    assert!(matches!(outcome, Some(Reply::Refused(_))), "{outcome:?}");
    assert_eq!(decided_after, 2);
}

#[test]
fn a_restarted_server_may_report_a_held_key_but_no_free_one() {
    let free =
        outcome_of(ENQUEUE, &[(held_for(0), RESTARTED), (held_for(0), RESTARTED), (held_for(0), TRUSTED)]);
    let taken =
        outcome_of(ENQUEUE, &[(held_for(9), RESTARTED), (held_for(9), RESTARTED), (held_for(0), TRUSTED)]);

    assert!(matches!(free, Some(Reply::Refused(_))), "{free:?}");
    let Some(Reply::NotQueued { ttl }) = taken else { panic!("{taken:?}") };
    assert_eq!(ttl, Some(Duration::from_secs(9)));
}

#[test]
fn a_yield_needs_a_majority_and_waits_for_a_receiver() {
    let next = TokenSource::of_process(1).next();
    let yield_command = Command::Yield { next, fleet_hold: FleetHold::UNKNOWN };
    let cases = [
        ([Reply::NotOwner, Reply::NotOwner, held_for(1)], None, 2),
        ([Reply::NotOwner, held_for(1), Reply::NotOwner], Some(1), 2),
        ([unknown(), held_for(1), Reply::NotOwner], Some(1), 3),
        ([Reply::NotOwner, refused(FailureKind::Passing), Reply::NotOwner], None, 3),
    ];
    for (votes, reserved, decided) in cases {
        let (outcome, decided_after, _) = vote_all(yield_command, &votes);

        let given = match outcome {
            Some(Reply::NotQueued { ttl }) => ttl,
            Some(Reply::NotOwner) => None,
            _ => panic!("{votes:?}: {outcome:?}"),
        };
        assert_eq!((given, decided_after), (reserved.map(Duration::from_secs), decided), "{votes:?}");
    }
}

#[test]
fn a_yield_with_too_few_replies_is_withdrawn() {
    let next = TokenSource::of_process(1).next();
    let yield_command = Command::Yield { next, fleet_hold: FleetHold::UNKNOWN };

    let (outcome, decided_after, follows) = vote_all(yield_command, &[unknown(), unknown(), Reply::NotOwner]);

    assert!(matches!(outcome, Some(Reply::Refused(_))), "{outcome:?}");
    assert_eq!((decided_after, follows), (2, vec![(0, FollowUp::Orphan), (1, FollowUp::Orphan)]));
}

#[test]
fn inspect_of_a_hold_without_a_ttl_returns_no_ttl() {
    let info = |ttl| {
        let holder = Some(TokenSource::of_process(1).process());
        Reply::Info(Some(RecordInfo { holder, waiters: 0, ttl, fence: None }))
    };
    let nine = Some(Duration::from_secs(9));
    for (votes, wanted) in [([None, None], None), ([None, nine], nine)] {
        let (outcome, ..) = vote_all(Command::Inspect, &[info(votes[0]), info(votes[1]), Reply::Info(None)]);

        let Some(Reply::Info(Some(seen))) = outcome else { panic!("{outcome:?}") };
        assert_eq!(seen.ttl, wanted, "{votes:?}");
    }
}

#[test]
fn a_lasting_failure_of_two_of_five_servers_may_pass() {
    let (lasting, passing) = (refused(FailureKind::Lasting), refused(FailureKind::Passing));
    for (third, kind) in [(passing, FailureKind::Passing), (lasting.clone(), FailureKind::Lasting)] {
        let votes = [lasting.clone(), lasting.clone(), third, Reply::Owner, Reply::Owner];

        let (outcome, decided_after, _) = vote_all(ACQUIRE, &votes);

        let Some(Reply::Refused(failure)) = outcome else { panic!("{votes:?}: {outcome:?}") };
        assert_eq!((failure.kind, decided_after), (kind, 3));
    }
}

#[test]
fn a_failure_states_why_there_is_no_majority() {
    let restarted = [(Reply::Owner, TRUSTED), (Reply::Owner, RESTARTED), (Reply::Owner, RESTARTED)];
    let unreachable = [(Reply::Owner, RESTARTED), (unknown(), TRUSTED), (Reply::Owner, TRUSTED)];
    let split = [
        (Reply::Owner, TRUSTED),
        (Reply::NotOwner, TRUSTED),
        (Reply::Owner, TRUSTED),
        (Reply::NotOwner, TRUSTED),
    ];
    let restarts = "2 of 3 servers: 2 restarted less than a lease ago and may have lost a valid hold";
    let cases = [
        (ACQUIRE, &restarted[..], restarts),
        (ACQUIRE, &unreachable[..], "2 of 3 servers: unreachable"),
        (RENEW, &split[..], "3 of 4 servers: the servers disagree"),
    ];
    for (command, votes, why) in cases {
        let outcome = outcome_of(command, votes);

        let Some(Reply::Refused(failure) | Reply::Unknown(failure)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(&*failure.reason, format!("a quorum needs {why}"));
        assert_eq!(failure.kind, FailureKind::Passing);
    }
}

#[test]
fn a_foreign_value_is_a_loss_and_a_missing_reply_is_not() {
    let (foreign, decided_after, _) =
        vote_all(RENEW, &[refused(FailureKind::WrongKind), Reply::NotOwner, Reply::Owner]);
    assert!(matches!(foreign, Some(Reply::NotOwner)), "{foreign:?}");
    assert_eq!(decided_after, 2);

    let (unreachable, decided_after, _) =
        vote_all(RENEW, &[refused(FailureKind::Passing), Reply::NotOwner, Reply::Owner]);
    assert!(matches!(unreachable, Some(Reply::Unknown(_))), "{unreachable:?}");
    assert_eq!(decided_after, 3);
}

fn any_reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        4 => Just(Reply::Owner),
        3 => Just(Reply::Contended),
        1 => Just(unknown()),
        1 => Just(refused(FailureKind::Passing)),
        1 => Just(refused(FailureKind::WrongKind)),
    ]
}

#[test]
fn verify_repairs_no_key() {
    let (mut tally, mut follows) = (VoteTally::new(Command::Verify, 3), Vec::new());

    for (server, reply) in [Reply::NotOwner, Reply::Owner, Reply::Owner].into_iter().enumerate() {
        tally.vote(server, reply, true, &mut follows);
    }

    assert!(follows.is_empty(), "{follows:?}");
}

proptest! {
    /// Each server grants the lock to the request that it receives first. Whichever replies are
    /// lost or late, at most one token acquires the lock.
    #[test]
    fn no_two_tokens_are_granted_one_lock(
        receives_first in prop::collection::vec(0..3_usize, 3..=7),
        lost in prop::collection::vec((any::<bool>(), any::<bool>()), 7),
        order in prop::collection::vec(any::<prop::sample::Index>(), 14),
    ) {
        let servers = receives_first.len();
        let mut tallies = [VoteTally::new(ACQUIRE, servers), VoteTally::new(ACQUIRE, servers)];
        let mut granted = [false; 2];
        let mut left: Vec<_> = (0..servers).flat_map(|server| [(server, 0), (server, 1)]).collect();
        let mut order = order.iter();
        while !left.is_empty() {
            let at = order.next().map_or(0, |index| index.index(left.len()));
            let (server, token) = left.swap_remove(at);
            let reply_lost = if token == 0 { lost[server].0 } else { lost[server].1 };
            let reply = if reply_lost {
                unknown()
            } else if receives_first[server] == token {
                Reply::Owner
            } else {
                Reply::Contended
            };
            let outcome = tallies[token].vote(server, reply, true, &mut Vec::new());
            granted[token] |= matches!(outcome, Some(Reply::Owner));
        }
        prop_assert!(!(granted[0] && granted[1]), "{receives_first:?}");
    }

    /// For any replies in any order there is one outcome, and each grant of a failed attempt is
    /// withdrawn exactly once.
    #[test]
    fn every_vote_has_one_outcome_and_cleans_up(
        votes in prop::collection::vec((any_reply(), any::<bool>()), 3..=7),
    ) {
        let (mut tally, mut follows) = (VoteTally::new(ACQUIRE, votes.len()), Vec::new());
        let mut outcomes = Vec::new();
        for (server, (reply, counts)) in votes.iter().enumerate() {
            outcomes.extend(tally.vote(server, reply.clone(), *counts, &mut follows));
        }

        prop_assert_eq!(outcomes.len(), 1);
        let granted = matches!(outcomes[0], Reply::Owner);
        let counted = votes.iter().filter(|(reply, counts)| *counts && matches!(reply, Reply::Owner)).count();
        prop_assert_eq!(granted, counted >= majority(votes.len()));
        for (server, (reply, _)) in votes.iter().enumerate() {
            let follow: Vec<_> = follows.iter().filter(|(of, _)| *of == server).map(|(_, follow)| *follow).collect();
            let wanted = match reply {
                Reply::Owner if !granted => vec![FollowUp::Withdraw],
                Reply::Unknown(_) if granted => vec![FollowUp::Unverified],
                Reply::Unknown(_) => vec![FollowUp::Orphan],
                Reply::Refused(_) if granted => vec![FollowUp::Absent],
                _ => vec![],
            };
            prop_assert_eq!(follow, wanted, "{:?}", reply);
        }
    }
}
