//! Somebody sets the wall clock while the manager runs: what began in this run goes by the time
//! that has passed, and nothing is deleted that is to be kept.

use crate::alone::alone;
use std::path::Path;
use std::time::Duration;
use support::waits::until;
use workflow_manager::actors::manager::{self, Manager};
use workflow_manager::bus::embedded::Workers;
use workflow_manager::clock;
use workflow_manager::engine::{Job, JobId, JobState, Message, Operation};
use workflow_manager::load::load_text;
use workflow_manager::settings::{DurationSetting, Settings};

const WORKFLOWS: &str = "
workflows:
  - name: done
    steps: [{name: a}]
  - name: long
    deadline: 1h
    steps: [{name: nobody}]
  - name: short
    deadline: 500ms
    steps: [{name: nobody}]";

const DAY_S: i64 = 24 * 3600;

async fn start(file: &Path) -> Manager {
    let mut settings = Settings::defaults().expect("defaults");
    settings.journal.file = file.to_owned();
    settings.journal.retention = DurationSetting(Duration::from_secs(24 * 3600));
    settings.journal.retention_interval = DurationSetting(Duration::from_millis(10));
    let workers = Workers::new().with_worker("a", 1, |message| Ok(message.body.to_bytes()));
    let definitions = load_text("test.yaml", WORKFLOWS).expect("valid").definitions;
    manager::start(settings, definitions, workers).await.expect("starts")
}

async fn create(manager: &Manager, workflow: &str) -> JobId {
    let message = Message::parse(b"{}").expect("a message");
    manager.create(workflow, None, message).await.expect("created").id()
}

fn kept(manager: &Manager, id: JobId) -> Option<Job> {
    manager.common().reader.load_job(id).expect("reads").map(|kept| kept.job)
}

/// Waits until the job has ended, and tells its state.
async fn end(manager: &Manager, id: JobId) -> JobState {
    let state = || kept(manager, id).map(|job| job.state()).filter(|state| state.is_ended());
    until("it ends", state).await
}

/// Sets the clock, by so many days from the true time.
fn set_clock(days: i64) {
    fail::cfg("clock::now", &format!("return({})", days * DAY_S)).expect("a failpoint");
}

async fn is_running(manager: &Manager, id: JobId) -> bool {
    // Each makes the job look at its times again.
    manager.operate(id, Operation::Pause).await.expect("paused");
    manager.operate(id, Operation::Resume).await.expect("resumed");
    kept(manager, id).is_some_and(|job| job.state() == JobState::Running)
}

async fn a_clock_that_jumps() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let manager = start(&file).await;
    let (done, long) = (create(&manager, "done").await, create(&manager, "long").await);
    assert_eq!(end(&manager, done).await, JobState::Completed);
    let set_by = || manager.common().metrics.clock_set_by.get();
    assert_eq!((set_by(), clock::since_adjustment()), (0, None));

    let before = create(&manager, "short").await;
    set_clock(10);
    let after = create(&manager, "short").await;
    until("the metric tells", || ((set_by() - 10 * DAY_S).abs() < 60).then_some(())).await;
    for id in [before, after] {
        assert_eq!(end(&manager, id).await, JobState::Failed, "its time has passed");
    }
    let [created, ended] = [before, after].map(|id| {
        let job = kept(&manager, id).expect("there");
        (job.origin().created.0, job.ended().expect("ended").0 - job.origin().created.0)
    });
    let days = (ended.0 - created.0) / 1_000_000_000 / DAY_S;
    assert!((9..=10).contains(&days), "what begins then has the new time: {days} days");
    for took in [created.1, ended.1] {
        assert!((500_000_000..60_000_000_000).contains(&took), "it ended after {took} ns");
    }
    assert!(is_running(&manager, long).await, "its hour is not over");
    assert!(kept(&manager, done).is_some(), "retention waits for a steady clock");

    // Backwards: its time is not over in twenty days.
    let last = create(&manager, "short").await;
    set_clock(-10);
    assert_eq!(end(&manager, last).await, JobState::Failed);
    until("the metric tells", || ((set_by() + 10 * DAY_S).abs() < 60).then_some(())).await;
    assert!(is_running(&manager, long).await);
    assert!(kept(&manager, done).is_some());
    let told = manager.common().health.checks();
    let told = told.iter().find(|(name, ..)| name == "clock").expect("a check");
    assert!(told.1 && told.2.contains("was set by -86"), "{told:?}");
    manager.stop().await;

    // What is from before a start goes by the wall clock.
    set_clock(10);
    let manager = start(&file).await;
    assert_eq!(end(&manager, long).await, JobState::Failed);
    manager.stop().await;
}

#[test]
fn who_sets_the_clock_ends_no_job_and_deletes_nothing() {
    alone("clock_set::who_sets_the_clock_ends_no_job_and_deletes_nothing", a_clock_that_jumps());
}
