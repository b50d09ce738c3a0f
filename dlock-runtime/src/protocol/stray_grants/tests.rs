use super::*;

#[test]
fn a_flood_is_answered_at_a_bounded_rate() {
    let mut filter = StrayGrantFilter::new();
    let at = |ms: u64| BootInstant::from_nanos(ms * 1_000_000);

    let answered = (0..50_000_u64).filter(|n| filter.may_answer(at(5_000 + n / 50))).count();

    assert_eq!(answered, 100);
    assert!(filter.may_answer(at(6_000)));
}
