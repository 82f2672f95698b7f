//! The columns of a view `status_<full name>`: those of the job, and after them statuses and cells.

use crate::sql::quote_identifier;

/// The columns of a view before those of the steps.
const JOB_COLUMNS: [&str; 5] = ["number", "job", "state", "created", "updated"];

/// A column of a view after those of the job.
#[derive(Clone)]
pub(super) struct ViewColumn {
    /// The id of the step whose status it shows; `None`: it shows a cell.
    pub(super) step: Option<i32>,
    pub(super) name: String,
}

impl ViewColumn {
    pub(super) fn of_cell(name: &str) -> ViewColumn {
        ViewColumn { step: None, name: name.to_owned() }
    }
}

/// Returns the columns of a view after those of the job: first those that it has, since PostgreSQL
/// adds columns to a view at its end only. Of two columns of a name the first one stays.
pub(super) fn arrange(existing: &[String], needed: Vec<ViewColumn>) -> Vec<ViewColumn> {
    let mut columns: Vec<ViewColumn> = Vec::new();
    for name in existing.iter().skip(JOB_COLUMNS.len()) {
        let known = needed.iter().find(|column| column.name == *name);
        columns.push(known.cloned().unwrap_or_else(|| ViewColumn::of_cell(name)));
    }
    for column in needed {
        // A step may have the name of a column of the job that only this journal has.
        let is_taken = JOB_COLUMNS.contains(&&*column.name);
        if !is_taken && !columns.iter().any(|other| other.name == column.name) {
            columns.push(column);
        }
    }
    columns
}

/// Returns whether a view whose columns are `existing` has these after those of the job.
pub(super) fn has_columns(existing: &[String], columns: &[ViewColumn]) -> bool {
    let names = columns.iter().map(|column| column.name.as_str());
    existing.iter().map(String::as_str).eq(JOB_COLUMNS.into_iter().chain(names))
}

/// Returns the SQL that creates a view, with these columns.
pub(super) fn view_sql(view: &str, workflow: &str, columns: &[ViewColumn]) -> String {
    // Times are stored in nanoseconds.
    let time = |expression: &str| format!("to_timestamp({expression} / 1e9)");
    let steps = || columns.iter().filter_map(|column| column.step);
    let latest: String = steps().map(|id| format!(", s{id}.at")).collect();
    let mut sql = format!(
        "CREATE OR REPLACE VIEW {} AS SELECT j.number, j.id AS job, j.state, {} AS created, \
         {} AS updated",
        quote_identifier(view),
        time("j.created"),
        time(&format!("greatest(j.changed{latest})"))
    );
    let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
    for ViewColumn { step, name } in columns {
        let value = match step {
            Some(id) => format!("coalesce(s{id}.word, '')"),
            None => format!(
                "(SELECT c.value FROM cells c WHERE c.job = j.number AND c.name = {})",
                literal(name)
            ),
        };
        sql.push_str(&format!(", {value} AS {}", quote_identifier(name)));
    }
    sql.push_str(" FROM jobs j");
    for id in steps() {
        sql.push_str(&format!(
            " LEFT JOIN statuses s{id} ON s{id}.job = j.number AND s{id}.step = {id}"
        ));
    }
    sql.push_str(&format!(" WHERE j.parent IS NULL AND j.workflow = {}", literal(workflow)));
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_step(id: i32, name: &str) -> ViewColumn {
        ViewColumn { step: Some(id), name: name.to_owned() }
    }

    #[test]
    fn names_cannot_leave_their_quotes() {
        let columns = [of_step(7, "s\"'"), ViewColumn::of_cell("c\"'")];
        let sql = view_sql("status_a\"b'c", "a\"b'c", &columns);
        assert!(sql.contains("VIEW \"status_a\"\"b'c\" AS"), "{sql}");
        assert!(sql.contains("j.workflow = 'a\"b''c'"), "{sql}");
        assert!(sql.contains("coalesce(s7.word, '') AS \"s\"\"'\""), "{sql}");
        assert!(sql.contains("c.name = 'c\"''') AS \"c\"\"'\""), "{sql}");
    }

    #[test]
    fn a_view_keeps_its_columns_and_gets_new_ones_at_its_end() {
        let existing = [&JOB_COLUMNS[..], &["a", "order", "gone"]].concat();
        let existing: Vec<String> = existing.into_iter().map(str::to_owned).collect();
        let cells = ["order", "new"].map(ViewColumn::of_cell);
        let needed = [of_step(1, "a"), of_step(3, "number"), of_step(2, "b")]
            .into_iter()
            .chain(cells)
            .collect();
        let columns = arrange(&existing, needed);
        let names: Vec<(&str, bool)> =
            columns.iter().map(|column| (&*column.name, column.step.is_some())).collect();
        assert_eq!(
            names,
            [("a", true), ("order", false), ("gone", false), ("b", true), ("new", false)]
        );
        assert!(!has_columns(&existing, &columns));
        assert!(has_columns(&existing, &columns[..3]));
    }
}
