//! Jobs that begin later than they are created: over the API, over restarts, and until they are
//! cancelled.

use actix_web::http::{Method, StatusCode};
use serde_json::Value;
use support::api::Api;
use support::manager::TestManager;
use support::waits::{until, within};
use workflow_manager::engine::{Entry, JobEntry, JobId, JobState};

const WORKFLOW: &str = "workflows: [{name: w, deadline: 1h, steps: [{name: a}]}]";

/// Creates a job that begins later. Returns its id and when it begins.
async fn create_later(api: &Api, query: &str) -> (JobId, String) {
    let answer = api.post(&format!("/api/workflow/w?{query}"), "{}").await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
    let created: Value = answer.json();
    let text = |key: &str| created[key].as_str().expect("a text").to_owned();
    (text("id").parse().expect("an id"), text("startsAt"))
}

#[test]
fn a_job_that_begins_later_shows_when_and_can_be_cancelled() {
    TestManager::with(WORKFLOW).echo(["a"]).serve(async |api| {
        let (id, starts_at) = create_later(&api, "after=2h").await;
        let job = api.get_json(&format!("/api/job/{id}")).await;
        assert_eq!(
            (&job["state"], &job["startsAt"]),
            (&"running".into(), &starts_at.clone().into())
        );
        assert_eq!(job["steps"][0]["state"], "waiting", "nothing is sent");
        let found = api.get_json("/api/jobs/search?workflow=w").await;
        assert_eq!(found["jobs"][0]["startsAt"], starts_at.as_str(), "a list shows it too");
        let again = api.post(&format!("/api/workflow/w?id={id}"), "{}").await.json();
        assert_eq!(again["startsAt"], starts_at.as_str(), "the job keeps its time");
        let hour =
            |text: &Value| text.as_str().expect("a time")[11..13].parse::<u32>().expect("hour");
        let (begins, fails) = (hour(&job["startsAt"]), hour(&job["deadline"]));
        assert_eq!((begins + 1) % 24, fails, "the deadline counts from the beginning");
        let why = api.get_json(&format!("/api/job/{id}/why")).await;
        assert_eq!(why["cause"], "starts_later");
        assert!(why["why"].as_str().expect("a text").contains(&starts_at[..19]), "{why}");
        let answer = api.request(Method::DELETE, &format!("/api/job/{id}"), &[], "").await;
        assert_eq!(answer.status, StatusCode::OK);
        let job = api.get_json(&format!("/api/job/{id}")).await;
        assert_eq!((&job["state"], job.get("startsAt")), (&"cancelled".into(), None));
        let found = api.get_json("/api/jobs/search?workflow=w").await;
        assert_eq!(found["jobs"][0].get("startsAt"), None);
    });
}

#[test]
fn the_start_is_in_the_future_or_now_and_given_once() {
    TestManager::with(WORKFLOW).echo(["a"]).serve(async |api| {
        for (query, expected) in [
            ("after=soon", "expected a duration"),
            ("after=0", "expected a duration"),
            ("after=20000d", "ten years"),
            ("at=2126-12-01T08:00:00Z", "ten years"),
            ("at=2026-12-01T08:00:00", "with its zone"),
            ("after=1h&at=2126-12-01T08:00:00Z", "give one of them"),
        ] {
            let answer = api.post(&format!("/api/workflow/w?{query}"), "{}").await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
            assert!(answer.text().contains(expected), "{query}: {}", answer.text());
        }
        let answer = api.post("/api/workflow/w?at=2020-01-01T00:00:00Z", "{}").await;
        let created: Value = answer.json();
        assert_eq!((answer.status, created.get("startsAt")), (StatusCode::CREATED, None));
    });
}

#[test]
fn a_job_begins_at_its_time_over_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    actix_rt::System::new().block_on(within("it begins", async {
        let manager = TestManager::with(WORKFLOW).folder(folder.path()).echo(["a"]).await;
        let api = Api::new(&manager).await;
        let (soon, _) = create_later(&api, "after=3s").await;
        let (late, _) = create_later(&api, "after=2h").await;
        manager.stop().await;
        let manager = TestManager::with(WORKFLOW).folder(folder.path()).echo(["a"]).await;
        assert_eq!(manager.job(late).begins_at(), manager.job(late).origin().starts_at);
        let job = manager.until_ended(soon).await;
        assert_eq!(job.state(), JobState::Completed);
        let starts_at = job.origin().starts_at.expect("it began later");
        let sent = job.steps().next().and_then(|(_, run)| run.started).expect("it ran");
        assert!(sent >= starts_at, "{sent:?} is before {starts_at:?}");
        let number = manager.core().reader.find_job_number(soon).expect("reads").expect("there");
        let rows = manager.core().reader.load_rows_by_number(number).expect("reads").expect("rows");
        let begun = rows.iter().flat_map(|row| &row.entries);
        assert_eq!(begun.filter(|entry| **entry == Entry::Job(JobEntry::Begun)).count(), 1);
        until("the other still waits", || manager.job(late).begins_at().is_some()).await;
        let has_start = |found: &Value, at: usize| found["jobs"][at]["startsAt"].is_string();
        // The newest comes first: the one that is late.
        let is_listed = |found: &Value| has_start(found, 0) && !has_start(found, 1);
        Api::new(&manager).await.until("/api/jobs/search", is_listed).await;
        manager.stop().await;
    }));
}
