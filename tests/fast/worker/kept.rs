//! Queues that the files no longer name, and that jobs under way still use: the definition with
//! which a job began is its own until its end.

use super::{ID, receive, reply, until};
use actix_web::http::{Method, StatusCode};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use support::api::{Answer, Api};
use support::manager::TestManager;
use support::waits::until_async;
use workflow_manager::settings::{Names, Secret, Settings, WorkerToken};

const BEFORE: &str = "
workflows:
  - name: orders
    steps:
      - { name: price, queue: prices }
      - { name: ship, depends: [ price ] }
";

/// Runs `test` on a manager that has loaded this text from the file of the folder.
async fn loaded<F: Future>(
    folder: &Path,
    text: &str,
    change: impl FnOnce(&mut Settings),
    test: impl FnOnce(Api) -> F,
) -> F::Output {
    let file = folder.join("workflows.yaml");
    fs::write(&file, text).expect("written");
    let named = |settings: &mut Settings| {
        settings.workflows = vec![file];
        change(settings);
    };
    TestManager::with(text).folder(folder).set(named).serve_here(test).await
}

async fn reload(api: &Api, folder: &Path, text: &str) {
    fs::write(folder.join("workflows.yaml"), text).expect("written");
    let reloaded = api.post("/api/reload", "").await;
    assert_eq!(reloaded.status, StatusCode::OK, "{}", String::from_utf8_lossy(&reloaded.body));
}

/// The queues as they are told, once that fits: a look is kept for some seconds.
async fn told(api: &Api, fits: impl Fn(&Value) -> bool) -> Value {
    let told = api.until("/api/queues", |told| fits(&told["queues"])).await;
    told["queues"].clone()
}

fn named<'t>(told: &'t Value, queue: &str) -> &'t Value {
    let queues = told.as_array().expect("a list");
    queues.iter().find(|told| told["queue"] == queue).unwrap_or(&Value::Null)
}

/// Takes and answers what waits in each of these queues, one after the other.
async fn work(api: &Api, queues: &[&str]) {
    for queue in queues {
        let message = receive(api, &format!("{queue}/receive")).await;
        assert_eq!(reply(api, &message, "", "{}").await, json!({ "taken": true }), "{queue}");
    }
}

#[test]
fn whatever_is_renamed_a_job_under_way_goes_on_in_the_queues_that_it_began_with() {
    let renamed = [
        ("a queue", BEFORE.replace("queue: prices", "queue: costs")),
        ("a step that has its name's queue", BEFORE.replace("name: ship", "name: send")),
        ("the workflow and all of it", BEFORE.replace("orders", "sales").replace("price", "cost")),
        (
            "nothing is left of it",
            BEFORE.replace("orders", "x").replace("pri", "u").replace("ship", "v"),
        ),
    ];
    for (what, after) in &renamed {
        actix_rt::System::new().block_on(async {
            let temporary = tempfile::tempdir().expect("a folder");
            let folder = temporary.path();
            loaded(
                folder,
                BEFORE,
                |_| {},
                |api| async move {
                    api.create_job(&format!("orders?id={ID}"), "{}").await;
                    reload(&api, folder, after).await;
                    // The second queue has no message yet.
                    let early = api.post("/api/queue/ship/receive?wait=0s", "").await;
                    assert_eq!(early.status, StatusCode::NO_CONTENT, "{what}");
                    let why = api.get(&format!("/api/job/{ID}/why"), &[]).await.json();
                    let why = why["why"].as_str().expect("a sentence").to_owned();
                    assert!(why.contains("workflow-manager work prices"), "{what}: {why}");
                    let dry = api.post("/api/queue/prices/redispatch?dryRun=true", "").await;
                    assert_eq!(dry.status, StatusCode::OK, "{what}");
                    work(&api, &["prices", "ship"]).await;
                    until(&api, |job| job["state"] == "completed").await;
                    // Nobody has its queues any more, as far as they are gone.
                    for queue in
                        ["prices", "ship"].into_iter().filter(|queue| !after.contains(queue))
                    {
                        let path = format!("/api/queue/{queue}/receive?wait=0s");
                        until_async("it is forgotten", async || {
                            api.post(&path, "").await.status == StatusCode::NOT_FOUND
                        })
                        .await;
                    }
                },
            )
            .await;
        });
    }
}

#[test]
fn lists_show_such_a_queue_and_say_that_the_files_do_not_have_it() {
    actix_rt::System::new().block_on(async {
        let temporary = tempfile::tempdir().expect("a folder");
        let folder = temporary.path();
        loaded(
            folder,
            BEFORE,
            |_| {},
            |api| async move {
                api.create_job(&format!("orders?id={ID}"), "{}").await;
                let after = BEFORE.replace("queue: prices", "queue: costs");
                reload(&api, folder, &after).await;
                let has_both = |told: &Value| {
                    named(told, "prices")["messages"] == 1 && named(told, "costs")["messages"] == 0
                };
                let told = told(&api, has_both).await;
                let (old, new, same) =
                    (named(&told, "prices"), named(&told, "costs"), named(&told, "ship"));
                assert_eq!(old["noLongerInFiles"], true, "{told}");
                assert_eq!(
                    old["usedBy"],
                    json!([{ "workflow": "orders", "step": "price", "noLongerInFiles": true }])
                );
                assert_eq!(old["oldest"]["job"], ID);
                for (queue, step) in [(new, "price"), (same, "ship")] {
                    assert_eq!(queue["noLongerInFiles"], Value::Null, "{told}");
                    assert_eq!(queue["usedBy"], json!([{ "workflow": "orders", "step": step }]));
                }
                let one = api.get("/api/queue/prices", &[]).await.json();
                assert_eq!(
                    (&one["noLongerInFiles"], &one["messages"]),
                    (&json!(true), &json!(1)),
                    "{one}"
                );
                work(&api, &["prices"]).await;
                assert_eq!(api.get("/api/queue/ship", &[]).await.status, StatusCode::OK);
            },
        )
        .await;
    });
}

