//! The permissions in the guide on operating name every command that the code can send.

use std::collections::BTreeSet;

use dlock_tests::acl;

use super::{files, read, root};

/// Returns the commands that a text names after one of `marks`, as ACL rules name them. The words
/// behind the first one, in the same quotes, are the subcommand.
fn commands(text: &str, marks: &[&str], quote: char) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for behind in marks.iter().flat_map(|mark| text.split(mark).skip(1)) {
        let Some((name, rest)) = behind.split_once(quote) else { continue };
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_uppercase()) {
            continue;
        }
        let second = rest.trim_start_matches([')', ',', ' ', '.']).trim_start_matches("arg(");
        let second = second.strip_prefix(quote).and_then(|word| word.split_once(quote));
        let word = second.map(|(word, _)| word).filter(|_| CONTAINERS.contains(&name));
        found.insert(match word {
            Some(word) => format!("+{}|{}", name.to_lowercase(), word.to_lowercase()),
            None => format!("+{}", name.to_lowercase()),
        });
    }
    found
}

/// Returns the commands of the scripts in the folders and files that `is_meant` selects.
fn of_scripts(is_meant: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let scripts = files(&root().join("dlock-runtime/src"), "lua");
    let scripts: Vec<_> = scripts.iter().filter(|path| is_meant(path)).collect();
    assert!(!scripts.is_empty());
    scripts.iter().flat_map(|path| commands(&read(path), &["redis.call('", "redis.pcall('"], '\'')).collect()
}

/// Returns the rules of the user of the locks, and those of a sentence of the guide.
fn rules(besides: impl Iterator<Item = &'static str>) -> BTreeSet<String> {
    acl::documented_user(acl::USER).chain(besides).map(str::to_owned).collect()
}

#[track_caller]
fn assert_allowed(sent: &BTreeSet<String>, allowed: &BTreeSet<String>) {
    let missing: Vec<_> = sent.difference(allowed).collect();
    assert!(missing.is_empty(), "the guide on operating does not name {missing:?}");
}

#[test]
fn the_guide_allows_every_command_of_the_scripts() {
    let of_locks = of_scripts(|path| path.contains("/encoding/scripts/") && !path.contains("/redisson/"));
    assert!(of_locks.contains("+getrange") && of_locks.contains("+publish"), "{of_locks:?}");
    assert_allowed(&of_locks, &rules([].into_iter()));

    let of_calls = of_scripts(|path| path.contains("/idempotent/"));
    assert!(of_calls.contains("+memory|usage"), "{of_calls:?}");
    assert_allowed(&of_calls, &rules(acl::documented_besides(acl::WITH_RECORDS)));

    let of_jobs = of_scripts(|path| path.contains("/scheduled/"));
    assert!(of_jobs.contains("+hmget"), "{of_jobs:?}");
    assert_allowed(&of_jobs, &rules(acl::documented_besides(acl::WITH_JOBS)));

    let of_redisson = of_scripts(|path| path.contains("/redisson/"));
    assert!(of_redisson.contains("+hrandfield"), "{of_redisson:?}");
    let sharded = ["+spublish"];
    assert_allowed(&of_redisson, &rules(acl::documented_for_redisson().chain(sharded)));
}

/// Commands outside of scripts. Each is in one of the lists of the guide, or optional there.
#[test]
fn the_guide_names_every_command_of_the_code() {
    let guide = read("dlock-runtime/src/docs/operating.md");
    let sources = files(&root().join("dlock-runtime/src"), "rs");
    let mut sent = BTreeSet::new();
    let is_shipped = |path: &&String| !path.contains("/simulation/") && !path.contains("/src/backend/tests/");
    for path in sources.iter().filter(is_shipped) {
        let text = read(path);
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        sent.extend(commands(code, &["cmd(\"", "to.command(\""], '"'));
        sent.extend(commands(code, &["redis.call('"], '\''));
        let of_sentinels =
            code.split("self.question(\"").skip(1).filter_map(|behind| behind.split('"').next());
        sent.extend(of_sentinels.map(|word| format!("+sentinel|{}", word.to_lowercase())));
    }
    sent.remove("+sentinel"); // a part of those with a subcommand
    for one in ["+client|tracking", "+config|get", "+pubsub|channels", "+sentinel|ckquorum"] {
        assert!(sent.contains(one), "{one}: {sent:?}");
    }
    let is_named = |rule: &str| {
        let (name, command) = (format!("`{rule}`"), rule[1..].replace('|', " ").to_uppercase());
        let in_a_list = guide.split('`').any(|code| code.split([' ', '\n']).any(|word| word == rule));
        in_a_list || guide.contains(&name) || guide.contains(&format!("`{command}`"))
    };

    let missing: Vec<_> = sent.iter().filter(|rule| !is_named(rule)).collect();
    assert!(missing.is_empty(), "the guide on operating does not name {missing:?}");
}

#[test]
fn the_threat_model_counts_the_rules_of_the_user() {
    let count = |first: char| {
        let rules = acl::documented_user(acl::USER).filter(|rule| rule.starts_with(first));
        rules.count()
    };
    assert_eq!((count('~'), count('&')), (2, 1));
    let said = format!("the user has {} commands, two prefixes of keys, and one of channels", count('+'));
    assert!(read("dlock-runtime/src/docs/threats.md").contains(&said), "write: {said}");
}

/// Commands whose rules name a subcommand.
const CONTAINERS: [&str; 8] =
    ["CLIENT", "CLUSTER", "CONFIG", "MEMORY", "OBJECT", "PUBSUB", "SCRIPT", "SENTINEL"];
