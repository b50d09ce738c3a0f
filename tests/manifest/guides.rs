//! The links of the guides. They lead to items in the documentation, and to files for readers of
//! the sources: see `docs` in `dlock-runtime/src/lib.rs`.

use std::collections::BTreeMap;

use super::readme::has_heading;
use super::{files, read, root};

const FOLDER: &str = "dlock-runtime/src/docs";
/// The targets of the links in the documentation. It is no guide.
pub(super) const RUSTDOC_LINKS: &str = "rustdoc_links.md";

/// Returns the link definitions of a text: labels, with their targets.
fn definitions(text: &str) -> BTreeMap<&str, &str> {
    let definitions = text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    definitions.filter(|(label, _)| !label.contains(']')).collect()
}

/// Returns the labels of the links in a text, such as `keys` of `[the guide][keys]`.
fn labels(text: &str) -> Vec<&str> {
    let prose = text.split("\n```").step_by(2).flat_map(|part| part.split("][").skip(1));
    prose.filter_map(|rest| rest.split_once(']').map(|(label, _)| label)).collect()
}

/// Returns the problem of each kind of inline link that only rustdoc follows.
fn inline_items(text: &str) -> impl Iterator<Item = String> {
    ["](crate::", "](macro@"].into_iter().filter(move |inline| text.contains(*inline)).map(|inline| {
        format!("`{inline}` leads nowhere in the sources: write `[text][label]`, and define it at the end")
    })
}

/// Returns what is wrong with the links of a guide.
fn problems(guide: &str, text: &str, in_rustdoc: &BTreeMap<&str, &str>) -> Vec<String> {
    let (defined, used) = (definitions(text), labels(text));
    let mut found: Vec<String> = inline_items(text).collect();
    for label in &used {
        if !defined.contains_key(label) {
            found.push(format!("add `[{label}]: FILE` at the end"));
        }
        if !in_rustdoc.contains_key(label) {
            found.push(format!("add `[{label}]: crate::ITEM` to {RUSTDOC_LINKS}"));
        }
    }
    for (label, target) in &defined {
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let path = root().join(FOLDER).join(file);
        if !used.contains(label) {
            found.push(format!("`[{label}]` is not used"));
        } else if !path.is_file() {
            found.push(format!("`[{label}]` leads to {file}, which does not exist"));
        } else if !heading.is_empty() && !has_heading(&read(&path), heading) {
            found.push(format!("{file} has no heading `#{heading}`"));
        }
    }
    let own = text.split("](#").skip(1).filter_map(|rest| rest.split_once(')').map(|(heading, _)| heading));
    found.extend(
        own.filter(|heading| !has_heading(text, heading)).map(|heading| format!("no heading `#{heading}`")),
    );
    found.iter().map(|problem| format!("{guide}: {problem}")).collect()
}

