//! Mistakes of users, and what the daemon and the command line then say: nothing is done that was
//! not asked for.

use serde_json::json;
use std::process::{Command, Stdio};

use crate::amqp::Broker;
use crate::harness::{Daemon, Ran, Setup, command, eventually, free_port, must_succeed, run, when};

const IDLE: &str = "workflows: [ { name: idle, steps: [ { name: by-hand, external: true } ] } ]";

/// A daemon on the embedded bus.
fn start(workflows: &str) -> Daemon {
    Setup::new("", workflows).start()
}

/// The command with `--server`.
fn client(daemon: &Daemon, arguments: &[&str]) -> Ran {
    run(command().args(arguments).args(["--server", &daemon.url()]))
}

#[test]
fn an_id_goes_with_no_filter_and_with_no_dry_run() {
    let daemon = start(IDLE);
    let id = daemon.api.create("idle", "{}");
    let text = id.to_string();
    for operation in [
        &["cancel"][..],
        &["pause"],
        &["resume"],
        &["retry"],
        &["rerun", "--step", "by-hand"],
        &["delete"],
    ] {
        for flags in [
            &["--dry-run"][..],
            &["--workflow", "other"],
            &["--state", "failed"],
            &["--status", "by-hand=SIGNED"],
            &["--after", "1h"],
            &["--before", "1h"],
            &["--ended-after", "1h"],
            &["--ended-before", "1h"],
            &["--limit", "1"],
        ] {
            let ran = client(&daemon, &[operation, &[&text], flags].concat());
            assert_eq!(ran.code, Some(2), "{operation:?} {flags:?}: {ran}");
            assert!(ran.stderr.contains(flags[0]), "{operation:?} {flags:?}: {ran}");
        }
    }
    assert_eq!(daemon.api.job(id).state, "running");
}

#[test]
fn parameters_that_a_call_does_not_know_are_refused() {
    let daemon = start(IDLE);
    let api = &daemon.api;
    let id = api.create("idle", "{}");
    for operation in ["cancel", "pause", "resume", "retry", "rerun"] {
        api.post(&format!("/api/job/{id}/{operation}?dryRun=true"), "")
            .expect_problem(400, &["unknown parameter \"dryRun\"", "step"]);
    }
    api.delete(&format!("/api/job/{id}?dryRun=true"))
        .expect_problem(400, &["unknown parameter \"dryRun\"", "erase"]);
    assert_eq!(api.job(id).state, "running");

    api.post("/api/workflow/idle?ID=11111111-1111-4111-8111-111111111111", "{}")
        .expect_problem(400, &["did you mean \"id\"?", "id, vhost"]);
    api.post(&format!("/api/job/{id}/step/by-hand?foo"), "{}")
        .expect_problem(400, &["unknown parameter \"foo\"", "type"]);
    api.post("/api/reload?now", "").expect_problem(400, &["unknown parameter \"now\""]);
    let job = format!("/api/job/{id}");
    for (path, words) in [
        (
            "/api/workflow/idle?limt=1",
            &[
                "unknown parameter \"limt\"",
                "did you mean \"limit\"?",
                "vhost, interval, limit, cursor",
            ][..],
        ),
        ("/api/workflow/idle?interval=x", &["interval is \"x\", expected minutes, a whole number"]),
        ("/api/workflow/idle?interval=-1", &["interval is \"-1\", expected minutes"]),
        ("/api/workflow/idle?limit=1&limit=2", &["limit is given twice"]),
        ("/api/workflows?x=1", &["unknown parameter \"x\"", "all"]),
        ("/api/jobs?foo=1", &["unknown parameter \"foo\"", "limit, cursor"]),
        ("/api/events?wrkflow=x", &["did you mean \"workflow\"?"]),
        ("/api/jobs/search?vhost=v", &["vhost needs workflow"]),
        ("/api/events?vhost=v", &["vhost needs workflow"]),
        ("/api/jobs/search?dryRun=true", &["unknown parameter \"dryRun\""]),
        ("/api/jobs/search?step=by-hand", &["unknown parameter \"step\""]),
        ("/api/jobs/search?stat=running", &["did you mean \"state\"?"]),
        ("/api/jobs/search?state=failed&state=running", &["state is given twice"]),
        (&*format!("{job}?x"), &["unknown parameter \"x\"", "view, at"]),
        (&*format!("{job}/result?x"), &["takes none"]),
        (&*format!("{job}/why?x"), &["takes none"]),
        (&*format!("{job}/events?x"), &["unknown parameter \"x\"", "children"]),
    ] {
        api.get(path).expect_problem(400, words);
    }
    // Nothing was done, and everything known still works.
    assert_eq!(
        api.get("/api/workflow/idle?vhost=&interval=0&limit=10").expect(200).ids("running"),
        [id]
    );
    api.get("/readyz?verbose&probe=7").expect(200);
    assert_eq!(
        api.get("/api/jobs/search?workflow=idle&status.by-hand=PENDING").expect(200).json()["jobs"]
            [0]["job"],
        json!(id)
    );
}

