//! The relations of statuses (SPEC §7): for each workflow a table `status_<full name>` with a row
//! for each of its top-level jobs and a column for each step of its own graph, for any SQLite
//! client to read.
//!
//! They are derived: a row follows from its job's entries, and is written in the transaction that
//! writes these. Nothing is ever rebuilt from them. One that is missing, was altered or is damaged
//! is made anew; one that cannot be made is done without.

use super::relation::{Change, Failed, Layout, Relation};
use super::rows::FileRows;
use crate::engine::{Entry, Timestamp};
use crate::faults;
use crate::journal::record::{JobNumber, Record};
use crate::journal::recover::Rebuild;
use rusqlite::{Connection, OptionalExtension};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What the writer knows of the relations.
#[derive(Default)]
pub(super) struct Relations {
    /// Where the statuses of a definition's steps go, by the definition's number.
    pub(super) layouts: HashMap<i64, Option<Arc<Layout>>>,
    /// Those that cannot be made.
    pub(super) given_up: HashSet<String>,
}

/// What one transaction changes in the relations: for each job one row, written once.
#[derive(Default)]
pub(super) struct Changes<'a> {
    places: HashMap<JobNumber, usize>,
    changes: Vec<Change<'a>>,
}

impl<'a> Changes<'a> {
    /// Adds what a record changes; `definition` is the number of the definition of a job that is
    /// new.
    pub(super) fn add(&mut self, record: &'a Record, definition: Option<i64>) {
        let created = record.created.as_ref();
        let is_child = created.is_some_and(|created| created.parent.is_some());
        if is_child || (created.is_none() && record.state.is_none() && record.statuses.is_empty()) {
            return;
        }
        let created = created
            .zip(definition)
            .map(|(created, definition)| (created.origin.id, created.origin.created, definition));
        let place = *self.places.entry(record.job).or_insert_with(|| {
            let updated = created.map_or(Timestamp::default(), |(_, at, _)| at);
            self.changes.push(Change {
                job: record.job,
                created,
                state: None,
                updated,
                statuses: Vec::new(),
            });
            self.changes.len() - 1
        });
        let change = &mut self.changes[place];
        change.created = change.created.or(created);
        change.state = record.state.or(change.state);
        if record.recorded.entries.iter().any(Entry::is_change) {
            change.updated = record.recorded.at;
        }
        if faults::planted("only the first statuses of a group written")
            && !change.statuses.is_empty()
        {
            return;
        }
        for (step, status) in &record.statuses {
            match change.statuses.iter_mut().find(|(known, _)| known == step) {
                Some((_, known)) => *known = status,
                None => change.statuses.push((*step, status)),
            }
        }
    }
}

impl Relations {
    /// Writes what a transaction changes, behind its entries.
    pub(super) fn write(
        &mut self,
        connection: &Connection,
        file: &str,
        changes: &Changes<'_>,
    ) -> Result<(), Failed> {
        for change in &changes.changes {
            let definition = match change.created {
                Some((_, _, definition)) => Some(definition),
                // None of a child job, and of a job that was deleted.
                None => connection
                    .prepare_cached(
                        "SELECT definition FROM jobs WHERE number = ?1 AND parent IS NULL",
                    )?
                    .query_row([change.job], |row| row.get(0))
                    .optional()?,
            };
            let Some(definition) = definition else { continue };
            if let Some(layout) = self.layout(connection, file, definition)? {
                layout.write(connection, change).map_err(|error| layout.relation.failed(error))?;
            }
        }
        Ok(())
    }

    /// Deletes the row of a top-level job.
    pub(super) fn delete(
        &self,
        connection: &Connection,
        workflow: &str,
        job: JobNumber,
    ) -> Result<(), Failed> {
        let relation = Relation::named(workflow);
        if relation.kind(connection)?.is_none() {
            return Ok(());
        }
        let delete = || {
            connection
                .prepare_cached(&format!("DELETE FROM {} WHERE _rowid_ = ?1", relation.quoted()))?
                .execute([job])
        };
        if !self.given_up.contains(&relation.key()) {
            delete().map_err(|error| relation.failed(error))?;
        }
        Ok(())
    }

    /// The layout for the jobs of a definition; makes their relation as far as it is missing.
    fn layout(
        &mut self,
        connection: &Connection,
        file: &str,
        number: i64,
    ) -> Result<Option<Arc<Layout>>, Failed> {
        if let Some(known) = self.layouts.get(&number) {
            return Ok(known.clone());
        }
        let definition = Rebuild::new(&FileRows { connection, file }).definition(number)?;
        let relation = Relation::of(&definition);
        let layout = if self.given_up.contains(&relation.key()) {
            None
        } else {
            relation.make(connection, file, &definition)?;
            Some(Arc::new(relation.layout(connection, &definition)?))
        };
        self.layouts.insert(number, layout.clone());
        Ok(layout)
    }
}
