//! What operators change and start: pauses, other values of limits, schedules.

use super::{client, json_of, printed};
use crate::harness::{Daemon, Setup, eventually, when};
use serde_json::json;

const WORKFLOWS: &str = r#"
limits: [ { name: bank, rate: 100/s, concurrency: 5 } ]
workflows:
  - { name: orders, steps: [ { name: pay, queue: price, limit: bank } ] }
schedules:
  - { name: yearly, workflow: orders, cron: "0 0 1 1 *", zone: Europe/Berlin, overlap: allow }
  - { name: leap, workflow: orders, cron: "0 0 29 2 *" }
"#;

fn start() -> Daemon {
    Setup::new("", WORKFLOWS).start()
}

#[test]
fn pauses_begin_say_why_and_end() {
    let daemon = start();
    for (kind, subject, name) in [
        ("queuePause", "queue", "price"),
        ("workflowPause", "workflow", "orders"),
        ("limitPause", "limit", "bank"),
    ] {
        let time = ["--for", "1h30m", "--reason", "bank is down", "--json"];
        let paused = printed(&daemon, &[&["pause", subject, name][..], &time].concat());
        let paused = json_of(&paused);
        assert_eq!(
            (&paused["kind"], &paused["name"], &paused["reason"]),
            (&json!(kind), &json!(name), &json!("bank is down"))
        );
        assert!(paused["until"].is_string(), "{paused}");
    }
    let job = daemon.api.create("orders", "{}").to_string();
    let why = eventually("why names the pause", || {
        let why = printed(&daemon, &["why", &job]);
        when(why.contains("bank is down"), why.clone())?;
        Ok::<_, String>(why)
    });
    assert!(why.contains("paused"), "{why}");
    for list in ["queues", "workflows", "limits"] {
        let table = printed(&daemon, &[list, "-o", "wide"]);
        let noted = table.lines().filter(|line| line.contains("paused until 20"));
        assert_eq!(noted.filter(|line| line.contains(": bank is down")).count(), 1, "{table}");
        let held_back = table.lines().any(|line| line.contains(", 1 waiting: bank is down"));
        assert_eq!(held_back, list != "limits", "{table}");
    }
    for (subject, name) in [("queue", "price"), ("workflow", "orders"), ("limit", "bank")] {
        let resumed = printed(&daemon, &["resume", subject, name]);
        assert_eq!(resumed, format!("{subject} {name} is not paused any more\n"));
        let again = client(&daemon, &["resume", subject, name]);
        assert_eq!(again.code, Some(1), "{again}");
        assert!(again.stderr.contains("is not paused"), "{again}");
    }
    // It is sent now.
    daemon.api.send("POST", "/api/queue/price/receive?wait=30s", &[], None).expect(200);
    for wrong in [
        &["pause", "queue", "prize"][..],
        &["pause", "limit", "bnak"],
        &["pause", "workflow", "order"],
    ] {
        let refused = client(&daemon, wrong);
        assert_eq!(refused.code, Some(1), "{refused}");
        assert!(refused.stderr.contains("did you mean"), "{refused}");
    }
}

#[test]
fn a_limit_allows_something_else_for_a_time() {
    let daemon = start();
    let changed = printed(
        &daemon,
        &[
            "limit",
            "bank",
            "--rate",
            "20/s",
            "--concurrency",
            "2",
            "--for",
            "1h",
            "--reason",
            "slow",
        ],
    );
    assert!(changed.starts_with("limit bank allows 20/s and 2 at once until "), "{changed}");
    let limits = printed(&daemon, &["limits"]);
    assert!(limits.contains("20/s") && limits.contains("2 at once"), "{limits}");
    assert!(limits.contains("changed until 20") && limits.contains(": slow; its file: 100/s"));
    // Two of the queue's messages are with a worker; who waits is told why it takes so long.
    let jobs = [(); 3].map(|()| daemon.api.create("orders", "{}").to_string());
    eventually("why names the change", || {
        let why = printed(&daemon, &["why", &jobs[2]]);
        let is_told = why.contains("2 of 2 held") && why.contains("; the limit is changed until");
        when(is_told && why.contains(": slow"), why)
    });
    let ended = printed(&daemon, &["limit", "bank", "--end"]);
    assert_eq!(ended, "limit bank allows again what its file says\n");
    let limits = printed(&daemon, &["limits"]);
    assert!(limits.contains("100/s") && limits.contains("5 at once"), "{limits}");
    assert!(!limits.contains("changed") && !limits.contains("its file"), "{limits}");
    let forever = printed(&daemon, &["limit", "bank", "--rate", "1/m"]);
    assert_eq!(forever, "limit bank allows 1/m until it is ended\n");
    for (wrong, code, said) in [
        (&["limit", "bank"][..], 2, "<--rate <RATE>|--concurrency <NUMBER>|--end>"),
        (&["limit", "bank", "--rate", "20"], 1, "write its unit"),
        (&["limit", "bank", "--rate", "0/s"], 1, "pause the limit"),
        (&["limit", "bank", "--burst", "3"], 2, "--rate"),
        (&["limit", "bnak", "--rate", "20/s"], 1, "did you mean"),
        (&["limit", "bank", "--rate", "20/s", "--for", "soon"], 1, "how long it lasts"),
    ] {
        let refused = client(&daemon, wrong);
        assert_eq!(refused.code, Some(code), "{wrong:?}: {refused}");
        assert!(refused.stderr.contains(said), "{wrong:?}: {refused}");
    }
}

