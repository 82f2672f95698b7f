//! `check FILE --against JOURNAL`: what jobs that are kept would have done under changed files.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use support::api::Api;
use support::manager::TestManager;
use workflow_manager::cli;
use workflow_manager::cli::workflow_test::differences_under;
use workflow_manager::engine::JobId;
use workflow_manager::journal::{HistoryRecords, JobRecords, Reader};
use workflow_manager::load::load_text;

const ORDERS: &str = "
workflows:
  - name: orders
    steps:
      - name: price
        external: true
      - name: approve
        external: true
        depends: [ price ]
      - name: pieces
        task: piece
        depends: [ price ]
      - name: send
        queue: post
        depends: [ approve, pieces ]
    tasks:
      - name: piece
        itemListKey: lines
        steps: [ { name: pack, external: true } ]
";

const RUNNING: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bb";
const ENDED: &str = "0a557697-f911-401c-86b7-6d9b62f1f2bb";

async fn child(api: &Api, job: &str) -> String {
    let has_one = |page: &Value| page["children"][0]["job"].is_string();
    let page = api.until(&format!("/api/job/{job}/children"), has_one).await;
    page["children"][0]["job"].as_str().expect("an id").to_owned()
}

/// A journal with a job that is completed and, unless it is left out, one whose step `approve` runs
/// and whose child job is done.
fn journal(folder: &Path, has_running: bool) -> PathBuf {
    let db = folder.join("kept.db");
    let running = has_running.then_some((RUNNING, json!("a")));
    add(&db, running.into_iter().chain([(ENDED, json!("a"))]).collect());
    db
}

/// Adds jobs to a journal, each with this item. The child jobs are done; only the job `ENDED` is
/// completed.
fn add(db: &Path, jobs: Vec<(&'static str, Value)>) {
    let file = db.to_owned();
    TestManager::with(ORDERS).set(|settings| settings.journal.file = file).serve(
        |api| async move {
            for (id, line) in jobs {
                api.post(&format!("/api/workflow/orders?id={id}"), "{}").await;
                let job = format!("/api/job/{id}");
                api.post_until_accepted(
                    &format!("{job}/step/price"),
                    &json!({ "cents": 5, "lines": [line] }).to_string(),
                )
                .await;
                let child = child(&api, id).await;
                api.post_until_accepted(
                    &format!("/api/job/{child}/step/pack"),
                    &json!({ "line": "b" }).to_string(),
                )
                .await;
                if id == ENDED {
                    api.post_until_accepted(
                        &format!("{job}/step/approve"),
                        &json!({ "by": "Ada" }).to_string(),
                    )
                    .await;
                    api.post_until_accepted(&format!("{job}/step/send"), "{}").await;
                }
                let state = if id == ENDED { "completed" } else { "running" };
                let is_settled = |view: &Value| {
                    view["state"] == state && view["steps"][2]["state"] == "completed"
                };
                api.until(&format!("{job}?view=light"), is_settled).await;
            }
        },
    );
}

/// What is told of a file against a journal, and whether the exit code is that of success.
fn check(folder: &Path, journal: &Path, workflows: &str) -> (Value, bool) {
    let file = folder.join("changed.yaml");
    std::fs::write(&file, workflows).expect("written");
    let mut out = Vec::new();
    let code = cli::check_against(std::slice::from_ref(&file), None, journal, true, &mut out)
        .expect("compared");
    let mut text = Vec::new();
    let again = cli::check_against(&[file], None, journal, false, &mut text).expect("compared");
    assert_eq!(code, again);
    (serde_json::from_slice(&out).expect("JSON"), code == ExitCode::SUCCESS)
}

/// What would differ for a job, each as kind, step and text.
fn differences(told: &Value, job: &str) -> Vec<(String, String, String)> {
    let jobs = told["workflows"][0]["jobs"].as_array().expect("a list");
    let of_job = jobs.iter().find(|affected| affected["job"] == job);
    let list = of_job.and_then(|affected| affected["differences"].as_array());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list.into_iter()
        .flatten()
        .map(|change| (text(&change["kind"]), text(&change["step"]), text(&change["text"])))
        .collect()
}

fn told(kind: &str, step: &str, text: &str) -> (String, String, String) {
    (kind.to_owned(), step.to_owned(), text.to_owned())
}

#[test]
fn the_same_definitions_change_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = journal(folder.path(), true);
    let (same, is_good) = check(folder.path(), &db, ORDERS);
    let workflow = &same["workflows"][0];
    assert!(is_good && same["affected"] == false, "{same}");
    assert_eq!(workflow["kept"], json!({ "running": 1, "ended": 1 }));
    assert_eq!(workflow["same"], workflow["kept"]);
    // Told apart from a definition in which only a number differs that no job can feel any more.
    let (other, is_good) = check(
        folder.path(),
        &db,
        &ORDERS.replace("name: price", "name: price\n        timeout: 1h"),
    );
    assert!(is_good, "{other}");
    assert_eq!(other["workflows"][0]["affected"], json!({ "running": 0, "ended": 0 }), "{other}");
    assert_eq!(other["workflows"][0]["definitions"][0]["changes"][0]["text"], "timeout differs");
}

