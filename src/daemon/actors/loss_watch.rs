//! Finds queues that have lost messages, if the broker's management API reports what queues hold
//! (docs/operations.md). Once the broker has confirmed a step's message, the message is in its
//! queue, waiting or with a worker, until the reply is in the reply queue: a worker replies before
//! it acknowledges. So at any moment the queue and the reply queue together hold at least as many
//! messages as there are steps that have waited since before that moment and still wait. If they
//! hold fewer, in each of several samples, messages are gone: deleted with their queue, purged,
//! rejected without a policy, or acknowledged without a reply. The broker's figures are seconds
//! old, and a reply may be under way. So only steps that have waited for the whole span count, and
//! no samples at its beginning or its end.

use super::bulk_requests::{BulkRedispatch, JOBS_AT_ONCE, QueueScan};
use super::bus_env::BusEnv;
use super::inputs::{BusInput, JobInput, RouterInput};
use super::losses::QueueLoss;
use base::clock;
use bus::{Address, BusKey, BusState, QueueDepth};
use engine::Definition;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};

/// How many samples are taken within the span after which messages count as lost (setting
/// `amqp.lost_after`).
const SAMPLES_PER_SPAN: u32 = 10;

/// The broker's figures may be this many samples old: that many at the beginning of the span do not
/// count.
const STALE_SAMPLES: u32 = 3;

/// A reply may be under way for this many samples: that many at the end of the span do not count.
const RECENT_SAMPLES: u32 = 1;

/// How many samples must count before a loss is reported.
const SAMPLES_MIN: usize = 3;

/// The reason for a redispatch, in the records of the jobs.
const REDISPATCH_REASON: &str = "their queue has lost messages (setting amqp.redispatch_lost)";

/// The longest pause between redispatches for a queue that loses messages again and again.
const REDISPATCH_PAUSE_MAX: Duration = Duration::from_secs(3600);

/// How the losses of a bus are found; from its settings.
pub(super) struct LossSettings {
    /// How long fewer messages than waiting steps must be seen until messages count as lost.
    pub(super) span: Duration,
    /// The queue of the replies.
    pub(super) reply_queue: String,
    /// Whether steps whose messages are lost are dispatched again.
    pub(super) redispatches: bool,
}

/// Samples the queues of a bus at intervals, until the bus is closed.
pub(super) async fn watch(env: Arc<BusEnv>, bus: BusKey, settings: LossSettings) {
    let span = settings.span;
    let mut watch = LossWatch::new(settings);
    let mut ticks = tokio::time::interval(span / SAMPLES_PER_SPAN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if watch.sample(&env, &bus).await.is_none() {
            return;
        }
    }
}

/// What the broker reported at one moment.
struct DepthSample {
    at: Instant,
    /// Messages in the reply queue.
    replies: u64,
    /// Messages by queue; `None`: the broker did not report the queue.
    depths: HashMap<String, Option<u64>>,
}

struct LossWatch {
    settings: LossSettings,
    samples: VecDeque<DepthSample>,
    /// The queues whose steps were dispatched again: when, and the pause before the next time.
    redispatched: BTreeMap<Arc<str>, (Instant, Duration)>,
}

impl LossWatch {
    fn new(settings: LossSettings) -> LossWatch {
        LossWatch { settings, samples: VecDeque::new(), redispatched: BTreeMap::new() }
    }

    /// Takes a sample and reports losses. `None`: the bus is closed.
    async fn sample(&mut self, env: &BusEnv, bus: &BusKey) -> Option<()> {
        let (answer, depths) = oneshot::channel();
        env.buses.find(bus)?.send(BusInput::Depths(answer));
        let depths = depths.await.ok()?;
        let now = clock::timer_now();
        let reads_replies = matches!(env.health.bus(bus), Some(BusState::Connected))
            && env.health.replies_unread_before(bus, self.settings.span).is_none();
        match depths {
            // After a time in which replies could not be taken, earlier samples are void.
            _ if !reads_replies || env.health.is_journal_waiting() => self.samples.clear(),
            Err(reason) => {
                if env.log_limiter.may_log("queue depths") {
                    tracing::warn!(
                        %bus,
                        reason,
                        "the broker does not tell what its queues hold (logged once a minute)"
                    );
                }
            }
            Ok(depths) => self.add_sample(now, depths),
        }
        // Counted at each sample, because a job measures a step's wait from the first scan that
        // found it waiting.
        let waiting = count_waiting(env, bus, self.settings.span).await?;
        let found = self.find_losses(clock::timer_now(), &waiting);
        for queue in env.queue_losses.replace(&env.metrics, bus, &found) {
            let Some(loss) = found.get(&queue) else { continue };
            let (waiting, held) = (loss.waiting, loss.messages);
            tracing::warn!(
                %bus, %queue, waiting, held,
                "the queue has lost messages: fewer than steps wait on it; \
                 `workflow-manager redispatch --queue` sends them again"
            );
        }
        if self.settings.redispatches {
            self.redispatch(env, bus, &found, now);
        }
        Some(())
    }

