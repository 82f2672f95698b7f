//! Finds queues that have lost messages, if the broker's management API reports what queues hold
//! (docs/operations.md). Once the broker has confirmed a step's message, the message is in its
//! queue, waiting or with a worker, until the reply is in the reply queue: a worker replies before
//! it acknowledges. So at any moment the queue and the reply queue together hold at least as many
//! messages as there are steps that have waited since before that moment and still wait. If they
//! hold fewer, in each of several samples, messages are gone: deleted with their queue, purged,
//! rejected without a policy, or acknowledged without a reply. The broker's figures are seconds
//! old, and a reply may be under way. So only steps that have waited for the whole span count, and
//! no samples at its beginning or its end.

use super::bulk::{Bulk, Census, JOBS_AT_ONCE};
use super::losses::QueueLoss;
use super::mail::{BusInput, JobInput, RouterInput};
use super::ways::Ways;
use crate::bus::{Address, BusKey, BusState, QueueDepth};
use crate::clock;
use crate::engine::Definition;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};

/// How many samples are taken within the span after which messages count as lost (setting
/// `amqp.lost_after`).
const LOOKS: u32 = 10;

/// The broker's figures may be this many samples old: that many at the beginning of the span do not
/// count.
const STALE_LOOKS: u32 = 3;

/// A reply may be under way for this many samples: that many at the end of the span do not count.
const UNHEARD_LOOKS: u32 = 1;

/// How many samples must count before a loss is reported.
const AGREEING_MIN: usize = 3;

/// The reason for a redispatch, in the records of the jobs.
const LOST: &str = "their queue has lost messages (setting amqp.redispatch_lost)";

/// The longest pause between redispatches for a queue that loses messages again and again.
const RESEND_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Samples the queues of a bus at intervals, until the bus is closed.
pub(super) async fn watch(ways: Arc<Ways>, bus: BusKey) {
    let Some(span) = ways.common.settings.amqp_bus(&bus.bus).map(|amqp| amqp.lost_after.0) else {
        return;
    };
    let mut watch = LossWatch { span, looks: VecDeque::new(), resent: BTreeMap::new() };
    let mut ticks = tokio::time::interval(span / LOOKS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if watch.look(&ways, &bus).await.is_none() {
            return;
        }
    }
}

/// What the broker reported at one moment.
struct DepthsSeen {
    at: Instant,
    /// Messages in the reply queue.
    replies: u64,
    /// Messages by queue; `None`: the broker did not report the queue.
    depths: HashMap<String, Option<u64>>,
}

struct LossWatch {
    span: Duration,
    looks: VecDeque<DepthsSeen>,
    /// The queues whose steps were dispatched again: when, and the pause before the next time.
    resent: BTreeMap<Arc<str>, (Instant, Duration)>,
}

impl LossWatch {
    /// Takes a sample and reports losses. `None`: the bus is closed.
    async fn look(&mut self, ways: &Arc<Ways>, bus: &BusKey) -> Option<()> {
        let amqp = ways.common.settings.amqp_bus(&bus.bus)?;
        let (answer, depths) = oneshot::channel();
        ways.buses.find(bus)?.post(BusInput::Depths(answer));
        let depths = depths.await.ok()?;
        let now = clock::ticks();
        let hears = matches!(ways.common.health.bus(bus), Some(BusState::Connected))
            && ways.common.health.replies_unread_before(bus, self.span).is_none();
        match depths {
            // After a time in which replies could not be taken, earlier samples are void.
            _ if !hears || ways.common.health.is_journal_full() => self.looks.clear(),
            Err(reason) => {
                if ways.common.throttle.may_log("queue depths") {
                    tracing::warn!(
                        %bus,
                        reason,
                        "the broker does not tell what its queues hold (logged once a minute)"
                    );
                }
            }
            Ok(depths) => self.keep(now, depths, &amqp.reply_queue),
        }
        // Counted at each sample, because a job measures a step's wait from the first scan that
        // found it waiting.
        let waiting = waiting(ways, bus, self.span).await?;
        let found = self.losses(clock::ticks(), &waiting);
        for queue in ways.common.losses.replace(&ways.common.metrics, bus, &found) {
            let Some(loss) = found.get(&queue) else { continue };
            let (waiting, held) = (loss.waiting, loss.held);
            tracing::warn!(
                %bus, %queue, waiting, held,
                "the queue has lost messages: fewer than steps wait on it; \
                 `workflow-manager redispatch --queue` sends them again"
            );
        }
        if amqp.redispatch_lost {
            self.redispatch(ways, bus, &found, now);
        }
        Some(())
    }

