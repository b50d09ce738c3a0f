//! The guide's table of campaigns matches the ledger, and each excluded ledger line gives a reason.
//!
//! See also: `proof/campaign.sh`, which runs campaigns and records them.

use std::collections::BTreeMap;

use super::read;

const GUIDE: &str = "dlock-runtime/src/docs/proof.md";
const LEDGER: &str = "proof/ledger.tsv";

/// Rows of the guide's table of campaigns: layer, amount, unit, and violations.
fn campaigns(guide: &str) -> Vec<[&str; 4]> {
    let table = guide.split("\n# Campaigns\n").nth(1).and_then(|rest| rest.split("\n# ").next());
    let lines = table.unwrap_or_default().lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = lines.map(|line| line.trim_matches(['|', ' ']).split(" | ").collect::<Vec<_>>());
    cells.filter_map(|cells| cells.try_into().ok()).collect()
}

/// The layers and the required amount of each, from the script that runs them.
fn goals(campaign: &str) -> BTreeMap<&str, u64> {
    let goals = campaign.split("GOALS='").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or_default();
    let words = goals.lines().map(str::split_whitespace);
    words.filter_map(|mut words| Some((words.next()?, words.next()?.parse().ok()?))).collect()
}

/// Valid reasons for excluding a line of the ledger.
const REASONS: [&str; 8] = ["JUDGE", "SCENE", "TESTS", "MACHINE", "MENDED", "ENDED", "CHANGED", "AGAIN"];

/// The lines of a ledger, split into cells.
fn lines(ledger: &str) -> impl Iterator<Item = Vec<&str>> {
    ledger.lines().map(|line| line.split('\t').collect())
}

/// Returns the amount and the violations that a ledger records for a layer, by its sources.
fn in_ledger<'a>(ledger: &'a str, layer: &str) -> BTreeMap<&'a str, (u64, u64)> {
    let number = |cell: &str| cell.parse().unwrap_or(0_u64);
    let mut totals = BTreeMap::new();
    for cells in lines(ledger) {
        let [_, _, sources, of, amount, _, violations, ..] = cells[..] else { continue };
        if of == layer && sources != "-" {
            let (done, wrong) = totals.entry(sources).or_default();
            *done += number(amount);
            *wrong += number(violations);
        }
    }
    totals
}

#[test]
fn campaign_table_matches_the_ledger() {
    let (guide, ledger, campaign) = (read(GUIDE), read(LEDGER), read("proof/campaign.sh"));

    let (rows, goals) = (campaigns(&guide), goals(&campaign));

    assert!(rows.len() == goals.len() && goals.len() >= 10, "{rows:?} {goals:?}");
    for [name, amount, _, violations] in rows {
        let layer = name.split('`').nth(1).unwrap_or_default();
        let row = (amount.replace(',', "").parse().expect(name), violations.parse().expect(name));
        let totals = in_ledger(&ledger, layer);
        assert!(totals.values().any(|total| *total == row), "{name}: {row:?} {totals:?}");
        assert!(goals.get(layer).is_some_and(|goal| row.0 >= *goal), "{name}: {row:?}");
    }
}

#[test]
fn excluded_ledger_lines_give_a_reason() {
    let ledger = read(LEDGER);
    let aside = lines(&ledger).filter(|cells| cells.get(2) == Some(&"-"));

    let bare: Vec<_> = aside
        .filter_map(|cells| cells.get(10).copied())
        .filter(|said| !REASONS.iter().any(|reason| said.starts_with(reason)))
        .collect();

    assert!(bare.is_empty(), "{bare:#?}");
}

/// A check that cannot fail proves nothing.
#[test]
fn tables_of_campaigns_are_parsed() {
    let ledger = "day\tcommit\tabc\tcore\t7\t0..7\t0\nday\tcommit\tabc\tcore\t5\t7..12\t1\nday\tcommit\t-\tcore\t9\t0..9\t3";
    assert_eq!(in_ledger(ledger, "core"), BTreeMap::from([("abc", (12, 1))]));
    assert_eq!(
        goals("GOALS='\ncore 7 runs\nfuzz  60 seconds\n'\n"),
        BTreeMap::from([("core", 7), ("fuzz", 60)])
    );
    let guide = "\n# Campaigns\n\n| layer | much | what | wrong |\n|---|---|---|---|\n| rules (`core`) | 1,000 | runs | 0 |\n\n# Next\n\n| a | b | c | d |";
    assert_eq!(campaigns(guide), [["rules (`core`)", "1,000", "runs", "0"]]);
}
