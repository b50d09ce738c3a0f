//! When connections are asked whether they are alive: where they would be idle, seldom; often where idle ones turn out to be ended.
//!
//! Not here: who asks (`node`, `link`, `tracking`), what becomes of one that does not answer (`health`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::redis::boot_timer::BootTimer;
use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;

/// When connections to one server are asked whether they are alive: all at once, and where it can be when the process is awake for
/// something else, since a processor that idles pays more for being woken than for what it is woken for.
#[derive(Debug)]
pub(crate) struct Beat {
    idleness: Arc<Idleness>,
    /// When they were asked last.
    last: watch::Sender<BootInstant>,
}

impl Beat {
    /// One that begins now.
    pub(crate) fn new(idleness: &Arc<Idleness>) -> Self {
        Self { idleness: Arc::clone(idleness), last: watch::Sender::new(boot_time()) }
    }

    /// Returns what tells one connection when it is to be asked.
    pub(crate) fn pulse(&self) -> Pulse {
        Pulse(self.last.subscribe())
    }

    /// Keeps it going, without end.
    pub(crate) async fn keep(&self) {
        let (mut alarm, mut last) = (BootTimer::new(), self.last.subscribe());
        loop {
            let next = last.borrow_and_update().plus(self.idleness.ping_every());
            tokio::select! {
                biased;
                _ = last.changed() => {}
                () = alarm.until_about(next) => self.strike(boot_time(), self.idleness.ping_every()),
            }
        }
    }

    /// The process is awake at `now`: what would be asked in a while is asked with that.
    pub(crate) fn ride(&self, now: BootInstant) {
        self.strike(now, self.idleness.ping_every() / 2);
    }

    /// Returns for how long nothing has been said at `now` over a connection over which something else was said at `heard`.
    pub(crate) fn idle_at(&self, now: BootInstant, heard: Option<BootInstant>) -> Duration {
        let asked = *self.last.borrow();
        now.since(heard.map_or(asked, |heard| heard.max(asked)))
    }

    /// Has all asked, where it is `after` the last time.
    fn strike(&self, now: BootInstant, after: Duration) {
        if now.since(*self.last.borrow()) >= after {
            self.last.send_replace(now);
        }
    }
}

/// The beat as one connection feels it.
#[derive(Debug)]
pub(crate) struct Pulse(watch::Receiver<BootInstant>);

impl Pulse {
    /// Returns what comes before the next time to ask a connection that may be idle; else nothing.
    pub(crate) async fn before_a_ping<T>(&mut self, what: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            what = what => Some(what),
            Ok(()) = self.0.changed() => None,
        }
    }
}

/// Whether connections are ended because they are idle: by a server (`timeout` of redis.conf), or by a proxy.
///
/// A connection that may be idle is asked now and then whether what stands between still passes on what is said. Whether the other machine
/// is there finds the kernel, and wakes nobody for it (`dial`); but what the kernel asks counts for no server's or proxy's limit. Most
/// limits are a minute or more. Where two connections for the same use have been ended one after the other while they were idle, and the
/// server was there at once both times, there is a shorter one, and all are asked more often from then on. (A server that restarts is away
/// for a moment.)
#[derive(Debug, Default)]
pub(crate) struct Idleness {
    /// How many of each use were ended in a row.
    ended: [AtomicU32; 3],
    /// Whether there is a limit below the minute, as far as we know.
    is_limited: AtomicBool,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    Commands,
    Messages,
    Tracking,
}

impl Idleness {
    /// One for connections that are to be asked often in any case.
    pub(crate) fn limited() -> Self {
        Self { is_limited: AtomicBool::new(true), ..Self::default() }
    }

    /// Returns how often connections are to be asked.
    fn ping_every(&self) -> Duration {
        if self.is_limited.load(Ordering::Relaxed) { PING_OFTEN } else { PING_EVERY }
    }

