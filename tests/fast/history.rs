//! The record of a job over HTTP and from a journal's file: every entry, and the job as it was
//! after each of them.

use actix_web::http::StatusCode;
use clap::Parser;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use support::api::Api;
use support::manager::TestManager;
use workflow_manager::cli::{self, Arguments, ClientError};
use workflow_manager::journal::{Journal as _, JournalOptions, SqliteJournal};
use workflow_manager::settings::DurationSetting;

const FAN: &str = "
workflows:
  - name: fan
    steps:
      - name: first
        external: true
        retry: { attempts: 2, backoff: 1ms }
      - name: each
        task: piece
        depends: [ first ]
    tasks:
      - name: piece
        itemListKey: items
        steps: [ { name: work, external: true } ]
";

const ID: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bb";

/// A job that failed an attempt, fanned out over two items, and completed; and its child jobs.
async fn lived(api: &Api) -> Vec<String> {
    let message = json!({ "k": "x".repeat(5_000) }).to_string();
    api.post(&format!("/api/workflow/fan?id={ID}"), &message).await;
    let job = format!("/api/job/{ID}");
    api.post_until_accepted(
        &format!("{job}/step/first?type=error"),
        &json!({ "error": "no\npen" }).to_string(),
    )
    .await;
    api.post_until_accepted(&format!("{job}/step/first"), &json!({ "items": [1, 2] }).to_string())
        .await;
    let has_two = |page: &Value| page["children"].as_array().map(Vec::len) == Some(2);
    let page = api.until(&format!("{job}/children"), has_two).await;
    let id = |item: usize| page["children"][item]["job"].as_str().expect("an id").to_owned();
    let children = vec![id(0), id(1)];
    for child in &children {
        api.post_until_accepted(
            &format!("/api/job/{child}/step/work"),
            &json!({ "item": "done" }).to_string(),
        )
        .await;
    }
    api.until(&job, |view| view["state"] == "completed").await;
    children
}

async fn entries(api: &Api, query: &str) -> Vec<Value> {
    let page = api.get_json(&format!("/api/job/{ID}/entries{query}")).await;
    page["entries"].as_array().expect("a list").clone()
}

