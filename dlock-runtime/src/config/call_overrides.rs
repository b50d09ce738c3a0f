//! [`CallOverrides`], the options of annotated functions that an operator changes by name.
//!
//! ```text
//! overrides := entry { ";" entry }
//! entry     := name ":" { option }                 name: of the function, as in the span `dlock.hold`
//! option    := ( "lease" | "wait" | "max_hold" ) "=" duration
//!            | "retry=" number | "backoff=" duration [ ".." duration ]
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::config::duration;
use crate::config::suggest::nearest;
use crate::error::{Result, config};
use crate::options::{Options, checked_lease};
use crate::sync::lock;

/// The variable that contains overrides for all managers of a process.
pub(crate) const VARIABLE: &str = "DLOCK_OVERRIDES";

/// Whether a call of this process has used the override of a function in the variable, by its name.
static USED: Mutex<BTreeMap<String, Arc<AtomicBool>>> = Mutex::new(BTreeMap::new());

/// The overrides of a manager, by the name of the function.
#[derive(Debug, Default)]
pub(crate) struct CallOverrides {
    functions: BTreeMap<String, FunctionOverride>,
    /// Whether the unused ones were reported.
    reported: AtomicBool,
}

/// The override of one function, and whether a call has used it. An override of the variable is
/// used if a call of any manager in the process has used it.
#[derive(Debug, Default)]
struct FunctionOverride {
    changes: OptionChanges,
    used: Arc<AtomicBool>,
}

/// The options to change. `None` keeps the function's own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OptionChanges {
    lease: Option<Duration>,
    wait: Option<Duration>,
    max_hold: Option<Duration>,
    retry: Option<u32>,
    backoff: Option<(Duration, Duration)>,
}

impl CallOverrides {
    /// Adds the overrides of `text`, which is the value of `part`. Options that are given already
    /// are replaced.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) with `part`, the entry, and what to write.
    pub(crate) fn add(&mut self, part: &str, text: &str) -> Result<()> {
        let mut seen: Vec<&str> = Vec::new();
        for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
            let refused = |problem: String| config(part, format!("`{entry}`: {problem}"));
            let example = "write `name: lease=10s wait=2s`, and `;` between functions";
            // The path of a function has colons too, and no value has one.
            let (name, options) = entry
                .rsplit_once(':')
                .ok_or_else(|| refused(format!("it has no `:` after the name: {example}")))?;
            let name = name.trim_end();
            if name.is_empty() || name.ends_with(':') || name.contains(char::is_whitespace) {
                return Err(refused(format!("it has no valid name before the last `:`: {example}")));
            }
            if seen.contains(&name) {
                return Err(refused(format!("`{name}` is given twice: write its options into one entry")));
            }
            if options.trim().is_empty() {
                return Err(refused(format!("it changes nothing: {example}")));
            }
            seen.push(name);
            let function = self.functions.entry(name.to_owned()).or_default();
            if part == VARIABLE {
                function.used = Arc::clone(lock(&USED).entry(name.to_owned()).or_default());
            }
            let mut given: Vec<&str> = Vec::new();
            for option in options.split_whitespace() {
                let key = option.split('=').next().unwrap_or_default();
                if given.contains(&key) {
                    return Err(refused(format!("`{key}` is given twice")));
                }
                given.push(key);
                function.changes.set(option).map_err(refused)?;
            }
        }
        Ok(())
    }

    /// Returns the changes for the function `name`, and records that they are used.
    pub(crate) fn changes(&self, name: &str) -> Option<&OptionChanges> {
        if self.functions.is_empty() {
            return None;
        }
        let function = self.functions.get(name)?;
        function.used.store(true, Ordering::Relaxed);
        Some(&function.changes)
    }

    /// Returns the names that no call has used, the first time. Later, returns none.
    pub(crate) fn take_unused(&self) -> impl Iterator<Item = &str> {
        let is_first = !self.reported.swap(true, Ordering::Relaxed);
        let unused = move |function: &FunctionOverride| is_first && !function.used.load(Ordering::Relaxed);
        self.functions.iter().filter(move |(_, function)| unused(function)).map(|(name, _)| &**name)
    }
}

