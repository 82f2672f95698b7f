//! Workflow files, seen from outside: what loads, what is refused, and in which words.

mod check;
mod columns;
mod conditions;
mod hostile;
mod job_limits;
mod json_schema;
mod limits;
mod mistakes;
mod options;
mod queues;
mod random;

use insta::assert_snapshot;
use std::path::Path;
use workflow_manager::engine::{Definition, Dependency, StepIndex};
use workflow_manager::load::{LoadErrors, STEPS_MAX, load_text};

#[test]
fn the_specification_s_example_loads() {
    let definition = only(
        "
workflows:
  - name: book-word-counts
    steps:
      - name: book-split
      - name: section-counts
        task: word-counts
        depends: [ book-split ]
      - name: sum-splits
        depends: [ section-counts ]
      - name: store-title
    tasks:
      - name: word-counts
        itemListKey: sections
        steps:
          - name: segment-word-counts
",
    );
    let expected = serde_json::json!({
        "name": "book-word-counts",
        "graphs": [
            { "name": "book-word-counts", "steps": [
                { "name": "book-split", "queue": "book-split" },
                { "name": "section-counts", "queue": "section-counts",
                  "depends": [{ "step": 0 }], "task": 1 },
                { "name": "sum-splits", "queue": "sum-splits", "depends": [{ "step": 1 }] },
                { "name": "store-title", "queue": "store-title" },
            ] },
            { "name": "word-counts", "fan_out": { "list_key": "sections", "item_key": "section" },
              "steps": [
                { "name": "segment-word-counts", "queue": "segment-word-counts" },
            ] },
        ],
    });
    assert_eq!(serde_json::to_value(&definition).expect("serialises"), expected);
}

#[test]
fn every_supported_key_reaches_the_definition() {
    let definition = only(
        "
workflows:
  - name: w
    vhosts: [ prod ]
    steps:
      - { name: last, depends: [ __start__, first, fan ], queue: some.queue, priority: 9 }
      - { name: fan, task: t, depends: [ __start__ ] }
      - { name: first, depends: [] }
    tasks:
      - { name: t, itemListKey: entries, itemKey: line, maxConcurrency: 7, steps: [ { name: again, \
          task: t } ] }
",
    );
    assert_eq!(definition.full_name(), "prod/w");
    let [last, fan, first] = definition.graph().steps.as_slice() else { panic!("three steps") };
    assert_eq!(
        last.depends,
        [Dependency::Start, Dependency::Step(StepIndex(2)), Dependency::Step(StepIndex(1))],
        "the order is kept"
    );
    assert_eq!((&*last.queue, last.priority), ("some.queue", Some(9)));
    assert_eq!(
        (fan.depends.len(), first.depends.len()),
        (0, 0),
        "`__start__` alone is the same as none"
    );
    let keys = definition.graphs[1].fan_out.as_ref().expect("a task");
    assert_eq!(
        (&*keys.list_key, &*keys.item_key, keys.max_concurrency),
        ("entries", "line", Some(7))
    );
    assert_eq!(definition.graphs[1].steps[0].task, Some(1), "a task may start itself");
}

#[test]
fn a_workflow_runs_in_each_of_its_virtual_hosts() {
    let loaded = load_text(
        "f",
        "workflows: [ { name: w, vhosts: [ a, / ], steps: [ { name: s } ] }, \
         { name: w, steps: [ { name: s } ] } ]",
    )
    .expect("valid");
    let names: Vec<String> =
        loaded.definitions.iter().map(|definition| definition.full_name()).collect();
    assert_eq!(names, ["a/w", "//w", "w"]);
}

#[test]
fn anchors_merges_and_json_are_read() {
    let definition = only(
        "x-s: &s { queue: q }\nworkflows: [ { name: w, steps: [ &a { <<: *s, name: a }, \
         { <<: *a, name: b, depends: [ a ] } ] } ]",
    );
    assert_eq!(definition.queues().iter().map(|queue| &**queue).collect::<Vec<&str>>(), ["q"]);
    let definition = only(
        "{\n\t\"workflows\": [\n\t\t{\"name\": \"w\", \
         \"steps\": [{\"name\": \"\\u0061b\"}]}\n\t]\n}",
    );
    assert_eq!(&*definition.graph().steps[0].name, "ab");
}

