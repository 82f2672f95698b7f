//! Parses the label and the columns of a workflow, and checks their names and expressions.

use super::conditions::{CompiledConditions, ValueUse, report_mistakes, report_no_value};
use super::diagnostics::Diagnostics;
use super::draft::{ColumnsDraft, ConditionDraft, WorkflowDraft};
use super::fields::Fields;
use super::location::SourceLocation;
use super::options::parse_condition;
use super::values::{LocatedText, describe, name_error};
use super::yaml::{Entry, Value};
use engine::columns::COLUMNS_MAX;
use engine::text::quote;
use engine::{Column, Columns, Expression, LABEL};

/// The longest name of a column, in bytes: that of a column in PostgreSQL.
pub(super) const COLUMN_NAME_BYTES_MAX: usize = 63;

/// The names that lists of jobs, their parameters and the table of statuses have for themselves, in
/// lower case.
const FIXED_NAMES: [&str; 17] = [
    LABEL, "id", "job", "number", "workflow", "state", "status", "reason", "created", "updated",
    "ended", "schedule", "slot", "startsat", "parent", "step", "steps",
];

/// The names of columns that each table of a database has, in lower case.
const SYSTEM_NAMES: [&str; 8] =
    ["rowid", "oid", "tableoid", "ctid", "xmin", "xmax", "cmin", "cmax"];

/// Parses the keys `label` and `columns` of a workflow.
pub(super) fn parse_columns(fields: &Fields<'_>, report: &mut Diagnostics) -> ColumnsDraft {
    let label = fields.get("label").and_then(|entry| parse_condition(entry, report));
    let columns = fields.get("columns").map_or_else(Vec::new, |entry| parse_mapping(entry, report));
    ColumnsDraft { label, columns }
}

fn parse_mapping(entry: &Entry, report: &mut Diagnostics) -> Vec<(LocatedText, ConditionDraft)> {
    let Value::Map(entries) = &entry.value.value else {
        if !matches!(entry.value.value, Value::Invalid) {
            let message = format!(
                "\"columns\" takes a mapping, such as {{ order: job.order }}, found {}",
                describe(&entry.value)
            );
            report.add_error(entry.location(), message);
        }
        return Vec::new();
    };
    if let Some(excess) = entries.get(COLUMNS_MAX) {
        report.add_error(
            excess.key.location,
            format!(
                "a workflow has {} columns, more than the {COLUMNS_MAX} allowed",
                entries.len()
            ),
        );
    }
    let mut columns: Vec<(LocatedText, ConditionDraft)> = Vec::new();
    for entry in entries.iter().take(COLUMNS_MAX) {
        let name = LocatedText { location: entry.key.location, text: entry.key.text.clone() };
        check_name(&name, &columns, report);
        if let Some(value) = parse_condition(entry, report) {
            columns.push((name, value));
        }
    }
    columns
}

/// Reports a name that cannot be a column, or that an earlier column has in another case.
fn check_name(
    name: &LocatedText,
    earlier: &[(LocatedText, ConditionDraft)],
    report: &mut Diagnostics,
) {
    let lower = name.text.to_ascii_lowercase();
    if let Some(error) = name_error(&name.text) {
        report.add_error(name.location, error);
    } else if name.text.len() > COLUMN_NAME_BYTES_MAX {
        report.add_error(
            name.location,
            format!(
                "the name of the column has {} characters, more than the {COLUMN_NAME_BYTES_MAX} \
                 of a column in SQL",
                name.text.len()
            ),
        );
    } else if FIXED_NAMES.contains(&lower.as_str()) || SYSTEM_NAMES.contains(&lower.as_str()) {
        report.add_error(
            name.location,
            format!(
                "the name {} is taken: lists of jobs and the table of statuses have it for \
                 themselves; take a more exact one, such as {}",
                quote(&name.text),
                quote(&format!("order-{}", name.text))
            ),
        );
    } else if let Some((first, _)) =
        earlier.iter().find(|(first, _)| first.text.eq_ignore_ascii_case(&name.text))
    {
        report.add_error(
            name.location,
            format!(
                "differs from the column {}, at {}, only in upper and lower case; the table of \
                 statuses cannot tell them apart",
                quote(&first.text),
                first.location
            ),
        );
    }
}

impl ColumnsDraft {
    /// Compiles the label and the columns of a workflow, and checks them against its steps.
    pub(super) fn compile(
        &self,
        workflow: &WorkflowDraft,
        conditions: &mut CompiledConditions,
        report: &mut Diagnostics,
    ) -> Columns {
        let mut compile = |name: &str, draft: &ConditionDraft, report: &mut Diagnostics| {
            let value = conditions.compile(draft, report)?;
            check_value(name, draft, &value, workflow, report);
            Some(value)
        };
        let mut compiled = Columns::default();
        if let Some(label) = &self.label {
            check_step_names(LABEL, label.location, workflow, report);
            compiled.label = compile(LABEL, label, report);
        }
        for (name, value) in &self.columns {
            check_step_names(&name.text, name.location, workflow, report);
            if let Some(value) = compile(&name.text, value, report) {
                compiled.list.push(Column { name: name.text.as_str().into(), value });
            }
        }
        compiled
    }
}

/// Reports a step that has the name of a column, which would be beside it in the table of statuses.
fn check_step_names(
    name: &str,
    location: SourceLocation,
    workflow: &WorkflowDraft,
    report: &mut Diagnostics,
) {
    let step_names = workflow.graph.steps.iter().filter_map(|step| step.name.as_ref());
    if let Some(step) = step_names.into_iter().find(|step| step.text.eq_ignore_ascii_case(name)) {
        report.add_error(
            location,
            format!(
                "the step at {} has the name {} too, and both are columns of the table of \
                 statuses: rename one of them",
                step.location,
                quote(&step.text)
            ),
        );
    }
}

/// Reports an expression that cannot be a value of its jobs.
fn check_value(
    name: &str,
    draft: &ConditionDraft,
    value: &Expression,
    workflow: &WorkflowDraft,
    report: &mut Diagnostics,
) {
    report_mistakes(name, draft, value, report);
    let step_names =
        || workflow.graph.steps.iter().filter_map(|step| Some(step.name.as_ref()?.text.as_str()));
    for step in value.steps() {
        if !step_names().any(|step_name| step_name == step) {
            let suggestion = report.suggest(step, step_names());
            report.add_error(
                draft.locate_step(step),
                format!(
                    "{} looks at the step {}, which is not a step of the workflow{suggestion}",
                    quote(name),
                    quote(step)
                ),
            );
        }
    }
    let value_use = ValueUse { noun: "a column", other_source: "steps", example: "job.order" };
    report_no_value(name, draft.location, value, value_use, report);
}
