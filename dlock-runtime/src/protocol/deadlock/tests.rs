//! Unit tests of `waits`.

use super::*;

fn place(key: &str) -> WaitNode {
    (key.into(), 0)
}

#[test]
fn two_keys_taken_crosswise_are_a_deadlock() {
    let mut waits = WaitGraph::default();

    assert!(waits.begin(vec![place("a")], place("b")).is_ok());

    assert_eq!(waits.begin(vec![place("b")], place("a")), Err("b".into()));
}

#[test]
fn a_circle_of_three_is_seen_by_the_last_to_come() {
    let mut waits = WaitGraph::default();
    assert!(waits.begin(vec![place("a")], place("b")).is_ok());
    assert!(waits.begin(vec![place("b")], place("c")).is_ok());

    assert!(waits.begin(vec![place("c")], place("a")).is_err());
}

#[test]
fn waiting_in_one_order_is_no_deadlock() {
    let mut waits = WaitGraph::default();

    assert!(waits.begin(vec![place("a")], place("b")).is_ok());
    assert!(waits.begin(vec![place("a")], place("c")).is_ok());
    assert!(waits.begin(vec![place("b")], place("c")).is_ok());
}

#[test]
fn a_wait_that_has_ended_closes_no_circle() {
    let mut waits = WaitGraph::default();
    let id = waits.begin(vec![place("a")], place("b"));
    waits.end(id.expect("nobody waits for it"));

    assert!(waits.begin(vec![place("b")], place("a")).is_ok());
}
