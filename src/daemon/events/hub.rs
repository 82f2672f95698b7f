//! Broadcasts events to the open event streams. The notifier publishes, and the API's streams
//! subscribe.
//!
//! One ring buffer holds the newest events for all subscribers, so memory is bounded whatever their
//! number and speed. A subscriber that falls behind gets the number of events that it has missed.

use super::event::{Event, Subject};
use engine::JobId;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The capacity of the ring, in bytes of event bodies. A single larger event is still held.
const RING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The size at which a batch is full, in bytes of event bodies. Its last event may exceed it.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// The events that a subscriber receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventFilter {
    /// Events of all jobs.
    All {
        /// Only events of this workflow; `None` for all workflows.
        workflow: Option<String>,
        /// Only events of jobs, or only events of steps; `None` for both.
        subject: Option<Subject>,
    },
    /// Events of a job and of jobs below it: of the whole job tree for a root job, and of the
    /// direct child jobs for any other job.
    JobTree(JobId),
    /// Events of the job alone, without its child jobs.
    JobOnly(JobId),
    /// Events of the job alone, and notifications about changed counts of its child jobs.
    JobWithCounts(JobId),
}

impl EventFilter {
    /// Returns whether subscribers with this filter receive an event.
    fn matches(&self, event: &Event) -> bool {
        match self {
            EventFilter::All { workflow, subject } => {
                workflow.as_ref().is_none_or(|workflow| **workflow == *event.workflow)
                    && subject.is_none_or(|subject| subject == event.subject)
            }
            EventFilter::JobTree(id) => {
                event.job == *id || event.root == *id || event.parent == Some(*id)
            }
            EventFilter::JobOnly(id) | EventFilter::JobWithCounts(id) => event.job == *id,
        }
    }
}

/// Publishes events to all subscribers.
#[derive(Default)]
pub struct EventHub {
    state: Arc<EventHubState>,
}

/// What the hub shares with its subscriptions. The counts are atomics, so that a job takes no lock
/// while nobody subscribes. They change only while the ring is locked.
#[derive(Default)]
struct EventHubState {
    ring: Mutex<Ring>,
    /// The number of subscribers to all jobs.
    all_jobs_subscribers: AtomicUsize,
    /// The number of subscribers to one job or job tree.
    single_job_subscribers: AtomicUsize,
    /// The number of subscribers to the counts of child jobs.
    counts_subscribers: AtomicUsize,
    /// How many events did not reach the ring, and were not yet reported as missed.
    lost_count: AtomicU64,
}

/// The newest events, and the subscribers.
#[derive(Default)]
struct Ring {
    /// The events, oldest first.
    events: VecDeque<Arc<Event>>,
    /// The number of the oldest event in the ring. Events are numbered in the order of publication.
    first_number: u64,
    /// The total size of the event bodies.
    bytes: usize,
    /// The subscribers to all jobs.
    all_jobs: Vec<Arc<Subscriber>>,
    /// The subscribers to a job and the jobs below it, by the id of that job.
    by_job_tree: HashMap<JobId, Vec<Arc<Subscriber>>>,
    /// The subscribers to a job alone, with or without counts of its child jobs.
    by_job: HashMap<JobId, Vec<Arc<Subscriber>>>,
    is_closed: bool,
}

/// What the hub knows of one subscription.
struct Subscriber {
    filter: EventFilter,
    /// How many events that match the filter were published since the subscription was opened,
    /// including lost events, which may have matched.
    matched_count: AtomicU64,
    /// Wakes the subscriber when events have arrived or the hub is closed.
    wake: Notify,
    /// Wakes the subscriber when the counts of child jobs may have changed.
    counts_changed: Notify,
}

/// The next events of a subscription.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// How many events the subscriber has missed before these: an upper bound, since lost events
    /// are counted for every subscriber.
    pub missed: u64,
    /// The next events, in order.
    pub events: Vec<Arc<Event>>,
}

/// A subscription: receives the matching events that are published after it was opened.
pub struct Subscription {
    state: Arc<EventHubState>,
    subscriber: Arc<Subscriber>,
    /// The number of the next event to examine.
    cursor: u64,
    /// How many matching events were delivered or reported as missed.
    accounted_count: u64,
}

