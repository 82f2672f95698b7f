//! `status`: prints the statuses of a workflow's jobs.

use super::arguments::{Format, StatusArguments};
use super::client::Client;
use super::error::ClientError;
use super::list_printer::{ListStyle, Listing};
use super::responses::{parse_list, parse_response};
use super::screen::print_json;
use super::table::{ColumnRole, Table};
use super::text::Text;
use engine::text::{did_you_mean, quote};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::fmt;
use std::io::Write;
use std::iter::repeat;

/// The width of a table without a terminal, in characters.
const WIDTH_WITHOUT_TERMINAL: usize = 250;

/// The minimum width for the columns of steps, in characters. On a narrower terminal, lines wrap,
/// so that some steps are still shown.
const STEPS_WIDTH_MIN: usize = 80;

/// The number of blanks between two columns.
const GAP: usize = 2;

/// The titles of the columns before those of the steps.
const FIXED_TITLES: [&str; 3] = ["JOB", "STATE", "UPDATED"];

/// A page of the status table.
#[derive(Deserialize)]
struct StatusResponse {
    rows: Vec<StatusRowResponse>,
    /// The cursor of the next page. `None` on the last page.
    next: Option<Text>,
}

/// The statuses of one job.
#[derive(Deserialize)]
struct StatusRowResponse {
    job: Text,
    state: Text,
    updated: Text,
    steps: StepStatuses,
}

impl StatusRowResponse {
    /// Returns the cells of the columns with [`FIXED_TITLES`].
    fn fixed_cells(&self) -> [String; 3] {
        [self.job.to_string(), self.state.to_string(), self.updated.to_string()]
    }
}

/// The steps of a job with their statuses, in the order of the response. A map would lose the
/// order.
struct StepStatuses(Vec<(Text, Text)>);

/// Runs `status WORKFLOW`: prints the statuses of its jobs.
pub(super) fn list_statuses(
    arguments: &StatusArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let client = Client::new(&arguments.list.target)?;
    let (vhost, name) = arguments.workflow.rsplit_once('/').unwrap_or(("", &arguments.workflow));
    let path = format!("/api/status/{name}");
    let query = build_query(arguments, vhost, &client)?;
    if arguments.csv {
        client.copy(&path, &query, "text/csv", out)?;
        return Ok(());
    }
    let body = client.query(&path, &query)?;
    let style = ListStyle::from_arguments(arguments.list.format, arguments.list.times);
    if style.format == Format::Json {
        print_json(&body, out)?;
        return Ok(());
    }
    let response: StatusResponse = parse_response(&body)?;
    let Some(first_row) = response.rows.first() else {
        if style.is_for_people() {
            writeln!(out, "no jobs of {} to show", arguments.workflow)?;
        }
        return Ok(());
    };
    // All rows have the same steps.
    let steps: Vec<&str> = first_row.steps.0.iter().map(|(step, _)| &**step).collect();
    let step_columns = select_columns(arguments, &response, &steps, style)?;
    let roles = [ColumnRole::Key, ColumnRole::State, ColumnRole::Time]
        .into_iter()
        .chain(repeat(ColumnRole::Key));
    let titles = FIXED_TITLES.into_iter().chain(step_columns.iter().map(|index| steps[*index]));
    let columns: Vec<(&str, ColumnRole)> = titles.zip(roles).collect();
    let mut table = Table::new(&columns);
    for row in &response.rows {
        let format_status = |index: &usize| {
            row.steps.0.get(*index).map_or_else(String::new, |(_, status)| status.to_string())
        };
        table.add_row(row.fixed_cells().into_iter().chain(step_columns.iter().map(format_status)));
    }
    let entries = parse_list(&body, "rows")?;
    Listing { body: &body, entries, table, empty_text: "no jobs" }.print(style, out)?;
    if !style.is_for_people() {
        return Ok(());
    }
    print_omissions(arguments, &response, step_columns.len(), steps.len(), out)?;
    Ok(())
}

/// Converts the arguments to query parameters.
fn build_query(
    arguments: &StatusArguments,
    vhost: &str,
    client: &Client,
) -> Result<Vec<(String, String)>, ClientError> {
    let mut query: Vec<(String, String)> = Vec::new();
    let mut add_parameter = |key: &str, value: String| query.push((key.to_owned(), value));
    if !vhost.is_empty() {
        add_parameter("vhost", vhost.to_owned());
    }
    if let Some(job) = &arguments.job {
        add_parameter("job", job.resolve(client)?.to_string());
    }
    if let Some(limit) = arguments.limit {
        add_parameter("limit", limit.to_string());
    }
    arguments
        .filters
        .iter()
        .for_each(|filter| add_parameter(&format!("step.{}", filter.step), filter.status.clone()));
    Ok(query)
}

