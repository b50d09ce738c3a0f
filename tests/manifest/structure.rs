//! The structure of `dlock-runtime`: every type has a name of its own, modules import each other in
//! one direction, and names and comments use the project's words.
//!
//! Each check has a list of today's exceptions. An exception that is not needed any more fails the
//! check, so the lists only shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{files, root};

/// Type names that two definitions may share.
const TYPES_OF_ONE_NAME: [&str; 0] = [];

/// Groups of modules that import each other. A new cycle, or a larger one, fails.
const CYCLES: [&[&str]; 4] = [
    // A guard knows the locks of its call chain, which are guards.
    &["engine::hold_guard", "scope"],
    // Nodes and topology of redis.
    &[
        "backend::redis",
        "backend::redis::driver",
        "backend::redis::node",
        "backend::redis::node::health",
        "backend::redis::node::invalidation_tracker",
        "backend::redis::node::pipeline",
        "backend::redis::node::replica_acks",
        "backend::redis::node::waiting_requests",
        "backend::redis::probe",
        "backend::redis::probe::command_check",
        "backend::redis::probe::session",
        "backend::redis::reply_sink",
        "backend::redis::topology",
        "backend::redis::topology::cluster",
        "backend::redis::topology::cluster::primary",
        "backend::redis::topology::cluster::redirects",
        "backend::redis::topology::cluster::slot_map",
        "backend::redis::topology::cluster::slot_migration",
        "backend::redis::topology::discovery",
        "backend::redis::topology::quorum",
        "backend::redis::topology::quorum::membership",
        "builder",
        "doctor",
        "doctor::facts",
        "lock",
        "manager",
        "run",
    ],
    // A target opens connections with fallbacks, which it keeps.
    &["backend::redis::transport::command_fallbacks", "backend::redis::transport::connect_target"],
    // The state machine of one key.
    &[
        "protocol::command",
        "protocol::contender",
        "protocol::foreign_clients",
        "protocol::hold",
        "protocol::holds",
        "protocol::invalidation",
        "protocol::key_state",
        "protocol::reentrancy",
        "protocol::retained",
        "protocol::wait_queue",
    ],
];

/// Words that the project does not use in names, with the word to use instead.
const BANNED: [(&str, &str); 14] = [
    ("lane", "key_state"),
    ("seat", "acquisition"),
    ("bell", "release_channel"),
    ("bells", "release_channels"),
    ("ear", "subscriber"),
    ("pump", "driver"),
    ("muster", "connect"),
    ("whereabouts", "discovery"),
    ("strangers", "foreign_clients"),
    ("told", "notified"),
    ("let_go", "release"),
    ("hand_on", "hand_off"),
    ("anew", "again"),
    ("whoever", "a component"),
];

/// A source file of the runtime without its tests.
struct Source {
    /// The path of its module, such as `engine::shard`.
    module: String,
    /// Its code without comments and strings.
    code: String,
}

/// Returns the sources that are shipped.
fn sources() -> Vec<Source> {
    let src = root().join("dlock-runtime/src");
    files(&src, "rs")
        .into_iter()
        .filter_map(|path| {
            let relative = Path::new(&path).strip_prefix(&src).ok()?.to_str()?.to_owned();
            if is_test(&relative) {
                return None;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{relative}: {error}"));
            let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            Some(Source { module: module_of(&relative), code: without_comments(shipped) })
        })
        .collect()
}

/// Returns `true` if only tests use the file.
pub(super) fn is_test(relative: &str) -> bool {
    const PARTS: [&str; 13] = [
        "tests.rs",
        "tests/",
        "simulation/",
        "simulation.rs",
        "interleavings/",
        "exhaustive/",
        "fuzz_invariants.rs",
        "hostile.rs",
        "throttle_tests.rs",
        "test_node.rs",
        "properties.rs",
        "simulated.rs",
        "protocol/scene.rs",
    ];
    PARTS.iter().any(|part| relative.contains(part))
}

fn module_of(relative: &str) -> String {
    let stem = relative.trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    if stem == "lib" { String::new() } else { stem.replace('/', "::") }
}

/// Returns the code with comments and the contents of strings left out.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        let mut in_string = false;
        let mut characters = line.chars().peekable();
        while let Some(c) = characters.next() {
            match c {
                '\\' if in_string => drop(characters.next()),
                '"' => in_string = !in_string,
                '/' if !in_string && characters.peek() == Some(&'/') => break,
                _ if in_string => {}
                _ => code.push(c),
            }
        }
        code.push('\n');
    }
    code
}

