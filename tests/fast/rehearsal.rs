//! `workflow-manager test`: the documentation's example and those of `examples` pass, and mistakes
//! are reported.

use std::fs;
use std::path::{Path, PathBuf};
use workflow_manager::cli::workflow_test::run_tests;
use workflow_manager::load::{load_files, load_text};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The YAML blocks of a page, in order.
fn blocks(page: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(ROOT).join(page)).expect("a page");
    let parts: Vec<&str> = text.split("```").collect();
    parts.iter().filter_map(|part| part.strip_prefix("yaml\n")).map(str::to_owned).collect()
}

fn written(workflow: &str, tests: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("order.yaml"), workflow).expect("written");
    let path = folder.path().join("order.test.yaml");
    fs::write(&path, tests).expect("written");
    (folder, path)
}

#[track_caller]
fn passes(path: &Path, count: usize) {
    let outcomes = run_tests(path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcomes.len(), count);
    for outcome in outcomes {
        assert!(
            outcome.passed,
            "{}: {:?}\n{}",
            outcome.name,
            outcome.differences,
            outcome.story.join("\n")
        );
    }
}

#[test]
fn the_example_of_the_documentation_passes() {
    let blocks = blocks("docs/how-to/test-workflows.md");
    let (_folder, path) = written(&blocks[0], &blocks[1]);
    passes(&path, 4);
}

#[test]
fn the_example_of_a_schedule_passes() {
    let blocks = blocks("docs/how-to/test-workflows.md");
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("report.yaml"), &blocks[2]).expect("written");
    let path = folder.path().join("report.test.yaml");
    fs::write(&path, &blocks[3]).expect("written");
    passes(&path, 2);
}

const SCHEDULES: &str = "
workflows: [ { name: w, steps: [ { name: a } ] } ]
schedules:
  - { name: skips, workflow: w, every: 1h }
  - { name: replaces, workflow: w, every: 1h, overlap: replace }
  - { name: beside, workflow: w, every: 1h, overlap: allow, message: { n: 1 } }
  - { name: late, workflow: w, every: 1h, overlap: wait, deadline: 30m }
  - { name: often, workflow: w, every: 1m }
";

/// Returns the differences and the story of a test with these keys.
fn outcome(keys: &str) -> (Vec<String>, String) {
    let tests = format!("workflows: [order.yaml]\ntests:\n  - {{ name: t, {keys} }}\n");
    let (_folder, path) = written(SCHEDULES, &tests);
    let outcome = run_tests(&path).unwrap_or_else(|error| panic!("{error}")).remove(0);
    (outcome.differences, outcome.story.join("\n"))
}

#[test]
fn slots_of_schedules_are_judged_as_by_a_manager() {
    let slot = |hour: u32, rest: &str| format!("{{ slot: 2026-01-01T0{hour}:00:00Z, {rest} }}");
    for (schedule, worker, slots) in [
        (
            "skips",
            "after: 90m",
            [
                slot(1, "state: completed"),
                slot(2, "verdict: skipped, reason: an earlier job runs"),
                slot(3, "at: 2026-01-01T03:00:00Z, state: running"),
            ],
        ),
        (
            "replaces",
            "silent: true",
            [slot(1, "state: cancelled"), slot(2, "state: cancelled"), slot(3, "state: running")],
        ),
        (
            "beside",
            "after: 90m",
            [slot(1, "state: completed"), slot(2, "state: completed"), slot(3, "state: running")],
        ),
        (
            "late",
            "after: 100m",
            [
                slot(1, "state: completed"),
                slot(2, "verdict: waits"),
                slot(2, "verdict: missed, reason: deadline, at: 2026-01-01T02:40:00Z"),
            ],
        ),
    ] {
        let until = if schedule == "late" { "170m" } else { "239m" };
        let (differences, story) = outcome(&format!(
            "schedule: {schedule}, until: {until}, workers: {{ a: {{ {worker} }} }}, \
             expect: {{ slots: [ {} ] }}",
            slots.join(", ")
        ));
        assert!(differences.is_empty(), "{schedule}: {differences:?}\n{story}");
    }
    // More slots than a manager keeps.
    let slots: Vec<String> =
        (1..=50).map(|minute| format!("{{ slot: 2026-01-01T00:{minute:02}:00Z }}")).collect();
    let slots = slots.join(", ");
    let keys = format!("schedule: often, until: 50m, expect: {{ slots: [ {slots} ] }}");
    assert_eq!(outcome(&keys).0, [] as [String; 0]);
}

