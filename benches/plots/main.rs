//! Draws the committed figures, and writes them into the guide and the two READMEs.
//!
//! ```text
//! cargo run --release -p dlock-benches -- --rivals --rounds 1 --json RUN      measures; three times
//! cargo run -p dlock-benches --bin plot -- --join RUN RUN RUN      writes benches/plots/figures.jsonl from these runs
//! cargo run -p dlock-benches --bin plot                 draws benches/plots/*.svg and writes the tables
//! cargo run -p dlock-benches --bin plot -- --check      checks all of these against the committed figures
//! cargo run -p dlock-benches --bin plot -- FIGURES FOLDER      draws other figures
//! ```
//!
//! See also: `report` of the benches, which defines the lines.
//!
//! ```text
//! join       joins several runs
//! figures    reads the lines
//! chart      lists the charts and their figures
//! lines      line charts: contenders over a number
//! rows       charts with a row per contender: bars, percentiles, shares
//! svg        SVG elements, scales, and light and dark styles
//! tables     tables and sentences between markers of Markdown
//! ```

mod chart;
mod figures;
mod join;
mod lines;
mod rows;
mod svg;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::figures::Figures;

/// The error of this program.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => write(),
        ["--check"] => check(),
        ["--join", ref runs @ ..] if !runs.is_empty() => join(runs),
        [figures, folder] if !figures.starts_with("--") => draw(figures.as_ref(), folder.as_ref()),
        _ => Err("write nothing, or --check, or --join RUN.., or FIGURES FOLDER".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<(), Failure> {
    let text = fs::read_to_string(figures_file()).map_err(|error| format!("{MEASURE}: {error}"))?;
    for (file, text) in made_of(&text)? {
        fs::write(&file, text)?;
        println!("{}", file.display());
    }
    Ok(())
}

fn join(runs: &[&str]) -> Result<(), Failure> {
    let read = |run: &&str| fs::read_to_string(run).map_err(|error| format!("{run}: {error}"));
    let runs = runs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let joined = join::join(runs.iter().map(String::as_str))?;
    let before = if figures_file().exists() { fs::read_to_string(figures_file())? } else { String::new() };
    let kept = join::of_other_scenarios(&before, &joined)?;
    fs::write(figures_file(), joined + &kept)?;
    println!("{}", figures_file().display());
    Ok(())
}

fn draw(figures: &Path, folder: &Path) -> Result<(), Failure> {
    for (file, svg) in charts(&fs::read_to_string(figures)?.parse()?, folder) {
        fs::write(file, svg)?;
    }
    Ok(())
}

fn check() -> Result<(), Failure> {
    let figures = figures_file();
    // Without a file of figures, the documents must not contain any.
    let text = if figures.exists() { fs::read_to_string(&figures)? } else { String::new() };
    let made = made_of(&text)?;
    for (file, text) in &made {
        if fs::read_to_string(file).ok().as_ref() != Some(text) {
            let file = file.display();
            return Err(format!("{file} differs from the figures: run `{COMMAND}`, and commit").into());
        }
    }
    for file in fs::read_dir(folder())? {
        let file = file?.path();
        if file.extension().is_some_and(|end| end == "svg") && !made.iter().any(|(known, _)| *known == file) {
            return Err(format!("{} has no figures", file.display()).into());
        }
    }
    if text.is_empty() {
        println!("SKIPPED: plots: there are no figures: {MEASURE}");
    } else {
        println!("{} files agree with the figures", made.len());
    }
    Ok(())
}

/// Makes every file that contains figures.
fn made_of(text: &str) -> Result<Vec<(PathBuf, String)>, Failure> {
    let figures: Figures = text.parse()?;
    let mut made = Vec::new();
    if !text.is_empty() {
        made.extend(charts(&figures, folder()));
    }
    for file in ["dlock-runtime/src/docs/performance.md", "benches/README.md", "README.md"] {
        let file = folder().join("../..").join(file);
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        made.push((file, tables::fill(&text, &figures)?));
    }
    Ok(made)
}

/// Draws every chart that has figures.
fn charts(figures: &Figures, folder: &Path) -> Vec<(PathBuf, String)> {
    let mut drawn = Vec::new();
    for chart in chart::CHARTS {
        match chart.draw(figures) {
            Some(svg) => drawn.push((folder.join(chart.file), svg)),
            None => println!("SKIPPED: {}: the figures have none of `{}`", chart.file, chart.scenario),
        }
    }
    drawn
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/plots"))
}

fn figures_file() -> PathBuf {
    folder().join("figures.jsonl")
}

const COMMAND: &str = "cargo run -p dlock-benches --bin plot";

const MEASURE: &str = "measure with `cargo run --release -p dlock-benches -- --rivals --json RUN`, and join the runs with \
                       `cargo run -p dlock-benches --bin plot -- --join RUN`";
