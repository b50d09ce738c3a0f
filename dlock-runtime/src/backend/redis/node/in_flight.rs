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
//! Not here: in which order they are dealt with (`line`), what bytes go out and what the answers lead to (`batch`).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::backend::redis::node::completion_queue::{CompletionQueue, InFlightBatch};
use crate::backend::redis::node::health::NodeConnection;
use crate::backend::redis::node::pipeline::{PipelineBatch, TimeoutSource};
use crate::clock::boot_time;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

/// What is under way on the connections of a link.
#[derive(Default)]
pub(crate) struct InFlight {
    state: Mutex<BatchTimeoutState>,
    /// Told that there is something to watch again, or nothing any more.
    more: Notify,
}

#[derive(Default)]
struct BatchTimeoutState {
    is_closed: bool,
    /// Over the connection for commands.
    commands: CompletionQueue,
    /// Over the one that tells of changes.
    tracked: CompletionQueue,
    /// Those that are tasks.
    tasks: Vec<AbortHandle>,
    /// So many tasks are put up with before those that have ended are sorted out.
    most_tasks: usize,
    watch: TimeoutWatch,
    /// How many requests of callers went together last: where they were several, others are likely to come.
    last: usize,
    /// When that was.
    sent: Option<BootInstant>,
    /// When the last one that went over the connection for commands was.
    commands_sent: Option<BootInstant>,
    /// Whether the last one came alone: nobody waits for it, and nothing was sent for a while before.
    is_alone: bool,
}

/// What he is about who looks for what is late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum TimeoutWatch {
    /// He has set his timer, and nothing was sent since.
    #[default]
    Idle,
    /// Something was.
    Used,
    /// He looks when he is told.
    Resting,
}

