//! The state of the writing end: the connection, what is known of the file, and what is not
//! projected yet.

use super::changes::{NewIds, Tail};
use super::confirms::Confirms;
use super::place::{self, Lock, NotTaken};
use super::relation::{Relation, WriteFailed, is_of_relation};
use super::reserve::{Reserve, Use, is_unwritten};
use super::row::failed;
use super::rows::FileRows;
use super::schema::{self, Options, read_only};
use super::shm::{self, Shm};
use super::status::Relations;
use super::watch::Watch;
use crate::engine::{Definition, DefinitionHash, Millis};
use crate::faults;
use crate::journal::error::{JournalError, Loss, Remedy};
use crate::journal::record::{JobNumber, Sizes};
use crate::journal::recover::{self, EachFamily, JobParts, JobRow, Recovered};
use rusqlite::{Connection, ErrorCode};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

/// One in this many pages is kept free by commits: for projecting them, and for deletions.
const RESERVE_SHARE: u32 = 8;

/// Job trees that are deleted in part, by their root jobs: the remaining jobs, parents before their
/// children. Inputs for them are rejected.
pub(super) type Leaving = HashMap<JobNumber, Vec<JobNumber>>;

/// The writing end of the journal. There is one per file across all processes: it holds a lock.
pub(super) struct Core {
    pub(super) connection: Connection,
    pub(super) file: Arc<str>,
    path: PathBuf,
    /// Numbers of the definitions in the file, by content hash.
    pub(super) definitions: HashMap<DefinitionHash, i64>,
    /// The definition that was looked up last. Usually the next one is the same, and its hash need
    /// not be computed again.
    pub(super) latest: Option<(Arc<Definition>, i64)>,
    pub(super) relations: Relations,
    pub(super) leaving: Leaving,
    /// The retention of each definition, by number.
    pub(super) retentions: BTreeMap<i64, Option<Millis>>,
    /// Dropped after the connection, because SQLite loses its locks when this closes its files.
    watch: Watch,
    /// Dropped after the connection, for the same reason.
    pub(super) shm: Option<Shm>,
    lock: Lock,
    /// Room on the disk for when it is full.
    pub(super) reserve: Reserve,
    is_lost: bool,
    /// The highest `seq` in `entries` and `confirmed`.
    pub(super) last: i64,
    /// What is committed and not projected yet.
    pub(super) tail: Tail,
    pub(super) new_ids: Arc<NewIds>,
    pub(super) confirms: Confirms,
    /// The value of `last_seq` at the last call of `write_confirms`. The next call writes the
    /// confirms that have waited since then or longer.
    pub(super) confirms_written_to: i64,
    /// The most pages that the file may have; 0: no limit.
    pages_max: u32,
    /// Whether another program kept the file locked at the last attempt to write.
    pub(super) is_locked: Cell<bool>,
    /// Why nothing can be written any more.
    pub(super) broken: Option<String>,
}

