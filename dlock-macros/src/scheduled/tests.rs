//! A whole expansion, as `cargo expand` shows it.

use quote::quote;

use super::expand as scheduled;
use crate::report::tests::{assert_messages, dense, messages};

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
                move |__dlock_tick: ::dlock_runtime::__private::scheduled::Tick| {
                    async move {
                        let _ = &db;
                        if false {
                            return ::dlock_runtime::__private::never::<Result<Option<Report>, JobError> >();
                        }
                        let lease = ::core::clone::Clone::clone(__dlock_tick.lease());
                        let tick = __dlock_tick;
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

/// Expands the attribute above a function with these arguments.
fn expand_above(attribute: &str, arguments: &str, output: &str) -> proc_macro2::TokenStream {
    let item = format!("async fn f({arguments}) -> {output} {{ Ok(None) }}");
    scheduled(attribute.parse().expect("tokens"), item.parse().expect("tokens"))
}

#[test]
fn a_wrong_name_or_time_gets_its_message() {
    let no_placeholders = "`name` has no placeholders";
    let no_name = "no name is given: write `name = \"nightly-report\"`";
    let never = "the job is never due";
    for (attribute, starts) in [
        ("every = \"5m\"", &[no_name][..]),
        ("id = \"a\", every = \"5m\"", &["there is no parameter `id`: dlock calls it `name`"]),
        ("nam = \"a\", every = \"5m\"", &["there is no parameter `nam`: did you mean `name`"]),
        ("name = 3, every = \"5m\"", &["`name` is a string"]),
        ("name = \"\", every = \"5m\"", &["`name` is empty"]),
        ("name = \"a##b\", every = \"5m\"", &["`name` cannot contain `##`"]),
        ("name = \"a<b\", every = \"5m\"", &[no_placeholders]),
        ("name = \"a>b\", every = \"5m\"", &[no_placeholders]),
        ("name = \"a{b\", every = \"5m\"", &[no_placeholders]),
        ("name = \"a}b\", every = \"5m\"", &[no_placeholders]),
        ("name = \"a\\u{1}b\", every = \"5m\"", &[no_placeholders]),
        ("name = \"a\"", &[never]),
        ("colour = 3", &["there is no parameter `colour`", no_name, never]),
        ("name = \"a\", evry = \"5m\"", &["there is no parameter `evry`"]),
        ("name = \"a\", interval = \"5m\"", &["there is no parameter `interval`"]),
        ("name = \"a\", crontab = \"0 2 * * *\"", &["there is no parameter `crontab`"]),
        ("name = \"a\", zone = \"UTC\"", &["there is no parameter `zone`: dlock calls it `tz`"]),
        ("name = \"a\", fire_at = at", &["there is no parameter `fire_at`"]),
        ("name = \"a\", overlp = skip", &["there is no parameter `overlp`", never]),
        (
            "name = \"a\", cron = 3",
            &["`cron` is a string that the compiler checks: write `cron = \"0 2 * * *\"`"],
        ),
        ("name = \"a\", cron = \"0 2 * *\"", &["`cron`: `0 2 * *` has 4 fields"]),
        ("name = \"a\", cron = \"0 2 *\", tz = \"UTC\"", &["`cron`: `0 2 *` has 3 fields"]),
        ("name = \"a\", cron = \"0 2 * * *\", tz = 3", &["`tz` is a string that the compiler checks"]),
        ("name = \"a\", cron = \"0 2 * * *\", tz = \"X\"", &["`tz`: `X` is not a zone"]),
        ("name = \"a\", tz = \"X\"", &["`tz`: `X` is not a zone"]),
        ("name = \"a\", tz = \"UTC\"", &["`tz` is the zone of a `cron` expression"]),
        (
            "name = \"a\", every = \"999ms\"",
            &["`every`: 999ms is not between 1 s and 366 days: write `every = \"5m\"`"],
        ),
        ("name = \"a\", every = 5", &["`5` has no unit: write `every = \"5s\"`"]),
        ("name = \"a\", slot = 5", &["`slot` is the `SystemTime` for which a call runs"]),
    ] {
        assert_messages(attribute, &messages(expand_above(attribute, "at: SystemTime", "R")), starts);
    }
}

#[test]
fn a_wrong_option_gets_its_message() {
    let (every, slot) = ("name = \"a\", every = \"5m\"", "name = \"a\", slot = at");
    for (due, parameters, start) in [
        (every, "slot = at", "a job has one of `cron`, `every`, and `slot`"),
        (every, "cron = \"0 2 * * *\"", "a job has one of `cron`, `every`, and `slot`"),
        (slot, "cron = \"0 2 * * *\"", "a job has one of `cron`, `every`, and `slot`"),
        (every, "tz = \"UTC\"", "`tz` is the zone of a `cron` expression"),
        (slot, "tz = \"UTC\"", "`tz` is the zone of a `cron` expression"),
        (
            slot,
            "catch_up = latest",
            "`catch_up` is for the ticks of a runner, and a `slot` is chosen by the caller",
        ),
        (
            slot,
            "catch_up = all(max = 1, window = \"1s\")",
            "`catch_up` is for the ticks of a runner, and a `slot` is chosen by the caller",
        ),
        (
            slot,
            "spread = \"1s\"",
            "`spread` is for the ticks of a runner, and a `slot` is chosen by the caller",
        ),
        (every, "lease = \"99ms\"", "`lease` is at least 100 ms"),
        (every, "max_hold = \"99ms\"", "`max_hold` is at least 100 ms"),
        (every, "min_hold = \"8761h\"", "`8761h` is longer than 365 days"),
        (every, "spread = \"8761h\"", "`8761h` is longer than 365 days"),
        (every, "catch_up = all(max = 1, window = \"8761h\")", "`8761h` is longer than 365 days"),
        (every, "catch_up = all(max = 1, limit = \"1h\")", "`all` has the most ticks that run"),
        (every, "catch_up = all(a::max = 1, window = \"1h\")", "`all` has the most ticks that run"),
        (
            every,
            "lease = \"10001ms\", max_hold = \"10s\"",
            "`lease` is longer than `max_hold`, which ends the run first: write `lease = \"10s\"`",
        ),
        (
            every,
            "catch_up = all(max = 1, window = \"299999ms\")",
            "`window` is shorter than the period, so no missed tick is in it: write `window = \"5m\"`",
        ),
        (
            every,
            "spread = \"150001ms\"",
            "`spread` is longer than half of the period: write `spread = \"150s\"`",
        ),
        (every, "min_hold = \"290001ms\"", "`min_hold` reaches the next tick"),
        (
            every,
            "tick = at",
            "`tick = at` would hide the argument `at`: choose another name, such as `tick = slot`",
        ),
        (
            every,
            "guard = at",
            "`guard = at` would hide the argument `at`: choose another name, such as `guard = run`",
        ),
        (every, "tick = a, guard = a", "`tick` and `guard` are both `a`"),
        (every, "tick = 3", "`tick` is the name by which the body uses its tick"),
        (every, "guard = 3", "`guard` is the name by which the body uses the lease of its run"),
        (every, "manager = \"a\"", "`manager` is an expression"),
        (every, "crate = a", "`crate` is an absolute path"),
        (every, "timeout = \"1s\"", "`timeout` is ambiguous: `max_hold` is how long the body may run"),
        (every, "key = \"a\"", "there is no parameter `key`: the `name` identifies the job"),
        (
            every,
            "retry = 3",
            "there is no parameter `retry`: a tick whose run has failed is repeated with `on_error = retry(3)`",
        ),
        (every, "retries = 3", "there is no parameter `retries`: a tick whose run has failed is repeated"),
    ] {
        let attribute = format!("{due}, {parameters}");

        assert_messages(&attribute, &messages(expand_above(&attribute, "at: SystemTime", "R")), &[start]);
    }
}

#[test]
fn a_function_that_a_job_does_not_fit_is_refused() {
    let none = "a call that does not run its tick returns `Ok(None)`";
    for (attribute, arguments, output, starts) in [
        ("every = \"5m\"", "", "!", &[none][..]),
        ("every = \"5m\"", "", "impl Send", &[none]),
        (
            "slot = now()",
            "",
            "R",
            &["`slot` is a time that the caller chooses, and the function has no arguments"],
        ),
        ("slot = self.at", "&self", "R", &[]),
        ("slot = at", "at: SystemTime", "R", &[]),
        ("every = \"5m\"", "", "R", &[]),
    ] {
        let found = messages(expand_above(&format!("name = \"a\", {attribute}"), arguments, output));

        assert_messages(&format!("{attribute} ({arguments}) -> {output}"), &found, starts);
    }
    let main = |attribute| {
        messages(scheduled(
            attribute,
            quote!(
                async fn main() -> R {}
            ),
        ))
    };
    let found = main(quote!(name = "a", every = "5m"));
    assert_messages("main", &found, &["`main` installs the lock manager, so it cannot be scheduled itself"]);
    assert_messages("main", &main(quote!(name = "a", every = "5m", manager = m)), &[]);
}

#[test]
fn a_valid_value_reaches_its_schedule() {
    let time = |seconds: u64| format!("::core::time::Duration::new({seconds}u64,0u32)");
    let private = "::dlock_runtime::__private::scheduled::";
    let schedule = |rest: &str| format!("LazyLock::new(||{private}every({}){rest});", time(300));
    let any = |rest: &str| format!("LazyLock::new(||{private}any_slot(){rest});");
    let window = |seconds: u64| format!(".catch_up({private}CatchUp::all(1u32,{}))", time(seconds));
    let (every, slot) = ("name = \"a\", every = \"5m\"", "name = \"a\", slot = at");
    for (start, parameters, part) in [
        (every, "overlap = skip", schedule("")),
        (every, "overlap = queue_one", schedule(&format!(".overlap({private}Overlap::QueueOne)"))),
        (
            every,
            "overlap = cancel_previous",
            schedule(&format!(".overlap({private}Overlap::CancelPrevious)")),
        ),
        (every, "catch_up = none", schedule("")),
        (every, "catch_up = latest", schedule(&format!(".catch_up({private}CatchUp::Latest)"))),
        (every, "catch_up = all(max = 1, window = \"5m\")", schedule(&window(300))),
        (every, "catch_up = all(window = \"8760h\", max = 1)", schedule(&window(31_536_000))),
        (every, "spread = \"150s\"", schedule(&format!(".spread({})", time(150)))),
        (every, "spread = SPREAD", schedule(".spread(SPREAD)")),
        (every, "on_error = done", schedule("")),
        (every, "on_error = retry(1)", schedule(&format!(".on_error({private}FailedRun::Retry(1u32))"))),
        (every, "on_crash = rerun", schedule("")),
        (every, "on_crash = skip", schedule(&format!(".on_crash({private}CrashedRun::Skip)"))),
        (
            every,
            "lease = \"10s\", max_hold = \"10s\"",
            schedule(&format!(".lease({}).max_hold({})", time(10), time(10))),
        ),
        (every, "min_hold = \"290s\"", schedule(&format!(".min_hold({})", time(290)))),
        (slot, "min_hold = \"1h\"", any(&format!(".min_hold({})", time(3600)))),
        (slot, "catch_up = none", any("")),
        (slot, "lease = \"1s\"", format!("{private}JobSite::new(\"a\").slot(at)}};")),
        (every, "manager = m", format!("{private}JobSite::under(&m,\"a\")}};")),
        (every, "crate = ::locks", "::locks::__private::scheduled::run(".to_owned()),
        (every, "tick = t", format!("move|__dlock_tick:{private}Tick|")),
        (every, "tick = t", "lett=__dlock_tick;'__dlock_body".to_owned()),
        (every, "guard = g", format!("move|__dlock_tick:{private}Tick|")),
        (
            every,
            "guard = g",
            "letg=::core::clone::Clone::clone(__dlock_tick.lease());'__dlock_body".to_owned(),
        ),
        ("name = \"a\"", "every = EVERY", format!("LazyLock::new(||{private}every(EVERY));")),
        ("name = \"a\"", "every = \"1s\"", format!("LazyLock::new(||{private}every({}));", time(1))),
        ("name = \"a\"", "cron = \"0 2 * * *\"", format!("LazyLock::new(||{private}cron(\"02***\"));")),
        (
            "name = \"a\"",
            "cron = \"0 2 * * *\", tz = \"UTC\"",
            format!("{private}cron(\"02***\").tz(\"UTC\"));"),
        ),
    ] {
        let expanded = dense(&expand_above(&format!("{start}, {parameters}"), "at: SystemTime", "R"));

        assert!(expanded.contains(&part), "`{parameters}` gives {expanded} without {part}");
    }
}

#[test]
fn a_pattern_is_bound_for_a_slot_or_a_manager() {
    let bindings = "let(a,b)=&__dlock_arg0;let_=&a;let_=&b;";
    for (parameters, is_bound) in
        [("slot = a", true), ("every = \"5m\", manager = a", true), ("every = \"5m\"", false)]
    {
        let attribute = format!("name = \"a\", {parameters}");

        let expanded = dense(&expand_above(&attribute, "(a, b): (SystemTime, u8)", "R"));

        assert_eq!(expanded.contains(bindings), is_bound, "{parameters}: {expanded}");
    }
}
