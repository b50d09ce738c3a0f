//! Parses the parameters of the attribute.
//!
//! See `conflicts` for parameters that contradict each other, and `arguments` for the list itself.

use proc_macro2::{Ident, Span, TokenStream};
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprPath, LitBool, Path};

use super::{VOCABULARY, conflicts, values};
use crate::arguments::duration::{self, Time};
use crate::arguments::{self, values as shared};
use crate::report::Report;

/// The parameters of one attribute.
pub(crate) struct Args {
    pub(crate) key: Expr,
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
    /// Whether `min_hold` applies only if the body has succeeded, and where that is written.
    pub(crate) min_hold_on_ok: Option<(bool, Span)>,
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

/// The outcome of a call if another call holds the lock.
#[derive(Default)]
pub(crate) enum OnContended {
    #[default]
    Error,
    /// The span of the word.
    Skip(Span),
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

impl Options {
    /// Returns `true` if `min_hold` applies only if the body has succeeded.
    pub(crate) fn keeps_on_success_only(&self) -> bool {
        matches!(self.min_hold_on_ok, Some((true, _)))
    }
}

impl Args {
    /// Parses the attribute's text. Every error goes to `report`. Returns `None` after an error
    /// that leaves no key.
    pub(crate) fn parse(tokens: TokenStream, report: &mut Report) -> Option<Self> {
        let mut key = None;
        let mut options = Options::default();
        arguments::parse(&VOCABULARY, tokens, report, |name, value| options.set(&mut key, name, value));
        conflicts::check(&options, report);
        Some(Self { key: key?, options })
    }
}

impl Options {
    /// Parses one parameter. Returns `false` if there is none of this name.
    fn set(&mut self, key: &mut Option<Expr>, name: &Ident, value: Expr) -> syn::Result<bool> {
        let words = &VOCABULARY;
        match name.to_string().as_str() {
            "key" => *key = Some(value),
            "lease" => {
                let lease = |value: &Expr| shared::lease(words, "lease", value, "30s");
                self.lease = Some(values::evaluated_or(&value, lease)?);
            }
            "renew" => self.renew = Some(shared::boolean("renew", &value)?),
            "retry" => self.retry = Some(values::retry(value)?),
            "wait" => {
                let wait = |value: &Expr| Time::parse(words, "wait", value, "5s");
                self.wait = Some(values::evaluated_or(&value, wait)?);
            }
            "backoff" => self.backoff = Some(duration::parse_range(words, "backoff", &value)?),
            "max_hold" => {
                let max_hold = |value: &Expr| shared::lease(words, "max_hold", value, "10m");
                self.max_hold = Some(values::evaluated_or(&value, max_hold)?);
            }
            "min_hold" => {
                let min_hold = |value: &Expr| shared::stored(words, "min_hold", value, "50s");
                self.min_hold = Some(values::evaluated_or(&value, min_hold)?);
            }
            "min_hold_on" => self.min_hold_on_ok = Some((values::min_hold_on(&value)?, value.span())),
            "reentrant" => self.reentrant = Some(shared::boolean("reentrant", &value)?),
            "on_contended" => self.on_contended = values::on_contended(value)?,
            "on_lost" => self.on_lost = values::on_lost(&value)?,
            "on_unavailable" => self.on_unavailable = values::on_unavailable(&value)?,
            "release" => self.release = values::release(&value)?,
            "guard" => self.guard = Some(shared::variable("guard", &value, "the held lock", "lock")?),
            "manager" => self.manager = Some(shared::manager(value)?),
            "namespace" => self.namespace = Some(shared::namespace(value)?),
            "name" => self.name = Some(values::name(value)?),
            "kind" => values::kind(&value)?,
            "crate" => self.runtime = Some(shared::runtime(value)?),
            "keys" if key.is_some() => {
                let problem =
                    "this version of dlock locks one key per attribute: keep `key`, and leave `keys` out";
                return Err(Error::new(name.span(), problem));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
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
    fn a_quoted_word_is_written_without_quotes() {
        for value in [
            "renew = true",
            "retry = 3",
            "min_hold_on = ok",
            "reentrant = true",
            "on_contended = skip",
            "on_contended = return(Ok(None))",
            "on_contended = fallback(other)",
            "on_lost = finish",
            "on_unavailable = run",
            "release = background",
            "guard = lock",
            "kind = mutex",
            "crate = ::dlock_runtime",
        ] {
            crate::arguments::tests::assert_unquoted(value, |quoted| {
                errors(format!("key = \"a\", {quoted}").parse().expect("tokens"))
            });
        }
    }

    #[test]
    fn a_quoted_word_of_no_meaning_gets_the_error_of_the_word() {
        assert_eq!(errors(quote!(key = "a", on_lost = "stop")), errors(quote!(key = "a", on_lost = stop)));
        assert_eq!(errors(quote!(key = "a", retry = "5s")), errors(quote!(key = "a", retry = -1)));
        assert_eq!(
            errors(quote!(key = "a", wait = "forever")),
            ["`forever` is not a duration: write `wait = \"5s\"`; the units are `ms`, `s`, `m`, `h`"]
        );
    }

    #[test]
    fn a_number_without_a_unit_gets_one_within_the_bounds() {
        for (number, meant) in [("30", "30s"), ("86400000", "86400000ms")] {
            for given in [number.to_owned(), format!("\"{number}\"")] {
                let [told] = &*errors(format!("key = \"a\", lease = {given}").parse().expect("tokens"))
                else {
                    panic!("{given}");
                };
                assert!(told.contains(&format!("write `lease = \"{meant}\"`;")), "{told}");
            }
        }
    }

    #[test]
    fn foreign_names_are_refused_with_ours() {
        assert_eq!(
            errors(quote!(key = "a", leaseTime = 3)),
            ["there is no parameter `leaseTime`: dlock calls it `lease`"]
        );
    }
}
