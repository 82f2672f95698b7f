//! Schedules: what `check` says of wrong ones, and that slots start once, over restarts.

use actix_web::http::StatusCode;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use support::api::Api;
use support::manager::TestManager;
use support::waits::{until_async, within};
use workflow_manager::clock;
use workflow_manager::engine::schedule::{Ledger, Timing};
use workflow_manager::engine::{Millis, Timestamp};
use workflow_manager::journal::{
    JobFilter, Journal, JournalOptions, SearchOrder, SqliteJournal, StoredLedger,
};
use workflow_manager::load::load_text;
use workflow_manager::settings::Settings;
use workflow_manager::times::parse_rfc3339;

const WORKFLOW: &str = "workflows: [{name: w, steps: [{name: a}]}]\n";
const PERSON: &str = "workflows: [{name: w, steps: [{name: sign, external: true}]}]\n";

/// Returns what is said of one schedule with these keys.
fn errors_of(keys: &str) -> String {
    let text = format!("{WORKFLOW}schedules: [{{ name: s, workflow: w, {keys} }}]");
    match load_text("f", &text) {
        Ok(_) => String::new(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn wrong_schedules_are_explained() {
    for (keys, expected) in [
        ("every: 90s", ""),
        ("cron: \"0 2 * * 1-5\", zone: Europe/Berlin, jitter: 5m, deadline: 3h", ""),
        ("cron: \"0 0 30 2 *\"", "no day ever matches it, so it would never fire"),
        ("cron: \"61 * * * *\"", "minute, hour, day of the month"),
        ("cron: \"0 2 * * *\", zone: Europe/Berln", "did you mean \"Europe/Berlin\"?"),
        ("cron: \"0 2 * * *\", every: 1h", "leave one of them out"),
        ("every: 1h, zone: UTC", "\"zone\" has no meaning with \"every\""),
        ("missed: last", "the key \"cron\" is missing"),
        ("every: 10ms", "\"every\" takes a duration"),
        ("every: 1m, jitter: 2m", "it must be shorter"),
        ("every: 1h, jitter: 2m, deadline: 1m", "it must be shorter"),
        ("every: 1h, overlap: skips", "did you mean \"skip\"?"),
        ("every: 1h, missed: lst", "did you mean \"last\"?"),
        ("every: 1h, message: [ 1 ]", "\"message\" takes a mapping"),
        ("every: 1h, message: { n: .inf }", "put it into quotes"),
        ("every: 1h, jiter: 5m", "did you mean \"jitter\"?"),
    ] {
        let errors = errors_of(keys);
        let is_as_expected =
            if expected.is_empty() { errors.is_empty() } else { errors.contains(expected) };
        assert!(is_as_expected, "{keys}: {errors}");
    }
    let text = "schedules: [{ name: s, workflow: reprt, every: 1h }]\n\
                workflows: [{name: report, steps: [{name: a}]}]";
    let errors = load_text("f", text).expect_err("refused").to_string();
    assert!(
        errors.contains("there is no workflow \"reprt\"; did you mean \"report\"?"),
        "{errors}"
    );
    let twice = "{ name: s, workflow: w, every: 1h }";
    let text = format!("{WORKFLOW}schedules: [ {twice}, {twice} ]");
    let errors = load_text("f", &text).expect_err("refused").to_string();
    assert!(errors.contains("a schedule \"s\" is declared already, at f:2:"), "{errors}");
}

#[test]
fn a_schedule_is_of_each_virtual_host_of_its_workflow_and_not_of_its_definition() {
    let workflow = "workflows: [{name: w, vhosts: [a, b], steps: [{name: s}]}]\n";
    let schedules = "schedules: [{ name: s, workflow: w, every: 90s, message: {n: 1.50} }]";
    let loaded = load_text("f", &format!("{workflow}{schedules}")).expect("valid");
    let bare = load_text("f", workflow).expect("valid");
    let mut ids = BTreeSet::new();
    for (definition, other) in loaded.definitions.iter().zip(&bare.definitions) {
        assert_eq!((definition, definition.hash()), (other, other.hash()));
        let [schedule] = definition.schedules.0.as_slice() else { panic!("one schedule") };
        assert_eq!(schedule.full_name(), format!("{}/s", definition.vhost));
        assert_eq!(schedule.timing, Timing::Every(Millis(90_000)));
        assert_eq!(schedule.message.to_text(), r#"{"n":1.50}"#);
        ids.insert(schedule.job_id(Timestamp(0)));
    }
    assert_eq!(ids.len(), 2, "each virtual host has slots of its own");
}

/// Returns the ids and the slots of the jobs in the journal.
async fn slots_with_ids(api: &Api, manager: &TestManager) -> Vec<(String, String)> {
    let reader = &manager.core().reader;
    let filter = JobFilter::default();
    let found = reader.search(&filter, SearchOrder::NewestFirst, i64::MAX, 1_000).expect("reads");
    let mut slots = Vec::new();
    for hit in found {
        let job = api.get_json(&format!("/api/job/{}", hit.id)).await;
        assert_eq!(job["schedule"], "often");
        slots.push((hit.id.to_string(), job["slot"].as_str().expect("a slot").to_owned()));
    }
    slots
}

/// Returns the slots of the jobs in the journal.
async fn slots(api: &Api, manager: &TestManager) -> Vec<String> {
    slots_with_ids(api, manager).await.into_iter().map(|(_, slot)| slot).collect()
}

fn to_time(text: &str) -> i64 {
    parse_rfc3339(text).expect("a time").0
}

async fn start(text: &str, folder: &Path) -> (TestManager, Api) {
    let manager = TestManager::with(text).folder(folder).echo(["a"]).await;
    let api = Api::new(&manager).await;
    (manager, api)
}

/// Returns the only schedule.
async fn schedule(api: &Api) -> Value {
    api.get_json("/api/schedules").await["schedules"][0].clone()
}

#[test]
fn slots_start_once_over_restarts_and_are_judged() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("{WORKFLOW}schedules: [{{ name: often, workflow: w, every: 1s }}]");
    actix_rt::System::new().block_on(within("slots start", async {
        let mut known = 0;
        for _ in 0..3 {
            let (manager, api) = start(&text, folder.path()).await;
            let more = known + 2;
            until_async("more slots", async || slots(&api, &manager).await.len() >= more).await;
            let found = slots(&api, &manager).await;
            known = found.len();
            assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), known, "each slot once");
            until_async("it is judged", async || {
                schedule(&api).await["judgements"][0]["verdict"] == "started"
            })
            .await;
            let shown = schedule(&api).await;
            assert_eq!((&shown["name"], &shown["timing"]), (&"often".into(), &"every 1s".into()));
            assert_eq!(shown["next"].as_array().map(Vec::len), Some(5));
            manager.stop().await;
        }
        // A schedule that was removed is forgotten; its jobs stay.
        let (manager, api) = start(WORKFLOW, folder.path()).await;
        assert_eq!(schedule(&api).await, Value::Null);
        let ledgers = || manager.core().reader.load_ledgers().expect("reads");
        support::waits::until("its ledger is deleted", || ledgers().is_empty()).await;
        assert!(slots(&api, &manager).await.len() >= known);
        manager.stop().await;
    }));
}

#[test]
fn an_overlapping_slot_is_skipped_and_operations_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("{PERSON}schedules: [{{ name: often, workflow: w, every: 1s }}]");
    actix_rt::System::new().block_on(within("slots are judged", async {
        let (manager, api) = start(&text, folder.path()).await;
        until_async("one is skipped", async || {
            schedule(&api).await["judgements"][0]["verdict"] == "skipped"
        })
        .await;
        assert_eq!(slots(&api, &manager).await.len(), 1, "the job waits for a person");
        let answer = api.post("/api/schedule/often/pause?reason=holidays", "").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        manager.stop().await;
        let (manager, api) = start(&text, folder.path()).await;
        assert_eq!(schedule(&api).await["paused"]["reason"], "holidays", "over a restart");
        let triggered = api.post("/api/schedule/often/trigger?reason=audit", "").await;
        assert_eq!(triggered.status, StatusCode::OK, "{}", triggered.text());
        let triggered: Value = triggered.json();
        assert_eq!(triggered["judgements"][0]["reason"], "by hand: audit");
        assert_eq!(slots(&api, &manager).await.len(), 2);
        for (path, status) in [
            ("often/resume", StatusCode::OK),
            ("often/resume", StatusCode::CONFLICT),
            ("other/resume", StatusCode::NOT_FOUND),
            ("often/burn", StatusCode::NOT_FOUND),
        ] {
            let answer = api.post(&format!("/api/schedule/{path}"), "").await;
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
        }
        manager.stop().await;
    }));
}

