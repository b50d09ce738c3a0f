//! How much memory this process has.

/// Returns how many bytes of the process stand in memory.
///
/// # Panics
///
/// Panics where the system does not tell.
#[must_use]
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it tells this");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("it is a number");
    kilobytes * 1024
}
