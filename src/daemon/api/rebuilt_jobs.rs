//! Caches ended jobs that were rebuilt from long records, and the attempts of their steps. Each
//! value has the version of the record that it was derived from. It is used only for that version,
//! which every read asks the journal for. So it cannot be stale, whatever happened to the job.

use crate::actors::memory::job_bytes;
use crate::settings::HttpSettings;
use crate::view::AttemptHistory;
use base::budget::{Permit, ResourceBudget};
use engine::{JobId, StepIndex};
use hashlink::LruCache;
use journal::{JournalError, RecordVersion, Records, StoredJob};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
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

/// A cache of ended jobs and of attempts. What was used last is kept longest. Its bytes count in
/// the budget for reads, which get them back when they need them.
pub struct RebuiltJobs {
    /// The budget for reads.
    budget: ResourceBudget,
    /// The most bytes that the cache may hold.
    bytes_max: usize,
    cache: Mutex<Cache>,
    /// Held while a job is rebuilt, so that concurrent reads of a job rebuild it only once.
    rebuild_locks: [Mutex<()>; REBUILD_LOCKS],
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
    Attempts(JobId, StepIndex),
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
    Attempts(Arc<CachedAttempts>),
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

/// The attempts of a step, with the permit for their bytes.
struct CachedAttempts {
    attempts: AttemptHistory,
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
        }
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
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let lock_index = hasher.finish() % REBUILD_LOCKS as u64;
        let lock = &self.rebuild_locks[lock_index as usize];
        let _lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Returns the cached attempts of a step of a job, with the number of entries that they were
    /// collected from: those of the current version of the record, or the first ones.
    pub(super) fn find_attempts(
        &self,
        id: JobId,
        step: StepIndex,
        current: RecordVersion,
    ) -> Option<(AttemptHistory, u64)> {
        let cached = self.lock().find(Key::Attempts(id, step))?;
        let Value::Attempts(attempts) = cached.value else { return None };
        let begins_current = cached.version.entries <= current.entries
            && RecordVersion { entries: current.entries, ..cached.version } == current;
        begins_current.then(|| (attempts.attempts.clone(), cached.version.entries))
    }

    /// Caches the attempts of a step, collected from a record of this version.
    pub(super) fn insert_attempts(
        &self,
        (id, step): (JobId, StepIndex),
        version: RecordVersion,
        attempts: &AttemptHistory,
    ) {
        let Some(permit) = self.acquire(attempts.memory_bytes()) else { return };
        let bytes = self.budget.held_by(&permit);
        let attempts = Arc::new(CachedAttempts { attempts: attempts.clone(), _permit: permit });
        let value = Value::Attempts(attempts);
        self.insert(Key::Attempts(id, step), Cached { version, bytes, value });
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
        let mut cache = self.lock();
        cache.insert(key, cached);
        cache.evict(self.bytes_max, VALUES_MAX);
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            jobs.find_attempts(job(number), STEP, version(1, 5)).is_some()
        };
        // Each takes a unit of the budget, a kibibyte.
        let (jobs, budget) = cache(3 * 1024 * CACHE_DIVISOR);
        for number in 0..3 {
            jobs.insert_attempts((job(number), STEP), version(1, 5), &attempts);
        }
        assert!(has(&jobs, 0));
        let bytes_max = jobs.bytes_max;
        for number in 3..1_000 {
            jobs.insert_attempts((job(number), STEP), version(1, 5), &attempts);
            assert!(has(&jobs, 0));
            assert!(jobs.lock().bytes <= bytes_max);
        }
        assert!(!has(&jobs, 1) && has(&jobs, 999) && budget.used() > 0);
        jobs.clear();
        assert!(!has(&jobs, 999));
        assert_eq!((budget.used(), jobs.lock().bytes), (0, 0));

        let (jobs, budget) = cache(1 << 30);
        for number in 0..2 * VALUES_MAX as u128 {
            jobs.insert_attempts((job(number), STEP), version(1, 5), &attempts);
        }
        assert_eq!(jobs.lock().values.len(), VALUES_MAX);
        let all = budget.try_acquire(usize::MAX);
        assert!(all.is_none(), "the values hold permits");
        let (jobs, budget) = cache(1024);
        let _all = budget.try_acquire(1024);
        jobs.insert_attempts((job(1), STEP), version(1, 5), &attempts);
        assert!(!has(&jobs, 1), "reads have the bytes");
    }

    #[test]
    fn attempts_are_used_only_for_the_record_that_they_begin() {
        let (jobs, _budget) = cache(1 << 20);
        jobs.insert_attempts((job(1), STEP), version(7, 5), &AttemptHistory::for_step(STEP));
        let find = |version| jobs.find_attempts(job(1), STEP, version).map(|(_, entries)| entries);
        assert_eq!((find(version(7, 5)), find(version(7, 9))), (Some(5), Some(5)));
        let of_another_time = RecordVersion { created: Timestamp(2), ..version(7, 5) };
        for other in [version(7, 4), version(8, 5), of_another_time] {
            assert_eq!(find(other), None, "{other:?}");
        }
    }
}
