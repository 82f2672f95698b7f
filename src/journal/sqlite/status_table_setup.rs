//! Creates the status tables of the loaded definitions before their first jobs.

use super::row_format::to_journal_error;
use super::status_table::{RowCount, StatusTable, WriteError, count_root_jobs};
use super::writer::JournalWriter;
use crate::error::JournalError;
use engine::Definition;
use std::collections::HashMap;

impl JournalWriter {
    /// Creates what is missing of the status tables of `definitions`: tables, columns, indexes, and
    /// rows. Called when definitions are loaded, before their first jobs.
    ///
    /// # Errors
    ///
    /// Returns an error if SQLite fails, or if a job from which a row is projected is damaged.
    pub(super) fn create_status_tables<'a>(
        &mut self,
        definitions: impl IntoIterator<Item = &'a Definition>,
    ) -> Result<(), JournalError> {
        self.project()?;
        let counts = count_root_jobs(&self.connection)
            .map_err(|error| to_journal_error(&self.file, error))?;
        for definition in definitions {
            self.write_with_repair(|writer| writer.create_status_table(definition, &counts))?;
        }
        Ok(())
    }

    /// Creates what is missing of the status table of a definition. A table whose row count does
    /// not match the root jobs of the workflow is recreated.
    fn create_status_table(
        &mut self,
        definition: &Definition,
        counts: &HashMap<String, RowCount>,
    ) -> Result<(), WriteError> {
        let table = StatusTable::for_definition(definition);
        if self.status_tables.unusable.contains(&table.key()) {
            return Ok(());
        }
        let transaction = self.connection.transaction()?;
        let is_new = table.ensure_exists(&transaction, &self.file, definition)?;
        let expected_count = counts.get(&table.key()).copied().unwrap_or_default();
        if !is_new && table.row_count(&transaction)? != expected_count {
            tracing::warn!(
                workflow = table.workflow,
                "the table of statuses does not have the rows of its jobs: it is recreated"
            );
            table
                .drop_if_exists(&transaction, false)
                .map_err(|error| table.to_write_error(error))?;
            table.ensure_exists(&transaction, &self.file, definition)?;
        }
        // The cached layouts lack the new columns.
        self.status_tables.layouts.clear();
        Ok(transaction.commit()?)
    }
}
