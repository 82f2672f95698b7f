//! What the command `check` prints.

use insta::assert_snapshot;
use workflow_manager::cli::check;

#[test]
#[allow(clippy::too_many_lines, reason = "one file and what is printed of it")]
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
    assert_snapshot!(shown);

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
        serde_json::json!({
            "name": "line-counts",
            "itemListKey": "data",
            "itemKey": "data",
            "recursive": false,
            "steps": [{ "name": "count-line", "depends": [], "queue": "count-line" }],
        })
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
    assert_snapshot!(shown);
    let (valid, shown) = checked(text, true);
    assert!(!valid);
    let view: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(view["valid"], false);
    assert_eq!(
        view["errors"][0],
        serde_json::json!({
            "file": "f.yaml",
            "line": 2,
            "column": 25,
            "workflow": "a",
            "message": "unknown key \"nam\" in a step; did you mean \"name\"?",
        })
    );
}

/// What `check` prints of a file of that text.
pub(super) fn checked(text: &str, json: bool) -> (bool, String) {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = directory.path().join("f.yaml");
    std::fs::write(&path, text).expect("writes");
    let mut out = Vec::new();
    let valid = check(&[path], None, json, &mut out).expect("a vector takes everything");
    let prefix = format!("{}/", directory.path().display());
    (valid, String::from_utf8(out).expect("text").replace(&prefix, ""))
}

#[test]
fn check_prints_what_the_reference_shows() {
    let page = include_str!("../../../docs/reference/workflow-file.md");
    let mut blocks = page.split("```").skip(1).step_by(2);
    let printed = blocks.next().expect("what check prints");
    let printed = printed.split_once("workflow.yaml\n").expect("the command").1;
    let text = blocks.next().expect("the file").strip_prefix("yaml\n").expect("YAML");
    let (valid, shown) = checked(text, false);
    assert!(valid);
    assert_eq!(shown.trim_end(), printed.trim_end());
}