    fn keep(&mut self, now: Instant, depths: Vec<QueueDepth>, reply_queue: &str) {
        let depths: HashMap<String, Option<u64>> =
            depths.into_iter().map(|depth| (depth.queue, depth.messages)).collect();
        // Without the number of replies a sample is of no use.
        let Some(Some(replies)) = depths.get(reply_queue).copied() else { return };
        self.looks.push_back(DepthsSeen { at: now, replies, depths });
        self.looks.retain(|look| now.saturating_duration_since(look.at) <= self.span);
    }

    /// Finds the queues that have lost messages. In every sample that counts, such a queue and the
    /// reply queue together held fewer messages than there are steps that wait on the queue.
    fn losses(
        &self,
        now: Instant,
        waiting: &HashMap<Arc<str>, u64>,
    ) -> BTreeMap<Arc<str>, QueueLoss> {
        let (stale, unheard) = (self.span * STALE_LOOKS / LOOKS, self.span * UNHEARD_LOOKS / LOOKS);
        let counts = |look: &&DepthsSeen| {
            let age = now.saturating_duration_since(look.at);
            age + stale <= self.span && age >= unheard
        };
        let looks: Vec<&DepthsSeen> = self.looks.iter().filter(counts).collect();
        if looks.len() < AGREEING_MIN {
            return BTreeMap::new();
        }
        // A queue that is not in the list does not exist.
        let held = |queue: &str, look: &DepthsSeen| {
            look.depths.get(queue).copied().unwrap_or(Some(0)).map(|depth| depth + look.replies)
        };
        let most = |queue: &str| {
            looks
                .iter()
                .map(|look| held(queue, look))
                .collect::<Option<Vec<u64>>>()?
                .into_iter()
                .max()
        };
        let losses = waiting.iter().filter_map(|(queue, waiting)| {
            let loss = QueueLoss { waiting: *waiting, held: most(queue)? };
            (loss.missing() > 0).then(|| (queue.clone(), loss))
        });
        losses.collect()
    }

    /// Dispatches the steps again that have waited for the whole span. If messages are lost over
    /// and over, the pauses grow.
    fn redispatch(
        &mut self,
        ways: &Ways,
        bus: &BusKey,
        found: &BTreeMap<Arc<str>, QueueLoss>,
        now: Instant,
    ) {
        self.resent.retain(|queue, (at, pause)| {
            found.contains_key(queue) || now.saturating_duration_since(*at) < *pause * 2
        });
        for queue in found.keys() {
            let pause = match self.resent.get(queue) {
                None => self.span,
                Some((at, pause)) if now.saturating_duration_since(*at) >= *pause => {
                    (*pause * 2).min(RESEND_PAUSE_MAX)
                }
                Some(_) => continue,
            };
            self.resent.insert(queue.clone(), (now, pause));
            tracing::info!(
                %bus,
                %queue,
                "the steps that wait on the queue are dispatched again \
                 (setting amqp.redispatch_lost)"
            );
            let address = Address { bus: bus.clone(), queue: queue.clone() };
            let bulk =
                Bulk::new(address).of_those_waiting(self.span).asked(Some(LOST.into()), None);
            // Nobody waits for the end of it.
            ways.mailboxes()
                .router
                .post(RouterInput::Redispatch(Arc::new(bulk), oneshot::channel().0));
        }
    }
}

