//! Parses the optional keys of a step: when it runs, how long, how often, and its status texts.

use super::draft::{ConditionDraft, StepOptions};
use super::fields::Fields;
use super::limits::{ATTEMPTS_MAX, FACTOR_MAX, REPLY_USERS_MAX, STATUSES_MAX};
use super::report::Report;
use super::schema::Section;
use super::values::{
    Word, boolean, bounded_text, choice, factor, short_text, span, text, whole_number,
};
use super::yaml::{Entry, Scalar, Value};
use crate::engine::words::quoted;
use crate::engine::{Millis, OnFailure, Retry, StatusWords};
use std::sync::Arc;

pub(super) fn step_options(fields: &Fields<'_>, report: &mut Report) -> StepOptions {
    StepOptions {
        timeout: fields.get("timeout").and_then(|entry| span(entry, Millis(1), report)),
        start_within: fields
            .get("startWithin")
            .and_then(|entry| Some((span(entry, Millis(1), report)?, entry.place()))),
        timeout_at: fields.get("timeout").map(Entry::place),
        retry: fields.get("retry").and_then(|entry| retry(entry, report)),
        when: fields.get("when").and_then(|entry| condition(entry, report)),
        cancel_when: fields.get("cancelWhen").and_then(|entry| condition(entry, report)),
        on_failure: fields
            .get("onFailure")
            .and_then(|entry| {
                choice(
                    entry,
                    &[("fail", OnFailure::Fail), ("continue", OnFailure::Continue)],
                    report,
                )
            })
            .unwrap_or_default(),
        external: fields
            .get("external")
            .and_then(|entry| Some((boolean(entry, report)?, entry.value.at))),
        status: StatusWords {
            key: fields
                .get("statusKey")
                .and_then(|entry| {
                    bounded_text(&entry.value, entry.place(), "the key of a status", report)
                })
                .map(word),
            words: words(fields, STATUSES, report),
            skipped: status(fields, "skippedStatus", report),
            cancelled: status(fields, "cancelledStatus", report),
        },
        statuses_at: fields.get("statuses").map(Entry::place),
        skipped_at: fields.get("skippedStatus").map(Entry::place),
        reply_users: fields
            .get("replyUsers")
            .map(|entry| (words(fields, REPLY_USERS, report), entry.place())),
    }
}

fn retry(entry: &Entry, report: &mut Report) -> Option<Retry> {
    let fields = Fields::of(&entry.value, Section::Retry, report)?;
    let default = Retry::default();
    let attempts = match fields.get("attempts") {
        Some(entry) => whole_number(entry, 1, ATTEMPTS_MAX, report)
            .and_then(|number| u32::try_from(number).ok()),
        None => {
            fields.missing("attempts", "it says how often the step is tried in all", report);
            None
        }
    };
    let backoff =
        fields.get("backoff").map_or(Some(default.backoff), |entry| span(entry, Millis(0), report));
    let factor_milli = fields
        .get("factor")
        .map_or(Some(default.factor_milli), |entry| factor(entry, FACTOR_MAX, report));
    let max_backoff = fields
        .get("maxBackoff")
        .map_or(Some(default.max_backoff), |entry| span(entry, Millis(0), report));
    if let (Some(backoff), Some(max)) = (backoff, max_backoff)
        && backoff > max
    {
        let (at, from) = match fields.get("maxBackoff") {
            Some(entry) => (entry.place(), ""),
            None => (fields.get("backoff").unwrap_or(entry).place(), ", its default"),
        };
        let message =
            format!("\"maxBackoff\" is {max}{from}, less than the \"backoff\" of {backoff}");
        report.error(at, message);
    }
    Some(Retry {
        attempts: attempts?,
        backoff: backoff?,
        factor_milli: factor_milli?,
        max_backoff: max_backoff?,
    })
}

fn condition(entry: &Entry, report: &mut Report) -> Option<ConditionDraft> {
    let text = text(&entry.value, entry.place(), "a condition, such as `input.count > 0`", report)?;
    Some(ConditionDraft { at: entry.place(), layout: entry.value.layout, text: text.to_owned() })
}

/// Describes a list of distinct texts.
struct WordList {
    key: &'static str,
    /// The noun for one item, without an article.
    one: &'static str,
    at_most: usize,
    /// What the first item, or each item, is for.
    use_of_it: &'static str,
}

const STATUSES: WordList = WordList {
    key: "statuses",
    one: "status",
    at_most: STATUSES_MAX,
    use_of_it: "its first word is the status while the step runs",
};

const REPLY_USERS: WordList = WordList {
    key: "replyUsers",
    one: "user",
    at_most: REPLY_USERS_MAX,
    use_of_it: "it names the users whose replies count",
};

fn words(fields: &Fields<'_>, list: WordList, report: &mut Report) -> Vec<Arc<str>> {
    let WordList { key, one, at_most, use_of_it } = list;
    let mut words: Vec<Word> = Vec::new();
    for node in fields.list(key, at_most, report) {
        let Some(found) = bounded_text(node, node.at, &format!("a {one}"), report) else {
            continue;
        };
        match words.iter().find(|other| other.text == found.text) {
            Some(first) => report.error(
                found.at,
                format!(
                    "the {one} {} is listed twice; the first is at {}",
                    quoted(&found.text),
                    first.at
                ),
            ),
            None => words.push(found),
        }
    }
    if let Some(entry) = fields.get(key)
        && (matches!(&entry.value.value, Value::List(items) if items.is_empty())
            || matches!(entry.value.value, Value::Scalar(Scalar::Null, _)))
    {
        report.error(entry.place(), format!("the list {} is empty; {use_of_it}", quoted(key)));
    }
    words.into_iter().map(word).collect()
}

/// Returns the status text under a key; it may be empty.
fn status(fields: &Fields<'_>, key: &str, report: &mut Report) -> Option<Arc<str>> {
    let entry = fields.get(key)?;
    short_text(&entry.value, entry.place(), "a status (\"\" for an empty one)", report).map(word)
}

fn word(word: Word) -> Arc<str> {
    word.text.into()
}
