//! Parses the optional keys of a step: conditions, time limits, retries, statuses, and whose
//! replies count.

use super::diagnostics::Diagnostics;
use super::draft::{ConditionDraft, StepOptions};
use super::fields::Fields;
use super::limits::{ATTEMPTS_MAX, FACTOR_MAX, REPLY_USERS_MAX, STATUSES_MAX};
use super::scalars::ScalarKind;
use super::schema::Section;
use super::values::{
    LocatedText, parse_boolean, parse_choice, parse_duration, parse_factor, parse_integer,
    parse_nonempty_text, parse_short_text, parse_text,
};
use super::yaml::{Entry, Value};
use engine::text::quote;
use engine::{Millis, OnFailure, Retry, StatusWords};
use std::sync::Arc;

/// Parses the keys of a step that are its [`StepOptions`].
pub(super) fn parse_step_options(fields: &Fields<'_>, report: &mut Diagnostics) -> StepOptions {
    StepOptions {
        timeout: fields.get("timeout").and_then(|entry| parse_duration(entry, Millis(1), report)),
        start_within: fields
            .get("startWithin")
            .and_then(|entry| Some((parse_duration(entry, Millis(1), report)?, entry.location()))),
        wait_at_most: fields
            .get("waitAtMost")
            .and_then(|entry| Some((parse_duration(entry, Millis(1), report)?, entry.location()))),
        timeout_location: fields.get("timeout").map(Entry::location),
        retry: fields.get("retry").and_then(|entry| parse_retry(entry, report)),
        when: fields.get("when").and_then(|entry| parse_condition(entry, report)),
        cancel_when: fields.get("cancelWhen").and_then(|entry| parse_condition(entry, report)),
        on_failure: fields
            .get("onFailure")
            .and_then(|entry| {
                parse_choice(
                    entry,
                    &[("fail", OnFailure::Fail), ("continue", OnFailure::Continue)],
                    report,
                )
            })
            .unwrap_or_default(),
        external: fields
            .get("external")
            .and_then(|entry| Some((parse_boolean(entry, report)?, entry.value.location))),
        status: StatusWords {
            key: fields
                .get("statusKey")
                .and_then(|entry| {
                    parse_nonempty_text(
                        &entry.value,
                        entry.location(),
                        "the key of a status",
                        report,
                    )
                })
                .map(into_arc),
            words: parse_text_list(fields, STATUSES, report),
            skipped: parse_status(fields, "skippedStatus", report),
            cancelled: parse_status(fields, "cancelledStatus", report),
        },
        statuses_location: fields.get("statuses").map(Entry::location),
        skipped_location: fields.get("skippedStatus").map(Entry::location),
        reply_users: fields
            .get("replyUsers")
            .map(|entry| (parse_text_list(fields, REPLY_USERS, report), entry.location())),
    }
}

/// Parses a `retry`. `attempts` is required; the other keys have the defaults of [`Retry`]. Returns
/// `None` if a value is invalid.
fn parse_retry(entry: &Entry, report: &mut Diagnostics) -> Option<Retry> {
    let fields = Fields::from_node(&entry.value, Section::Retry, report)?;
    let default = Retry::default();
    let attempts = match fields.get("attempts") {
        Some(entry) => parse_integer(entry, 1, ATTEMPTS_MAX, report)
            .and_then(|number| u32::try_from(number).ok()),
        None => {
            fields.report_missing("attempts", "it says how often the step is tried in all", report);
            None
        }
    };
    let backoff = fields
        .get("backoff")
        .map_or(Some(default.backoff), |entry| parse_duration(entry, Millis(0), report));
    let factor_milli = fields
        .get("factor")
        .map_or(Some(default.factor_milli), |entry| parse_factor(entry, FACTOR_MAX, report));
    let max_backoff = fields
        .get("maxBackoff")
        .map_or(Some(default.max_backoff), |entry| parse_duration(entry, Millis(0), report));
    if let (Some(backoff), Some(max_backoff)) = (backoff, max_backoff)
        && backoff > max_backoff
    {
        let (location, source) = match fields.get("maxBackoff") {
            Some(entry) => (entry.location(), ""),
            None => (fields.get("backoff").unwrap_or(entry).location(), ", its default"),
        };
        let message = format!(
            "\"maxBackoff\" is {max_backoff}{source}, less than the \"backoff\" of {backoff}"
        );
        report.add_error(location, message);
    }
    Some(Retry {
        attempts: attempts?,
        backoff: backoff?,
        factor_milli: factor_milli?,
        max_backoff: max_backoff?,
    })
}

/// Parses the text of a condition. `graph` compiles it later.
pub(super) fn parse_condition(entry: &Entry, report: &mut Diagnostics) -> Option<ConditionDraft> {
    let text = parse_text(
        &entry.value,
        entry.location(),
        "a condition, such as `input.count > 0`",
        report,
    )?;
    Some(ConditionDraft {
        key: entry.key.text.clone(),
        location: entry.location(),
        layout: entry.value.layout,
        text: text.to_owned(),
    })
}

/// A key that takes a list of distinct texts.
struct TextListKey {
    key: &'static str,
    /// The noun for one item, without an article.
    item_noun: &'static str,
    items_max: usize,
    /// What the list is for, as the end of the message about an empty one.
    purpose: &'static str,
}

const STATUSES: TextListKey = TextListKey {
    key: "statuses",
    item_noun: "status",
    items_max: STATUSES_MAX,
    purpose: "its first word is the status while the step runs",
};

const REPLY_USERS: TextListKey = TextListKey {
    key: "replyUsers",
    item_noun: "user",
    items_max: REPLY_USERS_MAX,
    purpose: "it names the users whose replies count",
};

/// Parses a list of distinct texts. Returns an empty list if the key is missing; reports a list
/// that is present but empty.
fn parse_text_list(
    fields: &Fields<'_>,
    list_key: TextListKey,
    report: &mut Diagnostics,
) -> Vec<Arc<str>> {
    let TextListKey { key, item_noun, items_max, purpose } = list_key;
    let mut texts: Vec<LocatedText> = Vec::new();
    for node in fields.parse_list(key, items_max, report) {
        let Some(item) =
            parse_nonempty_text(node, node.location, &format!("a {item_noun}"), report)
        else {
            continue;
        };
        match texts.iter().find(|other| other.text == item.text) {
            Some(first) => report.add_error(
                item.location,
                format!(
                    "the {item_noun} {} is listed twice; the first is at {}",
                    quote(&item.text),
                    first.location
                ),
            ),
            None => texts.push(item),
        }
    }
    if let Some(entry) = fields.get(key)
        && (matches!(&entry.value.value, Value::List(items) if items.is_empty())
            || matches!(entry.value.value, Value::Scalar(ScalarKind::Null, _)))
    {
        report.add_error(entry.location(), format!("the list {} is empty; {purpose}", quote(key)));
    }
    texts.into_iter().map(into_arc).collect()
}

/// Parses the status under a key; it may be an empty text.
fn parse_status(fields: &Fields<'_>, key: &str, report: &mut Diagnostics) -> Option<Arc<str>> {
    let entry = fields.get(key)?;
    parse_short_text(&entry.value, entry.location(), "a status (\"\" for an empty one)", report)
        .map(into_arc)
}

/// Returns the text without its location.
fn into_arc(located: LocatedText) -> Arc<str> {
    located.text.into()
}
