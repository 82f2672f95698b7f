//! The optional keys: what they mean, what is refused, what is warned of.

use super::check::checked;
use super::{lines, message, only, refused};
use insta::assert_snapshot;
use workflow_manager::engine::{Definition, Expression, Millis, OnFailure, Retry, Tolerate};
use workflow_manager::load::{STATUSES_MAX, load_text};

/// A file of one step `s` with these keys.
fn step(keys: &str) -> String {
    format!("workflows: [ {{ name: w, steps: [ {{ name: s, {keys} }} ] }} ]")
}

#[test]
fn every_optional_key_reaches_the_definition() {
    let definition = only(
        "
workflows:
  - name: w
    deadline: 1d12h
    retention: 30d
    steps:
      - name: a
        timeout: 1m30s
        retry: { attempts: 5, backoff: 500ms, factor: 1.5, maxBackoff: 2h }
        onFailure: continue
        statusKey: outcome
        statuses: [ RUNNING, PASSED, 'NO' ]
        skippedStatus: ''
        cancelledStatus: STOPPED
        when: input.n > 3
        cancelWhen: steps.a.status == \"NO\"
      - { name: b, external: true, retry: { attempts: 2 } }
      - { name: c, task: t, timeout: 500ms, external: false, onFailure: fail }
    tasks:
      - { name: t, itemListKey: as, tolerate: 2.5%, steps: [ { name: d } ] }
",
    );
    assert_eq!(
        (definition.deadline, definition.retention),
        (Some(Millis(129_600_000)), Some(Millis(2_592_000_000)))
    );
    let [a, b, c] = definition.graph().steps.as_slice() else { panic!("three steps") };
    assert_eq!(a.timeout, Some(Millis(90_000)));
    assert_eq!(
        a.retry,
        Some(Retry {
            attempts: 5,
            backoff: Millis(500),
            factor_milli: 1_500,
            max_backoff: Millis(7_200_000)
        })
    );
    assert_eq!(
        (a.on_failure, b.on_failure, c.on_failure),
        (OnFailure::Continue, OnFailure::Fail, OnFailure::Fail)
    );
    assert_eq!(a.status.key.as_deref(), Some("outcome"));
    assert_eq!(
        (a.status.running(), a.status.skipped(), a.status.cancelled()),
        ("RUNNING", "", "STOPPED")
    );
    assert!(a.status.allows("NO") && !a.status.allows("YES"));
    assert_eq!(a.when.as_ref().map(Expression::text), Some("input.n > 3"));
    assert_eq!(a.cancel_when.as_ref().map(Expression::text), Some("steps.a.status == \"NO\""));
    assert_eq!((a.external, b.external, c.external), (false, true, false));
    assert_eq!(
        b.retry,
        Some(Retry {
            attempts: 2,
            backoff: Millis(1_000),
            factor_milli: 2_000,
            max_backoff: Millis(300_000)
        })
    );
    assert_eq!(
        definition.graphs[1].fan_out.as_ref().map(|keys| keys.tolerate),
        Some(Tolerate::Share(250))
    );
    let stored = serde_json::to_string(&definition).expect("serialises");
    assert_eq!(serde_json::from_str::<Definition>(&stored).expect("parses"), definition);
}

#[test]
fn a_duration_is_whole_numbers_with_units() {
    for (text, millis) in [
        ("500ms", 500),
        ("3d", 259_200_000),
        ("1h30m", 5_400_000),
        ("'1ms'", 1),
        ("3650d", 315_360_000_000),
    ] {
        assert_eq!(
            only(&step(&format!("timeout: {text}"))).graph().steps[0].timeout,
            Some(Millis(millis)),
            "{text}"
        );
    }
    let takes = "\"timeout\" takes a duration, such as 30s or 1h30m, found";
    let units = "; write whole numbers with the units d, h, m, s or ms, the larger unit first";
    for (text, rest) in [
        ("30", "the number 30; write its unit: 30s, 30m or 30h".to_owned()),
        ("1.5", "the number 1.5".to_owned()),
        ("1.5h", format!("the text \"1.5h\"{units}")),
        ("1 month", format!("the text \"1 month\"{units}")),
        ("30 s", format!("the text \"30 s\"{units}")),
        ("1m1h", format!("the text \"1m1h\"{units}")),
        ("-1s", format!("the text \"-1s\"{units}")),
        ("0s", "the text \"0s\"; it must be more than 0".to_owned()),
        ("3651d", "the text \"3651d\"; the longest is 3650d".to_owned()),
        ("true", "the boolean true".to_owned()),
        ("[ 1s ]", "a list".to_owned()),
        ("~", "nothing".to_owned()),
    ] {
        assert_eq!(message(&step(&format!("timeout: {text}"))), format!("{takes} {rest}"));
    }
    only("workflows: [ { name: w, retention: 0s, steps: [ { name: s } ] } ]");
    assert!(
        message("workflows: [ { name: w, deadline: 0s, steps: [ { name: s } ] } ]")
            .ends_with("it must be more than 0")
    );
}

