//! Runs the SQL of the guide's section "With your own database" unchanged.

use std::process::{Command, Stdio};

/// The section from its heading to the next one.
fn section() -> &'static str {
    const GUIDE: &str = include_str!("../../dlock-runtime/src/docs/idempotent.md");
    let (_, section) = GUIDE.split_once("# With your own database\n").expect("the guide has the section");
    section.split("\n# ").next().unwrap_or_default()
}

/// Runs the SQL by `SQLite`, with the Python of this machine: repeated calls, a process that dies
/// before each statement, and a worker that dies between its two.
#[test]
fn the_sql_of_the_guide_runs_each_call_once() {
    let blocks: Vec<_> =
        section().split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 3, "tables, a call, and the worker");
    let run = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/idempotent/outbox.py"))
        .args(&blocks)
        .stdin(Stdio::null())
        .output();
    let output = match run {
        Err(why) => return println!("SKIPPED: the SQL of the guide: python3 cannot be run: {why}"),
        Ok(output) => output,
    };
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if said.starts_with("SKIPPED") {
        return print!("{said}");
    }
    assert!(output.status.success() && said.contains("each call once"), "{said}{errors}");
}
