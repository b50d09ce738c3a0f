//! Assembles the expansion.
//!
//! ```text
//! let call = { .. };                   manager, options, key, fingerprint
//! let results = forgetting::<R>();     has the span of the return type, where errors about it are shown
//! run_detached(call, results, move |record| async move { .. }).await
//! ```
//!
//! The closure owns every argument. It runs on a task of its own, or with `detached = false` inside
//! this future.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, LitStr};

use super::args::{Fingerprint, IdempotentArgs, OnCrash, OnDuplicate, OnError, Otherwise, RecordOptions};
use super::{conflicts, values};
use crate::function::Function;
use crate::function::body;
use crate::key::{Key, is_place};
use crate::runtime::{self, setter};

/// The parsed input, without errors.
pub(super) struct IdempotentExpansion<'a> {
    pub(super) private: TokenStream,
    pub(super) args: &'a IdempotentArgs,
    pub(super) function: &'a Function,
    pub(super) key: Key,
}

impl IdempotentExpansion<'_> {
    /// Returns the function, whose body runs once per key.
    pub(super) fn function(&self) -> TokenStream {
        let Self { private, args, function, .. } = self;
        let span = Span::mixed_site();
        let call = self.call();
        let record = args.options.record.as_ref();
        let bound = record.map(|record| quote_spanned!(span=> let #record = __dlock_record;));
        let body = body::future(function, private, bound.as_ref());
        let apart = body::taken_apart_before(function);
        let parameter =
            record.map_or_else(|| quote_spanned!(span=> _), |_| quote_spanned!(span=> __dlock_record));
        let results = self.results();
        let how = if args.options.is_detached() { "run_detached" } else { "run_attached" };
        let how = Ident::new(how, span);
        let statements = quote_spanned! {span=>
            let __dlock_call = #call;
            let __dlock_results = #results;
            #private::idempotent::#how(
                __dlock_call,
                __dlock_results,
                move |#parameter: #private::idempotent::IdempotentRecord| { #(#apart)* #body }
            ).await
        };
        body::item(function, &statements)
    }

    /// The call: manager, options, key, and fingerprint. It is one block, so that its temporaries
    /// are dropped at its end.
    fn call(&self) -> TokenStream {
        let Self { private, args, key, function } = self;
        let RecordOptions { manager, fingerprint, .. } = &args.options;
        let span = Span::mixed_site();
        let free = manager.is_some() || matches!(fingerprint, Some(Fingerprint::Of(_)));
        let bindings = body::bindings(function, if free { None } else { key.used() });
        let site = self.site();
        let begun = runtime::begun(
            &quote_spanned!(span=> #private::idempotent::IdempotentCall),
            manager.as_ref(),
            &quote_spanned!(span=> const { &#site }),
        );
        let with_key = quote_spanned!(key.span()=> __dlock_call.key(__dlock_key));
        let template = quote_spanned!(span=> #private::idempotent::IdempotentCall::template(&__dlock_call));
        let fingerprint = match fingerprint {
            Some(Fingerprint::Of(payload)) => {
                let at_payload = span.located_at(payload.span());
                let payload = borrowed(payload);
                Some(quote_spanned!(at_payload=> .fingerprint(#payload)))
            }
            Some(Fingerprint::None) | None => None,
        };
        let uncovered = conflicts::uncovered(args, function, &key.whole()).into_iter().map(|span| {
            let question =
                runtime::question(private, "warning_argument_neither_in_key_nor_fingerprint", span);
            quote_spanned!(Span::mixed_site()=> #question();)
        });
        let question = key.question(private);
        let key = key.tokens(private, &template);
        quote_spanned! {span=>
            {
                #question
                #(#uncovered)*
                #bindings
                let __dlock_call = #begun;
                let __dlock_key = #key;
                #with_key #fingerprint
            }
        }
    }

    /// How results are stored and replayed. Only these calls have bounds on the return type.
    fn results(&self) -> TokenStream {
        let Self { private, args, function, .. } = self;
        let output = &function.output;
        let at_output = Span::mixed_site().located_at(output.span);
        let stored = match &args.options.on_error {
            OnError::Forget => quote_spanned!(at_output=> #private::idempotent::forgetting::<#output>()),
            OnError::Remember => {
                quote_spanned!(at_output=> #private::idempotent::remembering::<#output>(|_| true))
            }
            OnError::RememberIf(path) => {
                quote_spanned!(at_output=> #private::idempotent::remembering::<#output>(#path))
            }
        };
        match &args.options.on_duplicate {
            OnDuplicate::Skip => {
                quote_spanned!(at_output=> #private::idempotent::skipping::<#output>(#stored))
            }
            OnDuplicate::Error | OnDuplicate::Wait(_) => stored,
        }
    }

    /// The site: what all calls of the function have in common.
    fn site(&self) -> TokenStream {
        let Self { private, args, function, .. } = self;
        let options = &args.options;
        let span = Span::mixed_site();
        let name = runtime::name_of(function, options.name.as_ref());
        let result = options.result_type.as_ref().map_or_else(
            // As the source writes it: the name of a type differs between compilers.
            || values::type_name(&function.output.to_token_stream().to_string()),
            LitStr::value,
        );
        let wait = match &options.on_duplicate {
            OnDuplicate::Wait(wait) => Some(wait),
            OnDuplicate::Error | OnDuplicate::Skip => None,
        };
        let on_crash = match options.on_crash {
            Some((OnCrash::Rerun, _)) => Some(quote_spanned!(span=> #private::idempotent::OnCrash::Rerun)),
            Some((OnCrash::Resume, _)) => Some(quote_spanned!(span=> #private::idempotent::OnCrash::Resume)),
            Some((OnCrash::Fail, _)) | None => None,
        };
        let runs = |otherwise| (otherwise == Otherwise::Run).then(TokenStream::new);
        let setters = [
            setter("namespace", options.namespace.as_ref()),
            setter("ttl", options.ttl.as_ref()),
            setter("lease", options.lease.as_ref()),
            setter("wait", wait),
            setter("on_crash", on_crash),
            setter("runs_while_unavailable", runs(options.on_unavailable)),
            setter("runs_without_key", runs(options.on_missing)),
            setter("version", options.version.as_ref()),
        ];
        quote_spanned!(span=> #private::idempotent::IdempotentSite::new(#name, #result) #(#setters)*)
    }
}

/// Borrows the payload: the parts of a tuple one by one, so that none is moved out of an argument.
fn borrowed(payload: &Expr) -> TokenStream {
    match payload {
        Expr::Group(group) => borrowed(&group.expr),
        Expr::Tuple(tuple) => {
            let span = Span::mixed_site().located_at(tuple.span());
            let parts = tuple.elems.iter().map(|part| {
                if is_place(part) { quote_spanned!(part.span()=> &#part) } else { part.to_token_stream() }
            });
            quote_spanned!(span=> &(#(#parts,)*))
        }
        payload => quote_spanned!(Span::mixed_site().located_at(payload.span())=> &#payload),
    }
}
