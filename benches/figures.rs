//! Conversions, medians, and percentiles.

use std::time::Duration;

/// Returns `nanos` in milliseconds.
pub(crate) fn millis(nanos: u64) -> f64 {
    float(nanos) / 1e6
}

/// Returns the milliseconds from `earlier` to `later`; negative if `later` is before `earlier`.
pub(crate) fn millis_between(earlier: u64, later: u64) -> f64 {
    if later >= earlier { millis(later - earlier) } else { -millis(earlier - later) }
}

/// Returns `time` in whole nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts a count to a float.
#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Returns the median; the upper of the two middle figures if the count is even.
pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// Returns the percentile of sorted figures.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a place among figures that fit into memory"
)]
pub(crate) fn percentile(figures: &[f64], percent: f64) -> f64 {
    let last = figures.len().saturating_sub(1);
    figures.get((last as f64 * percent / 100.0).ceil() as usize).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_figures() {
        let figures: Vec<f64> = (0..=1_000).map(float).collect();

        for (percent, figure) in [(0.0, 0.0), (1.0, 10.0), (50.0, 500.0), (99.9, 999.0), (100.0, 1_000.0)] {
            let found = percentile(&figures, percent);
            assert!((found - figure).abs() < 0.5, "p{percent}: {found}");
        }
    }
}
