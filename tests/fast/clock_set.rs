//! Somebody sets the wall clock while the manager runs: what began in this run goes by the time
//! that has passed, and nothing is deleted that is to be kept.

use crate::alone::alone;
use std::path::Path;
use std::time::Duration;
use support::manager::TestManager;
use support::waits::until;
use workflow_manager::clock;
use workflow_manager::engine::{JobId, JobState, Operation};
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

async fn start(file: &Path) -> TestManager {
    let brief = |settings: &mut Settings| {
        settings.journal.retention = DurationSetting(Duration::from_secs(24 * 3600));
        settings.journal.retention_interval = DurationSetting(Duration::from_millis(10));
    };
    TestManager::with(WORKFLOWS).journal(file).set(brief).echo(["a"]).await
}

/// Returns the state in which a job ends.
async fn final_state(manager: &TestManager, id: JobId) -> JobState {
    manager.until_ended(id).await.state()
}

/// Sets the clock, by so many days from the true time.
fn set_clock(days: i64) {
    fail::cfg("clock::now", &format!("return({})", days * DAY_S)).expect("a failpoint");
}

async fn is_running(manager: &TestManager, id: JobId) -> bool {
    // Each makes the job look at its times again.
    manager.handle().operate(id, Operation::Pause).await.expect("paused");
    manager.handle().operate(id, Operation::Resume).await.expect("resumed");
    manager.find_job(id).is_some_and(|job| job.state() == JobState::Running)
}

async fn a_clock_that_jumps() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("j.db");
    let manager = start(&file).await;
    let (done, long) =
        (manager.create_job("done", "{}").await, manager.create_job("long", "{}").await);
    assert_eq!(final_state(&manager, done).await, JobState::Completed);
    let set_by = || manager.core().metrics.clock_set_by.get();
    assert_eq!((set_by(), clock::since_adjustment()), (0, None));

    let before = manager.create_job("short", "{}").await;
    set_clock(10);
    let after = manager.create_job("short", "{}").await;
    until("the metric tells", || (set_by() - 10 * DAY_S).abs() < 60).await;
    for id in [before, after] {
        assert_eq!(final_state(&manager, id).await, JobState::Failed, "its time has passed");
    }
    let [created, ended] = [before, after].map(|id| {
        let job = manager.job(id);
        (job.origin().created.0, job.ended().expect("ended").0 - job.origin().created.0)
    });
    let days = (ended.0 - created.0) / 1_000_000_000 / DAY_S;
    assert!((9..=10).contains(&days), "what begins then has the new time: {days} days");
    for took in [created.1, ended.1] {
        assert!((500_000_000..60_000_000_000).contains(&took), "it ended after {took} ns");
    }
    assert!(is_running(&manager, long).await, "its hour is not over");
    assert!(manager.find_job(done).is_some(), "retention waits for a steady clock");

    // Backwards: its time is not over in twenty days.
    let last = manager.create_job("short", "{}").await;
    set_clock(-10);
    assert_eq!(final_state(&manager, last).await, JobState::Failed);
    until("the metric tells", || (set_by() + 10 * DAY_S).abs() < 60).await;
    assert!(is_running(&manager, long).await);
    assert!(manager.find_job(done).is_some());
    let checks = manager.core().health.checks();
    let check = checks.iter().find(|check| check.name == "clock").expect("a check");
    assert!(check.is_passed && check.message.contains("was set by -86"), "{check:?}");
    manager.stop().await;

    // What is from before a start goes by the wall clock.
    set_clock(10);
    let manager = start(&file).await;
    assert_eq!(final_state(&manager, long).await, JobState::Failed);
    manager.stop().await;
}

#[test]
fn who_sets_the_clock_ends_no_job_and_deletes_nothing() {
    alone("clock_set::who_sets_the_clock_ends_no_job_and_deletes_nothing", a_clock_that_jumps());
}