    fn add_sample(&mut self, now: Instant, depths: Vec<QueueDepth>) {
        let depths: HashMap<String, Option<u64>> =
            depths.into_iter().map(|depth| (depth.queue, depth.messages)).collect();
        // Without the number of replies a sample is of no use.
        let Some(Some(replies)) = depths.get(&self.settings.reply_queue).copied() else { return };
        self.samples.push_back(DepthSample { at: now, replies, depths });
        self.samples
            .retain(|sample| now.saturating_duration_since(sample.at) <= self.settings.span);
    }

    /// Finds the queues that have lost messages. In every sample that counts, such a queue and the
    /// reply queue together held fewer messages than there are steps that wait on the queue.
    fn find_losses(
        &self,
        now: Instant,
        waiting: &HashMap<Arc<str>, u64>,
    ) -> BTreeMap<Arc<str>, QueueLoss> {
        let (stale, recent) = (
            self.settings.span * STALE_SAMPLES / SAMPLES_PER_SPAN,
            self.settings.span * RECENT_SAMPLES / SAMPLES_PER_SPAN,
        );
        let is_counted = |sample: &&DepthSample| {
            let age = now.saturating_duration_since(sample.at);
            age + stale <= self.settings.span && age >= recent
        };
        let samples: Vec<&DepthSample> = self.samples.iter().filter(is_counted).collect();
        if samples.len() < SAMPLES_MIN {
            return BTreeMap::new();
        }
        // A queue that is not in the list does not exist.
        let depth_in = |queue: &str, sample: &DepthSample| {
            sample.depths.get(queue).copied().unwrap_or(Some(0)).map(|depth| depth + sample.replies)
        };
        let max_depth = |queue: &str| {
            samples
                .iter()
                .map(|sample| depth_in(queue, sample))
                .collect::<Option<Vec<u64>>>()?
                .into_iter()
                .max()
        };
        let losses = waiting.iter().filter_map(|(queue, waiting)| {
            let loss = QueueLoss { waiting: *waiting, messages: max_depth(queue)? };
            (loss.missing() > 0).then(|| (queue.clone(), loss))
        });
        losses.collect()
    }

    /// Dispatches the steps again that have waited for the whole span. If messages are lost over
    /// and over, the pauses grow.
    fn redispatch(
        &mut self,
        env: &BusEnv,
        bus: &BusKey,
        found: &BTreeMap<Arc<str>, QueueLoss>,
        now: Instant,
    ) {
        self.redispatched.retain(|queue, (at, pause)| {
            found.contains_key(queue) || now.saturating_duration_since(*at) < *pause * 2
        });
        for queue in found.keys() {
            let pause = match self.redispatched.get(queue) {
                None => self.settings.span,
                Some((at, pause)) if now.saturating_duration_since(*at) >= *pause => {
                    (*pause * 2).min(REDISPATCH_PAUSE_MAX)
                }
                Some(_) => continue,
            };
            self.redispatched.insert(queue.clone(), (now, pause));
            tracing::info!(
                %bus,
                %queue,
                "the steps that wait on the queue are dispatched again \
                 (setting amqp.redispatch_lost)"
            );
            let address = Address { bus: bus.clone(), queue: queue.clone() };
            let bulk = BulkRedispatch::new(address)
                .with_min_wait(self.settings.span)
                .with_reason(Some(REDISPATCH_REASON.into()), None);
            // Nobody waits for the end of it.
            env.router.send(RouterInput::Redispatch(Arc::new(bulk), oneshot::channel().0));
        }
    }
}