#[test]
fn what_is_different_about_slots_is_told() {
    let start = "schedule: beside, now: 2026-01-01T00:30:00Z, until: 2h, expect: ";
    for (expected, told) in [
        ("slots: [ ]", "slot 2026-01-01T01:00:00.000Z: not expected, and it started"),
        (
            "slots: [ { slot: 2026-01-01T01:00:00Z, state: failed }, \
             { slot: 2026-01-01T02:00:00Z } ]",
            "state of its job of slot 2026-01-01T01:00:00.000Z: expected failed, got completed",
        ),
        (
            "slots: [ { slot: 2026-01-01T01:00:00Z, verdict: skipped }, \
             { slot: 2026-01-01T02:00:00Z } ]",
            "verdict of slot 2026-01-01T01:00:00.000Z: expected skipped, got started",
        ),
        (
            "slots: [ { slot: 2026-01-01T01:00:00Z }, { slot: 2026-01-01T02:00:00Z }, \
             { slot: 2026-01-01T03:00:00Z } ]",
            "slot 2026-01-01T03:00:00.000Z: expected, and no further slot was judged",
        ),
        ("inputs: { a: [ ] }", "inputs of step a: expected [], got [{\"n\":1},{\"n\":1}]"),
    ] {
        let (differences, _) = outcome(&format!("{start}{{ {expected} }}"));
        assert!(differences.iter().any(|text| text == told), "{expected}: {differences:?}");
    }
    for (keys, told) in [
        ("schedule: sometimes, until: 1h, expect: { }", "there is no schedule \"sometimes\""),
        ("schedule: beside, expect: { }", "say with `until`"),
        ("schedule: beside, until: 1h, message: { }, expect: { }", "message is about one job"),
        ("schedule: beside, until: 1h, expect: { state: completed }", "expect.state is about one"),
        (
            "schedule: beside, until: 1h, \
             expect: { slots: [ { slot: 2026-01-01T01:00:00Z, verdict: start } ] }",
            "did you mean \"started\"?",
        ),
        ("expect: { slots: [ ] }", "expect.slots is for a test with a `schedule`"),
        ("now: 2026-01-01, expect: { }", "is not a time with its zone"),
    ] {
        let tests = format!("workflows: [order.yaml]\ntests: [ {{ name: t, {keys} }} ]\n");
        let (_folder, path) = written(SCHEDULES, &tests);
        let error = run_tests(&path).expect_err(keys).to_string();
        assert!(error.contains(told), "{keys}: {error}");
    }
}

#[test]
fn the_tests_of_the_examples_pass() {
    passes(&Path::new(ROOT).join("examples/job-application/tests.yaml"), 7);
}

