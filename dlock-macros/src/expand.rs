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
use quote::{ToTokens, quote, quote_spanned};
use syn::Lifetime;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use crate::args::{Args, KeySource, OnContended, OnLost, OnUnavailable, ReleaseMode};
use crate::checks;
use crate::duration::Time;
use crate::function::{Destructured, Function, Parameter};
use crate::key::Key;
use crate::outcome;
use crate::pattern;
use crate::report::{self, Report};

/// Expands the attribute.
pub(crate) fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand(args, item.clone()).unwrap_or_else(|errors| report::with_original_item(&errors, item))
}

fn expand(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let mut report = Report::default();
    let args = Args::parse(args, &mut report);
    let function = report.check(Function::parse(item));
    let parts = args.zip(function).map(|(args, function)| {
        report.check(function.output.check(&args.options));
        report.check(checks::names(&args.options, &function));
        let key = match &args.key {
            KeySource::Template(template) => Some(Key::parse(template, &function, &mut report)),
            KeySource::BoxedFn(key) => {
                report.check(checks::whole_key(key, &function));
                None
            }
        };
        (args, function, key)
    });
    let (args, function, key) = report.finish(parts)?;
    Ok(Expansion { private: private(&args), args: &args, function: &function, key }.function())
}

/// Returns the path of the runtime's module for expansions.
fn private(args: &Args) -> TokenStream {
    let span = Span::mixed_site();
    let installed = || quote_spanned!(span=> ::dlock_runtime::__private);
    args.options.runtime.as_ref().map_or_else(installed, |runtime| quote_spanned!(span=> #runtime::__private))
}

/// The parsed input, without errors.
pub(crate) struct Expansion<'a> {
    pub(crate) private: TokenStream,
    pub(crate) args: &'a Args,
    pub(crate) function: &'a Function,
    key: Option<Key>,
}

impl Expansion<'_> {
    fn function(&self) -> TokenStream {
        let Function { attributes, visibility, default, signature, inner_attributes, .. } = self.function;
        let statements = self.statements();
        let mut block = quote_spanned!(Span::mixed_site()=> #(#inner_attributes)* #statements);
        // The body of the box is the body of the function: it runs when the future is polled.
        if let Some(boxed) = &self.function.boxed {
            block = quote_spanned!(Span::mixed_site()=> #boxed(async move { #block }));
        }
        quote!(#(#attributes)* #visibility #default #signature { #block })
    }

    fn statements(&self) -> TokenStream {
        let call = self.call();
        let body = self.body();
        let finish = outcome::tokens(self, &body);
        quote_spanned! {Span::mixed_site()=>
            let __dlock_call = #call;
            #finish
        }
    }

    /// The call: manager, name, options, and key. It is one block, so that its temporaries are
    /// dropped at its end.
    fn call(&self) -> TokenStream {
        let Self { private, args, .. } = self;
        let bindings = self.bindings();
        let span = Span::mixed_site();
        let site = self.site();
        // Values that are known at compile time stay out of the future.
        let site = quote_spanned!(span=> const { &#site });
        let begun = args.options.manager.as_ref().map_or_else(
            || quote_spanned!(span=> #private::Call::new(#site)),
            |manager| quote_spanned!(span.located_at(manager.span())=> #private::Call::under(&#manager, #site)),
        );
        let at_key = match &args.key {
            KeySource::Template(_) => span,
            KeySource::BoxedFn(key) => span.located_at(key.span()),
        };
        let with_key = quote_spanned!(at_key=> __dlock_call.key(__dlock_key));
        let key = match (&self.key, &args.key) {
            (Some(key), _) => {
                let chain = &key.chain;
                quote_spanned!(span=> #private::Call::template(&__dlock_call) #chain)
            }
            (None, KeySource::BoxedFn(key)) if self.function.is_constant(key) => {
                quote_spanned!(span=> #private::ConstantKey(&#key))
            }
            // A place is borrowed, so that the body can still use it.
            (None, KeySource::BoxedFn(place)) if is_place(place) => quote_spanned!(span=> &#place),
            (None, KeySource::BoxedFn(key)) => key.to_token_stream(),
            (None, KeySource::Template(_)) => TokenStream::new(),
        };
        let question = self.key.as_ref().and_then(|key| key.questionable).map(|span| {
            let question = self.question("literal_argument", span);
            quote_spanned!(Span::mixed_site()=> #question();)
        });
        quote_spanned! {span=>
            {
                #question
                #bindings
                let __dlock_call = #begun;
                let __dlock_key = #key;
                #with_key
            }
        }
    }

    /// Binds the names of patterns by reference, if the key or the manager may use them.
    fn bindings(&self) -> TokenStream {
        let free = self.args.options.manager.is_some() || self.key.is_none();
        let used = self.key.iter().flat_map(|key| &key.used);
        let bindings = self.function.parameters.iter().filter_map(|parameter| {
            let given = parameter.pattern.as_ref()?;
            let wanted = |name: &Ident| free || used.clone().any(|used| used == name);
            if !pattern::names(given).iter().any(wanted) {
                return None;
            }
            let (pattern, name) = (pattern::borrowed(given, wanted), &parameter.name);
            let conditions = &parameter.conditions;
            // An expression may use any of the names, so all of them count as used.
            let named = pattern::names(&pattern).into_iter().filter(|name| free && !is_unused(name));
            let used: TokenStream = named
                .map(|name| quote_spanned!(Span::mixed_site()=> #(#conditions)* let _ = &#name;))
                .collect();
            // The function itself matches the argument, and lints for references see only this
            // match.
            let allow = quote!(#[allow(clippy::pattern_type_mismatch, clippy::unneeded_field_pattern)]);
            Some(quote_spanned!(Span::mixed_site()=> #(#conditions)* #allow let #pattern = &#name; #used))
        });
        bindings.collect()
    }

    /// The site: what all calls of the function have in common.
    fn site(&self) -> TokenStream {
        let Self { private, args, function, .. } = self;
        let span = Span::mixed_site();
        let path = format!("::{}", function.signature.ident.unraw());
        let name = args.options.name.as_ref().map_or_else(
            || quote_spanned!(span=> ::core::concat!(::core::module_path!(), #path)),
            ToTokens::to_token_stream,
        );
        let options = self.options();
        let namespace = args.options.namespace.as_ref();
        let namespace = namespace.map(|namespace| quote_spanned!(span=> .namespace(#namespace)));
        let runs_unlocked = (args.options.on_unavailable == OnUnavailable::Run)
            .then(|| quote_spanned!(span=> .runs_unlocked()));
        quote_spanned!(span=> #private::Callsite::new(#name, #options) #namespace #runs_unlocked)
    }

    fn options(&self) -> TokenStream {
        let private = &self.private;
        let args = &self.args.options;
        let span = Span::mixed_site();
        let lease = args.lease.as_ref().map(|lease| {
            let lease = self.questioned(lease);
            quote_spanned!(span=> .lease(#lease))
        });
        let renew = args.renew.as_ref().map(|renew| quote_spanned!(span=> .renew(#renew)));
        let retry = args.retry.as_ref().map(|retry| quote_spanned!(span=> .retry(#retry)));
        let wait = args.wait.as_ref().map(|wait| quote_spanned!(span=> .wait(#wait)));
        let backoff =
            args.backoff.as_ref().map(|(first, last)| quote_spanned!(span=> .backoff(#first, #last)));
        let on_lost = (args.on_lost == OnLost::Finish)
            .then(|| quote_spanned!(span=> .on_lost(#private::OnLost::Finish)));
        let release = (args.release == ReleaseMode::Background)
            .then(|| quote_spanned!(span=> .release_mode(#private::ReleaseMode::Background)));
        let try_only = matches!(args.on_contended, OnContended::Skip | OnContended::Return(_))
            .then(|| quote_spanned!(span=> .try_only()));
        let max_hold = args.max_hold.as_ref().map(|max_hold| quote_spanned!(span=> .max_hold(#max_hold)));
        let min_hold = args.min_hold.as_ref().map(|min_hold| quote_spanned!(span=> .min_hold(#min_hold)));
        let reentrant =
            args.reentrant.as_ref().map(|reentrant| quote_spanned!(span=> .reentrant(#reentrant)));
        quote_spanned! {span=>
            #private::Options::new()
                #lease #renew #retry #wait #backoff #max_hold #min_hold #reentrant #on_lost #release
                #try_only
        }
    }

    /// Returns the lease, with a warning if it is longer than one hour.
    fn questioned(&self, lease: &Time) -> TokenStream {
        match lease.known() {
            Some((long, span)) if long > std::time::Duration::from_secs(3600) => {
                let question = self.question("long_lease", span);
                quote_spanned!(Span::mixed_site()=> #question(#lease))
            }
            _ => lease.to_token_stream(),
        }
    }

    /// Returns a warning, which on stable Rust only a use of a deprecated item can emit.
    fn question(&self, name: &str, span: Span) -> TokenStream {
        let private = &self.private;
        let question = Ident::new(name, Span::call_site().located_at(span));
        quote_spanned!(Span::mixed_site()=> #private::#question)
    }

    /// Returns the body, as a future that owns every argument.
    fn body(&self) -> TokenStream {
        let Self { private, function, .. } = self;
        let span = Span::mixed_site();
        // Captured arguments are dropped in the order of their first use: the last one first, as in
        // a function.
        let arguments = function.parameters.iter().rev().flat_map(|parameter| {
            let mut names = match &parameter.pattern {
                Some(pattern) if parameter.taken_apart == Destructured::BeforeBody => pattern::names(pattern),
                _ => vec![parameter.name.clone()],
            };
            names.reverse();
            names.into_iter().map(|name| {
                let conditions = &parameter.conditions;
                let allow = is_unused(&name).then(|| quote!(#[allow(clippy::used_underscore_binding)]));
                quote_spanned!(span=> #(#conditions)* #allow let _ = &#name;)
            })
        });
        let receiver = function.receiver.iter().map(|receiver| quote_spanned!(span=> let _ = &#receiver;));
        let capture: TokenStream = arguments.chain(receiver).collect();
        // Sets the type before the first `return` or `?`, so that values coerce as in a plain
        // function.
        let output = &function.output;
        let returns = (!output.opaque)
            .then(|| quote_spanned!(span=> if false { return #private::never::<#output>(); }));
        let bindings = function.parameters.iter().map(|parameter| {
            let Parameter { name, conditions, .. } = parameter;
            let again = parameter.again.as_ref().map(|again| {
                let allow = quote!(#[allow(clippy::shadow_same, clippy::used_underscore_binding)]);
                quote_spanned! {span=>
                    #(#conditions)* #allow let #again = #name;
                    #(#conditions)* #allow let _ = &#name;
                }
            });
            let apart = take_apart(parameter, Destructured::InBody);
            quote_spanned!(span=> #again #apart)
        });
        let guard = self
            .args
            .options
            .guard
            .as_ref()
            .map(|guard| quote_spanned!(span=> let #guard = #private::Call::guard(__dlock_held);));
        // The braces are the user's, and so is their edition, which decides when temporaries of the
        // last expression are dropped. Without the label, which starts the block and needs the same
        // edition, `unused_braces` would warn.
        let body = &function.body;
        let label = Lifetime::new("'__dlock_body", body.span());
        quote_spanned! {span=>
            async move {
                #capture
                #returns
                #(#bindings)*
                #guard
                #label: #body
            }
        }
    }
}

/// Returns the statement that takes an argument apart, if that happens at `there`.
pub(crate) fn take_apart(parameter: &Parameter, there: Destructured) -> Option<TokenStream> {
    let Parameter { name, conditions, taken_apart, .. } = parameter;
    let pattern = parameter.pattern.as_ref().filter(|_| *taken_apart == there)?;
    let argument = match there {
        // The braces move the argument as a whole: if its parts were moved out one by one, it would
        // keep its space in the future.
        Destructured::BeforeBody => quote_spanned!(Span::mixed_site()=> { #name }),
        Destructured::InBody | Destructured::Already => name.to_token_stream(),
    };
    Some(quote_spanned!(Span::mixed_site()=> #(#conditions)* let #pattern = #argument;))
}

/// Returns `true` if an unused variable of this name causes no warning.
fn is_unused(name: &Ident) -> bool {
    let name = name.to_string();
    name.starts_with('_') && !name.starts_with("__dlock_arg")
}

fn is_place(key: &syn::Expr) -> bool {
    match key {
        syn::Expr::Path(_) => true,
        syn::Expr::Field(field) => is_place(&field.base),
        syn::Expr::Group(group) => is_place(&group.expr),
        syn::Expr::Paren(paren) => is_place(&paren.expr),
        _ => false,
    }
}
