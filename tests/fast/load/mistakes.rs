//! Mistakes in workflow files, and the messages about them.

use super::{assert_refused, refused};
use workflow_manager::load::{load_files, load_text};

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
f:2:11: workflow "five mistakes": "five mistakes" is not a name: a letter, then letters, digits,
    `_` or `-`
f:5:9: workflow "five mistakes", step "split": unknown key "depend" in a step;
    did you mean "depends"?
f:7:15: workflow "five mistakes", step "count": names the task "counts", which this workflow does
    not have; it has no `tasks`
f:9:20: workflow "five mistakes", step "sum": depends on "splt", which is not a step here;
    did you mean "split"?
f:10:19: workflow "five mistakes", step "sum": "priority" takes a whole number from 0 to 9, found
    the number 10
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
f:4:15: workflow "1", step "yes": expected a name, found yes, which YAML may take for a boolean;
    put it into quotes: "yes"
f:5:15: workflow "1", step "__start__": "__start__" is reserved: every workflow has it already
f:6:9: workflow "1": expected a name, found nothing
f:7:15: workflow "1": expected a name, found a list
f:8:9: workflow "1": the key "name" is missing; a step has a name
f:10:9: workflow "1", step "a": the key "name" is given twice in this mapping; the first is at 9:9
f:11:15: workflow "1", step "a": a step "a" is declared already, at 9:15; the steps of one graph
    differ in their names
f:12:15: workflow "1", step "A": differs from "a", at 9:15, only in upper and lower case;
    the table of statuses cannot tell them apart
f:13:15: workflow "1", step "Job": the name "Job" is taken: the table of statuses has its own column
    with that name
f:14:9: workflow "1": expected a step, such as `{ name: .. }`, found the text "just"
f:17:11: workflow "w": a workflow "w" is declared already, at f:15:11
f:19:11: workflow "W": differs from the workflow "w" only in upper and lower case;
    their tables of statuses could not be told apart
f:20:18: workflow "W": the virtual host "a" is listed twice; the first is at 20:15
f:20:21: workflow "W": expected a virtual host, found an empty text
f:20:25: workflow "W": expected a virtual host, found 5, which YAML may take for a number;
    put it into quotes: "5"
"#,
    );
}

#[test]
fn dependencies_tasks_and_values_are_checked() {
    assert_refused(
        "\
workflows:
  - name: w
    bus: Amqp
    steps:
      - { name: a, depends: a, bus: 'a b', queue: amq.x }
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
f:3:10: workflow "w": "Amqp" is no name of a bus: a lower-case letter, then lower-case letters,
    digits or _
f:5:29: workflow "w", step "a": "depends" takes a list, found the text "a"; write [ a ]
f:5:37: workflow "w", step "a": "a b" is no name of a bus: a lower-case letter, then lower-case
    letters, digits or _
f:5:51: workflow "w", step "a": queue names that start with "amq." belong to the broker, found
    "amq.x"
f:6:31: workflow "w", step "b": depends on itself, the shortest cycle; remove it from its `depends`
f:6:34: workflow "w", step "b": depends on "__end__", but the end comes after every step
f:6:43: workflow "w", step "b": expected the name of a step, found the number 1; a name starts with
    a letter
f:6:46: workflow "w", step "b": expected the name of a step, found yes, which YAML may take for a
    boolean; put it into quotes: "yes"
f:6:51: workflow "w", step "b": expected the name of a step, found nothing
f:6:56: workflow "w", step "b": "itemListKey" is a key of a task, not of a step
f:7:26: workflow "w", step "c": names the task "elsewhere", which this workflow does not have;
    the workflow "v" has one, but a task belongs to its workflow: declare it here too
f:7:44: workflow "w", step "c": expected the name of a queue, found "a\nb", with a line break or
    another control character in it
f:7:62: workflow "w", step "c": "priority" takes a whole number from 0 to 9, found the text "3";
    remove the quotes
f:9:33: workflow "w", task "t": expected the key of a list, found 5, which YAML may take for a
    number; put it into quotes: "5"
f:9:52: workflow "w", task "t": "maxConcurrency" takes a whole number of at least 1, found the
    number 0
f:9:62: workflow "w", task "t": the list "steps" is empty; a task has at least one step
f:10:17: workflow "w": a task "t" is declared already, at 9:17; the tasks of one workflow differ in
    their names
f:10:20: workflow "w", task "t": unknown key "itemlistkey" in a task; did you mean "itemListKey"?
f:10:37: workflow "w", task "t": the list "steps" is empty; a task has at least one step
f:11:9: workflow "w", task "u": the key "itemListKey" is missing; a task runs once for each item of
    the list under this key
f:11:27: workflow "w", task "u": "steps" takes a list, found a mapping; is a `-` missing before
    "name"?
f:14:81: workflow "v", task "elsewhere", step "d": depends on "s", which is not a step here
f:15:5: workflow "v": unknown key "colour" in a workflow; known are "name", "vhosts", "queueType",
    "queueArguments", "steps", "tasks", "deadline", "retention" and "bus"
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
f:4:31: workflow "w", step "a": depends on itself by a cycle: a → c → b → a (each depends on the
    next); remove one of these dependencies
f:9:31: workflow "w", step "x": depends on itself by a cycle: x → y → x (each depends on the next);
    remove one of these dependencies
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
            "f:1:1: expected a workflow file, such as `workflows: [ .. ]`, found the \
             text \"hello\"",
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
            "f:2:1: this is not valid YAML: while scanning a plain scalar, found a tab; indent \
             with spaces",
        ),
        (
            "a:\n  - @b\n",
            "f:2:5: this is not valid YAML: unexpected character: `@'; put a text with special \
             characters into quotes",
        ),
        (
            "workflows: []\n---\nworkflows: []\n",
            "f:2:1: a second document (`---`) starts here; a file holds one: put all workflows \
             into one list",
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
            "b.yaml:1:60: workflow \"w\", step \"s\": unknown key \"queu\" in a step; \
             did you mean \"queue\"?",
            "c.yaml:2:12: this byte is not UTF-8; save the file as UTF-8 text",
            "missing.yaml: cannot read the file: No such file or directory (os error 2)",
            "DIR: this is a directory; name the workflow files in it",
        ]
    );
}

#[test]
fn virtual_hosts_that_differ_in_case_alone_cannot_have_one_table_of_statuses_each() {
    let text = "workflows: [{ name: w, vhosts: [prod, Prod, test], steps: [{ name: a }] }]";
    let error = load_text("f", text).expect_err("refused").to_string();
    assert!(
        error.contains(
            "in the virtual host \"Prod\": differs from \"prod/w\" only in upper and lower case"
        ),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}
