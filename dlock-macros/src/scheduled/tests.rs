//! A whole expansion, as `cargo expand` shows it.

use quote::quote;

use super::expand as scheduled;

#[test]
fn a_job_with_most_parameters_expands_to_this() {
    let expanded = scheduled(
        quote!(
            name = "nightly-report",
            cron = "0 2 * * *",
            tz = "Europe/Berlin",
            overlap = queue_one,
            on_error = retry(3),
            on_crash = skip,
            lease = "10s",
            tick = tick
        ),
        quote! {
            async fn nightly_report(db: &Pool) -> Result<Option<Report>, JobError> {
                body(db, tick).await
            }
        },
    );

    let expected = quote! {
        async fn nightly_report(db: &Pool) -> Result<Option<Report>, JobError> {
            static __DLOCK_SCHEDULE: ::std::sync::LazyLock<::dlock_runtime::__private::scheduled::Schedule> =
                ::std::sync::LazyLock::new(|| ::dlock_runtime::__private::scheduled::cron("0 2 * * *")
                    .tz("Europe/Berlin")
                    .overlap(::dlock_runtime::__private::scheduled::Overlap::QueueOne)
                    .on_error(::dlock_runtime::__private::scheduled::FailedRun::Retry(3u32))
                    .on_crash(::dlock_runtime::__private::scheduled::CrashedRun::Skip)
                    .lease(::core::time::Duration::new(10u64, 0u32)));
            let __dlock_call = { ::dlock_runtime::__private::scheduled::JobSite::new("nightly-report") };
            let __dlock_results = ::dlock_runtime::__private::scheduled::returns::<Result<Option<Report>, JobError> >();
            ::dlock_runtime::__private::scheduled::run(
                __dlock_call,
                &__DLOCK_SCHEDULE,
                __dlock_results,
                move |__dlock_tick: ::dlock_runtime::__private::scheduled::Tick| {
                    async move {
                        let _ = &db;
                        if false {
                            return ::dlock_runtime::__private::never::<Result<Option<Report>, JobError> >();
                        }
                        let tick = __dlock_tick;
                        '__dlock_body: { body(db, tick).await }
                    }
                }
            ).await
        }
    };
    assert_eq!(expanded.to_string(), expected.to_string());
}
