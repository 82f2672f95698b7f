//! Schedules while the process is killed again and again, and while the name goes from process to
//! process: no slot runs twice, none is forgotten, and a judgement that was seen is kept.
//!
//! `SCHEDULE_KILLS` says how often it is killed.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;
use support::journal_rules::InDatabase;
use workflow_manager::engine::Timestamp;
use workflow_manager::times::parse_rfc3339;

use crate::harness::{Api, Daemon, Setup, eventually, when, within};
use crate::load::LONG;
use crate::postgres::HttpWorker;

/// Each with the seconds between its slots. Of the last twenty judgements, which are all that are
/// kept, none is lost between two looks, even if a takeover takes long.
const SCHEDULES: [(&str, i64); 3] = [("often", 2), ("clock", 3), ("single", 2)];
const WORKFLOWS: &str = r#"
workflows:
  - { name: many, steps: [ { name: work } ] }
  - name: one
    steps: [ { name: first, queue: work }, { name: second, queue: work, depends: [ first ] } ]
schedules:
  - { name: often, workflow: many, every: 2s, overlap: allow, missed: all }
  - { name: clock, workflow: many, cron: "*/3 * * * * *", overlap: allow, missed: all }
  - { name: single, workflow: one, every: 2s, overlap: skip, missed: all }
"#;

/// A judgement: the verdict, the job, and how many slots it is about.
type Judgement = (String, Option<String>, i64);

/// What was seen of the judgements, by schedule and slot, in seconds since 1970.
#[derive(Default)]
struct Seen(BTreeMap<(String, i64), Judgement>);

impl Seen {
    /// Looks at the last judgements. What was seen before has not changed.
    fn look(&mut self, api: &Api) {
        let Ok(answer) = api.try_send("GET", "/api/schedules", &[], None) else { return };
        if answer.status != 200 {
            return;
        }
        for schedule in answer.json()["schedules"].as_array().expect("a list") {
            for judged in schedule["judgements"].as_array().expect("a list") {
                let text = |key: &str| judged[key].as_str().map(str::to_owned);
                let name = schedule["name"].as_str().expect("a name").to_owned();
                let key = (name, seconds(&judged["slot"]));
                let slots = judged["slots"].as_i64().expect("a number");
                let judgement = (text("verdict").expect("a verdict"), text("job"), slots);
                let before = self.0.entry(key.clone()).or_insert_with(|| judgement.clone());
                assert_eq!(*before, judgement, "{key:?} is judged otherwise");
            }
        }
    }

    /// The judgements of a schedule, in order.
    fn of<'s>(&'s self, schedule: &'s str) -> impl Iterator<Item = (i64, &'s Judgement)> {
        let is_of = move |((name, _), _): &(&(String, i64), _)| name == schedule;
        self.0.iter().filter(is_of).map(|((_, slot), judgement)| (*slot, judgement))
    }

    /// Looks until each schedule has so many judgements more.
    fn await_more(&mut self, api: &Api, count: usize) {
        let goals = SCHEDULES.map(|(name, _)| self.of(name).count() + count);
        within(LONG, "slots are judged", || {
            self.look(api);
            let counts = SCHEDULES.map(|(name, _)| self.of(name).count());
            let is_enough = counts.iter().zip(goals).all(|(count, goal)| *count >= goal);
            when(is_enough, format!("{counts:?} of {goals:?}"))
        });
    }

    /// Pauses all schedules, awaits the end of their jobs, and compares those with the judgements.
    fn check(mut self, daemon: &Daemon) {
        for (name, _) in SCHEDULES {
            daemon.api.post(&format!("/api/schedule/{name}/pause"), "").expect(200);
        }
        self.look(&daemon.api);
        let jobs = read_jobs(daemon);
        for (name, distance) in SCHEDULES {
            let mut previous = None;
            let mut started = BTreeSet::new();
            for (slot, (verdict, job, slots)) in self.of(name) {
                let expected = previous.map_or(slot, |previous| previous + distance * slots);
                assert_eq!(slot, expected, "a slot of {name} was forgotten");
                previous = Some(slot);
                match (&**verdict, name) {
                    ("started", _) => {
                        started.insert((slot, job.clone().expect("a job")));
                    }
                    ("skipped", "single") => {}
                    // The pause has begun.
                    ("skipped", _) if job.is_none() => {}
                    other => panic!("{other:?} at {slot}"),
                }
            }
            let of_schedule = jobs.iter().filter(|job| job.schedule == name);
            let there: Vec<_> = of_schedule.map(|job| (job.slot, job.id.clone())).collect();
            let distinct: BTreeSet<_> = there.iter().cloned().collect();
            assert_eq!(there.len(), distinct.len(), "a slot of {name} ran twice: {there:?}");
            assert_eq!(distinct, started, "the jobs of {name} are those that were judged to start");
        }
        let mut single: Vec<_> = jobs.iter().filter(|job| job.schedule == "single").collect();
        single.sort_by_key(|job| job.created);
        for pair in single.windows(2) {
            assert!(pair[0].ended <= pair[1].created, "they overlap: {pair:?}");
        }
    }
}

