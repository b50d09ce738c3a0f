//! Assembles the expansion.
//!
//! ```text
//! let call   = ..;                              manager, options, key; dropped last, which releases the lock
//! let body   = pin!(Body::Future { .. async move { .. } }); owns every argument, which is dropped before the lock
//! let result = call.run(body).await;            drops the body in place before the release
//! finish::<R>(result)                           has the span of the return type, where errors are shown
//! ```
//!
//! **The order of the declarations matters.** A cancelled call drops the locals of the body, then
//! the arguments, then the lock. In the opposite order, the lock would be free while a transaction
//! of the body is alive.
//!
//! See `args` and `values` for the parameters, `key` for the key, and `outcome` for the result.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::LitBool;
use syn::spanned::Spanned;
use syn::{Expr, ExprBlock, Stmt};

use super::args::{Args, OnContended, OnLost, OnUnavailable, ReleaseMode};
use super::outcome;
use crate::arguments::duration::Time;
use crate::function::Function;
use crate::function::body;
use crate::key::Key;
use crate::runtime::{self, setter};

/// The parsed input, without errors.
pub(crate) struct Expansion<'a> {
    pub(crate) private: TokenStream,
    pub(crate) args: &'a Args,
    pub(crate) function: &'a Function,
    pub(crate) key: Key,
}