#[test]
fn what_is_allowed_but_hardly_meant_is_warned_of() {
    let loaded = load_text(
        "f",
        "\
workflows:
  - name: w
    vhosts: []
    steps:
      - { name: a, priority: 5 }
      - { name: b, task: t, queue: q, depends: [ a, a ] }
    tasks:
      - { name: t, itemListKey: as, steps: [ { name: c } ] }
      - { name: u, itemListKey: as, steps: [ { name: c, task: u } ] }
",
    )
    .expect("valid");
    assert_snapshot!(lines(&loaded.warnings));
    assert_eq!(loaded.definitions[0].graph().steps[1].depends, [Dependency::Step(StepIndex(0))]);
}

#[test]
fn limits_have_names_and_numbers() {
    let steps = |count: usize| {
        (0..count).map(|at| format!("{{ name: s{at} }}")).collect::<Vec<String>>().join(", ")
    };
    let file =
        |name: &str, steps: &str| format!("workflows: [ {{ name: {name}, steps: [ {steps} ] }} ]");
    assert_eq!(only(&file("w", &steps(STEPS_MAX))).graph().steps.len(), STEPS_MAX);
    assert_eq!(
        message(&file("w", &steps(STEPS_MAX + 1))),
        "a workflow has 1001 steps, more than the 1000 allowed"
    );
    only(&file(&"n".repeat(200), "{ name: s }"));
    assert_eq!(
        message(&file(&"n".repeat(201), "{ name: s }")),
        "the name has 201 characters, more than the 200 that fit into a message's properties"
    );
    let queue = format!("{{ name: s, queue: {} }}", "q".repeat(256));
    assert_eq!(
        message(&file("w", &queue)),
        "expected the name of a queue of at most 255 bytes, found 256"
    );
    let vhosts: Vec<String> = (0..101).map(|at| format!("v{at}")).collect();
    let text = format!(
        "workflows: [ {{ name: w, vhosts: [ {} ], steps: [ {{ name: s }} ] }} ]",
        vhosts.join(", ")
    );
    assert_eq!(message(&text), "a workflow has 101 vhosts, more than the 100 allowed");
    let text = format!("x: &s [ {} ]\nworkflows:\n", steps(1000)).replace("x:", "x-s:")
        + &(0..2)
            .map(|at| {
                format!("- {{ name: w{at}, vhosts: [ {} ], steps: *s }}\n", vhosts[..60].join(", "))
            })
            .collect::<String>();
    assert_eq!(
        message(&text),
        "all workflows together have more than 100000 steps up to here, each counted once for \
         each virtual host"
    );
}

#[test]
fn the_conformance_definitions_load_or_are_refused_for_their_unsupported_keys_alone() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let mut loaded = 0;
    for entry in std::fs::read_dir(&directory).expect("the vectors") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("reads");
        let vectors: Vec<serde_json::Value> =
            serde_json::from_str(&text).expect("a list of vectors");
        // Vectors of schedules have no definition: the engine's own tests read them.
        for vector in vectors.iter().filter(|vector| vector.get("definition").is_some()) {
            let name = format!("{}: {}", path.display(), vector["name"]);
            for definition in [
                vector["definition"].to_string(),
                serde_json::to_string_pretty(&vector["definition"]).expect("JSON"),
            ] {
                match load_text("definition", &definition) {
                    Ok(found) => {
                        let named = found
                            .definitions
                            .iter()
                            .any(|definition| definition.name == vector["workflow"]);
                        assert!(named, "{name}: the workflow is not there");
                        loaded += 1;
                    }
                    Err(errors) => {
                        let unexpected = errors.0.iter().find(|problem| {
                            !problem
                                .message
                                .ends_with("is not supported by this version yet; remove it")
                        });
                        assert_eq!(unexpected, None, "{name}");
                    }
                }
            }
        }
    }
    assert!(loaded >= 40, "only {loaded} definitions loaded");
}

/// Each on a line of its own.
fn lines<T: ToString>(texts: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = texts.into_iter().map(|text| text.to_string()).collect();
    texts.join("\n")
}

fn refused(text: &str) -> LoadErrors {
    match load_text("f", text) {
        Ok(loaded) => panic!("{text:?} was taken: {:?}", loaded.definitions),
        Err(errors) => errors,
    }
}

/// The message of the only problem of a file.
fn message(text: &str) -> String {
    let LoadErrors(problems) = refused(text);
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].message.clone()
}

/// The only definition of a file.
fn only(text: &str) -> Definition {
    let loaded = load_text("f", text).unwrap_or_else(|errors| panic!("{text:.200}\n{errors}"));
    assert_eq!(loaded.definitions.len(), 1);
    loaded.definitions[0].as_ref().clone()
}
