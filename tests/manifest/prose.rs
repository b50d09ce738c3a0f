//! The wording and the width of prose: comments, rustdoc, guides, and texts that users see.
//!
//! A rule is a phrase that has a plainer replacement and no other meaning in this project. Code in
//! backticks is not prose, so it may contain any word. Texts of a program are its string literals;
//! those of tests are data.

use std::path::{Path, PathBuf};

use super::{read, root};

/// The number of columns of a line of prose.
const WIDTH: usize = 100;

/// Lines of prose that are too long today: a file and their number. The list only shrinks.
const TOO_LONG: [(&str, usize); 0] = [];

/// Phrases that are never used, with what to write instead.
const BANNED: &[(&[&str], &str)] = &[
    (&["anew"], "again"),
    (&["and else"], "otherwise"),
    (&["befall", "befalls", "befell"], "affect, happen"),
    (&["believe", "believed", "believes", "believing"], "consider valid"),
    (&["beside"], "next to, in addition to"),
    (&["bell", "bells"], "release channel"),
    (&["for who", "by who", "of who", "to who", "than who", "with who"], "the component: a waiter, a caller"),
    (&["whoever", "whomever", "anybody", "nobody", "somebody"], "the component: no process, a waiter"),
    (&["he", "his", "him", "himself"], "it: a task and a process are things"),
    (&["heard", "hears", "hear"], "receive, observe"),
    (&["hand on", "handed on", "hands on"], "hand off"),
    (&["in place of"], "instead of"),
    (&["is told", "are told", "was told", "were told", "be told", "been told"], "be notified, receive"),
    (&["lane", "lanes"], "key state"),
    (&["let go", "lets go", "letting go"], "release"),
    (&["looked at"], "checked, polled"),
    (&["muster", "musters"], "connect"),
    (&["not here:"], "See also"),
    (&["of ours", "of theirs"], "the component: of this process"),
    (&["prolong", "prolongs", "prolonged"], "renew, extend"),
    (&["pump", "pumps"], "driver"),
    (&["put off", "puts off", "putting off"], "defer"),
    (&["seat", "seats"], "acquisition"),
    (&["stranger", "strangers"], "foreign client"),
    (&["tells of", "tells the", "tells it", "tells its"], "notify, report"),
    (&["the whole fleet"], "all processes"),
    (&["trip", "trips"], "round trip"),
    (&["weather"], "fault profile"),
    (&["whereabouts"], "discovery"),
];

/// Words that narrate history or have no bound. The texts of a program may report a change or ask
/// for patience, and the changelog may compare versions.
const BANNED_IN_DOCS: &[(&[&str], &str)] = &[
    (&["a moment"], "a time with a unit"),
    (&["by now"], "a condition: if .. has"),
    (&["no longer", "not any longer"], "a state: not, at most"),
    (&["since then"], "after ..: name the event"),
];

/// Where a piece of prose is from.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A comment, rustdoc, or Markdown.
    Doc,
    /// A string literal of a published crate.
    Text,
}

/// The prose of one line.
#[derive(Debug)]
struct Prose {
    line: usize,
    kind: Kind,
    text: String,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::Doc { "doc" } else { "text" })
    }
}

/// Returns the paths of all files with prose, relative to the root.
fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(&root(), Path::new(""), &mut found);
    found.sort();
    found
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
    const SKIPPED: [&str; 4] = ["target", "node_modules", "corpus", "wip"];
    for entry in std::fs::read_dir(root.join(folder)).expect("the folder can be listed") {
        let entry = entry.expect("the folder can be listed");
        let name = entry.file_name().into_string().expect("names are ASCII");
        let path = folder.join(&name);
        let is_hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
        if is_hidden || SKIPPED.contains(&&*name) {
            continue;
        }
        if entry.file_type().expect("the entry has a type").is_dir() {
            collect(root, &path, found);
        } else if comment_of(&path).is_some() {
            found.push(path);
        }
    }
}

/// Returns what starts a comment in a file, and an empty string for Markdown.
fn comment_of(path: &Path) -> Option<&'static str> {
    if path.ends_with(".ci/run") {
        return Some("#");
    }
    match path.extension()?.to_str()? {
        "md" => Some(""),
        "rs" | "go" | "java" | "js" | "c" => Some("//"),
        "lua" => Some("--"),
        "sh" | "toml" | "py" => Some("#"),
        _ => None,
    }
}

