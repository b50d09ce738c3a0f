//! Parses a key template into text and placeholders.
//!
//! ```text
//! template    := { text | "<<" | ">>" | placeholder }     "<<" is a literal <, ">>" a literal >
//! placeholder := "<" place [ "|" modifier ] ">"
//! place       := root { "." IDENT | "." INT | "." IDENT "()" }
//! root        := IDENT | "self" | IDENT { "::" IDENT }
//! modifier    := "hash" | "opt" | "raw"
//! text        := any character except < > ## white space and control characters
//! ```
//!
//! See the parent module for what the roots refer to.

use std::ops::Range;

use syn::ext::IdentExt;

/// A mistake in the characters `at` of a template, and what to write.
#[derive(Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) at: Range<usize>,
    pub(crate) message: String,
}

/// One piece of a template.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece {
    Text(String),
    Placeholder(Placeholder),
}

/// A placeholder: `<place|modifier>`.
#[derive(Debug, PartialEq)]
pub(crate) struct Placeholder {
    /// The place as it is written.
    pub(crate) place: String,
    /// Its start: a name, or a path with `::`.
    pub(crate) root: String,
    pub(crate) steps: Vec<Step>,
    pub(crate) modifier: Modifier,
    /// The position of the placeholder, including `<` and `>`.
    pub(crate) at: Range<usize>,
}

/// One step from a root to a value.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Field(String),
    Index(u32),
    Getter(String),
}

/// How a value enters the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Modifier {
    Plain,
    Hash,
    Opt,
    Raw,
}

