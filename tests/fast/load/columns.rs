//! The label and the columns of a workflow: what reaches the definition, and what is refused.

use super::{message, only};
use workflow_manager::engine::Definition;

/// A file of one workflow with these keys, and the steps `invoice` and `Ship`.
fn file(keys: &str) -> String {
    format!(
        "workflows: [ {{ name: w, {keys}, steps: [ {{ name: invoice }}, {{ name: Ship }} ] }} ]"
    )
}

#[test]
fn a_label_and_columns_reach_the_definition() {
    let definition = only(&file(
        "label: job.title, columns: { order: job.order, select: \"job['from']\", \
         total: steps.invoice.output.cents, \"true\": steps.Ship.state }",
    ));
    let names: Vec<&str> = definition.columns.names().collect();
    assert_eq!(names, ["label", "order", "select", "total", "true"]);
    assert_eq!(definition.columns.list[2].value.text(), "steps.invoice.output.cents");
    let stored = serde_json::to_string(&definition).expect("serialises");
    let parsed: Definition = serde_json::from_str(&stored).expect("parses");
    assert_eq!(parsed, definition);
    let plain = only("workflows: [ { name: w, steps: [ { name: s } ] } ]");
    assert!(plain.columns.is_empty());
    assert!(!serde_json::to_string(&plain).expect("serialises").contains("columns"));
}

#[test]
fn what_cannot_be_a_column_is_refused_with_the_remedy() {
    let seventeen: String = (0..17).map(|n| format!("c{n}: job.x, ")).collect();
    let long = "x".repeat(64);
    for (keys, expected) in [
        ("columns: [ order ]".to_owned(), "such as { order: job.order }, found a list"),
        (format!("columns: {{ {seventeen} }}"), "has 17 columns, more than the 16 allowed"),
        ("columns: { 1st: job.x }".to_owned(), "\"1st\" is not a name: a letter, then"),
        (format!("columns: {{ {long}: job.x }}"), "has 64 characters, more than the 63"),
        ("columns: { State: job.x }".to_owned(), "take a more exact one, such as \"order-State\""),
        ("columns: { slot: job.x }".to_owned(), "the name \"slot\" is taken"),
        ("columns: { schedule: job.x }".to_owned(), "the name \"schedule\" is taken"),
        ("columns: { id: job.x }".to_owned(), "the name \"id\" is taken"),
        ("columns: { label: job.x }".to_owned(), "the name \"label\" is taken"),
        ("columns: { xmin: job.x }".to_owned(), "the name \"xmin\" is taken"),
        ("columns: { a: job.x, A: job.y }".to_owned(), "differs from the column \"a\", at 1:"),
        ("columns: { ship: job.x }".to_owned(), "has the name \"Ship\" too"),
        ("columns: { a: steps.invoise.output.x }".to_owned(), "did you mean \"invoice\"?"),
        ("columns: { a: \"job.\" }".to_owned(), "the expression \"job.\" of \"a\""),
        ("columns: { a: 5 }".to_owned(), "expected a condition"),
        ("columns: { a: \"5\" }".to_owned(), "\"a\" is the same for every job"),
        ("columns: { a: job }".to_owned(), "\"a\" gives an object"),
        ("columns: { a: steps.invoice.body }".to_owned(), "\"a\""),
        ("label: \"[job.x]\"".to_owned(), "\"label\" gives a list"),
        ("label: job.x +".to_owned(), "the expression \"job.x +\" of \"label\": ends too early"),
        ("label: steps.ship.output.x".to_owned(), "did you mean \"Ship\"?"),
        ("lable: job.x".to_owned(), "did you mean \"label\"?"),
        ("column: { a: job.x }".to_owned(), "did you mean \"columns\"?"),
    ] {
        let found = message(&file(&keys));
        assert!(found.contains(expected), "{keys}: {found}");
    }
    let step = "workflows: [ { name: w, label: job.x, steps: [ { name: Label } ] } ]";
    let found = message(step);
    assert!(found.contains("has the name \"Label\" too"), "{found}");
}