impl Core {
    /// Opens or creates the journal: takes the lock, verifies, migrates.
    pub(super) fn open(options: &Options) -> Result<Core, JournalError> {
        let file: Arc<str> = options.file.to_string_lossy().into();
        let unreachable = |error| JournalError::Unreachable { file: file.to_string(), error };
        let path = place::real(&options.file).map_err(unreachable)?;
        place::check(&path, &file)?;
        let lock = lock(&path, &file)?;
        let reserve = Reserve::beside(&path);
        let mut shm = Shm::beside(&path);
        let no_room = || JournalError::Failed {
            file: file.to_string(),
            what: "no room on its disk for SQLite's -shm".to_owned(),
            remedy: Remedy::WaitForRoom,
        };
        let opened = match &mut shm {
            Some(_) if reserve.finds_no_room_for(shm::KEPT_BYTES) => Err(no_room()),
            Some(shm) => schema::open(&path, options, &file)
                .and_then(|opened| shm.take_room().map(|()| opened).map_err(|_| no_room())),
            None => schema::open(&path, options, &file),
        };
        let connection = match opened {
            Ok(connection) => connection,
            Err(error) => {
                lock.give_up();
                return Err(error);
            }
        };
        let mut watch = Watch::begin(&path).map_err(unreachable)?;
        watch.look().map_err(|loss| JournalError::Lost { file: file.to_string(), loss })?;
        let mut core = Core {
            connection,
            file,
            reserve,
            path,
            definitions: HashMap::new(),
            latest: None,
            relations: Relations::default(),
            leaving: Leaving::new(),
            retentions: BTreeMap::new(),
            watch,
            shm,
            lock,
            is_lost: false,
            last: 0,
            tail: Tail::default(),
            new_ids: Arc::default(),
            confirms: Confirms::default(),
            confirms_written_to: 0,
            pages_max: options.pages_max,
            is_locked: Cell::new(false),
            broken: None,
        };
        let caught_up = core.catch_up().and_then(|()| core.allow(core.for_commits()));
        // A rejected journal must keep its bytes.
        core.is_lost = caught_up.is_err();
        caught_up.map(|()| core)
    }

    /// Returns the path without symbolic links; readers must not follow another.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the files are still those that were opened. If they are not, what is committed
    /// is lost when the process ends, and nothing is written to them when this is dropped.
    pub(super) fn check_files(&mut self) -> Result<(), Loss> {
        let held = |lock: &mut Lock| match lock.hold() {
            Err(NotTaken::InUse) => Err(Loss::Locked(lock.path().display().to_string())),
            // The next check tries again.
            Err(NotTaken::Failed(_)) | Ok(()) => Ok(()),
        };
        let found = self.watch.look().and_then(|()| held(&mut self.lock));
        self.is_lost |= found.is_err();
        found
    }

    /// Returns how much of the disk the files use now.
    pub(super) fn sizes(&self) -> Option<Sizes> {
        let bytes = |path: &Path| Some(std::fs::metadata(path).ok()?.len());
        let pragma = |name: &str| {
            let sql = format!("PRAGMA {name}");
            let mut statement = self.connection.prepare_cached(&sql).ok()?;
            statement.query_row([], |row| row.get::<_, u32>(0)).ok()
        };
        let free = u64::from(pragma("freelist_count")?) * u64::from(pragma("page_size")?);
        let wal = bytes(&place::beside(&self.path, "-wal")).unwrap_or_default();
        Some(Sizes { main: bytes(&self.path)?, wal, free })
    }

    /// Returns the number after the highest in use.
    pub(super) fn next_number(&mut self) -> Result<JobNumber, JournalError> {
        self.derive()?;
        self.connection
            .query_row("SELECT coalesce(max(number), 0) + 1 FROM jobs", [], |row| row.get(0))
            .map_err(|error| self.error(error))
    }

    /// Returns the most pages that the file may have; 0: no limit.
    pub(super) fn pages_max(&self) -> u32 {
        self.pages_max
    }

    /// Returns how many pages the file may have for a commit.
    pub(super) fn for_commits(&self) -> u32 {
        self.pages_max - self.pages_max / RESERVE_SHARE
    }

    /// Sets the most pages that the file may have; it keeps those that it has. 0: no limit.
    pub(super) fn allow(&self, pages: u32) -> Result<(), JournalError> {
        if pages == 0 {
            return Ok(());
        }
        let set = self.connection.pragma_update(None, "max_page_count", pages);
        set.map_err(|error| self.error(error))
    }

    /// Runs `write` like [`JournalWriter::write_with_repair`], and also lets it use the pages that
    /// commits leave free: for projections and deletions. Otherwise a full journal could neither
    /// project a job nor delete one that is not projected.
    pub(super) fn with_reserve<T>(
        &mut self,
        mut write: impl FnMut(&mut Core) -> Result<T, WriteFailed>,
    ) -> Result<T, JournalError> {
        self.emptying(|core| core.mending(&mut write))
    }

