//! The inbox has the steps that wait for people: of jobs, child jobs and their child jobs.

use actix_web::http::StatusCode;
use rusqlite::Connection;
use serde_json::{Value, json};
use support::api::Api;
use support::manager::TestManager;
use support::waits::poll;

const WORKFLOWS: &str = "
workflows:
  - name: orders
    label: job.title
    columns: { order: job.order }
    steps:
      - { name: sign, external: true, statusKey: word, statuses: [ OPEN, SIGNED ] }
      - { name: also, external: true }
      - { name: pieces, task: piece }
    tasks:
      - name: piece
        itemListKey: list
        itemKey: done
        steps: [ { name: judge, external: true } ]
  - name: plain
    steps: [ { name: sign, external: true }, { name: work, depends: [ sign ] } ]
";

/// Waits until the inbox has so many steps, and returns it.
async fn inbox(api: &Api, query: &str, count: usize) -> Value {
    let path = format!("/api/inbox?{query}");
    api.until(&path, |inbox| inbox["steps"].as_array().is_some_and(|all| all.len() == count)).await
}

/// Returns `STEP ITEM` of each step.
fn names(inbox: &Value) -> Vec<String> {
    let steps = inbox["steps"].as_array().expect("a list").iter();
    let name = |step: &Value| {
        format!("{} {}", step["step"].as_str().expect("a name"), step["item"]).replace(" null", "")
    };
    steps.map(name).collect()
}

#[test]
fn the_inbox_has_what_waits_for_people_in_jobs_and_child_jobs() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let empty = json!({ "steps": [], "count": 0, "workflows": {}, "unreadable": 0 });
        assert_eq!(inbox(&api, "", 0).await, empty);
        let message = r#"{"title":"Order 4711","order":4711,"list":[1,2,3]}"#;
        let order = api.create_job("orders", message).await;
        let all = inbox(&api, "", 5).await;
        assert_eq!((&all["count"], &all["workflows"]), (&json!(5), &json!({ "orders": 5 })));
        let mut sorted = names(&all);
        sorted.sort();
        assert_eq!(sorted, ["also", "judge 0", "judge 1", "judge 2", "sign"]);
        for step in all["steps"].as_array().expect("a list") {
            assert_eq!(
                (&step["label"], &step["columns"]),
                (&json!("Order 4711"), &json!({ "order": 4711 })),
                "a child job has those of its root job"
            );
            let (root, task) = (step.get("root"), step.get("task"));
            match step["step"].as_str() {
                Some("judge") => {
                    assert_eq!((root, task), (Some(&json!(order)), Some(&json!("piece"))))
                }
                _ => assert_eq!((root, task, &step["job"]), (None, None, &json!(order))),
            }
            assert_eq!(step["attempt"], 1);
        }
        let find = |inbox: &Value, step: &str| {
            inbox["steps"]
                .as_array()
                .and_then(|all| all.iter().find(|one| one["step"] == step).cloned())
        };
        let sign = find(&all, "sign").expect("it waits");
        assert_eq!((&sign["status"], &sign["statusKey"]), (&json!("OPEN"), &json!("word")));
        assert_eq!(sign["statuses"], json!(["OPEN", "SIGNED"]));

        // What is decided is gone; what comes next is there.
        let child =
            find(&all, "judge").expect("it waits")["job"].as_str().expect("an id").to_owned();
        api.post(&format!("/api/job/{child}/step/judge"), r#"{"done":1}"#).await;
        api.post(&format!("/api/job/{order}/step/sign"), r#"{"word":"SIGNED"}"#).await;
        let plain = api.create_job("plain", "{}").await;
        let rest = inbox(&api, "", 4).await;
        assert_eq!(rest["workflows"], json!({ "orders": 3, "plain": 1 }));
        let last = rest["steps"].as_array().and_then(|all| all.last()).expect("one");
        assert_eq!((&last["job"], last.get("label")), (&json!(plain), None), "the newest is last");
        let only = inbox(&api, "workflow=plain", 1).await;
        assert_eq!((&only["count"], &only["workflows"]["orders"]), (&json!(1), &json!(3)));

        // Page by page: all steps of a job are on one page.
        let (mut paged, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = api.get_json(&format!("/api/inbox?limit=1{cursor}")).await;
            paged.extend(page["steps"].as_array().expect("a list").clone());
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(json!(paged), rest["steps"]);

        // A paused job still asks; one that is over asks nobody.
        api.post(&format!("/api/job/{plain}/pause"), "").await;
        inbox(&api, "workflow=plain", 1).await;
        api.post(&format!("/api/job/{order}/cancel"), "").await;
        let rest = inbox(&api, "", 1).await;
        assert_eq!(rest["steps"][0]["job"], plain);

        for (query, status) in [
            ("workflow=plane", StatusCode::NOT_FOUND),
            ("vhost=x", StatusCode::BAD_REQUEST),
            ("limit=0", StatusCode::BAD_REQUEST),
            ("cursor=7", StatusCode::BAD_REQUEST),
        ] {
            let refused = api.get(&format!("/api/inbox?{query}"), &[]).await;
            assert_eq!(refused.status, status, "{query}");
        }
    });
}