impl EventHubState {
    fn lock_ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventHub {
    /// Opens a subscription. Returns `None` if `subscribers_max` are already open.
    pub fn subscribe(&self, filter: EventFilter, subscribers_max: usize) -> Option<Subscription> {
        let mut ring = self.state.lock_ring();
        if self.subscriber_count() >= subscribers_max {
            return None;
        }
        let subscriber = Arc::new(Subscriber {
            filter,
            matched_count: AtomicU64::new(0),
            wake: Notify::new(),
            counts_changed: Notify::new(),
        });
        match subscriber.filter {
            EventFilter::All { .. } => {
                ring.all_jobs.push(subscriber.clone());
                self.state.all_jobs_subscribers.fetch_add(1, Ordering::SeqCst);
            }
            EventFilter::JobTree(id) => {
                ring.by_job_tree.entry(id).or_default().push(subscriber.clone());
                self.state.single_job_subscribers.fetch_add(1, Ordering::SeqCst);
            }
            EventFilter::JobOnly(id) | EventFilter::JobWithCounts(id) => {
                ring.by_job.entry(id).or_default().push(subscriber.clone());
                self.state.single_job_subscribers.fetch_add(1, Ordering::SeqCst);
                self.state
                    .counts_subscribers
                    .fetch_add(subscriber.is_counting().into(), Ordering::SeqCst);
            }
        }
        let cursor = ring.end();
        Some(Subscription { state: self.state.clone(), subscriber, cursor, accounted_count: 0 })
    }

    /// Returns how many subscriptions are open.
    pub(crate) fn subscriber_count(&self) -> usize {
        self.state.all_jobs_subscribers.load(Ordering::SeqCst)
            + self.state.single_job_subscribers.load(Ordering::SeqCst)
    }

    /// Returns whether there are subscribers to events of a job. For a root job, `parent` and
    /// `root` are the job itself.
    pub(crate) fn has_subscribers(&self, [job, parent, root]: [JobId; 3]) -> bool {
        self.state.all_jobs_subscribers.load(Ordering::SeqCst) > 0
            || (self.state.single_job_subscribers.load(Ordering::SeqCst) > 0 && {
                let ring = self.state.lock_ring();
                ring.by_job.contains_key(&job)
                    || [job, parent, root].iter().any(|id| ring.by_job_tree.contains_key(id))
            })
    }

    /// Returns whether there are subscribers to the counts of a job's child jobs.
    pub fn has_counting_subscribers(&self, job: JobId) -> bool {
        self.state.counts_subscribers.load(Ordering::SeqCst) > 0
            && self.state.lock_ring().counting_subscribers(job).next().is_some()
    }

    /// Wakes the subscribers to the counts of a job's child jobs.
    pub(crate) fn notify_counts_changed(&self, job: JobId) {
        self.state
            .lock_ring()
            .counting_subscribers(job)
            .for_each(|subscriber| subscriber.counts_changed.notify_one());
    }

    /// Publishes events to all subscribers whose filters match. Without subscribers the events are
    /// dropped.
    pub fn publish(&self, events: &[Arc<Event>]) {
        let mut ring = self.state.lock_ring();
        let lost_count = self.state.lost_count.swap(0, Ordering::SeqCst);
        if lost_count > 0 {
            // It is unknown which subscribers these events match, so all report them as missed.
            ring.subscribers().for_each(|subscriber| subscriber.record_matches(lost_count));
        }
        if self.subscriber_count() == 0 {
            return;
        }
        for event in events {
            ring.push(event.clone());
        }
    }

    /// Records that `count` events were dropped before they reached the hub. The next call of
    /// [`EventHub::publish`] reports them.
    pub(crate) fn record_lost(&self, count: usize) {
        self.state.lost_count.fetch_add(count as u64, Ordering::SeqCst);
    }

    /// Ends all subscriptions permanently.
    pub fn close(&self) {
        let mut ring = self.state.lock_ring();
        ring.is_closed = true;
        ring.subscribers().for_each(|subscriber| subscriber.wake.notify_one());
    }
}

impl Ring {
    /// Returns the number of the next event to be published.
    fn end(&self) -> u64 {
        self.first_number + self.events.len() as u64
    }

    fn subscribers(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.all_jobs.iter().chain(self.by_job_tree.values().chain(self.by_job.values()).flatten())
    }

