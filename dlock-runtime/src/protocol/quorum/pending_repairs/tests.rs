//! Unit tests of the pending repairs.

use std::time::Duration;

use super::*;
use crate::protocol::command::{Failure, FailureKind};
use crate::token::TokenSource;

const REPAIR: FollowUp = FollowUp::Repair(Duration::from_secs(30));

fn unknown() -> Reply {
    Reply::Unknown(Failure::new(FailureKind::Passing, "no reply"))
}

fn repairing() -> (PendingRepairs, Token) {
    let (mut pending, token) = (PendingRepairs::default(), TokenSource::of_process(1).next());
    pending.remember(token, &[(0, FollowUp::Withdraw), (2, REPAIR)]);
    (pending, token)
}

#[test]
fn a_repair_in_flight_may_create_the_key_after_its_release() {
    let (mut pending, token) = repairing();
    assert!(!pending.on_released(token, 0));
    assert!(pending.on_released(token, 2));

    let (mut pending, token) = repairing();
    pending.on_repaired(token, 2, &Reply::Owner);
    assert!(!pending.on_released(token, 2));
}

#[test]
fn a_later_reply_does_not_settle_an_unanswered_repair() {
    let (mut pending, token) = repairing();
    pending.on_repaired(token, 2, &unknown());

    pending.remember(token, &[(2, REPAIR)]);
    pending.on_repaired(token, 2, &Reply::Owner);

    assert!(pending.on_released(token, 2));
    assert!(pending.is_empty());
}

#[test]
fn a_reply_does_not_settle_another_repair_in_flight() {
    for reply in [None, Some(unknown())] {
        let (mut pending, token) = repairing();
        pending.remember(token, &[(2, REPAIR)]);
        pending.on_repaired(token, 2, &Reply::Owner);
        if let Some(reply) = &reply {
            pending.on_repaired(token, 2, reply);
        }

        assert!(pending.on_released(token, 2), "{reply:?}");
        assert!(pending.is_empty());
    }
}

#[test]
fn two_pending_commands_of_a_token_are_forgotten_together() {
    let (mut pending, token) = repairing();
    pending.remember(token, &[(2, FollowUp::Unverified)]);

    assert!(pending.on_released(token, 2));

    assert!(pending.is_empty(), "{pending:?}");
    assert!(!pending.on_released(token, 2));
}

#[test]
fn a_reply_after_the_release_is_ignored() {
    let (mut pending, token) = repairing();
    assert!(pending.on_released(token, 2));

    pending.on_repaired(token, 2, &unknown());

    assert!(pending.is_empty());
}

/// Returns where a release is repeated that fails at these servers.
fn repeated(pending: &mut PendingRepairs, token: Token, failed: &[usize]) -> Vec<usize> {
    let mut repeated = Vec::new();
    for (nth, server) in failed.iter().enumerate() {
        let mut follows = vec![(*server, FollowUp::Orphan)];
        pending.on_end((token, *server), nth + 1 == failed.len(), &mut follows);
        repeated.extend(follows.into_iter().map(|(server, _)| server));
    }
    repeated
}

#[test]
fn a_failed_release_is_not_repeated_where_the_key_never_was() {
    let (mut pending, tokens) = (PendingRepairs::default(), TokenSource::of_process(1));
    let (token, other) = (tokens.next(), tokens.next());
    pending.remember(token, &[(0, FollowUp::Absent), (1, FollowUp::Absent)]);

    assert_eq!(repeated(&mut pending, other, &[0]), [0]);
    assert_eq!(repeated(&mut pending, token, &[0, 1, 2]), [2]);
    assert!(pending.is_empty(), "{pending:?}");
}

#[test]
fn a_failed_release_is_repeated_where_the_key_was_repaired() {
    let (mut pending, token) = (PendingRepairs::default(), TokenSource::of_process(1).next());
    pending.remember(token, &[(0, FollowUp::Absent), (2, FollowUp::Absent)]);
    pending.remember(token, &[(2, REPAIR)]);
    pending.on_repaired(token, 2, &Reply::Owner);

    assert_eq!(repeated(&mut pending, token, &[0, 2]), [2]);
    assert!(pending.is_empty(), "{pending:?}");
}

#[test]
fn the_number_of_entries_is_bounded() {
    let (mut pending, tokens) = (PendingRepairs::default(), TokenSource::of_process(1));
    let remembered: Vec<_> = (0..=MAX_ENTRIES).map(|_| tokens.next()).collect();
    for token in &remembered {
        pending.remember(*token, &[(0, FollowUp::Unverified)]);
    }

    for token in &remembered {
        pending.remember(*token, &[(1, FollowUp::Absent)]);
    }

    assert_eq!(pending.absent.len(), MAX_ENTRIES);
    assert_eq!(remembered.into_iter().filter(|token| pending.on_released(*token, 0)).count(), MAX_ENTRIES);
}
