//! Assembles the expansion.
//!
//! ```text
//! static SCHEDULE: LazyLock<Schedule> = ..;
//! let call = { .. };                       manager, name, slot
//! returns::<R>();                          has the span of the return type, where errors about it are shown
//! run(call, &SCHEDULE, results, move |tick| async move { .. }).await
//! ```

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;

use super::args::{CatchUp, JobOptions, OnCrash, Overlap, ScheduledArgs};
use super::instants::Instants;
use crate::function::{Function, body};
use crate::runtime::{self, setter};

/// The parsed input, without errors.
pub(super) struct ScheduledExpansion<'a> {
    pub(super) private: TokenStream,
    pub(super) args: &'a ScheduledArgs,
    pub(super) function: &'a Function,
}

impl ScheduledExpansion<'_> {
    /// Returns the function, whose body runs once per tick.
    pub(super) fn function(&self) -> TokenStream {
        let Self { private, args, function } = self;
        let span = Span::mixed_site();
        let (call, schedule) = (self.call(), self.schedule());
        let JobOptions { tick, guard, .. } = &args.options;
        let bound_guard = guard.as_ref().map(
            |guard| quote_spanned!(span=> let #guard = ::core::clone::Clone::clone(__dlock_tick.lease());),
        );
        let bound_tick = tick.as_ref().map(|tick| quote_spanned!(span=> let #tick = __dlock_tick;));
        let bound = quote_spanned!(span=> #bound_guard #bound_tick);
        let body = body::future(function, private, Some(&bound));
        let apart = body::taken_apart_before(function);
        let is_used = tick.is_some() || guard.is_some();
        let tick = if is_used { quote_spanned!(span=> __dlock_tick) } else { quote_spanned!(span=> _) };
        let output = &function.output;
        let at_output = span.located_at(output.span);
        let returns = quote_spanned!(at_output=> #private::scheduled::returns::<#output>());
        let statements = quote_spanned! {span=>
            static __DLOCK_SCHEDULE: ::std::sync::LazyLock<#private::scheduled::Schedule> =
                ::std::sync::LazyLock::new(|| #schedule);
            let __dlock_call = #call;
            let __dlock_results = #returns;
            #private::scheduled::run(
                __dlock_call,
                &__DLOCK_SCHEDULE,
                __dlock_results,
                move |#tick: #private::scheduled::Tick| { #(#apart)* #body }
            ).await
        };
        body::item(function, &statements)
    }

    /// The call: manager, name, and slot. It is one block, so that its temporaries are dropped at
    /// its end.
    fn call(&self) -> TokenStream {
        let Self { private, args, function } = self;
        let span = Span::mixed_site();
        let slot = match &args.instants {
            Instants::Slot(slot) => Some(slot),
            Instants::Cron { .. } | Instants::Every(_) => None,
        };
        let manager = args.options.manager.as_ref();
        let uses_arguments = slot.is_some() || manager.is_some();
        let bindings = uses_arguments.then(|| body::bindings(function, None));
        let job = quote_spanned!(span=> #private::scheduled::JobSite);
        let begun = runtime::begun(&job, manager, &args.name.to_token_stream());
        let slot = slot.map(|slot| quote_spanned!(span.located_at(slot.span())=> .slot(#slot)));
        quote_spanned!(span=> { #bindings #begun #slot })
    }

    fn schedule(&self) -> TokenStream {
        let Self { private, args, .. } = self;
        let span = Span::mixed_site();
        let JobOptions { overlap, catch_up, spread, retries, on_crash, lease, min_hold, max_hold, .. } =
            &args.options;
        let instants = match &args.instants {
            Instants::Cron { expression, zone: None } => {
                quote_spanned!(span=> #private::scheduled::cron(#expression))
            }
            Instants::Cron { expression, zone: Some(zone) } => {
                quote_spanned!(span=> #private::scheduled::cron(#expression).tz(#zone))
            }
            Instants::Every(period) => quote_spanned!(span=> #private::scheduled::every(#period)),
            Instants::Slot(_) => quote_spanned!(span=> #private::scheduled::any_slot()),
        };
        let overlap = match overlap {
            Overlap::Skip => None,
            Overlap::QueueOne => Some(quote_spanned!(span=> #private::scheduled::Overlap::QueueOne)),
            Overlap::CancelPrevious => {
                Some(quote_spanned!(span=> #private::scheduled::Overlap::CancelPrevious))
            }
        };
        let catch_up = match catch_up {
            None | Some(CatchUp::None) => None,
            Some(CatchUp::Latest(_)) => Some(quote_spanned!(span=> #private::scheduled::CatchUp::Latest)),
            Some(CatchUp::All { max, window, .. }) => {
                Some(quote_spanned!(span=> #private::scheduled::CatchUp::all(#max, #window)))
            }
        };
        let on_error =
            (*retries > 0).then(|| quote_spanned!(span=> #private::scheduled::FailedRun::Retry(#retries)));
        let on_crash = (*on_crash == OnCrash::Skip)
            .then(|| quote_spanned!(span=> #private::scheduled::CrashedRun::Skip));
        let setters = [
            setter("overlap", overlap),
            setter("catch_up", catch_up),
            setter("spread", spread.as_ref()),
            setter("on_error", on_error),
            setter("on_crash", on_crash),
            setter("lease", lease.as_ref()),
            setter("min_hold", min_hold.as_ref()),
            setter("max_hold", max_hold.as_ref()),
        ];
        quote_spanned!(span=> #instants #(#setters)*)
    }
}
