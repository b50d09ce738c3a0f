//! The text between the brackets: parameters and their values, each checked by itself.
//!
//! ```text
//! args  := { name "=" value "," }
//! value := an expression, whose form depends on the name
//! ```
//!
//! Not here: whether they fit the function (`expand`), and the inside of a key template (`template`, `key`).

use proc_macro2::{Ident, Span, TokenStream};
use syn::{Error, Expr, ExprLit, ExprPath, Lit, LitBool, LitStr, Path};

use crate::duration::{self, Time};
use crate::entry;
use crate::names;
use crate::report::{Report, list};
use crate::values;

/// The parameters of one attribute.
pub(crate) struct Args {
    pub(crate) key: KeySource,
    pub(crate) lease: Option<Time>,
    pub(crate) renew: Option<LitBool>,
    pub(crate) retry: Option<Expr>,
    pub(crate) wait: Option<Time>,
    pub(crate) backoff: Option<(Time, Time)>,
    pub(crate) on_contended: OnContended,
    pub(crate) on_lost: OnLost,
    pub(crate) guard: Option<Ident>,
    pub(crate) manager: Option<Expr>,
    pub(crate) runtime: Option<Path>,
}

/// Where the key comes from.
pub(crate) enum KeySource {
    /// A string literal: text with holes.
    Template(LitStr),
    /// Anything else: an expression that gives the whole key.
    Whole(Expr),
}

/// What a call gives when somebody else holds the lock.
pub(crate) enum OnContended {
    Error,
    Skip,
    Return(Expr),
    Fallback(ExprPath),
}

/// What a loss does to the body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnLost {
    Abort,
    Finish,
}

impl Args {
    /// Reads the attribute's text. Every mistake goes to `report`; there is no value after one without which there is no key.
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
                // Whatever it was meant to be, do not say on top that the key is missing.
                draft.key_refused |= entry.is_key();
            }
        }
        if draft.key.is_none() && !draft.key_refused {
            report.push(Error::new(
                Span::call_site(),
                "nothing says what to lock: write `key = \"order:<user_id>\"`, with an argument between `<` and `>`",
            ));
        }
        Some(Self {
            key: draft.key?,
            lease: draft.lease,
            renew: draft.renew,
            retry: draft.retry,
            wait: draft.wait,
            backoff: draft.backoff,
            on_contended: draft.on_contended.unwrap_or(OnContended::Error),
            on_lost: draft.on_lost.unwrap_or(OnLost::Abort),
            guard: draft.guard,
            manager: draft.manager,
            runtime: draft.runtime,
        })
    }
}

#[derive(Default)]
struct Draft {
    key: Option<KeySource>,
    key_refused: bool,
    lease: Option<Time>,
    renew: Option<LitBool>,
    retry: Option<Expr>,
    wait: Option<Time>,
    backoff: Option<(Time, Time)>,
    on_contended: Option<OnContended>,
    on_lost: Option<OnLost>,
    guard: Option<Ident>,
    manager: Option<Expr>,
    runtime: Option<Path>,
}

impl Draft {
    fn set(&mut self, name: &Ident, value: Expr) -> syn::Result<()> {
        match name.to_string().as_str() {
            "key" => {
                self.key = Some(match value {
                    Expr::Lit(ExprLit { lit: Lit::Str(template), .. }) => KeySource::Template(template),
                    whole => KeySource::Whole(whole),
                });
            }
            "lease" => self.lease = Some(values::lease(&value)?),
            "renew" => self.renew = Some(values::boolean("renew", &value)?),
            "retry" => self.retry = Some(values::retry(value)?),
            "wait" => self.wait = Some(Time::parse("wait", &value, "5s")?),
            "backoff" => self.backoff = Some(duration::parse_range("backoff", &value)?),
            "on_contended" => self.on_contended = Some(values::on_contended(value)?),
            "on_lost" => self.on_lost = Some(values::on_lost(&value)?),
            "guard" => self.guard = Some(values::guard(&value)?),
            "manager" => self.manager = Some(value),
            "crate" => self.runtime = Some(values::runtime(value)?),
            other => {
                self.key_refused |= other == "keys" || names::here(other) == Some("key");
                return Err(Error::new(name.span(), unknown(other)));
            }
        }
        Ok(())
    }
}

/// Says what to write instead of a name that is none of ours.
fn unknown(name: &str) -> String {
    let options = || format!("the parameters are {}", list(names::KNOWN));
    if names::LATER.contains(&name) {
        return format!("`{name}` is not available in this version of dlock; {}", options());
    }
    if name == "timeout" {
        return "`timeout` is two things here: `wait` is how long to wait for the lock, `lease` how long it outlives a crash"
            .to_owned();
    }
    let all = || names::KNOWN.iter().chain(names::LATER).copied();
    match (names::here(name), names::nearest(name, all())) {
        (Some(ours), _) if names::LATER.contains(&ours) => {
            format!(
                "there is no parameter `{name}`: here it is called `{ours}`, which is not available in this version of dlock"
            )
        }
        (Some(ours), _) => format!("there is no parameter `{name}`: here it is called `{ours}`"),
        (None, Some(near)) => format!("there is no parameter `{name}`: did you mean `{near}`; {}", options()),
        (None, None) => format!("there is no parameter `{name}`; {}", options()),
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
    fn a_foreign_name_is_told_ours() {
        assert_eq!(
            errors(quote!(key = "a", leaseTime = 3)),
            ["there is no parameter `leaseTime`: here it is called `lease`"]
        );
    }
}