impl OptionChanges {
    /// Changes one option, written `name=value`.
    fn set(&mut self, option: &str) -> Result<(), String> {
        const OPTIONS: [&str; 5] = ["lease", "wait", "retry", "max_hold", "backoff"];
        let (name, value) = option
            .split_once('=')
            .ok_or_else(|| format!("`{option}` is no option: write `name=value`, without spaces"))?;
        let refused = |problem: String| format!("`{option}`: {problem}");
        let bounded = |value| {
            let time = duration::parse(value).map_err(refused)?;
            checked_lease(time).map_err(|_| refused("it is not between 100 ms and 365 days".to_owned()))
        };
        match name {
            "lease" => self.lease = Some(bounded(value)?),
            "max_hold" => self.max_hold = Some(bounded(value)?),
            "wait" => self.wait = Some(duration::parse(value).map_err(refused)?),
            "retry" => {
                let problem = "it is a number of retries, as in `retry=3`";
                self.retry = Some(value.parse().map_err(|_| refused(problem.to_owned()))?);
            }
            "backoff" => {
                let (first, last) = value.split_once("..").unwrap_or((value, value));
                let time = |text| duration::parse(text).map_err(refused);
                let (first, last) = (time(first)?, time(last)?);
                if first > last {
                    return Err(refused("the first delay is longer than the last one: swap them".to_owned()));
                }
                self.backoff = Some((first, last));
            }
            unknown => {
                let near = nearest(unknown, OPTIONS).map(|near| format!(": did you mean `{near}`"));
                let near = near.unwrap_or_default();
                let known = OPTIONS.map(|name| format!("`{name}`")).join(", ");
                return Err(format!("`{unknown}` cannot be overridden{near}; the options are {known}"));
            }
        }
        Ok(())
    }

    /// Applies the changes to the options of a function.
    pub(crate) fn apply(&self, options: &mut Options) {
        let Self { lease, wait, max_hold, retry, backoff } = *self;
        options.lease = lease.or(options.lease);
        options.wait = wait.or(options.wait);
        options.max_hold = max_hold.or(options.max_hold);
        options.retry = retry.unwrap_or(options.retry);
        if let Some((first, last)) = backoff {
            *options = options.backoff(first, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<CallOverrides> {
        let mut overrides = CallOverrides::default();
        overrides.add("overrides", text).map(|()| overrides)
    }

    fn applied(overrides: &CallOverrides, name: &str) -> Options {
        let mut options = Options::new().retry(1).lease(Duration::from_secs(1));
        overrides.changes(name).expect("it is overridden").apply(&mut options);
        options
    }

    #[test]
    fn each_option_of_each_function_is_read() {
        let text =
            " orders.place: lease=10s wait=2s ;shop::jobs::nightly:retry=5 backoff=50ms..1s max_hold=1h;";

        let overrides = parsed(text).expect("it is valid");

        let place = applied(&overrides, "orders.place");
        assert_eq!((place.lease, place.wait), (Some(Duration::from_secs(10)), Some(Duration::from_secs(2))));
        assert_eq!(place.retry, 1, "it keeps its own");
        let nightly = applied(&overrides, "shop::jobs::nightly");
        assert_eq!((nightly.retry, nightly.max_hold), (5, Some(Duration::from_secs(3600))));
        assert_eq!(nightly.backoff.ceiling(9), Duration::from_secs(1));
        assert!(
            overrides.changes("orders").is_none() && parsed("").is_ok_and(|none| none.functions.is_empty())
        );
    }

    #[test]
    fn invalid_text_is_refused_with_its_place_and_a_remedy() {
        for (text, words) in [
            ("orders.place", "has no `:`"),
            (": lease=1s", "no valid name"),
            ("a: lease=1s; shop::place lease=10s", "no valid name"),
            ("a b: lease=1s", "no valid name"),
            ("a:", "it changes nothing"),
            ("a: lease=1s; a: wait=1s", "`a` is given twice"),
            ("a: lease=1s lease=2s", "`lease` is given twice"),
            ("a: lease", "`lease` is no option"),
            ("a: lease=10", "`lease=10`: `10` has no unit"),
            ("a: backoff=2s..100ms", "the first delay is longer than the last one: swap them"),
            ("a: lease=10ms", "not between 100 ms and 365 days"),
            ("a: max_hold=1ms", "not between 100 ms and 365 days"),
            ("a: retry=many", "a number of retries"),
            ("a: backoff=1s..x", "`x` is not a duration"),
            ("a: leese=1s", "did you mean `lease`"),
            ("a: key=b", "the options are `lease`, `wait`"),
        ] {
            let refused = parsed(text).expect_err(text).to_string();
            assert!(refused.contains(": overrides: ") && refused.contains(words), "{text}: {refused}");
        }
    }

    #[test]
    fn a_later_text_replaces_single_options() {
        let mut overrides = parsed("a: lease=10s wait=2s").expect("it is valid");

        overrides.add(VARIABLE, "a: wait=5s").expect("it is valid");

        let options = applied(&overrides, "a");
        assert_eq!(
            (options.lease, options.wait),
            (Some(Duration::from_secs(10)), Some(Duration::from_secs(5)))
        );
    }

    #[test]
    fn an_override_of_the_variable_is_used_by_all_managers_together() {
        for (part, expected) in [(VARIABLE, &["neither"][..]), ("overrides", &["neither", "other"])] {
            let managers = [(); 2].map(|()| {
                let mut overrides = CallOverrides::default();
                overrides.add(part, "one: wait=1s; other: wait=1s; neither: wait=1s").expect("it is valid");
                overrides
            });
            assert!(managers[0].changes("one").is_some() && managers[1].changes("other").is_some());

            let unused: Vec<_> = managers[0].take_unused().collect();

            assert_eq!(unused, expected, "{part}");
        }
    }
}