#[test]
fn how_many_children_may_fail_is_a_number_or_a_share() {
    let file = |tolerate: &str| {
        let task = format!(
            "{{ name: t, itemListKey: as, tolerate: {tolerate}, steps: [ {{ name: d }} ] }}"
        );
        format!(
            "workflows: [ {{ name: w, steps: [ {{ name: s, task: t }} ], tasks: [ {task} ] }} ]"
        )
    };
    for (text, tolerate) in [
        ("0", Tolerate::Count(0)),
        ("5", Tolerate::Count(5)),
        ("10%", Tolerate::Share(1_000)),
        ("'0.05%'", Tolerate::Share(5)),
        ("100%", Tolerate::Share(10_000)),
        ("100.00%", Tolerate::Share(10_000)),
    ] {
        assert_eq!(
            only(&file(text)).graphs[1].fan_out.as_ref().map(|keys| keys.tolerate),
            Some(tolerate),
            "{text}"
        );
    }
    let takes = "\"tolerate\" takes a number of child jobs, such as 5, or a \
                 share of them, such as 10% or 2.5%, at most 100%; found";
    for text in [
        "-1",
        "1.5",
        "'5'",
        "101%",
        "100.01%",
        "1.234%",
        "'%'",
        ".5%",
        "5.%",
        "5 %",
        "true",
        "4294967296",
    ] {
        let message = message(&file(text));
        assert!(message.starts_with(takes), "{message}");
    }
}

#[test]
fn optional_keys_are_checked_all_at_once() {
    assert_snapshot!(refused(
        "\
workflows:
  - name: w
    deadline: 5
    retention: soon
    steps:
      - { name: a, retry: 3, onFailure: contnue, external: yes, statusKey: '', statuses: [] }
      - { name: b, retry: { attempt: 3, backof: 1s }, external: 'true', statuses: [ A, B, A, NO, \
          '' ], skippedStatus: }
      - { name: c, retry: { attempts: 0, backoff: 5, factor: 0.5, maxBackoff: 1w } }
      - { name: d, retry: { attempts: 2, backoff: 10m } }
      - { name: e, retry: { attempts: 1001, backoff: 1s, factor: 1.2345, maxBackoff: 999ms } }
      - { name: f, retry: { attempts: 2, factor: 101 }, onFailure: true, statuses: A, \
          cancelledStatus: 5 }
      - { name: g, retry: {}, external: true, task: t }
    tasks:
      - { name: t, itemListKey: as, tolerate: many, steps: [ { name: h, tolerate: 5, deadline: 5s, \
          backoff: 1s } ] }
"
    ));
}

#[test]
fn statuses_have_limits() {
    let words =
        |count: usize| (0..count).map(|at| format!("w{at}")).collect::<Vec<String>>().join(", ");
    let file = |count: usize| step(&format!("statusKey: k, statuses: [ {} ]", words(count)));
    assert_eq!(only(&file(STATUSES_MAX)).graph().steps[0].status.words.len(), STATUSES_MAX);
    assert_eq!(
        message(&file(STATUSES_MAX + 1)),
        "a step has 1001 statuses, more than the 1000 allowed"
    );
    let long = format!("skippedStatus: {}, when: 'true'", "x".repeat(256));
    assert_eq!(
        message(&step(&long)),
        "expected a status (\"\" for an empty one) of at most 255 bytes, found 256"
    );
    assert!(
        refused(&step("statuses: [ \"a\\nb\" ]"))
            .to_string()
            .ends_with("with a line break or another control character in it")
    );
}

