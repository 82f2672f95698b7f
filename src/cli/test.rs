//! `test`: runs the tests of workflows in test files, and prints their outcomes.

use crate::workflow_test::{TestOutcome, run_tests};
use engine::Millis;
use engine::text::{escape, escape_lines};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// The outcome of one test file.
#[derive(Serialize)]
struct FileOutcome {
    file: String,
    /// Why the tests cannot be run; `None` if they were run.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    tests: Vec<TestOutcome>,
}

/// Runs `test FILE…`. Returns whether all tests have passed. What happened in a test is printed if
/// it failed, or in any case if `is_verbose`.
pub(super) fn run_test_files(
    files: &[PathBuf],
    is_verbose: bool,
    is_json: bool,
    out: &mut dyn Write,
) -> std::io::Result<bool> {
    let outcomes = files.iter().map(|path| {
        let file = path.display().to_string();
        match run_tests(path) {
            Ok(tests) => FileOutcome { file, error: None, tests },
            Err(error) => FileOutcome { file, error: Some(error.to_string()), tests: Vec::new() },
        }
    });
    let outcomes: Vec<FileOutcome> = outcomes.collect();
    let all_passed = outcomes
        .iter()
        .all(|file| file.error.is_none() && file.tests.iter().all(|test| test.passed));
    if is_json {
        writeln!(out, "{}", serde_json::json!({ "passed": all_passed, "files": outcomes }))?;
        return Ok(all_passed);
    }
    let (mut passed_count, mut failed_count) = (0, 0);
    for file in &outcomes {
        writeln!(out, "{}", escape(&file.file))?;
        if let Some(error) = &file.error {
            // A file that cannot be run counts as one failed test.
            failed_count += 1;
            writeln!(out, "{}", escape_lines(error))?;
        }
        for test in &file.tests {
            let elapsed = Millis(test.took_ms);
            writeln!(
                out,
                "  {:<6}  {}  ({elapsed})",
                if test.passed { "ok" } else { "FAILED" },
                escape(&test.name)
            )?;
            for difference in &test.differences {
                writeln!(out, "          {}", escape_lines(difference))?;
            }
            if is_verbose || !test.passed {
                for line in &test.story {
                    writeln!(out, "          {}", escape_lines(line))?;
                }
            }
            passed_count += usize::from(test.passed);
            failed_count += usize::from(!test.passed);
        }
    }
    writeln!(out, "{passed_count} passed, {failed_count} failed")?;
    Ok(all_passed)
}
