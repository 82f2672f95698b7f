//! Detects queues that have lost messages, if the broker's management API reports the depths of its
//! queues (docs/how-to/dead-letters-and-lost-messages.md).
//!
//! A confirmed message is in its queue, waiting or unacknowledged, until its reply is in the reply
//! queue, because a worker replies before it acknowledges. So at any moment, the queue and the
//! reply queue together hold at least as many messages as there are steps that wait both before and
//! after this moment. If they hold fewer messages in each of several samples, messages are lost:
//! deleted with their queue, purged, rejected without a dead-letter policy, or acknowledged without
//! a reply.
//!
//! The broker's figures are seconds old, and a reply can be in flight to the manager. So only steps
//! that have waited for the whole observation time are counted, and the samples at the beginning
//! and the end of this time are ignored.

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

/// How many samples are taken within the observation time (setting `amqp.lost_after`).
const SAMPLES_PER_OBSERVATION: u32 = 10;

/// How many samples at the beginning of the observation time are ignored. The broker's figures can
/// be as old as this many samples.
const STALE_SAMPLES: u32 = 3;

/// How many samples at the end of the observation time are ignored. A reply can be in flight for as
/// long as this many samples.
const RECENT_SAMPLES: u32 = 1;

/// How many samples must remain for a loss to be reported.
const SAMPLES_MIN: usize = 3;

/// The reason of a redispatch, in the records of the jobs.
const REDISPATCH_REASON: &str = "their queue has lost messages (setting amqp.redispatch_lost)";

/// The longest backoff between redispatches for a queue that loses messages repeatedly.
const REDISPATCH_BACKOFF_MAX: Duration = Duration::from_secs(3600);

/// The settings of the loss detection of a bus.
pub(super) struct LossSettings {
    /// The observation time: only steps that have waited this long are counted, and samples are
    /// kept this long.
    pub(super) lost_after: Duration,
    /// The reply queue of the bus.
    pub(super) reply_queue: String,
    /// Whether steps whose messages are lost are dispatched again.
    pub(super) must_redispatch: bool,
}

/// Samples the queues of a bus at intervals, until the bus is closed or the manager stops.
pub(super) async fn watch(env: Arc<BusEnv>, bus: BusKey, settings: LossSettings) {
    let interval = settings.lost_after / SAMPLES_PER_OBSERVATION;
    let mut watch = LossWatch::new(settings);
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if watch.sample(&env, &bus).await.is_none() {
            return;
        }
    }
}

/// The depths of the queues at one moment, as the broker reported them.
struct DepthSample {
    taken_at: Instant,
    /// The messages in the reply queue.
    replies: u64,
    /// The messages in each queue; `None`: the broker did not report the number.
    depths: HashMap<String, Option<u64>>,
}

struct LossWatch {
    settings: LossSettings,
    /// The samples of the observation time, the oldest first.
    samples: VecDeque<DepthSample>,
    /// The last redispatch for each queue that has lost messages.
    redispatches: BTreeMap<Arc<str>, Redispatch>,
}

/// A redispatch of the steps that wait on a queue.
struct Redispatch {
    at: Instant,
    /// The shortest time until the next redispatch for the queue.
    backoff: Duration,
}

impl LossWatch {
    fn new(settings: LossSettings) -> LossWatch {
        LossWatch { settings, samples: VecDeque::new(), redispatches: BTreeMap::new() }
    }