/// Returns `true` if string literals of the file are texts that users see.
fn has_texts(path: &Path) -> bool {
    let published = ["dlock-runtime/src", "dlock-macros/src", "dlock-cli/src", "examples"];
    path.extension().is_some_and(|extension| extension == "rs")
        && published.iter().any(|folder| path.starts_with(folder))
        && !super::structure::is_test(&path.to_string_lossy())
}

/// Returns the prose of a file.
fn prose(path: &Path, text: &str) -> Vec<Prose> {
    let comment = comment_of(path).expect("a file with prose");
    if path.extension().is_some_and(|extension| extension == "rs") {
        let shipped =
            if has_texts(path) { text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len()) } else { 0 };
        return prose_of_rust(text, shipped);
    }
    let of_line = |(at, line): (usize, &str)| {
        let text = line.trim_start().strip_prefix(comment)?;
        Some(Prose { line: at + 1, kind: Kind::Doc, text: text.trim().to_owned() })
    };
    text.lines().enumerate().filter_map(of_line).collect()
}

/// Returns the comments of Rust code, and the string literals before `shipped`.
fn prose_of_rust(text: &str, shipped: usize) -> Vec<Prose> {
    let mut found: Vec<Prose> = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = if rest.starts_with("//") {
            let comment = rest.lines().next().unwrap_or_default();
            let text = comment.trim_start_matches(['/', '!']).trim().to_owned();
            found.push(Prose { line, kind: Kind::Doc, text });
            comment.len()
        } else if let Some((start, length)) = literal(rest) {
            let within = rest[..length].lines().enumerate().map(|(next, part)| {
                let part = if next == 0 { part.get(start..).unwrap_or_default() } else { part };
                Prose {
                    line: line + next,
                    kind: Kind::Text,
                    text: part.trim().trim_end_matches('\\').to_owned(),
                }
            });
            found.extend(within.filter(|_| at < shipped));
            length
        } else {
            c.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

/// Returns the length of the string or character that the code starts with, and that of its prefix.
fn literal(code: &str) -> Option<(usize, usize)> {
    if let Some(raw) = code.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let content = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some((hashes + 2, hashes + 2 + content.find(&end)? + end.len()));
    }
    let quote = code.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let mut characters = code.char_indices().skip(1);
    let mut count = 0;
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => drop(characters.next()),
            c if c == quote => return Some((1, at + 1)),
            // A lifetime, not a character.
            _ if quote == '\'' && count > 0 && !code[1..].starts_with('\\') => return None,
            _ => {}
        }
        count += 1;
    }
    None
}

/// Returns the first banned phrase that starts in the second of three lines, with what to write
/// instead.
fn banned(kind: Kind, may_narrate: bool, lines: [&str; 3]) -> Option<(&'static str, &'static str)> {
    let [before, text, after] = lines.map(|line| without_code(&line.to_lowercase()));
    let own = before.len() + 1..before.len() + 1 + text.len();
    let whole = format!("{before} {text} {after}");
    let docs = if kind == Kind::Doc && !may_narrate { BANNED_IN_DOCS } else { &[] };
    let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
    for (phrases, instead) in BANNED.iter().chain(docs) {
        for phrase in *phrases {
            let found = whole.match_indices(phrase).any(|(at, _)| {
                let (left, right) = (&whole[..at], &whole[at + phrase.len()..]);
                let is_round_trip = phrase.starts_with("trip")
                    && ["round ", "round-"].iter().any(|round| left.ends_with(round));
                own.contains(&at)
                    && !left.ends_with(is_in_word)
                    && !right.starts_with(is_in_word)
                    && !is_round_trip
            });
            if found {
                return Some((phrase, instead));
            }
        }
    }
    None
}

/// Returns the text without code in backticks.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Returns the lines of prose that are too long: their number and length. Tables, links, and code
/// blocks may be longer.
fn too_long(path: &Path, text: &str) -> Vec<(usize, usize)> {
    let comment = comment_of(path).expect("a file with prose");
    let mut in_block = false;
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some(prose) = line.trim_start().strip_prefix(comment) else {
            in_block = false;
            continue;
        };
        let prose = prose.trim_start_matches(['/', '!']).trim_start();
        if prose.starts_with("```") {
            in_block = !in_block;
        }
        let is_link = prose.contains("](") || prose.contains("://") || prose.contains("]: ");
        let length = line.chars().count();
        if length > WIDTH && !in_block && !is_link && !prose.starts_with('|') {
            found.push((at + 1, length));
        }
    }
    found
}

