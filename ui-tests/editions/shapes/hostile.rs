//! Modules that define every name an expansion could use, and traits that define every method for
//! all types.
//!
//! The functions are only called from `tests`, where the names have their usual meaning.

/// Modules, types, and macros with names that expansions often use.
mod shadowed {
    #![allow(dead_code, non_camel_case_types, unused_macros, clippy::upper_case_acronyms)]

    mod core {}
    mod std {}
    mod alloc {}
    mod tracing {}
    mod tokio {}
    mod dlock_runtime {}

    struct Ok;
    struct Err;
    struct Some;
    struct None;
    struct Option;
    struct Result;
    struct Pin;
    struct Box;
    struct String;
    struct Default;
    struct Drop;
    struct Sized;
    struct Send;
    struct Future;
    struct Call;
    struct Callsite;
    struct u64;
    struct u32;
    struct bool;
    struct str;

    macro_rules! nothing {
        ($($name:ident)*) => {$(
            macro_rules! $name {
                () => {};
            }
        )*};
    }
    nothing!(format concat module_path pin unreachable panic matches assert);

    #[::dlock_runtime::distributed_lock(key = "a:<id>:<__dlock_call>", lease = "1s", guard = lock, retry = 1)]
    pub(super) async fn error(
        id: ::core::primitive::u8,
        __dlock_call: ::core::primitive::u8,
        __dlock_body: ::core::primitive::u8,
    ) -> ::core::result::Result<::core::primitive::u8, ::dlock_runtime::Error> {
        let _key = lock.key();
        let __dlock_result = __dlock_body;
        ::tokio::task::yield_now().await;
        ::core::result::Result::Ok(id + __dlock_call + __dlock_result)
    }

    #[::dlock_runtime::distributed_lock(key = "a", on_contended = fallback(other), on_lost = finish)]
    pub(super) async fn fallback(id: ::core::primitive::u8) -> ::core::primitive::u8 {
        ::tokio::task::yield_now().await;
        id
    }

    async fn other(id: ::core::primitive::u8) -> ::core::primitive::u8 {
        ::tokio::task::yield_now().await;
        id
    }

    #[::dlock_runtime::distributed_lock(key = "a", on_contended = return(7), retry = 3, backoff = "1s..2s", max_hold = "1m")]
    pub(super) async fn returned(id: ::core::primitive::u8) -> ::core::primitive::u8 {
        ::tokio::task::yield_now().await;
        id
    }

    #[::dlock_runtime::distributed_lock(key = "a", on_contended = skip, on_unavailable = skip, lease = "30s", renew = false)]
    pub(super) async fn skipped() -> ::core::option::Option<::core::primitive::u8> {
        ::tokio::task::yield_now().await;
        ::core::option::Option::Some(7)
    }
}

/// Traits that define every method for all types, by value, so that they precede a method by
/// reference.
mod captured {
    #![allow(dead_code, clippy::unused_self, clippy::wrong_self_convention)]

    use dlock_runtime::{Error, distributed_lock};

    trait Everything: Sized {
        fn run<T>(self, _: T) {}
        fn run_to_end<T>(self, _: T) {}
        fn acquire(self) {}
        fn key<T>(self, _: T) {}
        fn template(self) {}
        fn guard(self) {}
        fn swallow<T>(self, _: T) {}
        fn carry<T>(self, _: T) {}
        fn text<T>(self, _: T) {}
        fn part<T, U>(self, _: T, _: U) {}
        fn hashed<T, U>(self, _: T, _: U) {}
        fn optional<T, U>(self, _: T, _: U) {}
        fn raw<T, U>(self, _: T, _: U) {}
        fn lease<T>(self, _: T) {}
        fn retry<T>(self, _: T) {}
        fn namespace<T>(self, _: T) {}
        fn runs_unlocked(self) {}
        fn on_lost<T>(self, _: T) {}
        fn map<T>(self, _: T) {}
        fn as_mut(self) {}
        fn as_ref(self) {}
        fn into(self) {}
        fn into_future(self) {}
        fn poll(self) {}
    }

    impl<T> Everything for T {}

