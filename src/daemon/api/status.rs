//! Streams the statuses of a workflow's jobs (docs/reference/http-api-jobs.md), as a page of JSON
//! or as one CSV file.

use super::problem::Problem;
use super::query::{self, Query};
use super::reads::stream_chunks;
use super::resolve::{load_status_columns, resolve_workflow};
use super::route::*;
use crate::api::state::ApiState;
use crate::view::CellsView;
use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use engine::id::InvalidJobId;
use engine::text::{did_you_mean, escape, quote};
use engine::{Columns, Definition, JobId, JobState, NamedCell};
use journal::{JobNumber, JournalError, Records};
use journal::{NEWEST_CURSOR, StatusFilter, StatusRow};
use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) const ROUTES: &[ApiRoute] =
    &[ApiRoute::get("/api/status/{name:.*}", || web::to(list_statuses)).operation(|_| {
        let summary = "The status of every step of a workflow's jobs; any other parameter is the \
                   name of a step, with the status that it must have";
        OperationSpec::new("listStatuses", "workflows", summary)
            .with_parameters(&[VHOST, JOB, STATE, LIMIT, CURSOR])
            .with_json_response(200, "The rows", sheet_schema())
            .with_response(200, "The rows", CSV_TYPE, text_schema())
            .with_problems(&[404])
    })];

/// The content type of CSV with a header line.
const CSV_TYPE: &str = "text/csv; charset=utf-8; header=present";

/// Returns the schema of a JSON response. It is written by hand, because the rows are streamed: no
/// Rust type has the whole response.
fn sheet_schema() -> Value {
    let row = json!({
        "type": "object",
        "required": ["job", "state", "created", "updated", "steps"],
        "properties": {
            "job": { "type": "string", "format": "uuid" },
            "state": { "$ref": "#/components/schemas/JobState" },
            "created": { "type": "string", "format": "date-time" },
            "updated": { "type": "string", "format": "date-time" },
            "label": { "type": "string" },
            "columns": {
                "type": "object",
                "additionalProperties": { "type": ["string", "number", "boolean"] },
            },
            "steps": { "type": "object", "additionalProperties": { "type": "string" } },
        },
    });
    json!({
        "type": "object",
        "required": ["rows"],
        "properties": { "rows": { "type": "array", "items": row }, "next": { "type": "string" } },
    })
}

/// The default number of rows of a JSON response.
const ROWS_DEFAULT: u32 = 1_000;

/// The most rows that are read and sent at once.
const PAGE_ROWS: usize = 1_000;

/// The most statuses in the rows that are read and sent at once, unless one row has more.
const PAGE_STATUSES: usize = 10_000;

/// Why writing CSV to memory cannot fail.
const CSV_CANNOT_FAIL: &str = "rows of the same length";

/// The prefix of a step's name in the query, for names that would otherwise mean another parameter.
const STEP_PREFIX: &str = "step.";

/// Lists the statuses of a workflow's jobs.
async fn list_statuses(
    api: web::Data<ApiState>,
    path: web::Path<String>,
    query: Query,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let status_query = StatusQuery::parse(query.into_pairs())?;
    let workflow = resolve_workflow(&api, &path, status_query.vhost.as_deref()).await?;
    let columns = load_status_columns(&api, &workflow).await?;
    let definition = api.definitions().get(&workflow).cloned();
    let names: Vec<String> =
        columns.iter().map(|column| step_name(definition.as_deref(), column)).collect();
    let filter = StatusFilter {
        job: status_query.job,
        state: status_query.state,
        steps: status_query.find_columns(&workflow, &columns, &names)?,
    };
    let is_csv = wants_csv(&request);
    let rows_left =
        status_query.limit.or((!is_csv).then_some(ROWS_DEFAULT)).map_or(u64::MAX, u64::from);
    let reader = api.reader.clone();
    let disposition =
        format!("attachment; filename=\"status_{}.csv\"", Definition::split_full_name(&workflow).1);
    let before = status_query.cursor.unwrap_or(NEWEST_CURSOR);
    let sheet = StatusSheet {
        reader,
        workflow,
        columns,
        names,
        own_columns: definition.map(|definition| definition.columns.clone()).unwrap_or_default(),
        filter,
        before,
        rows_left,
        has_begun: false,
        has_ended: false,
    };
    let mut response = HttpResponse::Ok();
    response.insert_header((header::VARY, "Accept"));
    if is_csv {
        response.content_type(CSV_TYPE).insert_header((header::CONTENT_DISPOSITION, disposition));
        return Ok(response.streaming(stream_chunks(&api, sheet, StatusSheet::next_csv)));
    }
    Ok(response.content_type(mime::APPLICATION_JSON).streaming(stream_chunks(
        &api,
        sheet,
        StatusSheet::next_json,
    )))
}

