//! Caches ended jobs that were rebuilt from long records, jobs as they were after an entry, the
//! attempts of their steps, and the maps, times and reasons of their items. Each value has the
//! version of the record that it was derived from. It is used only for that version, which every
//! read asks the journal for. So it cannot be stale, whatever happened to the job.

use crate::actors::memory::job_bytes;
use crate::settings::HttpSettings;
use crate::view::AttemptHistory;
use base::budget::{Permit, ResourceBudget};
use bytes::Bytes;
use engine::{JobId, StepIndex};
use hashlink::LruCache;
use journal::{JobAtEntry, JournalError, RecordVersion, Records, StoredJob};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The cache may hold the budget for reads divided by this number.
const CACHE_DIVISOR: usize = 4;

/// The most values that the cache holds, however small they are.
const VALUES_MAX: usize = 1_000;

/// How many jobs can be rebuilt for the cache at the same time.
const REBUILD_LOCKS: usize = 16;

/// The fewest entries of a record whose attempts are cached. Those of a shorter one are collected
/// in a few milliseconds.
pub(super) const LONG_RECORD_ENTRIES: u64 = 1_000;

/// The fewest items of a fan-out whose map, times and reasons are cached. Those of a smaller one
/// are read in a few milliseconds.
pub(super) const MANY_ITEMS: u32 = 1_000;

/// A cache of what was derived from records. What was used last is kept longest. Its bytes count in
/// the budget for reads, which get them back when they need them.
pub struct RebuiltJobs {
    /// The budget for reads.
    budget: ResourceBudget,
    /// The most bytes that the cache may hold.
    bytes_max: usize,
    cache: Mutex<Cache>,
    /// Held while a job is rebuilt, so that concurrent reads of a job rebuild it only once.
    rebuild_locks: [Mutex<()>; REBUILD_LOCKS],
    /// How many values were inserted.
    inserted: AtomicU64,
}

struct Cache {
    values: LruCache<Key, Cached>,
    /// The size of all values, in bytes.
    bytes: usize,
}

/// What a value is derived from.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Job(JobId),
    /// A job as it was after the entry with this number.
    JobAtEntry(JobId, u64),
    Attempts(JobId, StepIndex),
    /// The attempts of a step up to an entry, the one that was asked for last.
    AttemptsAtEntry(JobId, StepIndex),
    Items(JobId, StepIndex, ItemsFormat),
}

/// What is shown of the items of a step, as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ItemsFormat {
    Map,
    Times,
    Reasons,
}

/// Which attempts of a step are meant: those of the whole record, or of its first entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptRange {
    All,
    First,
}

/// A cached value, with the version of the record that it was derived from.
#[derive(Clone)]
struct Cached {
    version: RecordVersion,
    bytes: usize,
    value: Value,
}

#[derive(Clone)]
enum Value {
    Job(Arc<RebuiltJob>),
    JobAtEntry(Arc<RebuiltJobAtEntry>),
    Attempts(Arc<CachedAttempts>),
    Items(Arc<CachedItems>),
}

/// A job that was rebuilt from its record. It may be shared with the cache.
pub(super) struct RebuiltJob {
    stored: StoredJob,
    /// Its size as a cached job; 0 if its record is short.
    pub(super) bytes: usize,
    /// The permit for its bytes in the cache, which reads may use longer than it is there.
    _permit: Option<Permit>,
}

impl From<StoredJob> for RebuiltJob {
    fn from(stored: StoredJob) -> RebuiltJob {
        RebuiltJob { stored, bytes: 0, _permit: None }
    }
}

impl Deref for RebuiltJob {
    type Target = StoredJob;

    fn deref(&self) -> &StoredJob {
        &self.stored
    }
}

/// A job as it was after an entry, rebuilt from its record. It may be shared with the cache.
pub(super) struct RebuiltJobAtEntry {
    pub(super) found: JobAtEntry,
    /// The size of the job; 0 if its record is short.
    pub(super) bytes: usize,
    _permit: Option<Permit>,
}

impl From<JobAtEntry> for RebuiltJobAtEntry {
    fn from(found: JobAtEntry) -> RebuiltJobAtEntry {
        RebuiltJobAtEntry { found, bytes: 0, _permit: None }
    }
}

/// The attempts of a step, with the permit for their bytes.
struct CachedAttempts {
    attempts: AttemptHistory,
    _permit: Permit,
}

/// The map, the times or the reasons of the items of a step, with the permit for their bytes.
struct CachedItems {
    bytes: Bytes,
    _permit: Permit,
}

