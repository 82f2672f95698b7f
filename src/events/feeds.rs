//! The streams of events that clients have open. One ring holds the newest events for all of them,
//! so that memory is bounded however many clients read, and however slowly. A subscriber that falls
//! behind is told how many events it has missed. The notifier publishes, the API's streams
//! subscribe.

use super::event::{Event, Subject};
use crate::engine::JobId;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The most that the ring holds for slow subscribers, in bytes of events.
const RING_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The most that a subscriber gets at once, in bytes of events.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// The events that a subscriber receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Events of all jobs.
    All {
        /// Only events of this workflow.
        workflow: Option<String>,
        /// Only events of jobs, or only events of steps.
        subject: Option<Subject>,
    },
    /// Events of a job and its child jobs: of all levels below a root job, of the first level below
    /// a child job.
    Job(JobId),
    /// Events of the job alone, without its child jobs.
    Own(JobId),
    /// Events of the job alone, and notifications when the counts of its child jobs change.
    Counts(JobId),
}

impl Wanted {
    fn takes(&self, event: &Event) -> bool {
        match self {
            Wanted::All { workflow, subject } => {
                workflow.as_ref().is_none_or(|workflow| **workflow == *event.workflow)
                    && subject.is_none_or(|subject| subject == event.subject)
            }
            Wanted::Job(id) => event.job == *id || event.root == *id || event.parent == Some(*id),
            Wanted::Own(id) | Wanted::Counts(id) => event.job == *id,
        }
    }
}

/// Publishes events to all subscribers.
#[derive(Default)]
pub struct Feeds {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ring: Mutex<Ring>,
    of_all: AtomicUsize,
    of_jobs: AtomicUsize,
    /// The subscribers to single jobs that also count child jobs.
    of_counts: AtomicUsize,
    /// Events that did not reach the ring, and that no subscriber was told about yet.
    lost: AtomicU64,
}

#[derive(Default)]
struct Ring {
    kept: VecDeque<Arc<Event>>,
    /// The number of the oldest event in the ring.
    first: u64,
    bytes: usize,
    of_all: Vec<Arc<Listener>>,
    of_jobs: HashMap<JobId, Vec<Arc<Listener>>>,
    of_own: HashMap<JobId, Vec<Arc<Listener>>>,
    closed: bool,
}

struct Listener {
    wanted: Wanted,
    /// How many events for it were published so far.
    matched: AtomicU64,
    wake: Notify,
    /// Wakes the subscriber when the counts of child jobs may have changed.
    counted: Notify,
}

/// What a subscriber gets at once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The most events that it can have missed before the following ones.
    pub missed: u64,
    /// The next events, in order.
    pub events: Vec<Arc<Event>>,
}

/// A subscription, which receives the events from the moment on at which it was opened.
pub struct Feed {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    /// The number of the next event to examine.
    cursor: u64,
    /// How many events were delivered, or reported as missed.
    seen: u64,
}

impl Shared {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feeds {
    /// Opens a subscription. Returns `None` if `max` are open.
    pub fn open(&self, wanted: Wanted, max: usize) -> Option<Feed> {
        let mut ring = self.shared.ring();
        if self.count() >= max {
            return None;
        }
        let listener = Arc::new(Listener {
            wanted,
            matched: AtomicU64::new(0),
            wake: Notify::new(),
            counted: Notify::new(),
        });
        match listener.wanted {
            Wanted::All { .. } => {
                ring.of_all.push(listener.clone());
                self.shared.of_all.fetch_add(1, Ordering::SeqCst);
            }
            Wanted::Job(id) => {
                ring.of_jobs.entry(id).or_default().push(listener.clone());
                self.shared.of_jobs.fetch_add(1, Ordering::SeqCst);
            }
            Wanted::Own(id) | Wanted::Counts(id) => {
                ring.of_own.entry(id).or_default().push(listener.clone());
                self.shared.of_jobs.fetch_add(1, Ordering::SeqCst);
                self.shared.of_counts.fetch_add(listener.counts().into(), Ordering::SeqCst);
            }
        }
        let cursor = ring.end();
        Some(Feed { shared: self.shared.clone(), listener, cursor, seen: 0 })
    }

    /// Returns how many subscriptions are open.
    pub fn count(&self) -> usize {
        self.shared.of_all.load(Ordering::SeqCst) + self.shared.of_jobs.load(Ordering::SeqCst)
    }

