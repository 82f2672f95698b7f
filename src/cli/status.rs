//! `status`: the statuses of a workflow's jobs, as a table, as JSON, or as CSV.

use super::StatusArguments;
use super::client::{Client, ClientError};
use super::show::{parse, table};
use super::text::Text;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

#[derive(Deserialize)]
struct StatusAnswer {
    rows: Vec<RowAnswer>,
    next: Option<Text>,
}

#[derive(Deserialize)]
struct RowAnswer {
    job: Text,
    state: Text,
    updated: Text,
    steps: Steps,
}

/// Steps with their statuses, in the order of the answer.
struct Steps(Vec<(Text, Text)>);

/// What a job must be: `--filter STEP=STATUS`, `--status STEP=STATUS`.
#[derive(Clone, Debug)]
pub struct Filter {
    pub(super) step: String,
    pub(super) status: String,
}

impl std::str::FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Filter, String> {
        let (step, status) = text.split_once('=').ok_or("expected STEP=STATUS; STEP= alone finds the jobs in which the step waits")?;
        Ok(Filter { step: step.to_owned(), status: status.to_owned() })
    }
}

/// `status WORKFLOW`
pub(super) fn status(arguments: &StatusArguments, out: &mut dyn Write) -> Result<ExitCode, ClientError> {
    let client = Client::new(&arguments.client);
    let (vhost, name) = arguments.workflow.rsplit_once('/').unwrap_or(("", &arguments.workflow));
    let path = format!("/api/status/{name}");
    let mut query: Vec<(String, String)> = Vec::new();
    let mut ask = |key: &str, value: String| query.push((key.to_owned(), value));
    if !vhost.is_empty() {
        ask("vhost", vhost.to_owned());
    }
    if let Some(job) = arguments.job {
        ask("job", job.to_string());
    }
    if let Some(limit) = arguments.limit {
        ask("limit", limit.to_string());
    }
    arguments.filters.iter().for_each(|filter| ask(&format!("step.{}", filter.step), filter.status.clone()));
    if arguments.csv {
        client.copy(&path, &query, "text/csv", out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let body = client.query(&path, &query)?;
    if arguments.client.json {
        writeln!(out, "{body}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer: StatusAnswer = parse(&body)?;
    let Some(first) = answer.rows.first() else {
        writeln!(out, "no jobs of {} to show", arguments.workflow)?;
        return Ok(ExitCode::SUCCESS);
    };
    let header: Vec<&str> = ["JOB", "STATE", "UPDATED"].into_iter().chain(first.steps.0.iter().map(|(step, _)| &**step)).collect();
    let mut table = table(&header);
    for row in &answer.rows {
        let own = [&*row.job, &row.state, &row.updated];
        table.add_row(own.into_iter().chain(row.steps.0.iter().map(|(_, status)| &**status)));
    }
    writeln!(out, "{table}")?;
    if answer.next.is_some() {
        writeln!(out, "… only the newest {} are shown; --limit shows more, --csv all", answer.rows.len())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl<'de> Deserialize<'de> for Steps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Steps, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Steps;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("steps with their statuses")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Steps, A::Error> {
                let mut steps = Vec::with_capacity(map.size_hint().unwrap_or_default());
                while let Some(entry) = map.next_entry()? {
                    steps.push(entry);
                }
                Ok(Steps(steps))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}
