//! Single ballots, and what must hold of any.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::protocol::command::EnqueueMode;
use crate::protocol::foreign_clients::FleetHold;
use crate::token::TokenSource;

const LEASE: Duration = Duration::from_secs(30);
const ACQUIRE: Command = Command::Acquire { lease: LEASE };
const RENEW: Command = Command::Renew { lease: LEASE };
const LOOK: Command = Command::Enqueue { lease: LEASE, mode: EnqueueMode::Join };

fn failed(kind: FailureKind) -> Failure {
    Failure::new(kind, "away")
}

fn unknown() -> Reply {
    Reply::Unknown(failed(FailureKind::Passing))
}

fn refused(kind: FailureKind) -> Reply {
    Reply::Refused(failed(kind))
}

/// What a server says to a look where the key is kept for so many seconds: none where it is free.
fn kept(seconds: u64) -> Reply {
    Reply::NotQueued { ttl: Some(Duration::from_secs(seconds)) }
}

/// What a server says to a look where the key has no end.
const ENDLESS: Reply = Reply::NotQueued { ttl: None };

/// Lets the servers vote in their order, and returns the outcome, how many votes it took, and what follows.
fn held(command: Command, votes: &[Reply]) -> (Option<Reply>, usize, Vec<(usize, FollowUp)>) {
    let (mut ballot, mut follows) = (VoteTally::new(command, votes.len()), Vec::new());
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
    let (outcome, after, follows) = held(ACQUIRE, &[Reply::Owner, Reply::Owner, Reply::Contended]);

    assert!(matches!(outcome, Some(Reply::Owner)));
    assert_eq!((after, follows), (2, vec![]));
}

#[test]
fn a_lost_race_is_undone_wherever_it_was_won_or_may_have_been() {
    let votes = [Reply::Owner, Reply::Contended, Reply::Contended, unknown(), Reply::Contended];

    let (outcome, after, follows) = held(ACQUIRE, &votes);

    assert!(matches!(outcome, Some(Reply::Contended)));
    assert_eq!((after, follows), (4, vec![(0, FollowUp::Leave), (3, FollowUp::Abandon)]));
}

#[test]
fn a_late_yes_to_a_lost_race_is_undone() {
    let (_, after, follows) = held(ACQUIRE, &[Reply::Contended, Reply::Contended, Reply::Owner]);

    assert_eq!((after, follows), (2, vec![(2, FollowUp::Leave)]));
}

#[test]
fn a_late_silence_is_thought_of_when_the_lock_is_let_go_of() {
    let (_, _, follows) = held(ACQUIRE, &[Reply::Owner, Reply::Owner, unknown()]);

    assert_eq!(follows, [(2, FollowUp::Unsure)]);
}

#[test]
fn too_few_servers_are_a_failure_and_not_a_lost_race() {
    let (outcome, after, follows) = held(ACQUIRE, &[refused(FailureKind::Passing), unknown(), Reply::Owner]);

    let Some(Reply::Refused(failure)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, FailureKind::Passing);
    assert!(failure.reason.starts_with("a quorum needs 2 of 3 servers"), "{}", failure.reason);
    assert_eq!((after, follows), (2, vec![(1, FollowUp::Abandon), (2, FollowUp::Leave)]));
}

#[test]
fn what_lasts_is_said_only_where_no_majority_is_left_without_it() {
    let lasting = refused(FailureKind::Lasting);
    let (two, _, _) = held(ACQUIRE, &[lasting.clone(), Reply::Owner, lasting.clone()]);
    let (one, _, _) = held(ACQUIRE, &[lasting, Reply::Owner, unknown()]);

    assert!(matches!(two, Some(Reply::Refused(failure)) if failure.kind == FailureKind::Lasting));
    assert!(matches!(one, Some(Reply::Refused(failure)) if failure.kind == FailureKind::Passing));
}

#[test]
fn a_server_that_has_just_come_up_gives_no_yes_that_counts_and_is_undone_with_the_others() {
    let (mut ballot, mut follows) = (VoteTally::new(ACQUIRE, 3), Vec::new());

    assert!(ballot.vote(0, Reply::Owner, true, &mut follows).is_none());
    assert!(ballot.vote(1, Reply::Owner, false, &mut follows).is_none());
    let outcome = ballot.vote(2, Reply::Contended, true, &mut follows);

    assert!(matches!(outcome, Some(Reply::Contended)), "{outcome:?}");
    assert_eq!(follows, [(0, FollowUp::Leave), (1, FollowUp::Leave)]);
}

