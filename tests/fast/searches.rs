//! Searching jobs over HTTP.

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use support::api::Api;
use support::manager::TestManager;

const WORKFLOWS: &str = "
workflows:
  - { name: one, steps: [ { name: sign, external: true } ] }
  - { name: other, steps: [ { name: sign, external: true } ] }
";

fn id(digit: u32) -> String {
    format!("{digit}0000000-0000-4000-8000-000000000000")
}

async fn found(api: &Api, query: &str) -> Value {
    api.get_json(&format!("/api/jobs/search?{query}")).await
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
    TestManager::with(WORKFLOWS).serve(|api| async move {
        for (workflow, digits) in [("one", [1, 2]), ("other", [3, 4])] {
            for digit in digits {
                let path = format!("/api/workflow/{workflow}?id={}", id(digit));
                let created = api.post(&path, "{}").await;
                assert_eq!(created.status, StatusCode::CREATED);
            }
        }
        for (digit, call) in [(1, "/step/sign?type=error"), (2, "/cancel"), (3, "/step/sign")] {
            let path = format!("/api/job/{}{call}", id(digit));
            let body = if digit == 1 { r#"{"error":"no <b>pen</b>"}"# } else { "{}" };
            let done = api.post(&path, body).await;
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
        let dry = api.post("/api/jobs/delete?id=3000&dryRun=true", "").await;
        assert_eq!((ids(&dry.json()), dry.json()["matched"].as_u64()), (vec![&*all[2]], Some(1)));
    });
}

const FAN: &str = "
workflows:
  - name: fan
    steps:
      - { name: begin, external: true }
      - { name: each, task: piece, depends: [ begin ] }
      - { name: last, external: true, depends: [ each ] }
    tasks:
      - { name: piece, itemListKey: items, tolerate: 5, steps: [ { name: sign, external: true }, \
          { name: check, external: true } ] }
";

/// What a search finds, once `fits` says so.
async fn found_in_time(api: &Api, query: &str, fits: impl Fn(&Value) -> bool) -> Value {
    api.until(&format!("/api/jobs/search?{query}"), fits).await
}

#[test]
#[allow(clippy::too_many_lines, reason = "one list of searches")]
fn the_child_jobs_of_a_job_are_searched_in_their_order_with_the_steps_that_are_done() {
    TestManager::with(FAN).serve(|api| async move {
        let path = format!("/api/workflow/fan?id={}", id(1));
        let body = json!({ "items": [0, 1, 2, 3, 4] }).to_string();
        let created = api.post(&path, &body).await;
        assert_eq!(created.status, StatusCode::CREATED);
        let steps = |told: &Value| told["jobs"][0]["steps"].clone();
        let told = found_in_time(&api, "", |told| steps(told)["done"].is_u64()).await;
        assert_eq!(steps(&told), json!({ "done": 0, "total": 3 }));
        let post = async |job: &str, call: &str, body: &str| {
            let path = format!("/api/job/{job}{call}");
            let done = api.post(&path, body).await;
            assert_eq!(done.status, StatusCode::OK, "{call}: {:?}", done.body);
        };
        post(&id(1), "/step/begin", &body).await;
        assert_eq!(steps(&found(&api, "").await), json!({ "done": 1, "total": 3 }));

        let of_job = format!("parent={}", id(1));
        let all = format!("{of_job}&order=oldest");
        let children = found_in_time(&api, &all, |told| ids(told).len() == 5).await;
        let places: Vec<_> = children["jobs"].as_array().expect("a list").iter().collect();
        for (item, row) in places.iter().enumerate() {
            assert_eq!((&row["step"], &row["item"]), (&json!("each"), &json!(item)), "{row}");
        }
        let children: Vec<String> = ids(&children).into_iter().map(str::to_owned).collect();
        assert!(ids(&found(&api, &of_job).await).into_iter().rev().eq(children.iter()));
        for order in ["oldest", "newest"] {
            let (mut seen, mut cursor) = (Vec::new(), String::new());
            loop {
                let page = found(&api, &format!("{of_job}&order={order}&limit=2{cursor}")).await;
                assert!(ids(&page).len() <= 2);
                seen.extend(ids(&page).into_iter().map(str::to_owned));
                let Some(next) = page["next"].as_str() else { break };
                cursor = format!("&cursor={next}");
            }
            if order == "newest" {
                seen.reverse();
            }
            assert_eq!(seen, children, "{order}: page by page");
        }

        post(&children[1], "/step/sign", "{}").await;
        post(&children[3], "/step/sign?type=error", r#"{"error":"no pen"}"#).await;
        post(&children[4], "/cancel", "").await;
        let told = found(&api, &format!("{all}&count=true")).await;
        let row = |item: usize| told["jobs"][item].clone();
        assert_eq!(row(1)["steps"], json!({ "done": 1, "total": 2 }), "one of two");
        assert_eq!(row(3)["steps"], json!({ "total": 2 }), "only its record tells more");
        assert!(row(3)["reason"].as_str().is_some_and(|reason| reason.contains("no pen")));
        assert_eq!(told["count"], 5);
        for (state, items) in [("failed,cancelled", vec![3, 4]), ("running", vec![0, 1, 2])] {
            let told = found(&api, &format!("{all}&state={state}&count=true")).await;
            let wanted: Vec<&str> = items.iter().map(|item| &*children[*item]).collect();
            assert_eq!((ids(&told), told["count"].as_u64()), (wanted, Some(items.len() as u64)));
        }
        let one = found(&api, &format!("{of_job}&id={}", &children[2])).await;
        assert_eq!(ids(&one), [&children[2]]);
        assert!(ids(&found(&api, &format!("parent={}", children[0])).await).is_empty());
        assert!(ids(&found(&api, &format!("{of_job}&cursor=999999")).await).is_empty());
        for (query, code, said) in [
            ("parent=x".to_owned(), StatusCode::BAD_REQUEST, "invalid uuid \"x\""),
            (format!("parent={}", id(9)), StatusCode::NOT_FOUND, "unknown job id 9"),
            (
                format!("{of_job}&workflow=fan&status.begin=COMPLETED"),
                StatusCode::BAD_REQUEST,
                "status.begin is about top-level jobs",
            ),
        ] {
            let wrong = api.get(&format!("/api/jobs/search?{query}"), &[]).await;
            assert_eq!(wrong.status, code, "{query}");
            assert!(wrong.detail().starts_with(said), "{}", wrong.detail());
        }
        let bulk = format!("/api/jobs/cancel?{of_job}");
        let refused = api.post(&bulk, "").await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "no operation in bulk on these");
    });
}
