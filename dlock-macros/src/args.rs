//! Parses the parameters of the attribute, each by itself.
//!
//! ```text
//! args  := { name "=" value "," }
//! value := an expression, whose form depends on the name
//! ```
//!
//! See `conflicts` for parameters that contradict each other, `expand` for the function, and
//! `template` and `key` for key templates.

use proc_macro2::{Ident, Span, TokenStream};
use syn::{Error, Expr, ExprLit, ExprPath, Lit, LitBool, LitStr, Path};

use crate::conflicts;
use crate::duration::{self, Time};
use crate::entry;
use crate::names;
use crate::report::{Report, list};
use crate::values;

/// The parameters of one attribute.
pub(crate) struct Args {
    pub(crate) key: KeySource,
    pub(crate) options: Options,
}

/// The optional parameters.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) lease: Option<Time>,
    pub(crate) renew: Option<LitBool>,
    pub(crate) retry: Option<Expr>,
    pub(crate) wait: Option<Time>,
    pub(crate) backoff: Option<(Time, Time)>,
    pub(crate) max_hold: Option<Time>,
    pub(crate) min_hold: Option<Time>,
    pub(crate) reentrant: Option<LitBool>,
    pub(crate) on_contended: OnContended,
    pub(crate) on_lost: OnLost,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) release: ReleaseMode,
    pub(crate) guard: Option<Ident>,
    pub(crate) manager: Option<Expr>,
    pub(crate) namespace: Option<Expr>,
    pub(crate) name: Option<Expr>,
    pub(crate) runtime: Option<Path>,
}

/// The source of the key.
pub(crate) enum KeySource {
    /// A string literal: text with placeholders.
    Template(LitStr),
    /// Any other expression, which returns the whole key.
    BoxedFn(Expr),
}

/// The outcome of a call if another call holds the lock.
#[derive(Default)]
pub(crate) enum OnContended {
    #[default]
    Error,
    Skip,
    Return(Expr),
    Fallback(ExprPath),
}

/// The effect of a loss on the body.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OnLost {
    #[default]
    Abort,
    Finish,
}

/// Whether a call whose body has ended waits for the server's reply to the release.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ReleaseMode {
    #[default]
    Awaited,
    Background,
}

/// The outcome of a call if the server is unavailable.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OnUnavailable {
    #[default]
    Error,
    Skip,
    Run,
}

impl Args {
    /// Parses the attribute's text. Every error goes to `report`. Returns `None` after an error
    /// that leaves no key.
    pub(crate) fn parse(tokens: TokenStream, report: &mut Report) -> Option<Self> {
        let mut draft = Draft::default();
        let mut seen: Vec<Ident> = Vec::new();
        for entry in entry::split(tokens) {
            if let Some((name, value)) = report.check(entry.read()) {
                if seen.contains(&name) {
                    report.push(Error::new(
                        name.span(),
                        format!("`{name}` is given twice: keep one of the two"),
                    ));
                    continue;
                }
                report.check(draft.set(&name, value));
                seen.push(name);
            } else {
                // The key was refused, so do not report that it is missing as well.
                draft.key_refused |= entry.is_key();
            }
        }
        if draft.key.is_none() && !draft.key_refused {
            report.push(Error::new(
                Span::call_site(),
                "no key is given: write `key = \"order:<user_id>\"`, with an argument between `<` and `>`",
            ));
        }
        let Draft { key, options, .. } = draft;
        conflicts::check(&options, report);
        Some(Self { key: key?, options })
    }
}

/// The parameters that have been parsed so far.
#[derive(Default)]
struct Draft {
    key: Option<KeySource>,
    /// Whether a parameter that was meant as the key was refused.
    key_refused: bool,
    options: Options,
}

