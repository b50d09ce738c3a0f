//! Batches under way, which are dealt with where their answers come in.
//!
//! ```text
//!  caller --first poll: queued for the connection--> connection --answers: its waker--> dealt with, by whoever polls the connection
//! ```
//!
//! No task lies in between, on either way: each would be a change of tasks, and on an idle machine one of threads. So what runs here runs
//! inside a waker, with nothing of ours locked but the connection, by whoever has its turn: on the connection's task, or in a call of
//! somebody who sends. Who sends to several servers may hear answers of one before the next has its request.
//!
//! Not here: what bytes go out and what the answers lead to (`batch`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::backend::redis::node::batch::{Answered, Batch, Timing};
use crate::clock::boot_time;
use crate::protocol::deadline::BootTime;
use crate::sync::lock;
use crate::telemetry;

/// One batch under way.
struct Exchange {
    /// How often it was woken since somebody began to look at it; 0 while nobody does.
    wakes: AtomicUsize,
    /// Whoever takes it deals with it: so it is dealt with once.
    under_way: Mutex<Option<(Batch, Answered)>>,
    is_over: AtomicBool,
    sent: BootTime,
}

impl Exchange {
    /// Looks whether the answers are there, unless somebody is about it, who looks again then.
    fn look(self: Arc<Self>) {
        let mut seen = 1;
        if self.wakes.fetch_add(seen, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        while seen > 0 {
            // Who polls the connection is foreign: it must not end by what happens here. The batch that is dropped then is answered.
            let looked = catch_unwind(AssertUnwindSafe(|| self.look_once(&mut Context::from_waker(&waker))));
            if looked.is_err() {
                self.abandon();
                telemetry::actor_failed(&"an answer could not be dealt with");
            }
            seen = self.wakes.fetch_sub(seen, Ordering::AcqRel) - seen;
        }
    }

    fn look_once(&self, cx: &mut Context<'_>) {
        let mut under_way = lock(&self.under_way);
        let Some((_, answered)) = &mut *under_way else { return };
        let Poll::Ready(answers) = answered.as_mut().poll(cx) else { return };
        let taken = under_way.take();
        drop(under_way); // dealt with, with nothing locked
        let Some((batch, answered)) = taken else { return };
        drop(answered);
        batch.exchanges().ended(self);
        if let Some(again) = batch.end(answers) {
            again.send();
        }
    }

    /// Drops it, which answers it.
    fn abandon(&self) {
        let taken = lock(&self.under_way).take();
        self.is_over.store(true, Ordering::Release);
        drop(taken); // with nothing locked
    }
}

impl Wake for Exchange {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

/// What is under way on the connections of a link.
#[derive(Default)]
pub(crate) struct Exchanges {
    state: Mutex<State>,
    /// Told that there is something to watch again, or nothing any more.
    more: Notify,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// In the order in which they were sent.
    under_way: VecDeque<Arc<Exchange>>,
    /// Those that are tasks.
    tasks: Vec<AbortHandle>,
    /// So many tasks are put up with before those that have ended are sorted out.
    most_tasks: usize,
    watch: Watch,
    /// How many requests of callers went together last: where they were several, others are likely to come.
    last: usize,
    /// When that was.
    sent: Option<BootTime>,
    /// Whether the last one came alone: nobody waits for it, and nothing was sent for a while before.
    is_alone: bool,
}

/// What he is about who looks for what is late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Watch {
    /// He has set his timer, and nothing was sent since.
    #[default]
    Idle,
    /// Something was.
    Used,
    /// He looks when he is told.
    Resting,
}

impl Exchanges {
    /// Sends a batch, and has it dealt with when it is answered; drops it where the link was given up.
    pub(crate) fn start(&self, batch: Batch) {
        let (sent, count) = (batch.sent(), batch.of_callers());
        let pump = batch.pump();
        let answered = batch.begin(Timing::OfTheLink);
        let exchange = Arc::new(Exchange {
            wakes: AtomicUsize::new(0),
            under_way: Mutex::new(Some((batch, answered))),
            is_over: AtomicBool::new(false),
            sent,
        });
        let mut state = lock(&self.state);
        if state.is_closed {
            drop(state);
            return exchange.abandon();
        }
        state.under_way.push_back(Arc::clone(&exchange));
        let rested = state.is_sent(sent, count);
        drop(state);
        if rested {
            self.more.notify_one();
        }
        match pump {
            Some(pump) => pump.send(|| exchange.look()),
            None => exchange.look(),
        }
    }

