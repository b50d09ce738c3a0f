//! The pages for contributors and the note on the backend port: every file, type, and function that
//! they name exists, their links lead somewhere, and the note has every method of the port.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use super::readme::{has_heading, links};
use super::{read, root};

/// The pages for contributors.
const PAGES: [&str; 4] = ["CONTRIBUTING.md", "DESIGN.md", "tests/README.md", "benches/README.md"];

/// The folders whose sources the pages describe.
const SOURCES: [&str; 4] = ["dlock-calendar/src", "dlock-macros/src", "dlock-runtime/src", "tests"];

/// The folders that their paths may start from, next to the root.
const BASES: [&str; 5] = [
    "",
    "dlock-runtime/src/",
    "dlock-runtime/src/protocol/",
    "dlock-runtime/src/backend/redis/",
    "dlock-runtime/src/backend/redis/encoding/scripts/",
];

/// Placeholders for any other name.
const EXAMPLES: [&str; 2] = ["name.rs", "subject_condition_result"];

/// The names in one source file.
struct Source {
    words: HashSet<String>,
    functions: HashSet<String>,
    types: HashSet<String>,
}

impl Source {
    fn new(text: &str) -> Self {
        let mut source = Self { words: HashSet::new(), functions: HashSet::new(), types: HashSet::new() };
        let mut before = "";
        for word in text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()) {
            match before {
                "fn" | "mod" => drop(source.functions.insert(word.to_owned())),
                "enum" | "struct" => drop(source.types.insert(word.to_owned())),
                _ => {}
            }
            source.words.insert(word.to_owned());
            before = word;
        }
        source
    }

    /// Returns `true` if `member` is a function next to the type `of`, or a part of the type.
    fn has_member(&self, of: &str, member: &str) -> bool {
        let is_function = self.functions.contains(member) && self.words.contains(of);
        is_function || (self.types.contains(of) && self.words.contains(member))
    }
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = SOURCES.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be listed") {
            let path = entry.expect("the folder can be listed").path();
            if path.is_dir() && !path.ends_with("target") && !path.ends_with("node_modules") {
                folders.push(path);
            } else if is_source(&path) {
                found.push(Source::new(&std::fs::read_to_string(&path).expect("a source is text")));
            }
        }
    }
    found
}

fn is_source(path: &Path) -> bool {
    // This file names what does not exist.
    path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("manifest/contributing.rs")
}

/// Returns the words in backticks, outside of code blocks.
fn quoted(text: &str) -> BTreeSet<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2)).filter(|word| !word.contains(' ')).collect()
}

fn is_path(word: &str) -> bool {
    let ends = [".rs", ".lua", ".md", ".sh", ".tsv", ".toml", ".jsonl"];
    let is_pattern = word.contains(['<', '*', ':', '@']) || word.starts_with('/');
    !is_pattern && (word.contains('/') || ends.iter().any(|end| word.ends_with(end)))
}

/// Returns `true` if the word looks like the name of a type, a function, or a constant.
fn is_name(word: &str) -> bool {
    let is_identifier = word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_compound = word.contains(|c: char| c == '_' || c.is_ascii_uppercase());
    is_identifier && is_compound && word.len() > 3 && !word.starts_with("DLOCK_")
}

/// Returns why a word in backticks is wrong.
fn problem(sources: &[Source], word: &str) -> Option<String> {
    if EXAMPLES.contains(&word) {
        return None;
    }
    if is_path(word) {
        let exists = BASES.iter().any(|base| root().join(base).join(word).exists());
        return (!exists).then(|| format!("`{word}`: there is no such file or folder"));
    }
    if let Some((path, member)) = word.rsplit_once("::") {
        let of = path.rsplit("::").next().unwrap_or(path);
        let is_module = of.starts_with(|c: char| c.is_ascii_lowercase());
        let is_found = |source: &Source| {
            if is_module { source.functions.contains(member) } else { source.has_member(of, member) }
        };
        return (!sources.iter().any(is_found)).then(|| format!("`{word}`: `{of}` has no `{member}`"));
    }
    let is_missing = is_name(word) && !sources.iter().any(|source| source.words.contains(word));
    is_missing.then(|| format!("`{word}`: no source has this name"))
}

#[test]
fn contributing_and_design_name_only_what_exists() {
    let sources = sources();
    let (mut checked, mut problems) = (0, Vec::new());
    for page in PAGES {
        for word in quoted(&read(page)) {
            checked += usize::from(is_path(word) || is_name(word) || word.contains("::"));
            problems.extend(problem(&sources, word).map(|problem| format!("{page}: {problem}")));
        }
    }

    assert!(checked > 150 && sources.len() > 300, "{checked} names, {} files", sources.len());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn links_of_contributing_and_design_lead_somewhere() {
    let mut checked = 0;
    for page in PAGES {
        let text = read(page);
        let folder = Path::new(page).parent().expect("a page is in a folder");
        for target in links(&text) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() { text.clone() } else { read(folder.join(file)) };
            assert!(heading.is_empty() || has_heading(&linked, heading), "{page}: {target}: no such heading");
            checked += 1;
        }
    }
    assert!(checked > 8, "{checked} links");
}

#[test]
fn the_note_on_the_port_has_every_method() {
    let (traits, note) =
        (read("dlock-runtime/src/backend/mod.rs"), read("dlock-runtime/src/backend/PORT.md"));
    let methods =
        traits.lines().filter_map(|line| line.strip_prefix("    fn ")?.split_once('(')).map(|(name, _)| name);
    // The facts have a table of their own.
    let methods: BTreeSet<_> = methods.filter(|method| *method != "capabilities").collect();
    let tables = note.split("## ").filter(|section| section.starts_with("Methods of"));
    let rows = tables.flat_map(str::lines).filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let named = rows.flat_map(|cell| cell.split(", ")).map(|word| word.trim_matches('`'));
    let named: BTreeSet<_> = named.map(|word| word.split('(').next().unwrap_or(word)).collect();

    assert!(methods.len() > 15, "{methods:?}");
    assert_eq!(named, methods, "methods in PORT.md, and those in mod.rs");
}

#[test]
fn names_that_do_not_exist_are_found() {
    let sources = [
        Source::new(
            "enum Command { Renew, Release } impl KeyState { fn on_reply(self) { HoldGuard::poll() } }",
        ),
        Source::new("pub(super) mod renewal; fn due() { min_hold }"),
    ];
    let found = |word| problem(&sources, word);

    for wrong in [
        "KeyState::on_repl",
        "Command::Due",
        "Hold::due",
        "engine/turn.rs",
        "renewal::dues",
        "HoldTerms",
        "is_due",
    ] {
        assert!(found(wrong).is_some(), "`{wrong}` is not reported");
    }
    for right in [
        "KeyState::on_reply",
        "Command::Renew",
        "engine/call.rs",
        "holds.rs",
        "renewal::due",
        "min_hold",
        "key",
    ] {
        assert_eq!(found(right), None);
    }
}
