//! Parses the parameters of the attribute.
//!
//! See `conflicts` for parameters that contradict each other, and `arguments` for the list itself.

use proc_macro2::{Ident, Span, TokenStream};
use syn::{Error, Expr, LitStr, Path};

use super::instants::{Instants, InstantsSource};
use super::{VOCABULARY, values};
use crate::arguments::duration::Time;
use crate::arguments::{self, values as shared};
use crate::report::Report;

/// The parameters of one attribute.
pub(crate) struct ScheduledArgs {
    pub(crate) name: LitStr,
    pub(crate) instants: Instants,
    pub(crate) options: JobOptions,
}

/// The optional parameters.
#[derive(Default)]
pub(crate) struct JobOptions {
    pub(crate) overlap: Overlap,
    pub(crate) catch_up: Option<CatchUp>,
    pub(crate) spread: Option<Time>,
    pub(crate) retries: u32,
    pub(crate) on_crash: OnCrash,
    pub(crate) lease: Option<Time>,
    pub(crate) min_hold: Option<Time>,
    pub(crate) max_hold: Option<Time>,
    pub(crate) tick: Option<Ident>,
    pub(crate) guard: Option<Ident>,
    pub(crate) manager: Option<Expr>,
    pub(crate) runtime: Option<Path>,
}

/// The effect of a run that is active when a tick is due.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Overlap {
    #[default]
    Skip,
    QueueOne,
    CancelPrevious,
}

/// Which missed ticks run. The span is that of the parameter's value.
pub(crate) enum CatchUp {
    None,
    Latest(Span),
    All { max: u32, window: Time, span: Span },
}

impl CatchUp {
    /// Returns the position of a value that makes ticks run late.
    pub(crate) fn span(&self) -> Option<Span> {
        match self {
            Self::None => None,
            Self::Latest(span) | Self::All { span, .. } => Some(*span),
        }
    }
}

/// The effect of a crash.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OnCrash {
    #[default]
    Rerun,
    Skip,
}

impl ScheduledArgs {
    /// Parses the attribute's text. Every error goes to `report`. Returns `None` after an error
    /// that leaves no name or no instants.
    pub(crate) fn parse(tokens: TokenStream, report: &mut Report) -> Option<Self> {
        let (mut name, mut options) = (None, JobOptions::default());
        let mut source = InstantsSource::default();
        let mut has_name = false;
        arguments::parse(&VOCABULARY, tokens, report, |parameter, value| {
            if parameter == "name" {
                has_name = true;
                name = Some(values::name(&value)?);
                return Ok(true);
            }
            let is_known = source.set(parameter, &value)? || options.set(parameter, value)?;
            if !is_known {
                // A misspelled name must not be reported as missing as well.
                let meant = VOCABULARY.meant(&parameter.to_string());
                has_name |= meant == Some("name");
                source.note_misspelled(meant);
            }
            Ok(is_known)
        });
        if !has_name {
            report.push(Error::new(
                Span::call_site(),
                "no name is given: write `name = \"nightly-report\"`, which is the same in all replicas and versions of the service",
            ));
        }
        let instants = source.check(report);
        Some(Self { name: name?, instants: instants?, options })
    }
}

impl JobOptions {
    /// Parses one parameter. Returns `false` if there is none of this name.
    fn set(&mut self, name: &Ident, value: Expr) -> syn::Result<bool> {
        let words = &VOCABULARY;
        match name.to_string().as_str() {
            "overlap" => self.overlap = values::overlap(&value)?,
            "catch_up" => self.catch_up = Some(values::catch_up(&value)?),
            "spread" => self.spread = Some(shared::stored(words, "spread", &value, "30s")?),
            "on_error" => self.retries = values::on_error(&value)?,
            "on_crash" => self.on_crash = values::on_crash(&value)?,
            "lease" => self.lease = Some(shared::lease(words, "lease", &value, "30s")?),
            "min_hold" => self.min_hold = Some(shared::stored(words, "min_hold", &value, "30s")?),
            "max_hold" => self.max_hold = Some(shared::lease(words, "max_hold", &value, "10m")?),
            "tick" => self.tick = Some(shared::variable("tick", &value, "its tick", "tick")?),
            "guard" => self.guard = Some(shared::variable("guard", &value, "the lease of its run", "lease")?),
            "manager" => self.manager = Some(shared::manager(value)?),
            "crate" => self.runtime = Some(shared::runtime(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}
