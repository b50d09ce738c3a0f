use super::*;
use crate::bounds::{assert_listed, written};
use crate::protocol::command::Failure;
use crate::token::TokenSource;

fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

fn orphan_of_epoch(epoch: u64) -> (OrphanedTokens, Token) {
    let (mut list, token) = (OrphanedTokens::default(), TokenSource::new().next());
    list.add("k".into(), token, epoch);
    assert_eq!(list.due_now(at(0)).len(), 1);
    (list, token)
}

#[test]
fn orphan_added_again_is_withdrawn_twice_more() {
    let (mut list, token) = orphan_of_epoch(1);
    list.left(token, &Reply::NotOwner, 2, at(10));

    list.add("k".into(), token, 1);
    assert_eq!(list.due_now(at(90)).len(), 1);
    list.left(token, &Reply::NotOwner, 2, at(100));

    assert_eq!(list.due(), at(1_100));
}

#[test]
fn two_concurrent_withdrawals_do_not_count_as_the_second() {
    let (mut list, token) = orphan_of_epoch(1);
    list.add("k".into(), token, 1);
    assert_eq!(list.due_now(at(5)).len(), 1);

    list.left(token, &Reply::NotOwner, 2, at(10));
    list.left(token, &Reply::NotOwner, 2, at(15));

    assert_eq!(list.due(), at(1_015));
    assert_eq!(list.due_now(at(1_015)).len(), 1);
    list.left(token, &Reply::NotOwner, 2, at(1_020));
    assert!(list.is_empty());
}

#[test]
fn half_done_withdrawal_is_repeated_and_a_forbidden_one_is_not() {
    let (tokens, mut list) = (TokenSource::new(), OrphanedTokens::default());
    let (half, none) = (tokens.next(), tokens.next());
    for token in [half, none] {
        list.add("k".into(), token, 1);
    }
    list.due_now(at(0));
    let forbidden = || Failure::new(FailureKind::Lasting, "no permission");

    list.left(none, &Reply::Refused(forbidden()), 1, at(0));
    list.left(half, &Reply::Unknown(forbidden()), 1, at(0));

    assert_eq!(list.due_now(at(29_000)), []);
    assert_eq!(list.due_now(at(31_000)), [("k".into(), half)]);
}

#[test]
fn withdrawal_on_the_same_connection_is_proof() {
    let (mut list, token) = orphan_of_epoch(1);

    assert!(list.left(token, &Reply::NotOwner, 1, at(10)));

    assert!(list.is_empty());
}

#[test]
fn withdrawal_on_another_connection_repeats_after_1_s() {
    let (mut list, token) = orphan_of_epoch(1);

    list.left(token, &Reply::Owner, 2, at(10));

    assert_eq!(list.due(), at(1_010));
    assert_eq!(list.due_now(at(1_010)).len(), 1);
    list.left(token, &Reply::NotOwner, 2, at(1_010));
    assert!(list.is_empty());
}

#[test]
fn unsent_release_is_proved_on_any_connection() {
    let (mut list, token) = (OrphanedTokens::default(), TokenSource::new().next());
    list.add_unsent("k".into(), token);
    assert_eq!(list.due_now(at(0)).len(), 1);

    list.left(token, &Reply::Owner, 7, at(10));

    assert!(list.is_empty());
}

#[test]
fn an_unsent_withdrawal_proves_nothing_about_a_sent_acquire() {
    let (mut list, token) = (OrphanedTokens::default(), TokenSource::new().next());
    list.add_unsent("k".into(), token);
    list.add("k".into(), token, 1);
    assert_eq!(list.due_now(at(0)).len(), 1);

    list.left(token, &Reply::NotOwner, 2, at(10));

    assert_eq!(list.due(), at(1_010), "the acquire may run later");
}

#[test]
fn unanswered_withdrawal_is_repeated() {
    let (mut list, token) = orphan_of_epoch(1);

    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    list.left(token, &unknown, 2, at(10));

    assert!(list.due_now(at(1_000)).is_empty());
    assert_eq!(list.due_now(at(1_010)).len(), 1);
}

#[test]
fn unanswered_withdrawal_repeats_when_its_server_is_back() {
    let (mut list, token) = orphan_of_epoch(1);
    let refused = Reply::Refused(Failure::new(FailureKind::Passing, "no master"));
    list.left(token, &refused, 1, at(10));

    list.retry_now(|key| key == "another");
    assert!(list.due_now(at(20)).is_empty());
    list.retry_now(|key| key == "k");
    assert_eq!(list.due_now(at(20)).len(), 1);
    list.retry_now(|_| true);

    assert!(list.due_now(at(20)).is_empty(), "it is in flight");
}

#[test]
fn second_withdrawal_keeps_its_delay() {
    let (mut list, token) = orphan_of_epoch(1);
    list.left(token, &Reply::Owner, 2, at(10));

    list.retry_now(|_| true);

    assert_eq!(list.due(), at(1_010));
}

#[test]
fn permanently_refused_withdrawal_is_dropped() {
    let (mut list, token) = orphan_of_epoch(1);

    let refused = Reply::Refused(Failure::new(FailureKind::WrongKind, "a list"));
    list.left(token, &refused, 1, at(10));

    assert!(list.is_empty());
}

#[test]
fn token_is_listed_until_its_cleanup_is_proved() {
    let (mut list, token) = orphan_of_epoch(1);
    assert!(!list.is_empty(), "its withdrawal is in flight");

    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    for (ms, reply) in [(10, unknown), (2_000, Reply::NotOwner)] {
        assert!(list.left(token, &reply, 2, at(ms)));
        assert!(!list.is_empty(), "{reply:?}");
        assert_eq!(list.due_now(at(ms + 1_000)).len(), 1);
    }

    assert!(list.left(token, &Reply::NotOwner, 2, at(3_010)));
    assert!(list.is_empty());
    assert!(!list.left(token, &Reply::NotOwner, 2, at(3_020)), "another's");
}

#[test]
fn the_list_is_bounded() {
    let (mut list, tokens) = (OrphanedTokens::default(), TokenSource::new());
    for _ in 0..=MAX_ENTRIES {
        list.add("k".into(), tokens.next(), 1);
    }

    assert_eq!(list.entries.len(), MAX_ENTRIES);
    for _ in 0..MAX_ENTRIES / MAX_AT_ONCE {
        assert_eq!((list.due(), list.due_now(at(0)).len()), (at(0), MAX_AT_ONCE));
    }
    assert_eq!((list.due(), list.due_now(at(0)).len()), (BootInstant::NEVER, 0));
    assert_listed("tokens that one manager must withdraw", &written(MAX_ENTRIES));
}
