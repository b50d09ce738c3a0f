//! The guides on proof and threats: every test that they name exists and runs, and no required row
//! is missing.
//!
//! These checks cannot show that a test proves its row. Review and seeded bugs do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::{read, root};

const GUIDE: &str = "dlock-runtime/src/docs/proof.md";
/// The claims of the threat model are checked in the same way.
const THREATS: &str = "dlock-runtime/src/docs/threats.md";

/// The required rows of the guide, by kind.
const ROWS: [&[&str]; 13] = [
    &["always 1", "always 2", "always 3", "always 4", "always 5"],
    &["R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9"],
    &[
        "S1c", "S2", "S3c", "S4", "S5c", "S6", "S7", "S8", "S9c", "S10c", "S11c", "S12", "S13", "S14",
        "S15c", "S16", "S17c", "S18", "S19", "S20", "S21", "S22", "S23", "S24",
    ],
    &["N1", "N2", "N3", "N4", "N5", "N6", "N7", "N8", "N9", "N10", "N11", "N12", "N13"],
    &["P1", "P2", "P3", "P4", "P5", "P6", "P8", "P9", "P10", "P11", "P12"],
    &["T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9", "T10", "T11", "T12"],
    &["C1c", "C2", "C3", "C4"],
    &["G1", "G2", "G4", "G5", "G6", "G7", "G8"],
    &["I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9"],
    &["H1", "H2", "H3", "H4", "H5", "H6"],
    &["O1", "O2", "O3", "O4", "O5", "O6", "O7", "O8", "O9", "O10", "O11", "O12"],
    &["K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8", "K9", "K10", "K11", "K12", "K13", "K14"],
    &["L1", "L2", "L3", "L4", "L5", "L6", "L7"],
];

/// Rows without a test. The guide must state that instead.
const NOT_SHOWN: [&str; 0] = [];

/// The rows of a guide's tables by name, each with its tests and whether it states that it has
/// none.
fn rows(guide: &str) -> BTreeMap<String, (BTreeSet<String>, bool)> {
    let mut rows = BTreeMap::new();
    for line in guide.lines() {
        let cells: Vec<_> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
        // A row of two cells is a definition and claims nothing.
        let [name, _, .., tests] = cells[..] else { continue };
        let number = name.trim_start_matches("always ").trim_start_matches(|c: char| c.is_ascii_uppercase());
        let is_a_name = number != name && number.trim_end_matches('c').parse::<u8>().is_ok();
        if line.starts_with('|') && is_a_name {
            let row = (named(tests).collect(), tests.contains("no test"));
            assert!(rows.insert(name.to_owned(), row).is_none(), "{name}: two rows");
        }
    }
    rows
}

/// The test names in a text: each quoted path that starts with one of [`ROOTS`].
fn named(text: &str) -> impl Iterator<Item = String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let names = quoted.filter(|word| !word.ends_with("::"));
    names.filter(|word| ROOTS.iter().any(|(root, _)| word.starts_with(root))).map(str::to_owned)
}

/// The prefixes of test names, and the directories of their files.
const ROOTS: [(&str, &str); 7] = [
    ("dlock-calendar/", "dlock-calendar/"),
    ("interleavings/", "dlock-runtime/interleavings/"),
    ("schedules/", "dlock-runtime/schedules/"),
    ("tests/", "tests/"),
    ("ui-tests/", "ui-tests/"),
    ("dlock-runtime::", "dlock-runtime/src/"),
    ("dlock-macros::", "dlock-macros/src/"),
];

/// Returns why the test `name` does not run, or `None` if it does.
fn problem(name: &str) -> Option<String> {
    let (modules, test) = name.rsplit_once("::")?;
    let (prefix, folder) = ROOTS.iter().find(|(prefix, _)| name.starts_with(prefix))?;
    let path = format!("{folder}{}", modules.strip_prefix(prefix).unwrap_or_default().replace("::", "/"));
    let files: Vec<PathBuf> = ["", "/main", "/mod", "/tests"]
        .into_iter()
        .map(|end| root().join(format!("{path}{end}.rs")))
        .filter(|file| file.is_file())
        .collect();
    if files.is_empty() {
        return Some(format!("{name}: there is no {path}.rs"));
    }
    let runs =
        files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).any(|text| is_run(&text, test));
    (!runs).then(|| format!("{name}: no such test is run"))
}