#[test]
fn the_examples_are_no_cause_for_a_warning() {
    let files = ["job-application", "word-counts"]
        .map(|name| Path::new(ROOT).join("examples").join(name).join("workflow.yaml"));
    let loaded = load_files(&files).expect("valid");
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

const ONE: &str = "workflows: [ { name: w, steps: [ { name: a }, { name: b, depends: [ a ] } ] } ]";

#[test]
fn each_difference_is_told() {
    let expect = "{ state: failed, result: { n: 2 }, states: { b: skipped }, attempts: { a: 3 }, \
                  inputs: { b: [] }, reason: x, took: 1s }";
    let (_folder, path) = written(
        ONE,
        &format!(
            "{{ workflows: [ order.yaml ], tests: [ {{ name: t, message: {{ n: 1 }}, \
             expect: {expect} }} ] }}"
        ),
    );
    let outcomes = run_tests(&path).expect("it runs");
    assert!(!outcomes[0].passed);
    let told = outcomes[0].differences.join("\n");
    for words in [
        r#"state of the job: expected "failed", got "completed""#,
        r#"result: expected {"n":2}, got {"n":1}"#,
        r#"state of step b: expected "skipped", got "completed""#,
        "attempts of step a: expected 3, got 1",
        r#"inputs of step b: expected [], got [{"n":1}]"#,
        "reason (a part of it)",
        r#"virtual time: expected "1s", got "0s""#,
    ] {
        assert!(told.contains(words), "{words} is not in\n{told}");
    }
    assert!(
        outcomes[0].story.iter().any(|line| line.contains("step b completes")),
        "{:?}",
        outcomes[0].story
    );
}

#[test]
fn durations_are_told_as_files_write_them() {
    let workflow =
        "workflows: [ { name: w, deadline: 90d, steps: [ { name: a, external: true } ] } ]";
    let test = "{ workflows: [ order.yaml ], tests: [ { name: t, expect: { state: failed, \
                reason: deadline of 90d, took: 89d } } ] }";
    let (_folder, path) = written(workflow, test);
    let outcomes = run_tests(&path).expect("it runs");
    assert_eq!(outcomes[0].differences, [r#"virtual time: expected "89d", got "90d""#]);
    assert!(outcomes[0].story.iter().any(|line| line.contains("90d")), "{:?}", outcomes[0].story);
}

#[test]
fn mistakes_of_a_test_file_are_refused_with_their_place() {
    let refused = |tests: &str| {
        let (_folder, path) = written(ONE, tests);
        run_tests(&path).expect_err(tests).to_string()
    };
    let with = |test: &str| format!("{{ workflows: [ order.yaml ], tests: [ {test} ] }}");
    for (tests, words) in [
        (
            with("{ name: t, expect: { state: x }, worker: {} }"),
            &["order.test.yaml:1:", "worker"][..],
        ),
        (
            with("{ name: t, workers: { c: { silent: true } }, expect: {} }"),
            &["test \"t\"", "no step \"c\"", "a, b"],
        ),
        (with("{ name: t, workers: { a: { after: 5 } }, expect: {} }"), &["order.test.yaml:1:"]),
        (with("{ name: t, workflow: x, expect: {} }"), &["no workflow \"x\"", "expected one of w"]),
        (
            with(
                "{ name: t, users: [ { at: 1s, do: explode } ], workers: { a: { silent: true } }, \
                 expect: {} }",
            ),
            &["explode", "cancel, pause"],
        ),
        (
            with("{ name: t, users: [ { at: 1s, do: rerun, step: a, items: all } ], expect: {} }"),
            &["items of rerun is \"all\"", "failed"],
        ),
        (
            with("{ name: t, users: [ { at: 1s, do: retry, items: failed } ], expect: {} }"),
            &["items is for rerun, not for \"retry\""],
        ),
        ("{ workflows: [ nowhere.yaml ], tests: [] }".to_owned(), &["nowhere.yaml", "cannot read"]),
        (
            "{ workflows: [ order.yaml ], tests: [] }".to_owned(),
            &["order.test.yaml: \"tests\" is empty"],
        ),
        (
            "{ workflows: [ order.yaml ], test: [] }".to_owned(),
            &["order.test.yaml:1:", "unknown key \"test\"; did you mean \"tests\"?"],
        ),
        (
            with("{ name: t, expect: { state: complete } }"),
            &["test \"t\"", "expect.state is \"complete\"; did you mean \"completed\"?"],
        ),
        (
            with("{ name: t, workers: { a: { slient: true } }, expect: {} }"),
            &["order.test.yaml:1:", "unknown key \"slient\"; did you mean \"silent\"?"],
        ),
        (
            with("{ name: t, workers: { a: [ { slient: true } ] }, expect: {} }"),
            &["unknown key \"slient\"; did you mean \"silent\"?"],
        ),
        (with("{ name: t, expects: {} }"), &["unknown key \"expects\"; did you mean \"expect\"?"]),
        (with("{ name: t }"), &["the key \"expect\" is missing"]),
        (
            with("{ name: t, workers: { ab: { silent: true } }, expect: {} }"),
            &["no step \"ab\"; did you mean \"a\"?"],
        ),
    ] {
        let told = refused(&tests);
        let places = told.matches("order.test.yaml").count();
        assert!(
            places <= 1 && !told.contains("-->") && !told.contains("line 1 column"),
            "its place is told once: {told}"
        );
        assert!(words.iter().all(|word| told.contains(word)), "{words:?} are not in: {told}");
    }
}

#[test]
fn a_worker_that_comes_late_is_late_for_start_within_and_not_for_the_timeout() {
    let workflow = "
workflows:
  - name: order
    steps: [ { name: charge, timeout: 10s, startWithin: 1m, retry: { attempts: 2, backoff: 0s } } ]
";
    let tests = "
workflows: [ order.yaml ]
tests:
  - name: a long wait costs no time of the attempt
    workers: { charge: { startsAfter: 50s, after: 9s } }
    expect: { state: completed, attempts: { charge: 1 }, took: 59s }
  - name: whoever has it is late
    workers: { charge: [ { attempt: 1, startsAfter: 50s, after: 11s }, {} ] }
    expect: { state: completed, attempts: { charge: 2 }, took: 1m }
  - name: nobody comes
    workers: { charge: { startsAfter: 61s } }
    expect:
      state: failed
      reason: its message was not taken within its startWithin of 1m
      attempts: { charge: 2 }
      inputs: { charge: [] }
      took: 2m
";
    let (_folder, path) = written(workflow, tests);
    passes(&path, 3);
}

#[test]
fn only_the_failed_items_run_again() {
    let workflow = "
workflows:
  - name: order
    steps: [ { name: each, task: part } ]
    tasks: [ { name: part, itemListKey: parts, tolerate: 1, steps: [ { name: sum } ] } ]
";
    let test = |items: &str, runs: &str| {
        format!(
            "
workflows: [ order.yaml ]
tests:
  - name: only what has failed is summed again
    message: {{ parts: [ 1, 2 ] }}
    workers:
      sum:
        - {{ attempt: 1, if: {{ part: 2 }}, error: no }}
        - {{ result: {{ part: 7 }} }}
    users: [ {{ at: 1m, do: rerun, step: each{items} }} ]
    expect: {{ state: completed, result: {{ parts: [ 7, 7 ] }}, inputs: {{ sum: {runs} }} }}
"
        )
    };
    let two = "{ part: 1 }, { part: 2 }";
    let (_folder, path) =
        written(workflow, &test(", items: failed", &format!("[ {two}, {{ part: 2 }} ]")));
    passes(&path, 1);
    // Without it the others run again too, as new child jobs, of which one fails once more.
    let (_folder, path) = written(workflow, &test("", &format!("[ {two}, {two} ]")));
    let outcomes = run_tests(&path).expect("it runs");
    assert_eq!(outcomes[0].differences.len(), 1, "{:?}", outcomes[0].differences);
    assert!(outcomes[0].differences[0].starts_with("result:"), "{:?}", outcomes[0].differences);
}

#[test]
fn the_workflow_files_of_the_reference_are_valid() {
    let mut count = 0;
    for page in ["workflow-file", "workflow-data"] {
        for block in blocks(&format!("docs/reference/{page}.md")) {
            if let Err(errors) = load_text(page, &block) {
                panic!("{errors}\n{block}");
            }
            count += 1;
        }
    }
    assert_eq!(count, 8);
}
