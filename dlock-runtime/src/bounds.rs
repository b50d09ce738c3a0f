//! The limits on sizes and counts. The guide on operating lists them under "Bounds".
//!
//! A length is limited both when it is written and when it is read: other clients can write values
//! of any length.

use crate::token::Token;

/// The maximum number of tokens in the queue of one value. A client that finds it full polls.
pub(crate) const MAX_WAITERS: usize = 128;

/// The maximum length of a lock's value, in bytes: the holder and a full queue. A longer value is
/// foreign.
pub(crate) const LONGEST_VALUE: usize = (MAX_WAITERS + 1) * Token::WIDTH;

/// The maximum length of a name, in bytes. Longer names are cut, as clients, proxies, and logs
/// carry them.
pub(crate) const LONGEST_NAME: usize = 512;

/// The maximum length of a text that another client wrote, or that a server sent, as errors,
/// events, and reports show it, in bytes. Records may have 4 MB.
pub(crate) const LONGEST_FOREIGN_TEXT: usize = 512;

/// The maximum length of a host that a server names, in bytes. No name is longer in the DNS.
pub(crate) const LONGEST_HOST: usize = 255;

/// The maximum fencing token, 2^53 - 1: Lua and JavaScript count with `f64`, which is exact up to
/// there. The clock reaches it in the year 2255.
pub(crate) const LAST_FENCE: u64 = (1 << 53) - 1;

/// The maximum fencing token with `layout=redisson`, 2^63 - 1: there, Java counts with `INCR`.
pub(crate) const LAST_FENCE_OF_REDISSON: u64 = i64::MAX.unsigned_abs();

/// Asserts that the table "Bounds" of the guide on operating has a row that begins with `row` and
/// names `bound`.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_listed(row: &str, bound: &str) {
    let guide = include_str!("docs/operating.md");
    let section = guide.split("\n# ").find(|section| section.starts_with("Bounds\n"));
    let rows = section.expect("the guide has this section").lines();
    let rows: Vec<_> =
        rows.filter(|line| line.strip_prefix("| ").is_some_and(|of| of.starts_with(row))).collect();
    let [found] = rows[..] else { panic!("{row:?}: the guide has {} such rows", rows.len()) };
    let value = found.split(" | ").nth(1).unwrap_or_default();
    assert!(value.contains(bound), "{row:?}: {value:?} does not name {bound:?}");
}

