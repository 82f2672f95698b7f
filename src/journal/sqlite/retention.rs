//! How long ended jobs are kept: as long as their definition says (key `retention`), else as long
//! as the setting.

use super::core::Core;
use super::relation::WriteFailed;
use crate::engine::{JobId, Millis, Timestamp};
use crate::journal::error::{JournalError, Remedy};
use crate::journal::record::{Deleted, JobNumber, Open};
use rusqlite::{OptionalExtension, params};

impl Core {
    /// Deletes up to `limit` top-level jobs, with their children, that ended long enough ago. The
    /// definition that a job started with says how long it is kept. If it says nothing, `kept`
    /// does.
    pub(super) fn delete_ended(
        &mut self,
        now: Timestamp,
        kept: Millis,
        limit: u32,
    ) -> Result<Deleted, JournalError> {
        match self.derive() {
            Err(error) if error.remedy() == Remedy::Exit => return Err(error),
            // What is not derived is not deleted.
            Ok(()) | Err(_) => {}
        }
        let roots = self.past_retention(now, kept, limit).map_err(|error| self.error(error))?;
        self.delete(&roots)
    }

    /// Deletes top-level jobs by number, with their children; not those that run.
    pub(super) fn delete(&mut self, roots: &[JobNumber]) -> Result<Deleted, JournalError> {
        if roots.is_empty() {
            return Ok(Deleted::default());
        }
        let roots = self.deletable(roots)?;
        let (deleted, numbers) = self.with_reserve(|core| core.delete_in_transaction(&roots))?;
        numbers.into_iter().for_each(|number| self.confirms.written(number));
        Ok(deleted)
    }

    /// Those of these jobs that can be deleted: all, once everything is derived. While there is no
    /// room for that, a deletion has to make it: of jobs for which nothing is left to derive.
    fn deletable(&mut self, roots: &[JobNumber]) -> Result<Vec<JobNumber>, JournalError> {
        let no_room = match self.derive() {
            Ok(()) => return Ok(roots.to_vec()),
            Err(error) => match error.remedy() {
                Remedy::WaitForRoom => error,
                Remedy::Exit => return Err(error),
            },
        };
        let mut derived = Vec::new();
        for root in roots {
            if self.is_derived(*root).map_err(|error| self.error(error))? {
                derived.push(*root);
            }
        }
        if derived.is_empty() { Err(no_room) } else { Ok(derived) }
    }

    /// Whether nothing is left to derive of a top-level job and its child jobs.
    fn is_derived(&self, root: JobNumber) -> rusqlite::Result<bool> {
        if self.tail.has_new_of(root) {
            return Ok(false);
        }
        let mut family =
            self.connection.prepare_cached("SELECT number FROM jobs WHERE root = ?1")?;
        let family = family.query_map([root], |row| row.get::<_, JobNumber>(0))?;
        let numbers: Vec<JobNumber> = family.collect::<rusqlite::Result<_>>()?;
        Ok(numbers.into_iter().all(|number| self.tail.last_of(number).is_none()))
    }

    fn past_retention(
        &mut self,
        now: Timestamp,
        kept: Millis,
        limit: u32,
    ) -> rusqlite::Result<Vec<JobNumber>> {
        self.learn_retentions()?;
        let sql = "SELECT number FROM jobs WHERE parent IS NULL AND ended IS NOT NULL \
                   AND definition = ?1 AND ended < ?2 ORDER BY ended LIMIT ?3";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut roots: Vec<JobNumber> = Vec::new();
        for (definition, own) in &self.retentions {
            let left = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(roots.len());
            let before = now.before(own.unwrap_or(kept));
            for root in statement.query_map(
                params![definition, before.0, i64::try_from(left).unwrap_or(i64::MAX)],
                |row| row.get(0),
            )? {
                roots.push(root?);
            }
        }
        Ok(roots)
    }

    /// Definitions are only ever added, and never change.
    fn learn_retentions(&mut self) -> rusqlite::Result<()> {
        let known = self.retentions.last_key_value().map_or(0, |(number, _)| *number);
        let sql = "SELECT number, CASE WHEN json_valid(body) THEN json_extract(body, \
                   '$.retention') END FROM definitions WHERE number > ?1";
        let mut statement = self.connection.prepare_cached(sql)?;
        for row in
            statement.query_map([known], |row| Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?)))?
        {
            let (number, millis) = row?;
            self.retentions
                .insert(number, millis.and_then(|millis| u64::try_from(millis).ok()).map(Millis));
        }
        Ok(())
    }

    fn delete_in_transaction(
        &mut self,
        roots: &[JobNumber],
    ) -> Result<(Deleted, Vec<JobNumber>), WriteFailed> {
        let transaction = self.connection.transaction()?;
        let (mut deleted, mut numbers) = (Deleted::default(), Vec::new());
        for root in roots {
            let found: Option<(String, bool)> = transaction
                .prepare_cached(
                    "SELECT workflow, ended IS NULL FROM jobs WHERE number = ?1 AND parent IS NULL",
                )?
                .query_row([root], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            match found {
                None => {}
                Some((_, true)) => {
                    deleted.left += 1;
                    continue;
                }
                Some((workflow, false)) => {
                    self.relations.delete(&transaction, &workflow, *root)?;
                    deleted.roots += 1;
                }
            }
            let mut open = transaction.prepare_cached(
                "SELECT id, number FROM jobs WHERE root = ?1 AND (open = 1 OR number = ?1)",
            )?;
            let open = open.query_map([root], |row| {
                Ok(Open { id: JobId(uuid::Uuid::from_bytes(row.get(0)?)), number: row.get(1)? })
            })?;
            deleted.open.extend(open.collect::<rusqlite::Result<Vec<Open>>>()?);
            let mut all = transaction.prepare_cached("SELECT number FROM jobs WHERE root = ?1")?;
            let all = all.query_map([root], |row| row.get::<_, JobNumber>(0))?;
            for number in all.collect::<rusqlite::Result<Vec<JobNumber>>>()? {
                let own =
                    "DELETE FROM entries WHERE seq IN (SELECT seq FROM places WHERE job = ?1)";
                transaction.prepare_cached(own)?.execute([number])?;
                transaction
                    .prepare_cached("DELETE FROM places WHERE job = ?1")?
                    .execute([number])?;
                numbers.push(number);
            }
            transaction.prepare_cached("DELETE FROM jobs WHERE root = ?1")?.execute([root])?;
        }
        transaction.commit()?;
        Ok((deleted, numbers))
    }
}
