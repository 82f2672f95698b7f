//! What the command `check` prints.

use workflow_manager::cli::check::check;

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
    assert_eq!(
        shown,
        "\
workflow book-word-counts in the virtual hosts prod, test

  step                   waits for              goes to
  book-split             -                      queue book-split
  section-counts         book-split             task word-counts for each of bookSections → \
      bookSection, at most 50 at once
    segment-word-counts  -                      queue segment-word-counts
    parts                segment-word-counts    task word-counts for each of bookSections → \
        bookSection, at most 50 at once (recursion: see above)
    lines                -                      task line-counts for each of data → data
      count-line         -                      queue count-line
  sum-splits             section-counts         queue sum-splits
  store-title            __start__, book-split  queue titles, priority 3

  queues  sum-splits, book-split, titles, segment-word-counts, count-line
  result  of sum-splits, store-title

warning: f.yaml:2:11: workflow \"book-word-counts\": the steps \"sum-splits\", \"book-split\" and \
    \"store-title\" have no \"timeout\": nothing else notices a worker that acknowledges a message \
    and dies before it replies
warning: f.yaml:8:91: workflow \"book-word-counts\", step \"store-title\": \"priority\" works over \
    AMQP only on a queue that honours it: say \"queueType: quorum\", or \"queueArguments: { \
    x-max-priority: 9 }\" for a classic one, as the workers of \"titles\" declare it
warning: f.yaml:10:15: workflow \"book-word-counts\", task \"word-counts\": the step \
    \"segment-word-counts\" has no \"timeout\": nothing else notices a worker that acknowledges a \
    message and dies before it replies
warning: f.yaml:17:17: workflow \"book-word-counts\", task \"line-counts\": the step \
    \"count-line\" has no \"timeout\": nothing else notices a worker that acknowledges a message \
    and dies before it replies

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
