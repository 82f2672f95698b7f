//! Prints the outcome of each case as soon as it is known: as lines of the Test Anything Protocol
//! (TAP), or as one JSON object at the end.

use super::super::screen::print_json;
use super::super::text::Text;
use serde_json::{Value, json};
use std::io::{self, Write};

/// How much a case counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// A worker that fails it loses steps, or keeps a broker busy.
    Must,
    /// A recommendation.
    Should,
}

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With what the worker did.
    Passed(Text),
    /// With what the worker did instead.
    Failed(Text),
    /// With the reason why it could not be checked.
    Skipped(Text),
}

impl Outcome {
    pub(super) fn passed(seen: impl AsRef<str>) -> Outcome {
        Outcome::Passed(Text::new(seen.as_ref()))
    }

    pub(super) fn failed(seen: impl AsRef<str>) -> Outcome {
        Outcome::Failed(Text::new(seen.as_ref()))
    }

    pub(super) fn skipped(why: impl AsRef<str>) -> Outcome {
        Outcome::Skipped(Text::new(why.as_ref()))
    }
}

/// The description of a case.
pub(super) struct Told {
    pub(super) name: &'static str,
    pub(super) level: Level,
    /// The sentences of docs/worker-protocol.md that it rests on.
    pub(super) rule: &'static str,
}

/// Prints and counts the outcomes.
pub(super) struct Report<'o> {
    out: &'o mut dyn Write,
    is_json: bool,
    cases: Vec<Value>,
    passed: usize,
    failed: usize,
    advised: usize,
    stopped: Option<Text>,
}

impl<'o> Report<'o> {
    /// Starts a report about this many cases.
    pub(super) fn begin(
        out: &'o mut dyn Write,
        is_json: bool,
        count: usize,
    ) -> io::Result<Report<'o>> {
        if !is_json {
            writeln!(out, "1..{count}")?;
            out.flush()?;
        }
        let cases = Vec::new();
        Ok(Report { out, is_json, cases, passed: 0, failed: 0, advised: 0, stopped: None })
    }

    pub(super) fn tell(&mut self, told: &Told, outcome: &Outcome) -> io::Result<()> {
        let (word, seen) = match (outcome, told.level) {
            (Outcome::Passed(seen), _) => ("passed", seen),
            (Outcome::Failed(seen), Level::Must) => ("failed", seen),
            (Outcome::Failed(seen), Level::Should) => ("advised", seen),
            (Outcome::Skipped(why), _) => ("skipped", why),
        };
        match word {
            "passed" => self.passed += 1,
            "failed" => self.failed += 1,
            "advised" => self.advised += 1,
            _ => {}
        }
        let number = self.cases.len() + 1;
        let Told { name, rule, level } = told;
        let level = if *level == Level::Must { "must" } else { "should" };
        self.cases.push(json!({
            "number": number, "name": name, "level": level, "outcome": word, "seen": seen.raw(),
            "rule": rule,
        }));
        if self.is_json {
            return Ok(());
        }
        match word {
            "passed" => writeln!(self.out, "ok {number} - {name}\n#   seen: {seen}")?,
            "skipped" => writeln!(self.out, "ok {number} - {name} # SKIP {seen}")?,
            _ => {
                let advice = if word == "advised" { " # advice" } else { "" };
                writeln!(self.out, "not ok {number} - {name}{advice}\n#   seen: {seen}")?;
                writeln!(self.out, "#   docs/worker-protocol.md: {rule}")?;
            }
        }
        self.out.flush()
    }

    /// Reports that no further case can be checked.
    pub(super) fn stop(&mut self, why: &str) -> io::Result<()> {
        let why = Text::new(why);
        if !self.is_json {
            writeln!(self.out, "Bail out! {why}")?;
        }
        self.stopped = Some(why);
        Ok(())
    }

    /// Prints the summary. Returns whether the worker keeps the protocol.
    pub(super) fn end(self) -> io::Result<bool> {
        let Report { out, passed, failed, advised, .. } = self;
        let stopped = self.stopped.as_ref().map(Text::raw);
        if self.is_json {
            let told = json!({
                "passed": passed, "failed": failed, "advised": advised, "stopped": stopped,
                "cases": self.cases,
            });
            print_json(&told.to_string(), out)?;
        } else {
            writeln!(out, "{passed} passed, {failed} failed, {advised} advised")?;
        }
        out.flush()?;
        Ok(failed == 0 && stopped.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(is_json: bool) -> (String, bool) {
        let mut out = Vec::new();
        let mut report = Report::begin(&mut out, is_json, 4).unwrap();
        let case = |level| Told { name: "a case", level, rule: "a sentence" };
        let bad = || Outcome::failed("\u{1b}[31mred\nnot ok 7");
        for (level, outcome) in [
            (Level::Must, Outcome::passed("well")),
            (Level::Must, bad()),
            (Level::Should, bad()),
            (Level::Should, Outcome::skipped("why")),
        ] {
            report.tell(&case(level), &outcome).unwrap();
        }
        let is_kept = report.end().unwrap();
        (String::from_utf8(out).unwrap(), is_kept)
    }

    #[test]
    fn each_case_has_its_lines_and_no_text_of_a_worker_makes_another() {
        let (text, is_kept) = told(false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(!is_kept);
        assert_eq!(lines[..3], ["1..4", "ok 1 - a case", "#   seen: well"]);
        assert_eq!(lines[3], "not ok 2 - a case");
        assert_eq!(lines[4], "#   seen: \\u{1b}[31mred\\nnot ok 7");
        assert_eq!(lines[5], "#   docs/worker-protocol.md: a sentence");
        assert_eq!(lines[6], "not ok 3 - a case # advice");
        assert_eq!(lines[9..], ["ok 4 - a case # SKIP why", "1 passed, 1 failed, 1 advised"]);
    }

    #[test]
    fn json_is_one_object() {
        let (text, _) = told(true);
        let told: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&told["passed"], &told["failed"], &told["advised"]),
            (&json!(1), &json!(1), &json!(1))
        );
        assert_eq!(told["cases"][3]["outcome"], "skipped");
        assert_eq!(text.trim_end().lines().count(), 1);
    }
}