    /// Returns the subscribers to the counts of a job's child jobs.
    fn counting_subscribers(&self, job: JobId) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.by_job.get(&job).into_iter().flatten().filter(|subscriber| subscriber.is_counting())
    }

    /// Adds an event, wakes its subscribers, and drops the oldest events beyond the capacity.
    fn push(&mut self, event: Arc<Event>) {
        for subscriber in
            self.all_jobs.iter().filter(|subscriber| subscriber.filter.matches(&event))
        {
            subscriber.record_match();
        }
        // The ids are distinct, so that no subscriber counts the event twice.
        let is_distinct_root = event.root != event.job && Some(event.root) != event.parent;
        let distinct_root = is_distinct_root.then_some(event.root);
        let tree_ids = [Some(event.job), event.parent, distinct_root];
        let tree_subscribers = tree_ids.iter().flatten().filter_map(|id| self.by_job_tree.get(id));
        for subscriber in tree_subscribers.chain(self.by_job.get(&event.job)).flatten() {
            subscriber.record_match();
        }
        self.bytes += event.body.len();
        self.events.push_back(event);
        while self.bytes > RING_BYTES_MAX && self.events.len() > 1 {
            if let Some(oldest) = self.events.pop_front() {
                self.bytes -= oldest.body.len();
                self.first_number += 1;
            }
        }
    }

    /// Removes a subscriber. If it was the last one, all events are dropped.
    fn remove(&mut self, subscriber: &Arc<Subscriber>) {
        match subscriber.filter {
            EventFilter::All { .. } => {
                self.all_jobs.retain(|other| !Arc::ptr_eq(other, subscriber))
            }
            EventFilter::JobTree(id) => remove_subscriber(&mut self.by_job_tree, id, subscriber),
            EventFilter::JobOnly(id) | EventFilter::JobWithCounts(id) => {
                remove_subscriber(&mut self.by_job, id, subscriber)
            }
        }
        if self.all_jobs.is_empty() && self.by_job_tree.is_empty() && self.by_job.is_empty() {
            self.first_number = self.end();
            self.events = VecDeque::new();
            self.bytes = 0;
        }
    }
}

/// Removes a subscriber from the list under an id, and the list if it is empty.
fn remove_subscriber(
    lists: &mut HashMap<JobId, Vec<Arc<Subscriber>>>,
    id: JobId,
    subscriber: &Arc<Subscriber>,
) {
    if let Some(subscribers) = lists.get_mut(&id) {
        subscribers.retain(|other| !Arc::ptr_eq(other, subscriber));
        if subscribers.is_empty() {
            lists.remove(&id);
        }
    }
}

impl Subscriber {
    fn is_counting(&self) -> bool {
        matches!(self.filter, EventFilter::JobWithCounts(_))
    }

    fn record_match(&self) {
        self.record_matches(1);
    }

    /// Counts matching events, and wakes the subscriber. Events that the ring has dropped before
    /// the subscriber reads them become missed events.
    fn record_matches(&self, count: u64) {
        self.matched_count.fetch_add(count, Ordering::Relaxed);
        self.wake.notify_one();
    }
}

impl Subscription {
    /// Waits for the next events. Returns `None` when the hub is closed.
    pub async fn next(&mut self) -> Option<Batch> {
        loop {
            match self.take_batch() {
                PollResult::Closed => return None,
                PollResult::Nothing => self.subscriber.wake.notified().await,
                PollResult::Batch(batch) => return Some(batch),
            }
        }
    }

    /// Waits until the counts of child jobs may have changed. The future does not borrow the
    /// subscription, so it can be awaited together with [`Subscription::next`].
    pub(crate) fn counts_changed(&self) -> impl Future<Output = ()> + use<> {
        let subscriber = self.subscriber.clone();
        async move { subscriber.counts_changed.notified().await }
    }