#[derive(Debug)]
struct Job {
    id: String,
    schedule: String,
    slot: i64,
    created: Timestamp,
    ended: Timestamp,
}

/// Awaits the end of all jobs, and reads them.
fn read_jobs(daemon: &Daemon) -> Vec<Job> {
    let found = eventually("all jobs are completed", || {
        let found = daemon.api.get("/api/jobs/search?limit=10000").expect(200).json();
        let found = found["jobs"].as_array().expect("a list").clone();
        let is_completed = |job: &&Value| job["state"] == "completed";
        let count = found.iter().filter(is_completed).count();
        when(count == found.len(), format!("{count} of {}", found.len()))?;
        Ok::<_, String>(found)
    });
    let read = |found: &Value| {
        let id = found["job"].as_str().expect("an id").to_owned();
        let job = daemon.api.get(&format!("/api/job/{id}")).expect(200).json();
        let text = |key: &str| job[key].as_str().expect("a text").to_owned();
        let (created, ended) = (time(&job["created"]), time(&job["ended"]));
        Job { id, schedule: text("schedule"), slot: seconds(&job["slot"]), created, ended }
    };
    found.iter().map(read).collect()
}

fn time(text: &Value) -> Timestamp {
    parse_rfc3339(text.as_str().expect("a text")).expect("a time")
}

/// A time as seconds since 1970.
fn seconds(text: &Value) -> i64 {
    time(text).0 / 1_000_000_000
}

#[test]
fn slots_run_once_when_the_process_is_killed_again_and_again() {
    let kills = std::env::var("SCHEDULE_KILLS")
        .map_or(10, |text| text.parse().expect("SCHEDULE_KILLS is a number"));
    let mut daemon = Setup::new("", WORKFLOWS).set("embedded.lease", "1s").start();
    let _worker = HttpWorker::start(vec![daemon.api.anew()]);
    let mut seen = Seen::default();
    for kill in 0..kills {
        seen.await_more(&daemon.api, 1);
        // Each time at another moment between two slots.
        thread::sleep(Duration::from_millis(kill * 370 % 2_000));
        daemon.kill();
        daemon.start_again();
        seen.look(&daemon.api);
    }
    seen.await_more(&daemon.api, 3);
    seen.check(&daemon);
    assert!(daemon.stop().success());
}

/// It dies between the start of jobs and the commit of what became of their slots, and between both
/// commits of a round of several slots.
#[cfg(feature = "failpoints")]
#[test]
fn slots_run_once_when_the_process_dies_before_a_judgement_is_stored() {
    let mut daemon = Setup::new("", WORKFLOWS).set("embedded.lease", "1s").start();
    let _worker = HttpWorker::start(vec![daemon.api.anew()]);
    let mut seen = Seen::default();
    seen.await_more(&daemon.api, 1);
    daemon.kill();
    // A start stores the ledgers of all schedules.
    for commits in SCHEDULES.len()..SCHEDULES.len() + 6 {
        daemon.set_faults(Some(&format!("journal::ledgers={commits}*off->return(abort)")));
        daemon.spawn_again();
        within(LONG, "it dies", || {
            seen.look(&daemon.api);
            when(daemon.ended().is_some(), "it runs")
        });
        daemon.await_end();
    }
    daemon.set_faults(None);
    daemon.start_again();
    seen.await_more(&daemon.api, 3);
    seen.check(&daemon);
    assert!(daemon.stop().success());
}

#[test]
fn slots_run_once_when_the_name_goes_from_process_to_process() {
    let database = InDatabase::create();
    let setup = || {
        let setup = Setup::new("", WORKFLOWS).set("journal.url", &database.url());
        setup.set("embedded.lease", "1s")
    };
    let (mut active, mut standby) = (setup().start(), setup().spawn());
    let mut seen = Seen::default();
    for must_kill in [true, false, true] {
        standby.await_standby();
        let _worker = HttpWorker::start(vec![active.api.anew()]);
        seen.await_more(&active.api, 2);
        if must_kill {
            active.kill();
        } else {
            assert_eq!(active.stop().code(), Some(0));
        }
        standby.await_ready();
        seen.look(&standby.api);
        active.spawn_again();
        std::mem::swap(&mut active, &mut standby);
    }
    let _worker = HttpWorker::start(vec![active.api.anew()]);
    seen.await_more(&active.api, 3);
    seen.check(&active);
}
