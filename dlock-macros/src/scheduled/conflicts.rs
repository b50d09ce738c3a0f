//! Finds parameters that contradict each other, and parameters that do not fit the function.

use std::time::Duration;

use dlock_calendar::Calendar;
use proc_macro2::Ident;
use syn::Error;

use super::args::{CatchUp, JobOptions, ScheduledArgs};
use super::instants::Instants;
use crate::arguments::duration::{Time, written};
use crate::function::Function;
use crate::report::Report;

/// Reports what contradicts itself or does not fit the function.
pub(super) fn check_function(args: &ScheduledArgs, function: &Function, report: &mut Report) {
    let options = &args.options;
    let known = |time: &Option<Time>| time.as_ref().and_then(Time::known);
    if let (Some((lease, span)), Some((max_hold, _))) = (known(&options.lease), known(&options.max_hold))
        && lease > max_hold
    {
        report.push(Error::new(
            span,
            format!(
                "`lease` is longer than `max_hold`, which ends the run first: write `lease = \"{}\"` or less",
                written(max_hold)
            ),
        ));
    }
    check_variables(options, function, report);
    if let Instants::Every(period) = &args.instants
        && let Some((period, _)) = period.known()
    {
        check_period(options, period, report);
    }
    if let Instants::Slot(_) = &args.instants {
        check_slot(options, report);
    }
    if options.manager.is_none() {
        report.check(function.refuse_main(&super::VOCABULARY));
    }
    if matches!(args.instants, Instants::Slot(_))
        && function.parameters.is_empty()
        && function.receiver.is_none()
    {
        report.push(Error::new(
            function.signature.ident.span(),
            "`slot` is a time that the caller chooses, and the function has no arguments: add one, such as `fire_at: SystemTime`",
        ));
    }
    let output = &function.output;
    if output.opaque || output.is_never() {
        report.push(Error::new(
            output.span,
            "a call that does not run its tick returns `Ok(None)`: return `Result<Option<T>, E>`",
        ));
    }
}

/// Refuses variables of the body that hide an argument or each other.
fn check_variables(options: &JobOptions, function: &Function, report: &mut Report) {
    let hides = |name: &str, variable: &Option<Ident>, instead: &str| match variable {
        Some(variable) => function.refuse_hidden(name, variable, instead),
        None => Ok(()),
    };
    report.check(hides("tick", &options.tick, "slot"));
    report.check(hides("guard", &options.guard, "run"));
    if let (Some(tick), Some(guard)) = (&options.tick, &options.guard)
        && tick == guard
    {
        report.push(Error::new(
            guard.span(),
            format!("`tick` and `guard` are both `{guard}`: write `tick = tick, guard = lease`"),
        ));
    }
}

/// Refuses times that do not fit the period of the job.
fn check_period(options: &JobOptions, period: Duration, report: &mut Report) {
    if let Some(CatchUp::All { window, .. }) = &options.catch_up
        && let Some((short, span)) = window.known()
        && short < period
    {
        let least = written(period);
        report.push(Error::new(
            span,
            format!(
                "`window` is shorter than the period, so no missed tick is in it: write `window = \"{least}\"` or more"
            ),
        ));
    }
    if let Some((spread, span)) = options.spread.as_ref().and_then(Time::known)
        && spread > period / 2
    {
        let most = written(period / 2);
        report.push(Error::new(
            span,
            format!("`spread` is longer than half of the period: write `spread = \"{most}\"` or less"),
        ));
    }
    if let Some((min_hold, span)) = options.min_hold.as_ref().and_then(Time::known)
        && let Some(most) = Calendar::every(period).ok().and_then(|calendar| calendar.longest_min_hold())
        && min_hold > most
    {
        let most = written(most);
        report.push(Error::new(
            span,
            format!(
                "`min_hold` reaches the next tick, which may start early by half of the period and at most 10 s, so ticks would be skipped: write `min_hold = \"{most}\"` or less"
            ),
        ));
    }
}

/// Refuses options that only a runner carries out, for slots that no runner knows.
fn check_slot(options: &JobOptions, report: &mut Report) {
    let catch_up = options.catch_up.as_ref().and_then(CatchUp::span).map(|span| ("catch_up", span));
    let spread = options.spread.as_ref().map(|spread| ("spread", spread.span()));
    for (name, span) in catch_up.into_iter().chain(spread) {
        report.push(Error::new(
            span,
            format!(
                "`{name}` is for the ticks of a runner, and a `slot` is chosen by the caller: leave it out, or write `cron` or `every` instead of `slot`"
            ),
        ));
    }
}
