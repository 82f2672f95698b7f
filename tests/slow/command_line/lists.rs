//! Lists, and their forms.

use super::{client, fail, json_of, printed, start};
use crate::harness::{command, run};
use serde_json::{Value, json};

#[test]
fn each_form_of_a_list_has_the_same_jobs() {
    let daemon = start();
    let ids: Vec<String> = (0..3).map(|_| daemon.api.create("signed", "{}").to_string()).collect();
    fail(&daemon, ids[0].parse().unwrap(), "sign", "=1+1, \"no\"", true);
    daemon.api.await_state(ids[0].parse().unwrap(), "failed");
    let newest_first: Vec<&str> = ids.iter().rev().map(String::as_str).collect();

    let names = printed(&daemon, &["search", "-o", "name"]);
    assert_eq!(names.lines().collect::<Vec<_>>(), newest_first);
    let json = printed(&daemon, &["search", "-o", "json"]);
    assert_eq!(json, printed(&daemon, &["search", "--json"]), "--json stays as it is");
    let lines = printed(&daemon, &["search", "-o", "jsonl"]);
    let each: Vec<Value> = lines.lines().map(json_of).collect();
    assert_eq!(Value::from(each), json_of(&json)["jobs"]);
    let table = printed(&daemon, &["search"]);
    let wide = printed(&daemon, &["search", "-o", "wide"]);
    assert!(table.starts_with(" JOB ") && ids.iter().all(|id| table.contains(id)), "{table}");
    assert_eq!(table, wide, "without a terminal a table is whole");

    let csv = printed(&daemon, &["search", "-o", "csv"]);
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.splitn(6, ',').collect()).collect();
    assert_eq!(rows[0], ["job", "workflow", "state", "created", "ended", "reason"]);
    assert_eq!((rows[1][0], rows[1][2]), (newest_first[0], "running"));
    assert!(rows[3][5].starts_with("\"step \"\"sign\"\""), "{csv}");

    for list in [&["jobs"][..], &["jobs", "signed"], &["status", "signed"]] {
        for form in ["csv", "name", "jsonl"] {
            let text = printed(&daemon, &[list, &["-o", form]].concat());
            assert!(ids.iter().all(|id| text.contains(id)), "{list:?} {form}: {text}");
        }
    }
    let status = printed(&daemon, &["status", "signed", "-o", "csv"]);
    assert!(status.starts_with("job,state,updated,sign,archive\n"), "{status}");
    for wrong in [&["search", "-o", "json", "--json"][..], &["search", "-o", "xml"]] {
        let ran = client(&daemon, wrong);
        assert_eq!(ran.code, Some(2), "{ran}");
    }
}

#[test]
fn times_are_shown_as_asked() {
    let daemon = start();
    let id = daemon.api.create("signed", "{}").to_string();
    let created = daemon.api.job(id.parse().unwrap());
    let created = json_of(&created.text)["created"].as_str().unwrap().to_owned();
    assert!(printed(&daemon, &["search"]).contains(&created), "as it came");
    let ago = printed(&daemon, &["search", "--time", "relative"]);
    assert!(ago.contains(" ago") || ago.contains(" now"), "{ago}");
    assert!(!ago.contains(&created), "{ago}");
    // A zone that is 5:30 ahead tells another minute.
    let mut local = command();
    local.args(["job", &id, "--server", &daemon.url()]).env("WORKFLOW_MANAGER_TIME", "local");
    let local = run(local.env("TZ", "<+0530>-5:30")).stdout;
    let minute: u32 = created[14..16].parse().unwrap();
    let shown = local.lines().find(|line| line.starts_with("created")).unwrap();
    let there: u32 = shown.split(':').nth(1).unwrap().parse().unwrap();
    assert_eq!(there, (minute + 30) % 60, "{created}: {local}");
}