    /// Returns whether anybody subscribes to events of the job with these ids: its own, its
    /// parent's, its root job's.
    pub fn wants(&self, [own, parent, root]: [JobId; 3]) -> bool {
        self.shared.of_all.load(Ordering::SeqCst) > 0
            || (self.shared.of_jobs.load(Ordering::SeqCst) > 0 && {
                let ring = self.shared.ring();
                ring.of_own.contains_key(&own)
                    || [own, parent, root].iter().any(|id| ring.of_jobs.contains_key(id))
            })
    }

    /// Returns whether anybody counts the child jobs of a job.
    pub fn counts(&self, job: JobId) -> bool {
        self.shared.of_counts.load(Ordering::SeqCst) > 0
            && self.shared.ring().counting(job).next().is_some()
    }

    /// Wakes the subscribers that count a job's child jobs.
    pub fn counted(&self, job: JobId) {
        self.shared.ring().counting(job).for_each(|listener| listener.counted.notify_one());
    }

    /// Publishes events to all subscribers whose filters match.
    pub fn tell(&self, events: &[Arc<Event>]) {
        let mut ring = self.shared.ring();
        let lost = self.shared.lost.swap(0, Ordering::SeqCst);
        if lost > 0 {
            // Nobody knows any more for which subscribers they were.
            ring.listeners().for_each(|listener| listener.missed(lost));
        }
        if self.count() == 0 {
            return;
        }
        for event in events {
            ring.push(event.clone());
        }
    }

    /// Records that events were dropped on their way here.
    pub fn lose(&self, events: usize) {
        self.shared.lost.fetch_add(events as u64, Ordering::SeqCst);
    }

    /// Ends all subscriptions for good.
    pub fn close(&self) {
        let mut ring = self.shared.ring();
        ring.closed = true;
        ring.listeners().for_each(|listener| listener.wake.notify_one());
    }
}

impl Ring {
    fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    fn listeners(&self) -> impl Iterator<Item = &Arc<Listener>> {
        self.of_all.iter().chain(self.of_jobs.values().chain(self.of_own.values()).flatten())
    }

    fn counting(&self, job: JobId) -> impl Iterator<Item = &Arc<Listener>> {
        self.of_own.get(&job).into_iter().flatten().filter(|listener| listener.counts())
    }

    fn push(&mut self, event: Arc<Event>) {
        for listener in self.of_all.iter().filter(|listener| listener.wanted.takes(&event)) {
            listener.hear();
        }
        let mut ids = [Some(event.job), event.parent, Some(event.root)];
        if event.root == event.job || Some(event.root) == event.parent {
            ids[2] = None;
        }
        let of_family = ids.iter().flatten().filter_map(|id| self.of_jobs.get(id));
        for listener in of_family.chain(self.of_own.get(&event.job)).flatten() {
            listener.hear();
        }
        self.bytes += event.body.len();
        self.kept.push_back(event);
        while self.bytes > RING_BYTES_MAX && self.kept.len() > 1 {
            if let Some(oldest) = self.kept.pop_front() {
                self.bytes -= oldest.body.len();
                self.first += 1;
            }
        }
    }

    fn remove(&mut self, listener: &Arc<Listener>) {
        match listener.wanted {
            Wanted::All { .. } => self.of_all.retain(|other| !Arc::ptr_eq(other, listener)),
            Wanted::Job(id) => remove_one(&mut self.of_jobs, id, listener),
            Wanted::Own(id) | Wanted::Counts(id) => remove_one(&mut self.of_own, id, listener),
        }
        if self.of_all.is_empty() && self.of_jobs.is_empty() && self.of_own.is_empty() {
            self.first = self.end();
            self.kept = VecDeque::new();
            self.bytes = 0;
        }
    }
}

fn remove_one(lists: &mut HashMap<JobId, Vec<Arc<Listener>>>, id: JobId, listener: &Arc<Listener>) {
    if let Some(listeners) = lists.get_mut(&id) {
        listeners.retain(|other| !Arc::ptr_eq(other, listener));
        if listeners.is_empty() {
            lists.remove(&id);
        }
    }
}

impl Listener {
    fn counts(&self) -> bool {
        matches!(self.wanted, Wanted::Counts(_))
    }

    fn hear(&self) {
        self.missed(1);
    }