impl RebuiltJobs {
    /// Creates an empty cache, which takes its bytes from the budget for reads.
    pub fn new(budget: &ResourceBudget, settings: &HttpSettings) -> RebuiltJobs {
        RebuiltJobs {
            budget: budget.clone(),
            bytes_max: settings.reads_bytes_max / CACHE_DIVISOR,
            cache: Mutex::new(Cache::new()),
            rebuild_locks: Default::default(),
            inserted: AtomicU64::new(0),
        }
    }

    /// Returns how many values were inserted since the start. What is answered from the cache
    /// inserts nothing.
    pub fn inserted(&self) -> u64 {
        self.inserted.load(Ordering::Relaxed)
    }

    /// Returns the job with this id if it is cached in its current state.
    pub(super) fn find_job(
        &self,
        reader: &dyn Records,
        id: JobId,
    ) -> Result<Option<Arc<RebuiltJob>>, JournalError> {
        // Most jobs are not cached, and need no query.
        if !self.lock().values.contains_key(&Key::Job(id)) {
            return Ok(None);
        }
        let version = reader.record_version(id)?;
        let mut cache = self.lock();
        Ok(match cache.find(Key::Job(id)) {
            Some(Cached { version: cached, value: Value::Job(job), .. })
                if Some(cached) == version =>
            {
                Some(job)
            }
            Some(_) => {
                cache.remove(Key::Job(id));
                None
            }
            None => None,
        })
    }

    /// Returns the job with this id, rebuilt from its record or from the cache. Caches it if it has
    /// ended. Returns `None` if there is no such job.
    pub(super) fn load_job(
        &self,
        reader: &dyn Records,
        id: JobId,
    ) -> Result<Option<Arc<RebuiltJob>>, JournalError> {
        let _lock = self.lock_job(id);
        if let Some(job) = self.find_job(reader, id)? {
            return Ok(Some(job));
        }
        let Some(stored) = reader.load_job(id)? else { return Ok(None) };
        let version = stored.version();
        let bytes = job_bytes(&stored.job) + stored.job.bookkeeping_bytes();
        let is_ended = stored.job.state().is_ended();
        let permit = if is_ended { self.acquire(bytes) } else { None };
        let cached_bytes = permit.as_ref().map(|permit| self.budget.held_by(permit));
        let job = Arc::new(RebuiltJob { stored, bytes, _permit: permit });
        if let Some(bytes) = cached_bytes {
            let value = Value::Job(job.clone());
            self.insert(Key::Job(id), Cached { version, bytes, value });
        }
        Ok(Some(job))
    }

    /// Locks the rebuilding of a job.
    fn lock_job(&self, id: JobId) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let lock_index = hasher.finish() % REBUILD_LOCKS as u64;
        let lock = &self.rebuild_locks[lock_index as usize];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the job with this id as it was after its first `entries` entries, if that is cached
    /// of its current record. Entries never change, so a longer record has the same first ones.
    pub(super) fn find_job_at_entry(
        &self,
        reader: &dyn Records,
        id: JobId,
        entries: u64,
    ) -> Result<Option<Arc<RebuiltJobAtEntry>>, JournalError> {
        let key = Key::JobAtEntry(id, entries);
        if !self.lock().values.contains_key(&key) {
            return Ok(None);
        }
        let version = reader.record_version(id)?;
        let mut cache = self.lock();
        Ok(match cache.find(key) {
            Some(Cached { version: cached, value: Value::JobAtEntry(job), .. })
                if version.is_some_and(|current| begins(cached, current)) =>
            {
                Some(job)
            }
            Some(_) => {
                cache.remove(key);
                None
            }
            None => None,
        })
    }

    /// Returns the job with this id as it was after its first `entries` entries, rebuilt from its
    /// record or from the cache, and caches it. Returns `None` if there is no such job.
    pub(super) fn load_job_at_entry(
        &self,
        reader: &dyn Records,
        id: JobId,
        entries: u64,
    ) -> Result<Option<Arc<RebuiltJobAtEntry>>, JournalError> {
        let _lock = self.lock_job(id);
        if let Some(job) = self.find_job_at_entry(reader, id, entries)? {
            return Ok(Some(job));
        }
        // The version is that of before: if the job is replaced now, what is cached is never used.
        let version = reader.record_version(id)?;
        let Some(found) = reader.load_job_at_entry(id, entries)? else { return Ok(None) };
        let (JobAtEntry::Found { job, .. }, Some(version)) = (&found, version) else {
            return Ok(Some(Arc::new(found.into())));
        };
        let bytes = job_bytes(job) + job.bookkeeping_bytes();
        let permit = self.acquire(bytes);
        let cached_bytes = permit.as_ref().map(|permit| self.budget.held_by(permit));
        let job = Arc::new(RebuiltJobAtEntry { found, bytes, _permit: permit });
        if let Some(bytes) = cached_bytes {
            let (version, value) =
                (RecordVersion { entries, ..version }, Value::JobAtEntry(job.clone()));
            self.insert(Key::JobAtEntry(id, entries), Cached { version, bytes, value });
        }
        Ok(Some(job))
    }

