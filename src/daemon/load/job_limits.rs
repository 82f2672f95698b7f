//! Parses the limit of the jobs of a workflow.

use super::diagnostics::Diagnostics;
use super::fields::Fields;
use super::location::SourceLocation;
use super::schema::Section;
use super::values::{LocatedText, parse_choice, parse_duration, parse_reference};
use super::yaml::Entry;
use engine::text::quote;
use engine::{JobLimit, LimitDefinition, Millis, Then};

/// The limit of a workflow as the file describes it.
#[derive(Debug)]
pub(super) struct JobLimitDraft {
    pub(super) name: LocatedText,
    then: Option<(Then, SourceLocation)>,
    delay: Option<(Millis, SourceLocation)>,
    wait_at_most: Option<(Millis, SourceLocation)>,
}

/// Parses the `limit` of a workflow. `deadline`: that of the workflow.
pub(super) fn parse_job_limit(
    entry: &Entry,
    deadline: Option<Millis>,
    report: &mut Diagnostics,
) -> Option<JobLimitDraft> {
    let fields = Fields::from_node(&entry.value, Section::JobLimit, report)?;
    let name = match fields.get("use") {
        Some(entry) => {
            parse_reference(&entry.value, entry.location(), "the name of a limit", report)
        }
        None => {
            let reason = "it names the limit of which a job holds a place until its end";
            fields.report_missing("use", reason, report);
            None
        }
    };
    let then = fields
        .get("then")
        .and_then(|entry| Some((parse_choice(entry, &Then::WORDS, report)?, entry.location())));
    let duration = |key: &str, report: &mut Diagnostics| {
        let entry = fields.get(key)?;
        Some((parse_duration(entry, Millis(1), report)?, entry.location()))
    };
    let (delay, wait_at_most) = (duration("delay", report), duration("waitAtMost", report));
    if let Some((_, location)) = delay
        && (fields.get("then").is_none() || then.is_some_and(|(then, _)| then != Then::Latest))
    {
        report.add_error(
            location,
            "\"delay\" is how long a job waits for a newer one, and only the newest stays with \
             `then: latest`: write that, or take \"delay\" away",
        );
    }
    if let Some((wait_at_most, location)) = wait_at_most {
        if let Some((Then::Refuse, _)) = then {
            report.add_error(
                location,
                "\"waitAtMost\" bounds how long a job waits for its place, and with `then: refuse` \
                 it waits for none: take it away",
            );
        } else if let Some(deadline) = deadline.filter(|deadline| wait_at_most >= *deadline) {
            report.add_warning(
                location,
                format!(
                    "\"waitAtMost\" is {wait_at_most} and has no effect: by then the \"deadline\" \
                     of the workflow, {deadline}, has failed the job"
                ),
            );
        }
    }
    Some(JobLimitDraft { name: name?, then, delay, wait_at_most })
}

impl JobLimitDraft {
    /// Reports a `then` that makes no sense with its limit.
    pub(super) fn check_limit(&self, limit: &LimitDefinition, report: &mut Diagnostics) {
        if let Some((then @ (Then::Refuse | Then::Replace), location)) = self.then
            && limit.concurrency.is_none()
        {
            report.add_error(
                location,
                format!(
                    "`then: {}` is about who holds a place, and the limit {} has no \
                     \"concurrency\": give it one, such as 1",
                    then.as_str(),
                    quote(&limit.name)
                ),
            );
        }
    }

    /// Returns the definition.
    pub(super) fn to_definition(&self) -> JobLimit {
        JobLimit {
            name: self.name.text.as_str().into(),
            then: self.then.map_or_else(Then::default, |(then, _)| then),
            delay: self.delay.map(|(delay, _)| delay),
            wait_at_most: self.wait_at_most.map(|(duration, _)| duration),
        }
    }
}
