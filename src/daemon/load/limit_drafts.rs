//! Parses the limits of a file, and builds their definitions for the workflows whose steps name
//! them.

use super::conditions::{CompiledConditions, ValueUse, report_mistakes, report_no_value};
use super::diagnostics::Diagnostics;
use super::draft::{ConditionDraft, StepDraft, WorkflowDraft};
use super::duration;
use super::fields::Fields;
use super::limits::{BURST_MAX, CONCURRENCY_MAX, LIMITS_MAX, RATE_COUNT_MAX, STEP_LIMITS_MAX};
use super::options::parse_condition;
use super::scalars::ScalarKind;
use super::schema::Section;
use super::values::{LocatedText, describe, parse_integer, parse_reference};
use super::yaml::{Entry, Node, Value};
use engine::text::quote;
use engine::{Expression, LimitDefinition, Millis, Rate};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A pause after which a fast rate makes up for what it has missed: without it, the resolution of
/// timers would slow it down. It is the default of `burst`.
const DEFAULT_BURST: Millis = Millis(50);

/// A limit as the file describes it.
#[derive(Debug)]
pub(super) struct LimitDraft {
    pub(super) name: LocatedText,
    rate: Option<Rate>,
    concurrency: Option<u32>,
    key: Option<ConditionDraft>,
    fair: Option<ConditionDraft>,
}

/// Parses the limits of a file. Leaves out those without a name.
pub(super) fn parse_limits(fields: &Fields<'_>, report: &mut Diagnostics) -> Vec<LimitDraft> {
    let mut drafts: Vec<LimitDraft> = Vec::new();
    for node in fields.parse_list("limits", LIMITS_MAX, report) {
        let Some(draft) = parse_limit(node, report) else { continue };
        match drafts.iter().find(|other| other.name.text == draft.name.text) {
            Some(first) => report.add_error(
                draft.name.location,
                format!(
                    "a limit {} is declared already, at {}; limits differ in their names",
                    quote(&draft.name.text),
                    first.name.location
                ),
            ),
            None => drafts.push(draft),
        }
    }
    drafts
}

fn parse_limit(node: &Node, report: &mut Diagnostics) -> Option<LimitDraft> {
    let fields = Fields::from_node(node, Section::Limit, report)?;
    let name = fields.parse_name(report);
    let rate = fields.get("rate").and_then(|entry| parse_rate(entry, report));
    let concurrency = fields
        .get("concurrency")
        .and_then(|entry| parse_integer(entry, 1, CONCURRENCY_MAX, report))
        .and_then(|number| u32::try_from(number).ok());
    let burst = fields.get("burst").and_then(|entry| {
        if fields.get("rate").is_none() {
            report.add_error(
                entry.location(),
                "\"burst\" is how many messages a rate lets through at once, and this limit has no \
                 \"rate\": take it away, or add a rate such as 100/s",
            );
        }
        parse_integer(entry, 1, BURST_MAX, report).and_then(|number| u32::try_from(number).ok())
    });
    if fields.get("rate").is_none() && fields.get("concurrency").is_none() {
        report.add_error(
            node.location,
            "a limit has a \"rate\", such as 100/s, or a \"concurrency\", such as 5, or both: this \
             one limits nothing",
        );
    }
    let key = fields.get("key").and_then(|entry| parse_condition(entry, report));
    let fair = fields.get("fair").and_then(|entry| parse_condition(entry, report));
    let rate = rate.map(|rate| Rate { burst: burst.unwrap_or(rate.burst), ..rate });
    Some(LimitDraft { name: name?, rate, concurrency, key, fair })
}

/// Parses a rate: a number of messages in a period, such as `100/s` or `1/15m`.
fn parse_rate(entry: &Entry, report: &mut Diagnostics) -> Option<Rate> {
    let hint = match &entry.value.value {
        Value::Scalar(ScalarKind::Text, text) => match parse_rate_text(text) {
            Some(rate) => return Some(rate),
            None if text.starts_with('0') => "; a rate of 0 would send nothing: pause the limit",
            None => "",
        },
        Value::Scalar(ScalarKind::Number, _) => "; write its unit: 100/s, 100/m or 100/h",
        Value::Invalid => return None,
        Value::Scalar(..) | Value::Map(_) | Value::List(_) => "",
    };
    report.add_error(
        entry.location(),
        format!(
            "\"rate\" takes a number of messages in a period, such as 100/s, 20/m or 1/15m, at \
             most {RATE_COUNT_MAX}; found {}{hint}",
            describe(&entry.value)
        ),
    );
    None
}

