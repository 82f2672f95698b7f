//! Mistakes in workflow files, and the messages about them.

use super::{lines, refused};
use insta::assert_snapshot;
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
    assert_snapshot!(refused(text));
}

#[test]
fn names_are_names() {
    assert_snapshot!(refused(
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
"
    ));
}

#[test]
fn dependencies_tasks_and_values_are_checked() {
    assert_snapshot!(refused(
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
"
    ));
}

#[test]
fn a_cycle_is_named_whole_and_once() {
    assert_snapshot!(refused(
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
"
    ));
}

#[test]
fn mistakes_in_the_yaml_say_what_to_do() {
    let texts = [
        "",
        "# nothing\n",
        "hello\n",
        "workflows:\n",
        "workflow: []\n",
        "a: [ b\n",
        "a: b\n\tc: d\n",
        "a:\n  - @b\n",
        "workflows: []\n---\nworkflows: []\n",
    ];
    assert_snapshot!(lines(texts.map(|text| format!("{text:?}\n    {}", refused(text)))));
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
    let folder = directory.path().display().to_string();
    let shown = errors.to_string().replace(&format!("{folder}/"), "").replace(&folder, "DIR");
    assert_snapshot!(shown);
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
