//! Fuzzes templates: the parser of the macros accepts any text, and reports valid positions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use template::{Modifier, Piece, Step};

/// The file of the macro crate, included because a proc-macro crate exports only macros.
#[path = "../../dlock-macros/src/key/template.rs"]
mod template;

fuzz_target!(|text: &str| {
    let (pieces, problems) = template::parse(text);
    for problem in &problems {
        assert!(!problem.message.is_empty() && text.get(problem.at.clone()).is_some(), "{problem:?}");
    }
    if problems.is_empty() {
        let (again, problems) = template::parse(&written(&pieces));
        assert!(problems.is_empty() && meaning(&again) == meaning(&pieces), "{pieces:?} is read as {again:?}");
    }
});

/// Formats pieces as a template.
fn written(pieces: &[Piece]) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => text.replace('<', "<<").replace('>', ">>"),
        Piece::Placeholder(placeholder) => {
            let steps = placeholder.steps.iter().map(|step| match step {
                Step::Field(name) => format!(".{name}"),
                Step::Index(number) => format!(".{number}"),
                Step::Getter(name) => format!(".{name}()"),
            });
            let modifier = match placeholder.modifier {
                Modifier::Plain => "",
                Modifier::Hash => "|hash",
                Modifier::Opt => "|opt",
                Modifier::Raw => "|raw",
            };
            format!("<{}{}{modifier}>", placeholder.root, steps.collect::<String>())
        }
    };
    pieces.iter().map(piece).collect()
}

/// Returns the meaning of pieces, without their positions.
fn meaning(pieces: &[Piece]) -> Vec<String> {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => format!("{text:?}"),
        Piece::Placeholder(placeholder) => format!("{:?} {:?} {:?}", placeholder.root, placeholder.steps, placeholder.modifier),
    };
    pieces.iter().map(piece).collect()
}
