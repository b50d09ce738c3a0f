//! Fuzzes templates: the parser of the macros accepts any text, and reports valid positions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use template::{Modifier, Piece, Step};

/// The file of the macro crate, included because a proc-macro crate exports only macros.
#[path = "../../dlock-macros/src/template.rs"]
mod template;

fuzz_target!(|text: &str| {
    let (pieces, problems) = template::parse(text);
    for problem in &problems {
        assert!(!problem.message.is_empty() && text.get(problem.at.clone()).is_some(), "{problem:?}");
    }
    if problems.is_empty() {
        let (again, problems) = template::parse(&written(&pieces));
        assert!(problems.is_empty() && told(&again) == told(&pieces), "{pieces:?} is read as {again:?}");
    }
});

/// Formats pieces as a template.
fn written(pieces: &[Piece]) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => text.replace('<', "<<").replace('>', ">>"),
        Piece::Hole(hole) => {
            let steps = hole.steps.iter().map(|step| match step {
                Step::Field(name) => format!(".{name}"),
                Step::Index(number) => format!(".{number}"),
                Step::Getter(name) => format!(".{name}()"),
            });
            let modifier = match hole.modifier {
                Modifier::Plain => "",
                Modifier::Hash => "|hash",
                Modifier::Opt => "|opt",
                Modifier::Raw => "|raw",
            };
            format!("<{}{}{modifier}>", hole.root, steps.collect::<String>())
        }
    };
    pieces.iter().map(piece).collect()
}

/// Returns the meaning of pieces, without their positions.
fn told(pieces: &[Piece]) -> Vec<String> {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => format!("{text:?}"),
        Piece::Hole(hole) => format!("{:?} {:?} {:?}", hole.root, hole.steps, hole.modifier),
    };
    pieces.iter().map(piece).collect()
}