#[test]
fn a_condition_that_decides_otherwise_is_told_with_the_jobs_own_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = journal(folder.path(), true);
    let condition = |text: &str| {
        let when = format!("name: approve\n        when: '{text}'");
        ORDERS.replace("name: approve", &when)
    };
    let (high, is_good) = check(folder.path(), &db, &condition("input.cents > 100"));
    assert!(!is_good && high["affected"] == true, "{high}");
    let of_running = differences(&high, RUNNING);
    let skipped = "is running, would be skipped: its condition is false";
    assert!(of_running.contains(&told("condition", "approve", skipped)), "{of_running:?}");
    let sent = "is waiting, would be running";
    assert!(of_running.contains(&told("state", "send", sent)), "{of_running:?}");
    let of_ended = differences(&high, ENDED);
    let skipped = "is completed, would be skipped: its condition is false";
    assert_eq!(of_ended, [told("condition", "approve", skipped)], "{high}");

    let (low, _) = check(folder.path(), &db, &condition("input.cents > 1"));
    let text = "when is input.cents > 1 instead of none";
    assert_eq!(differences(&low, RUNNING), [told("condition", "approve", text)]);
    assert_eq!(differences(&low, ENDED), [], "it would have gone the same way");
}

#[test]
fn steps_that_are_gone_new_renamed_or_elsewhere_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = journal(folder.path(), true);
    let (gone, _) = check(
        folder.path(),
        &db,
        &ORDERS
            .replace(
                "      - name: approve\n        external: true\n        depends: [ price ]\n",
                "",
            )
            .replace("[ approve, pieces ]", "[ pieces ]"),
    );
    let of_running = differences(&gone, RUNNING);
    let text = "is running and would not be there";
    assert!(of_running.contains(&told("gone", "approve", text)), "{of_running:?}");
    let text = "is waiting, would be running";
    assert!(of_running.contains(&told("state", "send", text)), "{of_running:?}");
    let text = "depends on pieces instead of approve, pieces";
    assert!(of_running.contains(&told("depends", "send", text)), "{of_running:?}");
    assert_eq!(gone["workflows"][0]["oldColumns"], json!(["approve"]));

    let new = ORDERS.replace(
        "      - name: send",
        "      - name: fraud\n        depends: [ price ]\n      - name: send",
    );
    let (new, is_good) =
        check(folder.path(), &db, &new.replace("approve, pieces", "approve, pieces, fraud"));
    assert!(!is_good);
    assert!(differences(&new, RUNNING).contains(&told(
        "new",
        "fraud",
        "is new and would be running"
    )));
    assert_eq!(new["workflows"][0]["newColumns"], json!(["fraud"]));
    let of_ended = differences(&new, ENDED);
    assert!(
        of_ended.contains(&told("state", "send", "is completed, would be waiting for fraud")),
        "{of_ended:?}"
    );
    assert!(of_ended.contains(&told("state", "", "the job is completed, would be running")));

    let (renamed, _) = check(folder.path(), &db, &ORDERS.replace("approve", "sign-off"));
    let of_running = differences(&renamed, RUNNING);
    assert_eq!(of_running[0], told("renamed", "approve", "is called sign-off now"));
    assert!(!of_running.iter().any(|(kind, ..)| kind == "state"), "{of_running:?}");
    assert_eq!(renamed["workflows"][0]["newColumns"], json!(["sign-off"]));

    let (queue, is_good) = check(folder.path(), &db, &ORDERS.replace("queue: post", "queue: mail"));
    assert!(!is_good);
    let text = "goes to queue mail instead of post";
    assert_eq!(differences(&queue, RUNNING), [told("queue", "send", text)]);
    assert_eq!(differences(&queue, ENDED), [], "its message has gone");
}

#[test]
fn ended_jobs_alone_are_no_failure_and_a_workflow_that_is_gone_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = journal(folder.path(), false);
    let changed = ORDERS.replace("name: approve", "name: approve\n        when: 'false'");
    let (ended, is_good) = check(folder.path(), &db, &changed);
    assert!(is_good, "{ended}");
    assert_eq!(ended["workflows"][0]["affected"], json!({ "running": 0, "ended": 1 }));

    let other = tempfile::tempdir().expect("a folder");
    let db = journal(other.path(), true);
    let (absent, is_good) = check(other.path(), &db, "workflows: [{name: x, steps: [{name: y}]}]");
    assert!(is_good);
    assert_eq!(absent["notInFiles"], json!([{ "workflow": "orders", "running": 1 }]));
}

/// A child job may get the id of a job that has ended.
#[test]
fn a_job_whose_id_a_child_job_has_got_is_judged_by_its_own_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = folder.path().join("kept.db");
    add(&db, vec![(ENDED, json!("a"))]);
    // The first job takes no input any more: another process begins.
    add(&db, vec![(RUNNING, json!({ "id": ENDED }))]);
    let reader = Reader::open(&db).expect("opens");
    let id: JobId = ENDED.parse().expect("an id");
    let child = reader.load_job(id).expect("reads").expect("is there");
    assert!(child.job.origin().parent.is_some(), "the id leads to the child job");

    let flat = "
workflows:
  - name: orders
    steps:
      - name: price
        external: true
      - name: approve
        external: true
        depends: [ price ]
        when: 'input.cents > 100'
      - name: send
        queue: post
        depends: [ approve ]
";
    let (told_of, _) = check(folder.path(), &db, flat);
    let workflow = &told_of["workflows"][0];
    assert_eq!(workflow["kept"], json!({ "running": 1, "ended": 1 }), "{told_of}");
    assert_eq!(workflow["affected"], workflow["kept"], "{told_of}");
    let of_ended = differences(&told_of, ENDED);
    let skipped = "is completed, would be skipped: its condition is false";
    assert!(of_ended.contains(&told("condition", "approve", skipped)), "{of_ended:?}");

    let flat = load_text("flat.yaml", flat).expect("valid").definitions.remove(0);
    let rows = reader.load_rows_by_number(child.number).expect("reads").expect("is there");
    assert_eq!(differences_under(&child.job, &rows, &flat), [], "it has no task for a child job");
}
