//! Finds parameters that contradict each other, and parameters that do not fit the function.

use syn::Error;

use super::args::ScheduledArgs;
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
    if let Some(tick) = &options.tick {
        report.check(function.refuse_hidden("tick", tick, "slot"));
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