#[test]
fn prose_uses_plain_words() {
    let mut wrong = Vec::new();
    let files = files();
    assert!(files.len() > 400, "found only {} files", files.len());
    for path in &files {
        let may_narrate = path.ends_with("CHANGELOG.md");
        let lines = prose(path, &read(path));
        for (at, Prose { line, kind, text }) in lines.iter().enumerate() {
            let next_to = |at: Option<usize>, number: usize| {
                let line = at.and_then(|at| lines.get(at));
                line.filter(|other| other.kind == *kind && other.line == number)
                    .map_or("", |other| &*other.text)
            };
            let around = [next_to(at.checked_sub(1), line - 1), text, next_to(Some(at + 1), line + 1)];
            if let Some((phrase, instead)) = banned(*kind, may_narrate, around) {
                wrong.push(format!("{}:{line}: \"{phrase}\": write: {instead}", path.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} lines with words that this project does not use:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn prose_is_at_most_100_columns_wide() {
    let mut wrong = Vec::new();
    for path in files() {
        let found = too_long(&path, &read(&path));
        if let Some((name, count)) = TOO_LONG.iter().find(|(name, _)| path.ends_with(name)) {
            assert_eq!(found.len(), *count, "{name}: correct the exceptions");
            continue;
        }
        for (line, length) in found {
            wrong.push(format!("{}:{line}: {length} columns: wrap at {WIDTH}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{} lines are too long:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn comments_and_literals_of_rust_are_separated() {
    let code = "//! One.\nfn f<'a>(c: char) -> &'a str { // two\n  let _ = c == '\"' || c == '\\'';\n  \"th\\\"ree // \\\n   four\"\n}\nr#\"fi\"ve\"# 'x'";

    let found: Vec<_> = prose_of_rust(code, code.len())
        .into_iter()
        .map(|Prose { line, kind, text }| format!("{line} {kind:?} {text}"))
        .collect();

    let texts = ["4 text th\\\"ree // ", "5 text four\"", "7 text fi\"ve\"#"];
    for text in ["1 doc One.", "2 doc two"].iter().chain(&texts) {
        assert!(found.iter().any(|line| line == text), "`{text}` is not in {found:#?}");
    }
    assert!(prose_of_rust(code, 0).iter().all(|prose| prose.kind == Kind::Doc));
}

#[test]
fn banned_phrases_are_found_across_lines_but_not_in_code() {
    let of = |text, next| banned(Kind::Doc, false, ["", text, next]).map(|(phrase, _)| phrase);

    assert_eq!(of("The lock is acquired Anew.", ""), Some("anew"));
    assert_eq!(of("It can let", "go of it."), Some("let go"));
    assert_eq!(of("Renewed. It can", "let go of it."), None);
    assert_eq!(of("The `anew` of `let go`, and he_is, lanes-free", ""), Some("lanes"));
    assert_eq!(of("The type `anew`, and the", ""), None);
    assert_eq!(of("It is no longer held.", ""), Some("no longer"));
    assert_eq!((of("A round-trip, two round trips", ""), of("two trips", "")), (None, Some("trips")));
    assert_eq!(banned(Kind::Doc, false, ["one round", "trip later", ""]), None);
    assert_eq!(banned(Kind::Text, false, ["", "is no longer held", ""]), None);
    assert_eq!(banned(Kind::Doc, true, ["", "It is no longer held.", ""]), None);
}

#[test]
fn long_lines_are_found_outside_of_tables_links_and_code() {
    let long = "word ".repeat(21);
    let at = |name: &str, text: &str| {
        too_long(Path::new(name), text).into_iter().map(|(line, _)| line).collect::<Vec<_>>()
    };

    assert_eq!(at("a.md", &format!("short\n{long}")), [2]);
    assert_eq!(at("a.rs", &format!("/// {long}\nlet a = \"{long}\";")), [1]);
    assert_eq!(at("a.sh", &format!("# {long}")), [1]);
    assert_eq!(at("a.md", &format!("| {long}\n[a](b) {long}\n```\n{long}\n```\n")), [0; 0]);
    assert_eq!(at("a.rs", &format!("/// ```\n/// {long}\n/// ```\n/// {long}")), [4]);
}