    /// Returns the cached attempts of a step of a job, with the number of entries that they were
    /// collected from: at most those of this version of the record.
    pub(super) fn find_attempts(
        &self,
        (id, step): (JobId, StepIndex),
        range: AttemptRange,
        version: RecordVersion,
    ) -> Option<(AttemptHistory, u64)> {
        let cached = self.lock().find(range.key(id, step))?;
        let Value::Attempts(attempts) = cached.value else { return None };
        begins(cached.version, version).then(|| (attempts.attempts.clone(), cached.version.entries))
    }

    /// Caches the attempts of a step, collected from a record of this version.
    pub(super) fn insert_attempts(
        &self,
        (id, step): (JobId, StepIndex),
        range: AttemptRange,
        version: RecordVersion,
        attempts: &AttemptHistory,
    ) {
        let Some(permit) = self.acquire(attempts.memory_bytes()) else { return };
        let bytes = self.budget.held_by(&permit);
        let attempts = Arc::new(CachedAttempts { attempts: attempts.clone(), _permit: permit });
        let value = Value::Attempts(attempts);
        self.insert(range.key(id, step), Cached { version, bytes, value });
    }

    /// Returns what is cached of the items of a step for this version of the record.
    pub(super) fn find_items(
        &self,
        (id, step): (JobId, StepIndex),
        format: ItemsFormat,
        version: RecordVersion,
    ) -> Option<Bytes> {
        let cached = self.lock().find(Key::Items(id, step, format))?;
        let Value::Items(items) = cached.value else { return None };
        (cached.version == version).then(|| items.bytes.clone())
    }

    /// Caches what is shown of the items of a step. The caller has made sure that no child job
    /// changes while the record of its parent has this version.
    pub(super) fn insert_items(
        &self,
        (id, step): (JobId, StepIndex),
        format: ItemsFormat,
        version: RecordVersion,
        bytes: Bytes,
    ) {
        let Some(permit) = self.acquire(bytes.len()) else { return };
        let size = self.budget.held_by(&permit);
        let value = Value::Items(Arc::new(CachedItems { bytes, _permit: permit }));
        self.insert(Key::Items(id, step, format), Cached { version, bytes: size, value });
    }

    /// Removes all values, so that reads get their bytes.
    pub fn clear(&self) {
        *self.lock() = Cache::new();
    }

    /// Acquires the permit for a value of this size. Returns `None` if the value is too large, or
    /// if reads need the budget.
    fn acquire(&self, bytes: usize) -> Option<Permit> {
        (bytes <= self.bytes_max).then(|| self.budget.try_acquire(bytes)).flatten()
    }