/// Returns `true` if a source file has a test of this name that is not ignored.
fn is_run(source: &str, test: &str) -> bool {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let declared = |line: &&str| {
        let rest = line.trim_start_matches("pub ").trim_start_matches("async ").strip_prefix("fn ");
        rest.and_then(|rest| rest.strip_prefix(test)).is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    let Some(at) = lines.iter().position(declared) else { return false };
    let attributes: Vec<_> =
        lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '/'])).collect();
    if attributes.iter().any(|line| line.starts_with("#[ignore")) {
        return false;
    }
    let marks = ["#[test", "#[tokio::test"];
    let is_marked = attributes.iter().any(|line| marks.iter().any(|mark| line.starts_with(mark)));
    // A macro may generate the test: `contract![a_name, another_name; in_order: a_third];`
    let is_listed = || {
        let list = lines[..at].join(" ");
        let lists = list.split("![").skip(1).filter_map(|rest| rest.split_once("];"));
        lists.flat_map(|(names, _)| names.split([',', ' '])).any(|name| name.trim() == test)
    };
    is_marked || is_listed()
}

#[test]
fn every_test_that_the_guides_name_is_run() {
    let problems: Vec<_> = [GUIDE, THREATS]
        .into_iter()
        .flat_map(|guide| named(&read(guide)).filter(|name| name.contains("::")).collect::<Vec<_>>())
        .filter_map(|name| problem(&name))
        .collect();

    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_row_is_there_and_names_a_test() {
    let rows = rows(&read(GUIDE));
    let wanted: BTreeSet<_> = ROWS.concat().into_iter().collect();

    let there: BTreeSet<_> = rows.keys().map(String::as_str).collect();
    let without: BTreeSet<_> =
        rows.iter().filter(|(_, (tests, _))| tests.is_empty()).map(|(name, _)| &**name).collect();
    let admitted: BTreeSet<_> = rows.iter().filter(|(_, (_, none))| *none).map(|(name, _)| &**name).collect();

    assert_eq!(there, wanted, "rows of the guide, and those that it must have");
    assert_eq!(without, BTreeSet::from(NOT_SHOWN), "rows without a test");
    assert_eq!(admitted, BTreeSet::from(NOT_SHOWN), "rows that state that they have none");
}

/// The rows that name the bulk fault test are exactly those that it executes.
#[test]
fn rows_of_the_bulk_fault_test_match_the_guide() {
    let sources = ["clocks", "network", "process", "quorum", "server"];
    let sources: String = sources.iter().map(|file| read(format!("tests/faults/rows/{file}.rs"))).collect();
    let quoted = ["row(\"", "name: \""].into_iter().flat_map(|mark| sources.split(mark).skip(1));
    // `S5`, where one server of three loses its data, is a milder case of a row that may lose
    // locks.
    let played: BTreeSet<_> =
        quoted.filter_map(|rest| rest.split('"').next()).filter(|name| *name != "S5").collect();

    let rows = rows(&read(GUIDE));
    let is_said = |tests: &BTreeSet<String>| tests.contains("tests/faults::no_fault_breaks_a_promise");
    let said: BTreeSet<_> =
        rows.iter().filter(|(_, (tests, _))| is_said(tests)).map(|(name, _)| &**name).collect();

    assert_eq!(said, played, "rows of the guide, and those of `tests/faults`");
}

/// Each claim of the threat model names a test, or states that it is out of scope.
#[test]
fn every_threat_claim_names_a_test_or_is_out_of_scope() {
    let guide = read(THREATS);
    let claims = guide.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what "));
    let bare: Vec<_> =
        claims.filter(|line| named(line).next().is_none() && !line.contains("out of scope")).collect();

    assert!(bare.is_empty(), "{bare:#?}");
    assert!(named(&guide).count() > 20, "the tables are not recognized");
}

/// A check that cannot fail proves nothing.
#[test]
fn defects_of_a_guide_are_detected() {
    let source = "contract![\n    a_listed_one,\n    another,\n];\n\n#[test]\nfn it_runs() {}\n\n#[test]\n#[ignore]\nfn it_is_ignored() {}\n\nfn no_test() {}\n\nasync fn a_listed_one(world: World) {}";
    let found = ["it_runs", "a_listed_one", "it_is_ignored", "no_test", "another", "missing"];
    assert_eq!(found.map(|name| is_run(source, name)), [true, true, false, false, false, false]);

    assert!(problem("tests/lock_loss::data::a_flush_loses_all_locks").is_none());
    assert!(problem("tests/lock_loss::data::a_flush_loses_no_lock").is_some());
    assert!(problem("tests/lock_loss::no_such_file::a_flush_loses_all_locks").is_some());

    let rows = rows(
        "| S1c | killed | J1 | `tests/lock_loss::data::x`, `J1` |\n| S2 | killed | J1 | no test |\n| word | a | b | c |",
    );
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["S1c", "S2"]);
    assert_eq!(rows["S1c"].0.len(), 1);
    assert!(rows["S2"].0.is_empty() && rows["S2"].1);
}
