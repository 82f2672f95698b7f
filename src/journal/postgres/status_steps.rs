//! The steps of workflows: which status columns a workflow has (`steps`), and which of them each
//! definition uses (`definition_steps`). For people, each workflow has a view `status_<full name>`
//! with a row for each root job and a column for each step.

use super::commit_connection::BatchStatement;
use super::connection::params;
use super::view_columns::{ViewColumn, arrange, has_columns, view_sql};
use super::writer::PostgresWriter;
use crate::error::{JournalError, Remedy};
use crate::sql::quote_identifier;
use engine::{Definition, DefinitionHash};

/// The longest identifier of PostgreSQL, in bytes. It truncates longer ones.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// The prefix of the names of views.
const VIEW_PREFIX: &str = "status_";

/// How long the creation of a view waits for whoever reads it.
const VIEW_LOCK_TIMEOUT: &str = "200ms";

const INSERT_DEFINITION: &str =
    "INSERT INTO definitions(hash, body) VALUES ($1, $2) ON CONFLICT (hash) DO NOTHING";

/// Inserts steps that are new, in the order of the definition.
const INSERT_STEPS: &str = "
INSERT INTO steps(workflow, name)
SELECT $1, u.name FROM unnest($2::text[]) WITH ORDINALITY AS u(name, position)
WHERE NOT EXISTS (SELECT 1 FROM steps s WHERE s.workflow = $1 AND s.name = u.name)
ORDER BY u.position
ON CONFLICT (workflow, name) DO NOTHING";

const INSERT_DEFINITION_STEPS: &str = "
INSERT INTO definition_steps(definition, index, step)
SELECT d.number, u.position - 1, s.id
FROM unnest($2::text[]) WITH ORDINALITY AS u(name, position)
JOIN steps s ON s.workflow = $1 AND s.name = u.name
JOIN definitions d ON d.hash = $3
ON CONFLICT (definition, index) DO NOTHING";

impl PostgresWriter {
    /// Inserts a definition with its steps, and returns its number.
    pub(super) fn insert_definition(
        &mut self,
        definition: &Definition,
        hash: DefinitionHash,
        body: String,
    ) -> Result<i64, JournalError> {
        let workflow = definition.full_name();
        let names = step_names(definition);
        let statements = vec![
            BatchStatement::new(INSERT_DEFINITION, params![hash.0.to_vec(), body]),
            BatchStatement::new(INSERT_STEPS, params![workflow.clone(), names.clone()]),
            BatchStatement::new(INSERT_DEFINITION_STEPS, params![workflow, names, hash.0.to_vec()]),
            BatchStatement::new(
                "SELECT number FROM definitions WHERE hash = $1",
                params![hash.0.to_vec()],
            ),
        ];
        let results = self.commits.transact(statements)?;
        let row = results.last().and_then(|rows| rows.first());
        let number = row.map(|row| row.get(0)).ok_or_else(|| {
            self.failure("a definition is missing after it was inserted".to_owned())
        })?;
        self.create_view(definition)?;
        self.definitions.insert(hash, number);
        Ok(number)
    }

    /// Creates the steps and the view of a definition that is loaded.
    pub(super) fn create_status_steps(
        &mut self,
        definition: &Definition,
    ) -> Result<(), JournalError> {
        let params = params![definition.full_name(), step_names(definition)];
        let of_name = BatchStatement::new(
            "UPDATE names SET workflows = array_append(workflows, $1)
             WHERE ordinal = $2 AND NOT $1 = ANY (workflows)",
            params![definition.full_name(), self.ordinal.0],
        );
        self.commits.transact(vec![BatchStatement::new(INSERT_STEPS, params), of_name])?;
        self.create_view(definition)
    }

    /// Creates the view of a workflow, or adds the columns of new steps. A view is only for people,
    /// so one that cannot be created now is reported and left to the next definition or start.
    fn create_view(&mut self, definition: &Definition) -> Result<(), JournalError> {
        let workflow = definition.full_name();
        let sql = "SELECT id, name FROM steps WHERE workflow = $1 ORDER BY id";
        let rows = self.commits.query(sql, params![workflow.clone()])?;
        let steps = rows.iter().map(|row| ViewColumn { step: Some(row.get(0)), name: row.get(1) });
        let cells = definition.columns.sql_names().map(ViewColumn::of_cell);
        let needed: Vec<ViewColumn> = steps.chain(cells).collect();
        let are_there = |columns: &Vec<ViewColumn>| {
            needed.iter().all(|needed| columns.iter().any(|column| column.name == needed.name))
        };
        if self.views.get(&workflow).is_some_and(are_there) {
            return Ok(());
        }
        let view = format!("{VIEW_PREFIX}{workflow}");
        let existing = self.load_view_columns(&view)?;
        let columns = arrange(&existing, needed);
        let names = columns.iter().map(|column| &column.name).chain([&view]);
        if let Some(name) = names.into_iter().find(|name| name.len() > IDENTIFIER_BYTES_MAX) {
            tracing::warn!(
                workflow,
                name,
                "the workflow gets no view of statuses: PostgreSQL truncates names after 63 bytes"
            );
        } else if !has_columns(&existing, &columns) {
            let limit = "SELECT set_config('lock_timeout', $1, true)";
            let statements = vec![
                // Whoever reads the view holds a lock on it, and must not keep commits waiting.
                BatchStatement::new(limit, params![VIEW_LOCK_TIMEOUT]),
                BatchStatement {
                    sql: view_sql(&view, &workflow, &columns).into(),
                    params: params![],
                },
            ];
            match self.commits.transact(statements) {
                Ok(_) => {}
                Err(error) if error.remedy() != Remedy::Exit || error.is_fenced() => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(workflow, %error, "the view of statuses cannot be created now");
                    return Ok(());
                }
            }
        }
        self.views.insert(workflow, columns);
        Ok(())
    }

    /// Returns the names of the columns of a view; none if it does not exist.
    fn load_view_columns(&mut self, view: &str) -> Result<Vec<String>, JournalError> {
        let sql = "SELECT attname::text FROM pg_attribute
                   WHERE attrelid = to_regclass($1) AND attnum > 0 ORDER BY attnum";
        let rows = self.commits.query(sql, params![quote_identifier(view)])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// Returns the names of the steps of the main graph, in order.
fn step_names(definition: &Definition) -> Vec<String> {
    definition.graph().steps.iter().map(|step| step.name.to_string()).collect()
}
