//! What the API and the command line show about jobs, steps and child jobs: it is true, and it is
//! bounded. The steps are external: the test is the worker, and no broker is needed.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::harness::{Daemon, Ran, Setup, command, eventually, run, when};

const WORKFLOWS: &str = "
workflows:
  - name: two
    steps: [ { name: first, external: true }, { name: second, external: true } ]
  - name: one
    steps: [ { name: only, external: true } ]
  - name: fan
    steps: [ { name: each, task: item }, { name: last, depends: [ each ], external: true } ]
    tasks: [ { name: item, itemListKey: items, tolerate: 2, \
        steps: [ { name: work, external: true } ] } ]
";

fn start() -> Daemon {
    Setup::new("", WORKFLOWS).start()
}

/// The command with `--server`, which must succeed.
#[track_caller]
fn shown(daemon: &Daemon, arguments: &[&str]) -> String {
    let ran = ran(daemon, arguments);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {ran}");
    ran.stdout
}

fn ran(daemon: &Daemon, arguments: &[&str]) -> Ran {
    run(command().args(arguments).args(["--server", &daemon.url()]))
}

#[track_caller]
fn complete(daemon: &Daemon, job: Uuid, step: &str, body: &Value) {
    daemon.api.post(&format!("/api/job/{job}/step/{step}"), body.to_string()).expect(200);
}

#[track_caller]
fn fail(daemon: &Daemon, job: Uuid, step: &str, reason: &str) {
    let body = json!({ "error": reason, "retryable": false });
    daemon
        .api
        .post(&format!("/api/job/{job}/step/{step}?type=error"), body.to_string())
        .expect(200);
}

/// A job of `fan` whose child jobs are all there, with these in the order of their items.
pub(crate) fn fanned_out(daemon: &Daemon, items: usize) -> (Uuid, Vec<Uuid>) {
    let message = json!({ "items": (0..items).collect::<Vec<_>>() }).to_string();
    let id = daemon.api.create("fan", &message);
    let children = eventually("the child jobs are there", || {
        let page = daemon.api.get(&format!("/api/job/{id}/children")).expect(200).json();
        let ids: Vec<Uuid> = page["children"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|row| row["job"].as_str()?.parse().ok())
            .collect();
        when(ids.len() == items, page).map(|()| ids)
    });
    (id, children)
}

#[test]
fn what_runs_no_more_is_not_listed_as_running() {
    let daemon = start();
    let cancelled = daemon.api.create("two", "{}");
    complete(&daemon, cancelled, "first", &json!({}));
    daemon.api.post(&format!("/api/job/{cancelled}/cancel"), "").expect(200);
    let job = daemon.api.await_state(cancelled, "cancelled");
    let names = |job: &crate::harness::JobView| {
        job.running.iter().map(|step| step.name.clone()).collect::<Vec<_>>()
    };
    assert!(names(&job).is_empty(), "{}", job.text);
    assert_eq!(
        job.completed.iter().map(|step| &*step.name).collect::<Vec<_>>(),
        ["__start__", "first"],
        "{}",
        job.text
    );

    // In a failed job, a step that somebody works on still runs: its result is kept.
    let failed = daemon.api.create("two", "{}");
    fail(&daemon, failed, "first", "broken");
    assert_eq!(names(&daemon.api.await_state(failed, "failed")), ["second"]);

    // Child jobs that were halted with their job do not.
    let (halted, children) = fanned_out(&daemon, 4);
    for child in &children[..3] {
        fail(&daemon, *child, "work", "broken");
    }
    assert!(names(&daemon.api.await_state(halted, "failed")).is_empty());
}

#[test]
fn jobs_tells_completed_failed_cancelled_and_paused_apart() {
    let daemon = start();
    let ids: Vec<String> = (0..5).map(|_| daemon.api.create("one", "{}").to_string()).collect();
    let id = |at: usize| ids[at].parse::<Uuid>().unwrap();
    complete(&daemon, id(0), "only", &json!({}));
    fail(&daemon, id(1), "only", "broken");
    daemon.api.post(&format!("/api/job/{}/cancel", ids[2]), "").expect(200);
    daemon.api.post(&format!("/api/job/{}/pause", ids[3]), "").expect(200);
    let wanted = ["completed", "failed", "cancelled", "paused", "running"];
    wanted.iter().enumerate().for_each(|(at, state)| drop(daemon.api.await_state(id(at), state)));

    let text = shown(&daemon, &["jobs"]);
    let machine: Value = serde_json::from_str(&shown(&daemon, &["jobs", "one", "--json"])).unwrap();
    for (id, state) in ids.iter().zip(wanted) {
        let line = text
            .lines()
            .find(|line| line.contains(id))
            .unwrap_or_else(|| panic!("no {id} in {text}"));
        assert!(line.contains(state), "{line}");
        assert!(
            machine
                .as_array()
                .unwrap()
                .contains(&json!({ "job": id, "workflow": "one", "state": state })),
            "{machine}"
        );
    }
    let plain = daemon.api.get("/api/workflow/one?limit=10").expect(200).json();
    assert!(plain.get("states").is_none(), "existing clients see what they know: {plain}");
    daemon.api.get("/api/workflow/one?states=true").expect_problem(400, &["states needs limit"]);
}

