//! Converts the result of a call to the function's value: which return types can carry which
//! errors.
//!
//! Every error needs an outcome. Traits decide about types, never names, so an alias of `Result`
//! counts as one:
//!
//! ```text
//! on_contended = error        ReportsLockError   Result<_, E: From<Error>>; a framework's response, by its feature
//!              = skip         Skips              (), Option<_>, Result of those
//!              = return(..)   Carrier            of any type; a ReportsLockError carries all except contention
//!              = fallback(..) Carrier, and ReportsLoss once the body has started
//! ```
//!
//! See `error` for the errors, and `Call::swallow` for how an error is logged that no value can
//! carry.

use std::marker::PhantomData;
use std::ops::Deref;

use crate::error::Error;

/// A return type that can carry every lock error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot report that the lock was not acquired",
    label = "this return type cannot carry a lock error",
    note = "return `Result<T, E>` where `E` implements `From<dlock_runtime::Error>`",
    note = "or say what to return instead: `on_contended = skip`, `on_contended = return(value)` or `on_contended = fallback(path)`"
)]
pub trait ReportsLockError: Sized {
    /// Returns the value that carries `error`.
    fn report(error: Error) -> Self;

    /// Returns `true` if the value is any error.
    fn is_error(&self) -> bool;
}

impl<T, E: CarriesLockError> ReportsLockError for Result<T, E> {
    fn report(error: Error) -> Self {
        Err(E::carry(error))
    }

    fn is_error(&self) -> bool {
        self.is_err()
    }
}

/// An error type into which a lock error can be converted.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` cannot carry a lock error",
    label = "its error type does not implement `From<dlock_runtime::Error>`",
    note = "return an error type of your own, with `impl From<dlock_runtime::Error>` for it, or with thiserror a variant `Lock(#[from] dlock_runtime::Error)`; Rust allows no such impl for a type of another crate, such as `String`",
    note = "a type of axum, actix-web, or tonic has it with a feature: `dlock-runtime = {{ version = \"..\", features = [\"axum\"] }}`, `actix`, or `tonic`"
)]
pub trait CarriesLockError: Sized + From<Error> {
    /// Returns the error that carries `error`.
    fn carry(error: Error) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> CarriesLockError for E {
    fn carry(error: Error) -> Self {
        error.into()
    }
}

/// A return type that has a value for "the body did not run".
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no value that says that the body did not run, which `on_contended = skip` needs",
    label = "`skip` has nothing to return here",
    note = "return `()`, `Option<T>`, `Result<(), E>` or `Result<Option<T>, E>`",
    note = "or name the value: `on_contended = return(value)`"
)]
pub trait Skips: Sized {
    /// Returns the value for `error`, and calls `swallow` if the value hides an error.
    fn skip(error: Error, swallow: impl FnOnce(&Error)) -> Self;
}

impl Skips for () {
    fn skip(error: Error, swallow: impl FnOnce(&Error)) -> Self {
        swallow(&error);
    }
}

impl<T> Skips for Option<T> {
    fn skip(error: Error, swallow: impl FnOnce(&Error)) -> Self {
        swallow(&error);
        None
    }
}

impl<T: DidNotRun, E: CarriesLockError> Skips for Result<T, E> {
    fn skip(error: Error, _: impl FnOnce(&Error)) -> Self {
        if error.is_contended() { Ok(T::did_not_run()) } else { Err(E::carry(error)) }
    }
}

/// A type with a value for "nothing was done".
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no value that says that the body did not run, which `skip` needs",
    label = "`skip` has nothing to return here",
    note = "return `()`, `Option<T>`, `Result<(), E>` or `Result<Option<T>, E>`",
    note = "or name the value for contention: `on_contended = return(value)`"
)]
pub trait DidNotRun {
    /// Returns that value.
    fn did_not_run() -> Self;
}

#[diagnostic::do_not_recommend]
impl<T: DidNotRun, E> DidNotRun for Result<T, E> {
    fn did_not_run() -> Self {
        Ok(T::did_not_run())
    }
}

impl DidNotRun for () {
    fn did_not_run() -> Self {}
}

impl<T> DidNotRun for Option<T> {
    fn did_not_run() -> Self {
        None
    }
}

/// A return type that can carry the loss of a lock when the arguments of `fallback` are gone.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot report that the lock was lost while the body ran",
    label = "by then the arguments are inside the body, and `fallback` cannot be called with them",
    note = "write `on_lost = finish` to let the body run on and return its own value",
    note = "or return `Result<T, E>` where `E` implements `From<dlock_runtime::Error>`"
)]
pub trait ReportsLoss: Sized {
    /// Returns the value that carries `error`.
    fn report_loss(error: Error) -> Self;
}

