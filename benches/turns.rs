//! The order in which contenders run.
//!
//! The load of a machine changes within seconds, so contenders that run one after the other for a
//! minute each are not comparable. When speed is measured, the processes of all contenders run side
//! by side, and each is asked for one short slice in turn ([`Field`]). A round is some slices of
//! each, in a changing order. When the measured time is long compared with the work of other
//! contenders, they run [`at_once`], each with a separate server. If each contender must start
//! again, they run [`one_by_one`]. A contender that fails is removed.

use std::ops::Range;

use futures_util::future::join_all;

use crate::Failure;
use crate::contenders::Contender;
use crate::report::Report;

/// The remaining contenders of a scenario, each with its state for a slice.
#[derive(Debug)]
pub(crate) struct Field<S> {
    scenario: &'static str,
    entrants: Vec<(Contender, S)>,
}

/// The results of one contender: the slices of each round.
#[derive(Debug)]
pub(crate) struct Run<T> {
    pub(crate) contender: Contender,
    pub(crate) rounds: Vec<Vec<T>>,
}

/// The number of rounds and slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    /// The rounds of other libraries, which may be fewer: their figures have no goal.
    pub(crate) rival_rounds: usize,
    pub(crate) slices: usize,
}

impl Pace {
    fn has_round(self, round: usize, contender: &Contender) -> bool {
        round < if contender.kind.is_rival() { self.rival_rounds } else { self.rounds }
    }
}

impl<S> Field<S> {
    /// Starts the contenders, and keeps those that start.
    pub(crate) async fn start(
        scenario: &'static str,
        contenders: Vec<Contender>,
        report: &mut Report,
        start: impl AsyncFn(&Contender) -> Result<S, Failure>,
    ) -> Self {
        let mut field = Self { scenario, entrants: Vec::new() };
        for contender in contenders {
            match start(&contender).await {
                Ok(entrant) => field.entrants.push((contender, entrant)),
                Err(failure) => report.absent(scenario, &contender, &failure),
            }
        }
        field
    }

    /// Runs the contenders in rotation, after a warm-up round of one slice each.
    pub(crate) async fn turns<T>(
        &mut self,
        pace: Pace,
        report: &mut Report,
        slice: impl AsyncFn(&Contender, &mut S) -> Result<T, Failure>,
    ) -> Vec<Run<T>> {
        let mut runs = Vec::new();
        for round in 0..=pace.rounds {
            let slices = if round == 0 { 1 } else { pace.slices };
            let takes_part = |contender: &Contender| pace.has_round(round.saturating_sub(1), contender);
            let turns = round * slices..(round + 1) * slices;
            for (contender, slices) in self.round(turns, takes_part, report, &slice).await {
                if round > 0 {
                    note(&mut runs, &contender, slices);
                }
            }
        }
        self.finished(runs)
    }

    /// Returns the runs of the remaining contenders; a contender that failed has no figures.
    fn finished<T>(&self, mut runs: Vec<Run<T>>) -> Vec<Run<T>> {
        runs.retain(|run| self.entrants.iter().any(|(contender, _)| contender.name == run.contender.name));
        runs
    }

    /// Runs some slices of each contender, and returns those of the remaining contenders.
    async fn round<T>(
        &mut self,
        turns: Range<usize>,
        takes_part: impl Fn(&Contender) -> bool,
        report: &mut Report,
        slice: impl AsyncFn(&Contender, &mut S) -> Result<T, Failure>,
    ) -> Vec<(Contender, Vec<T>)> {
        let mut done: Vec<Result<Vec<T>, Failure>> = self.entrants.iter().map(|_| Ok(Vec::new())).collect();
        for turn in turns {
            let mut those: Vec<_> = self.entrants.iter_mut().zip(&mut done).map(Some).collect();
            those.retain(|one| one.as_ref().is_some_and(|((contender, _), _)| takes_part(contender)));
            for place in order(turn, those.len()) {
                let Some(((contender, entrant), done)) = those[place].take() else { continue };
                if let Ok(slices) = done {
                    match slice(contender, entrant).await {
                        Ok(figures) => slices.push(figures),
                        Err(failure) => *done = Err(failure),
                    }
                }
            }
        }
        self.still_in(done, takes_part, report)
    }

