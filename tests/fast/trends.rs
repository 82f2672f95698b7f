//! What happened over time is kept in the journal, minute by minute, and told over HTTP.

use crate::alone::alone;
use actix_web::http::StatusCode;
use serde_json::Value;
use std::path::Path;
use support::api::Api;
use support::manager::{Setup, TestManager, echo};
use workflow_manager::actors::manager::{Parts, Threads};
use workflow_manager::actors::trends::TrendRecorder;
use workflow_manager::bus::Publication;
use workflow_manager::bus::embedded::{WorkerError, Workers};
use workflow_manager::clock;
use workflow_manager::engine::Timestamp;
use workflow_manager::load::load_text;
use workflow_manager::telemetry::trends::{MINUTE_NS, TrendSpan, WORKFLOWS_MAX};
use workflow_manager::times::format_rfc3339;

const WORKFLOWS: &str = "
workflows:
  - name: good
    steps: [{name: a}, {name: b, depends: [a]}]
  - name: bad
    steps: [{name: c}]
  - name: waiting
    steps: [{name: d}]";

/// Prepares a manager whose own recorder does not run: it has no thread of its own.
fn start(setup: Setup) -> TestManager {
    let fail = |_: &Publication| Err(WorkerError::from("broken"));
    let workers = Workers::new().with_worker("a", 1, echo).with_worker("b", 1, echo);
    setup.start_on(Threads::Current, Parts::standard(workers.with_worker("c", 1, fail)))
}

fn recorder(manager: &TestManager) -> TrendRecorder {
    TrendRecorder::new(manager.core(), manager.mailboxes(), manager.handle().clone())
}

/// Returns the beginnings of the minutes that ended so many minutes before now.
fn past_minutes() -> impl Fn(u32) -> Timestamp {
    let now = TrendSpan::Hour.bucket_start(clock::now());
    move |minutes| TrendSpan::Hour.buckets_before(now, minutes + 1)
}

async fn run(manager: &TestManager, workflow: &str, jobs: usize) {
    for _ in 0..jobs {
        let job = manager.create_job(workflow, "{}").await;
        manager.until_closed(job).await;
    }
}

async fn trends(manager: &TestManager, query: &str) -> Value {
    Api::new(manager).await.get_json(&format!("/api/trends{query}")).await
}

/// The figures of the bucket that begins at a time; null: a gap.
fn bucket(trends: &Value, start: Timestamp) -> &Value {
    let buckets = trends["buckets"].as_array().expect("buckets");
    let start = format_rfc3339(start);
    let is_it =
        |bucket: &&Value| bucket["start"].as_str().map(|text| &text[..19]) == start.get(..19);
    &buckets.iter().find(is_it).expect("a bucket of the span")["figures"]
}

fn counted(trends: &Value) -> usize {
    let buckets = trends["buckets"].as_array().expect("buckets");
    buckets.iter().filter(|bucket| !bucket["figures"].is_null()).count()
}

#[test]
fn a_stop_records_the_minute_that_has_not_ended() {
    actix_rt::System::new().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let setup = || TestManager::with(WORKFLOWS).folder(folder.path()).echo(["a", "b"]);
        // A stop waits for a disk that is busy only so long.
        let mut total = Value::Null;
        for _ in 0..5 {
            let manager = setup().await;
            run(&manager, "good", 2).await;
            manager.stop().await;
            let manager = setup().await;
            total = trends(&manager, "?span=24h").await["total"].take();
            manager.stop().await;
            if total["completed"] != 0 {
                break;
            }
        }
        assert!(total["completed"] == 2 && total["minutes"].as_u64() > Some(0), "{total}");
        let manager = setup().await;
        let day = trends(&manager, "?span=24h").await;
        assert_eq!(day["total"]["completed"], 2, "it is not counted again: {day}");
        manager.stop().await;
    });
}

