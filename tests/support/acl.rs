//! The users that the guide on operating describes, as servers are given them.
//!
//! The guide is the one place where they are written down: what the tests run as is what users are told.
//!
//! Not here: what a user needs. That is what the tests find out.

/// Returns what the guide allows the user `name`, word by word, as they follow `ACL SETUSER` or stand in a line of `redis.conf`
/// behind `user`; the first is the name.
///
/// # Panics
///
/// Panics if the guide describes no such user.
pub fn documented_user(name: &str) -> impl Iterator<Item = &'static str> {
    let line = OPERATING.lines().find_map(|line| {
        let words = line.strip_prefix("ACL SETUSER ")?;
        (words.split(' ').next() == Some(name)).then_some(words)
    });
    line.expect("the guide describes the user").split(' ')
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
