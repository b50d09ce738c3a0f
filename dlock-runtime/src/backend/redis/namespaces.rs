//! The namespaces whose keys a manager uses, and the names of their channels.
//!
//! ```text
//!  dlock:grant:<SHA-1 of the prefix of the manager's tokens>  a waiter of that manager is granted a lock
//!  dlock:grant:<the same>:<owner>                             nothing: its name announces the owner of that manager
//!  dlock:free:<key>                                           a lock is released, in a quorum
//! ```
//!
//! A channel name starts with the namespace of the key, so an ACL keeps namespaces apart. With an
//! empty namespace, it starts with `:`. The namespace of a key is the longest one in use here that
//! its name starts with. If namespaces overlap, as `a` and `a:b` do, two managers may derive
//! different namespaces from one name. Then a grant is not received, the waiter is passed over, and
//! the waiter finds out at its next check.
//!
//! A grant channel does not reveal the tokens of its manager: a client that lists the channels
//! learns nothing that helps to forge a grant.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::backend::store_call::waiter;
use crate::sync::lock;
use crate::token::ProcessId;

/// A namespace and the prefixes of its channel names.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: Arc<str>,
    grants: Box<str>,
    releases: Box<str>,
}

impl Namespace {
    fn new(name: &str) -> Self {
        let (grants, releases) = (format!("{name}{GRANTS}").into(), format!("{name}{RELEASES}").into());
        Self { name: name.into(), grants, releases }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the prefix of the grant channels. Scripts append the rest.
    pub(crate) fn grants(&self) -> &str {
        &self.grants
    }

    /// Returns the prefix of the release channels. Scripts append the key.
    pub(crate) fn releases(&self) -> &str {
        &self.releases
    }

    /// Returns the channel on which a manager receives its grants.
    pub(crate) fn grant_channel(&self, process: ProcessId) -> String {
        format!("{}{}", self.grants, waiter(&process.token_prefix()))
    }

    /// Returns the channels that a manager subscribes to: that of its grants, and the one that
    /// announces its owner.
    pub(crate) fn channels(&self, process: ProcessId, owner: &str) -> [String; 2] {
        let grants = self.grant_channel(process);
        let announced = format!("{grants}:{owner}");
        [grants, announced]
    }
}

/// The namespaces that a manager uses: its own, and those of its locks.
#[derive(Debug)]
pub(crate) struct Namespaces {
    own: Arc<Namespace>,
    others: Mutex<HashMap<Box<str>, Arc<Namespace>>>,
    /// Read instead of the map, which is almost always empty.
    has_others: AtomicBool,
    /// Notified when a namespace is used for the first time.
    pub(crate) added: Notify,
}

impl Default for Namespaces {
    fn default() -> Self {
        Self::new("")
    }
}

impl Namespaces {
    pub(crate) fn new(own: &str) -> Self {
        let (own, has_others) = (Arc::new(Namespace::new(own)), AtomicBool::new(false));
        Self { own, others: Mutex::default(), has_others, added: Notify::new() }
    }

    /// Returns the manager's own namespace.
    pub(crate) fn own(&self) -> &Arc<Namespace> {
        &self.own
    }

    /// Adds a namespace. Has no effect if there are already 1,024 others.
    pub(crate) fn add(&self, name: &str) {
        if name == &*self.own.name {
            return;
        }
        {
            let mut others = lock(&self.others);
            if others.len() >= MOST_NAMESPACES || others.contains_key(name) {
                return;
            }
            others.insert(name.into(), Arc::new(Namespace::new(name)));
            self.has_others.store(true, Ordering::Release);
        }
        self.added.notify_waiters();
    }

    /// Returns all namespaces.
    pub(crate) fn all(&self) -> Vec<Arc<Namespace>> {
        std::iter::once(&self.own).chain(lock(&self.others).values()).cloned().collect()
    }

    /// Returns the namespace of the key with this full name.
    pub(crate) fn of_key(&self, key: &str) -> Arc<Namespace> {
        if self.has_others.load(Ordering::Acquire) {
            let others = lock(&self.others);
            let before = key.rmatch_indices(':').filter_map(|(end, _)| key.get(..end));
            for name in before.chain([""]) {
                if name == &*self.own.name {
                    break;
                }
                if let Some(namespace) = others.get(name) {
                    return Arc::clone(namespace);
                }
            }
        }
        Arc::clone(&self.own)
    }
}

/// Returns `true` if a grant of `key` may arrive on `channel`: users of a namespace can grant only
/// its own locks.
pub(crate) fn may_grant(channel: &str, key: &str) -> bool {
    let namespace = channel.rsplit_once(GRANTS).map(|(namespace, _)| namespace);
    namespace.is_some_and(|namespace| {
        let behind = key.strip_prefix(namespace);
        namespace.is_empty() || behind.is_some_and(|behind| behind.starts_with(':'))
    })
}

/// Follows the namespace in the name of a grant channel. An ACL user needs `&dlock:grant:*`.
pub(crate) const GRANTS: &str = ":grant:";

/// Follows the namespace in the name of a release channel. For a quorum, an ACL user needs
/// `&dlock:free:*`.
const RELEASES: &str = ":free:";

/// More than an application uses. If namespaces are built from user input, subscriptions must not
/// grow without bound.
const MOST_NAMESPACES: usize = 1_024;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::bounds::{assert_listed, written};
    use crate::token::TokenSource;

