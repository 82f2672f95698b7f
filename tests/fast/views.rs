//! What the API shows of a job to those who follow it: the light view, the result, the stream
//! without child jobs.

use actix_web::http::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;
use support::api::Api;
use support::manager::TestManager;
use support::waits::until_async;
use workflow_manager::bus::embedded::Workers;
use workflow_manager::clock;
use workflow_manager::settings::{DurationSetting, Settings};

const FAN: &str = "
workflows:
  - name: fan
    steps:
      - name: each
        task: piece
      - name: last
        depends: [ each ]
    tasks:
      - name: piece
        itemListKey: items
        steps: [ { name: work } ]
";

const ID: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bb";

async fn create(api: &Api, items: usize) {
    let items: Vec<String> = (0..items).map(|item| format!("payload-{item}")).collect();
    let message = json!({ "items": items }).to_string();
    api.create_job(&format!("fan?id={ID}"), &message).await;
}

/// Completes a step by hand, as soon as it runs.
async fn complete(api: &Api, job: &str, step: &str, output: &Value) {
    api.post_until_accepted(&format!("/api/job/{job}/step/{step}"), &output.to_string()).await;
}

/// The ids of the child jobs, as soon as there are so many.
async fn children(api: &Api, count: usize) -> Vec<String> {
    let is_whole = |page: &Value| page["children"].as_array().map(Vec::len) == Some(count);
    let page = api.until(&format!("/api/job/{ID}/children?limit=10000"), is_whole).await;
    let rows = page["children"].as_array().expect("a list").iter();
    rows.map(|row| row["job"].as_str().expect("an id").to_owned()).collect()
}

/// The light view of the fan-out, as soon as `fits` says so of its counts.
async fn light(api: &Api, fits: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/api/job/{ID}?view=light");
    api.until(&path, |view| fits(&view["steps"][0]["children"])).await
}

#[test]
fn the_light_view_counts_child_jobs_and_has_no_ids_and_no_payloads() {
    TestManager::with(FAN).serve(|api| async move {
        create(&api, 5).await;
        let children = children(&api, 5).await;
        complete(&api, &children[0], "work", &json!({ "item": "done-payload" })).await;
        api.post(&format!("/api/job/{}/cancel", children[1]), "").await;
        let view = light(&api, |counts| counts["failed"] == 1 && counts["completed"] == 1).await;
        assert_eq!((&view["uuid"], &view["state"]), (&json!(ID), &json!("failed")));
        let counts = &view["steps"][0]["children"];
        // The job has failed: what was under way was cut off, and runs no more.
        for (key, items) in
            [("items", 5), ("completed", 1), ("failed", 1), ("cancelled", 3), ("running", 0)]
        {
            assert_eq!(counts[key], items, "{key}: {counts}");
        }
        assert_eq!(view["steps"][1]["name"], "last");
        assert!(view["entries"].as_u64().is_some_and(|entries| entries >= 5), "{view}");
        for key in ["running", "completed"] {
            assert!(view.get(key).is_none(), "{view}");
        }
        let text = view.to_string();
        assert!(!text.contains("payload"), "{text}");
        // A failure names the child job that it came from, and no other.
        for child in children.iter().filter(|child| **child != children[1]) {
            assert!(!text.contains(child), "{text}");
        }
        let wrong = api.get(&format!("/api/job/{ID}?view=full"), &[]).await;
        assert_eq!(
            (wrong.status, wrong.detail().as_str()),
            (StatusCode::BAD_REQUEST, "view is \"full\", expected light or whole")
        );
    });
}

#[test]
fn the_light_view_is_as_large_for_three_thousand_items_as_for_three() {
    let mut sizes = Vec::new();
    for items in [3, 3_000] {
        TestManager::with(FAN).serve(|api| {
            let sizes = &mut sizes;
            async move {
                create(&api, items).await;
                light(&api, |counts| counts["started"] == items).await;
                let whole = api.get(&format!("/api/job/{ID}"), &[]).await.body.len();
                let light = api.get(&format!("/api/job/{ID}?view=light"), &[]).await.body.len();
                assert!(whole > items * 36, "the whole view names every child job");
                sizes.push(light);
            }
        });
    }
    assert!(sizes[1] < sizes[0] + 64, "some digits more, and no more: {sizes:?}");
}