/// Returns the indices of the steps that get a column: those that the user has named. If none are
/// named, all steps get one, but in a table only as many as fit into its width.
fn select_columns(
    arguments: &StatusArguments,
    response: &StatusResponse,
    steps: &[&str],
    style: ListStyle,
) -> Result<Vec<usize>, ClientError> {
    if !arguments.columns.is_empty() {
        return arguments.columns.iter().map(|name| find_column(name, steps)).collect();
    }
    if style.format != Format::Table {
        return Ok((0..steps.len()).collect());
    }
    let statuses: Vec<Vec<&str>> = response
        .rows
        .iter()
        .map(|row| row.steps.0.iter().map(|(_, status)| &**status).collect())
        .collect();
    let fixed_width: usize = (0..FIXED_TITLES.len())
        .map(|index| {
            response
                .rows
                .iter()
                .map(|row| width_of(&style.screen.format_time(&row.fixed_cells()[index])))
                .fold(width_of(FIXED_TITLES[index]), usize::max)
                + GAP
        })
        .sum();
    let width = style.screen.width.unwrap_or(WIDTH_WITHOUT_TERMINAL);
    Ok(choose_columns(steps, &statuses, width.saturating_sub(fixed_width).max(STEPS_WIDTH_MIN)))
}

/// Prints which steps and rows are not shown, and how to see them. `shown_steps` is the number of
/// steps with a column, of `total_steps`.
fn print_omissions(
    arguments: &StatusArguments,
    response: &StatusResponse,
    shown_steps: usize,
    total_steps: usize,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    if arguments.columns.is_empty() && shown_steps < total_steps {
        let omitted_steps = total_steps - shown_steps;
        writeln!(
            out,
            "… {omitted_steps} of {total_steps} steps are left out; --columns STEP,STEP chooses \
             them, --csv and --json have all"
        )?;
    }
    if response.next.is_some() {
        writeln!(
            out,
            "… only the newest {} are shown; --limit shows more, --csv all",
            response.rows.len()
        )?;
    }
    Ok(())
}

/// Chooses the steps that get a column if the user has named none. If all of them fit into the
/// width, they are chosen. Otherwise the first of those for which any row has a status are chosen,
/// as many as fit. Returns the indices of the steps.
fn choose_columns(steps: &[&str], rows: &[Vec<&str>], width_max: usize) -> Vec<usize> {
    let cells = |index: usize| rows.iter().filter_map(move |row| row.get(index).copied());
    let column_width =
        |index: usize| cells(index).map(width_of).fold(width_of(steps[index]), usize::max) + GAP;
    if (0..steps.len()).map(column_width).sum::<usize>() <= width_max {
        return (0..steps.len()).collect();
    }
    let non_empty = (0..steps.len()).filter(|index| cells(*index).any(|cell| !cell.is_empty()));
    let mut used_width = 0;
    let fits = |index: &usize| {
        used_width += column_width(*index);
        used_width <= width_max
    };
    non_empty.take_while(fits).collect()
}

/// Returns the index of a step, or an error with a suggestion.
fn find_column(name: &str, steps: &[&str]) -> Result<usize, ClientError> {
    steps.iter().position(|step| *step == name).ok_or_else(|| {
        let hint = did_you_mean(name, steps.iter().copied());
        ClientError::Usage(format!("--columns: the workflow has no step {}{hint}", quote(name)))
    })
}

/// Returns the width of a text, in characters.
fn width_of(text: &str) -> usize {
    text.chars().count()
}

impl<'de> Deserialize<'de> for StepStatuses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StepStatuses, D::Error> {
        struct StepStatusesVisitor;

        impl<'de> Visitor<'de> for StepStatusesVisitor {
            type Value = StepStatuses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("steps with their statuses")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StepStatuses, A::Error> {
                let mut steps = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    steps.push(entry);
                }
                Ok(StepStatuses(steps))
            }
        }

        deserializer.deserialize_map(StepStatusesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_columns_are_chosen_if_they_fit_otherwise_those_with_a_status() {
        let steps = ["a", "bb", "ccc", "dddd"];
        let rows = vec![vec!["", "", "PENDING", ""], vec!["COMPLETED", "", "", "FAILED"]];
        assert_eq!(choose_columns(&steps, &rows, 32), [0, 1, 2, 3]);
        assert_eq!(choose_columns(&steps, &rows, 31), [0, 2, 3], "without the empty one");
        assert_eq!(choose_columns(&steps, &rows, 20), [0, 2]);
        assert!(choose_columns(&steps, &rows, 10).is_empty());
        assert_eq!(find_column("ccc", &steps).expect("the step exists"), 2);
        assert!(
            find_column("cc", &steps)
                .is_err_and(|error| error.to_string().contains("no step \"cc\"; did you mean"))
        );
    }
}
