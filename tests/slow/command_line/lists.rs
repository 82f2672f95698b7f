//! Lists, and their forms.

use super::{client, fail, json_of, printed, start};
use crate::harness::{Setup, command, eventually, run, when};
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
    assert!(
        csv.starts_with("job,workflow,state,created,ended,reason,starts,label,columns\n"),
        "{csv}"
    );
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
fn limits_are_listed_with_their_keys() {
    let workflows = "
limits:
  - { name: bank, rate: 100/s, burst: 20, concurrency: 50 }
  - { name: customer, concurrency: 1, key: job.customer }
workflows:
  - name: orders
    steps: [ { name: pay, limit: customer } ]
  - name: calls
    steps: [ { name: call, limit: bank } ]
";
    let daemon = Setup::new("", workflows).start();
    for customer in ["c1", "c1", "c2"] {
        daemon.api.create("orders", &json!({ "customer": customer }).to_string());
    }
    let limits = eventually("the steps hold and wait", || {
        let limits = printed(&daemon, &["limits", "-o", "csv"]);
        when(limits.contains("c1,1,1,") && limits.contains("c2,1,0,"), limits.clone())?;
        Ok::<_, String>(limits)
    });
    assert!(limits.starts_with("limit,vhost,allows,key,held,waiting,next in,"), "{limits}");
    assert!(limits.contains("\nbank,,\"100/s, burst 20; 50 at once\",,0,0,"), "{limits}");
    assert!(limits.contains("\ncustomer,,1 at once,c1,1,1,"), "{limits}");
    let json = json_of(&printed(&daemon, &["limits", "--json"]));
    assert_eq!(json["limits"], daemon.api.get("/api/limits").expect(200).json()["limits"]);
    let names = printed(&daemon, &["limits", "-o", "name"]);
    assert!(names.starts_with("bank") && names.contains("\ncustomer"), "{names}");
}

#[test]
fn the_inbox_lists_what_waits_for_people() {
    let workflows = "
workflows:
  - name: expenses
    label: '\"Expense of \" + job.who'
    columns: { cents: job.cents }
    steps: [ { name: approve, external: true } ]
";
    let daemon = Setup::new("", workflows).start();
    assert_eq!(printed(&daemon, &["inbox"]), "no step waits for a person\n");
    let ids = [(4, "Ada"), (5, "Bob")].map(|(cents, who)| {
        daemon.api.create("expenses", &json!({ "who": who, "cents": cents }).to_string())
    });
    let csv = eventually("both wait", || {
        let csv = printed(&daemon, &["inbox", "--workflow", "expenses", "-o", "csv"]);
        when(csv.lines().count() == 3, csv.clone())?;
        Ok::<_, String>(csv)
    });
    assert!(csv.starts_with("job,workflow,step,status,waits since,label,columns\n"), "{csv}");
    for (id, told) in ids.iter().zip(["Expense of Ada,cents=4", "Expense of Bob,cents=5"]) {
        let row = csv.lines().find(|line| line.starts_with(&id.to_string())).expect("a row");
        assert!(row.contains(",expenses,approve,") && row.ends_with(told), "{row}");
    }
    let table = printed(&daemon, &["inbox", "--limit", "1"]);
    assert!(table.contains("… 1 more") && table.contains("complete JOB STEP"), "{table}");
    printed(&daemon, &["complete", &ids[0].to_string(), "approve"]);
    eventually("one waits", || {
        let names = printed(&daemon, &["inbox", "-o", "name"]);
        when(names == format!("{}\n", ids[1]), names)
    });
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

#[test]
fn a_job_is_found_by_how_its_id_begins() {
    let daemon = start();
    let ids =
        ["abcd", "abce", "f557"].map(|digits| format!("{digits}0000-0000-4000-8000-000000000001"));
    for id in &ids {
        daemon.api.post(&format!("/api/workflow/signed?id={id}"), "{}").expect(201);
    }
    daemon
        .api
        .post(&format!("/api/workflow/signed?id={}", ids[0].replace("01", "02")), "{}")
        .expect(201);
    for beginning in ["f557", "F5570000-00"] {
        for look in [&["job", beginning][..], &["why", beginning], &["history", beginning]] {
            printed(&daemon, look);
        }
        let shown = json_of(&printed(&daemon, &["job", beginning, "--json"]));
        assert_eq!(shown["uuid"], json!(ids[2]));
    }
    printed(&daemon, &["cancel", "f557"]);
    daemon.api.await_state(ids[2].parse().unwrap(), "cancelled");
    // What is meant must be clear.
    let several = client(&daemon, &["cancel", "abcd"]);
    assert_eq!(several.code, Some(1), "{several}");
    assert!(several.stderr.contains("the ids of 2 jobs begin with abcd"), "{several}");
    assert!(several.stderr.contains(&ids[0]) && !several.stderr.contains(&ids[1]), "{several}");
    assert_eq!(daemon.api.job(ids[0].parse().unwrap()).state, "running");
    let none = client(&daemon, &["job", "0123"]);
    assert!(none.code == Some(1) && none.stderr.contains("no job's id begins with 0123"), "{none}");
    let short = client(&daemon, &["job", "f55"]);
    assert!(short.code == Some(2) && short.stderr.contains("the first 4 digits"), "{short}");
}

#[test]
fn the_command_search_asks_for_what_the_api_has() {
    let daemon = start();
    let ids: Vec<String> = (0..3).map(|_| daemon.api.create("signed", "{}").to_string()).collect();
    for id in &ids[..2] {
        printed(&daemon, &["cancel", id]);
    }
    let names = |arguments: &[&str]| -> Vec<String> {
        let all = printed(&daemon, &[&["search", "-o", "name"], arguments].concat());
        all.lines().map(str::to_owned).collect()
    };
    assert_eq!(names(&["--order", "oldest"]), ids);
    assert_eq!(names(&["--id", &ids[2][..8]]), ids[2..]);
    let ended = [ids[1].clone(), ids[0].clone()];
    assert_eq!(names(&["--ended-after", "1h"]), ended);
    assert_eq!(names(&["--ended-before", "2100-01-01T00:00:00Z"]), ended);
    assert!(names(&["--ended-after", "2100-01-01T00:00:00Z"]).is_empty());
    let counted = printed(&daemon, &["search", "--count", "--limit", "2"]);
    assert!(counted.contains("3 in all") && counted.contains("only 2 are shown"), "{counted}");
    let cursor = counted.split("--cursor ").nth(1).unwrap().split(' ').next().unwrap();
    assert_eq!(names(&["--limit", "2", "--cursor", cursor]), ids[..1]);

    let parent = daemon.api.create("fan", r#"{"items":[1,2]}"#).to_string();
    let children = names(&["--parent", &parent[..8]]);
    assert_eq!(children.len(), 2);
    assert!(!children.contains(&parent), "{children:?}");
}
