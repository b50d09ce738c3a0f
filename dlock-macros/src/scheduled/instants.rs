//! When a job is due: `cron` and `tz`, `every`, or `slot`.
//!
//! The expression and the zone are checked with the code that computes the ticks.

use dlock_calendar::{Calendar, CalendarError};
use proc_macro2::{Ident, Span};
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Lit, LitStr};

use super::VOCABULARY;
use crate::arguments::duration::Time;
use crate::report::Report;

/// When a job is due.
pub(crate) enum Instants {
    Cron {
        expression: LitStr,
        zone: Option<LitStr>,
    },
    Every(Time),
    /// The caller chooses the slot.
    Slot(Expr),
}

/// The names of the parameters that say when a job is due.
const INSTANTS: [&str; 4] = ["cron", "tz", "every", "slot"];

/// The parameters that say when a job is due.
#[derive(Default)]
pub(super) struct InstantsSource {
    cron: Option<LitStr>,
    tz: Option<LitStr>,
    every: Option<Time>,
    slot: Option<Expr>,
    /// Whether one of them was refused, so that none is reported as missing.
    is_refused: bool,
}

impl InstantsSource {
    /// Parses one parameter. Returns `false` if it is another one.
    pub(super) fn set(&mut self, name: &Ident, value: &Expr) -> syn::Result<bool> {
        let is_known = INSTANTS.iter().any(|known| name == known);
        let set = self.set_known(name, value);
        self.is_refused |= set.is_err();
        set.map(|()| is_known)
    }

    fn set_known(&mut self, name: &Ident, value: &Expr) -> syn::Result<()> {
        match name.to_string().as_str() {
            "cron" => {
                let expression = literal("cron", value, "cron = \"0 2 * * *\"")?;
                Calendar::cron(&expression.value()).map_err(|error| at(expression.span(), &error))?;
                self.cron = Some(expression);
            }
            "tz" => {
                let zone = literal("tz", value, "tz = \"Europe/Berlin\"")?;
                let any = Calendar::cron("0 0 * * *").and_then(|calendar| calendar.tz(&zone.value()));
                any.map_err(|error| at(zone.span(), &error))?;
                self.tz = Some(zone);
            }
            "every" => {
                let every = Time::parse(&VOCABULARY, "every", value, "5m")?;
                if let Some((period, span)) = every.known() {
                    let checked = Calendar::every(period);
                    checked.map_err(|error| {
                        Error::new(span, format!("`every`: {}: write `every = \"5m\"`", error.problem))
                    })?;
                }
                self.every = Some(every);
            }
            "slot" => match value {
                Expr::Lit(literal) => {
                    return Err(Error::new(
                        literal.span(),
                        "`slot` is the `SystemTime` for which a call runs, and a literal is the same in all calls: write `slot = fire_at` with an argument",
                    ));
                }
                value => self.slot = Some(value.clone()),
            },
            _ => {}
        }
        Ok(())
    }

    /// Records that an unknown parameter was probably meant to be `meant`.
    pub(super) fn note_misspelled(&mut self, meant: Option<&str>) {
        self.is_refused |= meant.is_some_and(|meant| INSTANTS.contains(&meant));
    }

    /// Returns the instants, unless they contradict each other or are missing.
    pub(super) fn check(self, report: &mut Report) -> Option<Instants> {
        let Self { cron, tz, every, slot, is_refused } = self;
        if let (None, Some(tz)) = (&cron, &tz)
            && !is_refused
        {
            report.push(Error::new(
                tz.span(),
                "`tz` is the zone of a `cron` expression, and a period or a slot has none: leave it out, or write `cron = \"0 2 * * *\"`",
            ));
            if every.is_none() && slot.is_none() {
                return None;
            }
        }
        match (cron, every, slot) {
            (Some(expression), None, None) => Some(Instants::Cron { expression, zone: tz }),
            (None, Some(every), None) => Some(Instants::Every(every)),
            (None, None, Some(slot)) => Some(Instants::Slot(slot)),
            (None, None, None) => {
                if !is_refused {
                    report.push(Error::new(
                        Span::call_site(),
                        "the job is never due: write `cron = \"0 2 * * *\"`, `every = \"5m\"`, or `slot = fire_at` for a time that the caller chooses",
                    ));
                }
                None
            }
            (_, every, slot) => {
                let span = slot.map(|slot| slot.span()).or(every.map(|every| every.span()));
                report.push(Error::new(
                    span.unwrap_or_else(Span::call_site),
                    "a job has one of `cron`, `every`, and `slot`: keep one of them",
                ));
                None
            }
        }
    }
}

fn literal(name: &str, value: &Expr, example: &str) -> syn::Result<LitStr> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Ok(text.clone()),
        other => Err(Error::new(
            other.span(),
            format!(
                "`{name}` is a string that the compiler checks: write `{example}`; without the attribute, `scheduled::Schedule` takes one that is known at run time"
            ),
        )),
    }
}

fn at(span: Span, error: &CalendarError) -> Error {
    Error::new(span, format!("`{}`: {}", error.part, error.problem))
}