/// Counts how many steps have waited on each queue for a span; `None`: the manager is stopping.
async fn waiting(ways: &Ways, bus: &BusKey, span: Duration) -> Option<HashMap<Arc<str>, u64>> {
    let (mut waiting, began) = (HashMap::<Arc<str>, u64>::new(), clock::ticks());
    for some in ways.routes.ids().chunks(JOBS_AT_ONCE) {
        let (answer, counted) = oneshot::channel();
        let census = Arc::new(Census::new(bus.clone(), span, answer));
        // A job that has stopped meanwhile waits for nothing.
        for job in some.iter().filter_map(|id| ways.routes.find(*id)) {
            job.post(JobInput::Count(census.clone()));
        }
        drop(census);
        for (queue, count) in counted.await.ok()? {
            *waiting.entry(queue).or_default() += count;
        }
    }
    // What rests since then was asked, if it was there.
    ways.routes.waits_at_rest(|_, rests_since, definition, wait| {
        let has_waited =
            wait.seen.is_some_and(|seen| began.saturating_duration_since(seen) >= span);
        let is_call = wait.queue.starts_with(Definition::CALL_QUEUE_PREFIX);
        if rests_since < began
            && has_waited
            && !is_call
            && ways.buses.named(wait.bus.as_ref(), &definition.vhost) == *bus
        {
            *waiting.entry(wait.queue.clone()).or_default() += 1;
        }
    });
    Some(waiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(60);

    /// Takes samples one after another, the last one now: what the queue `q` and the reply queue
    /// held.
    fn after(looks: &[(Option<u64>, u64)]) -> (LossWatch, Instant) {
        let mut watch = LossWatch { span: SPAN, looks: VecDeque::new(), resent: BTreeMap::new() };
        let mut now = clock::ticks();
        for (depth, replies) in looks {
            now += SPAN / LOOKS;
            let depths = [("q", *depth), ("replies", Some(*replies))];
            watch.keep(
                now,
                depths
                    .map(|(queue, messages)| QueueDepth { queue: queue.to_owned(), messages })
                    .into(),
                "replies",
            );
        }
        (watch, now)
    }

    fn missing(looks: &[(Option<u64>, u64)], waiting: u64) -> Option<u64> {
        let (watch, now) = after(looks);
        watch
            .losses(now, &HashMap::from([("q".into(), waiting)]))
            .get("q")
            .map(|loss| loss.missing())
    }

    #[test]
    fn a_queue_that_held_less_than_waits_on_it_at_every_look_has_lost_the_rest() {
        assert_eq!(missing(&[(Some(2), 0); 11], 5), Some(3));
        assert_eq!(missing(&[(Some(0), 0); 11], 1), Some(1));
        assert_eq!(missing(&[(Some(5), 0); 11], 5), None);
        assert_eq!(missing(&[(Some(9), 0); 11], 5), None, "others use the queue too");
    }

    #[test]
    fn one_look_that_found_enough_or_replies_that_lie_unheard_say_that_nothing_is_lost() {
        let mut looks = [(Some(0), 0); 11];
        looks[4] = (Some(5), 0);
        assert_eq!(missing(&looks, 5), None, "the figures of one moment may be wrong");
        assert_eq!(
            missing(&[(Some(0), 5); 11], 5),
            None,
            "their replies may be in the reply queue"
        );
        assert_eq!(missing(&[(Some(0), 4); 11], 5), Some(1));
        looks[4] = (None, 0);
        assert_eq!(missing(&looks, 5), None, "the broker did not tell");
    }

    #[test]
    fn neither_old_figures_nor_the_latest_count_and_a_few_looks_say_nothing() {
        let (few, most) = ((Some(0), 0), (Some(5), 0));
        assert_eq!(
            missing(&[most, most, most, few, few, few, few, few, few, few, most], 5),
            Some(5)
        );
        assert_eq!(missing(&[few, few, few], 5), None);
    }

    #[test]
    fn a_queue_that_is_not_there_holds_nothing() {
        let (watch, now) = after(&[(Some(1), 0); 11]);
        assert_eq!(
            watch
                .losses(now, &HashMap::from([("gone".into(), 1)]))
                .get("gone")
                .map(|loss| loss.held),
            Some(0)
        );
    }
}