#[test]
fn the_inbox_is_the_same_after_a_restart_also_where_memory_is_short() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, other) = (folder.path().to_owned(), folder.path().to_owned());
    actix_web::rt::System::new().block_on(async move {
        let manager = TestManager::with(WORKFLOWS).folder(&path).await;
        let api = Api::new(&manager).await;
        api.create_job("orders", r#"{"title":"one","order":1,"list":[1,2]}"#).await;
        api.create_job("orders", r#"{"title":"two","order":2,"list":[1]}"#).await;
        let before = inbox(&api, "", 7).await;
        manager.stop().await;
        for memory in [None, Some(1)] {
            let setup = TestManager::with(WORKFLOWS).folder(&other);
            let again = setup
                .set(|settings| settings.limits.jobs_bytes_max = memory.unwrap_or(1 << 30))
                .await;
            let api = Api::new(&again).await;
            if memory.is_none() {
                let at_once = api.get_json("/api/inbox").await;
                assert_eq!(at_once, before, "whether the actors have run or not");
            }
            assert_eq!(inbox(&api, "", 7).await, before);
            again.stop().await;
        }
    });
}

#[test]
fn a_job_that_cannot_be_read_costs_the_inbox_its_steps_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    actix_web::rt::System::new().block_on(async move {
        let manager = TestManager::with(WORKFLOWS).folder(&path).await;
        let api = Api::new(&manager).await;
        let mut jobs = Vec::new();
        for _ in 0..2 {
            jobs.push(api.create_job("plain", "{}").await);
        }
        inbox(&api, "", 2).await;
        manager.stop().await;
        // There is no memory for both: one stays in the journal.
        let setup = TestManager::with(WORKFLOWS).folder(&path);
        let manager = setup.set(|settings| settings.limits.jobs_bytes_max = 1).await;
        let api = Api::new(&manager).await;
        let is_at_rest =
            |id: &String| manager.core().routes.is_passivated(id.parse().expect("an id"));
        poll(|| jobs.iter().any(is_at_rest)).await;
        let number = 1 + jobs.iter().position(is_at_rest).expect("one is");
        let change = |sql: &str| {
            let client = Connection::open(path.join("j.db")).expect("opens");
            client.execute_batch(sql).expect(sql);
        };
        let of_it = format!("WHERE job = {number}");
        change(&format!("UPDATE entries SET body = 'x' || body {of_it}"));
        let rest = inbox(&api, "", 1).await;
        assert_eq!((&rest["unreadable"], &rest["count"]), (&json!(1), &json!(2)));
        assert_eq!(rest["steps"][0]["job"], *jobs[2 - number]);
        change(&format!("UPDATE entries SET body = substr(body, 2) {of_it}"));
        assert_eq!(inbox(&api, "", 2).await["unreadable"], 0);
        manager.stop().await;
    });
}

#[test]
fn a_step_that_waits_for_its_next_attempt_asks_nobody() {
    let workflows = "
workflows:
  - name: human
    steps: [ { name: sign, external: true, retry: { attempts: 2, backoff: 1h, maxBackoff: 1h } } ]
";
    TestManager::with(workflows).serve(|api| async move {
        let job = api.create_job("human", "{}").await;
        assert_eq!(inbox(&api, "", 1).await["count"], 1);
        api.post(&format!("/api/job/{job}/step/sign?type=error"), r#"{"error":"later"}"#).await;
        let waits = inbox(&api, "", 0).await;
        assert_eq!((&waits["count"], &waits["workflows"]), (&json!(0), &json!({})));
        let view = api.get_json(&format!("/api/job/{job}")).await;
        assert_eq!(view["steps"][0]["state"], "running", "it has another attempt");
    });
}

#[test]
fn a_page_of_the_inbox_ends_where_it_has_many_steps() {
    let names: Vec<String> =
        (0..1_000).map(|number| format!("{{ name: s{number}, external: true }}")).collect();
    let workflows = format!("workflows: [ {{ name: many, steps: [ {} ] }} ]", names.join(", "));
    TestManager::with(&workflows).serve(|api| async move {
        for _ in 0..3 {
            api.create_job("many", "{}").await;
        }
        let are_all = |page: &Value| page["count"] == 3_000;
        let first = api.until("/api/inbox", are_all).await;
        let len = |page: &Value| page["steps"].as_array().map(Vec::len);
        assert_eq!(len(&first), Some(2_000), "two jobs, and the third is on the next page");
        let next = first["next"].as_str().expect("a cursor");
        let rest = api.get_json(&format!("/api/inbox?cursor={next}")).await;
        assert_eq!((len(&rest), rest.get("next")), (Some(1_000), None));
    });
}