    /// Takes note of a task that ends with the link.
    pub(crate) fn adopt(&self, task: AbortHandle) {
        let mut state = lock(&self.state);
        if state.is_closed {
            drop(state);
            return task.abort();
        }
        state.tasks.push(task);
        if state.tasks.len() > state.most_tasks {
            state.tasks.retain(|task| !task.is_finished());
            state.most_tasks = FEW_TASKS.max(state.tasks.len() * 2);
        }
    }

    /// Returns whether nothing is under way, and nothing is likely to follow what is sent now.
    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.under_way.is_empty() && state.last < 2
    }

    /// The link is given up: what is under way is answered.
    pub(crate) fn close(&self) {
        let (under_way, tasks) = {
            let mut state = lock(&self.state);
            state.is_closed = true;
            (std::mem::take(&mut state.under_way), std::mem::take(&mut state.tasks))
        };
        for task in tasks {
            task.abort();
        }
        for exchange in under_way {
            exchange.abandon();
        }
    }

    /// Answers what is not answered in time, without end.
    pub(crate) async fn watch(&self, response_timeout: Duration) {
        loop {
            let more = self.more.notified();
            let (late, next) = lock(&self.state).late(boot_time(), response_timeout);
            for exchange in late {
                let taken = lock(&exchange.under_way).take();
                if let Some((batch, answered)) = taken {
                    drop(answered);
                    batch.give_up_waiting();
                }
            }
            match next {
                Some(wait) => tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = more => {}
                },
                None => more.await,
            }
        }
    }

    fn ended(&self, exchange: &Exchange) {
        exchange.is_over.store(true, Ordering::Release);
        let rests = lock(&self.state).is_answered();
        if rests {
            self.more.notify_one();
        }
    }
}

impl State {
    /// Forgets what is over, of those that were sent first.
    fn forget(&mut self) {
        while self.under_way.front().is_some_and(|first| first.is_over.load(Ordering::Acquire)) {
            self.under_way.pop_front();
        }
    }

    /// Something is sent, for so many callers. Returns whether who looks for what is late has to be told.
    fn is_sent(&mut self, sent: BootTime, callers: usize) -> bool {
        self.is_alone = callers == 0 && self.sent.is_none_or(|last| sent.since(last) > A_WHILE);
        (self.last, self.sent) = (callers, Some(sent));
        std::mem::replace(&mut self.watch, Watch::Used) == Watch::Resting
    }

    /// Something is answered. Returns whether who looks for what is late is told that there is nothing to look for: that was the renewal
    /// of a process which only holds, and his timer would wake it for nothing. What comes often leaves him his timer, as to set one costs
    /// more than the answer.
    fn is_answered(&mut self) -> bool {
        self.forget();
        let rests = self.under_way.is_empty() && self.is_alone && self.watch != Watch::Resting;
        if rests {
            self.watch = Watch::Idle;
        }
        rests
    }

    /// Takes out what is late at `now`, and returns in what time to look again: what is sent meanwhile is not late before. Where nothing
    /// is sent for that long, nobody looks.
    fn late(&mut self, now: BootTime, timeout: Duration) -> (Vec<Arc<Exchange>>, Option<Duration>) {
        let mut late = Vec::new();
        loop {
            self.forget();
            let Some(first) = self.under_way.front() else { break };
            let left = first.sent.plus(timeout).since(now);
            if !left.is_zero() {
                return (late, Some(left));
            }
            late.extend(self.under_way.pop_front());
        }
        let is_used = self.watch == Watch::Used && self.sent.is_some_and(|sent| now.since(sent) <= A_WHILE);
        self.watch = if is_used { Watch::Idle } else { Watch::Resting };
        (late, is_used.then_some(timeout))
    }
}

const FEW_TASKS: usize = 16;

