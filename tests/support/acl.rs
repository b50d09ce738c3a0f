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

/// Returns whether locks are to be taken as the documented user wherever a test does not say as whom: with `DLOCK_TEST_ACL=1`.
#[must_use]
pub fn is_asked_for() -> bool {
    std::env::var_os("DLOCK_TEST_ACL").is_some_and(|value| value == "1")
}

/// The user of locks, and the password that the guide's line gives it.
pub const USER: &str = "dlock";
/// See [`USER`].
pub const PASSWORD: &str = "password";

const OPERATING: &str = include_str!("../../dlock-runtime/src/docs/operating.md");
