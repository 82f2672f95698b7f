//! Searching jobs over HTTP.

use crate::http::{Api, serving};
use actix_web::http::{Method, StatusCode};
use serde_json::{Value, json};
use workflow_manager::bus::embedded::Workers;

const WORKFLOWS: &str = "
workflows:
  - { name: one, steps: [ { name: sign, external: true } ] }
  - { name: other, steps: [ { name: sign, external: true } ] }
";

fn id(digit: u32) -> String {
    format!("{digit}0000000-0000-4000-8000-000000000000")
}

async fn found(api: &Api, query: &str) -> Value {
    let answer = api.get(&format!("/api/jobs/search?{query}"), &[]).await;
    assert_eq!(answer.status, StatusCode::OK, "{query}");
    answer.json()
}

fn ids(found: &Value) -> Vec<&str> {
    found["jobs"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| row["job"].as_str().expect("an id"))
        .collect()
}

#[test]
fn a_search_combines_states_ids_and_times_and_counts() {
    serving(
        WORKFLOWS,
        Workers::new(),
        |_| {},
        |api, _| async move {
            for (workflow, digits) in [("one", [1, 2]), ("other", [3, 4])] {
                for digit in digits {
                    let path = format!("/api/workflow/{workflow}?id={}", id(digit));
                    let created = api.ask(Method::POST, &path, &[], "{}").await;
                    assert_eq!(created.status, StatusCode::CREATED);
                }
            }
            for (digit, call) in [(1, "/step/sign?type=error"), (2, "/cancel"), (3, "/step/sign")] {
                let path = format!("/api/job/{}{call}", id(digit));
                let body = if digit == 1 { r#"{"error":"no <b>pen</b>"}"# } else { "{}" };
                let done = api.ask(Method::POST, &path, &[], body).await;
                assert_eq!(done.status, StatusCode::OK, "{call}");
            }
            let all = [id(1), id(2), id(3), id(4)];
            assert_eq!(ids(&found(&api, "order=oldest").await), all);
            let newest = found(&api, "").await;
            assert!(ids(&newest).into_iter().rev().eq(all.iter()));
            let first = found(&api, "order=oldest&limit=3&count=true").await;
            assert_eq!((ids(&first).len(), &first["count"]), (3, &json!(4)));
            assert!(first.get("countIsMinimum").is_none(), "{first}");
            let next = first["next"].as_str().expect("there is more");
            assert_eq!(ids(&found(&api, &format!("order=oldest&cursor={next}")).await), all[3..]);

            let over = found(&api, "state=failed,cancelled&order=oldest&count=true").await;
            assert_eq!((ids(&over), &over["count"]), (vec![&*all[0], &*all[1]], &json!(2)));
            let reason = over["jobs"][0]["reason"].as_str().expect("a reason");
            assert!(reason.contains("no <b>pen</b>"), "as it was said: {reason}");
            assert!(newest["jobs"][0].get("reason").is_none(), "it runs");
            let of_one = found(&api, "state=failed,running&workflow=one").await;
            assert_eq!(ids(&of_one), [&all[0]]);
            for prefix in ["3000", "30000000-0000", &all[2]] {
                assert_eq!(ids(&found(&api, &format!("id={prefix}")).await), [&all[2]], "{prefix}");
            }
            assert!(ids(&found(&api, "id=3001").await).is_empty());
            assert_eq!(ids(&found(&api, "endedAfter=1h&order=oldest").await), all[..3]);
            assert!(ids(&found(&api, "endedBefore=1h").await).is_empty());
            for (query, said) in [
                ("state=failed,gone", "state is \"gone\", expected one of"),
                ("state=", "state is \"\", expected one of"),
                ("id=30", "id is \"30\", expected a job's id or its beginning: 4 to 32 hex digits"),
                ("id=wxyz", "id is \"wxyz\", expected"),
                ("order=up", "order is \"up\", expected newest or oldest"),
                ("count=many", "count is \"many\", expected true or false"),
                ("endedAfter=now", "endedAfter is \"now\", expected a time"),
                ("dryRun=true", "unknown parameter \"dryRun\""),
            ] {
                let wrong = api.get(&format!("/api/jobs/search?{query}"), &[]).await;
                assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{query}");
                assert!(wrong.detail().starts_with(said), "{}", wrong.detail());
            }
            let dry = api.ask(Method::POST, "/api/jobs/delete?id=3000&dryRun=true", &[], "").await;
            assert_eq!(
                (ids(&dry.json()), dry.json()["matched"].as_u64()),
                (vec![&*all[2]], Some(1))
            );
        },
    );
}