/// A timing by whose last slot two minutes or more have passed, and the next is as far away.
fn calm_interval(now: Timestamp) -> Millis {
    let margin = 120_000;
    (10..60)
        .map(|minutes| Millis(minutes * 60_000))
        .find(|interval| {
            let passed = u64::try_from(now.0 / 1_000_000).expect("after 1970") % interval.0;
            (margin..interval.0 - margin).contains(&passed)
        })
        .expect("one of them fits")
}

/// A journal whose schedule has judged all slots but the last five.
fn leave_behind(folder: &Path, text: &str) {
    let loaded = load_text("f", text).expect("valid");
    let [schedule] = loaded.definitions[0].schedules.0.as_slice() else { panic!("one schedule") };
    let Timing::Every(interval) = schedule.timing else { panic!("an interval") };
    let before = Timestamp(clock::now().0 - i64::try_from(interval.0).expect("small") * 5_000_000);
    let ledger = serde_json::to_string(&Ledger::new(schedule, before)).expect("a text");
    let options = JournalOptions {
        file: folder.join("j.db"),
        cache_bytes: 1 << 20,
        verify_bytes_max: 0,
        pages_max: 0,
    };
    let stored = StoredLedger { schedule: "often".into(), ledger: Some(ledger.into()) };
    let mut journal = SqliteJournal::open(&options).expect("opens");
    journal.store_ledgers(&[stored]).expect("stores");
}