#[test]
fn every_link_of_a_guide_leads_to_an_item_and_to_a_file() {
    let rustdoc = read(format!("{FOLDER}/{RUSTDOC_LINKS}"));
    let in_rustdoc = definitions(&rustdoc);
    let mut wrong = Vec::new();
    let mut unused = in_rustdoc.clone();
    for entry in std::fs::read_dir(root().join(FOLDER)).expect("the guides can be listed") {
        let name =
            entry.expect("the guides can be listed").file_name().into_string().expect("names are ASCII");
        if name != RUSTDOC_LINKS {
            let text = read(format!("{FOLDER}/{name}"));
            wrong.extend(problems(&name, &text, &in_rustdoc));
            let used = labels(&text);
            unused.retain(|label, _| !used.contains(label));
        }
    }
    for (label, target) in &in_rustdoc {
        // The label of a guide is its name, so both targets are the same place.
        let is_other = target.strip_prefix("crate::docs::").is_some_and(|guide| guide != *label);
        wrong.extend(is_other.then(|| format!("{RUSTDOC_LINKS}: `[{label}]` leads to {target}")));
    }

    for attribute in ["distributed_lock", "idempotent", "key_part", "scheduled"] {
        let text = read(format!("dlock-macros/src/docs/{attribute}.md"));
        wrong.extend(inline_items(&text).map(|problem| format!("{attribute}.md: {problem}")));
    }

    // Markdown compares labels without case.
    let folded: BTreeMap<_, _> = in_rustdoc.keys().map(|label| (label.to_lowercase(), label)).collect();
    assert_eq!(folded.len(), in_rustdoc.len(), "{RUSTDOC_LINKS}: two labels differ only in case");
    assert!(in_rustdoc.len() > 30, "{in_rustdoc:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(unused.is_empty(), "{RUSTDOC_LINKS}: no guide uses {unused:?}");
}

#[test]
fn dead_links_of_a_guide_are_found() {
    let in_rustdoc = definitions("[keys]: crate::docs::keys");
    let text = "# One\n[a][keys], [b][keys#no], [c][gone], [d](crate::docs::keys), [e](#two), [f](#one)\n\n[keys]: keys.md\n[keys#no]: keys.md#no\n[spare]: keys.md\n";

    let found = problems("a.md", text, &in_rustdoc).join("\n");

    for problem in [
        "](crate::",
        "[keys#no]: crate::ITEM",
        "[gone]: FILE",
        "keys.md has no heading `#no`",
        "[spare]",
        "`#two`",
    ] {
        assert!(found.contains(problem), "{problem} is not in:\n{found}");
    }
    assert_eq!(found.lines().count(), 7, "{found}");
}

/// Returns the rows of the tables of bounds in the guide on operating, each by its first cell.
fn bounds(guide: &str) -> Vec<&str> {
    let section = guide.split("\n# ").find(|section| section.starts_with("Bounds\n"));
    let cells = section.expect("the guide has this section").lines();
    let cells = cells.filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    cells.filter(|cell| *cell != "bound").collect()
}

/// `bounds::assert_listed` compares a row with the constants of the code.
#[test]
fn each_bound_of_the_guide_is_compared_with_the_code_or_has_a_test() {
    let guide = read(format!("{FOLDER}/operating.md"));
    let sources: Vec<_> = files(&root().join("dlock-runtime/src"), "rs").iter().map(read).collect();
    let compared: Vec<&str> = sources
        .iter()
        .flat_map(|text| text.split("assert_listed(").skip(1))
        .filter_map(|behind| behind.trim_start().strip_prefix('"')?.split('"').next())
        .collect();
    let rows = bounds(&guide);
    assert!(rows.len() > 25, "{rows:?}");
    for row in &rows {
        let shown = SHOWN.iter().find(|(start, _, _)| row.starts_with(start));
        let is_shown = shown.is_some_and(|(_, file, test)| read(file).contains(&format!("fn {test}(")));
        assert!(
            is_shown || compared.iter().any(|start| row.starts_with(start)),
            "no test shows the bound {row:?}"
        );
    }
    let gone = SHOWN.iter().find(|(start, _, _)| !rows.iter().any(|row| row.starts_with(start)));
    assert_eq!(gone, None, "the guide has no such row");
}

/// Bounds that no constant states: the start of the row, and the test that shows the bound.
const SHOWN: [(&str, &str, &str); 4] = [
    ("time of one reply", "tests/bad_input/reasons.rs", "replies_that_trickle_end_at_the_limits"),
    (
        "threads that read certificate files",
        "dlock-runtime/src/config/certificate_reader.rs",
        "a_read_that_hangs_ends_in_time_and_starts_no_second_thread",
    ),
    (
        "time of one script",
        "dlock-runtime/src/backend/redis/simulation/foreign_values.rs",
        "half_a_gigabyte_in_a_key_costs_no_time",
    ),
    (
        "time of the search for an owner",
        "tests/connectivity/inspect.rs",
        "long_channels_of_other_clients_hide_no_owner",
    ),
];