/// Returns the name of a column's step as the loaded definition spells it. Returns the name of the
/// column if no loaded definition has the step.
fn step_name(definition: Option<&Definition>, column: &str) -> String {
    let steps = definition.map_or(&[][..], |definition| &definition.graph().steps);
    let step = steps.iter().find(|step| step.name.eq_ignore_ascii_case(column));
    step.map_or_else(|| column.to_owned(), |step| step.name.to_string())
}

/// Returns whether `Accept` lists CSV, and does not list JSON before it. Quality values are
/// ignored.
fn wants_csv(request: &HttpRequest) -> bool {
    let accepted =
        request.headers().get_all(header::ACCEPT).filter_map(|value| value.to_str().ok());
    let mut media_types = accepted
        .flat_map(|value| value.split(','))
        .map(|media_type| media_type.split(';').next().unwrap_or_default().trim());
    media_types.find(|media_type| matches!(*media_type, "text/csv" | "application/json"))
        == Some("text/csv")
}

/// The parsed query of a status list.
#[derive(Default)]
struct StatusQuery {
    vhost: Option<String>,
    job: Option<JobId>,
    state: Option<JobState>,
    limit: Option<u32>,
    cursor: Option<JobNumber>,
    /// The filters by the statuses of steps.
    step_filters: Vec<StepFilter>,
}

/// A filter by the status of one step.
struct StepFilter {
    /// The key of the parameter: the step's name, which may have the prefix [`STEP_PREFIX`].
    key: String,
    /// The step's name.
    step: String,
    /// The status that the step must have.
    status: String,
}

impl StatusQuery {
    /// Parses the pairs of a query. A key that is not a parameter is the name of a step.
    fn parse(pairs: Vec<(String, String)>) -> Result<StatusQuery, Problem> {
        let mut status_query = StatusQuery::default();
        for (key, value) in pairs {
            match key.as_str() {
                "vhost" => query::set_once(&mut status_query.vhost, &key, value)?,
                "job" => {
                    let id = value.parse().map_err(|error: InvalidJobId| {
                        Problem::malformed(format!("job in the query: {error}"))
                    })?;
                    query::set_once(&mut status_query.job, &key, id)?;
                }
                "state" => {
                    query::set_once(&mut status_query.state, &key, query::parse_state(&value)?)?
                }
                "limit" => {
                    query::set_once(&mut status_query.limit, &key, query::parse_limit(&value)?)?
                }
                "cursor" => {
                    query::set_once(&mut status_query.cursor, &key, query::parse_cursor(&value)?)?
                }
                _ => {
                    let step = key.strip_prefix(STEP_PREFIX).unwrap_or(&key).to_owned();
                    status_query.step_filters.push(StepFilter { key, step, status: value });
                }
            }
        }
        Ok(status_query)
    }