#[test]
fn a_restart_loses_nothing_that_was_recorded_and_leaves_a_gap() {
    let folder = tempfile::tempdir().expect("a folder");
    let setup = || TestManager::with(WORKFLOWS).folder(folder.path());
    let minutes_ago = past_minutes();
    let (first, second) = (minutes_ago(9), minutes_ago(3));
    // The end of the system ends the actors at once.
    let job = actix_rt::System::new().block_on(async {
        let manager = start(setup());
        let mut before = recorder(&manager);
        run(&manager, "good", 2).await;
        let job = manager.create_job("waiting", "{}").await;
        assert!(before.record_minute(first).await);
        job
    });
    actix_rt::System::new().block_on(async {
        let manager = start(setup());
        let mut after = recorder(&manager);
        run(&manager, "bad", 1).await;
        run(&manager, "good", 1).await;
        assert!(manager.is_active(job), "it waits");
        assert!(after.record_minute(second).await);
        // What happens until the manager stops belongs to a minute that is recorded already.
        run(&manager, "good", 1).await;
        assert!(after.record_rest(second).await);

        let hour = trends(&manager, "").await;
        assert_eq!((hour["span"].as_str(), hour["bucketSeconds"].as_u64()), (Some("1h"), Some(60)));
        assert_eq!((hour["buckets"].as_array().map(Vec::len), counted(&hour)), (Some(60), 2));
        let (early, late) = (bucket(&hour, first), bucket(&hour, second));
        assert_eq!((&early["created"], &early["completed"]), (&3.into(), &2.into()), "{early}");
        assert_eq!((&early["stepsCompleted"], &early["queued"]), (&4.into(), &1.into()), "{early}");
        assert!(early["stepP50"].as_u64() > Some(0) && early["stepP99"].as_u64() > Some(0));
        assert_eq!((&late["created"], &late["completed"]), (&3.into(), &2.into()), "{late}");
        assert_eq!((&late["failed"], &late["stepsFailed"]), (&1.into(), &1.into()), "{late}");
        for span in ["24h", "7d"] {
            let longer = trends(&manager, &format!("?span={span}")).await;
            let (total, before) = (&longer["total"], &longer["before"]);
            let sum = |what: &str| total[what].as_u64().zip(before[what].as_u64());
            // The two minutes may be in two spans, but hardly are.
            assert_eq!(sum("created"), Some((6, 0)), "{longer}");
            assert_eq!(sum("minutes"), Some((2, 0)), "{longer}");
        }
        let waiting = trends(&manager, "?workflow=waiting").await;
        let (early, late) = (bucket(&waiting, first), bucket(&waiting, second));
        assert_eq!((&early["created"], &late["created"]), (&1.into(), &0.into()), "{waiting}");
        assert_eq!((&early["queued"], &late["queuedMax"]), (&1.into(), &1.into()), "{waiting}");
        let bad = trends(&manager, "?workflow=bad").await;
        assert_eq!((&bad["total"]["failed"], counted(&bad)), (&1.into(), 2), "idle is no gap");
        assert_eq!(bucket(&bad, first)["queued"], 0, "{bad}");
        manager.stop().await;
    });
}

#[test]
fn a_clock_that_jumps_neither_mixes_times_nor_loses_what_comes_after() {
    actix_rt::System::new().block_on(async {
        let manager = start(TestManager::with(WORKFLOWS));
        let (mut recorder, minutes_ago) = (recorder(&manager), past_minutes());
        run(&manager, "good", 1).await;
        // A round before, in the same position as a minute of this hour.
        assert!(recorder.record_minute(minutes_ago(123)).await);
        run(&manager, "good", 2).await;
        let far_ahead = Timestamp(clock::now().0 + 400 * 24 * 60 * MINUTE_NS);
        assert!(recorder.record_minute(far_ahead).await);
        run(&manager, "good", 3).await;
        assert!(recorder.record_minute(minutes_ago(3)).await, "the clock was set back");
        run(&manager, "good", 4).await;
        assert!(recorder.record_minute(minutes_ago(3)).await, "and back again");

        let hour = trends(&manager, "?span=1h").await;
        assert_eq!((&hour["total"]["created"], counted(&hour)), (&7.into(), 1), "{hour}");
        assert_eq!(bucket(&hour, minutes_ago(3))["minutes"], 2, "both are in it");
        let week = trends(&manager, "?span=7d").await;
        assert_eq!(week["total"]["created"], 8, "{week}");
        manager.stop().await;
    });
}

#[test]
fn a_span_is_told_beside_the_one_before() {
    actix_rt::System::new().block_on(async {
        let manager = start(TestManager::with(WORKFLOWS));
        let (mut recorder, minutes_ago) = (recorder(&manager), past_minutes());
        for (minutes, jobs) in [(10 * 24 * 60, 4), (30 * 60, 3), (90, 2), (3, 1)] {
            run(&manager, "good", jobs).await;
            assert!(recorder.record_minute(minutes_ago(minutes)).await);
        }
        for (span, total, before) in [("1h", 1, 2), ("24h", 3, 3), ("7d", 6, 4)] {
            for query in [format!("?span={span}"), format!("?span={span}&workflow=good")] {
                let told = trends(&manager, &query).await;
                let created = (&told["total"]["created"], &told["before"]["created"]);
                assert_eq!(created, (&total.into(), &before.into()), "{query}: {told}");
            }
        }
        let api = Api::new(&manager).await;
        let refused = api.get("/api/trends?span=2h", &[]).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.text().contains("expected one of 1h, 24h, 7d"), "{}", refused.text());
        let refused = api.get("/api/trends?vhost=x", &[]).await;
        assert!(refused.text().contains("vhost needs workflow"), "{}", refused.text());
        let refused = api.get("/api/trends?workflow=", &[]).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text());
        manager.stop().await;
    });
}