    /// Takes the next batch of events, and moves the cursor past it. After the hub is closed,
    /// remaining events are not delivered.
    fn take_batch(&mut self) -> PollResult {
        let ring = self.state.lock_ring();
        if ring.is_closed {
            return PollResult::Closed;
        }
        let matched_count = self.subscriber.matched_count.load(Ordering::Relaxed);
        if matched_count == self.accounted_count {
            self.cursor = ring.end();
            return PollResult::Nothing;
        }
        self.cursor = self.cursor.max(ring.first_number);
        let skipped = usize::try_from(self.cursor - ring.first_number).unwrap_or(usize::MAX);
        let mut unread =
            ring.events.iter().skip(skipped).filter(|event| self.subscriber.filter.matches(event));
        let mut batch = Batch::default();
        let in_ring = unread.clone().count() as u64;
        batch.missed = (matched_count - self.accounted_count).saturating_sub(in_ring);
        let mut bytes = 0;
        while bytes < BATCH_BYTES_MAX
            && let Some(event) = unread.next()
        {
            bytes += event.body.len();
            batch.events.push(event.clone());
        }
        self.accounted_count += batch.missed + batch.events.len() as u64;
        if batch.events.len() as u64 == in_ring {
            self.cursor = ring.end();
        } else {
            let last_event = batch.events.last();
            let events_before_last = ring
                .events
                .iter()
                .skip(skipped)
                .take_while(|event| last_event.is_some_and(|last| !Arc::ptr_eq(event, last)))
                .count();
            self.cursor += events_before_last as u64 + 1;
        }
        PollResult::Batch(batch)
    }
}

/// What a subscription finds in the ring.
enum PollResult {
    /// The hub is closed.
    Closed,
    /// No matching event has arrived.
    Nothing,
    /// New events, or the number of missed ones, or both.
    Batch(Batch),
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut ring = self.state.lock_ring();
        ring.remove(&self.subscriber);
        let count = match self.subscriber.filter {
            EventFilter::All { .. } => &self.state.all_jobs_subscribers,
            EventFilter::JobTree(_) | EventFilter::JobOnly(_) | EventFilter::JobWithCounts(_) => {
                &self.state.single_job_subscribers
            }
        };
        self.state
            .counts_subscribers
            .fetch_sub(self.subscriber.is_counting().into(), Ordering::SeqCst);
        count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Timestamp;
    use futures_util::FutureExt;

    fn event(job: u128, root: u128, workflow: &str, bytes: usize) -> Arc<Event> {
        let id = |number: u128| JobId(uuid::Uuid::from_u128(number));
        Arc::new(Event {
            id: String::new(),
            workflow: workflow.into(),
            subject: Subject::Job,
            action: "running",
            job: id(job),
            parent: (job != root).then(|| id(root)),
            root: id(root),
            at: Timestamp(0),
            is_end: false,
            body: vec![b'x'; bytes].into(),
        })
    }

    fn all() -> EventFilter {
        EventFilter::All { workflow: None, subject: None }
    }

    fn unrelated_job() -> [JobId; 3] {
        [JobId(uuid::Uuid::from_u128(99)); 3]
    }

    fn poll_now(subscription: &mut Subscription) -> Option<Batch> {
        subscription.next().now_or_never().flatten()
    }

    #[test]
    fn a_subscription_receives_the_matching_events_published_after_it_was_opened() {
        let hub = EventHub::default();
        hub.publish(&[event(1, 1, "w", 10)]);
        let mut all_stream = hub.subscribe(all(), 10).unwrap();
        let mut job_stream =
            hub.subscribe(EventFilter::JobTree(JobId(uuid::Uuid::from_u128(1))), 10).unwrap();
        let mut workflow_stream = hub
            .subscribe(EventFilter::All { workflow: Some("v".to_owned()), subject: None }, 10)
            .unwrap();
        let events = [event(1, 1, "w", 10), event(2, 1, "w", 11), event(3, 3, "v", 12)];
        hub.publish(&events);
        let batch = |events: &[Arc<Event>]| Some(Batch { missed: 0, events: events.to_vec() });
        assert_eq!(poll_now(&mut all_stream), batch(&events));
        assert_eq!(poll_now(&mut job_stream), batch(&events[..2]));
        assert_eq!(poll_now(&mut workflow_stream), batch(&events[2..]));
        assert_eq!((poll_now(&mut all_stream), poll_now(&mut job_stream)), (None, None));
    }