    /// Finds the column of each step in the query. Returns it with the status that it must have.
    /// `names` are the names of the columns' steps.
    fn find_columns(
        &self,
        workflow: &str,
        columns: &[String],
        names: &[String],
    ) -> Result<Vec<(String, String)>, Problem> {
        let find_column = |filter: &StepFilter| {
            let StepFilter { key, step, status } = filter;
            if let Some(index) = names.iter().position(|name| name == step) {
                return Ok((columns[index].clone(), status.clone()));
            }
            // A key with the prefix can only mean a step. Another key may be a misspelt parameter.
            let parameters =
                ["vhost", "job", "state", "limit", "cursor"].into_iter().filter(|_| key == step);
            let hint = did_you_mean(step, names.iter().map(String::as_str).chain(parameters));
            Err(Problem::malformed(format!(
                "{workflow} has no step {}{hint} (its steps: {})",
                quote(step),
                names.join(", ")
            )))
        };
        self.step_filters.iter().map(find_column).collect()
    }
}

/// A response that is read and formatted page by page.
struct StatusSheet {
    reader: Arc<dyn Records>,
    workflow: String,
    /// The columns of the status table.
    columns: Vec<String>,
    /// The name of each column's step.
    names: Vec<String>,
    /// The label and the columns of the loaded definition.
    own_columns: Columns,
    filter: StatusFilter,
    /// The number of the last job that was read. The jobs with lower numbers follow.
    before: JobNumber,
    /// How many rows may still be sent.
    rows_left: u64,
    /// Whether the first row of JSON, or the header line of CSV, was formatted.
    has_begun: bool,
    /// Whether the last row was read.
    has_ended: bool,
}

impl StatusSheet {
    /// Reads a page, and formats it as JSON. Returns `None` at the end.
    fn next_json(&mut self) -> Result<Option<Bytes>, JournalError> {
        if self.has_ended {
            return Ok(None);
        }
        let mut body = if self.has_begun { Vec::new() } else { b"{\"rows\":[".to_vec() };
        let (rows, next) = self.next_rows()?;
        for SheetRow { row, cells } in rows {
            if std::mem::replace(&mut self.has_begun, true) {
                body.push(b',');
            }
            let (label, columns) = CellsView::from_cells(cells);
            let view = RowView { row: &row, names: &self.names, label, columns };
            serde_json::to_writer(&mut body, &view).expect("writing JSON to memory cannot fail");
        }
        if self.has_ended {
            body.push(b']');
            if let Some(next) = next {
                body.extend_from_slice(format!(",\"next\":\"{next}\"").as_bytes());
            }
            body.push(b'}');
        }
        Ok(Some(body.into()))
    }

    /// Reads a page, and formats it as CSV. Returns `None` at the end.
    fn next_csv(&mut self) -> Result<Option<Bytes>, JournalError> {
        if self.has_ended {
            return Ok(None);
        }
        let mut table = csv::Writer::from_writer(Vec::new());
        if !std::mem::replace(&mut self.has_begun, true) {
            let job_titles = ["job", "state", "created", "updated"];
            let titles = job_titles.into_iter().chain(self.names.iter().map(String::as_str));
            // The columns follow, so that those of the steps stay in their places.
            let titles = titles.chain(self.own_columns.names());
            table.write_record(titles).expect(CSV_CANNOT_FAIL);
        }
        for SheetRow { row, cells } in &self.next_rows()?.0 {
            let job_cells = [&row.job, &row.state, &row.created, &row.updated];
            let texts = job_cells.into_iter().chain(&row.statuses).map(String::as_str);
            let find = |name: &str| cells.iter().find(|(cell_name, _)| **cell_name == *name);
            let text = |name: &str| find(name).and_then(|(_, cell)| Some(&*cell.as_ref()?.text));
            let own = self.own_columns.names().map(|name| text(name).unwrap_or_default());
            let escaped = texts.chain(own).map(escape_cell);
            table.write_record(escaped).expect(CSV_CANNOT_FAIL);
        }
        Ok(Some(table.into_inner().expect(CSV_CANNOT_FAIL).into()))
    }