impl InFlight {
    /// Sends a batch, and has it dealt with when it is answered; drops it where the link was given up.
    pub(crate) fn start(&self, batch: PipelineBatch) {
        let (link, is_tracked, count) =
            (Arc::downgrade(batch.link()), batch.is_tracked(), batch.of_callers());
        let pump = batch.pump();
        let answered = batch.begin(TimeoutSource::OfTheLink);
        let exchange = Arc::new(InFlightBatch::new(link, is_tracked, batch, answered));
        let mut state = lock(&self.state);
        if state.is_closed {
            drop(state);
            return exchange.abandon_unsent();
        }
        state.line(is_tracked).push(Arc::clone(&exchange));
        if !is_tracked {
            state.commands_sent = Some(exchange.sent);
        }
        let rested = state.is_sent(exchange.sent, count);
        drop(state);
        match pump {
            Some(pump) => pump.send(|| exchange.look()),
            None => exchange.look(),
        }
        // Once it is written: on a machine that idles he may run in place of the server.
        if rested && lock(&self.state).is_to_be_watched() {
            self.more.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn push(&self, exchange: &Arc<InFlightBatch>) {
        lock(&self.state).commands.push(Arc::clone(exchange));
    }

    /// Drops `what` when all is dealt with that is under way on the connection for commands.
    pub(crate) fn drop_behind(&self, link: &Arc<NodeConnection>, what: Box<dyn Send>) {
        let last = Arc::new(InFlightBatch::over(Arc::downgrade(link), boot_time(), what));
        lock(&self.state).commands.push(last);
        self.deal(false);
    }

    /// Deals with what is next on a connection, one after the other while they are over; unless somebody is about it, who looks again.
    pub(super) fn deal(&self, is_tracked: bool) {
        let mut count = 0;
        loop {
            let mut state = lock(&self.state);
            if count == IN_ONE_GO && !state.is_closed {
                state.line(is_tracked).leave();
                return self.more.notify_one(); // it may be a task that has its own work to do
            }
            let Some(next) = state.line(is_tracked).next(count > 0) else { return };
            let rests = state.is_answered();
            drop(state);
            if rests {
                self.more.notify_one();
            }
            next.deal(); // with nothing locked
            count += 1;
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

    /// Returns when something was sent last over the connection for commands.
    pub(crate) fn commands_sent(&self) -> Option<BootInstant> {
        lock(&self.state).commands_sent
    }

    /// Returns whether something is under way on the connection for commands.
    pub(crate) fn has_commands(&self) -> bool {
        !lock(&self.state).commands.is_empty()
    }

    /// Returns whether nothing is under way, and nothing is likely to follow what is sent now.
    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.is_empty() && state.last < 2
    }

    /// The link is given up: what is under way is answered.
    pub(crate) fn close(&self) {
        let (under_way, tasks) = {
            let mut state = lock(&self.state);
            state.is_closed = true;
            (state.all().cloned().collect::<Vec<_>>(), std::mem::take(&mut state.tasks))
        };
        for task in tasks {
            task.abort();
        }
        for exchange in under_way {
            exchange.abandon();
        }
        self.deal_with_both();
    }

    /// ReplySink what is not answered in time, and deals with what others have left, without end.
    pub(crate) async fn watch(&self, response_timeout: Duration) {
        loop {
            let more = self.more.notified();
            let (late, next) = lock(&self.state).late(boot_time(), response_timeout);
            for exchange in late {
                exchange.is_late();
            }
            self.deal_with_both();
            match next {
                Some(wait) => tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = more => {}
                },
                None => more.await,
            }
        }
    }

    fn deal_with_both(&self) {
        self.deal(false);
        self.deal(true);
    }
}

impl BatchTimeoutState {
    fn line(&mut self, is_tracked: bool) -> &mut CompletionQueue {
        if is_tracked { &mut self.tracked } else { &mut self.commands }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<InFlightBatch>> {
        self.commands.iter().chain(self.tracked.iter())
    }

    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.tracked.is_empty()
    }

    /// Something is sent, for so many callers. Returns whether who looks for what is late rests.
    fn is_sent(&mut self, sent: BootInstant, callers: usize) -> bool {
        self.is_alone = callers == 0 && self.sent.is_none_or(|last| sent.since(last) > A_WHILE);
        (self.last, self.sent) = (callers, Some(sent));
        let rests = self.watch == TimeoutWatch::Resting;
        if !rests {
            self.watch = TimeoutWatch::Used;
        }
        rests
    }

    /// Something has been sent while he rested. Returns whether he has to be told: not where he has been, or it is answered.
    fn is_to_be_watched(&mut self) -> bool {
        let is_told = self.watch == TimeoutWatch::Resting && !self.is_empty();
        if is_told {
            self.watch = TimeoutWatch::Used;
        }
        is_told
    }

    /// Something is answered. Returns whether who looks for what is late is told that there is nothing to look for: that was the renewal
    /// of a process which only holds, and his timer would wake it for nothing. What comes often leaves him his timer, as to set one costs
    /// more than the answer.
    fn is_answered(&mut self) -> bool {
        let rests = self.is_empty() && self.is_alone && self.watch != TimeoutWatch::Resting;
        if rests {
            self.watch = TimeoutWatch::Idle;
        }
        rests
    }

    /// Returns what is late at `now`, and in what time to look again: what is sent meanwhile is not late before. Where nothing is sent for
    /// that long, nobody looks.
    fn late(&mut self, now: BootInstant, timeout: Duration) -> (Vec<Arc<InFlightBatch>>, Option<Duration>) {
        let (mut late, mut next) = (Vec::new(), None);
        for line in [&self.commands, &self.tracked] {
            for exchange in line.iter().filter(|exchange| !exchange.is_over()) {
                let left = exchange.sent.plus(timeout).since(now);
                if !left.is_zero() {
                    next = Some(next.map_or(left, |next: Duration| next.min(left)));
                    break;
                }
                late.push(Arc::clone(exchange));
            }
        }
        if next.is_some() {
            return (late, next);
        }
        let is_used =
            self.watch == TimeoutWatch::Used && self.sent.is_some_and(|sent| now.since(sent) <= A_WHILE);
        self.watch = if is_used { TimeoutWatch::Idle } else { TimeoutWatch::Resting };
        (late, is_used.then_some(timeout))
    }
}

/// How many are dealt with before it is left to who watches.
pub(super) const IN_ONE_GO: usize = 16;

const FEW_TASKS: usize = 16;

/// After this what is sent comes alone, and has who looks for what is late woken. What comes more often, such as the turns of a process that
/// shares a lock with a dozen others, leaves him his timer.
const A_WHILE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::runtime::Builder;

    use super::*;
    use crate::backend::Request;
    use crate::backend::redis::node::connect::NewConnection;
    use crate::backend::redis::node::health::NodeConnection;
    use crate::backend::redis::node::keepalive::Beat;
    use crate::backend::redis::node::pipeline::{RouteHistory, Way};
    use crate::backend::redis::node::test_node::{TestNode, acquire};
    use crate::backend::redis::topology::LoadHint;
    use crate::protocol::command::Command;

    const LONG: Duration = Duration::from_secs(20);
    /// Long enough to connect in, where many tests share few cores.
    const SHORT: Duration = Duration::from_millis(300);

    fn ms(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    fn of_state(sent: u64) -> Arc<InFlightBatch> {
        Arc::new(InFlightBatch::empty(ms(sent)))
    }

    #[test]
    fn who_watches_is_told_what_is_late_and_when_the_next_will_be() {
        let timeout = Duration::from_millis(100);
        let mut state = BatchTimeoutState {
            watch: TimeoutWatch::Used,
            sent: Some(ms(100)),
            ..BatchTimeoutState::default()
        };
        let sent = [0, 10, 20].map(of_state);
        sent[0].abandon();
        for sent in sent {
            state.commands.push(sent);
        }
        let mut late = |now| {
            let (late, next) = state.late(ms(now), timeout);
            for late in &late {
                late.is_late();
            }
            (late.iter().map(|late| late.sent).collect::<Vec<_>>(), next)
        };

        assert_eq!(late(50), (vec![], Some(Duration::from_millis(60))), "the first one is over");
        assert_eq!(late(110), (vec![ms(10)], Some(Duration::from_millis(10))));
        assert_eq!(late(121), (vec![ms(20)], Some(timeout)), "what is sent meanwhile is not late before");
        assert_eq!(late(221), (vec![], None), "nothing was sent meanwhile");
        assert_eq!(state.watch, TimeoutWatch::Resting);

        let mut silent = BatchTimeoutState {
            watch: TimeoutWatch::Used,
            sent: Some(ms(100)),
            ..BatchTimeoutState::default()
        };
        let (_, next) = silent.late(ms(351), timeout);
        assert!(next.is_none() && silent.watch == TimeoutWatch::Resting, "nothing was sent for a while");
    }

    #[test]
    fn who_watches_rests_after_what_came_alone_and_not_while_something_is_under_way() {
        let mut state = BatchTimeoutState { watch: TimeoutWatch::Resting, ..BatchTimeoutState::default() };
        let mut sent = |at, callers| {
            let rests = state.is_sent(ms(at), callers);
            state.commands.push(of_state(at));
            let is_told = state.is_to_be_watched();
            assert_eq!(is_told, rests);
            assert!(!state.is_to_be_watched(), "he has been told, or keeps his timer");
            assert!(!state.is_answered(), "something is under way");
            state.commands = CompletionQueue::default();
            (is_told, state.is_answered())
        };

        assert_eq!(sent(0, 0), (true, true), "he begins, and rests at the answer");
        assert_eq!(sent(251, 1), (false, false), "others are likely to come");
        assert_eq!(sent(501, 0), (false, false), "one came a moment before");
        assert_eq!(sent(752, 0), (false, true));

        let (late, next) = state.late(ms(753), LONG);
        assert!(late.is_empty() && next.is_none() && state.watch == TimeoutWatch::Resting);
        assert!(!state.is_answered(), "he rests already");

        assert!(state.is_sent(ms(1_003), 1));
        assert!(!state.is_to_be_watched() && state.watch == TimeoutWatch::Resting, "it was answered at once");
    }

    #[tokio::test]
    async fn who_rests_after_a_renewal_watches_what_is_sent_next() {
        let rig = TestNode::new(SHORT).await;
        let link = rig.node.link().expect("it is ready");
        let renewal = Request { command: Command::Renew { lease: LONG }, ..acquire("a") };

        rig.node.take(vec![renewal], RouteHistory::default());
        rig.until_told(1).await;
        let rests = async {
            while lock(&link.exchanges.state).watch != TimeoutWatch::Resting {
                tokio::task::yield_now().await;
            }
        };
        assert!(
            tokio::time::timeout(SHORT / 2, rests).await.is_ok(),
            "his timer would wake him after {SHORT:?}"
        );
        rig.hold();
        rig.node.take(vec![acquire("b")], RouteHistory::default());

        assert!(tokio::time::timeout(SHORT * 40, rig.until_told(2)).await.is_ok());
        assert_eq!(rig.told().last(), Some(&("b".to_owned(), false)));
    }

    #[tokio::test]
    async fn what_is_not_answered_in_time_is_answered_once() {
        let mut rig = TestNode::new(SHORT).await;
        rig.hold();

        rig.node.take(vec![acquire("a")], RouteHistory::default());
        rig.until_told(1).await;
        rig.stop().await;

        assert_eq!(rig.told(), [("a".to_owned(), false)]);
    }

    #[tokio::test]
    async fn what_is_sent_after_an_idle_while_is_watched_as_well() {
        let rig = TestNode::new(SHORT).await;
        rig.hold();
        let of_rig = rig.node.link().expect("it is ready");
        let (connection, untimed) = (of_rig.connection.clone(), of_rig.untimed.clone());
        let opened = NewConnection { connection, untimed, scripts: of_rig.scripts.clone(), pump: None };
        let link = Arc::new(NodeConnection::new(
            opened,
            Arc::clone(&of_rig.route),
            1,
            None,
            None,
            Beat::new(&Arc::default()),
        ));
        let mut watch = Box::pin(link.exchanges.watch(SHORT));
        assert!(
            (&mut watch).now_or_never().is_none()
                && lock(&link.exchanges.state).watch == TimeoutWatch::Resting
        );

        PipelineBatch::new(&rig.node, &link, Way::Commands, [acquire("a")], RouteHistory::default()).send();
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
        let mut rig = TestNode::new(LONG).await;
        rig.hold();
        let link = rig.node.link().expect("it is ready");

        rig.node.take(vec![acquire("a")], RouteHistory::default());
        rig.stop().await;
        PipelineBatch::new(&rig.node, &link, Way::Commands, [acquire("b")], RouteHistory::default()).send();

        assert_eq!(rig.told(), [("a".to_owned(), false), ("b".to_owned(), false)]);
        assert!(lock(&link.exchanges.state).is_empty());
    }

    #[test]
    fn requests_leave_while_the_runtime_of_their_connection_stands_still() {
        let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        let of_connection = runtime();
        let mut rig = of_connection.block_on(TestNode::new(LONG));

        for key in ["a", "b"] {
            rig.node.take(vec![acquire(key)], RouteHistory::default());

            assert_eq!(runtime().block_on(rig.asked()), key);
        }
    }

    #[tokio::test]
    async fn who_is_told_an_answer_may_send_at_once() {
        let rig = TestNode::new(LONG).await;
        let node = Arc::downgrade(&rig.node);
        rig.on_reply(move |key, _| {
            let next = key.parse::<u32>().expect("the keys are numbers") + 1;
            if let Some(node) = node.upgrade().filter(|_| next < 1_000) {
                node.take(vec![acquire(&next.to_string())], RouteHistory::default());
            }
        });

        rig.node.take(vec![acquire("0")], RouteHistory::default());
        rig.until_told(1_000).await;

        assert!(rig.told().iter().all(|(_, is_ours)| *is_ours));
    }

    #[tokio::test]
    async fn many_renewals_do_not_say_that_many_requests_are_likely_to_come() {
        let rig = TestNode::new(LONG).await;
        let renewal = |key| Request { command: Command::Renew { lease: LONG }, ..acquire(key) };

        rig.node.take(vec![renewal("a"), renewal("b")], RouteHistory::default());
        rig.until_told(2).await;
        assert_eq!(rig.node.traffic(), LoadHint::Idle);

        rig.node.take(vec![acquire("a"), acquire("b")], RouteHistory::default());
        rig.until_told(4).await;
        assert_eq!(rig.node.traffic(), LoadHint::Busy);
    }

    #[tokio::test]
    async fn a_connection_outlives_a_panic_of_who_is_told() {
        let rig = TestNode::new(LONG).await;
        rig.on_reply(|key, _| assert_ne!(key, "a", "this panic is part of the test"));

        rig.node.take(vec![acquire("a")], RouteHistory::default());
        rig.node.take(vec![acquire("b")], RouteHistory::default());
        rig.until_told(2).await;

        assert_eq!(rig.told(), [("a".to_owned(), true), ("b".to_owned(), true)]);
        assert_eq!(rig.node.traffic(), LoadHint::Idle, "nothing is under way");
    }
}