#[test]
fn a_queue_of_a_job_of_the_journal_is_known_after_a_restart_without_its_workflow() {
    actix_rt::System::new().block_on(async {
        let temporary = tempfile::tempdir().expect("a folder");
        let folder = temporary.path();
        let tasks = "
workflows:
  - name: orders
    steps: [ { name: list }, { name: each, depends: [ list ], task: parcel } ]
    tasks: [ { name: parcel, itemListKey: parcels, steps: [ { name: pack, queue: packers } ] } ]
";
        loaded(
            folder,
            tasks,
            |_| {},
            |api| async move {
                api.create_job(&format!("orders?id={ID}"), "{}").await;
            },
        )
        .await;
        let other = "workflows: [ { name: other, steps: [ { name: else } ] } ]";
        loaded(
            folder,
            other,
            |_| {},
            |api| async move {
                let message = receive(&api, "list/receive").await;
                reply(&api, &message, "", r#"{"parcels":[1,2]}"#).await;
                work(&api, &["packers", "packers"]).await;
                until(&api, |job| job["state"] == "completed").await;
                let wrong: Answer = api.post("/api/queue/elsee/receive?wait=0s", "").await;
                assert_eq!(wrong.status, StatusCode::NOT_FOUND);
                let said = "no step waits on queue elsee, and neither a loaded workflow nor a job \
                        under way has it; did you mean \"else\"?";
                assert_eq!(wrong.detail(), said);
            },
        )
        .await;
    });
}

#[test]
fn the_token_of_a_worker_is_good_for_its_queue_after_a_rename_and_for_no_other() {
    const TOKEN: &str = "a-token-of-the-prices";
    actix_rt::System::new().block_on(async {
        let temporary = tempfile::tempdir().expect("a folder");
        let folder = temporary.path();
        let tokens = |settings: &mut Settings| {
            settings.http.token = Secret("the-token-of-the-operator".to_owned());
            let queues = Names(vec!["prices".to_owned()]);
            let vhost = String::new();
            let worker = WorkerToken { token: Secret(TOKEN.to_owned()), queues, vhost };
            settings.http.workers = [("pricer".to_owned(), worker)].into();
        };
        loaded(folder, BEFORE, tokens, |api| async move {
            let operator = [("authorization", "Bearer the-token-of-the-operator")];
            let worker = [("authorization", "Bearer a-token-of-the-prices")];
            let create = format!("/api/workflow/orders?id={ID}");
            api.request(Method::POST, &create, &operator, "{}").await;
            let after = BEFORE.replace("queue: prices", "queue: costs").replace("ship", "send");
            fs::write(folder.join("workflows.yaml"), after).expect("written");
            api.request(Method::POST, "/api/reload", &operator, "").await;
            for queue in ["costs", "ship", "send"] {
                let path = format!("/api/queue/{queue}/receive?wait=0s");
                let refused = api.request(Method::POST, &path, &worker, "").await;
                assert_eq!(refused.status, StatusCode::FORBIDDEN, "{queue}");
            }
            let taken = api.request(Method::POST, "/api/queue/prices/receive", &worker, "").await;
            assert_eq!(taken.status, StatusCode::OK);
            let path = taken.header("reply-to").to_owned();
            let replied = api.request(Method::POST, &path, &worker, "{}").await;
            assert_eq!(replied.json(), json!({ "taken": true }));
        })
        .await;
    });
}

#[test]
fn what_waited_for_a_workflow_that_was_gone_asks_for_its_job_when_it_is_back() {
    const CALLS: &str = "
workflows:
  - { name: orders, steps: [ { name: ask, queue: workflow.prices } ] }
";
    const BOTH: &str = "
workflows:
  - { name: orders, steps: [ { name: ask, queue: workflow.prices } ] }
  - { name: prices, steps: [ { name: price } ] }
";
    actix_rt::System::new().block_on(async {
        let temporary = tempfile::tempdir().expect("a folder");
        let folder = temporary.path();
        loaded(
            folder,
            CALLS,
            |_| {},
            |api| async move {
                api.create_job(&format!("orders?id={ID}"), "{}").await;
                told(&api, |told| named(told, "workflow.prices")["messages"] == 1).await;
                reload(&api, folder, BOTH).await;
                work(&api, &["price"]).await;
                until(&api, |job| job["state"] == "completed").await;
            },
        )
        .await;
    });
}