#[test]
fn every_entry_is_told_with_its_number_and_time_a_page_at_a_time() {
    TestManager::with(FAN).serve(|api| async move {
        let children = lived(&api).await;
        let all = entries(&api, "").await;
        let mut paged = Vec::new();
        let mut after = 0;
        loop {
            let page = api.get_json(&format!("/api/job/{ID}/entries?after={after}&limit=3")).await;
            paged.extend(page["entries"].as_array().expect("a list").clone());
            let Some(next) = page["next"].as_u64() else { break };
            assert_eq!(next, after + 3, "{page}");
            after = next;
        }
        assert_eq!(paged, all);
        for (entry, n) in all.iter().zip(1..) {
            assert_eq!(entry["n"], n);
            assert!(entry["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{entry}");
        }
        let of_kind = |kind: &str| -> Vec<&Value> {
            all.iter().filter(|entry| entry["kind"] == kind).collect()
        };
        let created = of_kind("job.created")[0];
        assert_eq!(
            (&created["payloadOmitted"], created.get("payload")),
            (&json!(true), None),
            "larger than an entry repeats: {created}"
        );
        assert!(created["payloadBytes"].as_u64().is_some_and(|bytes| bytes > 5_000));
        let failed = of_kind("step.attempt-failed")[0];
        assert_eq!((&failed["step"], &failed["attempt"]), (&json!("first"), &json!(1)));
        assert!(failed["reason"].as_str().is_some_and(|reason| reason.contains("no\npen")));
        assert_eq!(of_kind("step.completed")[0]["payload"], json!({ "items": [1, 2] }));
        assert_eq!(of_kind("child.completed").len(), 2);
        assert_eq!(all.last().expect("entries")["kind"], "job.completed");
        assert!(entries(&api, "?after=4711").await.is_empty(), "nothing yet is no error");

        let own = api.get_json(&format!("/api/job/{}/entries", children[0])).await;
        assert_eq!(own["entries"][0]["kind"], "job.created");
        for wrong in ["after=x", "after=-1", "limit=0", "limit=x", "before=3"] {
            let answer = api.get(&format!("/api/job/{ID}/entries?{wrong}"), &[]).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{wrong}");
        }
        let unknown = api.get("/api/job/00000000-0000-4000-8000-000000000000/entries", &[]).await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    });
}

#[test]
fn a_job_is_shown_as_it_was_after_each_entry() {
    TestManager::with(FAN).serve(|api| async move {
        let children = lived(&api).await;
        let all = entries(&api, "").await;
        let mut completed = 0;
        for entry in &all {
            let n = &entry["n"];
            let then = api.get_json(&format!("/api/job/{ID}?at={n}")).await;
            let light = api.get_json(&format!("/api/job/{ID}?at={n}&view=light")).await;
            assert_eq!(&light["entries"], n);
            assert_eq!(light["steps"][1]["state"], then["steps"][1]["state"]);
            let is_last = entry["kind"] == "job.completed";
            assert_eq!(then["state"], if is_last { "completed" } else { "running" }, "{entry}");
            completed += usize::from(entry["kind"] == "step.completed");
            // Besides __start__, and __end__ of the last.
            let shown = then["completed"].as_array().expect("a list").len();
            assert_eq!(shown, 1 + completed + usize::from(is_last), "{then}");
        }
        let now = api.get_json(&format!("/api/job/{ID}")).await;
        assert_eq!(api.get_json(&format!("/api/job/{ID}?at={}", all.len())).await, now);
        let child = api.get_json(&format!("/api/job/{}?at=1", children[1])).await;
        assert_eq!((&child["state"], &child["task"]), (&json!("running"), &json!("piece")));
        assert_eq!(child["completed"][0]["message"]["item"], 2, "its message is its parent's item");
        for wrong in [0, all.len() + 1] {
            let answer = api.get(&format!("/api/job/{ID}?at={wrong}"), &[]).await;
            let told = format!("has the entries 1 to {}", all.len());
            assert!(answer.detail().contains(&told), "{}", answer.detail());
            assert_eq!(answer.status, StatusCode::NOT_FOUND);
        }
    });
}

#[test]
fn who_asks_for_an_operation_can_say_why_and_the_record_keeps_it() {
    TestManager::with(FAN).serve(|api| async move {
        api.post(&format!("/api/workflow/fan?id={ID}"), "{}").await;
        let job = format!("/api/job/{ID}");
        let none = json!({});
        api.post_until_accepted(
            &format!("{job}/pause?reason=the%20printer%20burns"),
            &none.to_string(),
        )
        .await;
        api.post_until_accepted(&format!("{job}/resume"), &none.to_string()).await;
        api.post_until_accepted(
            &format!("{job}/step/first?reason=by%20telephone"),
            &json!({ "items": [] }).to_string(),
        )
        .await;
        let all = entries(&api, "").await;
        let kinds: Vec<&str> = all.iter().filter_map(|entry| entry["kind"].as_str()).collect();
        let asked: Vec<usize> = (0..all.len()).filter(|at| kinds[*at] == "job.asked").collect();
        let [pause, resume, reply] = *asked else { panic!("three asked: {kinds:?}") };
        assert_eq!(
            (&all[resume]["operation"], all[resume].get("reason")),
            (&json!("resume"), None)
        );
        assert_eq!(
            (&all[pause]["operation"], &all[pause]["reason"], all[pause].get("step")),
            (&json!("pause"), &json!("the printer burns"), None)
        );
        assert_eq!(kinds[pause + 1], "job.paused");
        assert_eq!(
            (&all[reply]["operation"], &all[reply]["step"]),
            (&json!("reply"), &json!("first"))
        );
        assert_eq!(kinds[reply + 1], "step.completed");

        let second = "f557697b-f911-401c-86b7-6d9b62f1f2bc";
        api.post(&format!("/api/workflow/fan?id={second}"), "{}").await;
        let bulk = "/api/jobs/cancel?workflow=fan&state=running&reason=no%20paper";
        assert_eq!(api.post(bulk, "").await.json()["done"], 1);
        let cancelled = api.get_json(&format!("/api/job/{second}")).await;
        assert_eq!(cancelled["reason"], "by a call of the API: no paper");

        let long = "x".repeat(201);
        for (path, said) in [
            (format!("{job}/pause?reason="), "reason has 0 characters"),
            (format!("{job}/pause?reason={long}"), "reason has 201 characters"),
            (format!("/api/jobs/pause?workflow=fan&reason={long}"), "reason has 201"),
            ("/api/jobs/delete?workflow=fan&reason=old".to_owned(), "delete takes no reason"),
        ] {
            let refused = api.post(&path, "").await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}");
            assert!(refused.detail().contains(said), "{}", refused.detail());
        }
    });
}

/// The child jobs of a step belong to their parent as it was when they ran. After a rerun of what
/// is before that step, nothing of the parent tells their messages any more.
#[test]
fn child_jobs_outlive_a_rerun_of_what_came_before_them() {
    TestManager::with(FAN)
        // What follows from the last entries is not derived before the crash.
        .set(|settings| settings.journal.lag = DurationSetting(Duration::from_secs(3_600)))
        .serve(|api| async move {
            let common = api.state();
            let children = lived(&api).await;
            api.post_until_accepted(&format!("/api/job/{ID}/rerun?step=first"), "{}").await;
            let message_of = async |child: &str| {
                let shown = api.get_json(&format!("/api/job/{child}")).await;
                shown["completed"][0]["message"]["item"].clone()
            };
            assert_eq!(message_of(&children[0]).await, 1);

            // The files as a crash leaves them now.
            let copy = tempfile::tempdir().expect("a folder");
            let file = copy.path().join("j.db");
            for suffix in ["", "-wal"] {
                let of = |path: &Path| format!("{}{suffix}", path.display());
                std::fs::copy(of(&common.settings.journal.file), of(&file)).expect("copied");
            }
            let options = JournalOptions {
                file,
                cache_bytes: 1 << 20,
                verify_bytes_max: 1 << 30,
                pages_max: 0,
            };
            let store = SqliteJournal::open(&options).expect("it opens");
            let recovered = store.recover().expect("it recovers");
            assert_eq!(recovered.len(), 1, "the parent alone runs");

            // With another input the step has other items, and its old child jobs their own.
            let retried = json!({ "items": [7, 8, 9] });
            api.post_until_accepted(&format!("/api/job/{ID}/step/first"), &retried.to_string())
                .await;
            let has_three = |page: &Value| !page["children"][2].is_null();
            api.until(&format!("/api/job/{ID}/children"), has_three).await;
            assert_eq!(message_of(&children[1]).await, 2);
        });
}

