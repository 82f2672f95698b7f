//! Prints the outcomes of the cases: either each as soon as it is known, in the Test Anything
//! Protocol (TAP), or all at the end, as one JSON object.

use super::super::screen::print_json;
use super::super::text::Text;
use serde_json::{Value, json};
use std::io::{self, Write};

/// The requirement level of a rule, as in RFC 2119.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequirementLevel {
    /// A worker that violates the rule loses steps, or keeps a broker busy.
    Must,
    /// A recommendation: a violation is printed as advice, and does not fail the worker.
    Should,
}

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CaseOutcome {
    /// The worker keeps the rule. The text is what it did.
    Passed(Text),
    /// The worker violates the rule. The text is what it did instead.
    Failed(Text),
    /// The rule could not be checked, for this reason.
    Skipped(Text),
}

impl CaseOutcome {
    pub(super) fn passed(observation: impl AsRef<str>) -> CaseOutcome {
        CaseOutcome::Passed(Text::new(observation.as_ref()))
    }

    pub(super) fn failed(observation: impl AsRef<str>) -> CaseOutcome {
        CaseOutcome::Failed(Text::new(observation.as_ref()))
    }

    pub(super) fn skipped(reason: impl AsRef<str>) -> CaseOutcome {
        CaseOutcome::Skipped(Text::new(reason.as_ref()))
    }
}

/// The description of a case.
pub(super) struct CaseInfo {
    pub(super) name: &'static str,
    pub(super) level: RequirementLevel,
    /// The sentences of docs/reference/worker-protocol.md that the case checks.
    pub(super) rule: &'static str,
}

/// Prints and counts the outcomes.
pub(super) struct Reporter<'o> {
    out: &'o mut dyn Write,
    is_json: bool,
    /// The outcomes so far, as they are in the JSON summary.
    cases: Vec<Value>,
    /// How many cases passed.
    passed: usize,
    /// How many rules of level `Must` were violated.
    failed: usize,
    /// How many rules of level `Should` were violated.
    advised: usize,
    /// Why no further case can be checked, if that is so.
    bail_reason: Option<Text>,
}

impl<'o> Reporter<'o> {
    /// Starts the report of `count` cases.
    pub(super) fn start(
        out: &'o mut dyn Write,
        is_json: bool,
        count: usize,
    ) -> io::Result<Reporter<'o>> {
        if !is_json {
            writeln!(out, "1..{count}")?;
            out.flush()?;
        }
        let cases = Vec::new();
        Ok(Reporter { out, is_json, cases, passed: 0, failed: 0, advised: 0, bail_reason: None })
    }

    /// Counts the outcome of a case, and prints it as TAP unless the report is JSON.
    pub(super) fn report_case(&mut self, info: &CaseInfo, outcome: &CaseOutcome) -> io::Result<()> {
        let (status, observation) = match (outcome, info.level) {
            (CaseOutcome::Passed(observation), _) => ("passed", observation),
            (CaseOutcome::Failed(observation), RequirementLevel::Must) => ("failed", observation),
            (CaseOutcome::Failed(observation), RequirementLevel::Should) => {
                ("advised", observation)
            }
            (CaseOutcome::Skipped(reason), _) => ("skipped", reason),
        };
        match status {
            "passed" => self.passed += 1,
            "failed" => self.failed += 1,
            "advised" => self.advised += 1,
            _ => {}
        }
        let number = self.cases.len() + 1;
        let CaseInfo { name, rule, level } = info;
        let level = if *level == RequirementLevel::Must { "must" } else { "should" };
        self.cases.push(json!({
            "number": number, "name": name, "level": level, "outcome": status,
            "seen": observation.raw(), "rule": rule,
        }));
        if self.is_json {
            return Ok(());
        }
        match status {
            "passed" => writeln!(self.out, "ok {number} - {name}\n#   seen: {observation}")?,
            "skipped" => writeln!(self.out, "ok {number} - {name} # SKIP {observation}")?,
            _ => {
                let advice = if status == "advised" { " # advice" } else { "" };
                writeln!(self.out, "not ok {number} - {name}{advice}\n#   seen: {observation}")?;
                writeln!(self.out, "#   docs/reference/worker-protocol.md: {rule}")?;
            }
        }
        self.out.flush()
    }

    /// Reports that no further case can be checked.
    pub(super) fn bail_out(&mut self, reason: &str) -> io::Result<()> {
        let reason = Text::new(reason);
        if !self.is_json {
            writeln!(self.out, "Bail out! {reason}")?;
        }
        self.bail_reason = Some(reason);
        Ok(())
    }

    /// Prints the summary. Returns whether the worker keeps the protocol: no rule of level `Must`
    /// was violated, and no case was left out by `bail_out`.
    pub(super) fn finish(self) -> io::Result<bool> {
        let Reporter { out, passed, failed, advised, .. } = self;
        let bail_reason = self.bail_reason.as_ref().map(Text::raw);
        if self.is_json {
            let summary = json!({
                "passed": passed, "failed": failed, "advised": advised, "stopped": bail_reason,
                "cases": self.cases,
            });
            print_json(&summary.to_string(), out)?;
        } else {
            writeln!(out, "{passed} passed, {failed} failed, {advised} advised")?;
        }
        out.flush()?;
        Ok(failed == 0 && bail_reason.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(is_json: bool) -> (String, bool) {
        let mut out = Vec::new();
        let mut report = Reporter::start(&mut out, is_json, 4).unwrap();
        let case_info = |level| CaseInfo { name: "a case", level, rule: "a sentence" };
        let failed = || CaseOutcome::failed("\u{1b}[31mred\nnot ok 7");
        for (level, outcome) in [
            (RequirementLevel::Must, CaseOutcome::passed("well")),
            (RequirementLevel::Must, failed()),
            (RequirementLevel::Should, failed()),
            (RequirementLevel::Should, CaseOutcome::skipped("why")),
        ] {
            report.report_case(&case_info(level), &outcome).unwrap();
        }
        let is_compliant = report.finish().unwrap();
        (String::from_utf8(out).unwrap(), is_compliant)
    }

    #[test]
    fn line_breaks_in_observations_are_escaped() {
        let (text, is_compliant) = render(false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(!is_compliant);
        assert_eq!(lines[..3], ["1..4", "ok 1 - a case", "#   seen: well"]);
        assert_eq!(lines[3], "not ok 2 - a case");
        assert_eq!(lines[4], "#   seen: \\u{1b}[31mred\\nnot ok 7");
        assert_eq!(lines[5], "#   docs/reference/worker-protocol.md: a sentence");
        assert_eq!(lines[6], "not ok 3 - a case # advice");
        assert_eq!(lines[9..], ["ok 4 - a case # SKIP why", "1 passed, 1 failed, 1 advised"]);
    }

    #[test]
    fn json_is_one_object_on_one_line() {
        let (text, _) = render(true);
        let summary: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&summary["passed"], &summary["failed"], &summary["advised"]),
            (&json!(1), &json!(1), &json!(1))
        );
        assert_eq!(summary["cases"][3]["outcome"], "skipped");
        assert_eq!(text.trim_end().lines().count(), 1);
    }
}