/// Workflows w000 to w(count - 1), of which each waits for a reply.
fn many(count: usize) -> String {
    let workflow =
        |number| format!("  - {{name: w{number:03}, steps: [{{name: a, external: true}}]}}");
    let workflows: Vec<String> = (0..count).map(workflow).collect();
    format!("workflows:\n{}", workflows.join("\n"))
}

#[test]
fn the_workflows_are_bounded_and_the_others_are_told_and_in_the_sum() {
    actix_rt::System::new().block_on(async {
        let manager = start(TestManager::with(&many(WORKFLOWS_MAX + 1)));
        let (mut recorder, minutes_ago) = (recorder(&manager), past_minutes());
        for number in 0..=WORKFLOWS_MAX {
            manager.create_job(&format!("w{number:03}"), "{}").await;
        }
        assert!(recorder.record_minute(minutes_ago(3)).await);
        let last = format!("?workflow=w{WORKFLOWS_MAX:03}");
        let omitted = trends(&manager, &last).await;
        assert_eq!((&omitted["omitted"], &omitted["total"]["created"]), (&true.into(), &0.into()));
        let kept = trends(&manager, "?workflow=w000").await;
        assert!(kept["omitted"].is_null() && kept["total"]["created"] == 1, "{kept}");
        assert_eq!(trends(&manager, "").await["total"]["created"], WORKFLOWS_MAX + 1);

        // A workflow that is no longer loaded makes room for a new one.
        let text = many(WORKFLOWS_MAX + 1).replace("name: w000,", "name: new,");
        let loaded = load_text("test.yaml", &text).expect("valid").definitions;
        let loaded = loaded.into_iter().map(|definition| (definition.full_name(), definition));
        manager.handle().replace_definitions(loaded.collect()).await.expect("replaced");
        manager.create_job("new", "{}").await;
        assert!(recorder.record_minute(minutes_ago(2)).await);
        assert_eq!(trends(&manager, "?workflow=new").await["total"]["created"], 1);
        assert_eq!(trends(&manager, "?workflow=w000").await["omitted"], true, "it is forgotten");
        let names = manager.core().reader.load_trend_workflows().expect("reads");
        assert_eq!(names.len(), WORKFLOWS_MAX);
        manager.stop().await;
    });
}

#[test]
fn workflows_of_which_there_is_nothing_to_tell_take_no_place() {
    actix_rt::System::new().block_on(async {
        let manager = start(TestManager::with(&many(WORKFLOWS_MAX + 1)));
        let (mut recorder, minutes_ago) = (recorder(&manager), past_minutes());
        let last = format!("w{WORKFLOWS_MAX:03}");
        manager.create_job(&last, "{}").await;
        assert!(recorder.record_minute(minutes_ago(3)).await);
        assert_eq!(trends(&manager, &format!("?workflow={last}")).await["total"]["created"], 1);
        manager.stop().await;
    });
}

async fn a_disk_is_full(folder: &Path) {
    let manager = start(TestManager::with(WORKFLOWS).folder(folder));
    let (mut recorder, minutes_ago) = (recorder(&manager), past_minutes());
    run(&manager, "good", 1).await;
    fail::cfg("journal::trends", "return(full)").expect("configured");
    assert!(!recorder.record_minute(minutes_ago(4)).await);
    run(&manager, "good", 2).await;
    fail::remove("journal::trends");
    assert!(recorder.record_minute(minutes_ago(3)).await);
    let hour = trends(&manager, "").await;
    assert!(bucket(&hour, minutes_ago(4)).is_null(), "a gap: {hour}");
    assert_eq!(bucket(&hour, minutes_ago(3))["created"], 3, "the next minute counts it");
    manager.stop().await;
}

#[test]
fn what_cannot_be_stored_holds_up_no_job_and_counts_a_minute_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let test = "trends::what_cannot_be_stored_holds_up_no_job_and_counts_a_minute_later";
    alone(test, a_disk_is_full(folder.path()));
}