#[test]
fn keys_without_effect_are_warned_of() {
    let loaded = load_text(
        "f",
        "\
workflows:
  - name: w
    steps:
      - { name: a, external: true, queue: q, priority: 5 }
      - { name: b, statuses: [ A, B ], skippedStatus: NONE }
      - { name: c, statusKey: k, statuses: [ A, B ], cancelledStatus: NONE, timeout: 1s }
",
    )
    .expect("valid");
    assert_snapshot!(lines(loaded.warnings.iter().chain(&loaded.advice)));
    assert_eq!(
        loaded.definitions[0].queues().iter().map(|queue| &**queue).collect::<Vec<&str>>(),
        ["b", "c"]
    );
}

#[test]
fn a_timeout_that_the_deadline_forestalls_is_warned_of() {
    let text = "workflows: [ { name: w, deadline: 1m, steps: [ { name: a, timeout: 59s }, \
                { name: b, timeout: 1m }, { name: c, external: true, timeout: 2h }, \
                { name: f, task: t, timeout: 61s } ], \
                tasks: [ { name: t, itemListKey: as, steps: [ { name: d, timeout: 3d } ] } ] } ]";
    let loaded = load_text("f", text).expect("valid");
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let of = |place: &str, timeout: &str| {
        format!(
            "{place}: \"timeout\" is {timeout} and has no effect: by then the \"deadline\" of the \
             workflow, 1m, has failed the job"
        )
    };
    assert_eq!(
        warnings,
        [
            of("f:1:95: workflow \"w\", step \"b\"", "1m"),
            of("f:1:137: workflow \"w\", step \"c\"", "2h"),
            of("f:1:172: workflow \"w\", step \"f\"", "1m1s"),
            of("f:1:247: workflow \"w\", task \"t\", step \"d\"", "3d"),
        ]
    );
    let none = load_text("f", &text.replace("deadline: 1m, ", "")).expect("valid");
    assert!(none.warnings.is_empty(), "{:?}", none.warnings);
}

#[test]
fn missing_timeouts_are_advised_once_for_each_graph() {
    let steps = (0..12).map(|at| format!("{{ name: s{at} }}")).collect::<Vec<String>>().join(", ");
    let task = "{ name: t, itemListKey: as, steps: [ { name: d, timeout: 5s } ] }";
    let text = format!(
        "workflows: [ {{ name: w, steps: [ {steps}, \
         {{ name: e, external: true }}, {{ name: f, task: t }} ], \
         tasks: [ {task} ] }} ]"
    );
    let loaded = load_text("f", &text).expect("valid");
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let advice: Vec<&str> = loaded.advice.iter().map(|advice| advice.message.as_str()).collect();
    assert_eq!(
        advice,
        [concat!(
            r#"the steps "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9" and "#,
            r#"2 more have no "timeout": nothing else notices a worker that acknowledges "#,
            "a message and dies before it replies",
        )]
    );
    let (valid, shown) = checked(&text, false);
    assert!(
        valid
            && shown.contains("and 2 more have no \"timeout\"")
            && shown.ends_with("valid: 1 workflow, 1 warning\n"),
        "{shown}"
    );
}

#[test]
fn check_shows_the_optional_keys() {
    let text = "\
workflows:
  - name: w
    deadline: 90m
    retention: 30d
    steps:
      - { name: a, timeout: 90s, retry: { attempts: 5, factor: 1.5 }, onFailure: continue, \
          priority: 3 }
      - { name: b, external: true, timeout: 3d, statusKey: outcome, statuses: [ OPEN, DONE ], \
          depends: [ a ] }
      - name: c
        task: t
        depends: [ a, b ]
        when: |
          steps.b.status == \"DONE\" &&
            input.n > 3
        cancelWhen: job.stop
        skippedStatus: ''
    tasks:
      - { name: t, itemListKey: lines, tolerate: 2.50%, maxConcurrency: 7, steps: [ { name: d, \
          timeout: 1s, retry: { attempts: 1 } } ] }
";
    let (valid, shown) = checked(text, false);
    assert!(valid, "{shown}");
    assert_snapshot!(shown);

    let (_, shown) = checked(text, true);
    let view: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let workflow = &view["workflows"][0];
    assert_eq!((&workflow["deadline"], &workflow["retention"]), (&"1h30m".into(), &"30d".into()));
    assert_eq!(
        workflow["steps"],
        serde_json::json!([
            { "name": "a", "depends": [], "queue": "a", "priority": 3,
              "timeout": "1m30s", "onFailure": "continue",
              "retry": { "attempts": 5, "backoff": "1s", "factor": 1.5, "maxBackoff": "5m" } },
            { "name": "b", "depends": ["a"], "external": true, "timeout": "3d",
              "statusKey": "outcome", "statuses": ["OPEN", "DONE"] },
            { "name": "c", "depends": ["a", "b"], "task": "t",
              "when": "steps.b.status == \"DONE\" &&\n  input.n > 3\n",
              "cancelWhen": "job.stop", "skippedStatus": "" },
        ])
    );
    assert_eq!(workflow["tasks"][0]["tolerate"], "2.5%");
}