/// Returns a number as the guides write it: `131,072`.
#[cfg(test)]
pub(crate) fn written(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::idempotency::{
        LONGEST_RESULT, LONGEST_STEP_NAME, LONGEST_STEPS, MAX_STEPS, MAX_WAITING_PROCESSES,
    };
    use crate::protocol::job::job_record::HISTORY;

    /// The limits of the scripts in `idempotent/scripts/lib.lua`, in bytes.
    const LARGEST_RECORD: usize = 4_000_000;
    const LONGEST_QUEUE: usize = 5_120;

    /// The largest reply on a connection for records, in bytes.
    #[cfg(all(feature = "tower", feature = "idempotent"))]
    const LARGEST_REPLY: usize = 4 << 20;

    /// Returns the memory that an allocator with four size classes for each power of two, such as
    /// jemalloc, uses for a value.
    #[cfg(all(feature = "tower", feature = "idempotent"))]
    fn allocated(bytes: usize) -> usize {
        bytes.next_multiple_of(bytes.next_power_of_two() / 8)
    }

    #[test]
    #[cfg(all(feature = "tower", feature = "idempotent"))]
    fn the_largest_response_fits_into_a_record() {
        use crate::tower::{HEADERS, LONGEST_RESPONSE};
        assert_eq!([allocated(1_025), allocated(1_280), allocated(2_048)], [1_280, 1_280, 2_048]);
        assert_listed(
            "stored response of `IdempotencyLayer`",
            &format!("{} MiB, and {} KiB of headers", LONGEST_RESPONSE >> 20, HEADERS >> 10),
        );
        assert_listed("a reply that describes servers", &format!("{} MiB", LARGEST_REPLY >> 20));
        let (response, steps) = (LONGEST_RESPONSE + HEADERS, LONGEST_STEPS + MAX_STEPS * LONGEST_STEP_NAME);
        let others = allocated(LONGEST_QUEUE) + (64 << 10); // the identity, numbers, and overhead
        // A response replaces the steps.
        for value in [response, steps] {
            assert!(allocated(value) + others < LARGEST_RECORD, "{value} bytes");
        }
        assert!(response + others < LARGEST_REPLY);
    }

    #[test]
    fn the_guide_lists_the_bounds_of_a_lock() {
        assert_eq!([written(7), written(1_000), written(131_072)], ["7", "1,000", "131,072"]);
        assert_listed("waiters in the server's queue", &written(MAX_WAITERS));
        assert_listed("text of another client", &format!("{LONGEST_FOREIGN_TEXT} bytes"));
        assert_listed("host that sentinels", &format!("{LONGEST_HOST} bytes"));
        assert_listed("value that is read", &format!("{} bytes", written(LONGEST_VALUE)));
        assert_listed("name, with its namespace", &format!("{} bytes", written(LONGEST_NAME)));
        assert_listed("processes that wait for one idempotent call", &written(MAX_WAITING_PROCESSES));
        let (result, steps) =
            (format!("{} KiB", LONGEST_RESULT >> 10), format!("{} MiB", LONGEST_STEPS >> 20));
        assert_listed("stored result of an idempotent call", &result);
        let names = format!("{MAX_STEPS}, names of {LONGEST_STEP_NAME} bytes, stored results of {steps}");
        assert_listed("steps of an idempotent call", &names);
        let records = include_str!("idempotent/scripts/lib.lua");
        let limits = format!("LARGEST, LONGEST_QUEUE = 128, {LARGEST_RECORD}, {LONGEST_QUEUE}");
        assert!(records.contains(&limits));
        assert_eq!(MAX_WAITING_PROCESSES * 40, LONGEST_QUEUE);
        assert_listed(
            "record of an idempotent call",
            &format!(
                "128 fields and {} bytes; numbers below 2⁵³ - 1; attempts below 2³² - 1",
                written(LARGEST_RECORD)
            ),
        );
        assert!(records.contains(&format!("LAST_ATTEMPT = {}", u32::MAX - 1)));
        assert!(include_str!("scheduled/job.lua").contains("MOST_FIELDS, LARGEST = 128, 262144"));
        assert_listed("record of a job", "128 fields and 256 KiB; numbers below 2⁵³ - 1");
        assert!(include_str!("scheduled/job.lua").contains(&format!("LARGEST_NUMBER = {}", LAST_FENCE - 1)));
        assert_listed("last fencing token of a job", "2⁵³ - 2");
        assert!(
            include_str!("scheduled/job.lua")
                .contains(&format!("HISTORY, FURTHEST_AHEAD, LONGEST_EARLY, LONGEST_SILENCE = {HISTORY},"))
        );
        assert!(include_str!("scheduled/job_call.rs").contains("LONGEST_ERROR: usize = 512;"));
        assert_listed("history of a job", &format!("{HISTORY} runs, with 512 bytes of an error each"));
        let redisson = include_str!("backend/redis/encoding/scripts/redisson/lib.lua");
        assert!(redisson.contains("size > 65536") && redisson.contains("HLEN', KEYS[1]) > 1 then"));
        assert_listed("hash with `layout=redisson`", "one field; 64 KiB for");
        assert_listed("fencing token", "2⁵³ - 1; with `layout=redisson` 2⁶³ - 1");
        assert_eq!((LAST_FENCE, LAST_FENCE_OF_REDISSON), (9_007_199_254_740_991, 9_223_372_036_854_775_807));
    }
}