    /// Removes contenders that failed, and returns the results of the others that took part.
    fn still_in<T>(
        &mut self,
        done: Vec<Result<Vec<T>, Failure>>,
        takes_part: impl Fn(&Contender) -> bool,
        report: &mut Report,
    ) -> Vec<(Contender, Vec<T>)> {
        let mut runs = Vec::new();
        for ((contender, entrant), done) in std::mem::take(&mut self.entrants).into_iter().zip(done) {
            match done {
                Ok(slices) => {
                    if takes_part(&contender) {
                        runs.push((contender.clone(), slices));
                    }
                    self.entrants.push((contender, entrant));
                }
                Err(failure) => report.absent(self.scenario, &contender, &failure),
            }
        }
        runs
    }
}

/// Returns the order of `count` contenders in a turn.
///
/// Over all turns, each contender runs after each other one, because a contender leaves the
/// processors in a state (caches, frequency) that affects the next one. This is a Williams design,
/// which balances carry-over effects. If `count` is odd, every second order is reversed.
fn order(turn: usize, count: usize) -> Vec<usize> {
    let step = |place: usize| if place % 2 == 1 { place.div_ceil(2) } else { count - place / 2 };
    let mut order: Vec<_> = (0..count).map(|place| (turn + step(place)) % count).collect();
    if count % 2 == 1 && turn % 2 == 1 {
        order.reverse();
    }
    order
}

impl Field<()> {
    /// Contenders without state, which start what they need in each slice.
    fn of_programs(scenario: &'static str, contenders: Vec<Contender>) -> Self {
        Self { scenario, entrants: contenders.into_iter().map(|each| (each, ())).collect() }
    }
}

/// Runs `slice` for one contender after the other, `pace.slices` times per round.
pub(crate) async fn one_by_one<T>(
    scenario: &'static str,
    contenders: Vec<Contender>,
    pace: Pace,
    report: &mut Report,
    slice: impl AsyncFn(&Contender) -> Result<T, Failure>,
) -> Vec<Run<T>> {
    let mut field = Field::of_programs(scenario, contenders);
    let mut runs = Vec::new();
    for round in 0..pace.rounds {
        let takes_part = |contender: &Contender| pace.has_round(round, contender);
        let done =
            field.round(0..pace.slices, takes_part, report, async |contender, ()| slice(contender).await);
        for (contender, slices) in done.await {
            note(&mut runs, &contender, slices);
        }
    }
    field.finished(runs)
}

/// Runs `slice` for all contenders at the same time, `pace.slices` times per round.
pub(crate) async fn at_once<T>(
    scenario: &'static str,
    contenders: Vec<Contender>,
    pace: Pace,
    report: &mut Report,
    slice: impl AsyncFn(&Contender) -> Result<T, Failure>,
) -> Vec<Run<T>> {
    let mut field = Field::of_programs(scenario, contenders);
    let mut runs = Vec::new();
    for round in 0..pace.rounds {
        let takes_part = |contender: &Contender| pace.has_round(round, contender);
        let running = field.entrants.iter().map(async |(contender, ())| {
            let mut slices = Vec::new();
            while slices.len() < pace.slices && takes_part(contender) {
                slices.push(slice(contender).await?);
            }
            Ok(slices)
        });
        let done = join_all(running).await;
        for (contender, slices) in field.still_in(done, takes_part, report) {
            note(&mut runs, &contender, slices);
        }
    }
    field.finished(runs)
}