/// Parses the text of a rate. Its burst is the default.
pub(crate) fn parse_rate_text(text: &str) -> Option<Rate> {
    let (count, period) = text.split_once('/')?;
    let is_number = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    let count: u32 = count.parse().ok().filter(|count| is_number && *count > 0)?;
    // A unit alone is one of it.
    let per = match period.bytes().next()? {
        b'0'..=b'9' => duration::parse(period)?,
        _ => duration::parse(&format!("1{period}"))?,
    };
    let is_valid = u64::from(count) <= RATE_COUNT_MAX
        && per >= Millis(1)
        && per <= duration::DURATION_MAX
        // The rate has at least a nanosecond for each message.
        && u64::from(count) <= per.0.saturating_mul(1_000_000);
    let default_burst = u64::from(count).saturating_mul(DEFAULT_BURST.0) / per.0.max(1);
    let burst = u32::try_from(default_burst.clamp(1, BURST_MAX)).unwrap_or(1);
    is_valid.then_some(Rate { count, per, burst })
}

/// Parses the limits that a step names: one name, or a list of them.
pub(super) fn parse_step_limits(entry: &Entry, report: &mut Diagnostics) -> Vec<LocatedText> {
    const EXPECTED: &str = "the name of a limit";
    let mut names: Vec<LocatedText> = Vec::new();
    let mut add = |node: &Node, location, report: &mut Diagnostics| {
        let Some(name) = parse_reference(node, location, EXPECTED, report) else { return };
        match names.iter().find(|other| other.text == name.text) {
            Some(first) => report.add_error(
                name.location,
                format!(
                    "the limit {} is named twice; the first is at {}",
                    quote(&name.text),
                    first.location
                ),
            ),
            None => names.push(name),
        }
    };
    match &entry.value.value {
        Value::List(items) => {
            items.iter().for_each(|item| add(item, item.location, report));
            if items.is_empty() || items.len() > STEP_LIMITS_MAX {
                report.add_error(
                    entry.location(),
                    format!(
                        "a step names one limit to {STEP_LIMITS_MAX} limits, found {}",
                        items.len()
                    ),
                );
            }
        }
        Value::Scalar(..) | Value::Map(_) | Value::Invalid => {
            add(&entry.value, entry.location(), report)
        }
    }
    names
}

/// The limits of a file.
#[derive(Default)]
pub(super) struct FileLimits {
    limits: HashMap<String, LimitDefinition>,
    /// The names, in the order of the file.
    names: Vec<LocatedText>,
    used: BTreeSet<String>,
}

impl FileLimits {
    /// Compiles the limits of a file.
    pub(super) fn compile(
        drafts: Vec<LimitDraft>,
        conditions: &mut CompiledConditions,
        report: &mut Diagnostics,
    ) -> FileLimits {
        let mut file_limits = FileLimits::default();
        for draft in drafts {
            let mut compile = |name: &str, condition: &Option<ConditionDraft>| {
                let condition = condition.as_ref()?;
                let expression = conditions.compile(condition, report)?;
                check_key(name, condition, &expression, report);
                Some(expression)
            };
            let (key, fair) = (compile("key", &draft.key), compile("fair", &draft.fair));
            let name: Arc<str> = draft.name.text.as_str().into();
            let LimitDraft { rate, concurrency, .. } = draft;
            let definition = LimitDefinition { name, rate, concurrency, key, fair };
            file_limits.limits.insert(draft.name.text.clone(), definition);
            file_limits.names.push(draft.name);
        }
        file_limits
    }

