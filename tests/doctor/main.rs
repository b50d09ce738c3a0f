//! `doctor` against real servers: each fault has its finding, and a healthy server has no note.
//!
//! See also: `dlock_runtime::doctor` for the tests of severities, and the package of `dlock` for
//! its command line.

mod access;
mod cluster;
mod durability;
mod quorum;
mod replication;
mod sentinels;

use dlock_runtime::doctor;
use dlock_runtime::doctor::{Finding, Report, Severity};
use dlock_tests::RedisServer;
use dlock_tests::server::RedisServerBuilder;

/// A server that is configured as the guide recommends.
fn well_configured() -> RedisServerBuilder {
    RedisServer::builder()
        .line("maxmemory 256mb")
        .line("maxmemory-policy noeviction")
        .line("appendonly yes")
        .line("appendfsync always")
}

async fn examine(url: &str) -> Report {
    doctor(url).await.expect("the URL can be used")
}

/// Returns the worst finding of a check.
#[track_caller]
fn worst<'a>(report: &'a Report, check: &str) -> &'a Finding {
    let of_check = report.findings().iter().filter(|finding| finding.check() == check);
    of_check.max_by_key(|finding| finding.severity()).unwrap_or_else(|| panic!("no {check} in {report}"))
}

/// Asserts the severity and text of the worst finding of `check`, and that each fault has a remedy.
#[track_caller]
fn assert_finds(report: &Report, check: &str, severity: Severity, said: &str) {
    let finding = worst(report, check);
    assert_eq!(finding.severity(), severity, "{report}");
    assert!(finding.found().contains(said), "{said}: {finding}");
    assert_eq!(finding.remedy().is_some(), severity > Severity::Ok, "{finding}");
}

/// Asserts that no finding exceeds `severity`, except latency, which depends on this machine.
#[track_caller]
fn assert_at_worst(report: &Report, severity: Severity) {
    let worse = report.findings().iter().find(|at| at.severity() > severity && at.check() != "latency");
    assert!(worse.is_none() && report.is_reachable(), "{report}");
}

#[tokio::test]
async fn well_configured_server_has_no_note() {
    let server = well_configured().start();

    let report = examine(&server.url()).await;

    assert_at_worst(&report, Severity::Ok);
}
