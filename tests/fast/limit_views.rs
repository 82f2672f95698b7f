//! What the API tells of limits: who holds them, who waits, and for what a step waits.

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use support::api::Api;
use support::manager::TestManager;
use support::waits::until_async;

const WORKFLOWS: &str = "
limits:
  - { name: bank, rate: 1/h, burst: 1 }
  - { name: customer, concurrency: 1, key: job.customer }
workflows:
  - name: calls
    steps: [ { name: call, limit: bank } ]
  - name: orders
    steps: [ { name: pay, limit: customer } ]
";

/// Creates a job, and returns its id.
async fn create(api: &Api, workflow: &str, message: &str) -> String {
    let created = api.post(&format!("/api/workflow/{workflow}"), message).await;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.text());
    created.json()["id"].as_str().expect("an id").to_owned()
}

#[test]
fn limits_are_told_with_who_holds_them_and_who_waits() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let unused = api.get_json("/api/limits").await;
        assert_eq!(unused["limits"][1]["held"], 0);
        assert_eq!(unused["limits"][1]["keys"], json!([]));
        for customer in ["c1", "c1", "c2", "c1"] {
            create(&api, "orders", &json!({ "customer": customer }).to_string()).await;
        }
        let is_told =
            |told: &Value| told["limits"][1]["held"] == 2 && told["limits"][1]["waiting"] == 2;
        let told = api.until("/api/limits", is_told).await;
        assert_eq!(
            told["limits"][1],
            json!({
                "limit": "customer", "vhost": "", "concurrency": 1, "key": "job.customer",
                "held": 2, "waiting": 2, "usedBy": ["orders"],
                "keys": [{"key": "c1", "held": 1, "waiting": 2},
                         {"key": "c2", "held": 1, "waiting": 0}],
            })
        );
        create(&api, "calls", "{}").await;
        let told = api.until("/api/limits", |told| told["limits"][0]["held"] == 1).await;
        let bank = &told["limits"][0];
        assert_eq!((&bank["rate"], &bank["burst"]), (&json!("1/h"), &json!(1)), "{bank}");
        let [key] = &bank["keys"].as_array().expect("a list")[..] else { panic!("{bank}") };
        assert!(key.get("key").is_none() && key["next"].is_string(), "{bank}");
    });
}

#[test]
fn a_limit_is_told_with_all_its_keys_page_by_page() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        for customer in ["c3", "c1", "c2", "c1"] {
            create(&api, "orders", &json!({ "customer": customer }).to_string()).await;
        }
        let is_told = |told: &Value| told["held"] == 3 && told["waiting"] == 1;
        let first = api.until("/api/limits/customer?limit=2", is_told).await;
        assert_eq!(
            first["keys"],
            json!([{"key": "c1", "held": 1, "waiting": 1}, {"key": "c2", "held": 1, "waiting": 0}])
        );
        assert_eq!((&first["next"], &first["limit"]), (&json!("c2"), &json!("customer")));
        let last = api.get_json("/api/limits/customer?limit=2&cursor=c2").await;
        assert_eq!(last["keys"], json!([{"key": "c3", "held": 1, "waiting": 0}]));
        assert_eq!((&last["held"], last.get("next")), (&json!(3), None), "{last}");
        let unknown = api.get("/api/limits/costumer", &[]).await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);
        let text = "no workflow has a limit \"costumer\"; did you mean \"customer\"?";
        assert_eq!(unknown.json()["detail"], text);
        for wrong in ["/api/limits/customer?vhost=v", "/api/limits/customer?limit=0"] {
            assert!(api.get(wrong, &[]).await.status.is_client_error(), "{wrong}");
        }
    });
}

#[test]
fn limits_are_counted_in_the_metrics() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        for customer in ["c1", "c1", "c2"] {
            create(&api, "orders", &json!({ "customer": customer }).to_string()).await;
        }
        let lines = [
            "workflow_limit_held{limit=\"customer\"} 2",
            "workflow_limit_waiting{limit=\"customer\"} 1",
            "workflow_limit_held{limit=\"bank\"} 0",
            "workflow_limit_wait_seconds_count{limit=\"customer\"} 2",
        ];
        // Who was admitted is counted before its job has decided what follows.
        let probe = async || {
            let metrics = api.get("/metrics", &[]).await.text();
            lines.iter().all(|line| metrics.lines().any(|other| other == *line)).then_some(())
        };
        until_async("all lines are in the metrics", probe).await;
    });
}

#[test]
fn a_step_that_waits_for_a_limit_says_so_until_it_is_admitted() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let holder = create(&api, "orders", r#"{"customer":"c1"}"#).await;
        let path = format!("/api/job/{holder}/step/pay");
        let holding = api.until(&path, |told| told["attempt"] == 1).await;
        assert!(holding.get("waitsFor").is_none(), "{holding}");
        let waiter = create(&api, "orders", r#"{"customer":"c1"}"#).await;
        let path = format!("/api/job/{waiter}/step/pay");
        let told = api.until(&path, |told| told.get("waitsFor").is_some()).await;
        assert_eq!(told["state"], "running");
        assert!(told["waitsFor"]["since"].is_string(), "{told}");
        assert_eq!(told["waitsFor"]["limits"], json!([{"limit": "customer", "key": "c1"}]));
        let light = api.get_json(&format!("/api/job/{waiter}?view=light")).await;
        assert_eq!(light["steps"][0]["waitsFor"], told["waitsFor"]);
        let is_known = |told: &Value| told["why"].as_str().is_some_and(|why| why.contains("held"));
        let why = api.until(&format!("/api/job/{waiter}/why"), is_known).await;
        assert_eq!((&why["cause"], &why["step"]), (&json!("limit"), &json!("pay")));
        assert_eq!(
            why["why"],
            "step \"pay\" waits for a place of limit customer for \"c1\": 1 of 1 held, 0 before it"
        );
        // A paused job waits for nobody but its operator.
        assert_eq!(api.post(&format!("/api/job/{waiter}/pause"), "").await.status, StatusCode::OK);
        let is_silent = |told: &Value| told.get("waitsFor").is_none();
        api.until(&path, is_silent).await;
        let resumed = api.post(&format!("/api/job/{waiter}/resume"), "").await;
        assert_eq!(resumed.status, StatusCode::OK);
        api.until(&path, |told| told.get("waitsFor").is_some()).await;
        let cancelled = api.post(&format!("/api/job/{holder}/cancel"), "").await;
        assert_eq!(cancelled.status, StatusCode::OK);
        let told = api.until(&path, is_silent).await;
        assert_eq!((&told["state"], &told["attempt"]), (&json!("running"), &json!(1)), "{told}");
    });
}
