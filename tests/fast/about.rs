//! What the API tells of the manager itself: its queues, its definitions, how it fares, its
//! settings.

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;
use support::api::Api;
use support::manager::TestManager;
use support::waits::until_async;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::settings::{Secret, Settings};

const WORKFLOWS: &str = "
workflows:
  - name: fan
    steps:
      - { name: split, queue: shared }
      - { name: sign, external: true }
      - { name: each, task: piece, depends: [ split ] }
    tasks:
      - { name: piece, itemListKey: items, steps: [ { name: work, queue: shared }, \
          { name: wrap } ] }
  - { name: other, steps: [ { name: wrap } ] }
";

#[test]
fn each_queue_is_told_once_with_what_it_holds_and_who_uses_it() {
    let workers = Workers::new().with_worker("wrap", 3, |_| Ok("{}".into()));
    TestManager::with(WORKFLOWS).workers(workers).serve(|api| async move {
        let created = api.post("/api/workflow/fan", "{}").await;
        assert_eq!(created.status, StatusCode::CREATED);
        // The message leaves behind the commit, and a look is kept for some seconds.
        let has_come = |told: &Value| told["queues"][0]["messages"] == 1;
        let told = api.until("/api/queues", has_come).await;
        assert!(told["looked"].is_string(), "{told}");
        let mut queues = told["queues"].clone();
        queues[0].as_object_mut().expect("a queue").remove("oldest");
        assert_eq!(
            queues,
            json!([
                {"queue": "shared", "vhost": "", "bus": "embedded",
                 "messages": 1, "consumers": 0, "unacknowledged": 0,
                 "usedBy": [{"workflow": "fan", "step": "split"},
                            {"workflow": "fan", "task": "piece", "step": "work"}]},
                {"queue": "wrap", "vhost": "", "bus": "embedded",
                 "messages": 0, "consumers": 3, "unacknowledged": 0,
                 "usedBy": [{"workflow": "fan", "task": "piece", "step": "wrap"},
                            {"workflow": "other", "step": "wrap"}]},
            ])
        );
        // One look serves all who ask within a while.
        let looked = async || api.get_json("/api/queues").await["looked"].clone();
        until_async("two get the same look", async || looked().await == looked().await).await;
    });
}

#[test]
fn the_definitions_of_a_workflow_are_told_with_the_jobs_that_run_them() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let definitions = async |workflow: &str| {
            api.get_json(&format!("/api/definitions?workflow={workflow}")).await["definitions"]
                .clone()
        };
        let unused = definitions("fan").await;
        assert_eq!(
            unused,
            json!([{"hash": unused[0]["hash"], "loaded": true, "running": 0, "ended": 0}])
        );
        for end in [false, true, true] {
            let created = api.post("/api/workflow/fan", "{}").await.json();
            if end {
                let path = format!("/api/job/{}/cancel", created["id"].as_str().expect("an id"));
                assert_eq!(api.post(&path, "").await.status, StatusCode::OK);
            }
        }
        let used = definitions("fan").await;
        assert_eq!(used.as_array().map(Vec::len), Some(1), "{used}");
        assert_eq!((&used[0]["hash"], &used[0]["loaded"]), (&unused[0]["hash"], &json!(true)));
        assert_eq!((&used[0]["running"], &used[0]["ended"]), (&json!(1), &json!(2)));
        assert!(used[0]["lastEnded"].is_string(), "{used}");
        let other = definitions("other").await;
        assert_ne!(other[0]["hash"], used[0]["hash"]);
        assert_eq!(other[0]["running"], 0);
        let hash = used[0]["hash"].as_str().expect("a hash");
        assert_eq!(api.get_json(&format!("/api/definition/{hash}")).await["name"], "fan");
        for (path, said) in [
            ("/api/definitions", "workflow=NAME is missing"),
            ("/api/definitions?workflow=fun", "unknown workflow fun; did you mean \"fan\"?"),
        ] {
            assert_eq!(api.get(path, &[]).await.detail(), said);
        }
    });
}