/// Counts how many steps have waited on each queue for a span; `None`: the manager is stopping.
async fn count_waiting(
    env: &BusEnv,
    bus: &BusKey,
    span: Duration,
) -> Option<HashMap<Arc<str>, u64>> {
    let (mut waiting, began) = (HashMap::<Arc<str>, u64>::new(), clock::timer_now());
    for chunk in env.routes.ids().chunks(JOBS_AT_ONCE) {
        let (answer, counted) = oneshot::channel();
        let scan = Arc::new(QueueScan::new(bus.clone(), span, answer));
        // A job that has stopped meanwhile waits for nothing.
        for job in chunk.iter().filter_map(|id| env.routes.find(*id)) {
            job.send(JobInput::CountWaiting(scan.clone()));
        }
        drop(scan);
        for (queue, count) in counted.await.ok()? {
            *waiting.entry(queue).or_default() += count;
        }
    }
    // What rests since then was asked, if it was there.
    env.routes.for_each_passivated_wait(|_, passivated_at, definition, wait| {
        let has_waited =
            wait.waiting_since.is_some_and(|seen| began.saturating_duration_since(seen) >= span);
        if passivated_at < began
            && has_waited
            && !Definition::is_call_queue(&wait.queue)
            && env.buses.resolve(wait.bus.as_ref(), &definition.vhost) == *bus
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
    fn watch_after(readings: &[(Option<u64>, u64)]) -> (LossWatch, Instant) {
        let settings =
            LossSettings { span: SPAN, reply_queue: "replies".to_owned(), redispatches: false };
        let mut watch = LossWatch::new(settings);
        let mut now = clock::timer_now();
        for (depth, replies) in readings {
            now += SPAN / SAMPLES_PER_SPAN;
            let depths = [("q", *depth), ("replies", Some(*replies))];
            watch.add_sample(
                now,
                depths
                    .map(|(queue, messages)| QueueDepth { queue: queue.to_owned(), messages })
                    .into(),
            );
        }
        (watch, now)
    }

    fn missing(readings: &[(Option<u64>, u64)], waiting: u64) -> Option<u64> {
        let (watch, now) = watch_after(readings);
        watch
            .find_losses(now, &HashMap::from([("q".into(), waiting)]))
            .get("q")
            .map(|loss| loss.missing())
    }

    #[test]
    fn a_queue_with_fewer_messages_than_waiting_steps_in_every_sample_has_lost_the_rest() {
        assert_eq!(missing(&[(Some(2), 0); 11], 5), Some(3));
        assert_eq!(missing(&[(Some(0), 0); 11], 1), Some(1));
        assert_eq!(missing(&[(Some(5), 0); 11], 5), None);
        assert_eq!(missing(&[(Some(9), 0); 11], 5), None, "others use the queue too");
    }

    #[test]
    fn one_sample_with_enough_messages_or_unread_replies_rules_out_a_loss() {
        let mut readings = [(Some(0), 0); 11];
        readings[4] = (Some(5), 0);
        assert_eq!(missing(&readings, 5), None, "the figures of one moment may be wrong");
        assert_eq!(
            missing(&[(Some(0), 5); 11], 5),
            None,
            "their replies may be in the reply queue"
        );
        assert_eq!(missing(&[(Some(0), 4); 11], 5), Some(1));
        readings[4] = (None, 0);
        assert_eq!(missing(&readings, 5), None, "the broker did not tell");
    }

    #[test]
    fn neither_old_nor_the_latest_samples_count_and_a_few_samples_are_not_enough() {
        let (few, most) = ((Some(0), 0), (Some(5), 0));
        assert_eq!(
            missing(&[most, most, most, few, few, few, few, few, few, few, most], 5),
            Some(5)
        );
        assert_eq!(missing(&[few, few, few], 5), None);
    }

    #[test]
    fn a_queue_that_is_not_there_holds_nothing() {
        let (watch, now) = watch_after(&[(Some(1), 0); 11]);
        assert_eq!(
            watch
                .find_losses(now, &HashMap::from([("gone".into(), 1)]))
                .get("gone")
                .map(|loss| loss.messages),
            Some(0)
        );
    }
}