    /// Counts events. Those that are no longer in the ring when it is read were missed.
    fn missed(&self, events: u64) {
        self.matched.fetch_add(events, Ordering::Relaxed);
        self.wake.notify_one();
    }
}

impl Feed {
    /// Waits for the next events. Returns `None` when all subscriptions end.
    pub async fn next(&mut self) -> Option<Batch> {
        loop {
            match self.take() {
                Taken::Closed => return None,
                Taken::Nothing => self.listener.wake.notified().await,
                Taken::Batch(batch) => return Some(batch),
            }
        }
    }

    /// Waits until the counts of child jobs may have changed.
    pub fn counted(&self) -> impl Future<Output = ()> + use<> {
        let listener = self.listener.clone();
        async move { listener.counted.notified().await }
    }

    fn take(&mut self) -> Taken {
        let ring = self.shared.ring();
        if ring.closed {
            return Taken::Closed;
        }
        let matched = self.listener.matched.load(Ordering::Relaxed);
        if matched == self.seen {
            self.cursor = ring.end();
            return Taken::Nothing;
        }
        self.cursor = self.cursor.max(ring.first);
        let skipped = usize::try_from(self.cursor - ring.first).unwrap_or(usize::MAX);
        let mut left =
            ring.kept.iter().skip(skipped).filter(|event| self.listener.wanted.takes(event));
        let mut batch = Batch::default();
        let in_ring = left.clone().count() as u64;
        batch.missed = (matched - self.seen).saturating_sub(in_ring);
        let mut bytes = 0;
        while bytes < BATCH_BYTES_MAX
            && let Some(event) = left.next()
        {
            bytes += event.body.len();
            batch.events.push(event.clone());
        }
        self.seen += batch.missed + batch.events.len() as u64;
        if batch.events.len() as u64 == in_ring {
            self.cursor = ring.end();
        } else {
            let last = batch.events.last();
            let passed = ring
                .kept
                .iter()
                .skip(skipped)
                .take_while(|event| last.is_some_and(|last| !Arc::ptr_eq(event, last)))
                .count();
            self.cursor += passed as u64 + 1;
        }
        Taken::Batch(batch)
    }
}

enum Taken {
    Closed,
    Nothing,
    Batch(Batch),
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut ring = self.shared.ring();
        ring.remove(&self.listener);
        let count = match self.listener.wanted {
            Wanted::All { .. } => &self.shared.of_all,
            Wanted::Job(_) | Wanted::Own(_) | Wanted::Counts(_) => &self.shared.of_jobs,
        };
        self.shared.of_counts.fetch_sub(self.listener.counts().into(), Ordering::SeqCst);
        count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Timestamp;
    use futures_util::FutureExt;

    fn event(job: u128, root: u128, workflow: &str, bytes: usize) -> Arc<Event> {
        let id = |number: u128| JobId(uuid::Uuid::from_u128(number));
        Arc::new(Event {
            id: String::new(),
            workflow: workflow.into(),
            subject: Subject::Job,
            word: "running",
            job: id(job),
            parent: (job != root).then(|| id(root)),
            root: id(root),
            at: Timestamp(0),
            is_end: false,
            body: vec![b'x'; bytes].into(),
        })
    }

    fn all() -> Wanted {
        Wanted::All { workflow: None, subject: None }
    }

    fn nobody() -> [JobId; 3] {
        [JobId(uuid::Uuid::from_u128(99)); 3]
    }

    fn now(feed: &mut Feed) -> Option<Batch> {
        feed.next().now_or_never().flatten()
    }

    #[test]
    fn a_stream_has_what_came_since_it_was_opened_and_what_it_wants() {
        let feeds = Feeds::default();
        feeds.tell(&[event(1, 1, "w", 10)]);
        let mut of_all = feeds.open(all(), 10).unwrap();
        let mut of_one = feeds.open(Wanted::Job(JobId(uuid::Uuid::from_u128(1))), 10).unwrap();
        let mut of_workflow =
            feeds.open(Wanted::All { workflow: Some("v".to_owned()), subject: None }, 10).unwrap();
        let events = [event(1, 1, "w", 10), event(2, 1, "w", 11), event(3, 3, "v", 12)];
        feeds.tell(&events);
        let batch = |events: &[Arc<Event>]| Some(Batch { missed: 0, events: events.to_vec() });
        assert_eq!(now(&mut of_all), batch(&events));
        assert_eq!(now(&mut of_one), batch(&events[..2]));
        assert_eq!(now(&mut of_workflow), batch(&events[2..]));
        assert_eq!((now(&mut of_all), now(&mut of_one)), (None, None));
    }