    /// Returns the definitions of the limits that a workflow and its steps name, in the order of
    /// the file. Reports names that the file does not have, and steps that send no message.
    pub(super) fn resolve(
        &mut self,
        workflow: &WorkflowDraft,
        report: &mut Diagnostics,
    ) -> Vec<LimitDefinition> {
        let mut names: BTreeSet<&str> = BTreeSet::new();
        if let Some(limit) = &workflow.limit {
            self.check_name(&limit.name, report);
            if let Some(definition) = self.limits.get(&limit.name.text) {
                limit.check_limit(definition, report);
            }
            names.insert(&limit.name.text);
        }
        for graph in std::iter::once(&workflow.graph).chain(&workflow.tasks) {
            for step in &graph.steps {
                report.step = step.name.as_ref().map(|name| name.text.clone());
                check_step(step, report);
                for limit in &step.limits {
                    self.check_name(limit, report);
                    names.insert(&limit.text);
                }
                report.step = None;
            }
        }
        self.used.extend(names.iter().map(|name| (*name).to_owned()));
        let in_order = self.names.iter().filter(|name| names.contains(name.text.as_str()));
        in_order.filter_map(|name| self.limits.get(&name.text).cloned()).collect()
    }

    fn check_name(&self, limit: &LocatedText, report: &mut Diagnostics) {
        if self.limits.contains_key(&limit.text) {
            return;
        }
        let names = self.names.iter().map(|name| name.text.as_str());
        let hint = if self.names.is_empty() {
            "; the file has no `limits`".to_owned()
        } else {
            report.suggest(&limit.text, names)
        };
        report.add_error(
            limit.location,
            format!("names the limit {}, which this file does not have{hint}", quote(&limit.text)),
        );
    }

    /// Warns of limits that nothing uses.
    pub(super) fn warn_of_unused(&self, report: &mut Diagnostics) {
        for name in &self.names {
            if !self.used.contains(&name.text) {
                report.add_warning(
                    name.location,
                    format!(
                        "nothing uses the limit {}: name it in the `limit` of a step \
                         or a workflow, or remove it",
                        quote(&name.text)
                    ),
                );
            }
        }
    }
}

/// Reports a step that names a limit and sends no message.
fn check_step(step: &StepDraft, report: &mut Diagnostics) {
    let Some(limit) = step.limits.first() else { return };
    let is_external = step.options.external.is_some_and(|(is_external, _)| is_external);
    if step.task.is_some() {
        report.add_error(
            limit.location,
            "\"limit\" limits messages, and a step with a task sends none of its own: name the \
             limit in the steps of the task",
        );
    } else if is_external {
        report.add_error(
            limit.location,
            "\"limit\" limits messages, and an external step sends none: take it away",
        );
    }
}

/// Reports a key that cannot be a text, or reads other steps.
fn check_key(
    name: &str,
    condition: &ConditionDraft,
    expression: &Expression,
    report: &mut Diagnostics,
) {
    report_mistakes(name, condition, expression, report);
    if expression.reads_steps() {
        report.add_error(
            condition.location,
            format!(
                "{} reads `steps`; the key of a limit follows from `job` and `input` alone",
                quote(name)
            ),
        );
    }
    let value_use = ValueUse { noun: "a key", other_source: "input", example: "job.customer" };
    report_no_value(name, condition.location, expression, value_use, report);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_in_a_period() {
        let rate = |count, per, burst| Some(Rate { count, per: Millis(per), burst });
        assert_eq!(parse_rate_text("100/s"), rate(100, 1_000, 5));
        assert_eq!(parse_rate_text("1000/s"), rate(1_000, 1_000, 50));
        assert_eq!(parse_rate_text("20/m"), rate(20, 60_000, 1));
        assert_eq!(parse_rate_text("1/15m"), rate(1, 900_000, 1));
        assert_eq!(parse_rate_text("1/1h30m"), rate(1, 5_400_000, 1));
        for text in ["100", "100/", "/s", "0/s", "-1/s", "1.5/s", "1/0s", "1/x", "1/s ", "s/1"] {
            assert_eq!(parse_rate_text(text), None, "{text}");
        }
    }
}
