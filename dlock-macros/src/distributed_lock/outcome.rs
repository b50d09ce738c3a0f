//! Turns a result into the function's return value, for each `on_contended`.
//!
//! See `private::return_types` of the runtime for the traits of return types.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::Error;
use syn::spanned::Spanned;

use super::args::{OnContended, OnLost, OnUnavailable, Options};
use super::expansion::Expansion;
use crate::function::body::taken_apart_before;
use crate::function::output::Output;

/// Refuses the return types that no trait can check.
pub(crate) fn check(output: &Output, options: &Options) -> syn::Result<()> {
    let Options { on_contended, on_lost, on_unavailable, .. } = options;
    let refuse = |problem: &str| Err(Error::new(output.span, problem));
    if output.is_never() {
        return refuse("`!` cannot report that the lock was not acquired: return `Result<Infallible, E>`");
    }
    if !output.opaque {
        return Ok(());
    }
    if *on_unavailable == OnUnavailable::Skip {
        return refuse(
            "`impl Trait` has no value that says that the body did not run, which `on_unavailable = skip` needs: leave it out, or return `Result<T, E>`",
        );
    }
    match on_contended {
        OnContended::Error | OnContended::Skip => refuse(
            "`impl Trait` cannot report that the lock was not acquired: return `Result<T, E>`, or write `on_contended = return(value)` or `on_contended = fallback(path)`",
        ),
        OnContended::Fallback(_) if *on_lost == OnLost::Abort => refuse(
            "`impl Trait` cannot report that the lock was lost while the body ran, when the arguments of `fallback` are gone: write `on_lost = finish`, or return `Result<T, E>`",
        ),
        OnContended::Fallback(_) | OnContended::Return(_) => Ok(()),
    }
}

/// Returns code that runs `body` under `__dlock_call` and evaluates to the function's value.
pub(crate) fn tokens(expansion: &Expansion<'_>, body: &TokenStream) -> TokenStream {
    let Expansion { private, args, function, .. } = expansion;
    let output = &function.output;
    let span = Span::mixed_site();
    // A missing bound is reported at the return type.
    let at_output = span.located_at(output.span);
    let Options { on_contended, on_lost, on_unavailable, guard, .. } = &args.options;
    let held = guard.as_ref().map(|_| quote_spanned!(span=> let __dlock_held = &__dlock_call;));
    let apart = taken_apart_before(function);
    let pinned = quote_spanned! {span=>
        #held
        #(#apart)*
        let __dlock_body = ::core::pin::pin!(#private::Body::Future { future: #body });
    };
    let swallow =
        quote_spanned!(span=> |__dlock_error| #private::Call::swallow(&__dlock_call, __dlock_error));
    let skipping = (*on_unavailable == OnUnavailable::Skip)
        .then(|| quote_spanned!(at_output=> #private::skip_unavailable::<#output>(__dlock_result, #swallow)))
        .map(|skipping| quote_spanned!(span=> let __dlock_result = #skipping;));
    // For an unnamed type, the stand-in value would hide the loss, so the body's own value is
    // returned.
    let stands = if output.opaque {
        quote_spanned!(span=> |_| true)
    } else {
        quote_spanned!(span=> |__dlock_value| #private::Completed::new(__dlock_value).stands_after_a_loss())
    };
    let run = quote_spanned! {span=>
        #pinned
        let __dlock_result = #private::Call::run(&__dlock_call, __dlock_body, #stands).await;
    };
    match on_contended {
        OnContended::Error => {
            let finish = quote_spanned!(at_output=> #private::finish::<#output>(__dlock_result));
            quote_spanned!(span=> #run #skipping #finish)
        }
        OnContended::Skip => {
            let finish =
                quote_spanned!(at_output=> #private::finish_or_skip::<#output>(__dlock_result, #swallow));
            quote_spanned!(span=> #run #skipping #finish)
        }
        OnContended::Return(value) => {
            let instead = instead(expansion, &value.to_token_stream());
            quote_spanned! {span=>
                #run
                #skipping
                match __dlock_result {
                    ::core::result::Result::Ok(__dlock_value) => __dlock_value,
                    ::core::result::Result::Err(__dlock_error) => #instead,
                }
            }
        }
        OnContended::Fallback(path) => {
            let receiver = function.receiver.iter().map(ToTokens::to_token_stream);
            let arguments = function.parameters.iter().map(|parameter| {
                let (name, conditions) = (&parameter.name, &parameter.conditions);
                quote_spanned!(span=> #(#conditions)* #name)
            });
            let arguments = receiver.chain(arguments);
            let at_path = span.located_at(path.span());
            let fallback = quote_spanned!(at_path=> #path(#(#arguments),*).await);
            let instead = instead(expansion, &fallback);
            let refused = match &skipping {
                None => instead,
                Some(skipping) => quote_spanned! {span=>
                    {
                        let __dlock_result = ::core::result::Result::Err(__dlock_error);
                        #skipping
                        match __dlock_result {
                            ::core::result::Result::Ok(__dlock_value) => __dlock_value,
                            ::core::result::Result::Err(__dlock_error) => #instead,
                        }
                    }
                },
            };
            // The arguments are moved into the body: a later error must fit the return type, or
            // cannot happen.
            let started = if *on_lost == OnLost::Finish {
                quote_spanned!(span=> #pinned #private::Call::run_to_end(&__dlock_call, __dlock_body).await)
            } else {
                let finish = quote_spanned!(at_output=> #private::finish_started::<#output>(__dlock_result));
                quote_spanned!(span=> #run #finish)
            };
            quote_spanned! {span=>
                match #private::Call::acquire(&__dlock_call).await {
                    ::core::result::Result::Ok(()) => { #started }
                    ::core::result::Result::Err(__dlock_error) => #refused,
                }
            }
        }
    }
}

/// Returns code for `__dlock_error`: the return type carries it, or `value` replaces it.
fn instead(expansion: &Expansion<'_>, value: &TokenStream) -> TokenStream {
    let Expansion { private, function, .. } = expansion;
    let output = &function.output;
    let span = Span::mixed_site();
    let swallowed = quote_spanned! {span=>
        {
            #private::Call::swallow(&__dlock_call, &__dlock_error);
            #value
        }
    };
    if output.opaque {
        return swallowed;
    }
    quote_spanned! {span=>
        match #private::Carrier::<#output>::new().carry_lock_error(__dlock_error) {
            ::core::result::Result::Ok(__dlock_value) => __dlock_value,
            ::core::result::Result::Err(__dlock_error) => #swallowed,
        }
    }
}