#[test]
fn a_renewal_puts_the_key_again_where_it_is_gone_and_only_while_the_lock_is_ours() {
    let (outcome, _, follows) = held(RENEW, &[Reply::NotOwner, Reply::Owner, Reply::Owner]);
    assert!(matches!(outcome, Some(Reply::Owner)));
    assert_eq!(follows, [(0, FollowUp::Repair(LEASE))]);

    let (outcome, _, follows) = held(RENEW, &[Reply::NotOwner, Reply::NotOwner, Reply::Owner]);
    assert!(matches!(outcome, Some(Reply::NotOwner)));
    assert_eq!(follows, []);
    assert!(is_lost(RENEW, &Reply::NotOwner) && !is_lost(Command::Release, &Reply::NotOwner));
}

#[test]
fn nothing_is_put_again_after_the_lock_is_let_go_of() {
    let (mut ballot, mut follows) = (VoteTally::new(RENEW, 3), Vec::new());
    ballot.vote(0, Reply::Owner, true, &mut follows);
    ballot.let_go();

    ballot.vote(1, Reply::Owner, true, &mut follows);
    ballot.vote(2, Reply::NotOwner, true, &mut follows);

    assert_eq!(follows, []);
}

#[test]
fn a_renewal_without_a_majority_either_way_is_unknown() {
    let (outcome, after, _) = held(RENEW, &[Reply::Owner, Reply::NotOwner, unknown()]);

    assert!(matches!(outcome, Some(Reply::Unknown(_))));
    assert_eq!(after, 3);
}

#[test]
fn a_look_says_when_a_majority_will_be_free() {
    let (free, after, _) = held(LOOK, &[kept(0), kept(9), kept(0)]);
    let (kept, _, _) = held(LOOK, &[kept(9), kept(3), kept(5)]);

    assert!(matches!(free, Some(Reply::NotQueued { ttl: Some(Duration::ZERO) })));
    assert_eq!(after, 3);
    let Some(Reply::NotQueued { ttl: Some(ttl) }) = kept else { panic!("{kept:?}") };
    assert!(ttl >= Duration::from_secs(5), "{ttl:?}");
}

#[test]
fn a_fencing_token_is_the_greatest_of_a_majority() {
    let (outcome, after, _) = held(Command::Fence, &[Reply::Fenced(7), Reply::NotOwner, Reply::Fenced(9)]);

    assert!(matches!(outcome, Some(Reply::Fenced(9))));
    assert_eq!(after, 3);
}

#[test]
fn who_holds_is_whom_a_majority_sees() {
    let sight = |process, seconds| {
        let holder = Some(TokenSource::of_process(process).process());
        Reply::Info(Some(RecordInfo { holder, waiters: 0, ttl: Some(Duration::from_secs(seconds)) }))
    };

    let (held_by_one, _, _) = held(Command::Inspect, &[sight(1, 9), sight(2, 9), sight(1, 5)]);
    let (split, _, _) = held(Command::Inspect, &[sight(1, 9), sight(2, 9), Reply::Info(None)]);

    let Some(Reply::Info(Some(seen))) = held_by_one else { panic!("{held_by_one:?}") };
    assert_eq!(seen.holder, Some(TokenSource::of_process(1).process()));
    assert_eq!(seen.ttl, Some(Duration::from_secs(5)));
    assert!(matches!(split, Some(Reply::Info(None))));
}

#[test]
fn a_release_that_one_confirms_was_one() {
    let (outcome, _, follows) = held(Command::Release, &[Reply::Owner, Reply::NotOwner, unknown()]);

    assert!(matches!(outcome, Some(Reply::Owner)));
    assert_eq!(follows, [(2, FollowUp::Abandon)]);
}

/// Lets the servers vote in their order, those that have just come up and those that have not, and returns the outcome.
fn outcome_of(command: Command, votes: &[(Reply, bool)]) -> Option<Reply> {
    let mut ballot = VoteTally::new(command, votes.len());
    let vote = |(server, (reply, counts)): (usize, &(Reply, bool))| {
        ballot.vote(server, reply.clone(), *counts, &mut Vec::new())
    };
    votes.iter().enumerate().find_map(vote)
}

const OLD: bool = true;
const YOUNG: bool = false;

#[test]
fn a_ballot_is_over_when_all_of_its_servers_have_voted_and_not_when_it_is_decided() {
    let mut ballot = VoteTally::new(ACQUIRE, 5);
    assert_eq!(ballot.servers(), 5);

    for server in 0..5 {
        assert!(!ballot.is_over(), "{server} have voted");
        ballot.vote(server, Reply::Owner, true, &mut Vec::new());
    }

    assert!(ballot.is_over());
    assert_eq!(ballot.servers(), 5);
}

