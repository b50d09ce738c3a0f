//! Findings of the doctor for a distant server.

use dlock_runtime::doctor;
use dlock_runtime::doctor::Severity;

use super::{Far, millis};

#[tokio::test]
async fn doctor_names_the_option_that_is_too_short_for_the_round_trip() {
    // Side by side, since each examination waits for many round trips.
    tokio::join!(
        assert_raised(300, "?response_timeout=2s", &["`grant_lease`"]),
        assert_raised(420, "", &["`response_timeout`", "`grant_lease`"]),
        assert_raised(300, "?response_timeout=2s&grant_lease=6s", &[]),
        assert_raised(300, "?response_timeout=2s&lease=500ms&grant_lease=6s", &["`lease`"]),
        assert_raised(60, "?response_timeout=2s&grant_lease=100ms", &["`grant_lease`"]),
        assert_raised(60, "?response_timeout=2s&grant_lease=6s", &[]),
    );
}

/// Examines a server at a distance, and asserts which options the finding of its latency advises to
/// raise.
async fn assert_raised(round_trip: u64, options: &str, raised: &[&str]) {
    let far = Far::start(millis(round_trip));

    let report = doctor(&far.proxy.url_with(options)).await.expect("a URL");

    let latency = report.findings().iter().find(|finding| finding.check() == "latency");
    let latency = latency.unwrap_or_else(|| panic!("{round_trip} ms: {report}"));
    let advice = latency.remedy().unwrap_or_default();
    let is_advised = |option: &&str| advice.contains(&format!("raise {option}"));
    let named: Vec<_> =
        ["`response_timeout`", "`lease`", "`grant_lease`"].into_iter().filter(is_advised).collect();
    assert_eq!(named, raised, "{round_trip} ms, {options}: {latency}");
    assert!(latency.severity() > Severity::Ok && latency.found().contains("p99 "), "{latency}");
    assert!(report.is_reachable(), "{report}");
    let _ = far.server.port(); // keeps the server alive until here
}