impl Draft {
    fn set(&mut self, name: &Ident, value: Expr) -> syn::Result<()> {
        let Self { key, key_refused, options } = self;
        match name.to_string().as_str() {
            "key" => {
                *key = Some(match value {
                    Expr::Lit(ExprLit { lit: Lit::Str(template), .. }) => KeySource::Template(template),
                    whole => KeySource::BoxedFn(whole),
                });
            }
            "lease" => options.lease = Some(values::lease("lease", &value, "30s")?),
            "renew" => options.renew = Some(values::boolean("renew", &value)?),
            "retry" => options.retry = Some(values::retry(value)?),
            "wait" => options.wait = Some(Time::parse("wait", &value, "5s")?),
            "backoff" => options.backoff = Some(duration::parse_range("backoff", &value)?),
            "max_hold" => options.max_hold = Some(values::lease("max_hold", &value, "10m")?),
            "min_hold" => options.min_hold = Some(values::min_hold(&value)?),
            "reentrant" => options.reentrant = Some(values::boolean("reentrant", &value)?),
            "on_contended" => options.on_contended = values::on_contended(value)?,
            "on_lost" => options.on_lost = values::on_lost(&value)?,
            "on_unavailable" => options.on_unavailable = values::on_unavailable(&value)?,
            "release" => options.release = values::release(&value)?,
            "guard" => options.guard = Some(values::guard(&value)?),
            "manager" => options.manager = Some(values::manager(value)?),
            "namespace" => options.namespace = Some(values::namespace(value)?),
            "name" => options.name = Some(values::name(value)?),
            "kind" => values::kind(&value)?,
            "crate" => options.runtime = Some(values::runtime(value)?),
            "keys" if key.is_some() => {
                let problem =
                    "this version of dlock locks one key per attribute: keep `key`, and leave `keys` out";
                return Err(Error::new(name.span(), problem));
            }
            other => {
                *key_refused |= other == "keys" || names::canonical_name(other) == Some("key");
                return Err(Error::new(name.span(), unknown(other)));
            }
        }
        Ok(())
    }
}

/// Returns the error for an unknown parameter, with a suggestion.
fn unknown(name: &str) -> String {
    if name == "timeout" {
        return "`timeout` is ambiguous: `wait` is how long to wait for the lock, `lease` how long it outlives a crash"
            .to_owned();
    }
    let none = format!("there is no parameter `{name}`");
    let later = |ours| {
        let instead = names::PLANNED.iter().find(|(later, _)| *later == ours).map(|(_, instead)| instead);
        instead.map(|instead| format!("`{ours}` is not available in this version of dlock: {instead}"))
    };
    if let Some(later) = later(name) {
        return later;
    }
    if let Some(ours) = names::canonical_name(name) {
        let here = format!("{none}: dlock calls it `{ours}`");
        return later(ours).map_or(here, |later| format!("{none}; {later}"));
    }
    let near = names::nearest(name, names::KNOWN.iter().copied());
    let near = near.map_or_else(String::new, |near| format!(": did you mean `{near}`"));
    format!("{none}{near}; the parameters are {}", list(names::KNOWN))
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn errors(tokens: TokenStream) -> Vec<String> {
        let mut report = Report::default();
        let args = Args::parse(tokens, &mut report);
        match report.finish(args) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.into_iter().map(|error| error.to_string()).collect(),
        }
    }

    #[test]
    fn the_first_line_of_the_readme_is_read() {
        let mut report = Report::default();

        let args = Args::parse(quote!(key = "order:<user_id>", lease = "30s", retry = 3), &mut report);

        assert!(report.finish(args).is_ok());
    }

    #[test]
    fn two_mistakes_are_two_errors() {
        assert_eq!(errors(quote!(key = "a:<b>", lease = "30", retrys = 3)).len(), 2);
        assert_eq!(errors(quote!(key = "a:<b>", lease = "30", lease = "30s", retry = "3")).len(), 3);
        assert_eq!(errors(quote!(lease = "0s")).len(), 2);
    }

    #[test]
    fn a_bad_value_spoils_only_itself() {
        assert_eq!(errors(quote!(key = "a", wait = + , lease = "30s")).len(), 1);
        assert_eq!(errors(quote!("order:<id>", lease = "30s")).len(), 1);
        assert_eq!(errors(quote!(key = "a" lease = "30s")).len(), 1);
        assert_eq!(errors(quote!(key = "a", guard, lease = "30s")).len(), 1);
        assert_eq!(errors(quote!(resource = "a:<b>")).len(), 1);
    }

    #[test]
    fn commas_inside_a_value_belong_to_it() {
        assert!(errors(quote!(key = key::<A, B, C>(&a, &b), retry = 3,)).is_empty());
    }

    #[test]
    fn foreign_names_are_refused_with_ours() {
        assert_eq!(
            errors(quote!(key = "a", leaseTime = 3)),
            ["there is no parameter `leaseTime`: dlock calls it `lease`"]
        );
    }
}
