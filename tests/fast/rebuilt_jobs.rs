//! Ended jobs with long records are cached. Whatever happens to a job, the cache answers as the
//! journal does, and reads get its bytes when they need them.

use actix_web::http::StatusCode;
use serde_json::json;
use support::api::Api;
use support::manager::TestManager;
use workflow_manager::actors::manager::Manager;
use workflow_manager::settings::Settings;

const WORKFLOW: &str = "
workflows:
  - name: two
    steps:
      - { name: first, external: true }
      - { name: each, task: piece, depends: [ first ], onFailure: continue }
    tasks:
      - name: piece
        itemListKey: items
        steps: [ { name: work, external: true } ]
";

const ID: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bb";

/// What is shown of a job that has ended. None of it depends on the time.
const PATHS: [&str; 17] = [
    "",
    "?view=light",
    "/step/first",
    "/step/each",
    "/step/each/items",
    "/step/first/output",
    "/message",
    "/result",
    "/why",
    "/step/each/items?format=map",
    "/step/each/items?format=times",
    "/step/each/items?format=reasons",
    "?at=2",
    "?at=3&view=light",
    "?at=1000000",
    "/step/first?at=2",
    "/step/each?at=9",
];

/// A message whose record is too long for a read without a permit for its bytes.
fn long_message(word: &str) -> String {
    json!({ "items": [1, 2, 3], "text": word.repeat(300_000 / word.len()) }).to_string()
}

/// Asserts that the API that has cached the job answers these paths like one that has cached
/// nothing.
async fn assert_same_answers(manager: &Manager, warm: &Api, paths: &[&str], moment: &str) {
    let cold = Api::new(manager).await;
    for path in paths {
        let path = format!("/api/job/{ID}{path}");
        let expected = cold.get(&path, &[]).await;
        for _ in 0..2 {
            let answer = warm.get(&path, &[]).await;
            assert_eq!(answer.status, expected.status, "{moment}: {path}");
            assert!(answer.body == expected.body, "{moment}: {path}: {}", answer.text());
        }
    }
}

/// Waits until the job has this state, and no actor has it, so that it is read from the journal.
async fn until_read_from_journal(manager: &TestManager, api: &Api, state: &str) {
    let path = format!("/api/job/{ID}?view=light");
    api.until(&path, |job| job["state"] == state).await;
    manager.until_closed(ID.parse().expect("an id")).await;
}

