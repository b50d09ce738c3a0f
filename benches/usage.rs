//! What this process uses: time on the boot clock, processor time, memory.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Failure;

/// Returns nanoseconds on the boot clock, which all processes of a machine share.
pub(crate) fn boot_nanos() -> u64 {
    nanos(clock(ClockId::Boottime))
}

/// Returns the processor time of all threads of this process, in user and in kernel mode.
pub(crate) fn cpu_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Returns how many bytes of this process are resident.
pub(crate) fn resident_bytes() -> Result<u64, Failure> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').nth(1).ok_or("/proc/self/statm has one field only")?.parse()?;
    Ok(pages * u64::try_from(rustix::param::page_size())?)
}

/// Returns `time` in whole nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns `nanos` in milliseconds.
pub(crate) fn millis(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e3
}

/// Returns a count as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

fn clock(id: ClockId) -> Duration {
    Duration::try_from(clock_gettime(id)).unwrap_or_default()
}
