//! The Redis users that the operating guide describes.
//!
//! The rules are read from the guide, so the tests run as the users that the documentation
//! recommends.

use crate::resp::Reply;
use crate::server::RedisServer;

/// Returns the rules of the user `name` in the guide, in the syntax of `ACL SETUSER`.
///
/// They are also valid after `user` in a line of `redis.conf`. The first word is the name.
///
/// # Panics
///
/// Panics if the guide describes no such user.
pub fn documented_user(name: &str) -> impl Iterator<Item = &'static str> {
    lines_for(name).next().expect("the guide describes the user").split(' ')
}

/// Returns the additional rules of the lock user for `layout=redisson`, without the name.
///
/// # Panics
///
/// Panics if the guide has no such line.
pub fn documented_for_redisson() -> impl Iterator<Item = &'static str> {
    let line =
        lines_for(USER).find(|line| line.contains("redisson")).expect("the guide has a line for Redisson");
    line.split(' ').skip(1)
}

/// Returns the additional rules of the lock user for deployments of several servers.
///
/// `who` is one of [`WITH_ACKS`], [`WITH_RECORDS`], [`WITH_JOBS`], [`IN_A_QUORUM`],
/// [`BEHIND_SENTINELS`], and [`IN_A_CLUSTER`].
///
/// # Panics
///
/// Panics if the guide has no such sentence.
pub fn documented_besides(who: &str) -> impl Iterator<Item = &'static str> {
    let (_, behind) =
        OPERATING.split_once(&format!("{who} needs `")).expect("the guide has a sentence for it");
    behind.split('`').next().unwrap_or_default().split_whitespace()
}

fn lines_for(name: &str) -> impl Iterator<Item = &'static str> {
    let lines = OPERATING.lines().filter_map(|line| line.strip_prefix("ACL SETUSER "));
    lines.filter(move |words| words.split(' ').next() == Some(name))
}

/// Creates the user `name` of the guide on a server, without the rules `but` and with the rules
/// `more`.
///
/// # Panics
///
/// Panics if the guide describes no such user, or if the server rejects a rule.
pub fn give_user(server: &RedisServer, name: &str, but: &[&str], more: &[&str]) {
    let mut words = vec!["ACL", "SETUSER"];
    for rule in documented_user(name).filter(|rule| !but.contains(rule)) {
        words.push(rule);
    }
    words.extend(more);
    assert_eq!(server.call(&words), Reply::Status("OK".to_owned()));
}

/// Returns `url` with the credentials of the lock user, which replace any others.
///
/// # Panics
///
/// Panics if `url` has no scheme.
#[must_use]
pub fn as_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL has a scheme");
    let hosts = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    format!("{scheme}://{USER}:{PASSWORD}@{hosts}")
}

/// Returns `true` if tests use the documented user by default (`DLOCK_TEST_ACL=1`).
#[must_use]
pub fn is_asked_for() -> bool {
    std::env::var_os("DLOCK_TEST_ACL").is_some_and(|value| value == "1")
}

/// The lock user of the guide. Its password is [`PASSWORD`].
pub const USER: &str = "dlock";
/// The password of [`USER`] in the guide.
pub const PASSWORD: &str = "password";

/// The words before `needs` in the guide's sentence about `replica_acks`.
pub const WITH_ACKS: &str = "With `replica_acks` the locks' user";
/// The words before `needs` in the guide's sentence about idempotent calls.
pub const WITH_RECORDS: &str = "For idempotent calls it";
/// The words before `needs` in the guide's sentence about scheduled jobs.
pub const WITH_JOBS: &str = "For scheduled jobs it";
/// The words before `needs` in the guide's sentence about a quorum.
pub const IN_A_QUORUM: &str = "With a quorum it";
/// The words before `needs` in the guide's sentence about Sentinel.
pub const BEHIND_SENTINELS: &str = "Sentinel it";
/// The words before `needs` in the guide's sentence about a cluster.
pub const IN_A_CLUSTER: &str = "In a cluster it";

const OPERATING: &str = include_str!("../../dlock-runtime/src/docs/operating.md");
