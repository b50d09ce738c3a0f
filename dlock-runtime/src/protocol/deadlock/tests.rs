use super::*;

fn node(key: &str) -> WaitNode {
    (key.into(), 0)
}

#[test]
fn two_keys_taken_crosswise_are_a_deadlock() {
    let mut waits = WaitGraph::default();

    assert!(waits.begin(vec![node("a")], node("b")).is_ok());

    assert_eq!(waits.begin(vec![node("b")], node("a")), Err("b".into()));
}

#[test]
fn the_last_wait_of_a_cycle_of_three_fails() {
    let mut waits = WaitGraph::default();
    assert!(waits.begin(vec![node("a")], node("b")).is_ok());
    assert!(waits.begin(vec![node("b")], node("c")).is_ok());

    assert!(waits.begin(vec![node("c")], node("a")).is_err());
}

#[test]
fn waiting_in_one_order_is_no_deadlock() {
    let mut waits = WaitGraph::default();

    assert!(waits.begin(vec![node("a")], node("b")).is_ok());
    assert!(waits.begin(vec![node("a")], node("c")).is_ok());
    assert!(waits.begin(vec![node("b")], node("c")).is_ok());
}

#[test]
fn an_ended_wait_closes_no_cycle() {
    let mut waits = WaitGraph::default();
    let id = waits.begin(vec![node("a")], node("b"));
    waits.end(id.expect("no cycle"));

    assert!(waits.begin(vec![node("b")], node("a")).is_ok());
}