    /// Runs a write that empties the journal, in the pages that commits leave free, and in the room
    /// of the reserve.
    pub(super) fn emptying<T>(
        &mut self,
        write: impl FnMut(&mut Core) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        self.allow(self.pages_max)?;
        let written = self.or_in_reserve(Use::Empty, write);
        if let Err(error) = self.allow(self.for_commits()) {
            // The write has succeeded. The next commit may use more room than it should.
            tracing::warn!(%error, "the reserve of the journal is not kept for now");
        }
        written
    }

    /// Runs `write` without waiting for the disk. Whatever a crash undoes is written again later.
    pub(super) fn relaxed<T>(
        &mut self,
        write: impl FnOnce(&mut Core) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        self.synchronize("NORMAL")?;
        let written = write(self);
        if let Err(error) = self.synchronize("FULL") {
            // A commit that does not wait for the disk must not pass for one that does.
            self.broken = Some(error.to_string());
            return written.and(Err(error));
        }
        written
    }

    fn synchronize(&self, how: &str) -> Result<(), JournalError> {
        let set = self.connection.pragma_update(None, "synchronous", how);
        set.map_err(|error| self.error(error))
    }

    /// Runs `write`. If it fails because of a status table, drops that table and runs `write`
    /// again, which creates it anew. If the same table fails again, it is not written until the
    /// next start.
    pub(super) fn mending<T>(
        &mut self,
        mut write: impl FnMut(&mut Core) -> Result<T, WriteFailed>,
    ) -> Result<T, JournalError> {
        let mut mended = HashSet::new();
        loop {
            let failed = match write(self) {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            // The transaction was rolled back, and with it the definitions it may have added.
            self.forget_definitions();
            self.relations.layouts.clear();
            let (relation, error) = match failed {
                WriteFailed::Sqlite(error) => return Err(self.error(error)),
                WriteFailed::Journal(error) => return Err(error),
                WriteFailed::Relation(relation, error) => (relation, error),
            };
            let workflow = &relation.workflow;
            let is_damaged = error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt);
            if mended.insert(relation.key()) && self.discarded(&relation, is_damaged)? {
                tracing::warn!(
                    workflow,
                    %error,
                    "the table of statuses cannot be used: it is made anew"
                );
            } else {
                tracing::error!(
                    workflow,
                    %error,
                    "the table of statuses cannot be made: until the next start it is not written"
                );
                self.relations.given_up.insert(relation.key());
            }
        }
    }