#[test]
fn workflows_and_queues_are_listed() {
    let daemon = start();
    daemon.api.create("signed", "{}");
    let workflows = printed(&daemon, &["workflows"]);
    let line = workflows.lines().find(|line| line.contains("signed")).unwrap();
    assert!(line.split_whitespace().eq(["signed", "1"]), "{workflows}");
    assert_eq!(printed(&daemon, &["workflows", "-o", "name"]), "fan\nqueued\nsigned\n");
    let stats = printed(&daemon, &["workflows", "--stats", "1h", "-o", "csv"]);
    assert!(stats.contains("oldest running") && stats.contains("\nsigned,1,1,0,0,,,20"), "{stats}");
    daemon
        .write_workflows("workflows: [ { name: other, steps: [ { name: a, external: true } ] } ]");
    let queues = printed(&daemon, &["queues"]);
    assert!(queues.contains("nobody") && queues.contains("no worker"), "{queues}");
    assert!(queues.contains("queued: work"), "the steps are told: {queues}");
    let unattended = json_of(&printed(&daemon, &["queues", "--unattended", "--json"]));
    assert_eq!(unattended["queues"][0]["queue"], "nobody");
    daemon.api.post("/api/reload", "").expect(200);
    let workflows = printed(&daemon, &["workflows"]);
    assert!(workflows.contains("no longer in the files"), "{workflows}");
    assert_eq!(printed(&daemon, &["queues", "-o", "name"]), "");
}

#[test]
fn operations_say_why_they_are_asked_for() {
    let daemon = start();
    let id = daemon.api.create("signed", "{}").to_string();
    printed(&daemon, &["pause", &id, "--reason", "the printer burns"]);
    printed(&daemon, &["resume", "--workflow", "signed", "--reason", "it is out"]);
    printed(&daemon, &["complete", &id, "sign", "--reason", "signed on paper"]);
    let history = printed(&daemon, &["history", &id]);
    for reason in ["the printer burns", "it is out", "signed on paper"] {
        assert!(history.contains(reason), "no {reason:?} in {history}");
    }
    let paused = history.lines().find(|line| line.contains("job.paused")).expect("it was paused");
    let number = paused.split_whitespace().next().expect("a number");
    let then = printed(&daemon, &["history", &id, "--at", number]);
    assert!(then.contains("paused") && then.contains("sign"), "as it was then: {then}");
    let then = printed(&daemon, &["history", &id, "--at", number, "--json"]);
    let then: Value = serde_json::from_str(&then).expect("JSON");
    assert_eq!((&then["state"], &then["steps"][0]["state"]), (&json!("paused"), &json!("running")));
    let beyond = client(&daemon, &["history", &id, "--at", "4711"]);
    assert!(beyond.code != Some(0) && beyond.stderr.contains("4711"), "{beyond}");
    let refused = client(&daemon, &["delete", &id, "--reason", "old"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("deletion"), "{refused}");
}

#[test]
fn what_destroys_much_needs_yes() {
    let daemon = start();
    let running = daemon.api.create("signed", "{}");
    for word in ["cancel", "delete"] {
        let refused = client(&daemon, &[word, "--workflow", "signed"]);
        assert_eq!(refused.code, Some(2), "{refused}");
        assert!(
            refused.stderr.contains("--yes") && refused.stderr.contains("--dry-run"),
            "{refused}"
        );
        let told = printed(&daemon, &[word, "--workflow", "signed", "--dry-run"]);
        assert!(told.contains("nothing was done"), "{told}");
    }
    assert_eq!(daemon.api.job(running).state, "running");
    printed(&daemon, &["cancel", "--workflow", "signed", "--yes"]);
    daemon.api.await_state(running, "cancelled");
    // What can be undone needs none, and neither does one job.
    let other = daemon.api.create("signed", "{}");
    printed(&daemon, &["pause", "--workflow", "signed", "--state", "running"]);
    daemon.api.await_state(other, "paused");
    printed(&daemon, &["cancel", &other.to_string()]);
    printed(&daemon, &["delete", "--workflow", "signed", "-y"]);
    daemon.api.get(&format!("/api/job/{running}")).expect(404);
    let one = daemon.api.create("signed", "{}").to_string();
    printed(&daemon, &["cancel", &one]);
    printed(&daemon, &["delete", &one]);
}