    #[test]
    fn a_subscription_to_a_job_alone_causes_no_events_of_its_child_jobs() {
        let hub = EventHub::default();
        let id = |number: u128| JobId(uuid::Uuid::from_u128(number));
        let mut job_stream = hub.subscribe(EventFilter::JobOnly(id(1)), 10).unwrap();
        assert!(hub.has_subscribers([id(1), id(1), id(1)]));
        assert!(!hub.has_subscribers([id(2), id(1), id(1)]), "no event of a child job is built");
        let events = [event(2, 1, "w", 10), event(1, 1, "w", 11)];
        hub.publish(&events);
        assert_eq!(
            poll_now(&mut job_stream),
            Some(Batch { missed: 0, events: events[1..].to_vec() })
        );
        let tree_stream = hub.subscribe(EventFilter::JobTree(id(1)), 10).unwrap();
        assert!(hub.has_subscribers([id(2), id(1), id(1)]));
        drop((job_stream, tree_stream));
        assert!(hub.subscriber_count() == 0 && hub.state.lock_ring().events.is_empty());
    }

    #[test]
    fn counting_subscribers_are_woken_by_changes_and_others_get_no_counts() {
        let hub = EventHub::default();
        let id = |number: u128| JobId(uuid::Uuid::from_u128(number));
        let job_stream = hub.subscribe(EventFilter::JobOnly(id(1)), 10).unwrap();
        assert!(!hub.has_counting_subscribers(id(1)), "no subscriber asked for counts");
        let mut counting = hub.subscribe(EventFilter::JobWithCounts(id(1)), 10).unwrap();
        assert!(hub.has_counting_subscribers(id(1)) && !hub.has_counting_subscribers(id(2)));
        assert!(!hub.has_subscribers([id(2), id(1), id(1)]), "no event of a child job is built");
        hub.notify_counts_changed(id(2));
        assert_eq!(counting.counts_changed().now_or_never(), None);
        hub.notify_counts_changed(id(1));
        hub.notify_counts_changed(id(1));
        assert_eq!(counting.counts_changed().now_or_never(), Some(()));
        assert_eq!(counting.counts_changed().now_or_never(), None, "one wake-up for both changes");
        hub.publish(&[event(1, 1, "w", 11)]);
        assert_eq!(poll_now(&mut counting).map(|batch| batch.events.len()), Some(1));
        drop(counting);
        assert!(!hub.has_counting_subscribers(id(1)) && hub.subscriber_count() == 1);
        drop(job_stream);
    }

    #[test]
    fn a_slow_subscriber_gets_the_number_of_missed_events_and_memory_is_bounded() {
        let hub = EventHub::default();
        let mut slow = hub.subscribe(all(), 10).unwrap();
        let mut other =
            hub.subscribe(EventFilter::JobTree(JobId(uuid::Uuid::from_u128(9))), 10).unwrap();
        hub.publish(&[event(9, 9, "w", 100)]);
        assert_eq!(poll_now(&mut other).map(|batch| batch.events.len()), Some(1));
        let size = RING_BYTES_MAX / 8;
        (0..20).for_each(|_| hub.publish(&[event(1, 1, "w", size)]));
        assert_eq!(poll_now(&mut other), None, "events that do not match are not missed");
        assert!(hub.state.lock_ring().bytes <= RING_BYTES_MAX);
        let mut batches = vec![poll_now(&mut slow).unwrap()];
        batches.extend(std::iter::from_fn(|| poll_now(&mut slow)));
        assert_eq!(batches[0].missed, 13);
        assert_eq!(batches.iter().map(|batch| batch.events.len()).sum::<usize>(), 8);
        assert!(batches[1..].iter().all(|batch| batch.missed == 0));
        hub.record_lost(5);
        hub.publish(&[event(1, 1, "w", 1)]);
        assert_eq!(
            poll_now(&mut slow).map(|batch| (batch.missed, batch.events.len())),
            Some((5, 1))
        );
    }

    #[test]
    fn subscriptions_are_limited_and_end_when_the_hub_closes() {
        let hub = EventHub::default();
        let mut subscription = hub.subscribe(all(), 1).unwrap();
        assert!(hub.subscribe(all(), 1).is_none() && hub.has_subscribers(unrelated_job()));
        hub.publish(&[event(1, 1, "w", 1)]);
        hub.close();
        assert_eq!(subscription.next().now_or_never(), Some(None));
        drop(subscription);
        assert!(
            !hub.has_subscribers(unrelated_job())
                && hub.subscriber_count() == 0
                && hub.state.lock_ring().events.is_empty()
        );
    }
}
