//! SVG elements, scales, and light and dark styles.

use std::fmt::Write as _;

use crate::figures::Whose;

/// A picture under construction. Lengths are in pixels from the top left.
#[derive(Debug)]
pub(crate) struct Svg {
    height: f64,
    inside: String,
}

/// A scale from figures to pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    least: f64,
    greatest: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

pub(crate) const WIDTH: f64 = 880.0;

impl Svg {
    pub(crate) fn new(height: f64, title: &str, subtitle: &str) -> Self {
        let mut svg = Self { height, inside: String::new() };
        svg.text("title", 28.0, 38.0, title);
        svg.text("subtitle", 28.0, 60.0, subtitle);
        svg
    }

    pub(crate) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = escaped(text);
        self.push(format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#));
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.push(format_args!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    pub(crate) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!(r#"<polyline class="{class}" points="{}"/>"#, points.join(" ")));
    }

    pub(crate) fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64) {
        self.push(format_args!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius}"/>"#));
    }

    pub(crate) fn bar(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        let width = width.max(1.0);
        self.push(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2"/>"#
        ));
    }

    pub(crate) fn finish(self, label: &str) -> String {
        let Self { height, inside } = self;
        let label = escaped(label);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             role=\"img\" aria-label=\"{label}\">\n<style>{STYLE}</style>\n\
             <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n{inside}</svg>\n"
        )
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.inside, "{element}");
    }
}

impl Scale {
    /// Returns a scale over all `figures`.
    ///
    /// It is linear from zero, or logarithmic if the greatest is more than 60 times the least.
    pub(crate) fn of(figures: &[f64], (from, to): (f64, f64)) -> Self {
        let positive = || figures.iter().copied().filter(|figure| *figure > 0.0);
        let (least, greatest) = (positive().fold(f64::MAX, f64::min), positive().fold(0.0, f64::max));
        if greatest > 60.0 * least {
            let (least, greatest) =
                (10_f64.powf(least.log10().floor()), 10_f64.powf(greatest.log10().ceil()));
            return Self { least, greatest, logarithmic: true, from, to };
        }
        let step = step_of(greatest);
        Self {
            least: 0.0,
            greatest: (greatest * 1.02 / step).ceil().max(1.0) * step,
            logarithmic: false,
            from,
            to,
        }
    }

    pub(crate) fn place(&self, figure: f64) -> f64 {
        let share = if self.logarithmic {
            (figure.max(self.least) / self.least).log10() / (self.greatest / self.least).log10()
        } else {
            (figure - self.least) / (self.greatest - self.least)
        };
        self.from + share * (self.to - self.from)
    }

    /// Returns the figures at the axis.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let step = if self.logarithmic { 10.0 } else { step_of(self.greatest) };
        let next = |tick: &f64| Some(if self.logarithmic { tick * step } else { tick + step });
        std::iter::successors(Some(self.least), next)
            .take_while(|tick| *tick <= self.greatest * 1.001)
            .collect()
    }
}

/// Returns the distance between ticks: 1, 2, or 5 times a power of ten, for about five ticks.
fn step_of(greatest: f64) -> f64 {
    let power = 10_f64.powf((greatest / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|times| times * power)
        .into_iter()
        .find(|step| greatest / step <= 6.0)
        .unwrap_or(power)
}

/// Returns the CSS class of the elements of a contender.
pub(crate) fn class(whose: Whose, name: &str) -> &'static str {
    match whose {
        Whose::Ours if name != "ours" => "ours option",
        Whose::Ours => "ours",
        Whose::Floor => "floor",
        Whose::Rival => "rival",
    }
}

/// Returns a figure with three significant digits and thousands separators.
pub(crate) fn shown(figure: f64) -> String {
    let digits = match figure.abs() {
        size if size >= 99.5 => 0,
        size if size >= 9.95 => 1,
        size if size >= 0.995 || size == 0.0 => 2,
        size if size >= 0.0995 => 3,
        _ => 4,
    };
    let sign = if figure < 0.0 { "-" } else { "" };
    let text = format!("{:.digits$}", figure.abs());
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let rest = rest.trim_end_matches('0');
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if rest.is_empty() { format!("{sign}{grouped}") } else { format!("{sign}{grouped}.{rest}") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// `ours` has the only strong color.
const STYLE: &str = "
text { font: 13px system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', sans-serif; fill: #57606a; }
.ground { fill: #ffffff; }
.title { font-size: 19px; font-weight: 600; fill: #1f2328; }
.subtitle, .axis { fill: #57606a; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.name.ours, .figure.ours { font-weight: 700; fill: #0a5bd3; }
.name.floor { font-style: italic; }
.grid { stroke: #d8dee4; stroke-width: 1; }
.base { stroke: #8c959f; stroke-width: 1; stroke-dasharray: 5 4; }
.leader { stroke: #c4ccd4; stroke-width: 1; }
polyline { fill: none; stroke-linejoin: round; stroke-linecap: round; }
polyline.ours { stroke: #0a5bd3; stroke-width: 3.5; }
polyline.option { stroke-width: 2; stroke-dasharray: 1 5; }
polyline.floor { stroke: #8c959f; stroke-width: 2; stroke-dasharray: 5 4; }
polyline.rival { stroke: #b8a07e; stroke-width: 1.8; }
line.ours { stroke: #0a5bd3; stroke-width: 2.5; }
line.floor { stroke: #8c959f; stroke-width: 1.5; }
line.rival { stroke: #b8a07e; stroke-width: 1.5; }
line.mark { stroke-opacity: .6; }
rect.ours, circle.ours { fill: #0a5bd3; }
rect.option { fill-opacity: .55; }
.name.ours.option, .figure.ours.option { font-weight: 400; }
rect.floor, circle.floor { fill: #8c959f; }
rect.rival, circle.rival { fill: #b8a07e; }
rect.box { fill-opacity: .35; }
@media (prefers-color-scheme: dark) {
text { fill: #9198a1; }
.ground { fill: #0d1117; }
.title { fill: #f0f6fc; }
.subtitle, .axis { fill: #9198a1; }
.name.ours, .figure.ours { fill: #6cb2ff; }
.grid { stroke: #262c36; }
.base { stroke: #6e7681; }
.leader { stroke: #3d444d; }
polyline.ours, line.ours { stroke: #58a6ff; }
polyline.rival, line.rival { stroke: #8d7853; }
rect.ours, circle.ours { fill: #58a6ff; }
rect.rival, circle.rival { fill: #8d7853; }
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_thousands_separators() {
        let shown: Vec<String> = [0.0, 0.9684, 0.9951, 1.0, 12.34, 752_345.6, 0.0047, -115.2]
            .into_iter()
            .map(super::shown)
            .collect();

        assert_eq!(shown, ["0", "0.968", "1", "1", "12.3", "752,346", "0.0047", "-115"]);
    }

    #[test]
    fn a_scale_covers_all_figures_with_few_ticks() {
        for figures in [vec![0.3, 1.18], vec![73.0, 752_000.0], vec![271.0, 4_838.0]] {
            let scale = Scale::of(&figures, (100.0, 500.0));

            for figure in figures {
                assert!((100.0..=500.0).contains(&scale.place(figure)), "{figure} on {scale:?}");
            }
            assert!((3..=8).contains(&scale.ticks().len()), "{:?}", scale.ticks());
        }
    }
}