#[test]
fn the_manager_tells_how_it_fares_and_its_settings_without_their_secrets() {
    let change = |settings: &mut Settings| settings.http.token = Secret("for my eyes".to_owned());
    TestManager::with(WORKFLOWS).set(change).serve(|api| async move {
        let token = [("authorization", "Bearer for my eyes")];
        for path in ["/api/manager", "/api/settings", "/api/queues", "/api/definitions"] {
            assert_eq!(api.get(path, &[]).await.status, StatusCode::UNAUTHORIZED, "{path}");
        }
        let told = api.get("/api/manager", &token).await.json();
        assert_eq!(
            (&told["version"], &told["ready"]),
            (&json!(env!("CARGO_PKG_VERSION")), &json!(true))
        );
        let checks = told["checks"].as_array().expect("a list");
        assert!(checks.iter().all(|check| check["ok"] == true), "{told}");
        assert!(checks.iter().any(|check| check["name"] == "journal"), "{told}");
        assert!(
            told["journal"]["file"].as_str().is_some_and(|file| file.ends_with("j.db")),
            "{told}"
        );
        assert!(told["journal"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{told}");
        assert!(told["uptime"].as_u64().is_some_and(|uptime| uptime > 0), "{told}");
        let actors = told["actors"].as_array().expect("a list");
        let journal = actors.iter().find(|actor| actor["kind"] == "journal").expect("its actor");
        assert!(journal["mailboxMax"].is_u64() && journal["restarts"] == 0, "{journal}");

        let settings = api.get("/api/settings", &token).await;
        let text = String::from_utf8(settings.body.clone()).expect("text");
        assert!(!text.contains("my eyes"), "{text}");
        assert_eq!(settings.json()["http"]["listen"], "127.0.0.1:8088");

        let listed = api.get("/api/settings?sources=true", &token).await;
        let text = String::from_utf8(listed.body.clone()).expect("text");
        assert!(!text.contains("my eyes"), "{text}");
        let listed = listed.json();
        let listed = listed.as_array().expect("a list");
        let listen = listed.iter().find(|setting| setting["name"] == "http.listen");
        let wanted = json!({"name": "http.listen", "value": "127.0.0.1:8088", "source": "default"});
        assert_eq!(listen, Some(&wanted));
        assert!(listed.iter().any(|setting| setting["name"] == "events.webhook.timeout"));
        let wrong = api.get("/api/settings?sources=all", &token).await;
        assert_eq!(wrong.detail(), "sources is \"all\", expected true or false");
    });
}

#[test]
fn the_jobs_of_each_workflow_are_counted_by_state_and_minute() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let plain = api.get_json("/api/workflows").await;
        assert!(plain[0].get("stats").is_none(), "{plain}");
        let mut ids = Vec::new();
        for _ in 0..3 {
            let created = api.post("/api/workflow/fan", "{}").await.json();
            ids.push(created["id"].as_str().expect("an id").to_owned());
        }
        let post = async |path: String, body: &str| {
            let done = api.post(&path, body).await;
            assert_eq!(done.status, StatusCode::OK, "{path}");
        };
        post(format!("/api/job/{}/step/sign?type=error", ids[1]), r#"{"error":"no pen"}"#).await;
        post(format!("/api/job/{}/cancel", ids[2]), "").await;
        let told = api.get_json("/api/workflows?stats=10m").await;
        let stats = &told[0]["stats"];
        assert_eq!(stats["states"], json!({"running": 1, "failed": 1, "cancelled": 1}));
        let counts = ["created", "completed", "failed", "cancelled"].map(|key| stats[key].as_u64());
        assert_eq!(counts, [Some(3), Some(0), Some(1), Some(1)], "{stats}");
        assert_eq!(stats["perMinute"].as_array().map(Vec::len), Some(10));
        assert_eq!((&stats["oldestRunning"]["job"], stats.get("p50")), (&json!(ids[0]), None));
        let failed = &stats["lastFailed"];
        assert_eq!(failed["job"], json!(ids[1]));
        assert!(failed["reason"].as_str().is_some_and(|reason| reason.contains("no pen")));
        let other = &told[1]["stats"];
        assert_eq!((&other["states"], &other["created"]), (&json!({}), &json!(0)));
        for wrong in ["0s", "25h", "much", "30s"] {
            let refused = api.get(&format!("/api/workflows?stats={wrong}"), &[]).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{wrong}");
            assert!(refused.detail().contains("from 1m to 24h"), "{}", refused.detail());
        }
    });
}

