//! Parses the parameters of the attribute.
//!
//! See `conflicts` for parameters that contradict each other, and `arguments` for the list itself.

use proc_macro2::{Ident, TokenStream};
use syn::{Error, Expr, ExprPath, LitBool, Path};

use super::{VOCABULARY, conflicts, values};
use crate::arguments::duration::{self, Time};
use crate::arguments::{self, values as shared};
use crate::key::KeySource;
use crate::report::Report;

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
        arguments::parse(&VOCABULARY, tokens, report, |name, value| draft.set(name, value));
        let Draft { key, options } = draft;
        conflicts::check(&options, report);
        Some(Self { key: key?, options })
    }
}

/// The parameters that have been parsed so far.
#[derive(Default)]
struct Draft {
    key: Option<KeySource>,
    options: Options,
}

impl Draft {
    /// Parses one parameter. Returns `false` if there is none of this name.
    fn set(&mut self, name: &Ident, value: Expr) -> syn::Result<bool> {
        let Self { key, options } = self;
        let words = &VOCABULARY;
        match name.to_string().as_str() {
            "key" => *key = Some(KeySource::new(value)),
            "lease" => options.lease = Some(shared::lease(words, "lease", &value, "30s")?),
            "renew" => options.renew = Some(shared::boolean("renew", &value)?),
            "retry" => options.retry = Some(values::retry(value)?),
            "wait" => options.wait = Some(Time::parse(words, "wait", &value, "5s")?),
            "backoff" => options.backoff = Some(duration::parse_range(words, "backoff", &value)?),
            "max_hold" => options.max_hold = Some(shared::lease(words, "max_hold", &value, "10m")?),
            "min_hold" => options.min_hold = Some(shared::stored(words, "min_hold", &value, "50s")?),
            "reentrant" => options.reentrant = Some(shared::boolean("reentrant", &value)?),
            "on_contended" => options.on_contended = values::on_contended(value)?,
            "on_lost" => options.on_lost = values::on_lost(&value)?,
            "on_unavailable" => options.on_unavailable = values::on_unavailable(&value)?,
            "release" => options.release = values::release(&value)?,
            "guard" => options.guard = Some(shared::variable("guard", &value, "the held lock", "lock")?),
            "manager" => options.manager = Some(shared::manager(value)?),
            "namespace" => options.namespace = Some(shared::namespace(value)?),
            "name" => options.name = Some(shared::name(value)?),
            "kind" => values::kind(&value)?,
            "crate" => options.runtime = Some(shared::runtime(value)?),
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
    fn foreign_names_are_refused_with_ours() {
        assert_eq!(
            errors(quote!(key = "a", leaseTime = 3)),
            ["there is no parameter `leaseTime`: dlock calls it `lease`"]
        );
    }
}
