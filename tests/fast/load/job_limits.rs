//! The limit of the jobs of a workflow: what it means, what is refused, what is warned of.

use super::{message, only};
use workflow_manager::engine::{Definition, JobLimit, Message, Millis, Then};
use workflow_manager::load::load_text;

/// A file with two limits, and a workflow with these keys.
fn file(keys: &str) -> String {
    format!(
        "limits: [ {{ name: customer, concurrency: 1, key: job.customer }}, \
         {{ name: bank, rate: 1/s }} ]\n\
         workflows: [ {{ name: w, {keys}, steps: [ {{ name: s, limit: bank }} ] }} ]"
    )
}

#[test]
fn the_limit_of_a_workflow_reaches_its_definition() {
    let limit = |then, delay, wait_at_most| {
        Some(JobLimit { name: "customer".into(), then, delay, wait_at_most })
    };
    for (text, expected) in [
        ("limit: { use: customer }", limit(Then::Wait, None, None)),
        (
            "limit: { use: customer, then: wait, waitAtMost: 1h }",
            limit(Then::Wait, None, Some(Millis(3_600_000))),
        ),
        ("limit: { use: customer, then: refuse }", limit(Then::Refuse, None, None)),
        ("limit: { use: customer, then: replace }", limit(Then::Replace, None, None)),
        (
            "limit: { use: customer, then: latest, delay: 5s }",
            limit(Then::Latest, Some(Millis(5_000)), None),
        ),
    ] {
        let definition = only(&file(text));
        assert_eq!(definition.limit, expected, "{text}");
        assert_eq!(definition.limits.len(), 2, "of the workflow and of its step");
        let stored = serde_json::to_string(&definition).expect("serialises");
        let parsed: Definition = serde_json::from_str(&stored).expect("parses");
        assert_eq!(parsed, definition);
    }
}

#[test]
fn a_place_follows_from_the_message_of_a_job() {
    let definition = only(&file("limit: { use: customer }"));
    let claim = |text: &str| {
        definition.claim_job_place(&Message::parse(text.as_bytes()).expect("a message"))
    };
    let place = claim(r#"{"customer":7}"#).expect("a key").expect("a place");
    assert_eq!((&*place.limit, place.key.as_deref()), ("customer", Some("7")));
    for (text, found) in [
        ("{}", "`key: job.customer` of the limit \"customer\" of workflow \"w\""),
        (r#"{"customer":[1]}"#, "expected a text, a number, or true or false"),
    ] {
        let reason = claim(text).expect_err(text);
        assert!(reason.contains(found), "{reason}");
    }
    let unlimited = only("workflows: [ { name: w, steps: [ { name: s } ] } ]");
    assert_eq!(unlimited.claim_job_place(&Message::default()), Ok(None));
}

#[test]
fn a_limit_of_jobs_that_makes_no_sense_is_refused_with_the_remedy() {
    for (text, expected) in [
        ("limit: { use: custmer }", "did you mean \"customer\"?"),
        ("limit: customer", "such as `{ use: .., then: wait }`, found"),
        ("limit: { then: wait }", "the key \"use\" is missing"),
        ("limit: { use: customer, then: latset }", "did you mean \"latest\"?"),
        ("limit: { use: customer, delay: 5s }", "only the newest stays with `then: latest`"),
        ("limit: { use: customer, then: wait, delay: 5s }", "write that, or take \"delay\" away"),
        ("limit: { use: customer, then: latest, delay: 0s }", "it must be more than 0"),
        ("limit: { use: bank, then: refuse }", "the limit \"bank\" has no \"concurrency\""),
        ("limit: { use: bank, then: replace }", "give it one, such as 1"),
        (
            "limit: { use: customer, then: refuse, waitAtMost: 1h }",
            "with `then: refuse` it waits for none",
        ),
        ("limit: { use: customer, than: wait }", "did you mean \"then\"?"),
    ] {
        let told = message(&file(text));
        assert!(told.contains(expected), "{text}\n{told}");
    }
    let scheduled = "limits: [ { name: customer, concurrency: 1, key: job.customer } ]
workflows: [ { name: w, limit: { use: customer }, steps: [ { name: s } ] } ]
schedules: [ { name: often, workflow: w, every: 1h } ]";
    let told = message(scheduled);
    assert!(told.contains("schedule \"often\": `key: job.customer`"), "{told}");
    only(&scheduled.replace("every: 1h", "every: 1h, message: { customer: c1 }"));
}

#[test]
fn a_bound_that_the_deadline_overtakes_is_warned_of() {
    let text = file("deadline: 1h, limit: { use: customer, waitAtMost: 1h }");
    let warnings = load_text("w.yaml", &text).expect("it loads").warnings;
    let [warning] = warnings.as_slice() else { panic!("one warning: {warnings:?}") };
    assert!(warning.to_string().contains("\"waitAtMost\" is 1h and has no effect"), "{warning}");
}
