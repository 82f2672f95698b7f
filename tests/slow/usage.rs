//! What a person gets wrong, and what the daemon and the command line then say: nothing is done that was not asked for.

use serde_json::json;

use crate::harness::{Daemon, Ran, Setup, command, run};

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
    for operation in [&["cancel"][..], &["pause"], &["resume"], &["retry"], &["rerun", "--step", "by-hand"], &["delete"]] {
        for flags in [
            &["--dry-run"][..],
            &["--workflow", "other"],
            &["--state", "failed"],
            &["--status", "by-hand=SIGNED"],
            &["--after", "1h"],
            &["--before", "1h"],
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
        api.post(&format!("/api/job/{id}/{operation}?dryRun=true"), "").expect_problem(400, &["unknown parameter \"dryRun\"", "step"]);
    }
    api.delete(&format!("/api/job/{id}?dryRun=true")).expect_problem(400, &["unknown parameter \"dryRun\"", "takes none"]);
    assert_eq!(api.job(id).state, "running");

    api.post("/api/workflow/idle?ID=11111111-1111-4111-8111-111111111111", "{}").expect_problem(400, &["did you mean \"id\"?", "id, vhost"]);
    api.post(&format!("/api/job/{id}/step/by-hand?foo"), "{}").expect_problem(400, &["unknown parameter \"foo\"", "type"]);
    api.post("/api/reload?now", "").expect_problem(400, &["unknown parameter \"now\""]);
    let job = format!("/api/job/{id}");
    for (path, words) in [
        ("/api/workflow/idle?limt=1", &["unknown parameter \"limt\"", "did you mean \"limit\"?", "vhost, interval, limit, cursor"][..]),
        ("/api/workflow/idle?interval=x", &["interval is \"x\", expected minutes, a whole number"]),
        ("/api/workflow/idle?interval=-1", &["interval is \"-1\", expected minutes"]),
        ("/api/workflow/idle?limit=1&limit=2", &["limit is given twice"]),
        ("/api/workflows?x=1", &["unknown parameter \"x\"", "takes none"]),
        ("/api/jobs?foo=1", &["unknown parameter \"foo\"", "limit, cursor"]),
        ("/api/events?wrkflow=x", &["did you mean \"workflow\"?"]),
        ("/api/jobs/search?dryRun=true", &["unknown parameter \"dryRun\""]),
        ("/api/jobs/search?step=by-hand", &["unknown parameter \"step\""]),
        ("/api/jobs/search?stat=running", &["did you mean \"state\"?"]),
        ("/api/jobs/search?state=failed&state=running", &["state is given twice"]),
        (&*format!("{job}?x"), &["takes none"]),
        (&*format!("{job}/why?x"), &["takes none"]),
        (&*format!("{job}/events?x"), &["takes none"]),
    ] {
        api.get(path).expect_problem(400, words);
    }
    // Nothing was done, and what is known still works.
    assert_eq!(api.get("/api/workflow/idle?vhost=&interval=0&limit=10").expect(200).ids("running"), [id]);
    api.get("/readyz?verbose&probe=7").expect(200);
    assert_eq!(api.get("/api/jobs/search?workflow=idle&status.by-hand=PENDING").expect(200).json()["jobs"][0]["job"], json!(id));
}