    #[test]
    fn a_stream_of_a_job_alone_has_nothing_of_its_child_jobs_which_make_nothing_for_it() {
        let feeds = Feeds::default();
        let id = |number: u128| JobId(uuid::Uuid::from_u128(number));
        let mut own = feeds.open(Wanted::Own(id(1)), 10).unwrap();
        assert!(feeds.wants([id(1), id(1), id(1)]));
        assert!(!feeds.wants([id(2), id(1), id(1)]), "no event is made of a child job");
        let events = [event(2, 1, "w", 10), event(1, 1, "w", 11)];
        feeds.tell(&events);
        assert_eq!(now(&mut own), Some(Batch { missed: 0, events: events[1..].to_vec() }));
        let whole = feeds.open(Wanted::Job(id(1)), 10).unwrap();
        assert!(feeds.wants([id(2), id(1), id(1)]));
        drop((own, whole));
        assert!(feeds.count() == 0 && feeds.shared.ring().kept.is_empty());
    }

    #[test]
    fn who_counts_child_jobs_is_told_when_there_is_something_new_and_others_make_nothing() {
        let feeds = Feeds::default();
        let id = |number: u128| JobId(uuid::Uuid::from_u128(number));
        let own = feeds.open(Wanted::Own(id(1)), 10).unwrap();
        assert!(!feeds.counts(id(1)), "nobody counts");
        let mut counting = feeds.open(Wanted::Counts(id(1)), 10).unwrap();
        assert!(feeds.counts(id(1)) && !feeds.counts(id(2)));
        assert!(!feeds.wants([id(2), id(1), id(1)]), "no event is made of a child job");
        feeds.counted(id(2));
        assert_eq!(counting.counted().now_or_never(), None);
        feeds.counted(id(1));
        feeds.counted(id(1));
        assert_eq!(counting.counted().now_or_never(), Some(()));
        assert_eq!(counting.counted().now_or_never(), None, "once for all that is new");
        feeds.tell(&[event(1, 1, "w", 11)]);
        assert_eq!(now(&mut counting).map(|batch| batch.events.len()), Some(1));
        drop(counting);
        assert!(!feeds.counts(id(1)) && feeds.count() == 1);
        drop(own);
    }

    #[test]
    fn who_falls_behind_is_told_how_many_it_missed_and_memory_is_bounded() {
        let feeds = Feeds::default();
        let mut slow = feeds.open(all(), 10).unwrap();
        let mut other = feeds.open(Wanted::Job(JobId(uuid::Uuid::from_u128(9))), 10).unwrap();
        feeds.tell(&[event(9, 9, "w", 100)]);
        assert_eq!(now(&mut other).map(|batch| batch.events.len()), Some(1));
        let size = RING_BYTES_MAX / 8;
        (0..20).for_each(|_| feeds.tell(&[event(1, 1, "w", size)]));
        assert_eq!(now(&mut other), None, "what it does not want it has not missed");
        assert!(feeds.shared.ring().bytes <= RING_BYTES_MAX);
        let mut batches = vec![now(&mut slow).unwrap()];
        batches.extend(std::iter::from_fn(|| now(&mut slow)));
        assert_eq!(batches[0].missed, 13);
        assert_eq!(batches.iter().map(|batch| batch.events.len()).sum::<usize>(), 8);
        assert!(batches[1..].iter().all(|batch| batch.missed == 0));
        feeds.lose(5);
        feeds.tell(&[event(1, 1, "w", 1)]);
        assert_eq!(now(&mut slow).map(|batch| (batch.missed, batch.events.len())), Some((5, 1)));
    }

    #[test]
    fn streams_are_counted_and_end_together() {
        let feeds = Feeds::default();
        let mut feed = feeds.open(all(), 1).unwrap();
        assert!(feeds.open(all(), 1).is_none() && feeds.wants(nobody()));
        feeds.tell(&[event(1, 1, "w", 1)]);
        feeds.close();
        assert_eq!(feed.next().now_or_never(), Some(None));
        drop(feed);
        assert!(
            !feeds.wants(nobody()) && feeds.count() == 0 && feeds.shared.ring().kept.is_empty()
        );
    }
}
