//! Floods from sentinels, cluster nodes, and one server of a quorum, and floods in replies to
//! `doctor`.

use dlock_runtime::doctor;
use dlock_tests::quorum::QuorumFleet;
use dlock_tests::sentinel::MASTER;
use dlock_tests::{Answer, within};

use super::{LONG, alone, assert_bounded, connect, server};

pub(super) const DESCRIPTIONS: [(&str, &str); 5] = [
    ("$536870911\r\n", "a"),
    ("+", "a"),
    ("", "*1\r\n"),
    ("*1000000000\r\n", ":1\r\n"),
    ("*1000\r\n", "*100\r\n"),
];

/// The message of a released lock, in a quorum.
const RELEASE: &str = "*3\r\n$7\r\nmessage\r\n$18\r\ndlock:free:order:7\r\n$0\r\n\r\n";

const REASONS: [&str; 3] = ["a reply of more than", "sent a reply with more than", "sent bytes that are not"];

pub(super) fn has_the_reason(text: &str) -> bool {
    REASONS.iter().any(|words| text.contains(words))
}

#[tokio::test]
async fn a_sentinel_that_floods_is_the_reason() {
    let _alone = alone().await;
    for (first, again) in DESCRIPTIONS {
        let sentinel =
            server(move |request| (request.name() == "SENTINEL").then_some(Answer::Flood(first, again)));
        let url = format!("redis+sentinel://127.0.0.1:{}/{MASTER}", sentinel.port());

        let refused = assert_bounded(first, connect(&url)).await;

        let error = refused.expect_err("it names no master").to_string();
        assert!(has_the_reason(&error), "{first}: {error}");
    }
}

#[tokio::test]
async fn a_sentinel_may_flood_its_messages() {
    const SWITCH: &str = "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$5\r\na b c\r\n";
    let _alone = alone().await;
    let master = server(|_| None);
    let port = master.port().to_string();
    let named = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()).into_bytes();
    for (first, again) in DESCRIPTIONS.into_iter().chain([("", SWITCH)]) {
        let named = named.clone();
        let sentinel = server(move |request| match request.name() {
            "SENTINEL" => Some(Answer::Raw(named.clone())),
            "SUBSCRIBE" => Some(Answer::UsualThenFlood(first, again)),
            _ => None,
        });
        let url = format!("redis+sentinel://127.0.0.1:{}/{MASTER}", sentinel.port());
        let manager = connect(&url).await.expect("the sentinel names a master");

        let lock = assert_bounded(first, async {
            tokio::time::sleep(super::WATCHED / 4).await;
            manager.lock("order:7").lease(LONG).acquire().await
        })
        .await;

        assert!(lock.is_ok(), "{first}: {lock:?}");
    }
}

#[tokio::test]
async fn a_server_of_a_cluster_that_floods_is_the_reason() {
    let _alone = alone().await;
    for (first, again) in DESCRIPTIONS {
        let server =
            server(move |request| (request.name() == "CLUSTER").then_some(Answer::Flood(first, again)));
        let url = format!("redis+cluster://127.0.0.1:{}", server.port());

        let refused = assert_bounded(first, connect(&url)).await;

        let error = refused.expect_err("it has no map").to_string();
        assert!(has_the_reason(&error), "{first}: {error}");
    }
}

/// Each reply is within its limits, and all servers are asked at once.
#[tokio::test]
async fn long_descriptions_from_five_servers_of_a_cluster_are_bounded() {
    let _alone = alone().await;
    let words = [b"*131000\r\n".to_vec(), b"$1\r\na\r\n".repeat(131_000)].concat();
    let text = [b"$4194000\r\n".to_vec(), vec![b'a'; 4_194_000], b"\r\n".to_vec()].concat();
    for (name, reply) in [("many words", words), ("a long text", text)] {
        let servers: Vec<_> = (0..5)
            .map(|_| {
                let reply = reply.clone();
                server(move |request| match (request.name(), &*request.word(1)) {
                    ("CLUSTER", "INFO") => Some(Answer::Raw(b"$16\r\ncluster_state:ok\r\n".to_vec())),
                    ("CLUSTER", _) => Some(Answer::Raw(reply.clone())),
                    _ => None,
                })
            })
            .collect();
        let hosts: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        let url = format!("redis+cluster://{}?response_timeout=10s", hosts.join(","));

        let refused = assert_bounded(name, connect(&url)).await;

        let error = refused.expect_err("it has no map").to_string();
        assert!(error.contains("gave an unexpected reply"), "{name}: {error}");
    }
}

#[tokio::test]
async fn doctor_reports_a_flooding_server() {
    let _alone = alone().await;
    for (first, again) in DESCRIPTIONS {
        for name in ["PING", "INFO"] {
            let server =
                server(move |request| (request.name() == name).then_some(Answer::Flood(first, again)));

            let url = server.url();
            let examination = Box::pin(doctor(&url));
            let report = assert_bounded(first, within(LONG, "an examination", examination)).await;

            let report = report.expect("the URL can be used").to_string();
            assert!(has_the_reason(&report), "{name} {first}: {report}");
        }
    }
}

#[tokio::test]
async fn one_server_of_a_quorum_may_flood() {
    let _alone = alone().await;
    let fleet = QuorumFleet::start(2).await;
    for name in ["SET", "EVALSHA", "SUBSCRIBE", "messages"] {
        let server = server(move |request| match request.name() {
            "INFO" => {
                let info = "role:master\r\nrun_id:0123456789abcdef\r\nuptime_in_seconds:1000\r\n";
                Some(Answer::Raw(format!("${}\r\n{info}\r\n", info.len()).into_bytes()))
            }
            "SUBSCRIBE" if name == "SUBSCRIBE" => Some(Answer::UsualThenFlood("$536870911\r\n", "a")),
            "SUBSCRIBE" if name == "messages" => Some(Answer::UsualThenFlood("", RELEASE)),
            of if of == name => Some(Answer::Flood("$536870911\r\n", "a")),
            _ => None,
        });
        let all = format!("127.0.0.1:{},127.0.0.1:", server.port());
        let url = fleet.url_with("").replacen("127.0.0.1:", &all, 1);
        let manager = connect(&url).await.expect("two of three are enough");

        let held = assert_bounded(name, async {
            let lock = manager.lock("order:7").lease(super::WATCHED * 9 / 10).wait(LONG);
            lock.run(async |_| tokio::time::sleep(super::WATCHED).await).await
        })
        .await;

        assert!(held.is_ok(), "{name}: {held:?}");
    }
}