#[test]
fn a_look_names_the_time_at_which_the_last_server_of_a_majority_is_free() {
    let cases: [(&[Reply], Option<u64>); 5] = [
        (&[kept(0), kept(5), kept(9)], Some(5)),
        (&[kept(0), kept(9), kept(5)], Some(5)),
        (&[kept(0), kept(0), kept(7), kept(3), kept(9)], Some(3)),
        (&[kept(0), ENDLESS, kept(5)], Some(5)),
        (&[ENDLESS, kept(5), ENDLESS], None),
    ];
    for (votes, seconds) in cases {
        let (outcome, ..) = held(LOOK, votes);

        let Some(Reply::NotQueued { ttl }) = outcome else { panic!("{votes:?}: {outcome:?}") };
        assert_eq!(ttl, seconds.map(Duration::from_secs), "{votes:?}");
    }
}

#[test]
fn a_look_that_too_few_servers_answer_says_nothing_of_the_key() {
    let (outcome, after, _) = held(LOOK, &[unknown(), refused(FailureKind::Passing), kept(9)]);

    assert!(matches!(outcome, Some(Reply::Refused(_))), "{outcome:?}");
    assert_eq!(after, 2);
}

#[test]
fn servers_that_have_just_come_up_are_believed_that_a_key_is_kept_and_not_that_it_is_free() {
    let free = outcome_of(LOOK, &[(kept(0), YOUNG), (kept(0), YOUNG), (kept(0), OLD)]);
    let taken = outcome_of(LOOK, &[(kept(9), YOUNG), (kept(9), YOUNG), (kept(0), OLD)]);

    assert!(matches!(free, Some(Reply::Refused(_))), "{free:?}");
    let Some(Reply::NotQueued { ttl }) = taken else { panic!("{taken:?}") };
    assert_eq!(ttl, Some(Duration::from_secs(9)));
}

#[test]
fn a_yield_is_done_when_a_majority_has_answered_and_waits_for_whoever_heard_it() {
    let next = TokenSource::of_process(1).next();
    let offer = Command::Yield { next, fleet_hold: FleetHold::UNKNOWN };
    let cases = [
        ([Reply::NotOwner, Reply::NotOwner, kept(1)], None, 2),
        ([Reply::NotOwner, kept(1), Reply::NotOwner], Some(1), 2),
        ([unknown(), kept(1), Reply::NotOwner], Some(1), 3),
        ([Reply::NotOwner, refused(FailureKind::Passing), Reply::NotOwner], None, 3),
    ];
    for (votes, moment, decided) in cases {
        let (outcome, after, _) = held(offer, &votes);

        let given = match outcome {
            Some(Reply::NotQueued { ttl }) => ttl,
            Some(Reply::NotOwner) => None,
            _ => panic!("{votes:?}: {outcome:?}"),
        };
        assert_eq!((given, after), (moment.map(Duration::from_secs), decided), "{votes:?}");
    }
}

#[test]
fn a_yield_that_too_few_servers_answer_is_undone_where_it_may_have_been_heard() {
    let next = TokenSource::of_process(1).next();
    let offer = Command::Yield { next, fleet_hold: FleetHold::UNKNOWN };

    let (outcome, after, follows) = held(offer, &[unknown(), unknown(), Reply::NotOwner]);

    assert!(matches!(outcome, Some(Reply::Refused(_))), "{outcome:?}");
    assert_eq!((after, follows), (2, vec![(0, FollowUp::Abandon), (1, FollowUp::Abandon)]));
}

#[test]
fn a_hold_without_an_end_is_seen_without_one() {
    let sight = |ttl| {
        let holder = Some(TokenSource::of_process(1).process());
        Reply::Info(Some(RecordInfo { holder, waiters: 0, ttl }))
    };
    let nine = Some(Duration::from_secs(9));
    for (votes, wanted) in [([None, None], None), ([None, nine], nine)] {
        let (outcome, ..) = held(Command::Inspect, &[sight(votes[0]), sight(votes[1]), Reply::Info(None)]);

        let Some(Reply::Info(Some(seen))) = outcome else { panic!("{outcome:?}") };
        assert_eq!(seen.ttl, wanted, "{votes:?}");
    }
}