#[test]
fn slots_that_passed_without_a_manager_start_as_the_schedule_says() {
    for (missed, verdicts) in [
        ("none", &[("missed", 5)] as &[_]),
        ("last", &[("started", 1), ("missed", 4)]),
        ("all", &[("started", 1); 5]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let interval = calm_interval(clock::now());
        let text = format!(
            "{WORKFLOW}schedules: [{{ name: often, workflow: w, every: {interval}, \
             missed: {missed}, overlap: allow }}]"
        );
        leave_behind(folder.path(), &text);
        actix_rt::System::new().block_on(within("slots are judged", async {
            let (manager, api) = start(&text, folder.path()).await;
            let told = async || {
                let shown = schedule(&api).await;
                let judgements = shown["judgements"].as_array().cloned().unwrap_or_default();
                let of = |judged: &Value| (judged["verdict"].clone(), judged["slots"].clone());
                judgements.iter().map(of).collect::<Vec<_>>()
            };
            let expected: Vec<(Value, Value)> =
                verdicts.iter().map(|(word, slots)| ((*word).into(), (*slots).into())).collect();
            until_async("all are judged", async || told().await == expected).await;
            let started = verdicts.iter().filter(|(word, _)| *word == "started").count();
            assert_eq!(slots(&api, &manager).await.len(), started, "{missed}");
            manager.stop().await;
        }));
    }
}

#[test]
fn the_next_slot_replaces_the_job_of_the_one_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let text =
        format!("{PERSON}schedules: [{{ name: often, workflow: w, every: 1s, overlap: replace }}]");
    actix_rt::System::new().block_on(within("a job is replaced", async {
        let (manager, api) = start(&text, folder.path()).await;
        let first = async || {
            let judgements = schedule(&api).await["judgements"].clone();
            let judgements = judgements.as_array().cloned().unwrap_or_default();
            judgements.last().map(|judged| judged["job"].as_str().expect("an id").to_owned())
        };
        until_async("one started", async || first().await.is_some()).await;
        let path = format!("/api/job/{}", first().await.expect("it has started"));
        let job = api.until(&path, |job| job["state"] == "cancelled").await;
        assert_eq!(job["reason"], "replaced by the next slot of schedule often");
        until_async("the next one has started", async || slots(&api, &manager).await.len() >= 2)
            .await;
        manager.stop().await;
    }));
}