#[test]
fn the_cache_answers_as_the_journal_does_after_each_change_of_a_job() {
    actix_rt::System::new().block_on(async {
        let manager = TestManager::with(WORKFLOW).await;
        let api = Api::new(&manager).await;
        let job = format!("/api/job/{ID}");
        let first = format!("{job}/step/first");
        let create = format!("two?id={ID}");
        api.create_job(&create, &long_message("some text")).await;
        api.post_until_accepted(&format!("{first}?type=error"), r#"{"error":"no"}"#).await;
        until_read_from_journal(&manager, &api, "failed").await;
        assert_same_answers(&manager, &api, &PATHS, "failed").await;

        api.post_until_accepted(&format!("{job}/retry"), "").await;
        assert_same_answers(&manager, &api, &["/result", "/message"], "retried").await;
        api.post_until_accepted(&first, r#"{"items":[1,2,3],"output":1}"#).await;
        complete_items(&api, 3).await;
        until_read_from_journal(&manager, &api, "completed").await;
        assert_same_answers(&manager, &api, &PATHS, "completed").await;

        api.post_until_accepted(&format!("{job}/rerun?step=first"), "").await;
        api.post_until_accepted(&first, r#"{"items":[1,2,3],"output":2}"#).await;
        complete_items(&api, 3).await;
        until_read_from_journal(&manager, &api, "completed").await;
        assert_same_answers(&manager, &api, &PATHS, "run again").await;

        api.request(actix_web::http::Method::DELETE, &format!("{job}?erase=true"), &[], "").await;
        assert_eq!(api.get(&job, &[]).await.status, StatusCode::NOT_FOUND);
        assert_same_answers(&manager, &api, &PATHS, "erased").await;
        api.create_job(&create, &long_message("another text")).await;
        api.post_until_accepted(&format!("{job}/cancel"), "").await;
        until_read_from_journal(&manager, &api, "cancelled").await;
        assert_same_answers(&manager, &api, &PATHS, "created anew").await;
        manager.stop().await;
    });
}

/// Creates the job, and completes its step `first`, so that `each` has so many items.
async fn create_items(api: &Api, count: usize) {
    api.create_job(&format!("two?id={ID}"), &long_message("some text")).await;
    let output = json!({ "items": (0..count).collect::<Vec<usize>>() }).to_string();
    api.post_until_accepted(&format!("/api/job/{ID}/step/first"), &output).await;
}

/// Completes the child jobs of step `each`, once there are `count` that have not ended.
async fn complete_items(api: &Api, count: usize) {
    complete_items_but(api, count, 0).await;
}

/// Completes the first child jobs of step `each`, once there are `count` that have not ended. The
/// last ones go on.
async fn complete_items_but(api: &Api, count: usize, last: usize) {
    let running = format!("/api/job/{ID}/children?step=each&state=running&limit=1000");
    let is_whole =
        |page: &serde_json::Value| page["children"].as_array().map(Vec::len) == Some(count);
    let page = api.until(&running, is_whole).await;
    for child in page["children"].as_array().expect("a list").iter().take(count - last) {
        let path = format!("/api/job/{}/step/work", child["job"].as_str().expect("an id"));
        api.post_until_accepted(&path, r#"{"item":1}"#).await;
    }
}

/// Waits until the cache has the job as it stays: its end is committed behind its last answer.
async fn until_kept(api: &Api) {
    let is_kept = async || {
        let before = api.state().rebuilt_jobs.inserted();
        api.get(&format!("/api/job/{ID}?view=light"), &[]).await;
        api.state().rebuilt_jobs.inserted() == before
    };
    support::waits::until_async("the job is kept", is_kept).await;
}

/// Asserts that the first call of each of these paths inserts so many values into the cache, and
/// the second none.
async fn assert_kept(api: &Api, paths: &[(&str, u64)]) {
    let jobs = &api.state().rebuilt_jobs;
    for (path, expected) in paths {
        let path = format!("/api/job/{ID}{path}");
        let mut bodies = Vec::new();
        for expected in [*expected, 0] {
            let before = jobs.inserted();
            let answer = api.get(&path, &[]).await;
            assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
            assert_eq!(jobs.inserted() - before, expected, "{path}");
            bodies.push(answer.body);
        }
        assert!(bodies[0] == bodies[1], "{path}");
    }
}

#[test]
fn the_items_and_the_past_of_an_ended_job_are_read_once() {
    const ITEMS: usize = 1_000;
    actix_rt::System::new().block_on(async {
        let manager = TestManager::with(WORKFLOW).await;
        let api = Api::new(&manager).await;
        let job = format!("/api/job/{ID}");
        create_items(&api, ITEMS).await;
        complete_items(&api, ITEMS).await;
        until_read_from_journal(&manager, &api, "completed").await;
        until_kept(&api).await;
        let kept = [
            ("/step/each/items?format=map", 1),
            ("/step/each/items?format=times", 1),
            ("/step/each/items?format=reasons", 1),
            ("?at=700", 1),
            ("?at=700&view=light", 0),
            // The job after that entry is kept already, its attempts are not.
            ("/step/each?at=700", 1),
            ("/step/each?at=900", 2),
            ("/step/each?at=300", 2),
        ];
        assert_kept(&api, &kept).await;
        let paths = kept.map(|(path, _)| path);
        assert_same_answers(&manager, &api, &paths, "completed").await;

        // Run again: the items of before say nothing about those of now.
        api.post_until_accepted(&format!("{job}/rerun?step=each"), "").await;
        complete_items_but(&api, ITEMS, 500).await;
        api.post_until_accepted(&format!("{job}/cancel"), "").await;
        until_read_from_journal(&manager, &api, "cancelled").await;
        let is_cut_off = |page: &serde_json::Value| page["children"] == json!([]);
        let running = format!("{job}/children?step=each&state=running&limit=10");
        api.until(&running, is_cut_off).await;
        assert_same_answers(&manager, &api, &paths, "run again, and cancelled").await;
        let map = api.get(&format!("{job}/step/each/items?format=map"), &[]).await.body;
        assert_eq!(map.iter().filter(|byte| **byte != 0b1010_1010).count(), 125, "cut off");
        assert_kept(&api, &[("?at=700", 0), (paths[0], 0), (paths[1], 0), (paths[2], 0)]).await;

        api.request(actix_web::http::Method::DELETE, &format!("{job}?erase=true"), &[], "").await;
        assert_same_answers(&manager, &api, &paths, "erased").await;
        manager.stop().await;
    });
}

#[test]
fn the_items_of_a_step_that_failed_are_read_once() {
    const ITEMS: usize = 1_000;
    actix_rt::System::new().block_on(async {
        let manager = TestManager::with(WORKFLOW).await;
        let api = Api::new(&manager).await;
        let job = format!("/api/job/{ID}");
        create_items(&api, ITEMS).await;
        complete_items_but(&api, ITEMS, 500).await;
        let running = format!("{job}/children?step=each&state=running&limit=1");
        let page = api.until(&running, |page| page["children"][0]["job"].is_string()).await;
        let child = page["children"][0]["job"].as_str().expect("an id");
        let path = format!("/api/job/{child}/step/work?type=error");
        api.post_until_accepted(&path, r#"{"error":"no paper"}"#).await;
        until_read_from_journal(&manager, &api, "completed").await;
        api.until(&running, |page| page["children"] == json!([])).await;
        until_kept(&api).await;
        let paths = ["map", "times", "reasons"].map(|it| format!("/step/each/items?format={it}"));
        let paths = paths.each_ref().map(String::as_str);
        assert_kept(&api, &paths.map(|path| (path, 1))).await;
        assert_same_answers(&manager, &api, &paths, "failed").await;
        let reasons = api.get(&format!("{job}{}", paths[2]), &[]).await;
        assert!(reasons.text().contains("no paper"), "{}", reasons.text());
        manager.stop().await;
    });
}

#[test]
fn a_read_that_needs_the_bytes_of_the_cache_gets_them() {
    // A read of a job takes six times the size of its record: with the small job there is room
    // left for the cache, the large job takes all.
    let change = |settings: &mut Settings| settings.http.reads_bytes_max = 2_400_000;
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        let mut jobs = Vec::new();
        for text in [long_message("small"), long_message("large").replace("large", "larger than")] {
            let id = api.create_job("two", &text).await;
            api.post_until_accepted(&format!("/api/job/{id}/cancel"), "").await;
            jobs.push(format!("/api/job/{id}/why"));
        }
        let answers = &api.state().budgets.answers;
        // It is cached once its end is committed.
        support::waits::until_async("the small job is cached", async || {
            assert_eq!(api.get(&jobs[0], &[]).await.status, StatusCode::OK);
            (300_000..400_000).contains(&answers.used())
        })
        .await;
        let large = api.get(&jobs[1], &[]).await;
        assert_eq!(large.status, StatusCode::OK, "{}", large.text());
        assert_eq!(answers.used(), 0, "the small job has given its bytes");
    });
}
