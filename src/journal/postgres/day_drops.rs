//! Drops the days whose jobs are all past their retention, as a whole.
//!
//! A survey in the background finds such a day. From then on its jobs take no more input: the day
//! is *closing*. Then it is detached, also in the background, because that waits for every reader
//! that has begun before. At last a transaction that locks the fence drops its tables. After a
//! crash the next survey finds a day that is detached, or is being detached, and goes on with it.

use super::commit_connection::BatchStatement;
use super::connection::{Connection, params};
use super::day_keeper::Work;
use super::day_survey::{
    PastDay, RetentionLimits, Survey, UNPARTITIONED, detach, stay_sql, survey,
};
use super::days::{TABLES, partition};
use super::writer::PostgresWriter;
use crate::error::{JournalError, Remedy};
use crate::numbers::Day;
use crate::record::Deletion;
use base::{clock, faults};
use engine::Timestamp;
use std::collections::BTreeSet;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

/// How often the days are surveyed at most.
const SURVEY_INTERVAL: Duration = Duration::from_secs(60);

/// How long dropping a day waits for whoever reads its tables.
const DROP_LOCK_TIMEOUT: &str = "200ms";

impl PostgresWriter {
    /// Goes on with what is to be done for the days.
    pub(super) fn keep_days(
        &mut self,
        now: Timestamp,
        limits: &RetentionLimits,
    ) -> Result<(), JournalError> {
        match std::mem::replace(&mut self.days.work, Work::None) {
            Work::None => self.start_survey(now, limits),
            Work::Survey(end) => match end.try_recv() {
                Ok(Survey { past_days, interrupted }) => {
                    self.days.closing.extend(interrupted);
                    for past_day in past_days {
                        let closed = self.close_day(past_day, limits);
                        tolerate(closed)?;
                    }
                    self.start_detach();
                }
                Err(TryRecvError::Empty) => self.days.work = Work::Survey(end),
                Err(TryRecvError::Disconnected) => {}
            },
            Work::Detach(end) => match end.try_recv() {
                Ok(days) => self.drop_days(days)?,
                Err(TryRecvError::Empty) => self.days.work = Work::Detach(end),
                Err(TryRecvError::Disconnected) => {}
            },
        }
        Ok(())
    }

    fn start_survey(&mut self, now: Timestamp, limits: &RetentionLimits) {
        let is_early = self.days.surveyed.elapsed() < SURVEY_INTERVAL;
        if is_early && faults::hit("postgres::survey").is_none() {
            return;
        }
        self.days.surveyed = clock::instant();
        let (today, ordinal, limits) = (Day::of_time(now), self.ordinal, limits.clone());
        let is_new_day = today > self.days.analyzed;
        self.days.analyzed = self.days.analyzed.max(today);
        let end = self.commits.start_work(async move |connection: Connection| {
            survey(&connection, today, is_new_day, ordinal, &limits).await
        });
        self.days.work = Work::Survey(end);
    }

    /// Closes a day, unless one of its jobs has changed since the survey: from now on none does.
    fn close_day(
        &mut self,
        past_day: PastDay,
        limits: &RetentionLimits,
    ) -> Result<(), JournalError> {
        let PastDay { day, roots, jobs, open } = past_day;
        let params = params![limits.definitions.clone(), limits.before.clone()];
        let rows = self.commits.query(stay_sql(day), params)?;
        if rows.first().is_none_or(|row| row.get(0)) {
            return Ok(());
        }
        if jobs > 0 {
            tracing::info!(
                day = day.date(),
                jobs,
                "a day whose jobs are past their retention goes"
            );
        }
        self.days.closing.insert(day);
        if self.commits.committed_row().is_some_and(|(job, _)| self.days.is_closing(job)) {
            self.commits.set_committed_row(None);
        }
        let maybe_active = open;
        let closed = Deletion { roots, rows: jobs, maybe_active, ..Deletion::default() };
        self.unreported.add(closed);
        Ok(())
    }

    fn start_detach(&mut self) {
        if self.days.closing.is_empty() {
            return;
        }
        let (days, ordinal) = (self.days.closing.clone(), self.ordinal);
        let end = self.commits.start_work(async move |connection: Connection| {
            detach(&connection, &days, ordinal).await
        });
        self.days.work = Work::Detach(end);
    }

    /// Drops days that are detached. Those that are attached again take input again.
    fn drop_days(&mut self, days: BTreeSet<Day>) -> Result<(), JournalError> {
        for day in &days {
            let tables = TABLES.map(|(table, _)| partition(table, *day)).join(", ");
            let sql = format!("DROP TABLE IF EXISTS {tables}");
            let limit = "SELECT set_config('lock_timeout', $1, true)";
            let deletions = UNPARTITIONED.map(|table| BatchStatement {
                sql: format!("DELETE FROM {table} WHERE job >= $1 AND job < $2").into(),
                params: params![day.first(), day.end()],
            });
            let mut statements = vec![
                // Who reads a table by its name, as a backup does, must not keep commits waiting.
                BatchStatement::new(limit, params![DROP_LOCK_TIMEOUT]),
                BatchStatement { sql: sql.into(), params: params![] },
            ];
            statements.extend(deletions);
            tolerate(self.commits.transact(statements).map(drop))?;
        }
        self.days.closing.clear();
        Ok(())
    }
}

/// Reports an error for which the journal goes on: a day has to wait, or another manager was
/// faster. The next survey looks at the day again.
fn tolerate(result: Result<(), JournalError>) -> Result<(), JournalError> {
    match result {
        Err(error) if error.remedy() == Remedy::Exit && !error.is_fenced() => {
            tracing::warn!(%error, "a day of the journal cannot be dropped now");
            Ok(())
        }
        result => result,
    }
}