/// Parses `template`. Returns the valid pieces, and a problem for each other one.
pub(crate) fn parse(template: &str) -> (Vec<Piece>, Vec<Problem>) {
    let mut pieces = Vec::new();
    let mut problems = Vec::new();
    let mut text = String::new();
    let mut rest = template;
    while let Some(letter) = rest.chars().next() {
        let here = template.len() - rest.len();
        let after = rest.get(letter.len_utf8()..).unwrap_or_default();
        if let Some(literal) = ["<<", ">>"].into_iter().find(|escape| rest.starts_with(escape)) {
            text.push(letter);
            rest = rest.get(literal.len()..).unwrap_or_default();
            continue;
        }
        rest = after;
        match letter {
            '<' => {
                let Some((inside, behind)) =
                    after.split_once('>').filter(|(inside, _)| !inside.contains('<'))
                else {
                    problems.push(unclosed(here, after));
                    break;
                };
                rest = behind;
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                match placeholder(inside, here..here + inside.len() + 2) {
                    Ok(placeholder) => pieces.push(Piece::Placeholder(placeholder)),
                    Err(problem) => problems.push(problem),
                }
            }
            '>' => problems.push(Problem {
                at: here..here + 1,
                message: "`>` closes nothing: write `<name>` for an argument, or `>>` for a literal `>`"
                    .to_owned(),
            }),
            letter if letter.is_whitespace() || letter.is_control() => {
                // One report is enough.
                let message =
                    "white space and control characters cannot be part of a key: write `:` or `-` instead";
                if !problems.iter().any(|problem: &Problem| problem.message == message) {
                    problems
                        .push(Problem { at: here..here + letter.len_utf8(), message: message.to_owned() });
                }
            }
            '#' if template.get(..here).is_some_and(|before| before.ends_with('#')) => {
                problems.push(Problem {
                    at: here - 1..here + 1,
                    message: "`##` is reserved for names that are derived from keys: write one `#`, or `:`"
                        .to_owned(),
                });
            }
            letter => text.push(letter),
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    (pieces, problems)
}

fn unclosed(here: usize, after: &str) -> Problem {
    let name: String = after.chars().take_while(|c| c.is_alphanumeric() || "_.".contains(*c)).collect();
    let example = if name.is_empty() { "name" } else { &name };
    Problem {
        at: here..here + 1 + name.len(),
        message: format!(
            "the `<` before `{name}` is never closed: write `<{example}>` for an argument, or `<<` for a literal `<`"
        ),
    }
}

fn placeholder(inside: &str, at: Range<usize>) -> Result<Placeholder, Problem> {
    let wrong = |message: String| Problem { at: at.clone(), message };
    let (place, modifier) = match inside.split_once('|') {
        None => (inside, Modifier::Plain),
        Some((place, "hash")) => (place, Modifier::Hash),
        Some((place, "opt")) => (place, Modifier::Opt),
        Some((place, "raw")) => (place, Modifier::Raw),
        Some((place, other)) if other.contains('|') => {
            return Err(wrong(format!(
                "`<{inside}>` has several modifiers, and one is allowed: write `<{place}|hash>`, `<{place}|opt>` or `<{place}|raw>`"
            )));
        }
        Some(_) if inside.contains(char::is_whitespace) => return Err(wrong(not_a_place(inside))),
        Some((place, other)) => {
            return Err(wrong(format!(
                "`|{other}` in `<{inside}>` is not a modifier: write `<{place}|hash>`, `<{place}|opt>` or `<{place}|raw>`"
            )));
        }
    };
    let mut parts = place.split('.');
    let root = parts.next().filter(|root| root.split("::").all(is_name));
    let steps: Option<Vec<Step>> = parts.map(step).collect();
    let (Some(root), Some(steps)) = (root, steps) else {
        return Err(wrong(not_a_place(inside)));
    };
    Ok(Placeholder { place: place.to_owned(), root: root.to_owned(), steps, modifier, at })
}

fn not_a_place(inside: &str) -> String {
    let narrow: String = inside.split_whitespace().collect();
    let place = narrow.split('|').next().unwrap_or_default();
    let simple =
        place.split("::").flat_map(|part| part.split('.')).all(|part| is_name(part.trim_end_matches("()")));
    // White space between two words is not just a slip.
    let words = inside.split('|').all(|part| part.split_whitespace().count() == 1);
    if place.is_empty() {
        "a placeholder needs a name: write `<name>` with the name of an argument".to_owned()
    } else if inside.bytes().all(|byte| byte.is_ascii_digit()) {
        format!(
            "`<{inside}>` is a number, and a placeholder names an argument: write its name, as in `<user_id>`"
        )
    } else if simple && words && narrow != inside {
        format!("`<{inside}>` has white space in it: write `<{narrow}>`")
    } else {
        format!(
            "`<{inside}>` is not a placeholder (an argument, its fields, or its getters): for anything else, write `key = ` and an expression such as `format!(..)`"
        )
    }
}

fn step(text: &str) -> Option<Step> {
    if let Some(getter) = text.strip_suffix("()") {
        is_name(getter).then(|| Step::Getter(getter.to_owned()))
    } else if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok().map(Step::Index)
    } else {
        is_name(text).then(|| Step::Field(text.to_owned()))
    }
}

/// Returns `true` if `text` is an identifier, a keyword, or a raw identifier.
fn is_name(text: &str) -> bool {
    use syn::parse::Parser;
    let starts = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
    // The characters are checked first, since the parser would accept a comment or white space.
    starts
        && text.strip_prefix("r#").unwrap_or(text).chars().all(|c| c.is_alphanumeric() || c == '_')
        && syn::Ident::parse_any.parse_str(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(template: &str) -> String {
        let (_, problems) = parse(template);
        assert_eq!(problems.len(), 1, "{template}: {problems:?}");
        problems.into_iter().map(|problem| problem.message).collect()
    }

    #[test]
    fn text_and_holes_come_apart() {
        let (pieces, problems) = parse("a:<order.lines.0.id()|hash>:<<b>>{<r#type>}");

        assert_eq!(problems, []);
        let [
            Piece::Text(first),
            Piece::Placeholder(placeholder),
            Piece::Text(second),
            Piece::Placeholder(raw),
            Piece::Text(last),
        ] = &pieces[..]
        else {
            panic!("{pieces:?}")
        };
        assert_eq!((first.as_str(), second.as_str(), last.as_str()), ("a:", ":<b>{", "}"));
        assert_eq!(placeholder.root, "order");
        assert_eq!(
            placeholder.steps,
            [Step::Field("lines".into()), Step::Index(0), Step::Getter("id".into())]
        );
        assert_eq!((placeholder.modifier, &placeholder.at), (Modifier::Hash, &(2..27)));
        assert_eq!(raw.root, "r#type");
    }

    #[test]
    fn each_mistake_is_one_problem() {
        assert!(problem("order:<id").contains("never closed"));
        assert!(problem("order:<id:<x>").contains("never closed"));
        assert!(problem("order:id>").contains("closes nothing"));
        assert!(problem("order of <id> or so").contains("white space"));
        assert!(problem("order:<a + b>").contains("not a placeholder"));
        assert!(problem("order:<id:?>").contains("not a placeholder"));
        assert!(problem("order:< id >").contains("write `<id>`"));
        assert!(problem("order:<>").contains("needs a name"));
        assert!(problem("order:<id|md5>").contains("not a modifier"));
        assert!(problem("order:<id.get(1)>").contains("not a placeholder"));
        assert!(problem("order:<3>").contains("is a number"));
        assert!(problem("order##<id>").contains("reserved"));
        assert!(problem("<id>:##token").contains("reserved"));
    }

    #[test]
    fn a_mistake_has_its_position_and_its_message() {
        for (template, at, start) in [
            ("a:<id", 2..5, "the `<` before `id` is never closed: write `<id>` for an argument"),
            ("a:<_id.x:b", 2..8, "the `<` before `_id.x` is never closed: write `<_id.x>` for"),
            ("ä:<", 3..4, "the `<` before `` is never closed: write `<name>` for an argument"),
            ("a:<id<b>", 2..5, "the `<` before `id` is never closed"),
            ("a:id>", 4..5, "`>` closes nothing"),
            ("ä b", 2..3, "white space and control characters"),
            ("a\u{3000}b c", 1..4, "white space and control characters"),
            ("a\u{1}b", 1..2, "white space and control characters"),
            ("a##b", 1..3, "`##` is reserved"),
            ("<a>##", 3..5, "`##` is reserved"),
            ("a:<>", 2..4, "a placeholder needs a name"),
            ("a:< >", 2..5, "a placeholder needs a name"),
            ("a:<|raw>", 2..8, "a placeholder needs a name"),
            ("a:<12>b", 2..6, "`<12>` is a number"),
            ("a:<1a>", 2..6, "`<1a>` is not a placeholder"),
            ("a:< 1a >", 2..8, "`< 1a >` is not a placeholder"),
            ("a:<a-b>", 2..7, "`<a-b>` is not a placeholder"),
            ("a:<a/**/>", 2..9, "`<a/**/>` is not a placeholder"),
            ("a:<a b>", 2..7, "`<a b>` is not a placeholder"),
            ("a:<a | b c>", 2..11, "`<a | b c>` is not a placeholder"),
            ("a:< a>", 2..6, "`< a>` has white space in it: write `<a>`"),
            ("a:<a.b() >", 2..10, "`<a.b() >` has white space in it: write `<a.b()>`"),
            ("a:<k::A >", 2..9, "`<k::A >` has white space in it: write `<k::A>`"),
            ("a:<a | raw>", 2..11, "`<a | raw>` has white space in it: write `<a|raw>`"),
            ("a:<a.b()()>", 2..11, "`<a.b()()>` is not a placeholder"),
            ("a:<a.>", 2..6, "`<a.>` is not a placeholder"),
            ("a:<a.1b>", 2..8, "`<a.1b>` is not a placeholder"),
            ("a:<a.b-c()>", 2..11, "`<a.b-c()>` is not a placeholder"),
            ("a:<a.99999999999>", 2..17, "`<a.99999999999>` is not a placeholder"),
            ("a:<a::>", 2..7, "`<a::>` is not a placeholder"),
            ("a:<a|md5>", 2..9, "`|md5` in `<a|md5>` is not a modifier: write `<a|hash>`"),
            ("a:<a|>", 2..6, "`|` in `<a|>` is not a modifier"),
            ("a:<a|raw|opt>", 2..13, "`<a|raw|opt>` has several modifiers"),
        ] {
            let (_, problems) = parse(template);

            let [problem] = &*problems else { panic!("{template}: {problems:?}") };
            assert!(problem.message.starts_with(start), "{template}: {problem:?}");
            assert_eq!(problem.at, at, "{template}");
        }
    }

    #[test]
    fn a_valid_placeholder_has_its_root_and_position() {
        for (template, root, at) in [
            ("<a>", "a", 0..3),
            ("ä<_a>", "_a", 2..6),
            ("<<<_>", "_", 2..5),
            (">><k::r#type>b", "k::r#type", 2..13),
            ("a#<größe|opt>", "größe", 2..15),
        ] {
            let (pieces, problems) = parse(template);

            assert_eq!(problems, [], "{template}");
            let found: Vec<_> = pieces
                .iter()
                .filter_map(|piece| match piece {
                    Piece::Placeholder(placeholder) => Some((&*placeholder.root, placeholder.at.clone())),
                    Piece::Text(_) => None,
                })
                .collect();
            assert_eq!(found, [(root, at)], "{template}");
        }
    }

    #[test]
    fn single_number_signs_are_text() {
        assert_eq!(parse("order#<id>#<line>#").1, []);
    }

    /// A wrong character between two signs is one mistake, and no sign is reported for it.
    #[test]
    fn number_signs_apart_are_not_reserved() {
        for template in ["order#\u{8b}#", "order#\u{3000}#", "order# #", "order#>#"] {
            let problems = parse(template).1;

            assert!(problems.len() == 1 && template.get(problems[0].at.clone()).is_some(), "{problems:?}");
            assert!(!problems[0].message.contains("reserved"), "{template:?}: {problems:?}");
        }
    }

    #[test]
    fn no_letter_outside_ascii_breaks_it() {
        let (pieces, problems) = parse("größe:<größe>:日本");

        assert_eq!(problems, []);
        assert_eq!(pieces.len(), 3);
    }
}