#[test]
fn a_retry_keeps_when_the_step_began_and_tells_the_attempt_apart() {
    let daemon = start();
    let id = daemon.api.create("one", "{}");
    let begun = daemon.api.job(id).running_step("only").start_time.clone();
    fail(&daemon, id, "only", "broken");
    daemon.api.await_state(id, "failed");
    daemon.api.post(&format!("/api/job/{id}/retry"), "").expect(200);
    complete(&daemon, id, "only", &json!({}));
    let job = daemon.api.await_state(id, "completed");
    assert_eq!(job.completed_step("only").start_time, begun);
    let step = serde_json::from_str::<Value>(&job.text).unwrap()["steps"][0].clone();
    assert_eq!((&step["startTime"], &step["attempt"]), (&json!(begun), &json!(2)));
    assert!(step["attemptStartTime"].as_str().unwrap() > begun.as_str(), "{step}");
    let (total, attempt) =
        (step["elapsed"].as_u64().unwrap(), step["attemptElapsed"].as_u64().unwrap());
    assert!(total == job.completed_step("only").elapsed && attempt < total, "{step}");
    let text = shown(&daemon, &["job", &id.to_string()]);
    assert!(text.contains("last attempt"), "{text}");
}

#[test]
fn job_shows_message_result_progress_parent_and_child_jobs() {
    let daemon = start();
    let (id, children) = fanned_out(&daemon, 8);
    let (text_id, first) = (id.to_string(), children[0].to_string());
    let progress = json!({ "progress": 0.25, "message": "a quarter" });
    daemon
        .api
        .post(&format!("/api/job/{first}/step/work?type=progress"), progress.to_string())
        .expect(200);
    let child = shown(&daemon, &["job", &first]);
    for words in [
        &format!("parent    {id}, item 0"),
        "task      item",
        "message   {\"item\":0}",
        "25 %; a quarter",
    ] {
        assert!(child.contains(words), "no {words:?} in {child}");
    }
    let parent = shown(&daemon, &["job", &text_id]);
    assert!(
        parent.contains("message   {\"items\":[0,1,2,3,4,5,6,7]}") && !parent.contains("result "),
        "{parent}"
    );
    assert!(
        parent.contains(&first) && !parent.contains(&children[5].to_string()),
        "the first child jobs: {parent}"
    );
    assert!(
        parent.contains(&format!("workflow-manager job {id} --children shows more")),
        "{parent}"
    );

    // Those that failed come first, with the reason.
    fail(&daemon, children[7], "work", "no such thing");
    eventually("the failure is shown", || {
        let text = shown(&daemon, &["job", &text_id]);
        let is_shown = text.contains(&children[7].to_string())
            && text.contains("no such thing")
            && text.contains("… only those that failed are shown; ");
        when(is_shown && !text.contains(&first), text)
    });
    children[..7].iter().for_each(|child| complete(&daemon, *child, "work", &json!({ "item": 1 })));
    let long = "x".repeat(10_000);
    eventually("the last step runs", || {
        when(!daemon.api.job(id).running.is_empty(), daemon.api.job(id).text)
    });
    eventually("the last step is completed", || {
        let answer = daemon
            .api
            .post(&format!("/api/job/{id}/step/last"), json!({ "long": long }).to_string());
        when(answer.status == 200, answer)
    });
    daemon.api.await_state(id, "completed");
    let text = shown(&daemon, &["job", &text_id]);
    assert!(
        text.contains("result    {\"long\":\"xxx")
            && text.contains("… (10011 bytes; --json shows all)"),
        "{text}"
    );
    assert!(text.len() < 5_000, "{} bytes", text.len());
    assert!(shown(&daemon, &["job", &text_id, "--json"]).contains(&long));
}

#[test]
fn results_without_the_key_are_told() {
    let daemon = start();
    let (id, children) = fanned_out(&daemon, 3);
    complete(&daemon, children[0], "work", &json!({ "itm": 1 }));
    complete(&daemon, children[1], "work", &json!({ "item": 1 }));
    complete(&daemon, children[2], "work", &json!({}));
    let warning = "2 of 3 results came without the key \"item\": null stands in for them";
    eventually("the step is completed", || {
        let job = daemon.api.job(id);
        when(job.completed.iter().any(|step| step.name == "each"), job.text)
    });
    assert_eq!(daemon.api.get(&format!("/api/job/{id}")).json()["steps"][0]["warning"], warning);
    let text = shown(&daemon, &["job", &id.to_string()]);
    assert!(text.contains(warning), "{text}");
}