    fn named(own: &str, others: &[&str]) -> Namespaces {
        let namespaces = Namespaces::new(own);
        for name in others {
            namespaces.add(name);
        }
        namespaces
    }

    #[test]
    fn channels_begin_with_their_namespace() {
        let process = TokenSource::of_process(0x0123_4567_89ab_cdef).process();
        let channels = |own: &str| {
            let namespaces = Namespaces::new(own);
            (namespaces.own().grant_channel(process), format!("{}order:7", namespaces.own().releases()))
        };
        // As `redis.sha1hex('dl2-0123456789abcdef')` returns it.
        let hash = "27204875ce79641a798a175deee81e1b71ecacdb";

        assert_eq!(channels("dlock"), (format!("dlock:grant:{hash}"), "dlock:free:order:7".to_owned()));
        assert_eq!(channels("shop:eu").0, format!("shop:eu:grant:{hash}"));
        assert_eq!(channels(""), (format!(":grant:{hash}"), ":free:order:7".to_owned()));
    }

    #[test]
    fn a_channel_shows_no_part_of_a_token() {
        let tokens = TokenSource::new();
        let channel = Namespaces::new("dlock").own().grant_channel(tokens.process());

        let token = tokens.next().to_string();

        for length in 8..=token.len() - 4 {
            assert!(!channel.contains(&token[4..length]), "{channel} shows {}", &token[4..length]);
        }
    }

    #[test]
    fn the_namespace_of_a_key_is_the_longest_that_is_used() {
        let of = |own: &str, others: &[&str], key: &str| named(own, others).of_key(key).name.to_string();

        assert_eq!(of("dlock", &[], "shop:order:7"), "dlock");
        assert_eq!(of("dlock", &["shop"], "shop:order:7"), "shop");
        assert_eq!(of("dlock", &["shop"], "dlock:shop:7"), "dlock");
        assert_eq!(of("shop", &["shop:eu"], "shop:eu:7"), "shop:eu");
        assert_eq!(of("shop:eu", &["shop"], "shop:eu:7"), "shop:eu");
        assert_eq!(of("shop:eu", &["shop"], "shop:eux:7"), "shop");
        assert_eq!(of("dlock", &["shop"], "shopping:7"), "dlock");
        assert_eq!(of("dlock", &["", "shop"], "order:7"), "");
        assert_eq!(of("", &["shop"], "shop:7"), "shop");
        assert_eq!(of("", &["shop"], "order"), "");
        assert_eq!(of("dlock", &["größe"], "größe:ü:7"), "größe");
    }

    #[test]
    fn namespaces_are_unique_and_bounded() {
        let namespaces = named("dlock", &["dlock", "shop", "shop", ""]);
        assert_eq!(namespaces.all().len(), 3);

        for number in 0..2 * MOST_NAMESPACES {
            namespaces.add(&number.to_string());
        }

        assert_eq!(namespaces.all().len(), MOST_NAMESPACES + 1);
        assert_listed("namespaces of one manager", &written(MOST_NAMESPACES));
    }

    #[test]
    fn grants_are_accepted_only_from_their_own_namespace() {
        assert!(may_grant("dlock:grant:abc", "dlock:order:7"));
        assert!(may_grant("shop:grant:abc", "shop:eu:7"));
        assert!(may_grant("a:grant:b:grant:abc", "a:grant:b:7"));
        assert!(may_grant(":grant:abc", "order:7"));
        for (channel, key) in [
            ("dlock:grant:abc", "shop:order:7"),
            ("dlock:grant:abc", "dlocks:7"),
            ("a:grant:abc", "b:a:7"),
            ("a:b:grant:abc", "a:7"),
            ("dlock:free:abc", "dlock:7"),
            ("", "dlock:7"),
        ] {
            assert!(!may_grant(channel, key), "{key} over {channel}");
        }
    }

    #[test]
    fn only_a_new_namespace_is_announced() {
        let namespaces = named("dlock", &["shop"]);
        let is_announced = |name| {
            let added = namespaces.added.notified();
            namespaces.add(name);
            added.now_or_never().is_some()
        };

        assert!(!is_announced("dlock") && !is_announced("shop"));
        assert!(is_announced("shop:eu"));
    }
}
