//! The resident memory of processes.

/// Returns the number of bytes of this process that are in memory.
///
/// # Panics
///
/// Panics if the system does not provide this number.
#[must_use]
pub fn resident_bytes() -> usize {
    resident_bytes_of("self").expect("Linux provides the status, with the resident size")
}

/// Returns the number of bytes of a process that are in memory, or `None` if it has ended.
///
/// `process` is its id.
#[must_use]
pub fn resident_bytes_of(process: &str) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024)
}