#[test]
fn child_jobs_are_listed_and_searched() {
    let daemon = start();
    let (id, children) = fanned_out(&daemon, 5);
    fail(&daemon, children[3], "work", "item three is broken");
    fail(&daemon, children[1], "work", &"long ".repeat(700));
    complete(&daemon, children[0], "work", &json!({ "item": 1 }));
    let list =
        |query: &str| daemon.api.get(&format!("/api/job/{id}/children{query}")).expect(200).json();
    let items = |page: &Value| {
        page["children"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["item"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    eventually("both have failed", || {
        let page = list("?state=failed");
        when(items(&page) == [1, 3], page)
    });
    let failed = list("?state=failed&step=each");
    let row = &failed["children"][1];
    assert_eq!(
        (&row["job"], &row["step"], &row["state"]),
        (&json!(children[3]), &json!("each"), &json!("failed"))
    );
    assert_eq!(row["reason"], "step \"work\": failed by hand: item three is broken");
    assert!(row["created"].is_string() && row["ended"].is_string(), "{row}");
    assert!(
        failed["children"][0]["reason"].as_str().unwrap().chars().count() <= 1_001,
        "a reason is bounded"
    );
    assert_eq!(items(&list("?state=running")), [2, 4]);
    assert_eq!(items(&list("?state=completed")), [0]);

    let first = list("?limit=2");
    assert_eq!(items(&first), [0, 1]);
    let second = list(&format!("?limit=2&after={}", first["next"].as_str().unwrap()));
    let third = list(&format!("?limit=2&after={}", second["next"].as_str().unwrap()));
    assert_eq!((items(&second), items(&third)), (vec![2, 3], vec![4]));
    assert!(third.get("next").is_none() && first["children"][0].get("reason").is_none());

    let of = format!("/api/job/{id}/children");
    daemon.api.get(&format!("{of}?state=broken")).expect_problem(400, &["state", "failed"]);
    daemon
        .api
        .get(&format!("{of}?step=last"))
        .expect_problem(404, &["\"last\"", "starts child jobs", "\"each\""]);
    daemon.api.get(&format!("{of}?after=1.2")).expect_problem(400, &["after", "\"next\""]);
    daemon.api.get(&format!("{of}?limit=0")).expect_problem(400, &["limit"]);
    daemon
        .api
        .get(&format!("/api/job/{}/children", Uuid::new_v4()))
        .expect_problem(404, &["unknown job id"]);
    assert_eq!(
        daemon.api.get(&format!("/api/job/{}/children", children[0])).expect(200).json(),
        json!({ "children": [] })
    );

    let text = shown(&daemon, &["job", &id.to_string(), "--children", "--failed"]);
    assert!(
        text.contains("item three is broken") && !text.contains(&children[0].to_string()),
        "{text}"
    );
    let text = shown(
        &daemon,
        &["job", &id.to_string(), "--children", "--state", "running", "--limit", "1"],
    );
    assert!(
        text.contains(&children[2].to_string())
            && !text.contains(&children[4].to_string())
            && text.contains("--after "),
        "{text}"
    );
    let machine: Value =
        serde_json::from_str(&shown(&daemon, &["job", &id.to_string(), "--children", "--json"]))
            .unwrap();
    assert_eq!(items(&machine), [0, 1, 2, 3, 4]);
    assert_eq!(
        ran(&daemon, &["job", &id.to_string(), "--failed"]).code,
        Some(2),
        "--failed needs --children"
    );
}

#[test]
fn a_failure_in_a_child_job_is_told_with_its_cause_first() {
    let daemon = start();
    let (id, children) = fanned_out(&daemon, 3);
    for child in &children {
        fail(&daemon, *child, "work", "no such article");
    }
    daemon.api.await_state(id, "failed");
    let reason =
        daemon.api.get(&format!("/api/job/{id}")).json()["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("step \"work\" of item "), "{reason}");
    assert!(reason.contains(": failed by hand: no such article (child job "), "{reason}");
    assert!(reason.ends_with(" of step \"each\")"), "{reason}");
}

#[test]
fn status_of_very_many_steps_chooses_columns() {
    let mut steps: Vec<String> = (0..1_000)
        .map(|n| format!("{{ name: step-{n}, external: true, depends: [ step-{} ] }}", n - 1))
        .collect();
    steps[0] = "{ name: step-0, external: true }".to_owned();
    let daemon = Setup::new(
        "",
        &format!("workflows: [ {{ name: many, steps: [ {} ] }} ]", steps.join(", ")),
    )
    .start();
    let id = daemon.api.create("many", "{}");
    complete(&daemon, id, "step-0", &json!({}));
    eventually("the statuses are there", || {
        let text = shown(&daemon, &["status", "many"]);
        when(
            text.contains("step-0")
                && text.contains("step-1\n")
                && text.contains("COMPLETED")
                && text.contains("PENDING"),
            text,
        )
    });
    let text = shown(&daemon, &["status", "many"]);
    assert!(
        text.lines().all(|line| line.chars().count() < 260) && !text.contains("step-2"),
        "{text}"
    );
    assert!(text.contains("… 998 of 1000 steps are left out; --columns"), "{text}");
    let chosen = shown(&daemon, &["status", "many", "--columns", "step-999,step-0"]);
    assert!(
        chosen.contains("step-999")
            && chosen.contains("step-0")
            && !chosen.contains("step-1 ")
            && !chosen.contains("left out"),
        "{chosen}"
    );
    let wrong = ran(&daemon, &["status", "many", "--columns", "stepp-1"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("did you mean"), "{wrong}");
}
