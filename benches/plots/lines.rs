//! Line charts: contenders over a number, each named at the end of its line.

use crate::chart::Chart;
use crate::figures::{Figures, Line, Whose};
use crate::svg::{Scale, Svg, WIDTH, class, shown};

const HEIGHT: f64 = 480.0;
const TOP: f64 = 108.0;
const BOTTOM: f64 = 415.0;
const LEFT: f64 = 104.0;
const RIGHT: f64 = 610.0;

/// The line of one contender.
struct Series<'a> {
    name: &'a str,
    whose: Whose,
    /// Pairs of the number and the figure, sorted by the number.
    points: Vec<(u64, f64)>,
}

pub(crate) fn draw(chart: &Chart, figures: &Figures, of: &str) -> Option<String> {
    let series = series(chart, figures);
    let mut numbers: Vec<u64> =
        series.iter().flat_map(|line| &line.points).map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.len() < 2 {
        return None;
    }
    let is_ratio = chart.axis == "x raw";
    let mut all: Vec<f64> = series.iter().flat_map(|line| &line.points).map(|(_, figure)| *figure).collect();
    all.extend(is_ratio.then_some(1.0));
    let scale = Scale::of(&all, (BOTTOM, TOP));

    let mut svg = Svg::new(HEIGHT, chart.title, chart.subtitle);
    svg.text("axis", 28.0, TOP - 14.0, chart.axis);
    for tick in scale.ticks() {
        let y = scale.place(tick);
        svg.line("grid", (LEFT, y), (RIGHT, y));
        svg.text("axis end", LEFT - 10.0, y + 4.5, &shown(tick));
    }
    if is_ratio {
        svg.line("base", (LEFT, scale.place(1.0)), (RIGHT, scale.place(1.0)));
    }
    let last = f64::from(u32::try_from(numbers.len() - 1).unwrap_or(1));
    let place = |number: u64| {
        let at = numbers.iter().position(|known| *known == number).unwrap_or_default();
        LEFT + 30.0 + f64::from(u32::try_from(at).unwrap_or_default()) / last * (RIGHT - LEFT - 60.0)
    };
    for number in &numbers {
        #[expect(clippy::cast_precision_loss, reason = "no number here comes near 2^53")]
        svg.text("axis middle", place(*number), BOTTOM + 22.0, &shown(*number as f64));
    }
    svg.text("axis middle", f64::midpoint(LEFT, RIGHT), BOTTOM + 46.0, of);

    let mut names = Vec::new();
    // `ours` is drawn last, so that it is above the others.
    for line in series.iter().rev() {
        let points: Vec<_> =
            line.points.iter().map(|(number, figure)| (place(*number), scale.place(*figure))).collect();
        svg.path(class(line.whose, line.name), &points);
        for point in &points {
            svg.dot(class(line.whose, line.name), *point, if line.whose == Whose::Ours { 5.0 } else { 3.0 });
        }
        if let (Some((x, y)), Some((_, figure))) = (points.last(), line.points.last()) {
            names.push((*x, *y, line, *figure));
        }
    }
    let floor = Series { name: "raw", whose: Whose::Floor, points: Vec::new() };
    if is_ratio && !series.iter().any(|line| line.whose == Whose::Floor) {
        names.push((RIGHT - 7.0, scale.place(1.0), &floor, 1.0));
    }
    names.sort_by(|one, other| one.1.total_cmp(&other.1));
    let places = apart(&names.iter().map(|name| name.1).collect::<Vec<_>>());
    for ((x, y, line, figure), at) in names.into_iter().zip(places) {
        svg.line("leader", (x + 7.0, y), (RIGHT + 12.0, at));
        let who = class(line.whose, line.name);
        svg.text(&format!("name {who}"), RIGHT + 18.0, at + 4.5, line.name);
        svg.text(&format!("figure end {who}"), WIDTH - 22.0, at + 4.5, &shown(figure));
    }
    Some(svg.finish(chart.title))
}

/// Returns the lines, `ours` first.
fn series<'a>(chart: &Chart, figures: &'a Figures) -> Vec<Series<'a>> {
    let mut series: Vec<Series<'a>> = Vec::new();
    // `hot-key` measures one process with 64 tasks: the first point of `processes`.
    let one = (chart.scenario == "processes").then(|| figures.of("hot-key", chart.ending));
    let lines: Vec<&Line> = figures.of(chart.scenario, chart.ending).collect();
    let whole = |name: &str| lines.iter().any(|line| line.contender == name);
    let one = one.into_iter().flatten().filter(|line| whole(&line.contender)).map(|line| (1, line));
    for (number, line) in one.chain(lines.iter().filter_map(|line| Some((number(line)?, *line)))) {
        let Some(figure) = line.median else { continue };
        match series.iter_mut().find(|known| known.name == line.contender) {
            Some(known) => known.points.push((number, figure)),
            None => series.push(Series {
                name: &line.contender,
                whose: line.whose(),
                points: vec![(number, figure)],
            }),
        }
    }
    for line in &mut series {
        line.points.sort_by_key(|(number, _)| *number);
    }
    series.sort_by_key(|line| line.whose);
    series
}

/// Returns the number of a row: `at`, or the number that its text begins with.
fn number(line: &Line) -> Option<u64> {
    line.at.or_else(|| line.what.split(' ').next()?.replace(',', "").parse().ok())
}

/// Moves sorted heights apart, as little as possible, so that their labels do not overlap.
fn apart(heights: &[f64]) -> Vec<f64> {
    let mut places = heights.to_vec();
    for _ in 0..200 {
        for at in 1..places.len() {
            let near = TEXT - (places[at] - places[at - 1]);
            if near > 0.0 {
                places[at - 1] -= near / 2.0;
                places[at] += near / 2.0;
            }
        }
        for place in &mut places {
            *place = place.clamp(TOP - 4.0, BOTTOM + 20.0);
        }
    }
    places
}

/// The height of a line of text.
const TEXT: f64 = 17.0;
