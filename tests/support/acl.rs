//! The users that the guide on operating describes, as servers are given them.
//!
//! The guide is the one place where they are written down: what the tests run as is what users are told.
//!
//! Not here: what a user needs. That is what the tests find out.

use crate::resp::Reply;
use crate::server::RedisServer;

/// Returns what the guide allows the user `name`, word by word, as they follow `ACL SETUSER` or stand in a line of `redis.conf`
/// behind `user`; the first is the name.
///
/// # Panics
///
/// Panics if the guide describes no such user.
pub fn documented_user(name: &str) -> impl Iterator<Item = &'static str> {
    lines_for(name).next().expect("the guide describes the user").split(' ')
}

/// Returns what the guide allows the user of locks besides, for the layout of Redisson; without the name.
///
/// # Panics
///
/// Panics if the guide does not say so.
pub fn documented_for_redisson() -> impl Iterator<Item = &'static str> {
    let line =
        lines_for(USER).find(|line| line.contains("redisson")).expect("the guide has a line for Redisson");
    line.split(' ').skip(1)
}

/// Returns what the guide allows the user of locks besides where they stand in more than one server: one of [`WITH_ACKS`],
/// [`IN_A_QUORUM`], [`BEHIND_SENTINELS`] and [`IN_A_CLUSTER`].
///
/// # Panics
///
/// Panics if the guide does not say so.
pub fn documented_besides(who: &str) -> impl Iterator<Item = &'static str> {
    let (_, behind) =
        OPERATING.split_once(&format!("{who} needs `")).expect("the guide has a sentence for it");
    behind.split('`').next().unwrap_or_default().split_whitespace()
}

fn lines_for(name: &str) -> impl Iterator<Item = &'static str> {
    let lines = OPERATING.lines().filter_map(|line| line.strip_prefix("ACL SETUSER "));
    lines.filter(move |words| words.split(' ').next() == Some(name))
}

/// Gives a server the user `name` of the guide, without the rules `but` and with `more`.
///
/// # Panics
///
/// Panics if the guide describes no such user, or the server refuses a rule.
pub fn give_user(server: &RedisServer, name: &str, but: &[&str], more: &[&str]) {
    let mut words = vec!["ACL", "SETUSER"];
    for rule in documented_user(name).filter(|rule| !but.contains(rule)) {
        words.push(rule);
    }
    words.extend(more);
    assert_eq!(server.call(&words), Reply::Status("OK".to_owned()));
}

/// Returns a URL in which the user of locks stands before the hosts, whoever stood there.
///
/// # Panics
///
/// Panics if it is no URL.
#[must_use]
pub fn as_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL has a scheme");
    let hosts = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    format!("{scheme}://{USER}:{PASSWORD}@{hosts}")
}

/// Returns whether locks are to be taken as the documented user wherever a test does not say as whom: with `DLOCK_TEST_ACL=1`.
#[must_use]
pub fn is_asked_for() -> bool {
    std::env::var_os("DLOCK_TEST_ACL").is_some_and(|value| value == "1")
}

/// The user of locks, and the password that the guide's line gives it.
pub const USER: &str = "dlock";
/// See [`USER`].
pub const PASSWORD: &str = "password";

/// How the guide begins to say what `replica_acks` needs.
pub const WITH_ACKS: &str = "With `replica_acks` that user";
/// How it begins to say what a quorum needs.
pub const IN_A_QUORUM: &str = "With a quorum it";
/// How it begins to say what a master behind sentinels needs.
pub const BEHIND_SENTINELS: &str = "Sentinel it";
/// How it begins to say what each server of a cluster needs.
pub const IN_A_CLUSTER: &str = "In a cluster it";

const OPERATING: &str = include_str!("../../dlock-runtime/src/docs/operating.md");