#[test]
fn the_jobs_of_a_workflow_that_is_no_longer_loaded_are_still_found() {
    let mut daemon = start(IDLE);
    let id = daemon.api.create("idle", "{}");
    daemon.write_workflows(
        "workflows: [ { name: other, steps: [ { name: by-hand, external: true } ] } ]",
    );
    daemon.api.post("/api/reload", "").expect(200);
    let text = id.to_string();
    for round in ["after a reload", "after a restart"] {
        let api = &daemon.api;
        assert_eq!(api.get("/api/workflow/idle").expect(200).ids("running"), [id], "{round}");
        assert_eq!(
            api.get("/api/workflow/idle?limit=5").expect(200).ids("running"),
            [id],
            "{round}"
        );
        let row = &api.get("/api/status/idle").expect(200).json()["rows"][0];
        assert_eq!(
            (&row["job"], &row["steps"]["by-hand"]),
            (&json!(id), &json!("PENDING")),
            "{round}"
        );
        api.get("/api/jobs/search?workflow=idle&status.nope=X")
            .expect_problem(400, &["no step", "by-hand"]);
        api.post("/api/workflow/idle", "{}").expect_problem(404, &["unknown workflow idle"]);
        api.get("/api/workflow/never").expect_problem(404, &["unknown workflow never"]);
        assert_eq!(
            api.get("/api/workflows").expect(200).json(),
            json!([{ "vhost": "", "name": "other", "job_count": 0 }]),
            "{round}"
        );
        for arguments in [
            &["jobs"][..],
            &["jobs", "idle"],
            &["search", "--workflow", "idle", "--status", "by-hand=PENDING"],
            &["status", "idle"],
        ] {
            let ran = client(&daemon, arguments);
            assert!(
                ran.code == Some(0) && ran.stdout.contains(&text),
                "{round}, {arguments:?}: {ran}"
            );
        }
        if round == "after a reload" {
            assert!(daemon.stop().success());
            daemon.start_again();
        }
    }
    let ran = client(&daemon, &["cancel", "--workflow", "idle", "--yes"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("1 of 1"), "{ran}");
    assert_eq!(daemon.api.job(id).state, "cancelled");
}

#[test]
fn without_a_broker_it_is_said_how_workers_get_their_messages() {
    let daemon = start("workflows: [ { name: w, steps: [ { name: work } ] } ]");
    daemon.await_log(&["warn", "no broker is set", "AMQP_SERVER"]);
    let id = daemon.api.create("w", "{}");
    // The message is in its queue a moment after the creation is answered.
    eventually("it is told who is missing", || {
        let why = daemon.api.get(&format!("/api/job/{id}/why")).expect(200).json();
        let text = why["why"].as_str().unwrap_or_default();
        let is_told = why["cause"] == "no_consumer"
            && text.contains("workflow-manager work work -- CMD")
            && text.contains("1 message waits");
        when(is_told, why)
    });
    let ready = daemon.api.get("/readyz?verbose").expect(200);
    assert!(ready.text.contains("embedded"), "{ready}");
    // Steps that need no worker of another process are no reason to warn.
    let alone = start(
        "workflows: [ { name: a, steps: [ { name: call, queue: workflow.b } ] }, \
         { name: b, steps: [ { name: x, external: true } ] } ]",
    );
    assert!(!alone.log().contains("no broker is set"), "{}", alone.log());
}

// ---- run

/// `run` under way, once its job is there: the process, and the job's id.
fn follow(daemon: &Daemon, stderr: &std::path::Path) -> (std::process::Child, String) {
    let mut following = command();
    following
        .args(["run", "idle", "--server", &daemon.url()])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let child = following.stderr(std::fs::File::create(stderr).unwrap()).spawn().unwrap();
    let id = eventually("the job is there", || {
        let ids = daemon.api.get("/api/workflow/idle").expect(200).ids("running");
        ids.first().copied().ok_or("no job")
    });
    let told = format!("job {id}\n");
    eventually("its id is told", || {
        let text = std::fs::read_to_string(stderr).unwrap();
        when(text.starts_with(&told), text)
    });
    (child, id.to_string())
}

#[test]
fn run_tells_the_id_at_once_and_that_the_job_goes_on() {
    let mut daemon = start(IDLE);
    let stderr = daemon.dir().join("stderr");
    let (mut child, id) = follow(&daemon, &stderr);
    assert!(
        Command::new("sh")
            .args(["-c", &format!("kill -INT {}", child.id())])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let goes_on = |id: &str| format!("job {id} goes on: workflow-manager watch {id}");
    assert!(std::fs::read_to_string(&stderr).unwrap().contains(&goes_on(&id)));
    assert_eq!(client(&daemon, &["cancel", &id]).code, Some(0));

    let (mut child, id) = follow(&daemon, &stderr);
    daemon.kill();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let told = std::fs::read_to_string(&stderr).unwrap();
    assert!(told.contains(&goes_on(&id)) && told.contains("cannot reach the manager"), "{told}");
    daemon.start_again();
    let detached = client(&daemon, &["run", "idle", "--detach"]);
    assert!(detached.code == Some(0) && detached.stderr.is_empty(), "{detached}");
}

// ---- the client's arguments

#[test]
fn the_client_says_what_it_needs() {
    let daemon = Setup::new("", IDLE).set("http.token", "sesame-open-yourself").start();
    let with_token = |arguments: &[&str]| {
        client(&daemon, &[arguments, &["--token", "sesame-open-yourself"]].concat())
    };
    for (ran, code, words) in [
        (with_token(&["cancel"]), 2, &["id", "--workflow", "--state"][..]),
        (with_token(&["rerun", "--step", "by-hand"]), 2, &["id", "--workflow"]),
        (client(&daemon, &["jobs"]), 1, &["--token", "WORKFLOW_MANAGER_TOKEN"]),
        (with_token(&["status", "idle", "--filter", "x=1"]), 1, &["no step \"x\"", "by-hand"]),
        (
            run(command().args(["jobs", "--server", "127.0.0.1:8088"])),
            2,
            &["127.0.0.1:8088", "is not an address: expected http://host:port"],
        ),
        (
            run(command().args(["jobs", "--server", &daemon.url().replace("http:", "https:")])),
            3,
            &["it speaks no TLS there: http:// instead of https://"],
        ),
        (
            run(command().args(["jobs"]).env("WORKFLOW_MANAGER_URL", "localhost")),
            2,
            &["is not an address: expected http://host:port"],
        ),
    ] {
        assert_eq!(ran.code, Some(code), "{ran}");
        assert!(words.iter().all(|word| ran.stderr.contains(word)), "{words:?}: {ran}");
    }
    let id = daemon.api.create("idle", "{}");
    let dry = with_token(&["cancel", "--workflow", "idle", "--dry-run"]);
    assert!(
        dry.stdout.contains(&id.to_string())
            && dry.stdout.contains("cancel: 1 job would be asked; nothing was done"),
        "{dry}"
    );
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = must_succeed(command().arg("schema").stdout(writer));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

const SIGNED: &str = "
workflows:
  - name: signed
    steps:
      - name: sign
        external: true
        statusKey: decision
        statuses: [ OPEN, APPROVED, DENIED ]
        retry: { attempts: 2, backoff: 1ms }
";

#[test]
fn a_typo_by_hand_changes_nothing_and_complete_says_what_has_become_of_the_step() {
    let daemon = start(SIGNED);
    let id = daemon.api.create("signed", "{}").to_string();
    let complete =
        |arguments: &[&str]| client(&daemon, &[&["complete", &id, "sign"][..], arguments].concat());
    for (message, words) in [
        (r#"{"decision":"APROVED"}"#, &["APROVED", "OPEN, APPROVED, DENIED"][..]),
        ("{}", &["no status under", "APPROVED"]),
    ] {
        let ran = complete(&["--message", message]);
        assert!(
            ran.code == Some(1)
                && ran.stderr.contains("422")
                && ran.stderr.contains("nothing was changed"),
            "{ran}"
        );
        assert!(words.iter().all(|word| ran.stderr.contains(word)), "{ran}");
    }
    assert_eq!(
        daemon.api.get(&format!("/api/job/{id}")).expect(200).json()["steps"][0]["attempt"],
        json!(1)
    );

    let failed = complete(&["--error", "no pen"]);
    assert!(failed.code == Some(0) && !failed.stdout.contains("settled"), "{failed}");
    for words in [
        "attempt 1 of step sign failed",
        "no pen",
        "the next attempt follows at 2",
        &format!("job {id} is running"),
    ] {
        assert!(failed.stdout.contains(words), "no {words:?}: {failed}");
    }
    eventually("the next attempt", || {
        let job = daemon.api.get(&format!("/api/job/{id}")).expect(200).json();
        when(job["steps"][0]["attempt"] == json!(2), &job)
    });
    let spent = complete(&["--error", "no ink"]);
    assert!(
        spent.stdout.contains("step sign failed at attempt 2")
            && spent.stdout.contains("is failed"),
        "{spent}"
    );
    assert_eq!(client(&daemon, &["retry", &id]).code, Some(0));
    let done = complete(&["--message", r#"{"decision":"APPROVED"}"#]);
    assert!(
        done.stdout.contains("step sign is completed with status APPROVED; job")
            && done.stdout.contains("is completed"),
        "{done}"
    );
}

#[test]
fn delete_on_the_command_line_erases_what_has_ended_alone() {
    let daemon = start(IDLE);
    let id = daemon.api.create("idle", "{}").to_string();
    let running = client(&daemon, &["delete", &id]);
    assert!(running.code == Some(1) && running.stderr.contains("cancel it first"), "{running}");
    assert_eq!(client(&daemon, &["cancel", &id]).code, Some(0));
    let deleted = client(&daemon, &["delete", &id]);
    assert!(deleted.code == Some(0) && deleted.stdout.contains("is deleted"), "{deleted}");
    daemon.api.get(&format!("/api/job/{id}")).expect_problem(404, &[]);
}

// ---- settings

#[test]
fn wrong_settings_are_told_with_what_is_expected() {
    for (setting, value, words) in [
        ("http.listen", "foo", &["foo", "an IP address and port, such as 127.0.0.1:8088"][..]),
        ("amqp.reply_queue_type", "stream", &["reply_queue_type", "stream", "classic or quorum"]),
        ("log.format", "xml", &["format", "xml", "auto, human or json"]),
        ("amqp.heartbeat", "500ms", &["amqp.heartbeat is 500ms", "whole seconds"]),
        ("amqp.heartbeat", "1500ms", &["amqp.heartbeat is 1s500ms", "whole seconds"]),
        (
            "amqp.reconnect_min",
            "1m",
            &["amqp.reconnect_min is 1m", "at most amqp.reconnect_max", "30s"],
        ),
    ] {
        let refused = run(command()
            .args(["serve", "--print-settings"])
            .env(crate::harness::variable(setting), value));
        assert_eq!(refused.code, Some(1), "{setting}: {refused}");
        assert!(words.iter().all(|word| refused.stderr.contains(word)), "{words:?}: {refused}");
    }
    let flag = run(command().args(["serve", "--listen", "foo", "--print-settings"]));
    assert!(flag.code == Some(1) && flag.stderr.contains("such as 127.0.0.1:8088"), "{flag}");
    let port = format!("127.0.0.1:{}", free_port());
    assert_eq!(run(command().args(["serve", "--listen", &port, "--print-settings"])).code, Some(0));
}

// ---- the log

#[test]
fn a_broker_without_tls_is_told_apart_and_numbers_in_the_log_are_numbers() {
    let server = Broker::shared().url("/").replace("amqp://", "amqps://");
    let daemon = Setup::new(&server, IDLE).launch();
    daemon.await_log(&["not with TLS", "amqp instead of amqps"]);
    daemon.await_log(&["not connected to the broker"]);
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("not connected to the broker")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert!(line["retry_in_ms"].is_u64(), "{line}");
}

#[test]
fn a_step_on_the_reply_queue_is_refused() {
    let workflows = "workflows: [ { name: w, steps: [ { name: a, queue: replies-here } ] } ]";
    let mut refused = Setup::new("", workflows).set("amqp.reply_queue", "replies-here").spawn();
    assert!(!refused.await_end().success());
    let log = refused.log();
    assert!(
        log.contains("workflows.yaml:1:")
            && log.contains("replies-here")
            && log.contains("amqp.reply_queue"),
        "{log}"
    );

    let daemon = Setup::new("", IDLE).set("amqp.reply_queue", "replies-here").start();
    daemon.write_workflows(workflows);
    daemon
        .api
        .post("/api/reload", "")
        .expect_problem(422, &["nothing was changed", "replies-here", "amqp.reply_queue"]);
    daemon.write_workflows(&workflows.replace("replies-here", "replies-here.unreadable"));
    daemon
        .api
        .post("/api/reload", "")
        .expect_problem(422, &["nothing was changed", "replies-here.unreadable", "cannot be read"]);

    // A workflow that would take its calls from that queue.
    for (reply_queue, name) in [("workflow", "unreadable"), ("workflow.w", "w")] {
        let workflows = format!("workflows: [ {{ name: {name}, steps: [ {{ name: a }} ] }} ]");
        let mut refused = Setup::new("", &workflows).set("amqp.reply_queue", reply_queue).spawn();
        assert!(!refused.await_end().success());
        let log = refused.log();
        assert!(
            log.contains("choose another name") && log.contains(&format!("workflow.{name}")),
            "{log}"
        );
    }
}
