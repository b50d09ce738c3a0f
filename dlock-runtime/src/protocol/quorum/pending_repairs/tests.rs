//! Unit tests of `late`.

use std::time::Duration;

use super::*;
use crate::protocol::command::{Failure, FailureKind};
use crate::token::TokenSource;

const REPAIR: FollowUp = FollowUp::Repair(Duration::from_secs(30));

fn unknown() -> Reply {
    Reply::Unknown(Failure::new(FailureKind::Passing, "no answer"))
}

fn repairing() -> (PendingRepairs, Token) {
    let (mut late, token) = (PendingRepairs::default(), TokenSource::of_process(1).next());
    late.remember(token, &[(0, FollowUp::Leave), (2, REPAIR)]);
    (late, token)
}

#[test]
fn a_token_may_come_to_stand_where_its_repair_is_on_its_way_and_not_where_it_was_answered() {
    let (mut late, token) = repairing();
    assert!(!late.let_go(token, 0));
    assert!(late.let_go(token, 2));

    let (mut late, token) = repairing();
    late.repaired(token, 2, &Reply::Owner);
    assert!(!late.let_go(token, 2));
}

#[test]
fn a_repair_that_was_answered_does_not_make_up_for_an_earlier_one_that_was_not() {
    let (mut late, token) = repairing();
    late.repaired(token, 2, &unknown());

    late.remember(token, &[(2, REPAIR)]);
    late.repaired(token, 2, &Reply::Owner);

    assert!(late.let_go(token, 2));
    assert!(late.is_empty());
}

#[test]
fn a_repair_that_was_answered_does_not_make_up_for_another_that_is_on_its_way() {
    for answer in [None, Some(unknown())] {
        let (mut late, token) = repairing();
        late.remember(token, &[(2, REPAIR)]);
        late.repaired(token, 2, &Reply::Owner);
        if let Some(answer) = &answer {
            late.repaired(token, 2, answer);
        }

        assert!(late.let_go(token, 2), "{answer:?}");
        assert!(late.is_empty());
    }
}

#[test]
fn a_token_may_come_to_stand_where_two_of_its_commands_had_no_answer_yet() {
    let (mut late, token) = repairing();
    late.remember(token, &[(2, FollowUp::Unsure)]);

    assert!(late.let_go(token, 2));

    assert!(late.is_empty(), "{late:?}");
    assert!(!late.let_go(token, 2));
}

#[test]
fn what_is_answered_after_the_lock_was_let_go_of_is_not_remembered() {
    let (mut late, token) = repairing();
    assert!(late.let_go(token, 2));

    late.repaired(token, 2, &unknown());

    assert!(late.is_empty());
}

#[test]
fn what_is_remembered_has_a_bound() {
    let (mut late, tokens) = (PendingRepairs::default(), TokenSource::of_process(1));
    let remembered: Vec<_> = (0..=MOST).map(|_| tokens.next()).collect();
    for token in &remembered {
        late.remember(*token, &[(0, FollowUp::Unsure)]);
    }

    assert_eq!(remembered.into_iter().filter(|token| late.let_go(*token, 0)).count(), MOST);
}
