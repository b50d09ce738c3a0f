//! The words of the attribute and of the URL: a name has the same meaning in both, and each knows
//! the options of the other.

use super::read;

/// Returns the strings of a constant in a source file.
fn strings(path: &str, constant: &str) -> Vec<String> {
    let text = read(path);
    let (_, rest) = text.split_once(&format!("const {constant}:")).expect("the constant exists");
    let end = ["\n];", "\";"].iter().filter_map(|end| rest.find(end)).min().expect("the constant ends");
    rest[..=end].split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the words of a list in a source file, which spaces or line breaks separate.
fn words(list: &str) -> impl Iterator<Item = String> {
    list.split_whitespace().filter(|word| *word != "\\").map(str::to_owned)
}

/// Returns the words in all strings of a constant in a source file.
fn all_words(path: &str, constant: &str) -> Vec<String> {
    strings(path, constant).iter().flat_map(|list| words(list)).collect()
}

/// Returns the names of other libraries in a source file, with the names in dlock.
fn aliases(path: &str) -> Vec<(String, String)> {
    let strings = strings(path, "ALIASES");
    let pairs = strings.chunks(2).flat_map(|pair| words(&pair[1]).map(|name| (name, pair[0].clone())));
    let aliases: Vec<_> = pairs.collect();
    assert!(aliases.len() > 100, "{path}: {aliases:?}");
    aliases
}

const ATTRIBUTE: &str = "dlock-macros/src/distributed_lock/vocabulary.rs";
const URL: &str = "dlock-runtime/src/config/unknown_option.rs";

/// Returns the names in the table of the URL's options, whose entries begin with them.
fn options_of_the_url() -> Vec<String> {
    let text = read("dlock-runtime/src/config/url.rs");
    let (_, table) = text.split_once("const OPTIONS:").expect("the table exists");
    let lines = table.lines().skip(1).take_while(|line| *line != "];");
    let names = lines.filter_map(|line| line.strip_prefix("    (\"")?.split_once('"'));
    let names: Vec<_> = names.map(|(name, _)| name.to_owned()).collect();
    assert!(names.len() > 15, "{names:?}");
    names
}

#[test]
fn a_foreign_name_leads_to_one_word() {
    let (in_urls, options) = (aliases(URL), options_of_the_url());

    for (name, meant) in aliases(ATTRIBUTE) {
        let in_url = in_urls.iter().find(|(alias, _)| *alias == name).map(|(_, meant)| meant);
        // The attribute waits with a back-off, and a manager polls.
        let is_same = in_url.is_none_or(|in_url| *in_url == meant || in_url == "poll_interval");
        assert!(is_same, "`{name}` leads to `{meant}` in the attribute, and to {in_url:?} in a URL");
        if options.contains(&meant) {
            assert!(in_url.is_some(), "`{name}` leads to `{meant}` in the attribute, and not in a URL");
        }
    }
}

#[test]
fn a_url_knows_every_parameter_of_the_attribute() {
    let known = [options_of_the_url(), all_words(URL, "OF_CALLS"), vec!["crate".to_owned()]].concat();

    for parameter in all_words(ATTRIBUTE, "PARAMETERS") {
        assert!(known.contains(&parameter), "`{parameter}` is not in `OF_CALLS` of {URL}");
    }
}

#[test]
fn the_attribute_knows_every_option_of_a_url() {
    let hints = all_words("dlock-macros/src/vocabulary.rs", "HINTS");
    let parameters = all_words(ATTRIBUTE, "PARAMETERS");

    for option in options_of_the_url() {
        let is_known = parameters.contains(&option) || hints.contains(&option.replace('_', ""));
        assert!(is_known, "`{option}` is not in `HINTS` of dlock-macros/src/vocabulary.rs");
    }
}