    /// Takes a sample, reports losses, and dispatches steps again. Returns `None` if the bus is
    /// closed or the manager is stopping.
    async fn sample(&mut self, env: &BusEnv, bus: &BusKey) -> Option<()> {
        let (sender, receiver) = oneshot::channel();
        env.buses.find(bus)?.send(BusInput::Depths(sender));
        let depths = receiver.await.ok()?;
        let now = clock::timer_now();
        let lost_after = self.settings.lost_after;
        let are_replies_read = matches!(env.health.bus(bus), Some(BusState::Connected { .. }))
            && env.health.replies_unread_before(bus, lost_after).is_none();
        match depths {
            // While replies are not read, the depths do not show a loss.
            _ if !are_replies_read || env.health.is_journal_waiting() => self.samples.clear(),
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
        // The steps are counted at each sample, because a step has waited since the first count
        // that has seen it.
        let waiting_by_queue = count_waiting(env, bus, lost_after).await?;
        let losses = self.find_losses(clock::timer_now(), &waiting_by_queue);
        for queue in env.queue_losses.replace(&env.metrics, bus, &losses) {
            let Some(loss) = losses.get(&queue) else { continue };
            let (waiting, held) = (loss.waiting, loss.messages);
            tracing::warn!(
                %bus, %queue, waiting, held,
                "the queue has lost messages: fewer than steps wait on it; \
                 `workflow-manager redispatch --queue` sends them again"
            );
        }
        if self.settings.must_redispatch {
            self.redispatch(env, bus, &losses, now);
        }
        Some(())
    }

    /// Adds a sample of the depths, and removes those that are older than the observation time.
    fn add_sample(&mut self, now: Instant, depths: Vec<QueueDepth>) {
        let depths: HashMap<String, Option<u64>> =
            depths.into_iter().map(|depth| (depth.queue, depth.messages)).collect();
        // A sample without the depth of the reply queue is unusable.
        let Some(Some(replies)) = depths.get(&self.settings.reply_queue).copied() else { return };
        self.samples.push_back(DepthSample { taken_at: now, replies, depths });
        let lost_after = self.settings.lost_after;
        self.samples.retain(|sample| now.saturating_duration_since(sample.taken_at) <= lost_after);
    }

    /// Finds the queues that have lost messages. `waiting_by_queue` is how many steps wait on each
    /// queue. In every sample that is not ignored, a queue with a loss and the reply queue together
    /// held fewer messages.
    fn find_losses(
        &self,
        now: Instant,
        waiting_by_queue: &HashMap<Arc<str>, u64>,
    ) -> BTreeMap<Arc<str>, QueueLoss> {
        let lost_after = self.settings.lost_after;
        let age_max = lost_after - lost_after * STALE_SAMPLES / SAMPLES_PER_OBSERVATION;
        let age_min = lost_after * RECENT_SAMPLES / SAMPLES_PER_OBSERVATION;
        let is_counted = |sample: &&DepthSample| {
            let age = now.saturating_duration_since(sample.taken_at);
            age <= age_max && age >= age_min
        };
        let samples: Vec<&DepthSample> = self.samples.iter().filter(is_counted).collect();
        if samples.len() < SAMPLES_MIN {
            return BTreeMap::new();
        }
        // The broker lists all queues: one that is not listed does not exist, and has no messages.
        let depth_in = |queue: &str, sample: &DepthSample| {
            sample.depths.get(queue).copied().unwrap_or(Some(0)).map(|depth| depth + sample.replies)
        };
        // `None`: a sample does not have the depth.
        let max_depth = |queue: &str| {
            samples
                .iter()
                .map(|sample| depth_in(queue, sample))
                .collect::<Option<Vec<u64>>>()?
                .into_iter()
                .max()
        };
        waiting_by_queue
            .iter()
            .filter_map(|(queue, waiting)| {
                let loss = QueueLoss { waiting: *waiting, messages: max_depth(queue)? };
                (loss.missing() > 0).then(|| (queue.clone(), loss))
            })
            .collect()
    }

    /// Dispatches again the steps that have waited for the whole observation time, with an
    /// exponential backoff for each queue.
    fn redispatch(
        &mut self,
        env: &BusEnv,
        bus: &BusKey,
        losses: &BTreeMap<Arc<str>, QueueLoss>,
        now: Instant,
    ) {
        // The backoff starts over for a queue without a loss whose last redispatch is at least
        // twice the backoff ago.
        self.redispatches.retain(|queue, last| {
            losses.contains_key(queue) || now.saturating_duration_since(last.at) < last.backoff * 2
        });
        for queue in losses.keys() {
            let backoff = match self.redispatches.get(queue) {
                None => self.settings.lost_after,
                Some(last) if now.saturating_duration_since(last.at) >= last.backoff => {
                    (last.backoff * 2).min(REDISPATCH_BACKOFF_MAX)
                }
                Some(_) => continue,
            };
            self.redispatches.insert(queue.clone(), Redispatch { at: now, backoff });
            tracing::info!(
                %bus,
                %queue,
                "the steps that wait on the queue are dispatched again \
                 (setting amqp.redispatch_lost)"
            );
            let address = Address { bus: bus.clone(), queue: queue.clone() };
            let bulk = BulkRedispatch::new(address)
                .with_min_wait(self.settings.lost_after)
                .with_reason(Some(REDISPATCH_REASON.into()), None);
            // The answer is not awaited.
            env.router.send(RouterInput::Redispatch(Arc::new(bulk), oneshot::channel().0));
        }
    }
}

/// Counts how many steps have waited on each queue for at least `min_wait`; `None`: the manager is
/// stopping.
async fn count_waiting(
    env: &BusEnv,
    bus: &BusKey,
    min_wait: Duration,
) -> Option<HashMap<Arc<str>, u64>> {
    let (mut waiting_by_queue, started) = (HashMap::<Arc<str>, u64>::new(), clock::timer_now());
    for chunk in env.routes.ids().chunks(JOBS_AT_ONCE) {
        let (sender, receiver) = oneshot::channel();
        let scan = Arc::new(QueueScan::new(bus.clone(), min_wait, sender));
        // A job without a route has stopped, or was passivated.
        for job in chunk.iter().filter_map(|id| env.routes.find(*id)) {
            job.send(JobInput::CountWaiting(scan.clone()));
        }
        drop(scan);
        for (queue, count) in receiver.await.ok()? {
            *waiting_by_queue.entry(queue).or_default() += count;
        }
    }
    // A job that was passivated after this function began may have been counted above, so it is
    // left out here.
    env.routes.for_each_passivated_wait(|_, passivated_at, definition, wait| {
        let has_waited = wait
            .waiting_since
            .is_some_and(|since| started.saturating_duration_since(since) >= min_wait);
        if passivated_at < started
            && has_waited
            && !Definition::is_workflow_queue(&wait.queue)
            && env.buses.resolve(wait.bus.as_ref(), &definition.vhost) == *bus
        {
            *waiting_by_queue.entry(wait.queue.clone()).or_default() += 1;
        }
    });
    Some(waiting_by_queue)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST_AFTER: Duration = Duration::from_secs(60);

    /// Returns a watch that has taken these samples, and the time of the last one. Each reading has
    /// the depths of the queue `q` and of the reply queue.
    fn watch_after(readings: &[(Option<u64>, u64)]) -> (LossWatch, Instant) {
        let settings = LossSettings {
            lost_after: LOST_AFTER,
            reply_queue: "replies".to_owned(),
            must_redispatch: false,
        };
        let mut watch = LossWatch::new(settings);
        let mut now = clock::timer_now();
        for (depth, replies) in readings {
            now += LOST_AFTER / SAMPLES_PER_OBSERVATION;
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
    fn a_queue_with_fewer_messages_than_waiting_steps_in_every_sample_has_lost_messages() {
        assert_eq!(missing(&[(Some(2), 0); 11], 5), Some(3));
        assert_eq!(missing(&[(Some(0), 0); 11], 1), Some(1));
        assert_eq!(missing(&[(Some(5), 0); 11], 5), None);
        assert_eq!(missing(&[(Some(9), 0); 11], 5), None, "other producers use the queue too");
    }

    #[test]
    fn one_sample_with_enough_messages_or_unread_replies_rules_out_a_loss() {
        let mut readings = [(Some(0), 0); 11];
        readings[4] = (Some(5), 0);
        assert_eq!(missing(&readings, 5), None, "one sample holds enough messages");
        assert_eq!(
            missing(&[(Some(0), 5); 11], 5),
            None,
            "their replies may be in the reply queue"
        );
        assert_eq!(missing(&[(Some(0), 4); 11], 5), Some(1));
        readings[4] = (None, 0);
        assert_eq!(missing(&readings, 5), None, "the broker did not report the depth");
    }

    #[test]
    fn the_oldest_and_the_latest_samples_are_ignored_and_a_few_samples_are_not_enough() {
        let (few, enough) = ((Some(0), 0), (Some(5), 0));
        assert_eq!(
            missing(&[enough, enough, enough, few, few, few, few, few, few, few, enough], 5),
            Some(5)
        );
        assert_eq!(missing(&[few, few, few], 5), None);
    }

    #[test]
    fn a_queue_that_does_not_exist_holds_no_messages() {
        let (watch, now) = watch_after(&[(Some(1), 0); 11]);
        assert_eq!(
            watch
                .find_losses(now, &HashMap::from([("absent".into(), 1)]))
                .get("absent")
                .map(|loss| loss.messages),
            Some(0)
        );
    }
}
