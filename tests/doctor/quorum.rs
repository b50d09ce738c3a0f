//! Quorums of servers.

use dlock_runtime::LockManager;
use dlock_runtime::doctor::Severity::{Danger, Note, Ok as Fine, Warning};
use dlock_tests::{RedisServer, acl};

use super::{assert_at_worst, assert_finds, examine, well_configured, worst};

fn url(access: &str, servers: &[RedisServer]) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redis+quorum://{access}{}", hosts.join(","))
}

#[tokio::test]
async fn a_quorum_is_examined_server_by_server_and_by_its_votes() {
    let mut servers = [(); 3].map(|()| well_configured().start());
    let url = url("", &servers);

    let whole = examine(&url).await;
    servers[0].kill();
    let one_less = examine(&url).await;
    servers[1].kill();
    let too_few = examine(&url).await;

    assert_at_worst(&whole, Fine);
    assert_finds(&whole, "quorum", Fine, "3 of 3");
    assert_finds(&one_less, "quorum", Warning, "2 of 3");
    assert_finds(&too_few, "quorum", Danger, "1 of 3");
}

#[tokio::test]
async fn missing_permissions_for_a_quorum_are_found() {
    let servers = [(); 3].map(|()| well_configured().start());
    let examine_with = async |more: &[&str]| {
        for server in &servers {
            acl::give_user(server, acl::USER, &[], more);
        }
        examine(&url(&format!("{}:{}@", acl::USER, acl::PASSWORD), &servers)).await
    };
    let documented: Vec<_> = acl::documented_besides(acl::IN_A_QUORUM).collect();

    let with = examine_with(&documented).await;

    assert_at_worst(&with, Note);
    assert_finds(&with, "commands", Fine, "");
    assert_finds(&with, "channel", Fine, "");
    for denied in &documented {
        let others: Vec<_> = documented.iter().copied().filter(|rule| rule != denied).collect();
        let (check, severity) = if *denied == "+info" { ("commands", Danger) } else { ("channel", Warning) };

        let without = examine_with(&others).await;

        assert_finds(&without, check, severity, "NOPERM");
        let advice = worst(&without, check).remedy().unwrap_or_default();
        assert!(advice.contains(denied), "{denied}: {without}");
    }
}

#[tokio::test]
async fn nodes_of_clusters_have_no_vote() {
    let nodes = [(); 3].map(|()| RedisServer::builder().line("cluster-enabled yes").start());
    let url = url("", &nodes);

    let report = examine(&url).await;
    let connected = LockManager::connect(&url).await;

    assert_finds(&report, "role", Danger, "node of a cluster");
    let refused = connected.expect_err("no server has a vote").to_string();
    assert!(refused.contains("is part of a cluster"), "{refused}");
}