    /// The other side has ended a connection over which nothing was said for so long.
    pub(crate) fn ended(&self, of: Use, idle: Duration) {
        let Some(ended) = self.ended.get(of as usize) else { return };
        if idle < PING_OFTEN {
            ended.store(0, Ordering::Relaxed);
        } else if ended.fetch_add(1, Ordering::Relaxed) > 0 {
            self.is_limited.store(true, Ordering::Relaxed);
        }
    }

    /// No connection could be had, or one was given up for another reason.
    pub(crate) fn failed(&self) {
        self.ended.iter().for_each(|ended| ended.store(0, Ordering::Relaxed));
    }
}

/// Below the minute after which many proxies end what is idle.
const PING_EVERY: Duration = Duration::from_secs(55);

/// Below the ten seconds that some set.
const PING_OFTEN: Duration = Duration::from_secs(9);

/// For how long a connection for messages, which has no limit for its answers, is waited for then.
pub(crate) const PONG_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Returns a beat that began at `begun`, and whether it strikes when it is asked to at another time.
    fn strikes(begun: BootInstant, at: Duration, ask: impl Fn(&Beat, BootInstant)) -> bool {
        let beat = Beat { idleness: Arc::new(Idleness::limited()), last: watch::Sender::new(begun) };
        let mut pulse = beat.pulse();
        ask(&beat, begun.plus(at));
        pulse.before_a_ping(std::future::pending::<()>()).now_or_never() == Some(None)
    }

    #[test]
    fn connections_are_pinged_with_what_the_process_is_awake_for_once_half_the_time_is_over() {
        let begun = boot_time();

        assert!(!strikes(begun, Duration::from_millis(4_499), Beat::ride));
        assert!(strikes(begun, PING_OFTEN / 2, Beat::ride));
    }

    #[tokio::test]
    async fn a_connection_is_pinged_by_the_time_though_nothing_wakes_the_process() {
        let early = BootInstant::from_nanos(boot_time().nanos() - 8_900_000_000);
        let beat = Beat { idleness: Arc::new(Idleness::limited()), last: watch::Sender::new(early) };
        let (mut pulse, mut later) = (beat.pulse(), beat.pulse());

        let pinged = async {
            tokio::select! {
                () = beat.keep() => {}
                nothing = pulse.before_a_ping(std::future::pending::<()>()) => assert_eq!(nothing, None),
            }
        };
        tokio::time::timeout(Duration::from_secs(5), pinged).await.expect("it is due in a tenth of a second");

        let since = beat.last.borrow().since(early);
        assert!(since >= PING_OFTEN && since < Duration::from_secs(10), "{since:?}");
        assert_eq!(later.before_a_ping(async { 7 }).await, Some(7), "one that speaks is heard");
        assert_eq!(later.before_a_ping(std::future::pending::<u32>()).await, None, "and asked all the same");
    }

    #[test]
    fn pings_become_frequent_once_two_idle_connections_were_ended_in_a_row() {
        let of = |happen: &[Option<u64>]| {
            let idleness = Idleness::default();
            for ended in happen {
                match ended {
                    Some(idle) => idleness.ended(Use::Messages, Duration::from_secs(*idle)),
                    None => idleness.failed(),
                }
            }
            idleness.ping_every()
        };

        assert_eq!(of(&[]), PING_EVERY);
        assert_eq!(of(&[Some(10)]), PING_EVERY, "a server may have been started anew");
        assert_eq!(of(&[Some(10), Some(10)]), PING_OFTEN);
        assert_eq!(of(&[Some(10), None, Some(10)]), PING_EVERY, "it was away in between");
        assert_eq!(of(&[Some(10), Some(8), Some(10)]), PING_EVERY, "it was not idle");
        assert_eq!(of(&[Some(10), Some(10), None, Some(1)]), PING_OFTEN, "what was found out is kept");

        let of_a_restart = Idleness::default();
        for of in [Use::Commands, Use::Messages, Use::Tracking] {
            of_a_restart.ended(of, Duration::from_secs(10));
        }
        assert_eq!(of_a_restart.ping_every(), PING_EVERY, "all have ended at once");
    }
}
