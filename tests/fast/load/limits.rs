//! Limits in workflow files: what they mean, what is refused, what is warned of.

use super::{message, only};
use workflow_manager::engine::{Expression, Millis, Rate};
use workflow_manager::load::load_text;

/// A file with these limits, and one step with these keys.
fn file(limits: &str, keys: &str) -> String {
    format!("limits: [ {limits} ]\nworkflows: [ {{ name: w, steps: [ {{ name: s, {keys} }} ] }} ]")
}

#[test]
fn the_limits_that_steps_name_reach_the_definition() {
    let definition = only(
        "
limits:
  - { name: bank, rate: 100/s, burst: 20 }
  - { name: license, concurrency: 5, key: job.customer, fair: input.tenant }
  - { name: slow, rate: 1/15m }
workflows:
  - name: w
    vhosts: [ prod ]
    steps:
      - { name: pay, limit: [ license, bank ] }
      - { name: send, limit: slow, task: t }
    tasks: [ { name: t, itemListKey: as, steps: [ { name: again, limit: slow } ] } ]
"
        .replace("limit: slow, task", "task")
        .as_str(),
    );
    let [bank, license, slow] = definition.limits.as_slice() else { panic!("three limits") };
    assert_eq!(bank.rate, Some(Rate { count: 100, per: Millis(1_000), burst: 20 }));
    assert_eq!(slow.rate, Some(Rate { count: 1, per: Millis(900_000), burst: 1 }));
    assert_eq!((license.concurrency, bank.concurrency), (Some(5), None));
    assert_eq!(license.key.as_ref().map(Expression::text), Some("job.customer"));
    assert_eq!(license.fair.as_ref().map(Expression::text), Some("input.tenant"));
    let names: Vec<&str> =
        definition.graph().steps[0].limits.iter().map(|limit| &**limit).collect();
    assert_eq!(names, ["license", "bank"]);
    assert!(!definition.graphs[1].steps[0].limits.is_empty());
    assert_eq!(&*definition.full_limit_name(&"bank".into()), "prod/bank");
    let stored = serde_json::to_string(&definition).expect("serialises");
    let parsed: workflow_manager::engine::Definition =
        serde_json::from_str(&stored).expect("parses");
    assert_eq!(parsed, definition);
}

#[test]
fn a_limit_that_makes_no_sense_is_refused_with_the_remedy() {
    let used = "limit: bank";
    for (limits, keys, expected) in [
        ("{ name: bank, rate: 1/s }", "limit: bnk", "did you mean \"bank\"?"),
        ("", "limit: bank", "this file does not have; the file has no `limits`"),
        ("{ name: bank, concurrency: 0 }", used, "takes a whole number from 1 to"),
        ("{ name: bank, rate: 100 }", used, "write its unit: 100/s, 100/m or 100/h"),
        ("{ name: bank, rate: 0/s }", used, "pause the limit"),
        ("{ name: bank, rate: 1 per s }", used, "such as 100/s, 20/m or 1/15m"),
        ("{ name: bank }", used, "this one limits nothing"),
        ("{ name: bank, concurrency: 1, burst: 2 }", used, "this limit has no \"rate\""),
        (
            "{ name: bank, rate: 1/s }, { name: bank, rate: 2/s }",
            used,
            "a limit \"bank\" is declared already, at 1:19",
        ),
        ("{ name: bank, rate: 1/s, key: '[job.a]' }", used, "gives a list, and a key is a text"),
        ("{ name: bank, rate: 1/s, key: job }", used, "gives an object"),
        ("{ name: bank, rate: 1/s, key: '\"a\"' }", used, "is the same for every job"),
        ("{ name: bank, rate: 1/s, fair: steps.s.status }", used, "reads `steps`"),
        ("{ name: bank, rate: 1/s }", "limit: [ bank, bank ]", "is named twice"),
        ("{ name: bank, rate: 1/s }", "limit: []", "one limit to 8 limits, found 0"),
        ("{ name: bank, rate: 1/s }", "limit: bank, external: true", "an external step sends none"),
        ("{ name: bank, speed: 1/s }", used, "unknown key \"speed\" in a limit"),
    ] {
        let text = file(limits, keys);
        let errors = load_text("w.yaml", &text).expect_err(&text).to_string();
        assert!(errors.contains(expected), "{text}\n{errors}");
    }
    let task = "limits: [ { name: a, rate: 1/s } ]
workflows:
  - name: w
    steps: [ { name: s, task: t, limit: a } ]
    tasks: [ { name: t, itemListKey: as, steps: [ { name: d } ] } ]";
    assert!(message(task).contains("name the limit in the steps of the task"));
}

#[test]
fn a_limit_that_nothing_uses_is_warned_of() {
    let loaded = load_text("w.yaml", &file("{ name: bank, rate: 1/s }", "timeout: 1s"));
    let warnings = loaded.expect("it loads").warnings;
    let [warning] = warnings.as_slice() else { panic!("one warning: {warnings:?}") };
    assert!(warning.to_string().contains("nothing uses the limit \"bank\""), "{warning}");
}

#[test]
fn the_wait_for_limits_is_bounded_only_where_there_are_some() {
    let bank = "{ name: bank, rate: 1/s }";
    let definition = only(&file(bank, "limit: bank, waitAtMost: 1h"));
    assert_eq!(definition.graph().steps[0].wait_at_most, Some(Millis(3_600_000)));
    for (keys, words) in [
        ("waitAtMost: 1h", "it names none: add a \"limit\""),
        ("limit: bank, waitAtMost: 0s", "\"waitAtMost\""),
    ] {
        let told = message(&file(bank, keys));
        assert!(told.contains(words), "{told}");
    }
}