#[test]
fn a_slot_waits_for_the_end_of_the_job_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let text =
        format!("{PERSON}schedules: [{{ name: often, workflow: w, every: 1s, overlap: wait }}]");
    actix_rt::System::new().block_on(within("a slot waits", async {
        let (manager, api) = start(&text, folder.path()).await;
        until_async("one waits", async || schedule(&api).await["waiting"].is_string()).await;
        let waiting = schedule(&api).await["waiting"].clone();
        assert_eq!(slots(&api, &manager).await.len(), 1, "one job runs");
        manager.stop().await;
        let (manager, api) = start(&text, folder.path()).await;
        assert_eq!(schedule(&api).await["waiting"], waiting, "it waits over a restart");
        let [running] = &slots_with_ids(&api, &manager).await[..] else { panic!("one job") };
        let reply = api.post(&format!("/api/job/{}/step/sign", running.0), "{}").await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        until_async("the slot that waited has a job", async || {
            let found = slots_with_ids(&api, &manager).await;
            found.iter().any(|(id, slot)| *id != running.0 && waiting == slot.as_str())
        })
        .await;
        manager.stop().await;
    }));
}

#[test]
fn a_slot_whose_job_cannot_be_started_is_tried_again_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let text =
        format!("{PERSON}schedules: [{{ name: often, workflow: w, every: 1s, overlap: allow }}]");
    actix_rt::System::new().block_on(within("a slot starts late", async {
        let one = |settings: &mut Settings| settings.limits.jobs_running_max = 1;
        let manager = TestManager::with(&text).folder(folder.path()).set(one).await;
        let api = Api::new(&manager).await;
        let name = "workflow_schedule_failures_total{schedule=\"often\"}";
        until_async("a start fails", async || api.get("/metrics", &[]).await.text().contains(name))
            .await;
        let [running] = &slots_with_ids(&api, &manager).await[..] else { panic!("one job") };
        let reply = api.post(&format!("/api/job/{}/step/sign", running.0), "{}").await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        until_async("the next one starts", async || slots(&api, &manager).await.len() == 2).await;
        let times: Vec<i64> =
            slots(&api, &manager).await.iter().map(|slot| to_time(slot)).collect();
        assert_eq!(times[0], times[1] + 1_000_000_000, "no slot between them was passed over");
        manager.stop().await;
    }));
}