#[test]
fn what_lasts_on_two_of_five_servers_may_pass() {
    let (lasting, passing) = (refused(FailureKind::Lasting), refused(FailureKind::Passing));
    for (third, kind) in [(passing, FailureKind::Passing), (lasting.clone(), FailureKind::Lasting)] {
        let votes = [lasting.clone(), lasting.clone(), third, Reply::Owner, Reply::Owner];

        let (outcome, after, _) = held(ACQUIRE, &votes);

        let Some(Reply::Refused(failure)) = outcome else { panic!("{votes:?}: {outcome:?}") };
        assert_eq!((failure.kind, after), (kind, 3));
    }
}

#[test]
fn who_gets_no_majority_is_told_why() {
    let young = [(Reply::Owner, OLD), (Reply::Owner, YOUNG), (Reply::Owner, YOUNG)];
    let cooldown = [(Reply::Owner, YOUNG), (unknown(), OLD), (Reply::Owner, OLD)];
    let split = [(Reply::Owner, OLD), (Reply::NotOwner, OLD), (Reply::Owner, OLD), (Reply::NotOwner, OLD)];
    let forgetful = "2 of 3 servers: 2 came up less than a lease ago, and may have forgotten who holds";
    let cases = [
        (ACQUIRE, &young[..], forgetful),
        (ACQUIRE, &cooldown[..], "2 of 3 servers: away"),
        (RENEW, &split[..], "3 of 4 servers: they are not of one mind"),
    ];
    for (command, votes, why) in cases {
        let outcome = outcome_of(command, votes);

        let Some(Reply::Refused(failure) | Reply::Unknown(failure)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(&*failure.reason, format!("a quorum needs {why}"));
        assert_eq!(failure.kind, FailureKind::Passing);
    }
}

#[test]
fn a_hold_is_lost_where_something_else_stands_and_not_where_nobody_can_say() {
    let (foreign, after, _) = held(RENEW, &[refused(FailureKind::WrongKind), Reply::NotOwner, Reply::Owner]);
    assert!(matches!(foreign, Some(Reply::NotOwner)), "{foreign:?}");
    assert_eq!(after, 2);

    let (cooldown, after, _) = held(RENEW, &[refused(FailureKind::Passing), Reply::NotOwner, Reply::Owner]);
    assert!(matches!(cooldown, Some(Reply::Unknown(_))), "{cooldown:?}");
    assert_eq!(after, 3);
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
fn a_check_puts_no_key_again() {
    let (mut ballot, mut follows) = (VoteTally::new(Command::Verify, 3), Vec::new());

    for (server, reply) in [Reply::NotOwner, Reply::Owner, Reply::Owner].into_iter().enumerate() {
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
        let mut ballots = [VoteTally::new(ACQUIRE, servers), VoteTally::new(ACQUIRE, servers)];
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
                Reply::Owner
            } else {
                Reply::Contended
            };
            let outcome = ballots[token].vote(server, reply, true, &mut Vec::new());
            granted[token] |= matches!(outcome, Some(Reply::Owner));
        }
        prop_assert!(!(granted[0] && granted[1]), "{heard_first:?}");
    }

    /// Whatever the servers say, in whatever order: there is one outcome, and what a failed attempt took is undone exactly once.
    #[test]
    fn every_ballot_has_one_outcome_and_leaves_nothing(
        votes in prop::collection::vec((any_reply(), any::<bool>()), 3..=7),
    ) {
        let (mut ballot, mut follows) = (VoteTally::new(ACQUIRE, votes.len()), Vec::new());
        let mut outcomes = Vec::new();
        for (server, (reply, counts)) in votes.iter().enumerate() {
            outcomes.extend(ballot.vote(server, reply.clone(), *counts, &mut follows));
        }

        prop_assert_eq!(outcomes.len(), 1);
        let granted = matches!(outcomes[0], Reply::Owner);
        let counted = votes.iter().filter(|(reply, counts)| *counts && matches!(reply, Reply::Owner)).count();
        prop_assert_eq!(granted, counted >= majority(votes.len()));
        for (server, (reply, _)) in votes.iter().enumerate() {
            let follow: Vec<_> = follows.iter().filter(|(of, _)| *of == server).map(|(_, follow)| *follow).collect();
            let wanted = match reply {
                Reply::Owner if !granted => vec![FollowUp::Leave],
                Reply::Unknown(_) if granted => vec![FollowUp::Unsure],
                Reply::Unknown(_) => vec![FollowUp::Abandon],
                _ => vec![],
            };
            prop_assert_eq!(follow, wanted, "{:?}", reply);
        }
    }
}
