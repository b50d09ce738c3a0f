//! Finds parameters that contradict each other.
//!
//! Only literals are known here. The runtime checks constants when the program is compiled. See
//! `outcome` for parameters that do not fit the return type.

use syn::Error;

use super::args::Options;
use crate::arguments::duration::{Time, written};
use crate::report::Report;

/// Reports each pair of parameters that contradict each other, at the parameter that has no effect.
pub(crate) fn check(options: &Options, report: &mut Report) {
    let Options { lease, renew, retry, backoff, max_hold, min_hold, .. } = options;
    let known = |time: &Option<Time>| time.as_ref().and_then(Time::known);
    if let (Some((lease, span)), Some((max_hold, _))) = (known(lease), known(max_hold))
        && lease > max_hold
    {
        let most = written(max_hold);
        report.push(Error::new(
            span,
            format!(
                "`max_hold` ends the hold before this `lease` does: write `lease = \"{most}\"` or less, or leave `lease` out"
            ),
        ));
    }
    if let (Some((_, delay)), None) = (backoff, retry) {
        report.push(Error::new(
            delay.span(),
            "`backoff` is the time between the tries of `retry`, and there is no `retry`: write `retry = 3`, or leave `backoff` out",
        ));
    }
    let fixed = renew.as_ref().is_some_and(|renew| !renew.value);
    if let (Some((lease, _)), Some((min_hold, span)), true) = (known(lease), known(min_hold), fixed)
        && min_hold > lease
    {
        let least = written(min_hold);
        report.push(Error::new(
            span,
            format!(
                "with `renew = false` the `lease` ends before this `min_hold`: write `lease = \"{least}\"` or more, or leave `renew = false` out"
            ),
        ));
    }
}