#[test]
fn schedules_are_listed_shown_triggered_and_paused() {
    let daemon = start();
    let names = printed(&daemon, &["schedules", "-o", "name"]);
    assert_eq!(names, "leap\nyearly\n");
    let table = printed(&daemon, &["schedules"]);
    assert!(
        table.contains("Europe/Berlin") && table.contains("-12-31T23:00:00.000000000Z"),
        "{table}"
    );
    let json = json_of(&printed(&daemon, &["schedules", "--json"]));
    assert_eq!(json["schedules"].as_array().map(Vec::len), Some(2));

    let triggered = printed(&daemon, &["schedule", "yearly", "trigger", "--reason", "a try"]);
    let [said, job] = triggered.lines().collect::<Vec<_>>()[..] else { panic!("{triggered}") };
    assert_eq!(said, "schedule yearly: a job was started");
    let shown = json_of(&printed(&daemon, &["job", job, "--json"]));
    assert_eq!(shown["schedule"], "yearly");
    let shown = printed(&daemon, &["schedule", "yearly"]);
    assert!(shown.contains("by hand: a try") && shown.contains(job), "{shown}");
    assert_eq!(shown.matches("-12-31T23:00:00.000000000Z").count(), 5, "the next slots: {shown}");

    let paused = printed(&daemon, &["schedule", "yearly", "pause", "--reason", "holidays"]);
    assert_eq!(paused, "schedule yearly: it is paused: its slots are skipped\n");
    assert!(printed(&daemon, &["schedules"]).contains("paused: holidays"));
    let resumed = printed(&daemon, &["schedule", "yearly", "resume"]);
    assert_eq!(resumed, "schedule yearly: it goes on with its next slot\n");
    for (wrong, code, said) in [
        (&["schedule", "yearly", "resume"][..], 1, "is not paused"),
        (&["schedule", "nightly"], 1, "no schedule nightly"),
        (&["schedule", "yaerly"], 1, "did you mean \"yearly\"?"),
        (&["schedule", "nightly", "trigger"], 1, "unknown schedule"),
        (&["schedule", "yearly", "start"], 2, "trigger"),
        (&["schedule", "yearly", "backfill"], 2, "--from"),
        (&["schedule", "yearly", "backfill", "--from", "2h", "--to", "3h"], 1, "no later than"),
    ] {
        let refused = client(&daemon, wrong);
        assert_eq!(refused.code, Some(code), "{wrong:?}: {refused}");
        assert!(refused.stderr.contains(said), "{wrong:?}: {refused}");
    }
}

#[test]
fn a_backfill_says_what_it_would_do_and_what_it_did() {
    let daemon = start();
    let years = ["--from", "2020-06-01T00:00:00Z", "--to", "2023-06-01T00:00:00Z"];
    let backfill = |more: &[&str]| {
        printed(&daemon, &[&["schedule", "yearly", "backfill"][..], &years, more].concat())
    };
    let would = backfill(&["--dry-run"]);
    assert!(would.ends_with("3 jobs would be started\n"), "{would}");
    assert!(
        would.contains("2020-12-31T23:00:00.000000000Z") && would.contains("would start"),
        "{would}"
    );
    let json = json_of(&backfill(&["--dry-run", "--json"]));
    assert_eq!((json["slots"].as_array().map(Vec::len), &json["dryRun"]), (Some(3), &json!(true)));
    assert_eq!(printed(&daemon, &["search", "-o", "name"]), "", "nothing was started");
    let did = backfill(&["--reason", "a gap"]);
    assert!(did.ends_with("3 jobs started\n"), "{did}");
    let mut jobs: Vec<String> =
        printed(&daemon, &["search", "-o", "name"]).lines().map(str::to_owned).collect();
    let mut slots: Vec<String> =
        backfill(&["--dry-run", "-o", "name"]).lines().map(str::to_owned).collect();
    jobs.sort();
    slots.sort();
    assert_eq!(jobs, slots);
    let again = backfill(&[]);
    assert!(again.contains("was there before") && !again.contains("jobs started"), "{again}");
    assert!(printed(&daemon, &["schedule", "yearly"]).contains("backfill: a gap"));
}
