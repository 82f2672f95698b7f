//! Conditions in workflow files: places of errors, steps that they look at, limits.

use super::{message, only, refused};
use insta::assert_snapshot;
use workflow_manager::engine::Expression;
use workflow_manager::engine::expression::DEPTH_MAX;
use workflow_manager::load::load_text;

#[test]
fn an_error_in_a_condition_has_its_place_in_the_file() {
    assert_snapshot!(refused(
        r#"workflows:
  - name: w
    steps:
      - name: plain
        when: inptu.n > 3
      - name: quoted
        when: "input.n > 3 && inptu.n"
      - name: escaped
        when: "input.s == \"x\" && inptu.n"
      - name: block
        when: |
          input.n > 3 &&
            inptu.n
      - name: folded
        cancelWhen: >-
          input.n = 3
      - name: äö
        when: input['äö'] == 'ä' && input.n >
      - { name: flow, when: 'true and false' }
      - &merged { name: a, when: x }
      - { <<: *merged, name: b }
"#
    ));
}

#[test]
fn a_condition_is_a_text() {
    let file = |condition: &str| {
        format!("workflows: [ {{ name: w, steps: [ {{ name: s, when: {condition} }} ] }} ]")
    };
    let expected = "expected a condition, such as `input.count > 0`, found";
    assert_eq!(
        message(&file("true")),
        format!("{expected} true, which YAML may take for a boolean; put it into quotes: \"true\"")
    );
    assert_eq!(
        message(&file("1")),
        format!("{expected} 1, which YAML may take for a number; put it into quotes: \"1\"")
    );
    assert_eq!(message(&file("[ input.n ]")), format!("{expected} a list"));
    assert_eq!(message(&file("~")), format!("{expected} nothing"));
    assert_eq!(
        message(&file("!input.done")),
        "the tag \"!input.done\" has no meaning here; remove it (quotes make a string)"
    );
    assert_eq!(
        only(&file("'!input.done'")).graph().steps[0].when.as_ref().map(Expression::text),
        Some("!input.done")
    );
    assert_eq!(
        message(&file("' '")),
        "the condition \" \": is empty; expected a condition, such as `input.count > 0`"
    );
}

#[test]
fn a_condition_looks_at_steps_of_its_own_graph() {
    assert_snapshot!(refused(
        "workflows:
  - name: w
    steps:
      - { name: split }
      - { name: count, task: t, when: 'steps.splt.status == \"x\" && steps[\"split\"].output.n > 3 \
          && steps.inner.status == \"x\"' }
      - { name: sum, when: steps.sum.status == \"\", cancelWhen: steps.sum.status == \"STUCK\" || \
          steps.suum.status == \"x\" }
      - { name: all, when: 'steps.split.state == \"done\" || steps.split.ouput.n > 3' }
    tasks:
      - { name: t, itemListKey: as, steps: [ { name: inner, cancelWhen: steps.split.state == \
          \"failed\" } ] }
"
    ));
}

#[test]
fn a_when_that_depends_on_timing_is_warned_of() {
    let loaded = load_text(
        "f",
        r#"workflows:
  - name: w
    steps:
      - { name: a }
      - { name: b, depends: [ a ] }
      - { name: c, depends: [ b ], when: 'steps.a.state == "completed" && steps.b.output.n > 1' }
      - { name: d, depends: [ a ], when: steps.b.output.n > 1,
          cancelWhen: steps.c.status == "DONE" }
      - { name: e, when: 'steps[job.which].state == "completed"' }
"#,
    )
    .expect("valid");
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["f:7:48: workflow \"w\", step \"d\": \"when\" looks at the step \"b\", for which this \
          step does not wait: what it sees is a matter of timing; add \"b\" to `depends`"]
    );
}

#[test]
fn the_conditions_of_a_file_are_limited() {
    let file = |condition: &dyn Fn(usize) -> String| {
        let steps: Vec<String> = (0..1_000)
            .map(|at| format!("{{ name: s{at}, when: \"{}\" }}", condition(at)))
            .collect();
        format!("workflows: [ {{ name: w, steps: [ {} ] }} ]", steps.join(", "))
    };
    only(&file(&|at| format!("input.count == {at} && input.kind == 'word'")));
    only(&file(&|_| format!("size('{}') > 3", "x".repeat(900))));
    let errors = refused(&file(&|at| format!("size('{}') > {at}", "x".repeat(900))));
    assert_eq!(errors.0.len(), 1, "{errors}");
    assert_eq!(
        errors.0[0].message,
        "the conditions of the file have more than 128 KiB together up to here; split the file"
    );
    let long = format!(
        "workflows: [ {{ name: w, steps: [ {{ name: s, when: \"size('{}') > 3\" }} ] }} ]",
        "x".repeat(4_096)
    );
    assert!(message(&long).ends_with(": has 4108 bytes, more than the 4096 allowed"));
}

/// Threads of the daemon have 2 MiB of stack, and other frames below.
#[test]
fn the_deepest_condition_needs_less_than_half_a_stack() {
    let conditions = [
        "1 + ".repeat(DEPTH_MAX - 3) + "1 > 0",
        "(".repeat(DEPTH_MAX - 2) + "true" + &")".repeat(DEPTH_MAX - 2),
        "[".repeat(DEPTH_MAX - 2) + "1" + &"]".repeat(DEPTH_MAX - 2) + " == 1",
        "true ? true : ".repeat(DEPTH_MAX - 2) + "true",
        "[1].all(x, ".repeat(15) + "true" + &")".repeat(15),
        "1 in ".repeat(400) + "1",
        "1 < ".repeat(999) + "1",
        "input".to_owned() + &".a".repeat(995),
        "input".to_owned() + &"[0]".repeat(490),
    ];
    let work = move || {
        conditions
            .iter()
            .for_each(|text| drop(Expression::parse(text).map(|condition| drop(condition.clone()))))
    };
    let thread = std::thread::Builder::new().stack_size(1024 * 1024).spawn(work).expect("a thread");
    thread.join().expect("no overflow");
}