/// After this what is sent comes alone.
const A_WHILE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::runtime::Builder;

    use super::*;
    use crate::backend::Request;
    use crate::backend::redis::node::batch::{Passage, Way};
    use crate::backend::redis::node::health::Link;
    use crate::backend::redis::node::link::Opened;
    use crate::backend::redis::node::rig::{Rig, acquire};
    use crate::backend::redis::servers::Traffic;
    use crate::protocol::command::Command;

    const LONG: Duration = Duration::from_secs(20);
    /// Long enough to connect in, where many tests share few cores.
    const SHORT: Duration = Duration::from_millis(300);

    fn ms(ms: u64) -> BootTime {
        BootTime::from_nanos(ms * 1_000_000)
    }

    fn of_state(sent: u64) -> Arc<Exchange> {
        let (wakes, under_way) = (AtomicUsize::new(0), Mutex::new(None));
        Arc::new(Exchange { wakes, under_way, is_over: AtomicBool::new(false), sent: ms(sent) })
    }

    #[test]
    fn who_watches_is_told_what_is_late_and_when_the_next_will_be() {
        let timeout = Duration::from_millis(100);
        let mut state = State { watch: Watch::Used, sent: Some(ms(100)), ..State::default() };
        state.under_way.extend([0, 10, 20].map(of_state));
        state.under_way[0].is_over.store(true, Ordering::Release);
        let mut late = |now| {
            let (late, next) = state.late(ms(now), timeout);
            (late.iter().map(|late| late.sent).collect::<Vec<_>>(), next)
        };

        assert_eq!(late(50), (vec![], Some(Duration::from_millis(60))), "the first one is over");
        assert_eq!(late(110), (vec![ms(10)], Some(Duration::from_millis(10))));
        assert_eq!(late(121), (vec![ms(20)], Some(timeout)), "what is sent meanwhile is not late before");
        assert_eq!(late(221), (vec![], None), "nothing was sent meanwhile");
        assert_eq!(state.watch, Watch::Resting);

        let mut silent = State { watch: Watch::Used, sent: Some(ms(100)), ..State::default() };
        let (_, next) = silent.late(ms(151), timeout);
        assert!(next.is_none() && silent.watch == Watch::Resting, "nothing was sent for a while");
    }

    #[test]
    fn who_watches_rests_after_what_came_alone_and_not_while_something_is_under_way() {
        let mut state = State { watch: Watch::Resting, ..State::default() };
        let mut sent = |at, callers| {
            let is_told = state.is_sent(ms(at), callers);
            state.under_way.push_back(of_state(at));
            assert!(!state.is_answered(), "something is under way");
            state.under_way.clear();
            (is_told, state.is_answered())
        };

        assert_eq!(sent(0, 0), (true, true), "he begins, and rests at the answer");
        assert_eq!(sent(51, 1), (false, false), "others are likely to come");
        assert_eq!(sent(101, 0), (false, false), "one came a moment before");
        assert_eq!(sent(152, 0), (false, true));

        let (late, next) = state.late(ms(153), LONG);
        assert!(late.is_empty() && next.is_none() && state.watch == Watch::Resting);
        assert!(!state.is_answered(), "he rests already");
    }

    #[tokio::test]
    async fn who_rests_after_a_renewal_watches_what_is_sent_next() {
        let rig = Rig::new(false, SHORT).await;
        let link = rig.node.link().expect("it is ready");
        let renewal = Request { command: Command::Renew { lease: LONG }, ..acquire("a") };

        rig.node.take(vec![renewal], Passage::default());
        rig.until_told(1).await;
        let rests = async {
            while lock(&link.exchanges.state).watch != Watch::Resting {
                tokio::task::yield_now().await;
            }
        };
        assert!(
            tokio::time::timeout(SHORT / 2, rests).await.is_ok(),
            "his timer would wake him after {SHORT:?}"
        );
        rig.hold();
        rig.node.take(vec![acquire("b")], Passage::default());

        assert!(tokio::time::timeout(SHORT * 40, rig.until_told(2)).await.is_ok());
        assert_eq!(rig.told().last(), Some(&("b".to_owned(), false)));
    }

    #[tokio::test]
    async fn what_is_not_answered_in_time_is_answered_once() {
        let mut rig = Rig::new(false, SHORT).await;
        rig.hold();

        rig.node.take(vec![acquire("a")], Passage::default());
        rig.until_told(1).await;
        rig.stop().await;

        assert_eq!(rig.told(), [("a".to_owned(), false)]);
    }

    #[tokio::test]
    async fn what_is_sent_after_an_idle_while_is_watched_as_well() {
        let rig = Rig::new(false, SHORT).await;
        rig.hold();
        let of_rig = rig.node.link().expect("it is ready");
        let (connection, untimed) = (of_rig.connection.clone(), of_rig.untimed.clone());
        let opened = Opened { connection, untimed, scripts: of_rig.scripts.clone(), pump: None };
        let link = Arc::new(Link::new(opened, Arc::clone(&of_rig.route), 1, None, None));
        let mut watch = Box::pin(link.exchanges.watch(SHORT));
        assert!((&mut watch).now_or_never().is_none() && lock(&link.exchanges.state).watch == Watch::Resting);

        Batch::new(&rig.node, &link, Way::Commands, [acquire("a")], Passage::default()).send();
        let told = async {
            tokio::select! {
                () = watch => {}
                () = rig.until_told(1) => {}
            }
        };

        assert!(tokio::time::timeout(SHORT * 40, told).await.is_ok());
        assert_eq!(rig.told(), [("a".to_owned(), false)]);
    }

    #[tokio::test]
    async fn what_is_under_way_is_answered_once_when_the_link_is_given_up_and_what_comes_after_at_once() {
        let mut rig = Rig::new(false, LONG).await;
        rig.hold();
        let link = rig.node.link().expect("it is ready");

        rig.node.take(vec![acquire("a")], Passage::default());
        rig.stop().await;
        Batch::new(&rig.node, &link, Way::Commands, [acquire("b")], Passage::default()).send();

        assert_eq!(rig.told(), [("a".to_owned(), false), ("b".to_owned(), false)]);
        assert!(lock(&link.exchanges.state).under_way.is_empty());
    }

    #[test]
    fn requests_leave_while_the_runtime_of_their_connection_stands_still() {
        let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        let of_connection = runtime();
        let mut rig = of_connection.block_on(Rig::new(false, LONG));

        for key in ["a", "b"] {
            rig.node.take(vec![acquire(key)], Passage::default());

            assert_eq!(runtime().block_on(rig.asked()), key);
        }
    }

    #[tokio::test]
    async fn who_is_told_an_answer_may_send_at_once() {
        let rig = Rig::new(false, LONG).await;
        let node = Arc::downgrade(&rig.node);
        rig.on_reply(move |key, _| {
            let next = key.parse::<u32>().expect("the keys are numbers") + 1;
            if let Some(node) = node.upgrade().filter(|_| next < 1_000) {
                node.take(vec![acquire(&next.to_string())], Passage::default());
            }
        });

        rig.node.take(vec![acquire("0")], Passage::default());
        rig.until_told(1_000).await;

        assert!(rig.told().iter().all(|(_, is_ours)| *is_ours));
    }

    #[tokio::test]
    async fn many_renewals_do_not_say_that_many_requests_are_likely_to_come() {
        let rig = Rig::new(false, LONG).await;
        let renewal = |key| Request { command: Command::Renew { lease: LONG }, ..acquire(key) };

        rig.node.take(vec![renewal("a"), renewal("b")], Passage::default());
        rig.until_told(2).await;
        assert_eq!(rig.node.traffic(), Traffic::Idle);

        rig.node.take(vec![acquire("a"), acquire("b")], Passage::default());
        rig.until_told(4).await;
        assert_eq!(rig.node.traffic(), Traffic::Busy);
    }

    #[tokio::test]
    async fn a_connection_outlives_a_panic_of_who_is_told() {
        let rig = Rig::new(false, LONG).await;
        rig.on_reply(|key, _| assert_ne!(key, "a", "this panic is part of the test"));

        rig.node.take(vec![acquire("a")], Passage::default());
        rig.node.take(vec![acquire("b")], Passage::default());
        rig.until_told(2).await;

        assert_eq!(rig.told(), [("a".to_owned(), true), ("b".to_owned(), true)]);
        assert_eq!(rig.node.traffic(), Traffic::Idle, "nothing is under way");
    }
}