impl<T, E: CarriesLockError> ReportsLoss for Result<T, E> {
    fn report_loss(error: Error) -> Self {
        Err(E::carry(error))
    }
}

/// The value of a completed body. Decides whether it is returned although the lock was lost.
///
/// An error is returned, since it is the body's own. So is a value of a type that cannot carry a
/// lock error, since a stand-in would say that the body did not run. The compiler selects the
/// method as it does for [`Carrier`].
#[derive(Debug)]
pub struct Completed<'a, R>(CompletedAlone<'a, R>);

/// The value of a type that cannot carry a lock error. See [`Completed`].
#[derive(Debug)]
pub struct CompletedAlone<'a, R>(&'a R);

impl<'a, R> Completed<'a, R> {
    /// Wraps a value.
    #[must_use]
    pub const fn new(value: &'a R) -> Self {
        Self(CompletedAlone(value))
    }
}

impl<R: ReportsLockError> Completed<'_, R> {
    /// Returns `true` if the value is an error.
    #[must_use]
    pub fn stands_after_a_loss(&self) -> bool {
        self.0.0.is_error()
    }

    /// Returns `true` if the value is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.0.0.is_error()
    }
}

impl<'a, R> Deref for Completed<'a, R> {
    type Target = CompletedAlone<'a, R>;

    fn deref(&self) -> &CompletedAlone<'a, R> {
        &self.0
    }
}

impl<R> CompletedAlone<'_, R> {
    /// Returns `true`.
    #[must_use]
    pub const fn stands_after_a_loss(&self) -> bool {
        true
    }

    /// Returns `false`: the type is not known to have errors.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        false
    }
}

/// Ends a call with `on_contended = error`.
#[must_use]
pub fn finish<R: ReportsLockError>(result: Result<R, Error>) -> R {
    result.unwrap_or_else(R::report)
}

/// Ends a call with `on_contended = skip`.
#[must_use]
pub fn finish_or_skip<R: Skips>(result: Result<R, Error>, swallow: impl FnOnce(&Error)) -> R {
    result.unwrap_or_else(|error| R::skip(error, swallow))
}

/// Returns the value for "did not run" if the server is unavailable, as `on_unavailable = skip`
/// specifies, and calls `swallow`.
///
/// # Errors
///
/// All other errors.
pub fn skip_unavailable<R: DidNotRun>(
    result: Result<R, Error>,
    swallow: impl FnOnce(&Error),
) -> Result<R, Error> {
    result.or_else(|error| {
        if !error.is_unavailable() {
            return Err(error);
        }
        swallow(&error);
        Ok(R::did_not_run())
    })
}

/// Ends a call with `on_contended = fallback(..)` whose body has started.
#[must_use]
pub fn finish_started<R: ReportsLoss>(result: Result<R, Error>) -> R {
    result.unwrap_or_else(R::report_loss)
}

/// Determines whether `R` can carry an error. Both cases compile.
///
/// The compiler looks for a method here first, and behind `Deref` only if the bound on this one
/// does not hold. The method has a long name so that no blanket trait of the user's can provide one
/// in between.
#[derive(Debug)]
pub struct Carrier<R>(CarrierOfNone<R>);

/// Carries no error. See [`Carrier`].
#[derive(Debug)]
pub struct CarrierOfNone<R>(PhantomData<fn() -> R>);

impl<R> Carrier<R> {
    /// Returns the carrier of a return type.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "only the expansion makes one, and it names the type")]
    pub const fn new() -> Self {
        Self(CarrierOfNone(PhantomData))
    }
}

impl<R: ReportsLockError> Carrier<R> {
    /// Carries every error except contention, for which the value in `on_contended` is returned.
    ///
    /// # Errors
    ///
    /// The error that is not carried.
    pub fn carry_lock_error(&self, error: Error) -> Result<R, Error> {
        if error.is_contended() { Err(error) } else { Ok(R::report(error)) }
    }
}

impl<R> Deref for Carrier<R> {
    type Target = CarrierOfNone<R>;

    fn deref(&self) -> &CarrierOfNone<R> {
        &self.0
    }
}