    #[distributed_lock(
        key = "a:<id>:<id|hash>:<id|opt>:<id|raw>",
        lease = "1s",
        guard = lock,
        retry = 1,
        namespace = "dlock",
        on_lost = finish,
        on_unavailable = run
    )]
    pub(super) async fn error(id: &str) -> Result<usize, Error> {
        lock.check()?;
        tokio::task::yield_now().await;
        Ok(id.len())
    }

    #[distributed_lock(key = "a", on_contended = fallback(other), on_lost = finish)]
    pub(super) async fn fallback(id: u8) -> u8 {
        tokio::task::yield_now().await;
        id
    }

    async fn other(id: u8) -> u8 {
        tokio::task::yield_now().await;
        id
    }

    #[distributed_lock(key = "a", on_contended = return(7))]
    pub(super) async fn returned(id: u8) -> u8 {
        tokio::task::yield_now().await;
        id
    }

    #[distributed_lock(key = "a", on_contended = return(Ok(7)))]
    pub(super) async fn returned_in_a_result(id: u8) -> Result<u8, Error> {
        tokio::task::yield_now().await;
        Ok(id)
    }

    #[distributed_lock(key = "a", on_contended = skip, on_unavailable = skip)]
    pub(super) async fn skipped() -> Option<u8> {
        tokio::task::yield_now().await;
        Some(7)
    }
}

/// Without a prelude.
#[no_implicit_prelude]
mod bare {
    #[::dlock_runtime::distributed_lock(key = "a:<id>", lease = "1s", guard = lock)]
    pub(super) async fn error(id: u8) -> ::core::result::Result<u8, ::dlock_runtime::Error> {
        let _key = lock.key();
        ::tokio::task::yield_now().await;
        ::core::result::Result::Ok(id)
    }

    #[::dlock_runtime::distributed_lock(key = "a", on_contended = fallback(other))]
    pub(super) async fn fallback(id: u8) -> ::core::result::Result<u8, ::dlock_runtime::Error> {
        ::tokio::task::yield_now().await;
        ::core::result::Result::Ok(id)
    }

    async fn other(id: u8) -> ::core::result::Result<u8, ::dlock_runtime::Error> {
        ::tokio::task::yield_now().await;
        ::core::result::Result::Ok(id)
    }

    #[::dlock_runtime::distributed_lock(key = "a", on_contended = return(7), retry = 3, backoff = "1s")]
    pub(super) async fn returned((id, _): (u8, u8)) -> u8 {
        ::tokio::task::yield_now().await;
        id
    }

    #[::dlock_runtime::distributed_lock(key = "a", on_contended = skip)]
    pub(super) async fn skipped() {
        ::tokio::task::yield_now().await;
    }
}

mod tests {
    use super::{bare, captured, shadowed};
    use crate::under;

    #[tokio::test]
    async fn shadowed_names_change_nothing() {
        assert_eq!(under("a:1:2", shadowed::error(1, 2, 3)).await.ok(), Some(6));
        assert_eq!(under("a", shadowed::fallback(1)).await, 1);
        assert_eq!(under("a", shadowed::returned(1)).await, 1);
        assert_eq!(under("a", shadowed::skipped()).await, Some(7));
    }

    #[tokio::test]
    async fn methods_on_everything_change_nothing() {
        let key = "a:x:2d711642b726b04401627ca9fbac32f5:x:x";
        assert_eq!(under(key, captured::error("x")).await.ok(), Some(1));
        assert_eq!(under("a", captured::fallback(1)).await, 1);
        assert_eq!(under("a", captured::returned(1)).await, 1);
        assert_eq!(under("a", captured::returned_in_a_result(1)).await.ok(), Some(1));
        assert_eq!(under("a", captured::skipped()).await, Some(7));
    }

    #[tokio::test]
    async fn a_module_without_a_prelude_needs_none() {
        assert_eq!(under("a:1", bare::error(1)).await.ok(), Some(1));
        assert_eq!(under("a", bare::fallback(1)).await.ok(), Some(1));
        assert_eq!(under("a", bare::returned((1, 2))).await, 1);
        under("a", bare::skipped()).await;
    }
}