#[test]
fn a_job_that_is_retried_has_failed_once_at_most_and_not_at_all_once_it_is_mended() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let post = async |path: &str, body: &str| {
            let done = api.post(path, body).await;
            assert!(done.status.is_success(), "{path}");
            done.json()
        };
        let failed = async || {
            let told = api.get_json("/api/workflows?stats=1h").await;
            let stats = told[0]["stats"].clone();
            let minutes = stats["perMinute"].as_array().expect("a list");
            let in_minutes: u64 = minutes.iter().filter_map(|minute| minute[1].as_u64()).sum();
            assert_eq!(stats["failed"].as_u64(), Some(in_minutes), "{stats}");
            in_minutes
        };
        let id = post("/api/workflow/fan", "{}").await["id"].as_str().expect("id").to_owned();
        let (fail, retry) =
            (format!("/api/job/{id}/step/sign?type=error"), format!("/api/job/{id}/retry"));
        for _ in 0..3 {
            post(&fail, r#"{"error":"no pen"}"#).await;
            assert_eq!(failed().await, 1, "however often it was tried");
            post(&retry, "").await;
            assert_eq!(failed().await, 0, "it goes on");
        }
    });
}

#[test]
fn each_queue_tells_which_step_has_waited_longest() {
    TestManager::with(WORKFLOWS).serve(|api| async move {
        let mut ids = Vec::new();
        for _ in 0..3 {
            let created = api.post("/api/workflow/fan", "{}").await.json();
            ids.push(created["id"].as_str().expect("an id").to_owned());
        }
        let oldest = async |job: &str| {
            let is_told = |told: &Value| told["queues"][0]["oldest"]["job"] == job;
            let told = api.until("/api/queues", is_told).await;
            assert!(told["queues"][1].get("oldest").is_none(), "{told}");
            told["queues"][0]["oldest"].clone()
        };
        let first = oldest(&ids[0]).await;
        let job = api.get_json(&format!("/api/job/{}", ids[0])).await;
        let step =
            job["steps"].as_array().expect("a list").iter().find(|step| step["name"] == "split");
        assert_eq!(
            (&first["step"], &first["since"]),
            (&json!("split"), &step.expect("there")["attemptStartTime"])
        );
        let cancel = format!("/api/job/{}/cancel", ids[0]);
        assert_eq!(api.post(&cancel, "").await.status, StatusCode::OK);
        oldest(&ids[1]).await;
    });
}

#[test]
fn what_became_of_jobs_before_a_restart_is_counted_too_and_once() {
    let folder = tempfile::tempdir().expect("a folder");
    actix_rt::System::new().block_on(async {
        let counts = |stats: &Value| {
            ["created", "completed", "failed", "cancelled"].map(|key| stats[key].as_u64())
        };
        let post = async |api: &Api, path: &str, body: &str| {
            let done = api.post(path, body).await;
            assert!(done.status.is_success(), "{path}");
            done.json()["id"].as_str().expect("an id").to_owned()
        };
        for round in 1..=2 {
            let told = TestManager::with(WORKFLOWS)
                .folder(folder.path())
                .workers(Workers::new().with_worker("wrap", 1, |_| Ok("{}".into())))
                .serve_here(|api| async move {
                    let id = post(&api, "/api/workflow/fan", "{}").await;
                    post(&api, &format!("/api/job/{id}/cancel"), "").await;
                    let id = post(&api, "/api/workflow/fan", "{}").await;
                    let fail = format!("/api/job/{id}/step/sign?type=error");
                    post(&api, &fail, r#"{"error":"no pen"}"#).await;
                    post(&api, "/api/workflow/other", "{}").await;
                    let is_all = |told: &Value| {
                        let (two, one) = (Some(2 * round), Some(round));
                        counts(&told[0]["stats"]) == [two, Some(0), one, one]
                            && counts(&told[1]["stats"]) == [one, one, Some(0), Some(0)]
                    };
                    let told = api.until("/api/workflows?stats=1h", is_all).await;
                    // Nothing is counted twice.
                    actix_rt::time::sleep(Duration::from_millis(100)).await;
                    let later = api.get_json("/api/workflows?stats=1h").await;
                    assert_eq!(counts(&later[0]["stats"]), counts(&told[0]["stats"]));
                    told
                })
                .await;
            assert!(told[1]["stats"]["p50"].is_u64(), "{told}");
        }
    });
}