impl<R> CarrierOfNone<R> {
    /// Carries nothing: the value in `on_contended` is returned for every error.
    ///
    /// # Errors
    ///
    /// Always returns the error.
    pub fn carry_lock_error(&self, error: Error) -> Result<R, Error> {
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_installed() -> Error {
        Error::NotInstalled {}
    }

    fn contended() -> Error {
        Error::Contended {
            key: crate::LockKey::new("order:7").expect("a key"),
            attempts: 1,
            waited: std::time::Duration::ZERO,
            remaining: None,
        }
    }

    type Alias = Result<u64, Error>;

    #[test]
    fn error_types_leave_only_contention_to_the_stand_in() {
        let carried = Carrier::<Alias>::new().carry_lock_error(not_installed());
        let left = Carrier::<Alias>::new().carry_lock_error(contended());

        assert!(matches!(carried, Ok(Err(Error::NotInstalled {}))));
        assert!(left.is_err_and(|error| error.is_contended()));
    }

    #[test]
    fn a_type_that_carries_none_leaves_every_cause_to_the_stand_in() {
        assert!(Carrier::<u64>::new().carry_lock_error(not_installed()).is_err());
        assert!(Carrier::<Result<u64, String>>::new().carry_lock_error(not_installed()).is_err());
        assert!(Carrier::<Option<Alias>>::new().carry_lock_error(not_installed()).is_err());
    }

    #[test]
    fn completed_errors_and_plain_values_are_returned() {
        assert!(!Completed::new(&Alias::Ok(7)).stands_after_a_loss());
        assert!(!Completed::new(&Ok::<_, Error>(Some(7))).stands_after_a_loss());
        assert!(Completed::new(&Alias::Err(contended())).stands_after_a_loss());
        assert!(Completed::new(&7_u64).stands_after_a_loss());
        assert!(Completed::new(&Some(7)).stands_after_a_loss());
        assert!(Completed::new(&()).stands_after_a_loss());
        assert!(Completed::new(&Ok::<u64, String>(7)).stands_after_a_loss());
    }

    #[test]
    fn a_skip_hides_contention_alone_where_errors_can_be_carried() {
        let swallowed = |_: &Error| panic!("nothing is to be swallowed");

        assert!(matches!(finish_or_skip::<Result<(), Error>>(Err(contended()), swallowed), Ok(())));
        assert!(matches!(finish_or_skip::<Result<Option<u8>, Error>>(Err(contended()), swallowed), Ok(None)));
        assert!(finish_or_skip::<Result<(), Error>>(Err(not_installed()), swallowed).is_err());
    }

    #[test]
    fn a_skip_that_hides_an_error_reports_it() {
        let mut told = false;

        let value = finish_or_skip::<Option<u8>>(Err(not_installed()), |_| told = true);

        assert!(value.is_none() && told);
    }

    fn unavailable() -> Error {
        Error::Unavailable { key: None, reason: "no connection".into() }
    }

    #[test]
    fn an_error_is_reported_by_a_type_that_carries_it() {
        assert!(matches!(finish::<Alias>(Ok(Ok(7))), Ok(7)));
        assert!(matches!(finish::<Alias>(Err(not_installed())), Err(Error::NotInstalled {})));
        assert!(matches!(finish_started::<Alias>(Ok(Ok(7))), Ok(7)));
        assert!(matches!(finish_started::<Alias>(Err(not_installed())), Err(Error::NotInstalled {})));
        assert!(Alias::Err(contended()).is_error() && !Alias::Ok(7).is_error());
    }

    #[test]
    fn only_an_error_that_the_type_carries_is_an_error() {
        assert!(Completed::new(&Alias::Err(contended())).is_error());
        assert!(!Completed::new(&Alias::Ok(7)).is_error());
        assert!(!Completed::new(&7_u64).is_error() && !Completed::new(&None::<u8>).is_error());
    }

    #[test]
    fn a_skip_keeps_the_value_of_a_body_that_ran() {
        let swallowed = |_: &Error| panic!("nothing is to be swallowed");

        assert_eq!(finish_or_skip::<Option<u8>>(Ok(Some(7)), swallowed), Some(7));
        assert!(matches!(
            finish_or_skip::<Result<Option<u8>, Error>>(Ok(Ok(Some(7))), swallowed),
            Ok(Some(7))
        ));
    }

    #[test]
    fn every_hidden_error_of_a_unit_function_is_reported() {
        let mut told = 0;
        for error in [contended(), unavailable(), not_installed()] {
            let () = finish_or_skip(Err(error), |_| told += 1);
        }

        assert_eq!(told, 3);
    }

    #[test]
    fn skipping_an_unavailable_server_hides_nothing_else() {
        let mut told = Vec::new();
        let mut skip =
            |result| skip_unavailable::<Result<Option<u8>, Error>>(result, |error| told.push(error.clone()));

        assert!(matches!(skip(Ok(Ok(Some(7)))), Ok(Ok(Some(7)))));
        assert!(matches!(skip(Err(unavailable())), Ok(Ok(None))));
        assert!(skip(Err(contended())).is_err_and(|error| error.is_contended()));

        assert!(matches!(&told[..], [error] if error.is_unavailable()), "{told:?}");
    }
}