    /// Caches a value, and removes those that have not been used for longest, as far as the cache
    /// is too large.
    fn insert(&self, key: Key, cached: Cached) {
        self.inserted.fetch_add(1, Ordering::Relaxed);
        let mut cache = self.lock();
        cache.insert(key, cached);
        cache.evict(self.bytes_max, VALUES_MAX);
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AttemptRange {
    /// Returns the key of these attempts of a step.
    fn key(self, id: JobId, step: StepIndex) -> Key {
        match self {
            AttemptRange::All => Key::Attempts(id, step),
            AttemptRange::First => Key::AttemptsAtEntry(id, step),
        }
    }
}

/// Returns whether a record of the version `first` is the beginning of one of the version `whole`.
fn begins(first: RecordVersion, whole: RecordVersion) -> bool {
    first.entries <= whole.entries && RecordVersion { entries: whole.entries, ..first } == whole
}

impl Cache {
    fn new() -> Cache {
        Cache { values: LruCache::new_unbounded(), bytes: 0 }
    }

    /// Returns a value, which becomes the one that was used last.
    fn find(&mut self, key: Key) -> Option<Cached> {
        self.values.get(&key).cloned()
    }

    fn insert(&mut self, key: Key, cached: Cached) {
        self.bytes += cached.bytes;
        if let Some(replaced) = self.values.insert(key, cached) {
            self.bytes -= replaced.bytes;
        }
    }

    fn remove(&mut self, key: Key) {
        if let Some(removed) = self.values.remove(&key) {
            self.bytes -= removed.bytes;
        }
    }

    /// Removes the values that have not been used for longest, until at most `bytes_max` bytes and
    /// `values_max` values are left.
    fn evict(&mut self, bytes_max: usize, values_max: usize) {
        while self.bytes > bytes_max || self.values.len() > values_max {
            let Some((_, removed)) = self.values.remove_lru() else { return };
            self.bytes -= removed.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use engine::Timestamp;

    const STEP: StepIndex = StepIndex(0);

    fn version(number: i64, entries: u64) -> RecordVersion {
        RecordVersion { number, created: Timestamp(1), entries }
    }

    fn job(number: u128) -> JobId {
        JobId(uuid::Uuid::from_u128(number))
    }

    fn cache(bytes: usize) -> (RebuiltJobs, ResourceBudget) {
        let mut settings = Settings::defaults().expect("the defaults are valid");
        settings.http.reads_bytes_max = bytes;
        let budget = ResourceBudget::for_bytes(bytes);
        (RebuiltJobs::new(&budget, &settings.http), budget)
    }

    #[test]
    fn the_cache_has_bounds_and_removes_first_what_was_not_used_for_longest() {
        let attempts = AttemptHistory::for_step(STEP);
        let has = |jobs: &RebuiltJobs, number| {
            jobs.find_attempts((job(number), STEP), AttemptRange::All, version(1, 5)).is_some()
        };
        // Each takes a unit of the budget, a kibibyte.
        let (jobs, budget) = cache(3 * 1024 * CACHE_DIVISOR);
        for number in 0..3 {
            jobs.insert_attempts((job(number), STEP), AttemptRange::All, version(1, 5), &attempts);
        }
        assert!(has(&jobs, 0));
        let bytes_max = jobs.bytes_max;
        for number in 3..1_000 {
            jobs.insert_attempts((job(number), STEP), AttemptRange::All, version(1, 5), &attempts);
            assert!(has(&jobs, 0));
            assert!(jobs.lock().bytes <= bytes_max);
        }
        assert!(!has(&jobs, 1) && has(&jobs, 999) && budget.used() > 0);
        jobs.clear();
        assert!(!has(&jobs, 999));
        assert_eq!((budget.used(), jobs.lock().bytes), (0, 0));

        let (jobs, budget) = cache(1 << 30);
        for number in 0..2 * VALUES_MAX as u128 {
            jobs.insert_attempts((job(number), STEP), AttemptRange::All, version(1, 5), &attempts);
        }
        assert_eq!(jobs.lock().values.len(), VALUES_MAX);
        let all = budget.try_acquire(usize::MAX);
        assert!(all.is_none(), "the values hold permits");
        let (jobs, budget) = cache(1024);
        let _all = budget.try_acquire(1024);
        jobs.insert_attempts((job(1), STEP), AttemptRange::All, version(1, 5), &attempts);
        assert!(!has(&jobs, 1), "reads have the bytes");
    }

    #[test]
    fn attempts_are_used_only_for_the_record_that_they_begin() {
        let (jobs, _budget) = cache(1 << 20);
        jobs.insert_attempts(
            (job(1), STEP),
            AttemptRange::All,
            version(7, 5),
            &AttemptHistory::for_step(STEP),
        );
        let find = |version| {
            jobs.find_attempts((job(1), STEP), AttemptRange::All, version)
                .map(|(_, entries)| entries)
        };
        assert_eq!((find(version(7, 5)), find(version(7, 9))), (Some(5), Some(5)));
        let of_another_time = RecordVersion { created: Timestamp(2), ..version(7, 5) };
        for other in [version(7, 4), version(8, 5), of_another_time] {
            assert_eq!(find(other), None, "{other:?}");
        }
        let first = jobs.find_attempts((job(1), STEP), AttemptRange::First, version(7, 5));
        assert!(first.is_none(), "those up to an entry are apart");
    }

    #[test]
    fn items_are_used_only_for_the_record_that_they_were_read_with() {
        let (jobs, budget) = cache(1 << 20);
        let place = (job(1), STEP);
        let bytes = Bytes::from_static(b"0123");
        jobs.insert_items(place, ItemsFormat::Map, version(7, 5), bytes.clone());
        let find = |format, version| jobs.find_items(place, format, version);
        assert_eq!(find(ItemsFormat::Map, version(7, 5)), Some(bytes));
        assert_eq!(find(ItemsFormat::Times, version(7, 5)), None);
        let of_another_time = RecordVersion { created: Timestamp(2), ..version(7, 5) };
        for other in [version(7, 4), version(7, 6), version(8, 5), of_another_time] {
            assert_eq!(find(ItemsFormat::Map, other), None, "{other:?}");
        }
        assert_eq!(budget.used(), 1024, "its bytes count");
        let large = Bytes::from(vec![0; jobs.bytes_max + 1]);
        jobs.insert_items(place, ItemsFormat::Times, version(7, 5), large);
        assert_eq!(find(ItemsFormat::Times, version(7, 5)), None);
    }
}