#[test]
fn workflows_that_call_each_other_in_a_circle_get_a_warning() {
    let text = "\
workflows:
  - name: own
    steps: [ { name: again, queue: workflow.own } ]
  - name: a
    tasks: [ { name: t, itemListKey: xs, steps: [ { name: to-b, queue: workflow.b } ] } ]
    steps: [ { name: each, task: t } ]
  - name: b
    steps: [ { name: x }, { name: to-a, queue: workflow.a } ]
  - name: ends
    steps: [ { name: again, queue: workflow.ends, when: job.n > 0 }, \
        { name: out, queue: workflow.own }, \
        { name: by-hand, external: true, queue: workflow.ends } ]
";
    let loaded = load_text("f", text).expect("valid");
    let told = loaded.warnings.iter().map(ToString::to_string);
    assert_snapshot!(lines(told.filter(|warning| warning.contains("for ever"))));
}

#[test]
fn users_whose_replies_count_reach_the_definition_where_they_can_be_told() {
    let definition = only(&step("replyUsers: [ pricing, 'second one' ]"));
    let users = &definition.graph().steps[0].reply_users;
    assert_eq!(users.iter().map(|user| &**user).collect::<Vec<_>>(), ["pricing", "second one"]);
    for (keys, why) in [
        ("replyUsers: []", "the list \"replyUsers\" is empty; it names the users"),
        ("replyUsers: [ a, a ]", "the user \"a\" is listed twice; the first is at 1:"),
        ("replyUsers: [ a ], external: true", "nothing to look at: an external step sends no"),
        ("replyUsers: [ a ], queue: workflow.other", "the queue is a workflow's"),
        ("replyUsers: [ a ], bus: kafka, timeout: 1h", "cannot be kept over Kafka"),
    ] {
        let told = message(&step(keys));
        assert!(told.contains(why), "{keys}: {told}");
    }
}

#[test]
fn start_within_stands_where_a_message_waits_for_a_worker() {
    let definition = only(&step("startWithin: 90s, timeout: 5m"));
    assert_eq!(definition.graph().steps[0].start_within, Some(Millis(90_000)));
    #[track_caller]
    fn assert_told(text: &str, words: &[&str]) {
        let told = message(text);
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
    }
    assert_told(
        &step("external: true, startWithin: 5m"),
        &[
            "\"startWithin\" bounds how long a message waits for its worker",
            "an external step sends no message",
            "take it away",
        ],
    );
    assert_told(&step("startWithin: 0s"), &["\"startWithin\"", "0s"]);
    assert_told(&step("startWithin: 30"), &["\"startWithin\" takes a duration", "write its unit"]);
    let task = "
workflows:
  - name: w
    steps: [ { name: s, task: t, startWithin: 5m } ]
    tasks: [ { name: t, itemListKey: xs, steps: [ { name: a } ] } ]";
    assert_told(task, &["a step with a task sends no message of its own"]);
    let warned = |span: &str| {
        let text = format!(
            "workflows: [ {{ name: w, deadline: 1h, \
             steps: [ {{ name: s, startWithin: {span} }} ] }} ]"
        );
        let loaded = load_text("f", &text).expect("valid");
        let told =
            "has no effect: by then the \"deadline\" of the workflow, 1h, has failed the job";
        let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert!(
            warnings.iter().all(|warning| !warning.contains("deadline") || warning.contains(told))
        );
        warnings.iter().filter(|warning| warning.contains("startWithin")).count()
    };
    assert_eq!(["59m", "1h", "2h"].map(warned), [0, 1, 1]);
}
