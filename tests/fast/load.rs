//! Workflow files, seen from outside: what loads, what is refused, and in which words.

mod conditions;
mod hostile;
mod json_schema;
mod options;

use proptest::prelude::*;
use std::path::Path;
use workflow_manager::cli::check::check;
use workflow_manager::engine::{Definition, Dependency, StepIndex};
use workflow_manager::load::{LoadErrors, STEPS_MAX, load_files, load_text};

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
                { "name": "section-counts", "queue": "section-counts", "depends": [{ "step": 0 }], "task": 1 },
                { "name": "sum-splits", "queue": "sum-splits", "depends": [{ "step": 1 }] },
                { "name": "store-title", "queue": "store-title" },
            ] },
            { "name": "word-counts", "fan_out": { "list_key": "sections", "item_key": "section" }, "steps": [
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
      - { name: t, itemListKey: entries, itemKey: line, maxConcurrency: 7, steps: [ { name: again, task: t } ] }
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
    let loaded =
        load_text("f", "workflows: [ { name: w, vhosts: [ a, / ], steps: [ { name: s } ] }, { name: w, steps: [ { name: s } ] } ]").expect("valid");
    let names: Vec<String> =
        loaded.definitions.iter().map(|definition| definition.full_name()).collect();
    assert_eq!(names, ["a/w", "//w", "w"]);
}

#[test]
fn anchors_merges_and_json_are_read() {
    let definition = only(
        "x-s: &s { queue: q }\nworkflows: [ { name: w, steps: [ &a { <<: *s, name: a }, { <<: *a, name: b, depends: [ a ] } ] } ]",
    );
    assert_eq!(definition.queues().iter().map(|queue| &**queue).collect::<Vec<&str>>(), ["q"]);
    let definition = only(
        "{\n\t\"workflows\": [\n\t\t{\"name\": \"w\", \"steps\": [{\"name\": \"\\u0061b\"}]}\n\t]\n}",
    );
    assert_eq!(&*definition.graph().steps[0].name, "ab");
}

#[test]
fn five_different_mistakes_are_reported_with_line_and_column() {
    let text = "\
workflows:
  - name: five mistakes
    steps:
      - name: split
        depend: [ a ]
      - name: count
        task: counts
      - name: sum
        depends: [ splt ]
        priority: 10
";
    assert_refused(
        text,
        r#"
f:2:11: workflow "five mistakes": "five mistakes" is not a name: a letter, then letters, digits, `_` or `-`
f:5:9: workflow "five mistakes", step "split": unknown key "depend" in a step; did you mean "depends"?
f:7:15: workflow "five mistakes", step "count": names the task "counts", which this workflow does not have; it has no `tasks`
f:9:20: workflow "five mistakes", step "sum": depends on "splt", which is not a step here; did you mean "split"?
f:10:19: workflow "five mistakes", step "sum": "priority" takes a whole number from 0 to 9, found the number 10
"#,
    );
}

#[test]
fn names_are_names() {
    assert_refused(
        "\
workflows:
  - name: 1
    steps:
      - name: yes
      - name: __start__
      - name:
      - name: [ a ]
      - queue: q
      - name: a
        name: b
      - name: a
      - name: A
      - name: Job
      - just
  - name: w
    steps: [ { name: a } ]
  - name: w
    steps: [ { name: a } ]
  - name: W
    vhosts: [ a, a, '', 5 ]
    steps: [ { name: a } ]
",
        r#"
f:2:11: workflow "1": expected a name, found the number 1; a name starts with a letter
f:4:15: workflow "1", step "yes": expected a name, found yes, which YAML may take for a boolean; put it into quotes: "yes"
f:5:15: workflow "1", step "__start__": "__start__" is reserved: every workflow has it already
f:6:9: workflow "1": expected a name, found nothing
f:7:15: workflow "1": expected a name, found a list
f:8:9: workflow "1": the key "name" is missing; a step has a name
f:10:9: workflow "1", step "a": the key "name" is given twice in this mapping; the first is at 9:9
f:11:15: workflow "1", step "a": a step "a" is declared already, at 9:15; the steps of one graph differ in their names
f:12:15: workflow "1", step "A": differs from "a", at 9:15, in upper and lower case alone; the table of statuses cannot tell them apart
f:13:15: workflow "1", step "Job": the name "Job" is taken: the table of statuses has a column of its own of that name
f:14:9: workflow "1": expected a step, such as `{ name: .. }`, found the text "just"
f:17:11: workflow "w": a workflow "w" is declared already, at f:15:11
f:19:11: workflow "W": differs from the workflow "w" in upper and lower case alone; their tables of statuses could not be told apart
f:20:18: workflow "W": the virtual host "a" is listed twice; the first is at 20:15
f:20:21: workflow "W": expected a virtual host, found an empty text
f:20:25: workflow "W": expected a virtual host, found 5, which YAML may take for a number; put it into quotes: "5"
"#,
    );
}

#[test]
fn dependencies_tasks_and_values_are_checked() {
    assert_refused(
        "\
workflows:
  - name: w
    bus: amqp
    steps:
      - { name: a, depends: a, bus: amqp, queue: amq.x }
      - { name: b, depends: [ b, __end__, 1, yes, ~ ], itemListKey: x }
      - { name: c, task: elsewhere, queue: \"a\\nb\", priority: '3' }
    tasks:
      - { name: t, itemListKey: 5, maxConcurrency: 0, steps: [] }
      - { name: t, itemlistkey: as, steps: }
      - { name: u, steps: { name: x } }
  - name: v
    steps: [ { name: s, task: elsewhere } ]
    tasks: [ { name: elsewhere, itemListKey: as, steps: [ { name: d, depends: [ s ] } ] } ]
    colour: red
colours: []
",
        r#"
f:3:5: workflow "w": "bus" is not supported by this version yet; remove it
f:5:29: workflow "w", step "a": "depends" takes a list, found the text "a"; write [ a ]
f:5:32: workflow "w", step "a": "bus" is not supported by this version yet; remove it
f:5:50: workflow "w", step "a": queue names that start with "amq." belong to the broker, found "amq.x"
f:6:31: workflow "w", step "b": depends on itself, the shortest cycle; remove it from its `depends`
f:6:34: workflow "w", step "b": depends on "__end__", but the end comes after every step
f:6:43: workflow "w", step "b": expected the name of a step, found the number 1; a name starts with a letter
f:6:46: workflow "w", step "b": expected the name of a step, found yes, which YAML may take for a boolean; put it into quotes: "yes"
f:6:51: workflow "w", step "b": expected the name of a step, found nothing
f:6:56: workflow "w", step "b": "itemListKey" is a key of a task, not of a step
f:7:26: workflow "w", step "c": names the task "elsewhere", which this workflow does not have; the workflow "v" has one, but a task belongs to its workflow: declare it here too
f:7:44: workflow "w", step "c": expected the name of a queue, found "a\nb", with a line break or another control character in it
f:7:62: workflow "w", step "c": "priority" takes a whole number from 0 to 9, found the text "3"; remove the quotes
f:9:33: workflow "w", task "t": expected the key of a list, found 5, which YAML may take for a number; put it into quotes: "5"
f:9:52: workflow "w", task "t": "maxConcurrency" takes a whole number of at least 1, found the number 0
f:9:62: workflow "w", task "t": the list "steps" is empty; a task has at least one step
f:10:17: workflow "w": a task "t" is declared already, at 9:17; the tasks of one workflow differ in their names
f:10:20: workflow "w", task "t": unknown key "itemlistkey" in a task; did you mean "itemListKey"?
f:10:37: workflow "w", task "t": the list "steps" is empty; a task has at least one step
f:11:9: workflow "w", task "u": the key "itemListKey" is missing; a task runs once for each item of the list under this key
f:11:27: workflow "w", task "u": "steps" takes a list, found a mapping; is a `-` missing before "name"?
f:14:81: workflow "v", task "elsewhere", step "d": depends on "s", which is not a step here
f:15:5: workflow "v": unknown key "colour" in a workflow; known are "name", "vhosts", "steps", "tasks", "deadline" and "retention"
f:16:1: unknown key "colours" in a workflow file; known are "workflows"
"#,
    );
}

#[test]
fn a_cycle_is_named_whole_and_once() {
    assert_refused(
        "\
workflows:
  - name: w
    steps:
      - { name: a, depends: [ c ] }
      - { name: b, depends: [ a ] }
      - { name: c, depends: [ free, b ] }
      - { name: free }
      - { name: behind, depends: [ c ] }
      - { name: x, depends: [ y ] }
      - { name: y, depends: [ x ] }
",
        r#"
f:4:31: workflow "w", step "a": depends on itself by a cycle: a → c → b → a (each depends on the next); remove one of these dependencies
f:9:31: workflow "w", step "x": depends on itself by a cycle: x → y → x (each depends on the next); remove one of these dependencies
"#,
    );
}

#[test]
fn mistakes_in_the_yaml_say_what_to_do() {
    let cases = [
        ("", "f:1:1: the file is empty; expected a list of workflows: `workflows: [ .. ]`"),
        (
            "# nothing\n",
            "f:1:1: the file is empty; expected a list of workflows: `workflows: [ .. ]`",
        ),
        (
            "hello\n",
            r#"f:1:1: expected a workflow file, such as `workflows: [ .. ]`, found the text "hello""#,
        ),
        (
            "workflows:\n",
            r#"f:1:1: the list "workflows" is empty; a workflow file has at least one workflow"#,
        ),
        (
            "workflow: []\n",
            r#"f:1:1: unknown key "workflow" in a workflow file; did you mean "workflows"?"#,
        ),
        (
            "a: [ b\n",
            "f:1:4: this is not valid YAML: unclosed bracket '['; close it with `]` or `}`",
        ),
        (
            "a: b\n\tc: d\n",
            "f:2:1: this is not valid YAML: while scanning a plain scalar, found a tab; indent with spaces",
        ),
        (
            "a:\n  - @b\n",
            "f:2:5: this is not valid YAML: unexpected character: `@'; put a text with special characters into quotes",
        ),
        (
            "workflows: []\n---\nworkflows: []\n",
            "f:2:1: a second document (`---`) starts here; a file holds one: put all workflows into one list",
        ),
    ];
    for (text, expected) in cases {
        let errors = refused(text);
        assert_eq!(errors.to_string(), expected, "of {text:?}");
    }
}

#[test]
fn problems_of_several_files_come_together() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).expect("writes");
        path
    };
    let files = [
        write("a.yaml", b"workflows: [ { name: w, vhosts: [ v, u ], steps: [ { name: s } ] } ]"),
        write(
            "b.yaml",
            b"workflows: [ { name: w, vhosts: [ v ], steps: [ { name: s, queu: q } ] } ]",
        ),
        write("c.yaml", b"workflows:\n  - name: \xc3\xa4\xff\n"),
        directory.path().join("missing.yaml"),
        directory.path().to_owned(),
    ];
    let errors = load_files(&files).expect_err("four of five are bad");
    let prefix = format!("{}/", directory.path().display());
    let shown: Vec<String> = errors
        .to_string()
        .lines()
        .map(|line| line.replace(&prefix, "").replace(&prefix[..prefix.len() - 1], "DIR"))
        .collect();
    assert_eq!(
        shown,
        [
            r#"b.yaml:1:22: workflow "w": a workflow "v/w" is declared already, at a.yaml:1:22"#,
            r#"b.yaml:1:60: workflow "w", step "s": unknown key "queu" in a step; did you mean "queue"?"#,
            "c.yaml:2:12: this byte is not UTF-8; save the file as UTF-8 text",
            "missing.yaml: cannot read the file: No such file or directory (os error 2)",
            "DIR: this is a directory; name the workflow files in it",
        ]
    );
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
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            r#"f:3:13: workflow "w": no virtual host is listed: the workflow runs in the one of the connection's address; remove `vhosts` to say so"#,
            r#"f:5:30: workflow "w", step "a": "priority" works only on a queue that honours it: declare "a" as a quorum queue, or with `x-max-priority`, before the workflow starts"#,
            r#"f:6:36: workflow "w", step "b": "queue" has no effect: a step with a task sends no message of its own"#,
            r#"f:6:53: workflow "w", step "b": "a" is listed twice, the first time at 6:50; the first one counts"#,
            r#"f:9:17: workflow "w", task "u": no step of the workflow leads to this task; it never runs"#,
        ]
    );
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
        "all workflows together have more than 100000 steps up to here, each counted once for each virtual host"
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
        for vector in &vectors {
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

#[test]
fn check_prints_what_the_files_say() {
    let text = "\
workflows:
  - name: book-word-counts
    vhosts: [ prod, test ]
    steps:
      - { name: sum-splits, depends: [ section-counts ] }
      - { name: book-split }
      - { name: section-counts, task: word-counts, depends: [ book-split ] }
      - { name: store-title, depends: [ __start__, book-split ], queue: titles, priority: 3 }
    tasks:
      - name: word-counts
        itemListKey: bookSections
        maxConcurrency: 50
        steps:
          - { name: segment-word-counts }
          - { name: parts, task: word-counts, depends: [ segment-word-counts ] }
          - { name: lines, task: line-counts }
      - { name: line-counts, itemListKey: data, steps: [ { name: count-line } ] }
";
    let (valid, shown) = checked(text, false);
    assert!(valid);
    assert_eq!(
        shown,
        "\
workflow book-word-counts in the virtual hosts prod, test

  step                   waits for              goes to
  book-split             -                      queue book-split
  section-counts         book-split             task word-counts for each of bookSections → bookSection, at most 50 at once
    segment-word-counts  -                      queue segment-word-counts
    parts                segment-word-counts    task word-counts for each of bookSections → bookSection, at most 50 at once (recursion: see above)
    lines                -                      task line-counts for each of data → data
      count-line         -                      queue count-line
  sum-splits             section-counts         queue sum-splits
  store-title            __start__, book-split  queue titles, priority 3

  queues  sum-splits, book-split, titles, segment-word-counts, count-line
  result  of sum-splits, store-title

warning: f.yaml:2:11: workflow \"book-word-counts\": the steps \"sum-splits\", \"book-split\" and \"store-title\" have no \"timeout\": a worker that acknowledges a message and dies before it replies is noticed by nothing else
warning: f.yaml:8:91: workflow \"book-word-counts\", step \"store-title\": \"priority\" works only on a queue that honours it: declare \"titles\" as a quorum queue, or with `x-max-priority`, before the workflow starts
warning: f.yaml:10:15: workflow \"book-word-counts\", task \"word-counts\": the step \"segment-word-counts\" has no \"timeout\": a worker that acknowledges a message and dies before it replies is noticed by nothing else
warning: f.yaml:17:17: workflow \"book-word-counts\", task \"line-counts\": the step \"count-line\" has no \"timeout\": a worker that acknowledges a message and dies before it replies is noticed by nothing else

valid: 1 workflow, 4 warnings
"
    );

    let (valid, shown) = checked(text, true);
    assert!(valid);
    let view: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(view["workflows"][1]["vhost"], "test");
    assert_eq!(
        view["workflows"][0]["queues"],
        serde_json::json!([
            "sum-splits",
            "book-split",
            "titles",
            "segment-word-counts",
            "count-line"
        ])
    );
    assert_eq!(
        view["workflows"][0]["tasks"][1],
        serde_json::json!({ "name": "line-counts", "itemListKey": "data", "itemKey": "data", "recursive": false, "steps": [{ "name": "count-line", "depends": [], "queue": "count-line" }] })
    );
    assert_eq!(view["workflows"][0]["tasks"][0]["recursive"], true);
    assert_eq!(
        (&view["warnings"][1]["line"], &view["warnings"][1]["column"]),
        (&8.into(), &91.into())
    );
}

#[test]
fn check_prints_every_error() {
    let text = "workflows:\n- { name: a, steps: [ { nam: b } ] }\n- { steps: [] }\n";
    let (valid, shown) = checked(text, false);
    assert!(!valid);
    assert_eq!(
        shown,
        "\
f.yaml:2:25: workflow \"a\": unknown key \"nam\" in a step; did you mean \"name\"?
f.yaml:3:3: the key \"name\" is missing; a workflow has a name
f.yaml:3:12: the list \"steps\" is empty; a workflow has at least one step

not valid: 3 errors in 1 file
"
    );
    let (valid, shown) = checked(text, true);
    assert!(!valid);
    let view: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(view["valid"], false);
    assert_eq!(
        view["errors"][0],
        serde_json::json!({ "file": "f.yaml", "line": 2, "column": 25, "workflow": "a", "message": "unknown key \"nam\" in a step; did you mean \"name\"?" })
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the text, loading ends with definitions or with problems that have a place in the
    /// text, in order.
    #[test]
    fn any_text_is_loaded_or_refused(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        let text = pieces.concat();
        if let Err(LoadErrors(problems)) = load_text("f", &text) {
            prop_assert!(!problems.is_empty());
            prop_assert!(problems.is_sorted_by_key(|problem| (problem.line, problem.column)));
            let lines = text.split('\n').count();
            for problem in problems {
                prop_assert!(problem.line >= 1 && problem.line <= lines + 1 && problem.column >= 1, "{problem}");
            }
        }
    }
}

/// What random files are made of.
const PIECES: &[&str] = &[
    "workflows:",
    "\n- ",
    "\n  - ",
    "\n    ",
    "\n      - ",
    " ",
    "\n",
    "name: ",
    "steps:",
    "tasks: ",
    "depends: ",
    "task: ",
    "queue: ",
    "vhosts: ",
    "itemListKey: ",
    "priority: ",
    "when: ",
    "retry: ",
    "timeout: ",
    "statuses: ",
    "external: true",
    "steps.a.state == 'b'",
    "30s",
    "a",
    "b",
    "c",
    "[ ",
    " ]",
    "{ ",
    " }",
    ", ",
    ": ",
    "&x ",
    "*x",
    "<<: ",
    "? ",
    "!t ",
    "!!str ",
    "'",
    "\"",
    "#",
    "---\n",
    "|\n",
    "\t",
    "1",
    "yes",
    "~",
    "ä",
    "__start__",
    "__end__",
    "x-",
    "\\",
    "%YAML 1.2\n",
    "workflows: [ { name: a, steps: [ { name: b }, { name: c, depends: [ b ] } ] } ]",
    "{ name: a, depends: [ b ] }, ",
    "{ name: b, depends: [ a ] }, ",
];

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

fn assert_refused(text: &str, expected: &str) {
    assert_eq!(refused(text).to_string(), expected.trim(), "of\n{text}");
}

/// The only definition of a file.
fn only(text: &str) -> Definition {
    let loaded = load_text("f", text).unwrap_or_else(|errors| panic!("{text:.200}\n{errors}"));
    assert_eq!(loaded.definitions.len(), 1);
    loaded.definitions[0].as_ref().clone()
}

/// What `check` prints of a file of that text.
fn checked(text: &str, json: bool) -> (bool, String) {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = directory.path().join("f.yaml");
    std::fs::write(&path, text).expect("writes");
    let mut out = Vec::new();
    let valid = check(&[path], json, &mut out).expect("a vector takes everything");
    let prefix = format!("{}/", directory.path().display());
    (valid, String::from_utf8(out).expect("text").replace(&prefix, ""))
}

#[test]
fn virtual_hosts_that_differ_in_case_alone_cannot_have_one_table_of_statuses_each() {
    let text = "workflows: [{ name: w, vhosts: [prod, Prod, test], steps: [{ name: a }] }]";
    let error = load_text("f", text).expect_err("refused").to_string();
    assert!(
        error.contains(
            "in the virtual host \"Prod\": differs from \"prod/w\" in upper and lower case alone"
        ),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}
