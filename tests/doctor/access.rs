//! Servers that are unreachable, or that deny permissions.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dlock_runtime::doctor::Severity::{Danger, Note, Ok as Fine, Warning};
use dlock_runtime::{Error, doctor};
use dlock_tests::acl::{WITH_JOBS, WITH_RECORDS};
use dlock_tests::filter::{FilterProxy, Lack};
use dlock_tests::resp::Reply;
use dlock_tests::{RedisServer, acl};

use super::{assert_at_worst, assert_finds, examine, well_configured, worst};

#[tokio::test]
async fn a_wrong_and_a_missing_password_are_found_and_not_printed() {
    let server = RedisServer::builder().password("sesame").start();
    let address = format!("127.0.0.1:{}", server.port());

    for (access, said) in [(":hunter2@", REFUSED), ("dlock:hunter2@", REFUSED), ("", "NOAUTH")] {
        let report = examine(&format!("redis://{access}{address}")).await;

        assert_finds(&report, "connection", Danger, said);
        assert!(!report.is_reachable() && report.findings().len() == 1, "{report}");
        let advice = worst(&report, "connection").remedy().unwrap_or_default();
        assert!(advice.contains("is reachable") && !advice.contains("firewall"), "{report}");
        assert!(!format!("{report} {report:?}").contains("hunter2"), "{report:?}");
    }
}

#[tokio::test]
async fn unreachable_and_silent_servers_are_found_in_time() {
    let mut server = RedisServer::start();
    let url = server.url();

    server.pause();
    let begun = Instant::now();
    let frozen = examine(&url).await;
    let took = begun.elapsed();
    server.kill();
    let away = examine(&url).await;

    for report in [&frozen, &away] {
        let advice = worst(report, "connection").remedy().unwrap_or_default();
        assert!(advice.contains("firewall") && !advice.contains("is reachable"), "{report}");
    }
    assert_finds(&frozen, "connection", Danger, "did not reply in time");
    assert!(took < Duration::from_secs(6), "{took:?}");
    assert_finds(&away, "connection", Danger, "refused");
    assert!(!away.is_reachable(), "{away}");
}

