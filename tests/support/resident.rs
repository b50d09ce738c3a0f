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
    status_bytes(process, "VmRSS:")
}

/// Forgets the peak of this process's memory. Returns `false` if the system does not allow it.
#[must_use]
pub fn reset_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Returns the most bytes of this process that were in memory at a time, since the last
/// [`reset_peak`].
///
/// # Panics
///
/// Panics if the system does not provide this number.
#[must_use]
pub fn peak_bytes() -> usize {
    status_bytes("self", "VmHWM:").expect("Linux provides the status, with the peak of the resident size")
}

fn status_bytes(process: &str, field: &str) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024)
}
