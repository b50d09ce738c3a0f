//! The owner of a manager: a name for its process, for operators.
//!
//! A lock contains no owner, so acquiring one costs nothing more. The connections of a manager
//! announce it: see `backend::redis::owner_lookup`.

use std::sync::Arc;

/// Returns the owner of managers that set none: the host and the process, such as `web-1:4242`.
pub(crate) fn of_this_process() -> Arc<str> {
    let id = format!(":{}", std::process::id());
    let mut owner: String =
        host().chars().map(|c| if c.is_ascii_graphic() { c } else { '-' }).take(LONGEST - id.len()).collect();
    owner.push_str(&id);
    owner.into()
}

#[cfg(unix)]
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "host".to_owned())
}

/// Returns why `text` cannot be an owner. Redis allows neither spaces nor control characters in the
/// name of a connection.
pub(crate) fn problem(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty: write a name such as `web-1`, or leave it out for host and process");
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some(
            "only printable ASCII characters without spaces are allowed: write a name such as `web-1`",
        );
    }
    (text.len() > LONGEST).then_some("it is longer than 64 bytes: write a shorter name, such as `web-1`")
}

/// The maximum length of an owner, in bytes.
pub(crate) const LONGEST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_owner_is_valid_and_names_the_process() {
        let owner = of_this_process();

        assert_eq!(problem(&owner), None, "{owner}");
        assert!(owner.ends_with(&format!(":{}", std::process::id())) && !owner.starts_with(':'), "{owner}");
    }

    #[test]
    fn owners_that_a_connection_cannot_have_are_refused_with_an_example() {
        let long = "x".repeat(65);
        for owner in ["", "web 1", "web\n1", "größe", &*long] {
            assert!(problem(owner).is_some_and(|problem| problem.contains("`web-1`")), "{owner:?}");
        }
        for owner in ["w", "web-1:4242", "pod/a@b", &long[1..]] {
            assert_eq!(problem(owner), None, "{owner:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_default_owner_begins_with_the_host() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a machine has a name");
        let first = host.chars().next().filter(char::is_ascii_alphanumeric);

        assert!(first.is_none_or(|first| of_this_process().starts_with(first)), "{}", of_this_process());
    }
}