/// What `replay` prints, or why it does not.
fn replay(db: &Path, arguments: &[&str]) -> Result<String, String> {
    let program = ["workflow-manager", "replay", "--db"].map(str::to_owned);
    let db = db.to_string_lossy().into_owned();
    let arguments = arguments.iter().map(|argument| (*argument).to_owned());
    let parsed = Arguments::try_parse_from(program.into_iter().chain([db]).chain(arguments));
    let mut out = Vec::new();
    cli::run(parsed.expect("good arguments"), |_, _| panic!("another command"), &mut out)
        .map_err(|error: ClientError| error.to_string())?;
    Ok(String::from_utf8(out).expect("text"))
}

#[test]
fn a_file_is_replayed_while_a_manager_runs_on_it_and_after() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = folder.path().join("kept.db");
    let file = db.clone();
    TestManager::with(FAN).set(|settings| settings.journal.file = file).serve(|api| {
        let db = db.clone();
        async move {
            lived(&api).await;
            let all = entries(&api, "").await;
            let lines = |text: String| -> Vec<Value> {
                text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
            };
            assert_eq!(lines(replay(&db, &[ID, "--json"]).expect("replayed")), all);
            let some = replay(&db, &[ID, "--json", "--after", "2", "--limit", "2"]);
            assert_eq!(lines(some.expect("replayed")), all[2..4]);
        }
    });
    let text = replay(&db, &[ID]).expect("replayed");
    assert!(text.lines().next().is_some_and(|line| line.contains("job.created")), "{text}");
    assert!(text.contains("no\\npen"), "in one line: {text}");
    assert!(text.lines().last().is_some_and(|line| line.ends_with("job.completed")), "{text}");
    let then = replay(&db, &[ID, "--at", "2"]).expect("replayed");
    assert!(then.contains("running") && then.contains("first"), "{then}");
    let error = |arguments: &[&str]| replay(&db, arguments).expect_err("refused");
    let beyond = error(&[ID, "--at", "4711"]);
    assert!(beyond.contains("has the entries 1 to"), "{beyond}");
    let unknown = error(&["00000000-0000-4000-8000-000000000000"]);
    assert!(unknown.contains("has no job"), "{unknown}");
    let missing = replay(&folder.path().join("nothing.db"), &[ID]).expect_err("refused");
    assert!(missing.contains("there is no journal"), "{missing}");
    assert!(!folder.path().join("nothing.db").exists(), "nothing is made");
}

#[test]
fn a_file_that_cannot_be_replayed_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = folder.path().join("kept.db");
    let file = db.clone();
    TestManager::with(FAN).set(|settings| settings.journal.file = file).serve(|api| async move {
        lived(&api).await;
    });
    let change = |sql: &str| {
        let connection = rusqlite::Connection::open(&db).expect("opens");
        connection.execute_batch(sql).expect("changes");
    };
    change("PRAGMA user_version = 4711");
    let newer = replay(&db, &[ID]).expect_err("refused");
    assert!(newer.contains("written by a newer version"), "{newer}");
    change("PRAGMA user_version = 9");
    let older = replay(&db, &[ID]).expect_err("refused");
    assert!(older.contains("start the manager on it once"), "{older}");
    change("PRAGMA user_version = 8");
    let unreleased = replay(&db, &[ID]).expect_err("refused");
    assert!(unreleased.contains("Start version 0.1.0 on it once"), "{unreleased}");
    change("PRAGMA application_id = 7");
    let foreign = replay(&db, &[ID]).expect_err("refused");
    assert!(foreign.contains("another program"), "{foreign}");
    std::fs::write(&db, "not a database at all, but long enough to be looked at as one")
        .expect("written");
    let garbage = replay(&db, &[ID]).expect_err("refused");
    assert!(garbage.contains("not a SQLite database"), "{garbage}");
}

#[test]
fn a_damaged_row_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = folder.path().join("kept.db");
    let file = db.clone();
    TestManager::with(FAN).set(|settings| settings.journal.file = file).serve(|api| async move {
        lived(&api).await;
    });
    let connection = rusqlite::Connection::open(&db).expect("opens");
    let sql = "UPDATE entries SET body = replace(body, 'pen', 'ink') WHERE body LIKE '%pen%'";
    connection.execute_batch(sql).expect("changes");
    drop(connection);
    let error = replay(&db, &[ID]).expect_err("refused");
    assert!(error.contains("table entries, row") && error.contains("checksum"), "{error}");
}