#[test]
fn the_light_view_of_a_job_under_way_reads_no_journal_and_of_an_ended_one_is_the_same() {
    let change = |settings: &mut Settings| {
        settings.http.reads_wait = DurationSetting(Duration::from_millis(20))
    };
    TestManager::with(FAN).set(change).serve(|api| async move {
        let common = api.state();
        create(&api, 1).await;
        let child = children(&api, 1).await.remove(0);
        let places = common.budgets.reads.try_acquire(usize::MAX).expect("free");
        let path = format!("/api/job/{ID}");
        assert_eq!(api.get(&path, &[]).await.status, StatusCode::SERVICE_UNAVAILABLE);
        let live = api.get(&format!("{path}?view=light"), &[]).await;
        assert_eq!(live.status, StatusCode::OK);
        drop(places);

        let result = format!("{path}/result");
        let early = api.get(&result, &[]).await;
        assert_eq!(
            (early.status, early.detail()),
            (
                StatusCode::CONFLICT,
                format!("job {ID} is running: only a completed job has a result")
            )
        );
        complete(&api, &child, "work", &json!({ "item": 1 })).await;
        complete(&api, ID, "last", &json!({ "n": 1 })).await;
        let ended = light(&api, |counts| counts["completed"] == 1).await;
        let keys = |view: &Value| {
            let mut keys: Vec<String> =
                view.as_object().expect("an object").keys().cloned().collect();
            keys.retain(|key| key != "ended");
            keys
        };
        assert_eq!(keys(&ended), keys(&live.json()));
        assert_eq!((&ended["state"], ended["ended"].is_string()), (&json!("completed"), true));
        let result = api.get(&result, &[]).await;
        assert_eq!(result.body, br#"{"n":1}"#);
    });
}

#[test]
fn a_stream_without_child_jobs_has_the_jobs_own_events_alone() {
    TestManager::with(FAN).serve(|api| async move {
        create(&api, 2).await;
        let children = children(&api, 2).await;
        let path = format!("/api/job/{ID}/events?children=none");
        let stream = actix_rt::spawn({
            let api = api.clone();
            async move { api.get(&path, &[]).await }
        });
        let whole = actix_rt::spawn({
            let api = api.clone();
            async move { api.get(&format!("/api/job/{ID}/events?children=all"), &[]).await }
        });
        until_async("the streams are open", async || {
            api.get("/metrics", &[]).await.text().contains("workflow_event_streams 2\n")
        })
        .await;
        for child in children {
            complete(&api, &child, "work", &json!({ "item": 1 })).await;
        }
        complete(&api, ID, "last", &json!({})).await;
        let names = |body: Vec<u8>| -> Vec<String> {
            let text = String::from_utf8(body).expect("text");
            let lines = text.lines().filter_map(|line| line.strip_prefix("event: "));
            lines.map(str::to_owned).collect()
        };
        let own = names(stream.await.expect("a stream").body);
        assert_eq!(own, ["step.completed", "step.running", "step.completed", "job.completed"]);
        let all = names(whole.await.expect("a stream").body);
        assert_eq!(all.len(), own.len() + 2 * 2, "{all:?}");
        let wrong = api.get(&format!("/api/job/{ID}/events?children=some"), &[]).await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    });
}

#[test]
fn a_stream_with_counts_tells_how_the_child_jobs_stand_and_nothing_of_each() {
    const ITEMS: usize = 300;
    TestManager::with(FAN)
        .workers(Workers::new().with_worker("work", 4, |_| {
            std::thread::sleep(Duration::from_millis(10));
            Ok(r#"{"item":1}"#.into())
        }))
        .serve(|api| async move {
            let common = api.state();
            let path = format!("/api/job/{ID}");
            let begun = clock::timer_now();
            create(&api, ITEMS).await;
            let stream = actix_rt::spawn({
                let (api, path) = (api.clone(), format!("{path}/events?children=counts"));
                async move { api.get(&path, &[]).await }
            });
            let has_ended = |view: &Value| view["steps"][0]["endTime"].is_string();
            api.until(&format!("{path}?view=light"), has_ended).await;
            // The counts that came last are told behind the end of the step.
            actix_rt::time::sleep(Duration::from_millis(600)).await;
            complete(&api, ID, "last", &json!({})).await;
            let most = begun.elapsed().as_millis() / 250 + 2;
            let body = stream.await.expect("a stream").body;
            let text = String::from_utf8(body).expect("text");
            let events: Vec<Value> = text
                .lines()
                .filter_map(|line| line.strip_prefix("data: "))
                .map(|data| serde_json::from_str(data).expect("a CloudEvent"))
                .collect();
            assert!(events.iter().all(|event| event["data"]["job"] == ID), "its own alone: {text}");
            let counts: Vec<&Value> = events
                .iter()
                .filter(|event| event["type"] == "workflow-manager.step.counted")
                .collect();
            assert!((1..=most).contains(&(counts.len() as u128)), "{} of {most}", counts.len());
            let mut ids: Vec<&str> =
                events.iter().map(|event| event["id"].as_str().expect("an id")).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), events.len(), "each id is there once");
            for event in &counts {
                let (data, children) = (&event["data"], &event["data"]["children"]);
                assert_eq!(data["step"], "each", "{event}");
                let of = |key: &str| children[key].as_u64().expect("a number");
                let sum: u64 = ["waiting", "running", "completed", "failed"].map(of).iter().sum();
                assert_eq!((of("items"), sum), (ITEMS as u64, ITEMS as u64), "{event}");
            }
            let last = counts.last().expect("counts");
            assert_eq!(last["data"]["children"]["completed"], ITEMS, "{last}");
            assert!(
                !common.event_hub.has_counting_subscribers(ID.parse().expect("an id")),
                "nobody counts any more"
            );
        });
}