#[test]
fn a_slot_that_a_limit_refuses_is_shown_until_it_starts() {
    let workflow = "limits: [{name: one, concurrency: 1}]\n\
                    workflows: [{name: w, limit: {use: one, then: refuse}, \
                    steps: [{name: sign, external: true}]}]\n";
    let scheduled = format!("{workflow}schedules: [{{ name: often, workflow: w, every: 1s }}]");
    let folder = tempfile::tempdir().expect("a folder");
    actix_rt::System::new().block_on(within("a slot is refused", async {
        let (manager, api) = start(workflow, folder.path()).await;
        let holder = api.create_job("w", "{}").await;
        manager.stop().await;
        let (manager, api) = start(&scheduled, folder.path()).await;
        let refusal = async || schedule(&api).await["refused"].clone();
        until_async("one is refused", async || refusal().await.is_object()).await;
        let told = refusal().await;
        let reason = told["reason"].as_str().expect("a text");
        assert!(reason.contains(&format!("limit one has no place: job {holder}")), "{reason}");
        // The next slot is judged together with the one that is refused, and is skipped.
        until_async("the next one is judged", async || {
            schedule(&api).await["judgements"][0]["verdict"] == "skipped"
        })
        .await;
        assert_eq!(refusal().await["since"], told["since"], "since the first attempt");
        let failures = "workflow_schedule_failures_total{";
        assert!(!api.get("/metrics", &[]).await.text().contains(failures), "it is no failure");
        let reply = api.post(&format!("/api/job/{holder}/step/sign"), "{}").await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        until_async("it is refused no more", async || refusal().await.is_null()).await;
        let found = api.get_json("/api/jobs/search?schedule=often").await;
        assert_eq!(found["jobs"].as_array().map(Vec::len), Some(1), "the slot has started");
        manager.stop().await;
    }));
}

#[test]
fn jobs_are_found_by_the_schedule_that_started_them() {
    let text = format!(
        "{WORKFLOW}schedules: [{{ name: often, workflow: w, cron: \"0 0 29 2 *\" }}, \
         {{ name: seldom, workflow: w, cron: \"0 0 29 2 *\" }}]"
    );
    let folder = tempfile::tempdir().expect("a folder");
    actix_rt::System::new().block_on(within("jobs are found", async {
        let (manager, api) = start(&text, folder.path()).await;
        api.create_job("w", r#"{"slot":{"schedule":"often","slot":1}}"#).await;
        for (name, times) in [("often", 3), ("seldom", 1)] {
            for _ in 0..times {
                let answer = api.post(&format!("/api/schedule/{name}/trigger"), "").await;
                assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
            }
        }
        let count = async |query: &str| {
            let path = format!("/api/jobs/search?count=true&{query}");
            let found = api.get_json(&path).await;
            let jobs = found["jobs"].as_array().expect("a list").len();
            assert_eq!(found["count"], jobs, "{path}");
            jobs
        };
        assert_eq!(count("").await, 5);
        assert_eq!(count("schedule=often").await, 3, "what a message says does not count");
        assert_eq!(count("schedule=seldom&workflow=w").await, 1);
        let completed = "/api/jobs/search?schedule=often&state=completed";
        let are_all = |found: &Value| found["jobs"].as_array().is_some_and(|jobs| jobs.len() == 3);
        api.until(completed, are_all).await;
        assert_eq!(count("schedule=often&state=failed").await, 0);
        let page = api.get_json("/api/jobs/search?schedule=often&limit=2").await;
        let next = page["next"].as_str().expect("there are more");
        let path = format!("/api/jobs/search?schedule=often&limit=2&cursor={next}");
        assert_eq!(api.get_json(&path).await["jobs"].as_array().map(Vec::len), Some(1));
        let unknown = api.get("/api/jobs/search?schedule=oftn", &[]).await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);
        assert!(unknown.text().contains("did you mean"), "{}", unknown.text());
        let bulk = api.post("/api/jobs/rerun?step=a&schedule=seldom&dryRun=true", "").await;
        assert_eq!(bulk.json()["matched"], 1, "{}", bulk.text());
        manager.stop().await;
        // Jobs of a schedule that was removed are still found.
        let (manager, api) = start(WORKFLOW, folder.path()).await;
        let found = api.get_json("/api/jobs/search?schedule=often").await;
        assert_eq!(found["jobs"].as_array().map(Vec::len), Some(3));
        manager.stop().await;
    }));
}