impl Expansion<'_> {
    /// Returns the function, whose body runs under the lock.
    pub(crate) fn function(&self) -> TokenStream {
        let call = self.call();
        let guard = self.args.options.guard.as_ref().map(|guard| {
            let private = &self.private;
            quote_spanned!(Span::mixed_site()=> let #guard = #private::Call::guard(__dlock_held);)
        });
        let body = body::future(self.function, &self.private, guard.as_ref());
        let finish = outcome::tokens(self, &body);
        let statements = quote_spanned! {Span::mixed_site()=>
            let __dlock_call = #call;
            #finish
        };
        body::item(self.function, &statements)
    }

    /// The call: manager, name, options, and key. It is one block, so that its temporaries are
    /// dropped at its end.
    fn call(&self) -> TokenStream {
        let Self { private, args, key, function } = self;
        let varying = self.varying();
        // An expression may use any argument.
        let free = args.options.manager.is_some() || !varying.is_empty();
        let used = if free { None } else { key.used() };
        let bindings = body::bindings(function, used);
        let span = Span::mixed_site();
        let site = self.site();
        // Values that are known at compile time stay out of the future.
        let begun = runtime::begun(
            &quote_spanned!(span=> #private::Call),
            args.options.manager.as_ref(),
            &quote_spanned!(span=> const { &#site }),
        );
        let with_key = quote_spanned!(key.span()=> __dlock_call.key(__dlock_key));
        let template = quote_spanned!(span=> #private::Call::template(&__dlock_call));
        let key = key.tokens(private, &template);
        let question = self.key.question(private);
        let skip = self.questioned_skip();
        quote_spanned! {span=>
            {
                #question
                #skip
                #bindings
                let __dlock_call = #begun;
                #varying
                let __dlock_key = #key;
                #with_key
            }
        }
    }

    /// Statements that set the options that are evaluated at each call. Empty if there are none.
    fn varying(&self) -> TokenStream {
        let private = &self.private;
        let options = &self.args.options;
        let times = [
            ("lease", &options.lease),
            ("wait", &options.wait),
            ("max_hold", &options.max_hold),
            ("min_hold", &options.min_hold),
        ];
        let times = times.into_iter().filter_map(|(name, time)| Some((name, time.as_ref()?.expression()?)));
        let retry = options.retry.iter().map(|retry| ("retry", retry));
        let varying = times.chain(retry).filter(|(_, value)| self.function.varies(value));
        let setters = varying.map(|(name, value)| {
            let span = Span::mixed_site().located_at(value.span());
            let (name, value) = (Ident::new(name, span), without_braces(value));
            quote_spanned!(span=> .#name(#value))
        });
        let setters: TokenStream = setters.collect();
        if setters.is_empty() {
            return setters;
        }
        quote_spanned! {Span::mixed_site()=>
            let __dlock_options = #private::Call::options(&__dlock_call) #setters;
            let __dlock_call = #private::Call::with_options(__dlock_call, __dlock_options);
        }
    }

    /// The site: what all calls of the function have in common.
    fn site(&self) -> TokenStream {
        let Self { private, args, function, .. } = self;
        let span = Span::mixed_site();
        let name = runtime::name_of(function, args.options.name.as_ref());
        let options = self.options();
        let namespace = setter("namespace", args.options.namespace.as_ref());
        let runs_unlocked = args.options.on_unavailable == OnUnavailable::Run;
        let runs_unlocked = setter("runs_unlocked", runs_unlocked.then(TokenStream::new));
        quote_spanned!(span=> #private::Callsite::new(#name, #options) #namespace #runs_unlocked)
    }

    fn options(&self) -> TokenStream {
        let private = &self.private;
        let args = &self.args.options;
        let span = Span::mixed_site();
        let constant = |time: &Option<Time>| {
            let varies = |time: &Time| time.expression().is_some_and(|value| self.function.varies(value));
            time.clone().filter(|time| !varies(time))
        };
        let lease = constant(&args.lease).map(|lease| self.questioned(&lease));
        let renew = args.renew.as_ref().map(|renew| self.questioned_renew(renew));
        let retry = args.retry.as_ref().filter(|retry| !self.function.varies(retry));
        let backoff = args.backoff.as_ref().map(|(first, last)| quote_spanned!(span=> #first, #last));
        let on_ok = args.keeps_on_success_only().then(|| quote_spanned!(span=> #private::MinHoldOn::Ok));
        let on_lost = args.on_lost == OnLost::Finish;
        let on_lost = on_lost.then(|| quote_spanned!(span=> #private::OnLost::Finish));
        let release = args.release == ReleaseMode::Background;
        let release = release.then(|| quote_spanned!(span=> #private::ReleaseMode::Background));
        let try_only = matches!(args.on_contended, OnContended::Skip(_) | OnContended::Return(_));
        let setters = [
            setter("lease", lease),
            setter("renew", renew),
            setter("retry", retry),
            setter("wait", constant(&args.wait)),
            setter("backoff", backoff),
            setter("max_hold", constant(&args.max_hold)),
            setter("min_hold", constant(&args.min_hold)),
            setter("min_hold_on", on_ok),
            setter("reentrant", args.reentrant.as_ref()),
            setter("on_lost", on_lost),
            setter("release_mode", release),
            setter("try_only", try_only.then(TokenStream::new)),
        ];
        quote_spanned!(span=> #private::Options::new() #(#setters)*)
    }

    /// Returns the lease, with a warning if it is longer than one hour.
    fn questioned(&self, lease: &Time) -> TokenStream {
        match lease.known() {
            Some((long, span)) if long > std::time::Duration::from_secs(3600) => {
                let question = runtime::question(&self.private, "warning_long_lease", span);
                quote_spanned!(Span::mixed_site()=> #question(#lease))
            }
            _ => lease.to_token_stream(),
        }
    }

    /// Returns `renew`, with a warning if it fixes a lease that the function does not set.
    fn questioned_renew(&self, renew: &LitBool) -> TokenStream {
        if renew.value || self.args.options.lease.is_some() {
            return renew.to_token_stream();
        }
        let question = runtime::question(&self.private, "warning_fixed_lease", renew.span());
        quote_spanned!(Span::mixed_site()=> #question(#renew))
    }

    /// Returns a warning about a `skip` whose value looks like that of a body that ran.
    fn questioned_skip(&self) -> Option<TokenStream> {
        let OnContended::Skip(span) = self.args.options.on_contended else { return None };
        self.function.output.is_unit_result().then(|| {
            let question = runtime::question(&self.private, "warning_skip_like_success", span);
            quote_spanned!(Span::mixed_site()=> #question();)
        })
    }
}

/// Unwraps a block around one expression, for which the compiler would warn of unneeded braces.
fn without_braces(value: &Expr) -> &Expr {
    match value {
        Expr::Block(ExprBlock { attrs, label: None, block }) if attrs.is_empty() => match &*block.stmts {
            [Stmt::Expr(inner, None)] => inner,
            _ => value,
        },
        _ => value,
    }
}