    /// Drops a status table; returns false if that fails because of the table itself.
    fn discarded(&mut self, relation: &Relation, is_damaged: bool) -> Result<bool, JournalError> {
        let mut discard = || {
            let transaction = self.connection.transaction()?;
            relation.discard(&transaction, is_damaged)?;
            transaction.commit()
        };
        match discard() {
            Ok(()) => Ok(true),
            Err(error) if is_of_relation(&error) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Returns all jobs that take input, parents before their children, with their open effects.
    pub(super) fn recover(&mut self) -> Result<Vec<Recovered>, JournalError> {
        let (sender, families) = mpsc::channel();
        // The receiver lives until all are found.
        self.each_family(&|family| drop(sender.send(family)))?;
        drop(sender);
        let mut recovered: Vec<Recovered> = families.into_iter().flatten().collect();
        recovered.sort_unstable_by_key(|recovered| recovered.number);
        Ok(recovered)
    }

    /// Passes all jobs that take input to `each`, one job tree at a time. Each CPU core rebuilds a
    /// part of them, over a connection of its own.
    pub(super) fn each_family(&mut self, each: EachFamily<'_>) -> Result<(), JournalError> {
        self.derive()?;
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let JobParts { mut jobs, definitions } = JobParts::of(&self.rows(), cores)?;
        let own = jobs.pop().unwrap_or_default();
        let (path, file, is_derived) = (&self.path, &*self.file, self.is_all_derived());
        std::thread::scope(|scope| {
            let part = |jobs: Vec<JobRow>| {
                let definitions = definitions.clone();
                scope.spawn(move || {
                    let connection = read_only(path).map_err(|error| failed(file, &error))?;
                    let rows = FileRows { connection: &connection, file, is_derived };
                    recover::families(&rows, jobs, definitions, each)
                })
            };
            let others: Vec<_> = jobs.into_iter().map(part).collect();
            recover::families(&self.rows(), own, definitions.clone(), each)?;
            for other in others {
                other.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            }
            Ok(())
        })
    }

    fn is_all_derived(&self) -> bool {
        self.tail.is_empty() && self.confirms.is_empty()
    }

    fn rows(&self) -> FileRows<'_> {
        FileRows {
            connection: &self.connection,
            file: &self.file,
            is_derived: self.is_all_derived(),
        }
    }

    /// Clears the cache of definitions, because a transaction that failed may have added some.
    pub(super) fn forget_definitions(&mut self) {
        self.definitions.clear();
        self.latest = None;
    }

    /// Returns an error after an I/O error: then nothing is written any more.
    pub(super) fn unless_broken(&self) -> Result<(), JournalError> {
        let broken = |what: &String| JournalError::Failed {
            file: self.file.to_string(),
            what: what.clone(),
            remedy: Remedy::Exit,
        };
        self.broken.as_ref().map_or(Ok(()), |what| Err(broken(what)))
    }

    pub(super) fn error(&self, error: rusqlite::Error) -> JournalError {
        if is_unwritten(&error) && self.reserve.finds_no_room() {
            return JournalError::Failed {
                file: self.file.to_string(),
                what: format!("{error}. It needs room: on its disk, or by its user's quota"),
                remedy: Remedy::WaitForRoom,
            };
        }
        let error = failed(&self.file, &error);
        self.is_locked.set(error.remedy() == Remedy::WaitForLock);
        error
    }
}

fn lock(path: &Path, file: &str) -> Result<Lock, JournalError> {
    let lock = place::beside(path, ".lock");
    Lock::take(&lock).map_err(|not_taken| match not_taken {
        NotTaken::InUse => {
            JournalError::InUse { file: file.to_owned(), lock: lock.display().to_string() }
        }
        NotTaken::Failed(error) => JournalError::Lock { lock: lock.display().to_string(), error },
    })
}

impl Drop for Core {
    /// Writes everything that is committed to the main file, so that it can be copied alone.
    fn drop(&mut self) {
        if self.is_lost {
            // The name may lead to another program's file, whose -wal would be removed.
            if let Err(error) = schema::leave_wal(&self.connection, true) {
                tracing::error!(%error, "the journal may be written once more when it is closed");
            }
            return;
        }
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.derive() {
            tracing::warn!(
                journal = &*self.file,
                %error,
                "what follows from the newest commits is derived at the next start"
            );
        }
        let written = self.or_in_reserve(Use::Empty, |core| {
            let whole = schema::checkpoint(&core.connection, schema::Checkpoint::Whole);
            whole.map_err(|error| core.error(error))
        });
        match written {
            Ok(true) => {}
            Ok(false) => tracing::warn!(
                journal = &*self.file,
                "another program reads the journal: the newest commits stay in its -wal. \
                 To copy it, copy all its files, or wait until that program ends"
            ),
            Err(error) => {
                tracing::warn!(
                    journal = &*self.file,
                    %error,
                    "the newest commits stay in the -wal: to copy the journal, copy all its files"
                )
            }
        }
        self.reserve.make();
    }
}

/// Lets tests make a write or a commit fail: `full` as on a full disk, anything else as on a broken
/// one.
pub(super) fn fail_point(name: &'static str) -> rusqlite::Result<()> {
    let code = match faults::hit(name).as_deref() {
        None => return Ok(()),
        Some("full") => rusqlite::ffi::SQLITE_FULL,
        Some(_) => rusqlite::ffi::SQLITE_IOERR,
    };
    Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None))
}