    /// Reads the next rows. With the last rows of the response, returns also the cursor of the
    /// client's next page, if there are more rows.
    fn next_rows(&mut self) -> Result<(Vec<SheetRow>, Option<JobNumber>), JournalError> {
        let cells = self.columns.len() + self.own_columns.names().count();
        let page_rows = (PAGE_STATUSES / cells.max(1)).clamp(1, PAGE_ROWS);
        // One row more than the client may get shows whether there are more.
        let requested =
            u64::try_from(page_rows).unwrap_or(u64::MAX).min(self.rows_left.saturating_add(1));
        let limit = u32::try_from(requested).unwrap_or(u32::MAX);
        let mut rows = self.reader.load_statuses(
            &self.workflow,
            &self.columns,
            &self.filter,
            self.before,
            limit,
        )?;
        let row_count = u64::try_from(rows.len()).unwrap_or(u64::MAX);
        let has_more = row_count > self.rows_left;
        if has_more {
            rows.pop();
        }
        self.rows_left = self.rows_left.saturating_sub(row_count);
        self.before = rows.last().map_or(self.before, |row| row.number);
        self.has_ended = has_more || row_count < requested;
        let numbers: Vec<JobNumber> = rows.iter().map(|row| row.number).collect();
        let mut cells = self.reader.load_cells(&numbers, &self.own_columns)?;
        let with_cells = |row: StatusRow| {
            let mut cells = cells.remove(&row.number).unwrap_or_default();
            cells.retain(|(name, _)| self.own_columns.names().any(|own| *own == **name));
            SheetRow { row, cells }
        };
        Ok((rows.into_iter().map(with_cells).collect(), has_more.then_some(self.before)))
    }
}

/// Characters with which a formula may begin in a spreadsheet, in half and full width, and white
/// space that it may skip before a formula.
const FORMULA_CHARS: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

/// Escapes a cell, so that no spreadsheet evaluates it as a formula (CSV injection), and no
/// terminal interprets its control characters.
fn escape_cell(cell: &str) -> String {
    let apostrophe = if cell.starts_with(FORMULA_CHARS) { "'" } else { "" };
    format!("{apostrophe}{}", escape(cell))
}

/// A row with the cells of its job that are not empty.
struct SheetRow {
    row: StatusRow,
    cells: Vec<NamedCell>,
}

/// A row of a JSON response.
struct RowView<'a> {
    row: &'a StatusRow,
    label: Option<Arc<str>>,
    columns: CellsView,
    /// The name of each column's step, in the order of the row's statuses.
    names: &'a [String],
}

/// The statuses of a row, by the names of steps.
struct StepsView<'a>(&'a RowView<'a>);

impl Serialize for RowView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut view = serializer.serialize_struct("Row", 7)?;
        view.serialize_field("job", &self.row.job)?;
        view.serialize_field("state", &self.row.state)?;
        view.serialize_field("created", &self.row.created)?;
        view.serialize_field("updated", &self.row.updated)?;
        match &self.label {
            Some(label) => view.serialize_field("label", label)?,
            None => view.skip_field("label")?,
        }
        if self.columns.is_empty() {
            view.skip_field("columns")?;
        } else {
            view.serialize_field("columns", &self.columns)?;
        }
        view.serialize_field("steps", &StepsView(self))?;
        view.end()
    }
}

impl Serialize for StepsView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut view = serializer.serialize_map(Some(self.0.names.len()))?;
        for (name, status) in self.0.names.iter().zip(&self.0.row.statuses) {
            view.serialize_entry(name, status)?;
        }
        view.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_and_control_characters_in_cells_are_escaped() {
        for plain in ["", "PASSED", "a=b", "1-2", "Zoë", "'quoted"] {
            assert_eq!(escape_cell(plain), plain);
        }
        for prefix in ["=", "+", "-", "@", "＝", "＋", "－", "＠"] {
            assert_eq!(escape_cell(&format!("{prefix}1+1")), format!("'{prefix}1+1"));
        }
        assert_eq!(escape_cell("\n=1+1"), r"'\n=1+1");
        assert_eq!(escape_cell("\t=1+1"), r"'\t=1+1");
        assert_eq!(escape_cell("\r=1+1"), r"'\r=1+1");
        assert_eq!(escape_cell("a\u{1b}[2J\nforged\u{202e}"), r"a\u{1b}[2J\nforged\u{202e}");
    }
}
