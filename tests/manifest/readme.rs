//! The texts that readers outside the repository see: the README, the front page of the API
//! documentation, and the published packages.

use std::path::Path;

use super::guides::RUSTDOC_LINKS;
use super::{read, root};

/// The packages that are published, in their order.
const PUBLISHED: [&str; 3] = ["dlock-macros", "dlock-runtime", "dlock-cli"];

/// The most lines of the README: two pages.
const LINES: usize = 200;

/// Returns the targets of Markdown links.
pub(super) fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|after| after.split_once(')').map(|(target, _)| target))
}

/// Returns the anchor of a heading, as Git hosts make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-');
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

pub(super) fn has_heading(text: &str, wanted: &str) -> bool {
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).any(|found| found == wanted)
}

#[test]
fn the_readme_has_two_pages() {
    let lines = read("README.md").lines().count();

    assert!(lines <= LINES, "README.md has {lines} lines: move something to a guide");
}

#[test]
fn every_link_of_the_readme_leads_somewhere() {
    let readme = read("README.md");
    let targets: Vec<&str> = links(&readme).collect();

    assert!(targets.len() > 20, "{targets:?}");
    for target in targets {
        assert!(!target.contains("://"), "{target}: a public address can be missing or move");
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let text = match file {
            "" => readme.clone(),
            folder if root().join(folder).is_dir() => continue,
            file => read(file),
        };
        assert!(heading.is_empty() || has_heading(&text, heading), "{target}: there is no such heading");
    }
}

#[test]
fn every_guide_is_linked_from_the_readme() {
    let readme = read("README.md");

    for entry in std::fs::read_dir(root().join("dlock-runtime/src/docs")).expect("the guides can be listed") {
        let name = entry.expect("the guides can be listed").file_name();
        let name = name.to_str().expect("names are ASCII");
        if name == RUSTDOC_LINKS {
            continue;
        }
        assert!(readme.contains(&format!("(dlock-runtime/src/docs/{name}")), "{name} is not linked");
    }
}

#[test]
fn the_front_page_names_no_private_module() {
    let lib = read("dlock-runtime/src/lib.rs");
    let page: Vec<_> = lib.lines().filter_map(|line| line.strip_prefix("//!")).collect();
    let page_text = page.join("\n");
    let blocks: Vec<_> =
        page_text.split("```text").skip(1).filter_map(|block| block.split("```").next()).collect();
    let private = lib.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let private: Vec<_> = private.collect();

    assert!(private.len() > 10 && page.len() > 40, "{private:?}");
    for module in private {
        let is_listed = blocks.iter().any(|block| block.split([' ', ',', '\n']).any(|word| word == module));
        let is_named = page_text.contains(&format!("`{module}`"));
        assert!(!is_listed && !is_named, "the front page names the private module `{module}`");
    }
}

#[test]
fn every_package_has_a_license_and_a_readme() {
    for package in PUBLISHED {
        for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let own = read(Path::new(package).join(license));
            assert_eq!(own, read(license), "{package}/{license} differs from the one of the project");
        }
        let manifest = read(Path::new(package).join("Cargo.toml"));
        for field in ["description = ", "readme = \"README.md\"", "keywords = ", "categories = "] {
            assert!(manifest.contains(field), "{package} has no `{field}`");
        }
        let readme = read(Path::new(package).join("README.md"));
        for target in links(&readme) {
            assert!(
                target.starts_with("https://"),
                "{package}/README.md: {target} works only in the repository"
            );
        }
    }
}

#[test]
fn the_readme_and_the_package_have_one_first_example() {
    let first = |text: &str| {
        let example = text.split("```rust\n").nth(1).and_then(|after| after.split("```").next());
        example.expect("it has an example").to_owned()
    };

    assert_eq!(first(&read("README.md")), first(&read("dlock-runtime/README.md")));
}
