//! Why jobs failed: grouped over jobs and child jobs, and found and operated on by reason.

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use support::api::Api;
use support::manager::TestManager;
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::WorkerError;

const WORKFLOWS: &str = "
workflows:
  - name: orders
    steps:
      - { name: split }
      - { name: lines, task: line, depends: [ split ] }
    tasks:
      - { name: line, itemListKey: lines, tolerate: 100%, steps: [ { name: price } ] }
  - name: plain
    steps: [ { name: price }, { name: last, depends: [ price ] } ]
";

/// Fails, and says which article it does not know.
fn price(message: &Publication) -> Result<bytes::Bytes, WorkerError> {
    let body = message.body.to_bytes();
    let input: Value = serde_json::from_slice(&body).expect("JSON");
    let article = input.get("line").or_else(|| input.get("article")).cloned().unwrap_or_default();
    Err(format!("no article {article} on <b>").into())
}

async fn reasons(api: &Api, query: &str) -> Vec<Value> {
    let answer = api.get_json(&format!("/api/reasons?{query}")).await;
    answer["reasons"].as_array().cloned().expect("a list")
}

async fn found(api: &Api, query: &str) -> Vec<String> {
    let found = api.get_json(&format!("/api/jobs/search?count=true&{query}")).await;
    let jobs = found["jobs"].as_array().expect("a list");
    assert_eq!(found["count"], jobs.len(), "{query}");
    jobs.iter().map(|job| job["job"].as_str().expect("an id").to_owned()).collect()
}

async fn until_all_ended(api: &Api, count: usize) {
    let are_all = |found: &Value| found["jobs"].as_array().is_some_and(|jobs| jobs.len() == count);
    api.until("/api/jobs/search?state=completed,failed", are_all).await;
}

#[test]
fn failures_are_grouped_over_jobs_and_child_jobs_and_lead_to_them() {
    let manager = TestManager::with(WORKFLOWS).echo(["split"]).worker("price", price);
    manager.serve(|api| async move {
        assert_eq!(api.get_json("/api/reasons").await, json!({ "failures": 0, "reasons": [] }));
        let order = api.create_job("orders", r#"{"lines":[7,8,9]}"#).await;
        let first = api.create_job("plain", r#"{"article":17}"#).await;
        let second = api.create_job("plain", r#"{"article":4711}"#).await;
        let other = api.create_job("plain", r#"{"article":"x"}"#).await;
        until_all_ended(&api, 4).await;

        let answer = api.get_json("/api/reasons").await;
        assert_eq!((&answer["failures"], answer.get("failuresIsMinimum")), (&json!(6), None));
        let all = reasons(&api, "").await;
        let summary = |group: &Value| {
            let keys = ["reason", "workflow", "count", "children"];
            Value::from(keys.map(|key| group[key].clone()).to_vec())
        };
        let text = "step \"price\": no article # on <b>";
        assert_eq!(
            all.iter().map(summary).collect::<Vec<_>>(),
            [
                json!([text, "orders", 3, 3]),
                json!([text, "plain", 2, 0]),
                json!(["step \"price\": no article \"…\" on <b>", "plain", 1, 0]),
            ]
        );
        let id = all[1]["reasonId"].as_str().expect("an id");
        assert_eq!(all[0]["reasonId"], id, "one pattern, one id");
        assert_eq!(all[1]["job"], *second, "the newest");
        let example = all[1]["example"].as_str().expect("a text");
        assert!(example.contains("no article 4711 on <b>"), "{example}");
        assert!(all[1]["first"].as_str() <= all[1]["last"].as_str(), "{}", all[1]);
        assert_eq!(reasons(&api, "workflow=plain").await.len(), 2);
        assert_eq!(reasons(&api, "endedBefore=1d").await.len(), 0);
        assert_eq!(reasons(&api, "workflow=plain&endedAfter=1d").await.len(), 2);

        let of_id = format!("reasonId={id}");
        assert_eq!(found(&api, &of_id).await, [&*second, &first, &order], "the order's items");
        assert_eq!(found(&api, &format!("{of_id}&state=failed")).await, [&*second, &first]);
        assert_eq!(found(&api, &format!("{of_id}&workflow=orders")).await, [&*order]);
        let items = format!("{of_id}&parent={order}");
        assert_eq!(found(&api, &items).await.len(), 3, "of its child jobs");

        for (path, status, problem) in [
            ("/api/reasons?workflow=plan", 404, "unknown workflow plan; did you mean"),
            ("/api/reasons?vhost=v", 400, "workflow"),
            ("/api/reasons?endedAfter=x", 400, "endedAfter is"),
            ("/api/jobs/search?reasonId=7", 400, "expected the id of a reason: 16 hex digits"),
        ] {
            let refused = api.get(path, &[]).await;
            assert_eq!(refused.status, StatusCode::from_u16(status).expect("a status"), "{path}");
            assert!(refused.detail().contains(problem), "{path}: {}", refused.detail());
        }

        let bulk = format!("/api/jobs/cancel?{of_id}&reason=gone&dryRun=true");
        assert_eq!(api.post(&bulk, "").await.json()["matched"], 3, "a filter is enough");
        let bulk = format!("/api/jobs/retry?{of_id}&state=failed&reason=mended");
        let done = api.post(&bulk, "").await.json();
        assert_eq!((&done["matched"], &done["done"]), (&json!(2), &json!(2)), "{done}");
        // They fail once more, as all that did is grouped again.
        until_all_ended(&api, 4).await;
        let is_same = |answer: &Value| answer["failures"] == 6;
        api.until("/api/reasons", is_same).await;
        assert_ne!(other, first);
    });
}