/// Returns the names of the types that the code defines.
fn types(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest.trim_start_matches(|c: char| c != ' ').trim_start(),
            None => line,
        };
        let rest =
            ["struct ", "enum ", "trait ", "union "].iter().find_map(|kind| line.strip_prefix(kind))?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    })
}

/// Returns the modules that the code of `module` imports or names by `crate::`.
fn imports(code: &str, modules: &BTreeSet<&str>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let is_path = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if is_path {
            expand("", &code[at + "crate::".len()..], modules, &mut found);
        }
    }
    found
}

/// Follows a path, or a group of paths in braces, and returns the text behind it.
fn expand<'a>(
    prefix: &str,
    text: &'a str,
    modules: &BTreeSet<&str>,
    found: &mut BTreeSet<String>,
) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand(prefix, rest.trim_start(), modules, found).trim_start();
            match rest.strip_prefix(',') {
                Some(behind) => rest = behind.trim_start(),
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let path = if prefix.is_empty() { text[..end].to_owned() } else { format!("{prefix}::{}", &text[..end]) };
    if let Some(rest) = text[end..].strip_prefix("::") {
        expand(&path, rest, modules, found)
    } else {
        let longest = std::iter::successors(Some(&*path), |path| Some(path.rsplit_once("::")?.0))
            .find(|path| modules.contains(path));
        found.extend(longest.map(str::to_owned));
        text[end..].trim_start_matches('!').trim_start_matches(" as ")
    }
}

/// Returns the groups of modules that can reach each other.
fn cycles(edges: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = edges
        .keys()
        .map(|from| {
            let mut seen = BTreeSet::new();
            let mut open: Vec<_> = edges[from].iter().collect();
            while let Some(module) = open.pop() {
                if seen.insert(module) {
                    open.extend(edges.get(module).into_iter().flatten());
                }
            }
            (from, seen)
        })
        .collect();
    let group = |of: &String| -> Vec<String> {
        let both = |other: &&String| reached[of].contains(*other) && reached[*other].contains(of);
        edges.keys().filter(|other| *other == of || both(other)).cloned().collect()
    };
    edges.keys().map(group).filter(|group| group.len() > 1).collect()
}

#[test]
fn every_type_has_its_own_name() {
    let sources = sources();
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in &sources {
        for name in types(&source.code) {
            places.entry(name).or_default().push(&source.module);
        }
    }
    assert!(places.len() > 200, "found only {} types", places.len());
    places.retain(|_, modules| modules.len() > 1);
    for name in TYPES_OF_ONE_NAME {
        assert!(places.remove(name).is_some(), "`{name}` is defined once: remove it from the exceptions");
    }
    assert!(places.is_empty(), "one type name for several types: {places:#?}");
}

#[test]
fn modules_import_in_one_direction() {
    let sources = sources();
    let modules: BTreeSet<&str> = sources.iter().map(|source| &*source.module).collect();
    let edges: BTreeMap<String, BTreeSet<String>> = sources
        .iter()
        .map(|source| {
            let mut imports = imports(&source.code, &modules);
            imports.remove(&source.module);
            (source.module.clone(), imports)
        })
        .collect();
    assert!(edges.values().map(BTreeSet::len).sum::<usize>() > 300, "found too few imports");
    let found = cycles(&edges);
    let allowed: BTreeSet<Vec<String>> =
        CYCLES.iter().map(|group| group.iter().map(|module| (*module).to_owned()).collect()).collect();
    let new: Vec<_> = found.difference(&allowed).collect();
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(new.is_empty(), "new or changed import cycles: {new:#?}; allowed: {gone:#?}");
    assert!(gone.is_empty(), "these cycles are gone: remove them from the exceptions: {gone:#?}");
}

