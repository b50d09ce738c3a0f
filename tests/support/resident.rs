//! The resident memory of this process.

/// Returns the number of bytes of this process that are in memory.
///
/// # Panics
///
/// Panics if the system does not provide this number.
#[must_use]
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux provides the status");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("the status has the resident size");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("it is a number");
    kilobytes * 1024
}