#[test]
fn a_reload_changes_schedules() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("workflows.yaml");
    std::fs::write(&file, WORKFLOW).expect("written");
    let scheduled = |every: &str| {
        format!("{WORKFLOW}schedules: [{{ name: often, workflow: w, every: {every} }}]")
    };
    let named = |settings: &mut Settings| settings.workflows = vec![file.clone()];
    let manager = TestManager::with(WORKFLOW).folder(folder.path()).echo(["a"]).set(named);
    actix_rt::System::new().block_on(manager.serve_here(async |api| {
        for text in [&scheduled("1h"), &scheduled("1s"), WORKFLOW] {
            std::fs::write(&file, text).expect("written");
            let reloaded = api.post("/api/reload", "").await;
            assert_eq!(reloaded.status, StatusCode::OK, "{}", reloaded.text());
            let is_as_written = |told: &Value| match told["schedules"][0]["timing"].as_str() {
                None => text == WORKFLOW,
                Some(timing) => text.contains(&timing.replace(' ', ": ")),
            };
            api.until("/api/schedules", is_as_written).await;
            if text.contains("1s") {
                let fires = |told: &Value| told["schedules"][0]["judgements"][0].is_object();
                api.until("/api/schedules", fires).await;
            }
            // The metric has loaded schedules alone.
            until_async("slots are counted", async || {
                let metrics = api.get("/metrics", &[]).await.text();
                metrics.contains("workflow_schedule_slots_total{") == text.contains("1s")
            })
            .await;
        }
    }));
}

#[test]
fn a_backfill_starts_the_jobs_of_slots_that_have_passed() {
    let text = format!("{WORKFLOW}schedules: [{{ name: often, workflow: w, every: 1h }}]");
    actix_rt::System::new().block_on(within("slots are started", async {
        let folder = tempfile::tempdir().expect("a folder");
        let (manager, api) = start(&text, folder.path()).await;
        let backfill = async |query: &str| {
            let answer = api.post(&format!("/api/schedule/often/backfill?{query}"), "").await;
            assert_eq!(answer.status, StatusCode::OK, "{query}: {}", answer.text());
            let told: Value = answer.json();
            let slots = told["slots"].as_array().expect("slots").iter();
            slots.map(|told| (told["slot"].clone(), told["existed"].clone())).collect::<Vec<_>>()
        };
        let listed = backfill("from=5h&dryRun=true").await;
        assert_eq!((listed.len(), &listed[0].1), (5, &Value::Bool(false)));
        assert_eq!(slots(&api, &manager).await, [] as [String; 0], "nothing is started");
        assert_eq!(backfill("from=5h&reason=gap").await, listed);
        let mut started = slots(&api, &manager).await;
        started.reverse();
        let expected = listed.iter().map(|(slot, _)| slot.as_str().expect("a slot"));
        assert_eq!(started, expected.collect::<Vec<_>>());
        let again = backfill("from=5h").await;
        assert!(again.iter().all(|(_, existed)| *existed == true), "{again:?}");
        assert_eq!(slots(&api, &manager).await.len(), 5, "each slot once");
        let judged = schedule(&api).await["judgements"][1].clone();
        assert_eq!((&judged["slots"], &judged["reason"]), (&5.into(), &"backfill: gap".into()));
        for (path, status) in [
            ("often/backfill", StatusCode::BAD_REQUEST),
            ("often/backfill?from=2026-01-02T00:00:00Z&to=2026-01-02T00:00:00Z", StatusCode::OK),
            ("often/backfill?from=2h&to=3h", StatusCode::BAD_REQUEST),
            ("often/backfill?from=1h&to=2126-01-01T00:00:00Z", StatusCode::BAD_REQUEST),
            ("often/backfill?from=200d", StatusCode::BAD_REQUEST),
            ("other/backfill?from=1h", StatusCode::NOT_FOUND),
        ] {
            let answer = api.post(&format!("/api/schedule/{path}"), "").await;
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
        }
        manager.stop().await;
    }));
}