/// Returns `true` if the module is `folder`, or in it.
fn is_under(module: &str, folder: &str) -> bool {
    module.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Returns the imports of modules under `from` that lead to a module under one of `to`.
fn imports_between(from: &str, to: &[&str]) -> Vec<String> {
    let sources = sources();
    let modules: BTreeSet<&str> = sources.iter().map(|source| &*source.module).collect();
    let of_folder: Vec<_> = sources.iter().filter(|source| is_under(&source.module, from)).collect();
    assert!(!of_folder.is_empty(), "there is no module `{from}`");
    for folder in to {
        assert!(modules.iter().any(|module| is_under(module, folder)), "there is no module `{folder}`");
    }
    of_folder
        .iter()
        .flat_map(|source| imports(&source.code, &modules).into_iter().map(|to| (&source.module, to)))
        .filter(|(_, import)| to.iter().any(|folder| is_under(import, folder)))
        .map(|(module, import)| format!("{module} imports {import}"))
        .collect()
}

#[test]
fn engine_and_backends_know_only_the_port() {
    let wrong = [
        imports_between("backend", &["engine"]),
        imports_between("engine", &["backend::memory", "backend::redis"]),
    ];
    assert!(wrong.iter().all(Vec::is_empty), "use the traits of `backend`: {wrong:#?}");
}

#[test]
fn layers_of_redis_import_in_one_direction() {
    let locks = [
        "backend::redis::encoding",
        "backend::redis::node",
        "backend::redis::reply_sink",
        "backend::redis::topology",
        "protocol::command",
        "protocol::foreign_clients",
        "protocol::lock_value",
    ];
    let wrong = [
        imports_between("backend::redis::transport", &locks),
        imports_between("backend::redis::encoding", &["backend::redis::node", "backend::redis::topology"]),
    ];
    assert!(wrong.iter().all(Vec::is_empty), "the transport knows no locks: {wrong:#?}");
    // `Request` is defined in `backend`, which the imports above cannot name.
    for Source { module, code } in sources() {
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        let sends_requests = is_under(&module, "backend::redis::transport")
            && words.any(|word| ["Command", "Reply", "Request"].contains(&word));
        assert!(!sends_requests, "{module}: the transport sends batches, and does not know their requests");
    }
}

#[test]
fn names_use_the_projects_words() {
    let mut wrong = Vec::new();
    for source in sources() {
        let words = source.code.split(|c: char| !c.is_alphanumeric() && c != '_');
        for word in words.collect::<BTreeSet<_>>() {
            if let Some((_, instead)) = BANNED.iter().find(|(banned, _)| *banned == word) {
                wrong.push(format!("{}: `{word}`: write `{instead}`", source.module));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn imports_are_read_from_groups() {
    let modules = BTreeSet::from(["a", "a::b", "c"]);
    let code = "use crate::a::{self, b::{One, two}, Three}; fn f() -> crate::c::Four {}";

    assert_eq!(imports(code, &modules), BTreeSet::from(["a".into(), "a::b".into(), "c".into()]));
}

#[test]
fn a_cycle_of_imports_is_found() {
    let edges = |text: &str| -> BTreeMap<String, BTreeSet<String>> {
        text.split_whitespace()
            .map(|edge| {
                let (from, to) = edge.split_once('>').expect("an edge");
                (from.to_owned(), BTreeSet::from([to.to_owned()]))
            })
            .collect()
    };

    assert_eq!(cycles(&edges("a>b b>c c>b")), BTreeSet::from([vec!["b".to_owned(), "c".to_owned()]]));
    assert_eq!(cycles(&edges("a>b b>c c>d")), BTreeSet::new());
}
