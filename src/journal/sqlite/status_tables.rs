//! Creates the status tables of the loaded definitions before their first jobs.

use super::core::Core;
use super::relation::{Relation, Tally, WriteFailed, tallies};
use super::row::damaged_or_failed;
use crate::engine::Definition;
use crate::journal::error::JournalError;
use std::collections::HashMap;

impl Core {
    /// Creates what is missing of the status tables of `definitions`: tables, columns, indexes, and
    /// the rows of the jobs in the journal. Called with the loaded definitions before their first
    /// jobs.
    ///
    /// # Errors
    ///
    /// Returns SQLite's errors, and an error if a job from which a row is projected is damaged.
    pub(super) fn make_status_tables<'a>(
        &mut self,
        definitions: impl IntoIterator<Item = &'a Definition>,
    ) -> Result<(), JournalError> {
        self.derive()?;
        let tallies =
            tallies(&self.connection).map_err(|error| damaged_or_failed(&self.file, error))?;
        for definition in definitions {
            self.mending(|core| core.make_status_table(definition, &tallies))?;
        }
        Ok(())
    }

    fn make_status_table(
        &mut self,
        definition: &Definition,
        tallies: &HashMap<String, Tally>,
    ) -> Result<(), WriteFailed> {
        let relation = Relation::of(definition);
        if self.relations.given_up.contains(&relation.key()) {
            return Ok(());
        }
        let transaction = self.connection.transaction()?;
        let is_new = relation.make(&transaction, &self.file, definition)?;
        let tally = tallies.get(&relation.key()).copied().unwrap_or_default();
        if !is_new && relation.tally(&transaction)? != tally {
            tracing::warn!(
                workflow = relation.workflow,
                "the table of statuses does not have the rows of its jobs: it is made anew"
            );
            relation.discard(&transaction, false).map_err(|error| relation.failed(error))?;
            relation.make(&transaction, &self.file, definition)?;
        }
        // The next record of a job finds the columns that it needs.
        self.relations.layouts.clear();
        Ok(transaction.commit()?)
    }
}
