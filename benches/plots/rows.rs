//! Charts with one row per contender: bars, percentiles, shares.

use crate::chart::{Best, Chart};
use crate::figures::{Figures, Line};
use crate::svg::{Scale, Svg, WIDTH, class, shown};

const TOP: f64 = 88.0;
const ROW: f64 = 28.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 790.0;

/// Draws bars with their figures, the best first.
pub(crate) fn bars(chart: &Chart, figures: &Figures, best: Best) -> Option<String> {
    let lines = of_one_number(&figures.of(chart.scenario, chart.ending).collect::<Vec<_>>());
    let mut rows: Vec<_> = lines.iter().filter_map(|line| Some((*line, line.median?))).collect();
    rows.sort_by(
        |(_, one), (_, other)| if best == Best::Most { other.total_cmp(one) } else { one.total_cmp(other) },
    );
    let all: Vec<f64> = rows.iter().map(|(_, figure)| *figure).collect();
    let (mut svg, scale) = frame(chart, rows.len(), &all)?;
    for (at, (line, figure)) in rows.iter().enumerate() {
        let y = row(&mut svg, at, line);
        let who = class(line.whose(), &line.contender);
        let end = scale.place(figure.max(0.0)).max(LEFT);
        svg.bar(who, LEFT, y - 9.0, end - LEFT, 18.0);
        svg.text(&format!("figure {who}"), end + 7.0, y + 4.5, &shown(*figure));
    }
    Some(svg.finish(chart.title))
}

/// Draws the range from 1 % to 99 %, the middle half, and the median, the fastest first.
pub(crate) fn percentiles(chart: &Chart, figures: &Figures) -> Option<String> {
    let lines = figures.of(chart.scenario, chart.ending);
    let mut rows: Vec<_> = lines
        .filter_map(|line| {
            let [low, left, middle, right, high] =
                [1.0, 25.0, 50.0, 75.0, 99.0].map(|percent| line.percentile(percent));
            Some((line, [low?, left?, middle?, right?, high?]))
        })
        .collect();
    rows.sort_by(|(_, one), (_, other)| one[2].total_cmp(&other[2]));
    let all: Vec<f64> = rows.iter().flat_map(|(_, row)| *row).collect();
    let (mut svg, scale) = frame(chart, rows.len(), &all)?;
    for (at, (line, figures)) in rows.iter().enumerate() {
        let y = row(&mut svg, at, line);
        let who = class(line.whose(), &line.contender);
        let [low, left, middle, right, high] = figures.map(|figure| scale.place(figure));
        svg.line(who, (low, y), (high, y));
        svg.bar(&format!("box {who}"), left, y - 7.0, right - left, 14.0);
        svg.dot(who, (middle, y), 4.5);
        let text = format!("{} / {}", shown(figures[2]), shown(figures[4]));
        svg.text(&format!("figure end {who}"), WIDTH - 16.0, y + 4.5, &text);
    }
    svg.text("axis end", WIDTH - 16.0, TOP - 12.0, "p50 / p99");
    Some(svg.finish(chart.title))
}

/// Draws a mark per task at its share, relative to a fair one.
pub(crate) fn shares(chart: &Chart, figures: &Figures) -> Option<String> {
    let lines = figures.of(chart.scenario, chart.ending);
    let mut rows: Vec<_> = lines.filter_map(|line| Some((line, beside_fair(&line.shares)?))).collect();
    rows.sort_by(|(_, one), (_, other)| spread(one).total_cmp(&spread(other)));
    let all: Vec<f64> = rows.iter().flat_map(|(_, shares)| shares).copied().chain([1.0]).collect();
    let (mut svg, scale) = frame(chart, rows.len(), &all)?;
    let bottom = TOP + ROW * length(rows.len());
    svg.line("base", (scale.place(1.0), TOP - 4.0), (scale.place(1.0), bottom));
    for (at, (line, shares)) in rows.iter().enumerate() {
        let y = row(&mut svg, at, line);
        let who = class(line.whose(), &line.contender);
        for share in shares.iter().filter(|share| **share > 0.0) {
            let x = scale.place(*share);
            svg.line(&format!("mark {who}"), (x, y - 8.0), (x, y + 8.0));
        }
        let starved = shares.iter().filter(|share| **share == 0.0).count();
        let text = if starved > 0 {
            format!("{starved} of {} never held it", shares.len())
        } else {
            format!("{} to 1", shown(spread(shares)))
        };
        svg.text(&format!("figure end {who}"), WIDTH - 16.0, y + 4.5, &text);
    }
    svg.text("axis end", WIDTH - 16.0, TOP - 12.0, "most to fewest");
    Some(svg.finish(chart.title))
}

/// Returns the picture with its grid, and the scale of its figures.
fn frame(chart: &Chart, rows: usize, figures: &[f64]) -> Option<(Svg, Scale)> {
    if rows == 0 {
        return None;
    }
    let has_words = matches!(chart.axis, "milliseconds" | "x the fair share");
    let scale = Scale::of(figures, (LEFT, if has_words { RIGHT - 90.0 } else { RIGHT }));
    let bottom = TOP + ROW * length(rows);
    let mut svg = Svg::new(bottom + 62.0, chart.title, chart.subtitle);
    for tick in scale.ticks() {
        let x = scale.place(tick);
        svg.line("grid", (x, TOP - 4.0), (x, bottom));
        svg.text("axis middle", x, bottom + 18.0, &shown(tick));
    }
    svg.text("axis middle", f64::midpoint(LEFT, scale.place(f64::MAX).min(RIGHT)), bottom + 42.0, chart.axis);
    Some((svg, scale))
}

/// Writes the name of a row. Returns its vertical center.
fn row(svg: &mut Svg, at: usize, line: &Line) -> f64 {
    let y = TOP + ROW * (length(at) + 0.5);
    svg.text(
        &format!("name end {}", class(line.whose(), &line.contender)),
        LEFT - 14.0,
        y + 4.5,
        &line.contender,
    );
    y
}

/// Returns the rows of the number that most rows have; of two such numbers, the greater.
fn of_one_number<'a>(lines: &[&'a Line]) -> Vec<&'a Line> {
    let count = |at: Option<u64>| lines.iter().filter(|line| line.at == at).count();
    let most = lines.iter().map(|line| line.at).max_by_key(|at| (count(*at), *at)).flatten();
    lines.iter().filter(|line| line.at == most).copied().collect()
}

/// Returns the share of each task as a multiple of a fair share.
#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
fn beside_fair(shares: &[u64]) -> Option<Vec<f64>> {
    let all: u64 = shares.iter().sum();
    if all == 0 {
        return None;
    }
    let fair = all as f64 / length(shares.len());
    Some(shares.iter().map(|share| *share as f64 / fair).collect())
}

/// Returns the greatest share divided by the least; infinite if a task had none.
fn spread(shares: &[f64]) -> f64 {
    let (fewest, most) = shares
        .iter()
        .fold((f64::MAX, 0.0_f64), |(fewest, most), share| (fewest.min(*share), most.max(*share)));
    most / fewest
}

fn length(rows: usize) -> f64 {
    f64::from(u32::try_from(rows).unwrap_or(u32::MAX))
}