#[tokio::test]
async fn slow_server_is_found_in_time_despite_long_timeouts() {
    let server = RedisServer::start();
    let proxy = dlock_tests::Proxy::in_front_of(&server);
    proxy.delay_replies(Duration::from_millis(150));
    let begun = Instant::now();

    let slow = examine(&proxy.url_with("?response_timeout=1s")).await;
    proxy.delay_replies(Duration::from_secs(20));
    let stuck = examine(&proxy.url_with("?response_timeout=60s&connect_timeout=60s")).await;

    let latency = worst(&slow, "latency");
    assert!(latency.severity() >= Note && latency.found().contains("p99 "), "{slow}");
    assert_finds(&stuck, "connection", Danger, "the time for the examination was over");
    assert!(begun.elapsed() < Duration::from_secs(11), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_url_that_cannot_be_used_is_an_error() {
    let refused = doctor("redis://host?leas=3s").await;

    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
}

const REFUSED: &str = "refused the user or the password";

/// Creates the documented user without the rule `but` and with `more`, and returns its URL.
fn documented_user(server: &RedisServer, but: &str, more: &[&str]) -> String {
    acl::give_user(server, acl::USER, &[but], more);
    format!("redis://{}:{}@127.0.0.1:{}", acl::USER, acl::PASSWORD, server.port())
}

#[tokio::test]
async fn documented_user_suffices_and_unreadable_settings_are_notes() {
    let server = well_configured().start();

    let report = examine(&documented_user(&server, "", &[])).await;

    assert_at_worst(&report, Note);
    for check in ["version", "eviction", "persistence", "replication"] {
        let finding = worst(&report, check);
        assert!(finding.found().contains("NOPERM"), "{finding}");
        assert!(finding.remedy().is_some_and(|advice| advice.contains("by hand")), "{finding}");
    }
    for check in ["clock", "commands", "channel"] {
        assert_eq!(worst(&report, check).severity(), Fine, "{report}");
    }
    assert_eq!(server.call(&["KEYS", "*"]), Reply::List(Vec::new()));
}

#[tokio::test]
async fn user_with_access_to_settings_has_no_note() {
    let server = well_configured().start();

    let of_records = acl::documented_besides(WITH_RECORDS).chain(acl::documented_besides(WITH_JOBS));
    let more: Vec<_> = ["+info", "+config|get"].into_iter().chain(of_records).collect();
    let report = examine(&documented_user(&server, "", &more)).await;

    assert_at_worst(&report, Fine);
}

/// Locks work without them, so they are one note, which names exactly what is missing.
#[tokio::test]
async fn each_missing_command_of_records_is_named_in_one_note() {
    let server = well_configured().start();
    let (of_calls, of_jobs): (BTreeSet<_>, BTreeSet<_>) =
        (acl::documented_besides(WITH_RECORDS).collect(), acl::documented_besides(WITH_JOBS).collect());
    for denied in of_calls.union(&of_jobs) {
        let others: Vec<_> = of_calls.union(&of_jobs).copied().filter(|rule| rule != denied).collect();

        let report = examine(&documented_user(&server, "", &others)).await;

        assert_finds(&report, "records", Note, "NOPERM");
        let finding = worst(&report, "records");
        let advice = finding.remedy().unwrap_or_default();
        assert!(advice.contains(&format!("`{denied}` on the keys")), "{denied}: {advice}");
        assert!(others.iter().all(|rule| !advice.contains(&format!("`{rule}`"))), "{denied}: {advice}");
        let works = |what| finding.meaning().split("but").next().is_some_and(|works| works.contains(what));
        assert_eq!(works("scheduled jobs"), !of_jobs.contains(denied), "{denied}: {finding}");
        assert_eq!(works("idempotent calls"), !of_calls.contains(denied), "{denied}: {finding}");
    }
    let report = examine(&documented_user(&server, "", &[])).await;
    let notes = report.findings().iter().filter(|finding| finding.check() == "records").count();
    assert_eq!((notes, server.call(&["KEYS", "*"])), (1, Reply::List(Vec::new())));
}

#[tokio::test]
async fn each_command_denied_to_the_documented_user_is_named() {
    let server = well_configured().start();
    for rule in acl::documented_user(acl::USER).filter(|word| word.starts_with('+')) {
        let url = documented_user(&server, rule, &[]);
        let (check, least) = match rule {
            "+publish" | "+subscribe" => ("channel", Warning),
            "+time" => ("fencing", Warning),
            "+client|tracking" => ("tracking", Note),
            "+client|setname" => ("owner", Note),
            _ => ("commands", Warning),
        };

        let report = examine(&url).await;

        let finding = worst(&report, check);
        assert!(finding.severity() >= least, "{rule}: {report}");
        assert!(finding.remedy().is_some_and(|advice| advice.contains(rule)), "{rule}: {report}");
    }
}

/// Locks work without these commands, and so does the rest of the examination.
#[tokio::test]
async fn an_optional_command_that_closes_the_connection_is_named() {
    let server = well_configured().start();
    for (command, check) in [
        ("SCRIPT LOAD", "scripts"),
        ("CLIENT SETNAME", "owner"),
        ("SUBSCRIBE", "channel"),
        ("CLIENT TRACKING", "tracking"),
        ("TIME", "clock"),
        ("CONFIG", "persistence"),
        ("INFO", "version"),
    ] {
        let proxy = FilterProxy::in_front_of(&server, &[(command, Lack::Closes)]);

        let report = examine(&proxy.url_with("")).await;

        assert_at_worst(&report, Warning);
        let finding = worst(&report, check);
        assert!(finding.severity() > Fine && finding.found().contains(command), "{command}: {report}");
        assert_finds(&report, "commands", Fine, "");
        let has_own_connection = ["SUBSCRIBE", "CLIENT TRACKING"].contains(&command);
        assert!(finding.found().contains("closed the connection") || has_own_connection, "{finding}");
    }
    let without_setinfo = FilterProxy::in_front_of(&server, &[("CLIENT SETINFO", Lack::Closes)]);
    assert_at_worst(&examine(&without_setinfo.url_with("")).await, Fine);
    assert_eq!(server.call(&["KEYS", "*"]), Reply::List(Vec::new()));
}

#[tokio::test]
async fn a_server_that_sends_no_invalidations_is_found() {
    let server = well_configured().start();
    for command in ["HELLO", "CLIENT TRACKING"] {
        for lack in Lack::ALL {
            let proxy = FilterProxy::in_front_of(&server, &[(command, lack)]);

            let report = examine(&proxy.url_with("")).await;

            assert_finds(&report, "tracking", Note, "`CLIENT TRACKING`");
            assert_at_worst(&report, Note);
        }
    }
}

#[tokio::test]
async fn a_command_that_locks_need_and_that_closes_the_connection_is_named() {
    let server = well_configured().start();
    for command in ["EVALSHA", "PTTL"] {
        let proxy = FilterProxy::in_front_of(&server, &[(command, Lack::Closes)]);

        let report = examine(&proxy.url_with("")).await;

        assert_finds(&report, "commands", Danger, &format!("closed the connection on `{command}`"));
        assert_eq!(server.call(&["KEYS", "*"]), Reply::List(Vec::new()));
    }
}

#[tokio::test]
async fn keys_and_channels_that_are_not_allowed_are_found() {
    let server = well_configured().start();

    let no_keys = examine(&documented_user(&server, "~dlock:*", &[])).await;
    let no_counters = examine(&documented_user(&server, "~{dlock:*", &[])).await;
    let no_channels = examine(&documented_user(&server, "&dlock:grant:*", &[])).await;
    let other_namespace = examine(&format!("{}?namespace=shop", documented_user(&server, "", &[]))).await;

    assert_finds(&no_keys, "commands", Danger, "NOPERM");
    assert_finds(&no_counters, "fencing", Warning, "NOPERM");
    assert_finds(&no_counters, "commands", Fine, "");
    assert_finds(&no_channels, "channel", Warning, "NOPERM");
    assert_finds(&other_namespace, "commands", Danger, "NOPERM");
    let advice = worst(&other_namespace, "commands").remedy().unwrap_or_default();
    assert!(advice.contains("~shop:*"), "{advice}");
}

#[tokio::test]
async fn requirements_of_url_options_are_examined() {
    let server = well_configured().start();
    let user = documented_user(&server, "", &[]);

    let acks = examine(&format!("{user}?replica_acks=1")).await;
    let no_replicas = examine(&format!("{}?replica_acks=1", server.url())).await;
    let redisson = examine(&format!("{user}?layout=redisson")).await;
    let untold = documented_user(&server, "+client|tracking", &[]);
    let not_tracking = examine(&format!("{untold}?tracking=off")).await;
    let fine = examine(&format!("{}?layout=redisson", server.url())).await;

    assert_finds(&acks, "commands", Danger, "`WAIT`");
    assert_finds(&no_replicas, "replication", Danger, "`replica_acks` asks for 1");
    assert_finds(&redisson, "commands", Danger, "`acquiring a lock`");
    assert_finds(&redisson, "channel", Warning, "NOPERM");
    assert_at_worst(&fine, Fine);
    assert!(not_tracking.findings().iter().all(|finding| finding.check() != "tracking"), "{not_tracking}");
}
