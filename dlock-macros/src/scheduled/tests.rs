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
            catch_up = all(max = 10, window = "48h"),
            spread = "1m",
            on_error = retry(3),
            on_crash = skip,
            lease = "10s",
            min_hold = "1h",
            tick = tick,
            guard = lease
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
                    .catch_up(::dlock_runtime::__private::scheduled::CatchUp::all(10u32, ::core::time::Duration::new(172800u64, 0u32)))
                    .spread(::core::time::Duration::new(60u64, 0u32))
                    .on_error(::dlock_runtime::__private::scheduled::FailedRun::Retry(3u32))
                    .on_crash(::dlock_runtime::__private::scheduled::CrashedRun::Skip)
                    .lease(::core::time::Duration::new(10u64, 0u32))
                    .min_hold(::core::time::Duration::new(3600u64, 0u32)));
            let __dlock_call = { ::dlock_runtime::__private::scheduled::JobSite::new("nightly-report") };
            let __dlock_results = ::dlock_runtime::__private::scheduled::returns::<Result<Option<Report>, JobError> >();
            ::dlock_runtime::__private::scheduled::run(
                __dlock_call,
                &__DLOCK_SCHEDULE,
                __dlock_results,
                move |__dlock_tick: ::dlock_runtime::__private::scheduled::Tick,
                    __dlock_lease: ::dlock_runtime::__private::scheduled::RunLease| {
                    async move {
                        let _ = &db;
                        if false {
                            return ::dlock_runtime::__private::never::<Result<Option<Report>, JobError> >();
                        }
                        let tick = __dlock_tick;
                        let lease = __dlock_lease;
                        '__dlock_body: { body(db, tick).await }
                    }
                }
            ).await
        }
    };
    assert_eq!(expanded.to_string(), expected.to_string());
}

/// Returns the errors of an attribute's text.
fn errors(attribute: &str) -> Vec<String> {
    let mut report = crate::report::Report::default();
    let args = super::args::ScheduledArgs::parse(attribute.parse().expect("tokens"), &mut report);
    report.finish(args).err().into_iter().flatten().map(|error| error.to_string()).collect()
}

#[test]
fn a_quoted_word_is_written_without_quotes() {
    for value in [
        "overlap = cancel_previous",
        "catch_up = none",
        "catch_up = all(max = 10, window = \"1h\")",
        "on_error = done",
        "on_error = retry(3)",
        "on_crash = skip",
        "tick = tick",
        "guard = lease",
    ] {
        crate::arguments::tests::assert_unquoted(value, |quoted| {
            errors(&format!("name = \"a\", every = \"5m\", {quoted}"))
        });
    }
    crate::arguments::tests::assert_unquoted("slot = fire_at", |quoted| {
        errors(&format!("name = \"a\", {quoted}"))
    });
}

#[test]
fn a_bound_of_the_lock_names_the_bound_of_the_run_and_the_lease() {
    for name in ["lock_at_most_for", "lockAtMostFor"] {
        let told = errors(&format!("name = \"a\", every = \"5m\", {name} = \"10m\""));
        let [told] = &*told else { panic!("{told:?}") };
        assert!(told.contains("`max_hold = \"10m\"` bounds the run"), "{told}");
        assert!(told.contains("`lease` (30 s by default)"), "{told}");
    }
    let told = errors("name = \"a\", every = \"5m\", lockAtLeastFor = \"10m\"");
    assert!(told[0].contains("not needed") && told[0].contains("`min_hold = "), "{told:?}");
}

#[test]
fn a_value_that_does_not_exist_is_an_error_that_says_what_exists() {
    for (argument, message) in [
        ("on_error = undone", "`on_error` is `done` or `retry(3)`"),
        ("on_error = retry", "`on_error` is `done` or `retry(3)`"),
        ("on_error = repeat(3)", "`on_error` is `done` or `retry(3)`"),
        ("on_error = retry()", "`on_error` is `done` or `retry(3)`"),
        ("on_error = retry(0)", "`on_error` is `done` or `retry(3)`"),
        ("on_error = retry(1, 2)", "`on_error` is `done` or `retry(3)`"),
        ("on_error = retry(1.5)", "`on_error` is `done` or `retry(3)`"),
        ("catch_up = all", "`catch_up` is `none`, `latest`, or `all("),
        ("catch_up = some(max = 10, window = \"1h\")", "`catch_up` is `none`, `latest`, or `all("),
        ("catch_up = all(max = 10)", "`all` has the most ticks that run"),
        ("catch_up = all(window = \"1h\")", "`all` has the most ticks that run"),
        ("catch_up = all(10, \"1h\")", "`all` has the most ticks that run"),
        ("catch_up = all(max = 0, window = \"1h\")", "`max` is a number of ticks from 1 to 1000"),
        ("catch_up = all(max = 1001, window = \"1h\")", "`max` is a number of ticks from 1 to 1000"),
        ("catch_up = all(max = -1, window = \"1h\")", "`max` is a number of ticks from 1 to 1000"),
        ("overlap = queue", "`overlap` is `skip`, `queue_one`"),
        ("overlap = skip(1)", "`overlap` is `skip`, `queue_one`"),
        ("on_crash = retry", "`on_crash` is `rerun`"),
        ("on_crash = rerun(1)", "`on_crash` is `rerun`"),
    ] {
        let found = errors(&format!("name = \"a\", every = \"5m\", {argument}"));
        let [error] = &*found else { panic!("{argument}: {found:?}") };
        assert!(error.starts_with(message), "{argument}: {error}");
    }
    for argument in
        ["catch_up = all(max = 1, window = \"1h\")", "catch_up = all(max = 1000, window = \"1h\")"]
    {
        assert_eq!(errors(&format!("name = \"a\", every = \"5m\", {argument}")), Vec::<String>::new());
    }
}