/// Adds a round to the run of a contender.
fn note<T>(runs: &mut Vec<Run<T>>, contender: &Contender, slices: Vec<T>) {
    match runs.iter_mut().find(|run| run.contender.name == contender.name) {
        Some(run) => run.rounds.push(slices),
        None => runs.push(Run { contender: contender.clone(), rounds: vec![slices] }),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::contenders::Kind;

    fn contenders() -> Vec<Contender> {
        let own = |name| Contender::own(Path::new(""), name).expect("one of ours");
        vec![own("raw"), own("ours"), Contender::rival("theirs", Kind::Rival, &Command::new("theirs"))]
    }

    fn rounds_of<T>(runs: &[Run<T>]) -> Vec<(&str, usize)> {
        runs.iter().map(|run| (&*run.contender.name, run.rounds.len())).collect()
    }

    const PACE: Pace = Pace { rounds: 3, rival_rounds: 1, slices: 2 };

    #[test]
    fn every_contender_follows_every_other_one_over_all_turns() {
        for count in 1..=20 {
            let mut followed = std::collections::BTreeSet::new();
            for turn in 0..2 * count {
                let order = order(turn, count);
                assert_eq!(order.iter().copied().collect::<std::collections::BTreeSet<_>>().len(), count);
                followed.extend(order.windows(2).map(|two| (two[0], two[1])));
            }
            assert_eq!(followed.len(), count * (count - 1), "of {count}");
        }
    }

    #[tokio::test]
    async fn every_contender_runs_each_slice_in_a_changing_order() {
        let (mut report, order) = (Report::default(), RefCell::new(Vec::new()));
        let mut field = Field::start("test", contenders(), &mut report, async |_| Ok(())).await;
        let slice = async |contender: &Contender, (): &mut ()| {
            order.borrow_mut().push(contender.name.clone());
            Ok(())
        };
        let pace = Pace { rounds: 1, ..PACE };

        let runs = field.turns(pace, &mut report, slice).await;

        assert_eq!(rounds_of(&runs), [("raw", 1), ("ours", 1), ("theirs", 1)]);
        let measured = order.into_inner().split_off(3); // after the warm-up
        assert_eq!(measured, ["theirs", "raw", "ours", "theirs", "ours", "raw"]);
    }

    #[tokio::test]
    async fn a_library_that_fails_is_removed_and_others_continue() {
        let mut report = Report::default();
        let mut field = Field::start("test", contenders(), &mut report, async |_| Ok(0)).await;
        let slice = async |contender: &Contender, slices: &mut i32| {
            *slices += 1;
            if contender.kind.is_rival() && *slices == 4 { Err("two inside at once".into()) } else { Ok(()) }
        };

        let runs = field.turns(Pace { rival_rounds: 3, ..PACE }, &mut report, slice).await;

        assert_eq!(rounds_of(&runs), [("raw", 3), ("ours", 3)]);
        assert!(report.is_whole(), "it is no failure of ours");
    }

    #[tokio::test]
    async fn a_failure_of_dlock_fails_the_report() {
        let mut report = Report::default();
        let slice = async |contender: &Contender| {
            if contender.name == "ours" { Err("two inside at once".into()) } else { Ok(()) }
        };

        let runs = at_once("test", contenders(), PACE, &mut report, slice).await;

        assert_eq!(rounds_of(&runs), [("raw", 3), ("theirs", 1)]);
        assert!(!report.is_whole());
    }

    #[tokio::test]
    async fn an_unsupported_order_of_the_floor_is_skipped() {
        let mut report = Report::default();
        let slice = async |contender: &Contender| {
            if contender.name == "raw" {
                Err(crate::process::Cannot::because("it does not wait"))
            } else {
                Ok(())
            }
        };

        let runs = one_by_one("test", contenders(), PACE, &mut report, slice).await;

        assert_eq!(rounds_of(&runs), [("ours", 3), ("theirs", 1)]);
        assert!(report.is_whole());
    }
}
